"""Scores of labels equal slow references, of all texts and of every bootstrap sample; cards and files."""

import hashlib
import json
import math
import random

import numpy as np
import pytest

import toy
from encode.models import LABELS, TEXTS, labels
from regard import load
from regard.config import InputError
from regard.encode.labels import Scored
from regard.encode.spans import spans
from regard.evaluate import compare, difference, evaluate_labels, read_cards, read_examples
from regard.evaluate.labels import (
    accuracy,
    entity_f1,
    entity_precision,
    entity_recall,
    f1,
    macro_f1,
    matthews,
    pearson,
    spearman,
)
from regard.evaluate.scores import SAMPLES, SEED
from regard.look.page import as_text
from regard.train.loop import train
from regard.train.watch import Watch

NAMES = ["bad", "fine", "good", "odd"]
IOB = ["O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC", "I-PER"]
BIOES = [*IOB, "S-PER", "E-PER", "E-LOC", "S-LOC"]


def drawn(names, n, seed, words=None):
    """Labels, and the same with mistakes in them; or those of words."""
    draw = random.Random(seed)
    sizes = [draw.randint(1, words) if words else 1 for _ in range(n)]
    wanted = [draw.choices(names, k=size) for size in sizes]
    said = [[w if draw.random() < 0.7 else draw.choice(names) for w in row] for row in wanted]
    return (said, wanted) if words else ([row[0] for row in said], [row[0] for row in wanted])


# ---------------------------------------------------------------------------------------
# Slow references: a pass over the pairs for every question


def flat(rows):
    return [x for row in rows for x in ([row] if isinstance(row, str) else row)]


def slow_accuracy(said, wanted):
    pairs = list(zip(flat(said), flat(wanted), strict=True))
    return 100 * sum(a == b for a, b in pairs) / len(pairs)


def slow_f1(said, wanted, label):
    pairs = list(zip(flat(said), flat(wanted), strict=True))
    right = sum(a == b == label for a, b in pairs)
    precision = right / (sum(a == label for a, _ in pairs) or 1)
    recall = right / (sum(b == label for _, b in pairs) or 1)
    return 100 * 2 * precision * recall / (precision + recall) if right else 0.0


def slow_macro_f1(said, wanted):
    names = {*flat(said), *flat(wanted)}
    return sum(slow_f1(said, wanted, name) for name in names) / len(names)


def slow_matthews(said, wanted):
    """The correlation of indicator matrices: covariance of said and wanted over those with themselves."""
    a, b = flat(said), flat(wanted)
    names = sorted({*a, *b})
    x, y = (np.array([[v == name for name in names] for v in side], float) for side in (a, b))
    x, y = x - x.mean(0), y - y.mean(0)
    scale = math.sqrt((x * x).sum() * (y * y).sum())
    return 100 * (x * y).sum() / scale if scale else 0.0


def slow_entities(tags):
    """conlleval's rules one by one, as seqeval has them."""
    found, begin = set(), 0
    before, kind_before = "O", ""
    for i, tag in enumerate([*tags, "O"]):
        t, kind = tag[0], tag[1:].split("-", maxsplit=1)[-1] or "_"
        ends = before in "ES" or (before in "BI" and t in "BSO") or (before != "O" and kind_before != kind)
        starts = t in "BS" or (before in "ESO" and t in "EI") or (t != "O" and kind_before != kind)
        if ends:
            found.add((kind_before, begin, i))
        if starts:
            begin = i
        before, kind_before = t, kind
    return found


def slow_entity(said, wanted, which="f1"):
    a, b = ({(i, *span) for i, tags in enumerate(side) for span in slow_entities(tags)} for side in (said, wanted))
    precision, recall = len(a & b) / (len(a) or 1), len(a & b) / (len(b) or 1)
    mean = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return 100 * {"precision": precision, "recall": recall, "f1": mean}[which]


def slow_pearson(x, y):
    mx, my = sum(x) / len(x), sum(y) / len(y)
    xy = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return 100 * xy / math.sqrt(sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y))


