"""Labels and tags are what the network says of the rows it was trained on; a batch is its texts; what does not fit is
told."""

import numpy as np
import pytest
import torch

import toy
from encode.models import LABELS, TEXTS, TOKENS, fills, labels
from regard import load, recipe
from regard.config import InputError
from regard.data.batches import make_batches
from regard.data.prepare import prepare
from regard.encode import rows
from regard.encode.labels import Scored, Span, parts_of
from regard.encode.spans import is_scheme, spans
from regard.evaluate import evaluate_labels, read_examples
from regard.schema import from_dict
from regard.train.loop import train
from regard.train.watch import Watch

PAIRS = [("the dog runs", "it sleeps"), ("a cat", "two old birds sleep near the large dog"), ("red", "blue")]
LONG = " ".join(TEXTS)


def by_hand(model, first, second=None):
    t = TOKENS
    ids = [t.start, *t.encode(first), t.end]
    segments = [0] * len(ids)
    if second is not None:
        ids += [*t.encode(second), t.end]
        segments += [1] * (len(ids) - len(segments))
    return model.net(torch.tensor([ids]), segments=torch.tensor([segments]))[0].float()


# ---------------------------------------------------------------------------------------
# Classify


def test_a_label_is_what_the_network_says():
    model = labels("classify")
    for text, found in zip(TEXTS[:7], model.classify(TEXTS[:7]), strict=True):
        shares = by_hand(model, text).softmax(-1)
        assert list(found.probabilities) == list(LABELS["classify"])
        assert list(found.probabilities.values()) == pytest.approx(shares.tolist(), abs=1e-6)
        assert found.label == LABELS["classify"][int(shares.argmax())]
        assert found.probability == max(found.probabilities.values())
        assert not found.cut


def test_a_pair_has_two_segments():
    model = labels("classify")
    for pair, found in zip(PAIRS, model.classify(PAIRS), strict=True):
        assert list(found.probabilities.values()) == pytest.approx(by_hand(model, *pair).softmax(-1).tolist(), abs=1e-6)


def test_a_batch_is_its_texts_alone_and_in_pairs():
    model = labels("classify")
    texts = [*PAIRS, *TEXTS[:29], LONG]
    together = model.classify(texts)
    for text, found in zip(texts, together, strict=True):
        [alone] = model.classify([text])
        assert (found.label, found.cut) == (alone.label, alone.cut)
        assert list(found.probabilities.values()) == pytest.approx(list(alone.probabilities.values()), abs=1e-6)
    assert [f.label for f in model.classify(texts[::-1])][::-1] == [f.label for f in together]


def test_a_number_is_the_networks_own():
    model = labels("classify", names=(), n_labels=1)
    found = model.classify(TEXTS[:5])
    assert [f.score for f in found] == pytest.approx([by_hand(model, t)[0].item() for t in TEXTS[:5]], abs=1e-6)
    assert found[0].to_dict() == {"score": found[0].score, "cut": False}
    assert isinstance(found[0], Scored)


def test_a_long_text_is_cut_and_told():
    model = labels("classify")  # of 37 positions: 35 tokens, start and end
    t = TOKENS
    [found] = model.classify(LONG)
    assert found.cut
    ids = torch.tensor([[t.start, *t.encode(LONG)[:35], t.end]])
    assert list(found.probabilities.values()) == pytest.approx(model.net(ids)[0].float().softmax(-1).tolist(), abs=1e-6)
    assert not model.classify(t.decode(t.encode(LONG)[:35]))[0].cut
    trained_on_short = labels("classify", longest=11)
    row = rows.make_row(trained_on_short, t.encode(LONG))
    assert (len(row.ids), row.cut) == (13, True)


def test_of_a_long_pair_the_longer_text_is_cut():
    model = labels("classify")
    first, second = list(range(5, 12)), list(range(20, 70))
    row = rows.make_row(model, first, second)
    t = TOKENS
    assert row.ids == [t.start, *first, t.end, *second[:27], t.end]
    assert row.segments == [0] * 9 + [1] * 28
    both = rows.make_row(model, second, second)
    assert both.ids == [t.start, *second[:17], t.end, *second[:17], t.end]
    assert both.cut


# ---------------------------------------------------------------------------------------
# Tag


def test_a_words_tag_is_read_at_its_first_token():
    model, t = labels("tag"), TOKENS
    words = ["the", "unbelievable", "dog", "runsoveritall"]
    [found] = model.tag([words])
    pieces = t.encode_words(words)
    assert max(map(len, pieces)) > 1
    shares = model.net(torch.tensor([[t.start, *(id for p in pieces for id in p), t.end]]))[0].float().softmax(-1)
    at = 1
    for tag, p, piece in zip(found.tags, found.probabilities, pieces, strict=True):
        assert tag == LABELS["tag"][int(shares[at].argmax())]
        assert p == pytest.approx(shares[at].max().item(), abs=1e-6)
        at += len(piece)
    assert found.words == tuple(words)
    assert model.tag(" ".join(words)) == [found]


def test_a_batch_of_sentences_is_its_sentences():
    model = labels("tag")
    texts = [*TEXTS[:29], LONG]
    for text, found in zip(texts, model.tag(texts), strict=True):
        [alone] = model.tag(text)
        assert (found.words, found.tags, found.spans, found.cut) == (alone.words, alone.tags, alone.spans, alone.cut)
        assert found.probabilities == pytest.approx(alone.probabilities, abs=1e-6)


