"""The page's files and headers, and the endpoints behind it: they say what the library says."""

import base64
import io
import json
import math
import re

import numpy as np
import pytest
import torch
from PIL import Image

from browser.models import every_kind
from regard import Model
from regard.decode.ways import drawn
from regard.look.alignment import spread
from regard.look.patches import rollout
from regard.look.trace import trace
from regard.serve import views
from regard.serve.page_api import SHARED, assets
from serve.conftest import Client, serving


@pytest.fixture(scope="module")
def models():
    return every_kind()


@pytest.fixture(scope="module")
def client(models):
    with serving(models) as client:
        yield client


def photo(seed=3, size=(23, 29)):
    """A file of an image, and what is sent of it."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)).save(file, "PNG")
    return file.getvalue(), base64.b64encode(file.getvalue()).decode()


# ---------------------------------------------------------------------------------------
# Files


def test_the_page_and_its_files_come_with_headers_that_let_nothing_else_in(client):
    _, headers, page = client.ask("/")
    named = re.findall(r'(?:src|href)="(page/[^"]+)"', page)
    assert {"page/page.css", "page/main.js"} <= {*named}
    assert headers["content-type"] == "text/html; charset=utf-8"
    for name in [*named, *(f"page/{name}" for name in assets())]:
        status, headers, _ = client.ask(f"/{name}")
        assert status == 200
        kind = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
        assert headers["content-type"] == kind.get(name.rsplit(".", 1)[1], "text/html; charset=utf-8")
        policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_what_is_known_already_is_not_sent_again(client):
    _, headers, _ = client.ask("/page/main.js")
    assert headers["cache-control"] == "no-cache"
    status, again, text = client.ask("/page/main.js", If_None_Match=f'"other", {headers["etag"]}')
    assert (status, again["etag"], text) == (304, headers["etag"], "")
    assert client.ask("/page/main.js", If_None_Match='"other"')[0] == 200


@pytest.mark.parametrize("path", ["/page/nothing.js", "/page/..%2fapp.py", "/page/%2e%2e/app.py", "/page/"])
def test_nothing_but_the_pages_own_files_is_given_out(client, path):
    status, _, refused = client.ask(path)
    assert (status, refused["error"]["code"]) == (404, "no_such_path")


def test_the_page_is_small_and_makes_no_html_of_text():
    whole = assets()
    assert sum(len(asset.data) for name, asset in whole.items() if name not in SHARED) < 100_000
    for name, asset in whole.items():
        text = asset.data.decode()
        if name == "stepper.js":  # its own tests say what it makes of markup: a tree in a report, and none here
            text = text.replace('new DOMParser().parseFromString(text, "image/svg+xml")', "")
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), name
        if name.endswith(".js"):
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser", text
            ), name
        if name.endswith(".html"):
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src=)", text)


def test_with_a_key_the_page_itself_is_open_and_nothing_else(models):
    with serving({"tagger": models["tagger"]}, api_key="secret") as client:
        assert client.ask("/")[0] == client.ask("/page/main.js")[0] == 200
        assert client.ask("/look/models")[0] == 401
        assert client.ask("/look/tokens", {"text": "a"})[0] == 401
        assert client.ask("/look/models", Authorization="Bearer secret")[0] == 200


# ---------------------------------------------------------------------------------------
# What a model is, and what it reads


def test_models_tell_what_they_are(client, models):
    told = {one["name"]: one for one in client.fine("/look/models")["models"]}
    assert list(told) == list(models)
    assert told["writer"]["chat"]
    assert not told["translator"]["chat"]
    assert told["seer"]["images"]
    assert not told["seer"]["text"]
    assert told["classifier"]["labels"] == list(models["classifier"].labels)
    assert told["translator"]["parameters"] == models["translator"].n_parameters
    assert told["translator"]["attention"] == [
        {"tower": "encoder", "layers": ["0.self", "1.self"], "heads": 3},
        {"tower": "decoder", "layers": ["0.self", "0.cross", "1.self", "1.cross"], "heads": 3},
    ]
    assert told["searcher"]["attention"] == [{"tower": "decoder", "layers": ["0.cross"], "heads": 1}]


@pytest.mark.parametrize(
    ("name", "text", "first", "last"),
    [
        ("translator", "a dog", None, "</s>"),
        ("writer", "a dog", "<s>", None),
        ("classifier", "a dog", "<s>", "</s>"),
        ("tagger", "two  dogs", "<s>", "</s>"),
        ("filler", "a [MASK] dog", "<s>", "</s>"),
        ("captioner", "a dog", None, "</s>"),
    ],
)
def test_tokens_are_those_that_the_model_reads(client, models, name, text, first, last):
    got = client.fine("/look/tokens", {"model": name, "text": text})
    tokens = models[name].tokenizer
    assert got["tokens"] == [tokens.token(id) for id in got["ids"]]
    assert (got["tokens"][0] == first) == (first is not None) == got["special"][0]
    assert (got["tokens"][-1] == last) == (last is not None) == got["special"][-1]
    if name not in ("tagger", "filler"):
        assert [id for id, special in zip(got["ids"], got["special"], strict=True) if not special] == tokens.encode(
            text
        )
    if name == "filler":
        assert got["ids"].count(tokens.mask) == 1


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        *(pytest.param(*how, marks=pytest.mark.slow) for how in ((1.0, 0, 1.0), (0.5, 0, 0.9), (2.0, 7, 1.0))),
        (0.8, 11, 0.6),
    ],
)
def test_the_next_token_is_the_one_that_is_drawn(client, models, temperature, top_k, top_p):
    """The shares that follow from the logits that are sent are the frequencies of the library's own draws."""
    model, n = models["writer"], 200_000
    got = client.fine("/look/next", {"model": "writer", "prompt": "a dog", "top": 101, "temperatures": [temperature]})
    ids = torch.tensor([[*model.prefix, *model.tokenizer.encode("a dog")]])
    logits = model.logits(ids)[0, -1]
    assert got["logits"] == pytest.approx(logits[got["ids"]].tolist(), abs=1e-4)
    assert got["logits"] == sorted(got["logits"], reverse=True)
    assert not {model.tokenizer.pad, model.tokenizer.start, model.tokenizer.mask} & {*got["ids"]}
    assert got["vocabulary"] == len(model.tokenizer) - 3
    assert got["texts"][0] == model.tokenizer.piece(got["ids"][0]).decode()

    # As the page works them out: see shares() in jobs.js.
    top = got["logits"][0] / temperature
    kept = [math.exp(logit / temperature - top) for logit in got["logits"]][: top_k or None]
    others = 0.0 if top_k else math.exp(got["rest"][0] - top)
    total, before, shares = sum(kept) + others, 0.0, []
    for power in kept:
        shares.append(power / total if before < top_p else 0.0)
        before += power / total
    rest = others / total if before < top_p else 0.0
    shares = [share / (sum(shares) + rest) for share in shares]

    allowed = logits.clone()
    allowed[[model.tokenizer.pad, model.tokenizer.start, model.tokenizer.mask]] = -torch.inf
    lots = torch.rand(n, generator=torch.Generator().manual_seed(3))
    found = drawn((allowed / temperature).expand(1, n, -1)[..., : len(model.tokenizer)], lots[None], top_k, top_p)
    counts = torch.bincount(found.flatten(), minlength=len(model.tokenizer)) / n
    for id, share in zip(got["ids"], shares, strict=False):
        assert abs(float(counts[id]) - share) < 5 * math.sqrt(share * (1 - share) / n) + 1e-5
        assert share > 0 or counts[id] == 0


