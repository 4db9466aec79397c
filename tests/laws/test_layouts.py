"""Law 3: padding, its side and its amount change nothing; and masks are what they say."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laws.cases import (
    CASES,
    EXACT,
    OVER_TOKENS,
    TINY,
    B,
    T,
    an_input,
    build,
    inputs,
    outputs,
    placed,
)
from regard.config import Contrastive
from regard.nn import Layout, document_positions


@pytest.mark.parametrize("name", OVER_TOKENS)
@settings(max_examples=8, deadline=None)
@given(left=st.integers(0, 5), right=st.integers(0, 5), length=st.integers(1, 6))
def test_padding_changes_nothing(name, left, right, length):
    """Neither its side nor its amount: not a real position's output, and not a gradient."""
    model = build(CASES[name])
    config = model.config
    tower = config.encoder or config.last
    ids, fill = an_input(tower, 2, length), an_input(tower, 2, left + right)
    two = config.encoder is not None and config.decoder is not None
    target, target_fill = (an_input(config.decoder, 2, n) for n in (T, left + right)) if two else (None, None)
    per_token = not hasattr(config.head, "pool")

    def run(ids, target, start, end):
        model.zero_grad()
        here = Layout(lengths=torch.full((2,), length), starts=torch.full((2,), start) if start else None)
        there = Layout(lengths=torch.full((2,), T), starts=torch.full((2,), start) if start else None) if two else None
        out = outputs(model(ids, target, layout=here, target_layout=there))
        real = out[:, start : start + (T if two else length)] if per_token else out
        weights = torch.linspace(-1, 1, real.numel(), dtype=real.dtype).reshape(real.shape)
        (real * weights).sum().backward()
        return real, [p.grad.clone() for p in model.parameters() if p.grad is not None]

    bare, gradients = run(ids, target, 0, 0)
    with_padding, padded_gradients = run(
        placed(ids, left, right, fill), placed(target, left, right, target_fill) if two else None, left, right
    )
    torch.testing.assert_close(with_padding, bare, **EXACT)
    for mine, theirs in zip(padded_gradients, gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.text or (c.encoder and c.decoder)])
@pytest.mark.parametrize(("left", "right"), [(3, 0), (0, 2), (1, 4)])
@torch.no_grad()
def test_padding_of_the_second_input_changes_nothing(name, left, right):
    model = build(CASES[name])
    first, second = inputs(model.config)
    fill = an_input(model.config.text or model.config.decoder, B, left + right)
    padded = placed(second, left, right, fill)
    layout = Layout(lengths=torch.full((B,), T), starts=torch.full((B,), left) if left else None)
    bare, with_padding = model(first, second), model(first, padded, target_layout=layout)
    if isinstance(model.config.head, Contrastive):
        torch.testing.assert_close(with_padding.logits, bare.logits, **EXACT)
        return
    real = with_padding[:, left : left + T] if with_padding.dim() > 2 else with_padding
    torch.testing.assert_close(real, bare, **EXACT)
    cross = [layer for layer in model.attention_layers()["decoder"] if "cross" in layer]
    memory = model.encode(first)
    there = model.decode(padded, memory, layout=layout, capture=cross).attended
    for layer, attended in model.decode(second, memory, capture=cross).attended.items():
        weights = there[layer].weights()[:, :, left : left + T]
        torch.testing.assert_close(weights, attended.weights(), **EXACT)
        torch.testing.assert_close(there[layer].x[:, left : left + T], attended.x, **EXACT)


@pytest.mark.parametrize("name", OVER_TOKENS)
@torch.no_grad()
def test_starts_alone_say_that_a_row_is_real_to_its_end(name):
    model = build(CASES[name])
    first, second = inputs(model.config)
    starts = torch.tensor([3, 0, 6])
    both = Layout(starts=starts, lengths=first.shape[1] - starts)
    alone, told = (outputs(model(first, second, layout=x)) for x in (Layout(starts=starts), both))
    torch.testing.assert_close(alone, told, **EXACT)


@pytest.mark.parametrize("name", ["tiny_encoder_decoder", "tiny_bahdanau", "gru without attention"])
@torch.no_grad()
def test_an_empty_source_says_nothing(name):
    model = build(CASES[name])
    target, none = torch.tensor([[3, 4]]), torch.tensor([0])
    one, other = (model(ids, target, layout=none) for ids in (torch.tensor([[5, 6, 7]]), torch.tensor([[8, 9, 1]])))
    torch.testing.assert_close(one, other, **EXACT)


