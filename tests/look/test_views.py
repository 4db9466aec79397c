"""Pictures and reports: readable at any length, nothing gets out of them, and they show what the model attended to."""

from __future__ import annotations

import base64
import html.parser
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from importlib.resources import files

import numpy as np
import pytest
import torch

from regard import Model, Transformer, presets, recipe
from regard.data.tokenizer import Tokenizer
from regard.look.attention import Looks
from regard.look.pictures import plain
from regard.look.report import FULL, SMALL, data, downsampled, full_head
from regard.schema import InputError

pytest.importorskip("matplotlib")
HOSTILE = (
    "<script>alert(1)</script>",
    "\"quoted'",
    "שלום עולם",
    "مرحبا",
    "line\nend\x1b[31m",
    "$x_1$",
    "日本語",
    "</script>",
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def drawn(t: int, s: int, names: tuple[str, ...] = ()) -> Looks:
    weights = np.random.default_rng(3).dirichlet(np.full(s, 0.3), t).astype(np.float32)
    called = [names[i % len(names)] if names else f"word{i}" for i in range(max(t, s))]
    return Looks(name="decoder.1.cross, head 2", rows=tuple(called[:t]), columns=tuple(called[:s]), weights=weights)


def language_model(longest: int = 2_048) -> Model:
    torch.manual_seed(5)
    net = Transformer(presets.tiny_decoder(max_len=longest))
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return Model(net, "generate", None)


def seen(n: int, **options):
    return language_model().attention(torch.arange(n) % 97, **options)


def hostile():
    """A model whose tokens are whatever anybody writes."""
    tokens = Tokenizer.train(["".join(HOSTILE)], recipe.Tokenizer(kind="characters"))
    config = recipe.model_config({"preset": "tiny_encoder_decoder"}, vocab_size=len(tokens))
    return Model(Transformer(config), "translate", tokens, longest=2_048)


# -- pictures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["png", "svg"])
@pytest.mark.parametrize(("t", "s"), [(1, 1), (4, 5), (401, 397), (2_003, 7)])
def test_pictures_of_any_length(tmp_path, t, s, ending):
    looks = drawn(t, s)
    heat, lines = looks.save(tmp_path / f"heat.{ending}"), looks.save(tmp_path / f"lines.{ending}", lines=True)
    for path in (heat, lines):
        if ending == "svg":
            labels = [text.text for text in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]
            assert "word0" in labels
            assert len(labels) <= 150, "names that would touch are left out"
            if t < 10:
                assert {*looks.rows, *looks.columns} <= set(labels) or s > 100, "and no others"
        else:
            assert path.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"heat.{ending}", f"lines.{ending}"]


def test_a_long_text_has_a_pixel_for_every_token(tmp_path):
    from PIL import Image

    with Image.open(drawn(1_201, 1_201).save(tmp_path / "a.png")) as image:
        assert min(image.size) > 1_201


