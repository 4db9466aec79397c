"""What fills a gap is what the network says there: by hand, in any batch, from both sides of a recurrent model."""

import pytest
import torch

from encode.models import TEXTS, TOKENS, fills, labels
from laws.cases import build
from regard import Model, presets, recipe
from regard.config import InputError, RegardError
from regard.data.tokenizer import Tokenizer

ELMO = {"preset": "tiny_elmo"}
GAPS = [
    "the [MASK] dog runs",
    "[MASK] cat",
    "two old birds sleep under the [MASK]",
    "a [MASK] [MASK] jumps over [MASK]",
]


def close(found, wanted):
    assert [[c.token for c in mask] for mask in found.masks] == [[c.token for c in mask] for mask in wanted.masks]
    ours, theirs = ([c.probability for mask in f.masks for c in mask] for f in (found, wanted))
    assert ours == pytest.approx(theirs, abs=1e-6)


def by_hand(model, ids, at, segments=None, top=3):
    logits = model.net(torch.tensor([ids]), segments=None if segments is None else torch.tensor([segments]))
    best = logits[0, at].float().softmax(-1).topk(top)
    return [
        (TOKENS.token(id), pytest.approx(p, abs=1e-6))
        for id, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def pairs(mask):
    return [(c.token, c.probability) for c in mask]


def test_a_gap_is_what_the_network_says_there():
    model, t = fills(), TOKENS
    [found] = model.fill("the [MASK] runs", top=3)
    before, after = t.encode("the"), t.encode_parts([" runs"])[0]
    ids = [t.start, *before, t.mask, *after, t.end]
    assert t.decode([*before, *t.encode_parts([" dog"])[0], *after]) == "the dog runs"  # as a whole text is split
    assert pairs(found.masks[0]) == by_hand(model, ids, 1 + len(before))


def test_the_second_part_is_a_segment_of_its_own():
    model, t = fills(), TOKENS
    [found] = model.fill(["a [MASK] dog [SEP] it [MASK]"], top=3)
    first = [t.start, *t.encode("a"), t.mask, *t.encode_parts([" dog"])[0], t.end]
    second = [*t.encode("it"), t.mask, t.end]
    ids, segments = first + second, [0] * len(first) + [1] * len(second)
    assert pairs(found.masks[0]) == by_hand(model, ids, first.index(t.mask), segments)
    assert pairs(found.masks[1]) == by_hand(model, ids, len(first) + second.index(t.mask), segments)
    [plain] = model.fill("a [MASK] dog it [MASK]", top=3)
    assert pairs(plain.masks[0]) != pairs(found.masks[0])


def test_the_tokenizers_own_name_is_a_mask_too():
    model = fills()
    ours, own = model.fill(["the [MASK] runs", "the <mask> runs"])
    assert ours == own
    assert own.best == f"the {own.masks[0][0].text} runs"


@pytest.mark.parametrize("preset", ["tiny_encoder", "tiny_elmo"])
def test_a_batch_is_its_texts(preset):
    model = fills(preset)
    texts = [*GAPS, *(f"{text} [MASK]" for text in TEXTS[:23])]
    together = model.fill(texts)
    for text, found in zip(texts, together, strict=True):
        assert len(found.masks) == text.count("[MASK]")
        close(found, model.fill(text)[0])
    for found, wanted in zip(model.fill(texts[::-1])[::-1], together, strict=True):
        close(found, wanted)


def test_an_elmo_reads_up_to_the_gap_from_both_sides():
    model, t = fills("tiny_elmo"), TOKENS
    [found] = model.fill("the [MASK] runs", top=len(t))
    before, after = t.encode("the"), t.encode_parts([" runs"])[0]
    at = 1 + len(before)
    both = []
    for inside in (t.mask, 7):  # whatever stands in the gap, neither side has read it
        logits = model.net(torch.tensor([[t.start, *before, inside, *after, t.end]])).double()
        both.append(logits[0, at - 1, 0].softmax(-1) * logits[0, at + 1, 1].softmax(-1))
    assert torch.allclose(both[0], both[1])
    shares = both[0] / both[0].sum()
    assert sum(c.probability for c in found.masks[0]) == pytest.approx(1)
    for c, p in zip(found.masks[0], shares.sort(descending=True).values.tolist(), strict=True):
        assert c.probability == pytest.approx(p, abs=1e-6)


def test_characters_keep_the_space_before_a_gap():
    tokens = Tokenizer.train(TEXTS, recipe.Tokenizer(kind="characters"))
    model = fills(tokens=tokens)
    [found] = model.fill("a d[MASK]g", top=1)
    [space] = model.fill("a [MASK]og", top=1)
    logits = model.net(
        torch.tensor([[tokens.start, *tokens.encode("a d"), tokens.mask, *tokens.encode("g"), tokens.end]])
    )
    assert found.masks[0][0].probability == pytest.approx(logits[0, 4].float().softmax(-1).max().item(), abs=1e-6)
    logits = model.net(
        torch.tensor([[tokens.start, *tokens.encode("a "), tokens.mask, *tokens.encode("og"), tokens.end]])
    )
    assert space.masks[0][0].probability == pytest.approx(logits[0, 3].float().softmax(-1).max().item(), abs=1e-6)


def test_more_candidates_than_tokens_are_all_of_them():
    model = fills()
    [found] = model.fill("a [MASK]", top=10_007)
    assert len(found.masks[0]) == len(TOKENS)
    assert sum(c.probability for c in found.masks[0]) == pytest.approx(1)
    assert found.to_dict()["masks"][0][0] == vars(found.masks[0][0])


def test_mistakes():
    model = fills()
    with pytest.raises(InputError, match=r"text 2 \('a dog'\) has no \[MASK\]: put one where a word is to be found"):
        model.fill(["a [MASK]", "a dog"])
    with pytest.raises(InputError, match="text 1 is empty"):
        model.fill("")
    with pytest.raises(InputError, match=r"text 1 has 2 \[SEP\]"):
        model.fill("a [MASK] [SEP] b [SEP] c")
    with pytest.raises(InputError, match=r"text 1 has \d+ tokens, more than the 37 of this model; shorten it"):
        model.fill(f"[MASK] {'dog ' * 41}")
    with pytest.raises(InputError, match=r"top \(0\) must be at least 1"):
        model.fill("a [MASK]", top=0)
    with pytest.raises(RegardError, match="was trained to tag, not to fill"):
        labels("tag").fill("a [MASK]")
    without = Model(build(presets.tiny_encoder(head=presets.FEATURES)), "fill", TOKENS)
    with pytest.raises(InputError, match="has no scores for tokens"):
        without.fill("a [MASK]")
    with pytest.raises(InputError, match="has no mask token"):
        fills(tokens=_maskless()).fill("a [MASK]")


def _maskless():
    """A tokenizer from elsewhere, without a mask."""
    inner = Tokenizer.train(TEXTS, recipe.Tokenizer(kind="characters"))._inner
    return Tokenizer(inner, {"pad": "<pad>", "start": "<s>", "end": "</s>", "mask": None})