@pytest.mark.parametrize("name", ["tiny_decoder", "tiny_llama", "alibi", "windows", "no positions"])
@torch.no_grad()
def test_packed_documents_do_not_leak(name):
    model = build(CASES[name])
    one, two = an_input(model.config.decoder, 1, 4), an_input(model.config.decoder, 1, 3)
    documents = torch.tensor([[7, 7, 7, 7, 3, 3, 3]])
    layout = Layout(documents=documents, positions=document_positions(documents))
    packed = model(torch.cat([one, two], dim=1), layout=layout)
    torch.testing.assert_close(packed, torch.cat([model(one), model(two)], dim=1), **EXACT)


@pytest.mark.parametrize("name", ["tiny_encoder_decoder", "bilinear", "additive"])
@torch.no_grad()
def test_packed_pairs_do_not_leak_through_cross_attention(name):
    model = build(CASES[name])
    sources = [an_input(model.config.encoder, 1, n) for n in (4, 3)]
    targets = [an_input(model.config.decoder, 1, n) for n in (2, 5)]
    of_source, of_target = torch.tensor([[7] * 4 + [3] * 3]), torch.tensor([[7] * 2 + [3] * 5])
    layouts = [Layout(documents=d, positions=document_positions(d)) for d in (of_source, of_target)]
    packed = model(torch.cat(sources, dim=1), torch.cat(targets, dim=1), layout=layouts[0], target_layout=layouts[1])
    alone = [model(s, t) for s, t in zip(sources, targets, strict=True)]
    torch.testing.assert_close(packed, torch.cat(alone, dim=1), **EXACT)


@torch.no_grad()
def test_prefix_is_seen_by_all_and_the_rest_is_causal():
    model = build(TINY["tiny_decoder"])
    ids = an_input(model.config.decoder, 2, T)
    layout = Layout(prefix=torch.tensor([3, 3]))
    whole = model(ids, layout=layout)
    changed = ids.clone()
    changed[:, 2] = (changed[:, 2] + 1) % 101
    assert not torch.equal(model(changed, layout=layout)[:, 0], whole[:, 0]), "the prefix sees itself whole"
    changed = ids.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 101
    assert torch.equal(model(changed, layout=layout)[:, :5], whole[:, :5])


@torch.no_grad()
def test_a_prefix_counts_real_tokens_whatever_the_padding():
    model = build(CASES["tiny_decoder"])
    ids, lengths, prefix = an_input(model.config.decoder, 2, 7), torch.tensor([7, 7]), torch.tensor([3, 5])
    padded = placed(ids, 2, 0, an_input(model.config.decoder, 2, 2))
    bare = model(ids, layout=Layout(lengths=lengths, prefix=prefix))
    moved = model(padded, layout=Layout(lengths=lengths, prefix=prefix, starts=torch.tensor([2, 2])))
    torch.testing.assert_close(moved[:, 2:], bare, **EXACT)


@pytest.mark.parametrize(("name", "radii"), [("windows", (T, 2)), ("windowed encoder", (1, 3))])
@torch.no_grad()
def test_each_layer_sees_as_far_as_its_own_window(name, radii):
    model = build(CASES[name])
    tower = model.decoder or model.encoder
    run = model.encode if model.decoder is None else model.decode
    seen = run(an_input(tower.config, 2, T), capture=tower.attention_layers()).attended
    apart = torch.arange(T)[:, None] - torch.arange(T)
    for attended, radius in zip(seen.values(), radii, strict=True):
        weights = attended.weights()
        near = (apart.abs() <= radius) & ((apart >= 0) | (not tower.config.causal))
        assert torch.equal(weights > 0, near.expand_as(weights))


@pytest.mark.parametrize("shape", [(T, T), (2, T, T), (1, T, T), (2, 3, T, T), (1, 3, T, T)])
@torch.no_grad()
def test_a_mask_of_ones_own_is_what_is_attended(shape):
    model = build(CASES["tiny_tagger"])
    allowed = torch.rand(shape) < 0.5
    allowed[..., 2, :] = False  # nothing to attend
    ids = an_input(model.config.encoder, 2, T)
    layers = model.attention_layers()["encoder"]
    for attended in model.encode(ids, Layout(allowed=allowed), capture=layers).attended.values():
        weights = attended.weights()
        four = {2: allowed[None, None], 3: allowed[:, None], 4: allowed}[allowed.dim()]
        assert torch.equal(weights > 0, four.expand_as(weights))
        assert torch.equal(attended.weights([2, 0]), weights[:, [2, 0]])