def test_the_rest_is_nothing_where_all_is_sent(client):
    got = client.fine("/look/next", {"model": "writer", "prompt": "a", "top": 1_000, "temperatures": [1.0]})
    assert len(got["ids"]) == got["vocabulary"]
    assert got["rest"] == [None]


def test_a_model_whose_special_tokens_are_all_one_may_write_them_all(models):
    """As GPT-2's: nothing is forbidden."""
    model = models["writer"]
    tokens = model.tokenizer
    other = Model(model.net, "generate", tokens, ends=[tokens.pad, tokens.start, tokens.end, tokens.mask])
    assert views.next_tokens(other, "a", top=7)["vocabulary"] == len(tokens)


# ---------------------------------------------------------------------------------------
# Attention


@pytest.mark.parametrize(
    ("name", "target", "layer"),
    [
        ("writer", None, "decoder.1.self"),
        ("filler", None, "encoder.0.self"),
        ("tagger", None, "encoder.1.self"),
        ("translator", "two cats", "encoder.1.self"),
        ("translator", "two cats", "decoder.0.self"),
        ("translator", "two cats", "decoder.1.cross"),
        ("searcher", "two cats", "decoder.0.cross"),
    ],
)
def test_attention_is_the_models_own(client, models, name, target, layer):
    text = "the [MASK] dog" if name == "filler" else "the old dog"
    body = {"model": name, "text": text, "layer": layer, "head": 0, **({"target": target} if target else {})}
    got = client.fine("/look/attention", body)
    seen = models[name].attention(text, target, layers=layer)[layer]
    assert got["layer"] == layer
    assert np.allclose(got["weights"], seen.weights[0], atol=6e-5)
    assert got["size"] == [*seen.weights[0].shape]
    assert (got["rows"], got["columns"]) == (list(seen.rows), list(seen.columns))
    small = np.frombuffer(base64.b64decode(got["thumbs"][-1]), np.uint8).reshape(got["thumb"])
    assert np.allclose(small / 255, seen.weights[-1], atol=0.003)
    mean = client.fine("/look/attention", {**body, "head": None, "mean": True})
    assert mean["head"] is None
    assert np.allclose(mean["weights"], seen.weights.mean(0), atol=6e-5)


