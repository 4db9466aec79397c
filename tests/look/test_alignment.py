"""What a translator looked at is the model's own, and the picture of it is safe to put on a page."""

import re
import xml.etree.ElementTree as ET

import pytest
import torch

from regard import presets
from regard.data.tokenizer import Tokenizer
from regard.look.alignment import Alignment, align, aligning_head, spread
from regard.model import Model
from regard.nn import Transformer
from regard.recipe import Tokenizer as TokenizerConfig
from regard.schema import InputError

SOURCE, TARGET = "a dog", "ein Hund"
HOSTILE = ("<script>alert(1)</script>", "a&b", "\"quoted'", "line\nend\x1b[31m", "$x_1$")


def translator(config=None):
    tokenizer = Tokenizer.train([SOURCE, TARGET], TokenizerConfig(kind="characters"))
    config = config or presets.tiny_encoder_decoder()
    sizes = {"encoder": {"input": {"vocab_size": len(tokenizer)}}, "decoder": {"input": {"vocab_size": len(tokenizer)}}}
    plain = config.to_dict()
    for tower, change in sizes.items():
        plain[tower]["input"] |= change["input"]
    return Model(Transformer(type(config).from_dict(plain)), "translate", tokenizer)


def drawn(n_target, n_source, names=None):
    weights = torch.rand(n_target, n_source).softmax(-1)
    source, target = (names or [f"word{i}" for i in range(n)] for n in (n_source, n_target))
    return Alignment(source=tuple(source), target=tuple(target), weights=weights, layer="1.cross", head=2)


@pytest.mark.parametrize(
    "config", [presets.tiny_encoder_decoder(), presets.tiny_bahdanau()], ids=["stack", "recurrent"]
)
def test_the_rows_are_what_the_model_attends_with_when_it_writes_their_tokens(config):
    model = translator(config)
    tokens, layer = model.tokenizer, model.net.attention_layers()["decoder"][-1]
    seen = align(model, SOURCE, TARGET, layer=layer, head=0)
    assert (seen.source, seen.target) == ((*"a▁dog", "</s>"), (*"ein▁Hund", "</s>"))
    memory = model.net.encode(torch.tensor([[*tokens.encode(SOURCE), tokens.end]]))
    for t in range(len(seen.target)):  # what the model sees when it writes token t: the ones before
        asks = torch.tensor([[tokens.start, *tokens.encode(TARGET)[:t]]])
        own = model.net.decode(asks, memory, capture=[layer]).attended[layer].weights(0)[0, 0, -1]
        torch.testing.assert_close(seen.weights[t], own, atol=1e-6, rtol=0)
    torch.testing.assert_close(seen.weights.sum(1), torch.ones(len(seen.target)))


def test_a_layer_without_a_head_is_the_mean_of_its_heads():
    model = translator()
    heads = [align(model, SOURCE, TARGET, layer="1.cross", head=h).weights for h in range(3)]
    mean = align(model, SOURCE, TARGET, layer="1.cross")
    assert mean.head is None
    torch.testing.assert_close(mean.weights, torch.stack(heads).mean(0))


def test_the_target_left_out_is_the_models_own_translation():
    model = translator()
    said = model.translate([SOURCE], whole=True)[0]
    assert align(model, SOURCE).target[: len(said.tokens)] == said.tokens
    assert len(align(model, SOURCE).target) == len(said.tokens) + 1  # and its end


def test_the_head_that_aligns_looks_at_the_most_different_places():
    """Of the upper half of the layers, which are about what is written."""
    model = translator()
    sources = [SOURCE, "god a a", "oo"]
    places = [("1.cross", head) for head in range(3)]
    spreads = [sum(float(spread(align(model, s, layer=la, head=h).weights[None])) for s in sources) for la, h in places]
    assert aligning_head(model, sources) == places[spreads.index(max(spreads))]
    assert spreads.index(max(spreads)) != 0, "or the first would do"
    alone = align(model, SOURCE, TARGET)
    at = [float(spread(align(model, SOURCE, TARGET, layer=la, head=h).weights[None])) for la, h in places]
    assert (alone.layer, alone.head) == places[at.index(max(at))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": "2.cross"}, "layer ('2.cross'): is no cross-attention of this model; it has 0.cross, 1.cross"),
        ({"layer": "0.self"}, "layer ('0.self'): is no cross-attention of this model; it has 0.cross, 1.cross"),
        ({"head": 1}, "head (1): of which layer? this model has 0.cross, 1.cross"),
        ({"layer": "0.cross", "head": 3}, "head (3): is not in layer 0.cross; its heads are 0 to 2"),
        ({"layer": "0.cross", "head": -1}, "head (-1): is not in layer 0.cross; its heads are 0 to 2"),
    ],
)
def test_a_layer_or_head_that_is_not_there_is_refused(options, message):
    with pytest.raises(InputError) as error:
        align(translator(), SOURCE, TARGET, **options)
    assert str(error.value) == message