def slow_spearman(x, y):
    def ranks(values):
        return [sum(v < w for v in values) + (sum(v == w for v in values) + 1) / 2 for w in values]

    return slow_pearson(ranks(x), ranks(y))


def numbers(n, seed):
    draw = random.Random(seed)
    wanted = [float(draw.randint(0, 7)) for _ in range(n)]  # with many equal ones
    return [w + draw.gauss(0, 2) for w in wanted], wanted


CASES = {
    "accuracy": (accuracy, slow_accuracy, drawn(NAMES, 97, 1)),
    "accuracy of words": (accuracy, slow_accuracy, drawn(NAMES, 31, 2, words=7)),
    "f1": (lambda a, b: f1(a, b, "good"), lambda a, b: slow_f1(a, b, "good"), drawn(NAMES, 97, 3)),
    "macro f1": (macro_f1, slow_macro_f1, drawn(NAMES, 53, 4)),
    "macro f1 of words": (macro_f1, slow_macro_f1, drawn(NAMES, 31, 5, words=5)),
    "matthews": (matthews, slow_matthews, drawn(NAMES[:2], 97, 6)),
    "matthews of four": (matthews, slow_matthews, drawn(NAMES, 97, 7)),
    "entity f1": (entity_f1, slow_entity, drawn(IOB, 41, 8, words=13)),
    "entity f1, bioes": (entity_f1, slow_entity, drawn(BIOES, 41, 9, words=13)),
    "precision": (entity_precision, lambda a, b: slow_entity(a, b, "precision"), drawn(IOB, 41, 10, words=13)),
    "recall": (entity_recall, lambda a, b: slow_entity(a, b, "recall"), drawn(IOB, 41, 11, words=13)),
    "pearson": (pearson, slow_pearson, numbers(61, 12)),
    "spearman": (spearman, slow_spearman, numbers(61, 13)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_score_is_that_of_a_slow_reference(name):
    score, slow, (said, wanted) = CASES[name]
    found = score(said, wanted)
    assert found.value == pytest.approx(slow(said, wanted))
    assert 0 < found.value < 100
    low, high = found.interval
    assert low < found.value < high
    assert score(wanted, wanted).value == pytest.approx(100)


@pytest.mark.parametrize("name", CASES)
def test_a_sample_is_scored_as_if_it_were_all(name):
    score, slow, (said, wanted) = CASES[name]
    samples, draw = score(said, wanted).samples, np.random.default_rng(SEED)
    for i in range(17):
        rows = draw.integers(len(said), size=len(said))
        assert samples[i] == pytest.approx(slow([said[r] for r in rows], [wanted[r] for r in rows]))


@pytest.mark.parametrize("names", [IOB, BIOES, ["O", "B", "I"]])
def test_spans_are_conllevals(names):
    for tags in drawn(names, 499, 14, words=11)[0]:
        assert {tuple(span) for span in spans(tags)} == slow_entities(tags)


def test_iob1_and_iob2_mark_the_same():
    iob1 = ["I-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-LOC", "I-PER"]
    iob2 = ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-LOC", "B-PER"]
    bioes = ["B-PER", "E-PER", "O", "S-LOC", "B-LOC", "E-LOC", "S-PER"]
    assert spans(iob1) == spans(iob2) == spans(bioes)
    assert entity_f1([iob1], [bioes]).value == 100


def test_two_systems():
    _, wanted = drawn(NAMES, 211, 15)
    draw = random.Random(16)
    good, bad = ([w if draw.random() < share else "bad" for w in wanted] for share in (0.9, 0.4))
    for score in (accuracy, macro_f1, matthews):
        found = difference(score(bad, wanted), score(good, wanted))
        assert found.difference > 0
        assert found.low > 0
        assert found.p == pytest.approx(1 / (SAMPLES + 1))
    assert difference(accuracy(good, wanted), accuracy(good, wanted)).p == 1


def test_labels_that_do_not_match():
    with pytest.raises(InputError, match="1 labels and 2 that are wanted"):
        accuracy(["a"], ["a", "b"])
    with pytest.raises(InputError, match="sentence 1 has 1 tags and 2 that are wanted"):
        entity_f1([["O"]], [["O", "O"]])
    with pytest.raises(InputError, match="nothing to score"):
        matthews([], [])
    with pytest.raises(InputError, match="nothing to score"):
        pearson([], [])
    assert pearson([1.0, 1.0], [1.0, 2.0]).value == 0
    assert matthews(["a", "a"], ["a", "a"]).value == 0


# ---------------------------------------------------------------------------------------
# Cards


def test_the_card_of_a_classifier(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.evaluate.labelled.AT_ONCE", 19)
    model = labels("classify")
    draw = random.Random(17)
    examples = [(text, draw.choice(LABELS["classify"])) for text in TEXTS[:47]]
    told = []
    card = evaluate_labels(model, examples, name="dev.tsv", progress=lambda *seen: told.append(seen))
    assert [seen[:2] for seen in told] == [(19, 47), (38, 47), (47, 47)]
    assert told[-1][2] == f"{card.scores[0].value:.1f}% right"
    said, wanted = [f.label for f in model.classify([t for t, _ in examples])], [w for _, w in examples]
    assert [s.name for s in card.scores] == ["accuracy", "macro F1", "Matthews"]
    assert card.scores[0].value == pytest.approx(slow_accuracy(said, wanted))
    assert [(label, n) for label, n, _ in card.by_label] == [(x, wanted.count(x)) for x in LABELS["classify"]]
    assert [score.value for *_, score in card.by_label] == pytest.approx(
        [slow_f1(said, wanted, x) for x in LABELS["classify"]]
    )
    plain = json.loads(json.dumps(card.to_dict(), allow_nan=False))
    assert plain["texts"] == 47
    assert plain["scores"]["accuracy"]["low"] == pytest.approx(card.scores[0].interval[0], abs=1e-4)
    lines = "".join(f"{text}\n" for text, _ in examples).encode()
    assert plain["data"]["texts"] == hashlib.sha256(lines).hexdigest()
    assert plain.keys() >= {"versions", "hardware", "training", "model", "by_label", "cut", "texts_per_second"}
    card.save(tmp_path)
    assert read_cards(tmp_path)["sets"]["dev.tsv"]["texts"] == 47
    page = as_text(card)
    assert "a model: dev.tsv, 47 texts" in page
    assert ["good", str(wanted.count("good"))] in [line.split()[:2] for line in page.splitlines()]
    assert "accuracy, macro F1, Matthews: bs:1000|seed:12345|version:regard-" in page


def test_two_classifiers():
    examples = [(text, "good" if "dog" in text else "bad") for text in TEXTS[:47]]
    one, other = (
        evaluate_labels(labels("classify"), examples),
        evaluate_labels(labels("classify", encoder={"n_layers": 1}), examples),
    )
    result = compare(one, other)
    assert result.differences["accuracy"].difference == other.scores[0].value - one.scores[0].value
    assert "B - A" in as_text(result, width=120)
    with pytest.raises(InputError, match="not the same texts"):
        compare(one, evaluate_labels(labels("classify"), examples[1:]))


def test_the_card_of_a_tagger():
    model = labels("tag")
    draw = random.Random(18)
    examples = [
        (text.split(), draw.choices(LABELS["tag"], k=len(text.split()))) for text in [*TEXTS[:47], " ".join(TEXTS)]
    ]
    card = evaluate_labels(model, examples)
    said, wanted = [list(f.tags) for f in model.tag([w for w, _ in examples])], [w for _, w in examples]
    values = {score.name: score.value for score in card.scores}
    assert values == pytest.approx({
        "entity F1": slow_entity(said, wanted),
        "entity precision": slow_entity(said, wanted, "precision"),
        "entity recall": slow_entity(said, wanted, "recall"),
        "accuracy": slow_accuracy(said, wanted),
    })  # fmt: skip
    assert (card.to_dict()["sentences"], card.cut) == (48, 1)
    assert "too long for the model, and cut: 1 of them" in as_text(card)
    assert [label for label, *_ in card.by_label] == ["DOG", "TOWN"]
    kinds = evaluate_labels(labels("tag", names=("ADJ", "NOUN", "VERB")), [(["a", "dog"], ["ADJ", "NOUN"])])
    assert [score.name for score in kinds.scores] == ["accuracy", "macro F1"]


def test_the_card_of_a_model_that_gives_numbers():
    model = labels("classify", names=(), n_labels=1)
    examples = [(text, float(len(text))) for text in TEXTS[:47]]
    card = evaluate_labels(model, examples)
    said, wanted = [f.score for f in model.classify([t for t, _ in examples])], [w for _, w in examples]
    assert isinstance(model.classify("a")[0], Scored)
    assert [s.value for s in card.scores] == pytest.approx([slow_pearson(said, wanted), slow_spearman(said, wanted)])
    mean = sum((a - b) ** 2 for a, b in zip(said, wanted, strict=True)) / 47
    assert card.to_dict()["mean_squared_error"] == pytest.approx(mean, rel=1e-5)
    assert "mean squared error" in as_text(card)


# ---------------------------------------------------------------------------------------
# Files


def refused(model, path, text, columns=()):
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_examples(model, path, columns)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_files_are_read_as_in_training(tmp_path):
    model, file = labels("classify"), tmp_path / "dev.tsv"
    file.write_text("a dog\tgood\n\n\tbad\na cat\tbad\n")
    assert read_examples(model, file) == [("a dog", "good"), ("a cat", "bad")]
    file.write_text("label\tone\ttwo\ngood\ta\tb\n")
    assert read_examples(model, file, ["one", "two", "label"]) == [(("a", "b"), "good")]
    conll = tmp_path / "dev.conll"
    conll.write_text("-DOCSTART- O\n\na O\ndog B-DOG\n\nruns O\n")
    assert read_examples(labels("tag"), conll) == [(["a", "dog"], ["O", "B-DOG"]), (["runs"], ["O"])]
    file.write_text("a dog\t2.5\n")
    assert read_examples(labels("classify", names=(), n_labels=1), file) == [("a dog", 2.5)]


def test_files_that_cannot_be_scored(tmp_path):
    model, file = labels("classify"), tmp_path / "dev.tsv"
    assert refused(model, file, "a dog\tgood\na cat\tgoood\n") == (
        "dev.tsv: line 2: label 'goood' is not one that the model was trained on; did you mean good?"
    )
    assert refused(model, file, "text\tlabel\na cat\tgood\n") == (
        "dev.tsv: line 1: label 'label' is not one that the model was trained on; known: bad, fine, good; is this a header? name the columns: --columns"
    )
    assert refused(model, file, "a dog\n") == "dev.tsv: line 1 has 1 column, and column 2 is needed"
    assert refused(model, file, "\n \t\n") == "dev.tsv: no row has text and a label"
    assert refused(model, file, "") == "dev.tsv: the file is empty"
    assert refused(model, file, "text\tlabel\n", ["text", "lable"]).startswith("dev.tsv: no column 'lable'")
    number = labels("classify", names=(), n_labels=1)
    assert refused(number, file, "a\t1\nb\tgood\n") == (
        "dev.tsv: line 2: label 'good' must be a number: the model was trained on numbers"
    )
    assert "'nan' must be a number" in refused(number, file, "a\tnan\n")
    assert refused(labels("tag"), tmp_path / "dev.conll", "a O\ndog B-DOGS\n") == (
        "dev.conll: line 2: label 'B-DOGS' is not one that the model was trained on; did you mean B-DOG?"
    )


def test_the_columns_are_those_of_training(tmp_path):
    made, data = toy.prepared(tmp_path, "classify", steps=1, valid_every=1)
    run = train(made, data.path, tmp_path / "run", device="cpu", watch=Watch(quiet=True))
    config = json.loads((run.path / "config.json").read_text())
    config["recipe"]["data"]["columns"] = ["2", "1"]
    (run.path / "config.json").write_text(json.dumps(config))
    file = tmp_path / "dev.tsv"
    file.write_text("animal\ta dog\n")
    assert read_examples(load(run.path), file) == [("a dog", "animal")]


def test_nothing_to_score():
    with pytest.raises(InputError, match="nothing to score"):
        evaluate_labels(labels("classify"), [])