def test_left_out_the_head_is_the_one_that_looks_at_the_most_places(client, models):
    got = client.fine("/look/attention", {"model": "translator", "text": "the old dog", "target": "two cats"})
    seen = models["translator"].attention("the old dog", "two cats", layers="decoder.1.cross")
    assert got["layer"] == "decoder.1.cross"
    assert got["head"] == int(spread(torch.from_numpy(seen.layers[0].weights)).argmax())


def test_a_long_text_is_sent_small(client, models):
    """2,000 tokens: what is sent of them is the strongest look of each block."""
    text = "the old dog " * 167
    status, _, got = client.ask(
        "/look/attention", {"model": "writer", "text": text, "layer": "decoder.1.self", "head": 1}
    )
    assert status == 200
    assert got["size"][0] == len(text) + 1
    assert max(len(got["rows"]), len(got["columns"])) <= views.SIDE
    whole = models["writer"].attention(text, layers="decoder.1.self").layers[0].weights[1]
    by = got["block"][0]
    assert got["weights"][3][2] == pytest.approx(whole[3 * by : 4 * by, 2 * by : 3 * by].max(), abs=6e-5)
    assert len(json.dumps(got)) < 1_000_000


def test_attention_over_an_image(client, models):
    file, sent = photo()
    got = client.fine("/look/attention", {"model": "seer", "image": sent, "layer": "encoder.0.self", "head": 2})
    seen = models["seer"].attention(file, layers="encoder.0.self").layers[0]
    assert np.allclose(got["weights"], seen.weights[2], atol=6e-5)
    assert got["side"] == 5
    assert Image.open(io.BytesIO(base64.b64decode(got["image"]))).format == "JPEG"


# ---------------------------------------------------------------------------------------
# The search


@pytest.mark.parametrize(
    ("name", "how"),
    [("translator", {"beam": 3, "max_length": 11}), ("searcher", {"beam": 2, "max_length": 11}), ("writer", {"beam": 2, "max_length": 7}), ("writer", {"temperature": 0.9, "seed": 5, "max_length": 7})],
)  # fmt: skip
def test_a_trace_is_the_librarys(client, models, name, how):
    got = client.fine("/look/trace", {"model": name, "text": "a dog", **how})
    own = {"max_new_tokens" if name == "writer" and key == "max_length" else key: value for key, value in how.items()}
    wanted = json.loads(json.dumps(trace(models[name], "a dog", **own).to_dict()))
    assert {key: got[key] for key in wanted} == wanted
    assert got["text"] == "a dog"


def test_a_trace_knows_the_others_by_either_name(client, models):
    got = client.fine("/look/trace", {"model": "writer", "text": "a dog", "beam": 3, "n_best": 2, "max_length": 3})
    found = models["writer"].generate(["a dog"], beam=3, n=2, max_new_tokens=3)[0]
    assert [one["text"] for one in got["answer"]["others"]] == [one.text for one in found.others]