def test_models_that_do_not_translate_or_do_not_attend_are_refused():
    tokenizer = Tokenizer.train([SOURCE], TokenizerConfig(kind="bytes"))
    with pytest.raises(InputError, match="was trained to generate, not to translate"):
        align(Model(Transformer(presets.tiny_decoder()), "generate", tokenizer), SOURCE)
    with pytest.raises(InputError, match="no cross-attention to look at"):
        align(translator(presets.tiny_bahdanau(score=None)), SOURCE)


def test_weights_of_another_shape_are_refused():
    with pytest.raises(InputError, match=r"weights of shape \(2, 3\) must have a row for each of the 3 target tokens"):
        Alignment(source=("a", "b"), target=("c", "d", "e"), weights=torch.zeros(2, 3), layer="0.cross", head=0)


@pytest.mark.parametrize("n", [5, 17, 41])
def test_the_picture_has_every_name_and_frames_the_strongest_of_each_row(n):
    seen = drawn(n, n + 2)
    picture = ET.fromstring(seen.svg())
    assert [text.text for text in picture.iter("text")] == [*seen.source, *seen.target]
    framed = [rect for rect in picture.iter("rect") if rect.get("class") == "cell most"]
    for t, (rect, s) in enumerate(zip(framed, seen.weights.argmax(1).tolist(), strict=True)):
        share = float(seen.weights[t, s])
        assert rect[0].text == f"word{t} looked at word{s}: {share:.1%}"
        assert float(rect.get("fill-opacity")) == pytest.approx(share, abs=1e-3)
    columns = {float(rect.get("x")) for rect in picture.iter("rect")}
    assert max(columns) + float(framed[0].get("width")) <= float(picture.get("width"))
    assert float(picture.get("width")) < 1_100, "fits a screen"


def test_tokens_cannot_get_out_of_the_picture_or_the_terminal():
    seen = drawn(5, 5, HOSTILE)
    picture = ET.fromstring(seen.svg())
    assert {element.tag for element in picture.iter()} == {"svg", "style", "text", "path", "rect", "title"}
    assert "<script>alert(1)</script>" in [text.text for text in picture.iter("text")]
    assert "http" not in seen.svg()
    assert "\x1b" not in seen.svg() + str(seen)
    assert len(str(seen).splitlines()) == 6


def test_the_picture_as_a_file(tmp_path):
    seen = drawn(5, 7, None)
    svg = ET.parse(seen.save(tmp_path / "a.svg")).getroot()
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    with pytest.raises(InputError, match=r"a\.jpeg: a picture is \.png, \.svg or \.html"):
        seen.save(tmp_path / "a.jpeg")
    pytest.importorskip("matplotlib")
    assert drawn(5, 5, HOSTILE).save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert seen.svg() in seen.save(tmp_path / "a.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.png", "a.svg"]


def test_in_a_terminal_columns_are_as_wide_as_their_tokens():
    seen = Alignment(
        source=("four", "十", "-"),
        target=("vier", "四百"),
        weights=torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.45, 0.55]]),
        layer="0.cross",
        head=None,
    )
    assert str(seen).splitlines() == ["     four 十 -", "vier ████", "四百      ▒▒ ▒"]
    assert seen.to_dict()["weights"][0] == [1.0, 0.0, 0.0]


def test_of_many_tokens_only_what_can_be_read_is_shown(tmp_path):
    pytest.importorskip("matplotlib")
    seen = drawn(2_003, 61)
    lines = str(seen).splitlines()
    assert len(lines) == 2_003
    assert lines[7].split() == ["word7", f"{float(seen.weights[7].max()):.0%}", f"word{seen.strongest()[7]}"]
    for ending in ("svg", "html"):
        names = re.findall(r">word(\d+)<", seen.save(tmp_path / f"a.{ending}").read_text(encoding="utf-8"))
        assert 10 < len(names) < 70
    hostile = drawn(73, 73, [HOSTILE[i % 5] for i in range(73)])
    assert "<script" not in hostile.save(tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "\x1b" not in str(hostile)
    assert len(str(hostile).splitlines()) == 73
