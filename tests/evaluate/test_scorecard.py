"""A score card says what is true of a model, of a test set, of the machine; and is there whole or not at all."""

import gzip
import hashlib
import json
import lzma
import math
import sys
from dataclasses import replace

import pytest
import zstandard

import toy
from regard import Model, load
from regard.config import InputError, RegardError
from regard.decode.translate import Translation
from regard.evaluate import (
    bleu,
    chrf,
    compare,
    evaluate,
    likelihood,
    loss,
    moses_bleu,
    read_cards,
    read_texts,
    set_name,
)
from regard.evaluate.scorecard import entry
from regard.look.page import as_text
from regard.train.loop import train
from regard.train.run import Run
from regard.train.watch import Watch

MODELS = {"transformer": None, "recurrent": {"preset": "tiny_bahdanau"}}


def trained(folder, kind="transformer", **options):
    recipe, data = toy.prepared(folder, "translate", model=MODELS[kind], **options)
    return train(recipe, data.path, folder / "run", device="cpu", watch=Watch(quiet=True))


@pytest.fixture(scope="module", params=MODELS)
def any_run(request, tmp_path_factory):
    return trained(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Of a model that writes letters, though not yet the right ones."""
    return trained(tmp_path_factory.mktemp("run"), steps=101, valid_every=101, checkpoint_every=101, log_every=101)


@pytest.fixture(scope="module")
def texts(run):
    """The held-out pairs of the run."""
    folder = run.path.parent
    return read_texts(folder / "valid.in", [folder / "valid.out"])


@pytest.fixture
def saying(run, monkeypatch):
    """A model of the run that says what it is told to."""

    def made(said):
        model = load(run.path, device="cpu")

        def translate(texts, *, whole, **options):
            assert whole  # a line of a test set may be two sentences, and is one all the same
            return [Translation(text) for text in said]

        monkeypatch.setattr(model, "translate", translate)
        return model

    return made


# ---------------------------------------------------------------------------------------
# Loss


def valid_lines(run):
    return {line["step"]: line for line in run.lines() if line["kind"] == "valid"}


def test_the_loss_is_what_training_says_of_its_held_out_data(any_run):
    folder = any_run.path.parent
    sources, references = read_texts(folder / "valid.in", [folder / "valid.out"])
    found = likelihood(load(any_run.path, device="cpu"), sources, references[0])
    best = min(valid_lines(any_run).values(), key=lambda line: line["loss"])  # whose weights were kept
    assert found.loss == pytest.approx(best["loss"], abs=1e-5)
    assert found.perplexity == pytest.approx(best["perplexity"], rel=1e-5)
    assert found.tokens == sum(len(line) + 1 for line in references[0])  # characters, and the end
    assert found.left_out == 0


def test_the_batch_does_not_change_the_loss(run, texts, monkeypatch):
    sources, (targets,) = texts
    model = load(run.path, device="cpu")
    whole = likelihood(model, sources, targets)
    monkeypatch.setattr(loss, "BATCH_TOKENS", 1)
    alone = likelihood(model, sources, targets)
    assert alone.loss == pytest.approx(whole.loss, abs=1e-6)
    parts = [likelihood(model, [s], [t]) for s, t in zip(sources, targets, strict=True)]
    assert sum(p.loss * p.tokens for p in parts) / whole.tokens == pytest.approx(whole.loss, abs=1e-6)


def test_what_is_longer_than_the_models_positions_is_left_out_of_the_loss(run):
    model = load(run.path, device="cpu")  # of 97 positions
    fits, too_long = "a" * 96, "a" * 97  # and the end
    assert likelihood(model, [fits, too_long, "dog"], ["A", "A", too_long]) == likelihood(
        model, [fits], ["A"]
    )._replace(left_out=2)
    nothing = likelihood(model, [too_long], [too_long])
    assert (nothing.tokens, nothing.left_out) == (0, 1)
    assert math.isnan(nothing.loss)
    assert math.isnan(nothing.perplexity)


def test_empty_texts_have_a_loss(run):
    assert likelihood(load(run.path, device="cpu"), ["", "a dog"], ["DOG A", ""]).tokens == 5 + 2


# ---------------------------------------------------------------------------------------
# The card


def test_a_card_says_all_of_it(run, texts, saying):
    sources, references = texts
    said = [*references[0][:20], *sources[20:]]
    card = evaluate(saying(said), sources, references, name="valid", language="de", beam=3, length_penalty=1.5)
    plain = json.loads(json.dumps(card.to_dict(), allow_nan=False))
    expected = bleu(said, references), chrf(said, references), moses_bleu(said, references, "de")
    for score in expected:
        found = plain["scores"][score.name]
        assert found["score"] == pytest.approx(score.value, abs=1e-4)
        assert (found["low"], found["high"]) == pytest.approx(score.interval, abs=1e-4)
        assert found["signature"] == score.signature
    assert plain["sentences"] == 31 == sum(bucket["sentences"] for bucket in plain["by_length"])
    assert plain["loss"] == pytest.approx(likelihood(load(run.path), sources, references[0]).loss, abs=1e-6)
    assert plain["perplexity"] == pytest.approx(math.exp(plain["loss"]), rel=1e-4)
    assert plain["decoding"] == {
        "beam": 3, "length_penalty": 1.5, "penalty": "gnmt", "min_length": 0, "max_length": None
    }  # fmt: skip
    folder = run.path.parent
    assert plain["data"] == {
        "source": hashlib.sha256((folder / "valid.in").read_bytes()).hexdigest(),
        "references": [hashlib.sha256((folder / "valid.out").read_bytes()).hexdigest()],
    }
    assert plain["model"]["sha256"] == hashlib.sha256(run.weights.read_bytes()).hexdigest()
    assert plain["model"]["path"] == str(run.path)
    assert plain["versions"].keys() == {"regard", "python", "torch", "sacrebleu", "sacremoses"}
    assert plain["versions"]["sacrebleu"] in plain["scores"]["BLEU"]["signature"]
    assert plain["training"] == {"steps": 101, "seconds": pytest.approx(list(run.lines())[-2]["seconds"], abs=0.1)}
    assert replace(card, seconds=7.0).to_dict()["sentences_per_second"] == round(31 / 7, 3)


def test_a_real_model_is_evaluated(run, texts, tmp_path):
    sources, references = texts
    model = load(run.path, device="cpu")
    card = evaluate(model, sources, references, name="valid", beam=2)
    said = [translation.text for translation in model.translate(sources, whole=True, beam=2)]
    assert card.scores[1].value == pytest.approx(chrf(said, references).value)
    assert 0 < card.scores[1].value < 100
    other = evaluate(model, sources, references, name="valid", beam=1)
    assert compare(card, other).differences["chrF2"].second == other.scores[1].value
    page = as_text(card)
    assert f"{run.path}: valid, 31 sentences" in page.replace("\n", "")
    assert "beam 2, length_penalty" in page


def test_draws_are_told_by_what_they_depend_on(texts, saying):
    sources, references = texts
    card = evaluate(saying(sources), sources, references, temperature=0.7, top_k=5)
    told = {"min_length": 0, "max_length": None, "temperature": 0.7, "top_k": 5, "top_p": 1.0, "seed": 0}
    assert card.decoding == {**told, "min_p": 0.0, "repetition_penalty": 1.0}


def test_several_references_all_count(texts, saying):
    sources, (targets,) = texts
    model = saying(sources)
    card = evaluate(model, sources, [targets, sources])
    assert card.scores[0].value == pytest.approx(100)
    assert card.scores[0].signature.startswith("nrefs:2|")
    both = [likelihood(model, sources, lines) for lines in (targets, sources)]
    assert card.likelihood.tokens == both[0].tokens + both[1].tokens
    assert card.likelihood.loss * card.likelihood.tokens == pytest.approx(sum(b.loss * b.tokens for b in both))


def test_a_loss_that_is_none_is_null(saying):
    card = evaluate(saying(["a"]), ["a" * 97], [["a"]])
    plain = json.loads(json.dumps(card.to_dict(), allow_nan=False))
    assert (plain["loss"], plain["perplexity"], plain["left_out_of_loss"]) == (None, None, 1)
    assert "and so for a loss: 1 of them" in as_text(card)


def test_the_page(texts, saying):
    sources, references = texts
    card = evaluate(saying(references[0]), sources, references, name="valid", length_penalty=0.9)
    page = as_text(card, width=160)
    lines = [line.split() for line in page.splitlines()]
    assert ["BLEU", "100.00", "100.00", "to", "100.00"] in lines
    assert ["loss", f"{card.likelihood.loss:.4f}"] in lines
    for bucket in card.by_length:
        assert [bucket.words, str(bucket.sentences), "100.00"] in lines
    assert "beam 4, length_penalty 0.9, penalty gnmt\n" in page
    assert "101 steps, " in page
    for score in card.scores:
        assert score.signature in page


def test_mistakes_are_found_before_anything_is_translated(run, texts, monkeypatch):
    sources, references = texts
    model = load(run.path, device="cpu")
    monkeypatch.setattr(model, "translate", lambda *_, **__: pytest.fail("translated"))
    with pytest.raises(InputError, match=r"^31 source texts and 30 of reference 2: give as many of each$"):
        evaluate(model, sources, [*references, sources[1:]])
    with pytest.raises(InputError, match="nothing to score"):
        evaluate(model, sources, [])
    with pytest.raises(InputError, match="nothing to score"):
        evaluate(model, [], [[]])
    with pytest.raises(RegardError, match=r"^beam \(0\) must be at least 1"):
        evaluate(model, sources, references, beam=0)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sacremoses", None)
        with pytest.raises(InputError, match="scores need sacremoses"):
            evaluate(model, sources, references)
    with pytest.raises(InputError, match="was trained to tag, not to translate"):
        evaluate(Model(model.net, "tag", model.tokenizer), sources, references)


# ---------------------------------------------------------------------------------------
# The file


def test_cards_of_several_sets_are_kept_side_by_side(texts, saying, tmp_path):
    sources, references = texts
    first, again = (evaluate(saying(said), sources, references, name="one.en") for said in (sources, references[0]))
    other = evaluate(saying(sources), sources, references, name="two.en")
    path = first.save(tmp_path)
    assert path == tmp_path / "scorecard.json"
    cards = read_cards(tmp_path)
    path.write_text(json.dumps({**cards, "notes": ["the optimizer began anew"]}))
    other.save(tmp_path)
    again.save(tmp_path)
    cards = read_cards(tmp_path)
    assert list(cards["sets"]) == ["one.en", "two.en"]
    assert cards["notes"] == ["the optimizer began anew"]  # what others wrote stays
    for card in (again, other):
        plain = card.to_dict()
        assert plain.pop("name") in cards["sets"]
        assert cards["sets"][card.name] == plain
    assert [file.name for file in tmp_path.iterdir()] == ["scorecard.json"]


def test_other_texts_of_the_same_name_replace_nothing(texts, saying, tmp_path):
    """A test.en in each of two folders."""
    sources, references = texts
    some = sources[:7], [lines[:7] for lines in references]
    for of in ((sources, references), some, (sources, references), some):
        evaluate(saying(of[0]), *of, name="test.en").save(tmp_path)
    cards = read_cards(tmp_path)["sets"]
    first, second = cards
    assert (first, second[:8], len(second)) == ("test.en", "test.en ", 16)
    assert [cards[name]["sentences"] for name in (first, second)] == [len(sources), 7]
    card = evaluate(saying(some[0]), *some, name="test.en")
    assert (entry(card, cards), entry(card, {})) == (second, "test.en")
    assert entry(card, {"test.en": {"data": dict(reversed(card.data.items()))}}) == "test.en"


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"sets": 3, "format": 1}', '{"sets": {"a": 3}, "format": 1}', '{"sets": {}, "format": 97}', "\udcff"],
)
def test_a_file_that_is_no_score_card_is_left_alone(texts, saying, tmp_path, text):
    sources, references = texts
    path = tmp_path / "scorecard.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"scorecard\.json: is (not JSON|no score card).*; move it away$"):
        evaluate(saying(sources), sources, references).save(tmp_path)
    assert path.read_bytes() == before


def test_a_card_that_cannot_be_written_leaves_nothing(texts, saying, tmp_path):
    sources, references = texts
    with pytest.raises(RegardError, match=r"nowhere/scorecard\.json: cannot be written"):
        evaluate(saying(sources), sources, references).save(tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def test_training_is_told_by_the_last_lines_that_are_whole(tmp_path):
    run = Run(tmp_path)
    assert run.training() is None
    run.note({"step": 7, "kind": "train", "loss": 1.0, "seconds": 3.25})
    run.note({"step": 11, "kind": "train", "loss": 1.0, "seconds": 5.75})
    run.note({"step": 13, "kind": "valid", "loss": 1.0})
    with run.metrics.open("a") as file:
        file.write('{"step": 17, "kind": "train", "seco')
    assert run.training() == {"steps": 13, "seconds": 5.8}


def test_a_card_tells_of_the_runs_before(texts, saying):
    sources, references = texts
    first = {"steps": 24_000, "seconds": 1056.0}
    card = replace(
        evaluate(saying(sources), sources, references),
        training={"steps": 7_000, "seconds": 61.0, "from": {"path": "runs/base", "sha256": "", "training": first}},
    )
    assert "7,000 steps, 1 min 1 s; from runs/base: 24,000 steps, 17 min 36 s" in as_text(card)


# ---------------------------------------------------------------------------------------
# Two models


def test_two_models_on_the_same_data(texts, saying):
    sources, references = texts
    bad = evaluate(saying(["DOG", *references[0][1:-13], *sources[-13:]]), sources, references, name="valid")
    good = evaluate(saying(references[0]), sources, references, name="valid")
    result = compare(bad, good)
    for a, b in zip(bad.scores, good.scores, strict=True):
        of = result.differences[a.name]
        assert of.difference == b.value - a.value > 0
        assert of.p < 0.05
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["second"]["scores"]["BLEU"]["score"] == 100
    assert plain["differences"]["BLEU"]["difference"] == pytest.approx(100 - plain["first"]["scores"]["BLEU"]["score"])
    row = next(line.split() for line in as_text(result).splitlines() if line.startswith("BLEU"))
    assert row[1:4] == [f"{bad.scores[0].value:.2f}", "100.00", f"{100 - bad.scores[0].value:+.2f}"]
    assert row[-1] == f"{result.differences['BLEU'].p:.4f}"


def test_only_cards_of_the_same_texts_are_compared(texts, saying):
    sources, references = texts
    model = saying(sources)
    one, other = evaluate(model, sources, references), evaluate(model, sources, [sources])
    with pytest.raises(InputError, match="not the same texts"):
        compare(one, other)


# ---------------------------------------------------------------------------------------
# Files

PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress}


@pytest.mark.parametrize("suffix", PACKED)
def test_texts_may_be_compressed(tmp_path, suffix):
    source, target = tmp_path / f"test.en{suffix}", tmp_path / "test.de"
    source.write_bytes(PACKED[suffix](b"A dog.\n\nTwo cats.\r\n"))
    target.write_text("Ein Hund.\n\nZwei\u2028Katzen.\n", encoding="utf-8")
    assert read_texts(source, [target, target]) == (
        ["A dog.", "", "Two cats."],
        [["Ein Hund.", "", "Zwei\u2028Katzen."]] * 2,
    )
    assert set_name(source) == "test.en"


def test_texts_that_cannot_be_scored_are_refused(tmp_path):
    files = {
        "good": b"one\ntwo\n", "short": b"one\n", "empty": b"", "zeros": b"one\n\0\0\n", "latin": b"one\nz\xfcei\n"
    }  # fmt: skip
    path = {name: tmp_path / name for name in files}
    for name, content in files.items():
        path[name].write_bytes(content)

    def refused(source, reference):
        with pytest.raises(InputError) as caught:
            read_texts(path[source], [path[reference]])
        message = str(caught.value)
        assert "\n" not in message
        return message.replace(f"{tmp_path}/", "")

    assert refused("good", "short") == (
        "good has 2 lines and short 1: both need as many, a sentence and its translation on the same line"
    )
    assert refused("short", "good").startswith("short has 1 lines and good 2: ")
    assert refused("good", "empty") == refused("empty", "good") == "empty: the file is empty"
    assert (
        refused("good", "zeros")
        == "zeros: line 2 has a zero byte, which no text has; UTF-16 is to be converted to UTF-8"
    )
    assert refused("latin", "good") == (
        "latin: line 2 is not valid UTF-8 (byte 0xfc after 1); convert the file to UTF-8"
    )
    path["folder"] = tmp_path / "folder"
    path["folder"].mkdir()
    assert refused("folder", "good").startswith("folder: ")