def test_many_images_are_read_a_few_at_a_time_and_others_have_their_turn(models, monkeypatch):
    """The answers are those of all together; nothing is read for a client that has gone."""
    files = [photo(i) for i in range(37)]
    own = [one.label for one in models["seer"].classify([file for file, _ in files])]
    read, sizes = models["seer"].classify, []

    def watched(inputs, **options):
        sizes.append(len(inputs))
        return read(inputs, **options)

    monkeypatch.setattr(models["seer"], "classify", watched)
    with serving({"seer": models["seer"]}) as client:
        got = client.fine("/classify", {"images": [sent for _, sent in files]})
        assert [one["label"] for one in got["answers"]] == own
        assert sizes == [16, 16, 5]
        wrong = [sent for _, sent in files[:20]] + [base64.b64encode(b"no").decode()]
        assert "image 21 is not an image" in client.refused("/classify", {"images": wrong})[1].replace(":", "")
        black = io.BytesIO()
        Image.new("L", (7_000, 7_000)).save(black, "PNG")
        status, told, _ = client.refused("/classify", {"images": [base64.b64encode(black.getvalue()).decode()] * 2})
        assert status == 413
        assert told.startswith("images: have 98,000,000 pixels, and more than 64,000,000 are refused")
        program = base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nwhile true { } loop").decode()
        assert "of a kind that pillow cannot read" in client.refused("/classify", {"images": [program]})[1]


def test_a_drawn_caption_belongs_to_its_image(client, models):
    (first, sent), (second, _) = photo(1), photo(2)
    how = {"temperature": 1.0, "seed": 5, "max_length": 11}
    alone = models["captioner"].caption([second], **how)[0].text
    assert models["captioner"].caption([first, second], **how)[1].text == alone
    got = client.fine("/caption", {"model": "captioner", "images": [sent, sent], **how})
    assert {one["text"] for one in got["answers"]} == {models["captioner"].caption([first], **how)[0].text}


def test_a_text_is_traced_sentence_by_sentence(client, models):
    body = {"model": "translator", "text": "A dog runs. The cat sleeps.", "beam": 2, "max_length": 7}
    for i, sentence in enumerate(["A dog runs.", "The cat sleeps."]):
        got = client.fine("/look/trace", {**body, "sentence": i})
        assert (got["sentences"], got["text"]) == (["A dog runs.", "The cat sleeps."], sentence)
        assert got["answer"] == json.loads(
            json.dumps(models["translator"].translate(sentence, beam=2, max_length=7)[0].to_dict())
        )


def test_the_trace_of_a_caption_has_its_image(client, models):
    file, sent = photo()
    got = client.fine("/look/trace", {"model": "captioner", "image": sent, "beam": 2, "max_length": 5})
    assert got["answer"]["text"] == models["captioner"].caption([file], beam=2, max_length=5)[0].text
    assert got["side"] == 3
    assert Image.open(io.BytesIO(base64.b64decode(got["image"]))).format == "JPEG"


# ---------------------------------------------------------------------------------------
# Images


def test_jobs_over_images_are_the_models_own(client, models):
    file, sent = photo()
    got = client.fine("/look/rollout", {"model": "seer", "image": sent})
    assert np.allclose(got["weights"], rollout(models["seer"], file).weights, atol=1e-6)
    got = client.fine("/caption", {"model": "captioner", "images": [sent], "beam": 3, "n_best": 2, "max_length": 11})
    [said] = models["captioner"].caption([file], beam=3, n_best=2, max_length=11)
    assert [got["answers"][0]["text"], got["answers"][0]["others"][0]["text"]] == [said.text, said.others[0].text]
    got = client.fine("/look/caption", {"model": "captioner", "image": sent, "text": "a dog"})
    seen = views.glimpses(models["captioner"], file, text="a dog")
    assert got["words"] == ["a", "dog"]
    assert np.allclose(got["weights"], seen["weights"], atol=1e-6)
    got = client.fine(
        "/match", {"model": "matcher", "images": [sent, sent], "texts": ["dog", "cat"], "templates": ["a {}"]}
    )
    found = models["matcher"].match([file, file], ["dog", "cat"], ["a {}"])
    assert np.allclose([one["probabilities"] for one in got["answers"]], found.probabilities, atol=1e-5)
    assert np.allclose([one["cosines"] for one in got["answers"]], found.cosines, atol=1e-5)