def test_a_long_sentence_is_tagged_in_parts():
    model = labels("tag")
    [found] = model.tag(LONG)
    assert found.cut
    assert len(found.tags) == len(LONG.split()) == len(found.probabilities)
    words = LONG.split()
    pieces, n = TOKENS.encode_words(words), 0
    while sum(map(len, pieces[: n + 1])) <= 35:
        n += 1
    assert found.tags[:n] == model.tag([words[:n]])[0].tags
    [one] = model.tag("dog" * 97)  # a word longer than the model
    assert len(one.tags) == 1


def test_spans_are_told_where_tags_mark_them():
    model = labels("tag")
    found = model.tag(TEXTS[:31])
    assert any(f.spans for f in found)
    for f in found:
        assert f.spans == tuple(Span(*s, " ".join(f.words[s.begin : s.end])) for s in spans(f.tags))
    plain = labels("tag", names=("ADJ", "NOUN", "VERB"))
    assert not any(f.spans for f in plain.tag(TEXTS[:31]))
    assert is_scheme(["O", "B"])
    assert not is_scheme(["IN", "O"])
    assert found[0].to_dict()["words"] == found[0].words


# ---------------------------------------------------------------------------------------
# As in training


@pytest.mark.parametrize(("task", "pairs"), [("classify", False), ("classify", True), ("tag", False)])
def test_rows_are_those_of_training(task, pairs, tmp_path):
    made = toy.make_recipe(tmp_path, task, n=37)
    if pairs:
        file = tmp_path / "pairs.tsv"
        file.write_text("".join(f"{a}\t{b}\t{'yes' if i % 2 else 'no'}\n" for i, (a, b) in enumerate(PAIRS)))
        files = {"files": [str(file)]}
        data = {**made.data.to_dict(), "train": files, "valid": files, "columns": ["1", "2", "3"]}
        made = from_dict(recipe.Recipe, {**made.to_dict(), "data": data})
    data = prepare(made.data, tmp_path / "data")
    shape = recipe.model_config(made.model, vocab_size=len(data.tokenizer), n_labels=len(data.labels))
    model = labels(task, tokens=data.tokenizer, names=data.labels, encoder={"max_len": 97})
    batches = make_batches(data, "valid", made.train, shape, shuffled=False)
    examples = read_examples(model, made.data.valid.files[0], made.data.columns)
    seen = 0
    for step in range(len(batches)):
        batch, numbers = batches.part(step), batches.rows(step)
        for i, number in enumerate(numbers):
            text, wanted = examples[number]
            n = int(batch.layout.lengths[i])
            if task == "tag":
                [(_, row, places)] = parts_of(model, 0, text)
                assert places == np.flatnonzero(batch.wanted[i].numpy() >= 0).tolist()
                assert [model.labels[int(batch.wanted[i, at])] for at in places] == wanted
            else:
                pieces = data.tokenizer.encode_batch([text] if isinstance(text, str) else list(text))
                row = rows.make_row(model, *pieces)
                assert model.labels[int(batch.wanted[i])] == wanted
                if pairs:
                    assert row.segments == batch.segments[i, :n].tolist()
            assert row.ids == batch.inputs[i, :n].tolist()
            seen += 1
    assert seen == len(examples) > 2


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_a_trained_model_scores_what_training_said(task, tmp_path):
    made, data = toy.prepared(tmp_path, task)
    run = train(made, data.path, tmp_path / "run", device="cpu", watch=Watch(quiet=True))
    model = load(run.path, device="cpu")
    card = evaluate_labels(model, read_examples(model, made.data.valid.files[0]))
    best = min((line for line in run.lines() if line["kind"] == "valid"), key=lambda line: line["loss"])
    scores = {score.name: score.value for score in card.scores}
    assert scores["accuracy"] == pytest.approx(100 * best["accuracy"])
    assert (model.labels, card.cut) == (tuple(data.labels), 0)


# ---------------------------------------------------------------------------------------
# Mistakes


def test_mistakes():
    model, tagger = labels("classify"), labels("tag")
    with pytest.raises(InputError, match="text 2 is empty; give at least one word"):
        model.classify(["a", " "])
    with pytest.raises(InputError, match="second text 1 is empty"):
        model.classify([("a", "")])
    with pytest.raises(InputError, match="must be a string, or two of them"):
        model.classify([("a", "b", "c")])
    with pytest.raises(InputError, match="sentence 1 is empty"):
        tagger.tag("")
    with pytest.raises(InputError, match="sentence 2: word 1 is empty"):
        tagger.tag([["a"], [" "]])
    with pytest.raises(InputError, match="was trained to classify, not to tag"):
        model.tag("a")
    with pytest.raises(InputError, match="was trained to fill, not to classify"):
        fills().classify("a")
    with pytest.raises(
        InputError, match=r"names 2 labels, and its head has 3; labels\.json must be that of its training"
    ):
        labels("classify", names=("a", "b"), n_labels=3).classify("a")


@pytest.mark.parametrize("text", ["{", '{"a": 1}', "[1]"])
def test_a_labels_file_that_is_none(text, tmp_path):
    made, data = toy.prepared(tmp_path, "classify", steps=1, valid_every=1)
    run = train(made, data.path, tmp_path / "run", device="cpu", watch=Watch(quiet=True))
    (run.path / "labels.json").write_text(text)
    with pytest.raises(InputError, match=r"labels\.json: (is not JSON|must be a list of names)"):
        load(run.path)