def test_names_cannot_get_out_of_a_picture(tmp_path):
    looks = drawn(len(HOSTILE), len(HOSTILE), HOSTILE)
    for lines in (False, True):
        text = looks.save(tmp_path / "a.svg", lines=lines).read_text(encoding="utf-8")
        tags = {element.tag.split("}")[1] for element in ET.fromstring(text).iter()}
        assert "script" not in tags
        assert "<script" not in text
        assert "\x1b" not in text
        names = [element.text for element in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
        assert plain("<script>alert(1)</script>") in names
        assert "שלום עולם" in names, "a browser sets it from right to left"
        looks.save(tmp_path / "a.png", lines=lines)
        page = Page(looks.save(tmp_path / "a.html", lines=lines).read_text(encoding="utf-8"))
        assert "script" not in page.tags
        assert "svg" in page.tags
        assert not [value for name, value in page.attributes if name == "src"]


def test_the_grid_has_every_head_and_rows_that_sum_to_one(tmp_path):
    weights = seen(131).layers[0].weights
    small = downsampled(weights, SMALL)
    assert small.shape == (3, SMALL, SMALL)
    np.testing.assert_allclose(small.sum(-1), 1, atol=1e-5)
    np.testing.assert_array_equal(downsampled(weights[:, :SMALL, :SMALL], SMALL), weights[:, :SMALL, :SMALL])
    tree = ET.parse(seen(131).save(tmp_path / "grid.svg"))
    labels = [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert labels == ["0", "1", "2", "decoder.0.self", "decoder.1.self", "heads"]


def test_what_is_saved_is_one_head_a_layer_or_all_by_what_is_given(tmp_path):
    all_heads = seen(11)
    for options, title in (((1, 2), "decoder.1.self, head 2"), ((1,), "heads"), ((), "heads")):
        tree = ET.parse(all_heads.save(tmp_path / "a.svg", *options))
        labels = [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]
        assert title in labels
        assert ("decoder.0.self" in labels) == (not options)
    with pytest.raises(InputError, match=r"head: of which layer\? there are decoder\.0\.self, decoder\.1\.self"):
        all_heads.save(tmp_path / "a.svg", head=1)
    with pytest.raises(InputError, match=r"a\.jpeg: a picture is \.png, \.svg or \.html"):
        all_heads.save(tmp_path / "a.jpeg")


# -- the report -------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """What a browser would make of a page: its elements, and the text of each script."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.attributes, self.scripts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags[-1:] == ["script"]:
            self.scripts[-1] += data

    def numbers(self):
        return json.loads(self.scripts[0])


def full_of(found, layer: int, head: int, t: int, s: int) -> np.ndarray:
    raw = np.frombuffer(base64.b64decode(found["full"][f"{layer}/{head}"]), "<u2").reshape(t, s)
    return (raw / 65_535.0) ** 2


def test_the_report_holds_the_weights_of_every_head():
    looked = seen(13)
    found = Page(looked.report()).numbers()
    for i, layer in enumerate(looked.layers):
        assert found["layers"][i]["name"] == layer.name
        np.testing.assert_allclose(found["layers"][i]["entropy"], looked.entropy()[layer.name], atol=1e-4)
        for head in range(3):
            np.testing.assert_allclose(full_of(found, i, head, 13, 13), layer.weights[head], atol=2e-5)
    assert found["names"] == [[str(i) for i in range(13)]]
    assert [layer["name"] for layer in found["layers"]] == [*looked.names, "decoder, rollout"]
    np.testing.assert_allclose(full_of(found, 2, 0, 13, 13), looked.rollout().weights, atol=2e-5)
    assert "decoder, rollout" not in seen(13, layers=1).report()


def test_a_long_report_holds_the_chosen_head_in_full_and_all_heads_small():
    n = 701
    assert 6 * n * n > FULL
    looked = seen(n)
    text = looked.report(layer=1, head=2)
    found = Page(text).numbers()
    assert found["chosen"] == {"layer": 1, "head": 2}
    assert list(found["full"]) == ["1/2"]
    np.testing.assert_allclose(full_of(found, 1, 2, n, n), looked["1"].weights[2], atol=2e-5)
    small = np.frombuffer(base64.b64decode(found["layers"][0]["small"]["data"]), "u1").reshape(3, SMALL, SMALL)
    np.testing.assert_allclose((small / 255.0) ** 2, downsampled(looked["0"].weights, SMALL), atol=4e-3)
    assert len(text) < 5_000_000


def test_the_report_asks_for_nothing_from_elsewhere():
    text = seen(5).report()
    page = Page(text)
    assert not re.findall(r"https?:|//cdn|@import|url\(", text)
    assert not [value for name, value in page.attributes if name in ("src", "href")]
    assert [value for name, value in page.attributes if name == "content" and value.startswith("default-src 'none';")]
    assert "innerHTML" not in text
    assert "prefers-color-scheme: dark" in text


def test_the_scripts_and_styles_are_in_the_package():
    for name in ("attention.js", "attention.css"):
        assert files("regard.look").joinpath("assets", name).read_text(encoding="utf-8")


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_cannot_get_out_of_the_report(text):
    model = hostile()
    report = model.attention(text, text).report()
    page = Page(report)
    assert page.tags.count("script") == 2
    assert len(page.scripts) == 2
    tokens = [model.tokenizer.token(id) for id in model.tokenizer.encode(text)]
    assert [*tokens, "</s>"] in page.numbers()["names"]
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    str(model.attention(text, text))


def test_two_thousand_tokens_in_every_view(tmp_path):
    looked = seen(2_000, layers=0)
    assert len(Page(looked.report()).numbers()["names"][0]) == 2_000
    looked.save(tmp_path / "grid.png")
    looked.save(tmp_path / "head.png", head=1)
    looked.layers[0].head(1).save(tmp_path / "lines.png", lines=True)
    assert looked.rollout().weights.shape == (2_000, 2_000)
    assert len(str(looked).splitlines()) < 20


def test_in_a_notebook_the_report_is_in_a_frame_of_its_own():
    looked = seen(5)
    page = Page(looked._repr_html_())
    assert page.tags == ["iframe"]
    assert dict(page.attributes)["srcdoc"] == looked.report()
    assert dict(page.attributes)["sandbox"] == "allow-scripts"


def test_show_opens_the_report(monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    path = seen(5).show()
    assert opened == [path.as_uri()]
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_an_image_is_in_the_report_with_its_rollout():
    torch.manual_seed(5)
    model = Model(Transformer(presets.tiny_vit()), "classify", None, labels=[str(i) for i in range(11)])
    photo = np.random.default_rng(7).integers(0, 256, (31, 43, 3), dtype=np.uint8)
    found = data(model.attention(photo))
    assert found["image"].startswith("data:image/jpeg;base64,")
    np.testing.assert_allclose(found["rollout"], model.attention(photo).over_image().weights.flatten(), atol=1e-6)
    assert all(layer["image"] for layer in found["layers"])
    assert "rollout" not in data(model.attention(photo, layers=1)), "not all layers are there"
    with pytest.raises(InputError, match="rollout over an image: there is none"):
        seen(5).over_image()


# -- in a browser -----------------------------------------------------------------------------

DRIVE = """((view) => {
const told = [];
const say = () => told.push(document.querySelector(".att-told").textContent);
for (const [layer, head, row, column] of WHERE) { view.choose(layer, head); view.point(row, column); say(); }
document.querySelector("[data-view=lines]").click(); view.point(1, null); say();
const out = document.createElement("pre"); out.id = "out"; out.textContent = JSON.stringify(told); document.body.append(out);
})(showAttention(root, told))"""


def in_browser(report: str, where: list[list[int]], path) -> list[str]:
    call = "=> showAttention(root, told)"
    assert report.count(call) == 1
    report = report.replace(call, "=> " + DRIVE.replace("WHERE", json.dumps(where)))
    path.write_text(report, encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run([CHROMIUM, *options, path.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-2_000:]
    return json.loads(html.unescape(found[1]))


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_shows_the_weights_of_the_pair_under_the_pointer(tmp_path):
    model, text = hostile(), HOSTILE[0]
    looked = model.attention(text, "\"quoted'")
    where = [[i, h, 2, 1] for i, layer in enumerate(looked.layers) for h in range(layer.n_heads)]
    *told, lines = in_browser(looked.report(), where, tmp_path / "a.html")
    for (i, h, row, column), shown in zip(where, told, strict=True):
        layer = looked.layers[i]
        share = 100 * float(layer.weights[h, row, column])
        assert shown.startswith(f"{layer.rows[row]} (3) looks at {layer.columns[column]} (2): ")
        assert float(re.search(r"\): ([\d.]+)%", shown)[1]) == pytest.approx(share, abs=0.06)
        best = int(layer.weights[h, row].argmax())
        assert f"most: {layer.columns[best]} " in shown
    assert lines.startswith("most: ")


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_shows_blocks_where_a_head_is_not_there_in_full(tmp_path):
    looked = seen(701)
    [told, _] = in_browser(looked.report(layer=1, head=2), [[0, 1, 20, 3]], tmp_path / "a.html")
    share = 100 * float(downsampled(looked["0"].weights, SMALL)[1, 20, 3])
    first, last = 20 * 701 // SMALL, 21 * 701 // SMALL - 1
    assert told.startswith(f"{first % 97} … {last % 97} (21) looks at ")
    assert float(re.search(r"\): ([\d.]+)%", told)[1]) == pytest.approx(share, abs=0.6)


def test_full_heads_are_as_the_script_reads_them():
    raw = base64.b64decode(full_head(np.array([[0.25, 1.0]], np.float32)))
    assert raw == (32_768).to_bytes(2, "little") + (65_535).to_bytes(2, "little")