def test_drawings_are_the_models_own(client, models):
    got = client.fine("/draw", {"model": "drawer", "texts": ["a dog", "a cat"], "n": 3, "seed": 5})
    found = models["drawer"].draw(["a dog", "a cat"], n=3, seed=5)
    for mine, theirs in zip(got["answers"], found, strict=True):
        for image, drawing in zip(mine, theirs, strict=True):
            assert np.array_equal(np.array(Image.open(io.BytesIO(base64.b64decode(image["image"])))), drawing.image)
            assert image["score"] == pytest.approx(drawing.score, rel=1e-4)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/look/tokens", {"model": "writer", "text": "a" * 20_001}, "20,001 characters"),
        ("/look/next", {"model": "tagger", "prompt": "a"}, "was trained to tag, not to generate"),
        ("/look/next", {"model": "writer", "prompt": "a", "top": 0}, "top (0)"),
        ("/look/next", {"model": "writer", "prompt": "a", "temperatures": [0]}, "temperatures.0 (0)"),
        ("/look/attention", {"model": "writer"}, "text or image: give what is to be looked at"),
        ("/look/attention", {"model": "writer", "text": " "}, "empty"),
        ("/look/attention", {"model": "writer", "text": "a", "layer": "encoder.7.self"}, "layer ('encoder.7.self') is not in this model"),
        ("/look/attention", {"model": "writer", "text": "a", "head": 3}, "head (3) is not in layer"),
        ("/look/attention", {"model": "writer", "text": "a dog " * 400}, "is longer than this model reads at once"),
        ("/look/attention", {"model": "writer", "text": "a dog " * 417}, "2,502 tokens is more than the 2,500 that are looked at"),
        ("/look/attention", {"model": "seer", "image": "§"}, "must be files of images as base64"),
        ("/look/rollout", {"model": "seer", "image": base64.b64encode(b"no").decode()}, "is not an image"),
        ("/look/rollout", {"model": "writer", "image": photo()[1]}, "reads no images"),
        ("/look/caption", {"model": "seer", "image": photo()[1]}, "was trained to classify, not to caption"),
        ("/look/trace", {"model": "writer"}, "text or image: give what the search is to begin with"),
        ("/look/trace", {"model": "tagger", "text": "a"}, "was trained to tag, not to"),
        ("/look/trace", {"model": "translator", "text": "a", "sentence": 1}, "sentence (1): the text has only 1, counted from 0"),
        ("/look/trace", {"model": "translator", "text": "…"}, "sentence (0): the text has nothing to translate"),
        ("/look/trace", {"model": "writer", "text": "a", "beam": 17}, "17 ways, more than 16"),
        ("/look/trace", {"model": "writer", "text": "a", "beam": 9}, "a trace of 9 ways is more than one can see; ask for 8 at most"),
        ("/look/trace", {"model": "writer", "text": "a", "max_length": 1_025}, "1,025 tokens are asked for"),
        ("/look/trace", {"model": "writer", "text": "a", "beam": 2, "temperature": 1.0}, "a beam does not draw"),
        ("/caption", {"model": "captioner", "images": [photo()[1]], "beam": 17}, "17 ways, more than 16"),
        ("/match", {"model": "seer", "images": [photo()[1]], "texts": "a"}, "was trained to classify, not to match"),
        ("/match", {"model": "matcher", "images": [photo()[1]], "texts": "a", "templates": ["a"]}, "must have {} in it once"),
        ("/look/trace", {"model": "captioner", "text": __file__}, "text: this model reads an image; send that"),
        ("/look/attention", {"model": "captioner", "text": __file__}, "text: this model reads an image; send that"),
        ("/look/attention", {"model": "seer", "text": __file__}, "text: this model reads an image; send that"),
        ("/classify", {"model": "seer", "texts": [__file__]}, "text: this model reads an image; send that"),
        ("/classify", {"model": "classifier", "images": [photo()[1]]}, "an image: this model reads text; send that"),
        ("/look/trace", {"model": "writer", "image": photo()[1]}, "an image: this model reads text; send that"),
        ("/look/attention", {"model": "writer", "image": photo()[1]}, "an image: this model reads text; send that"),
        ("/look/tokens", {"model": "filler", "text": "a [MASK] [SEP] [SEP]"}, "has 2 [SEP]: at most one parts it"),
        ("/draw", {"model": "drawer", "texts": "a", "n": 2, "temperature": 0.0}, "n (2): at temperature 0 there is one image"),
        ("/draw", {"model": "drawer", "texts": "a", "n": 17}, "17 ways, more than 16"),
        ("/draw", {"model": "drawer", "texts": ""}, "text ('') is empty; say what is to be drawn"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(client, path, body, message):
    status, told, _ = client.refused(path, body)
    assert status == 422
    assert message in told


def test_a_stream_obeys_top_k(client, models):
    body = {"model": "writer", "prompt": "a", "max_tokens": 13, "temperature": 1.5, "top_k": 1, "seed": 7}
    assert isinstance(client, Client)
    greedy = models["writer"].generate("a", max_new_tokens=13, temperature=0)[0].text
    assert client.fine("/v1/completions", body)["choices"][0]["text"] == greedy
