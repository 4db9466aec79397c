"""How likely a text is: the model's own, whatever the windows."""

import hashlib
import json
import math

import numpy as np
import pytest
import torch

import regard
import toy
from regard import recipe
from regard.config import InputError
from regard.data.tokenizer import Tokenizer
from regard.evaluate.language import evaluate_text, logprobs
from regard.look.page import as_text

CONTEXT = 29
TEXT = "\n".join(toy.sentences(7, seed=3)) + "\n"
SHORT = "two dogs"
PRESETS = {
    "tiny_decoder": {"decoder": {"max_len": CONTEXT}},
    "tiny_llama": {"decoder": {"max_len": CONTEXT}},
    "tiny_lstm": {},
}


def make(preset="tiny_decoder", kind="bytes"):
    tokens = Tokenizer.train([TEXT], recipe.Tokenizer(kind=kind))
    torch.manual_seed(7)
    net = regard.Transformer(recipe.model_config({"preset": preset, **PRESETS[preset]}, vocab_size=len(tokens)))
    return regard.Model(net.double(), "generate", tokens, longest=CONTEXT)


def own(model, ids):
    """The model's own, of each of the ids but the first, all at once."""
    scores = model.logits(torch.tensor([ids[:-1]]))[0].log_softmax(-1)
    return scores.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


@pytest.mark.parametrize("preset", PRESETS)
def test_the_total_is_the_models_own(preset):
    model = make(preset)
    [found] = logprobs(model, [SHORT])
    wanted = own(model, [model.tokenizer.start, *model.tokenizer.encode(SHORT)])
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    card = evaluate_text(model, SHORT)
    assert card.total == pytest.approx(wanted.sum(), abs=1e-5)


@pytest.mark.parametrize("preset", PRESETS)
def test_at_a_stride_of_the_context_windows_are_apart(preset):
    model = make(preset)
    ids = [model.tokenizer.start, *model.tokenizer.encode(TEXT)]
    apart = [own(model, ids[i : i + CONTEXT + 1]) for i in range(0, len(ids) - 1, CONTEXT)]
    assert len(apart) > 3
    [found] = logprobs(model, [TEXT], stride=CONTEXT)
    np.testing.assert_allclose(found, np.concatenate(apart), atol=1e-6)


@pytest.mark.parametrize("preset", PRESETS)
def test_at_a_stride_of_one_every_token_has_the_whole_context(preset):
    model = make(preset)
    ids = [model.tokenizer.start, *model.tokenizer.encode(TEXT)]
    wanted = [own(model, ids[max(0, i - CONTEXT) : i + 1])[-1] for i in range(1, len(ids))]
    [found] = logprobs(model, [TEXT], stride=1)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("stride", [None, 1, 11, CONTEXT])
def test_texts_do_not_see_each_other(stride):
    model, texts = make(), [TEXT, SHORT, "", "a", TEXT[:CONTEXT], TEXT[: CONTEXT + 1]]
    together = logprobs(model, texts, stride=stride)
    for text, found in zip(texts, together, strict=True):
        assert found.shape == (len(model.tokenizer.encode(text)),)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, logprobs(model, [text], stride=stride)[0], atol=1e-6)
    card = evaluate_text(model, texts, stride=stride)
    assert card.total == pytest.approx(sum(found.sum() for found in together), abs=1e-5)
    assert card.stride == (CONTEXT // 2 if stride is None else stride)


def test_what_follows_from_it():
    model = make(kind="characters")
    text = "é dog\nsleeps"
    told = []
    card = evaluate_text(model, text, name="mine", stride=5, progress=lambda *seen: told.append(seen))
    assert told[-1] == (card.tokens, card.tokens, f"tokens, perplexity {card.perplexity:.2f}")
    plain = json.loads(json.dumps(card.to_dict()))
    assert (card.tokens, card.words, card.bytes) == (len(model.tokenizer.encode(text)), 3, 13)
    assert plain["loss"] == pytest.approx(-card.total / card.tokens, abs=1e-6)
    assert plain["perplexity"] == pytest.approx(math.exp(-card.total / card.tokens), rel=1e-5)
    assert plain["word_perplexity"] == pytest.approx(math.exp(-card.total / 3), rel=1e-5)
    assert plain["bits_per_byte"] == pytest.approx(-card.total / 13 / math.log(2), abs=1e-6)
    assert plain["data"] == {"text": hashlib.sha256(f"{text}\n".encode()).hexdigest()}
    assert (plain["name"], plain["context"], plain["stride"]) == ("mine", CONTEXT, 5)
    page = as_text(card)
    assert f"bits per byte {card.bits_per_byte:.4f}" in " ".join(page.split())
    assert "13 bytes; windows of 29" in page


def test_a_card_is_kept(tmp_path):
    card = evaluate_text(make(), SHORT, name="mine")
    kept = json.loads(card.save(tmp_path).read_text())
    assert kept["sets"]["mine"]["bits_per_byte"] == card.to_dict()["bits_per_byte"]


def test_a_model_without_a_beginning_begins_at_the_second_token():
    model = make()
    model.prefix = []
    [found] = logprobs(model, [SHORT])
    assert math.isnan(found[0])
    np.testing.assert_allclose(found[1:], own(model, model.tokenizer.encode(SHORT)), atol=1e-6)
    assert evaluate_text(model, SHORT).tokens == len(SHORT) - 1
    with pytest.raises(InputError, match="no token to predict"):
        evaluate_text(model, "a")


@pytest.mark.parametrize("stride", [0, CONTEXT + 1, -3, 2.5])
def test_strides_that_make_no_sense(stride):
    with pytest.raises(
        InputError, match=rf"stride \({stride}\) must be at least 1 and at most the model's context \(29\)"
    ):
        logprobs(make(), [TEXT], stride=stride)


def test_nothing_to_read():
    for text in ("", [], [""]):
        with pytest.raises(InputError, match="there is no token to predict in the text"):
            evaluate_text(make(), text)
