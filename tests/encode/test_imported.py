"""What is read from other people's checkpoints is what transformers reads from them, with its own tokenizers."""

import pytest
import torch

import foreign
import regard

TEXTS = ["the old dog runs", "a cat", "Two dogs & 31 cats; the Mädchen läuft"]
PAIR = ("the old dog runs", "it sleeps under the bird")


def opened(name, folder):
    theirs, tokenizer, path = foreign.made(foreign.CASES[name], folder)
    return regard.load(path, device="cpu"), theirs, tokenizer


@torch.no_grad()
def logits(theirs, tokenizer, *texts, **options):
    given = tokenizer(*texts, return_tensors="pt", return_token_type_ids=True, **options)
    known = {"input_ids", "attention_mask"} | ({"token_type_ids"} if theirs.config.model_type == "bert" else set())
    return given["input_ids"][0], theirs(**{k: v for k, v in given.items() if k in known}).logits[0]


@pytest.mark.parametrize("name", ["bert masked", "distilbert masked", "roberta masked"])
@pytest.mark.parametrize("text", ["the [MASK] dog runs", "[MASK] cat", "a dog [MASK] near the [MASK]."])
def test_gaps(name, text, tmp_path):
    model, theirs, tokenizer = opened(name, tmp_path)
    [found] = model.fill(text, top=5)
    ids, scores = logits(theirs, tokenizer, text.replace("[MASK]", tokenizer.mask_token))
    at = (ids == tokenizer.mask_token_id).nonzero()[:, 0].tolist()
    assert len(found.masks) == len(at) == text.count("[MASK]")
    for mask, place in zip(found.masks, at, strict=True):
        best = scores[place].softmax(-1).topk(5)
        assert [c.probability for c in mask] == pytest.approx(best.values.tolist(), abs=1e-5)
        known = [(c, i) for c, i in zip(mask, best.indices.tolist(), strict=True) if i < len(tokenizer)]
        assert [c.text for c, _ in known if c.text.isascii() and c.text.isalnum()] == [
            tokenizer.decode([i]).strip() for c, i in known if c.text.isascii() and c.text.isalnum()
        ]


def test_gaps_in_two_segments(tmp_path):
    model, theirs, tokenizer = opened("bert masked", tmp_path)
    [found] = model.fill("Let's make [MASK] chicken! [SEP] It [MASK] great with orange sauce", top=3)
    ids, scores = logits(theirs, tokenizer, "Let's make [MASK] chicken!", "It [MASK] great with orange sauce")
    for mask, place in zip(found.masks, (ids == tokenizer.mask_token_id).nonzero()[:, 0].tolist(), strict=True):
        assert [c.probability for c in mask] == pytest.approx(
            scores[place].softmax(-1).topk(3).values.tolist(), abs=1e-5
        )


@pytest.mark.parametrize("name", ["bert classes", "distilbert classes", "roberta classes"])
def test_labels(name, tmp_path):
    model, theirs, tokenizer = opened(name, tmp_path)
    for text, found in zip(TEXTS, model.classify(TEXTS), strict=True):
        shares = logits(theirs, tokenizer, text)[1].softmax(-1).tolist()
        assert list(found.probabilities) == ["bad", "fine", "good"]
        assert list(found.probabilities.values()) == pytest.approx(shares, abs=1e-5)


def test_labels_of_pairs_and_numbers(tmp_path):
    model, theirs, tokenizer = opened("bert classes", tmp_path / "names")
    [found] = model.classify([PAIR])
    assert list(found.probabilities.values()) == pytest.approx(
        logits(theirs, tokenizer, *PAIR)[1].softmax(-1).tolist(), abs=1e-5
    )
    model, theirs, tokenizer = opened("bert number", tmp_path / "number")
    assert [f.score for f in model.classify(TEXTS)] == pytest.approx(
        [logits(theirs, tokenizer, text)[1].item() for text in TEXTS], abs=1e-4
    )


def test_tags(tmp_path):
    model, theirs, tokenizer = opened("bert tags", tmp_path)
    words = TEXTS[2].split()
    [found] = model.tag([words])
    places = tokenizer(words, is_split_into_words=True).word_ids()
    _, scores = logits(theirs, tokenizer, words, is_split_into_words=True)
    best = scores.softmax(-1).max(-1)
    first = [places.index(i) for i in range(len(words))]
    assert max(places.count(i) for i in range(len(words))) > 1
    assert found.tags == tuple(("bad", "fine", "good")[best.indices[i]] for i in first)
    assert found.probabilities == pytest.approx(best.values[first].tolist(), abs=1e-5)
