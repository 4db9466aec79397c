"""Laws 2, 3, 4, 5 (forward) and 7, for every shape and every variant of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laws.cases import (
    CASES,
    DECODERS,
    OVER_TOKENS,
    TINY,
    B,
    S,
    T,
    an_input,
    build,
    inputs,
    lengths_of,
    outputs,
    shrunk,
    without_dropout,
)  # fmt: skip
from regard import presets
from regard.config import Contrastive, Recurrent, Stack, Tokens, Vector, Vocabulary
from regard.nn import Layout, Transformer, document_positions

EXACT = {"atol": 1e-10, "rtol": 1e-8}


def decoded(model, ids, memory=None, **how):
    return (
        model.logits(model.decode(ids, memory, **how).hidden)
        if isinstance(model.config.head, Vocabulary)
        else model.decode(ids, memory, **how).hidden
    )


def memory_of(model, first, layout=None):
    return None if model.encoder is None else model.encode(first, layout)


# -- law 2 ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_cached_equals_uncached_token_by_token(name):
    model = build(CASES[name])
    first, second = inputs(model.config)
    ids = first if second is None else second
    layout = lengths_of(first, torch.tensor([S, 2, 5])) if second is not None else None
    memory = memory_of(model, first, layout)
    whole = decoded(model, ids, memory)
    cache = model.start(memory, batch_size=None if memory else B, max_len=T + 2)
    steps = [decoded(model, ids[:, t : t + 1], cache=cache) for t in range(T)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, **EXACT)
    assert cache.position.tolist() == [T] * B


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_prompts_of_different_lengths_share_a_cache(name):
    """Prefill a padded batch at once, then go on: every row as if it were alone."""
    model = build(CASES[name])
    first, second = inputs(model.config)
    ids = first if second is None else second
    memory = memory_of(model, first)
    prompt, n = torch.tensor([3, 1, 5]), 2
    cache = model.start(memory, batch_size=None if memory else B, max_len=T)
    decoded(model, ids[:, :5], cache=cache, layout=prompt)
    assert cache.position.tolist() == prompt.tolist()
    rows = torch.arange(B)
    going_on = [decoded(model, ids[rows, prompt + i][:, None], cache=cache) for i in range(n)]
    for row in range(B):
        alone = None if memory is None else model.encode(first[row : row + 1])
        wanted = decoded(model, ids[row : row + 1, : prompt[row] + n], alone)
        got = torch.cat([step[row] for step in going_on])
        torch.testing.assert_close(got, wanted[0, -n:], **EXACT)


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_reordered_rows_go_on_as_the_rows_they_were(name):
    model = build(CASES[name])
    first, second = inputs(model.config)
    ids = first if second is None else second
    layout = lengths_of(first, torch.tensor([S, 2, 5])) if second is not None else None
    order = torch.tensor([2, 0, 0])
    cache = model.start(memory_of(model, first, layout), batch_size=None if second is not None else B, max_len=T)
    decoded(model, ids[:, :4], cache=cache)
    cache.reorder(order)
    got = decoded(model, ids[order, 4:5], cache=cache)
    wanted = decoded(model, ids[:, :5], memory_of(model, first, layout))[order, 4:5]
    torch.testing.assert_close(got, wanted, **EXACT)


@pytest.mark.parametrize("name", [n for n, c in DECODERS.items() if c.encoder is None and isinstance(c.decoder, Stack)])
@torch.no_grad()
def test_a_finished_row_is_filled_again(name):
    """One row goes on where it was while another starts anew beside it, its cache nearly full."""
    model = build(CASES[name])
    ids = an_input(model.config.decoder, 2, T)
    cache = model.start(batch_size=2, max_len=T)
    decoded(model, ids[:, : T - 1], cache=cache)
    cache.reset(torch.tensor([1]))
    fresh = an_input(model.config.decoder, 2, 3)
    fresh[0, 0] = ids[0, T - 1]
    out = decoded(model, fresh, cache=cache, layout=torch.tensor([1, 3]))
    assert cache.position.tolist() == [T, 3]
    torch.testing.assert_close(out[0, 0], decoded(model, ids[:1])[0, T - 1], **EXACT)
    torch.testing.assert_close(out[1], decoded(model, fresh[1:])[0], **EXACT)


@pytest.mark.parametrize("name", [n for n, c in DECODERS.items() if c.encoder is not None])
@torch.no_grad()
def test_beams_of_one_source_need_not_move_its_keys(name):
    model = build(CASES[name])
    first, second = inputs(model.config, rows=1)
    first, ids = first.expand(B, *first.shape[1:]), an_input(model.config.decoder, B, T)
    rows, outs = torch.tensor([2, 0, 0]), []
    for cross in (True, False):
        cache = model.start(model.encode(first), max_len=T)
        decoded(model, ids[:, :4], cache=cache)
        cache.reorder(rows, cross=cross)
        outs.append(decoded(model, ids[:, 4:5], cache=cache))
    torch.testing.assert_close(outs[0], outs[1], **EXACT)


@torch.no_grad()
def test_a_prefix_in_a_cache():
    model = build(TINY["tiny_decoder"])
    ids = an_input(model.config.decoder, 2, T)
    layout = Layout(prefix=torch.tensor([3, 2]), lengths=torch.tensor([5, 4]))
    whole = decoded(model, ids[:, :5], layout=layout)
    cache = model.start(batch_size=2, max_len=T)
    cached = decoded(model, ids[:, :5], cache=cache, layout=layout)
    torch.testing.assert_close(cached[0], whole[0], **EXACT)
    torch.testing.assert_close(cached[1, :4], whole[1, :4], **EXACT)


# -- law 3 ------------------------------------------------------------------------------


def placed(ids: torch.Tensor, start: int, end: int, fill: torch.Tensor) -> torch.Tensor:
    """A row with padding of random ids on either side."""
    return torch.cat([fill[:, :start], ids, fill[:, start : start + end]], dim=1)


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


# -- law 4 ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_the_future_never_changes_the_past(name):
    model = build(CASES[name])
    first, second = inputs(model.config)
    ids = (first if second is None else second).clone()
    memory = memory_of(model, first)
    before = model.decode(ids, memory).hidden
    ids[:, 4:] = (ids[:, 4:] + 1) % 101
    after = model.decode(ids, memory).hidden
    assert torch.equal(after[:, :4], before[:, :4]), "bit for bit"
    assert not torch.allclose(after[:, 4:], before[:, 4:])


@pytest.mark.parametrize("kind", ["none", "sinusoidal", "learned", "rotary", "alibi"])
@torch.no_grad()
def test_order_enters_by_positions_alone(kind):
    even = {"d_head": 8, "d_value": 5}
    model = build(presets.tiny_encoder(positions=presets.Positions(kind=kind), **even))
    ids = torch.arange(3, 3 + T)[None]
    order = torch.tensor([4, 2, 0, 6, 1, 3, 5])
    moved = model.encode(ids[:, order]).hidden
    same = torch.allclose(moved, model.encode(ids).hidden[:, order], atol=1e-10)
    assert same == (kind == "none")


# -- law 5, for the forward pass ----------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_a_batch_equals_its_rows(name):
    model = build(CASES[name])
    first, second = inputs(model.config)
    layout = lengths_of(first, torch.tensor([1, first.shape[1], 4]))
    together = outputs(model(first, second, layout=layout))
    order = torch.tensor([2, 0, 1])
    shuffled = outputs(
        model(
            first[order],
            None if second is None else second[order],
            layout=Layout(*(None if x is None else x[order] for x in layout)),
        )
    )
    torch.testing.assert_close(shuffled, together[order], **EXACT)
    for row in range(B):
        n = first.shape[1] if layout.lengths is None else int(layout.lengths[row])
        alone_in = first[row : row + 1] if layout.lengths is None else first[row : row + 1, :n]
        alone = outputs(model(alone_in, None if second is None else second[row : row + 1]))
        got = together[row : row + 1]
        per_token = second is None and got.dim() > 2
        torch.testing.assert_close(got[:, :n] if per_token else got, alone, **EXACT)


# -- law 7 ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CASES, *(n for n in presets.names() if not n.startswith("tiny"))])
def test_every_parameter_receives_gradient(name):
    config = CASES.get(name) or shrunk(presets.preset(name))
    if name.startswith("bert"):
        config = config.replace(head=presets.MASKED_TOKENS, pair_head=presets.Pooled(n_labels=2, dense=True))
    model = Transformer(without_dropout(config)).double().train()
    first, second = inputs(config)
    segments = None
    if isinstance(first, torch.Tensor) and getattr((config.encoder or config.last).input, "n_segments", 0):
        segments = torch.arange(first.shape[1])[None].expand(B, -1) % 2
    out = model(first, second, segments=segments)
    loss = (
        out.logits.log_softmax(-1).diagonal().sum()
        if isinstance(config.head, Contrastive)
        else outputs(out).log_softmax(-1)[..., 0].sum()
    )
    if model.pair_head is not None:
        loss = loss + model.pair_head(model.encode(first, segments=segments).hidden).log_softmax(-1)[..., 0].sum()
    if isinstance(config.head, presets.Pooled) and not config.head.n_labels:
        loss = outputs(out).square().sum()
    loss.backward()
    # A learned position beyond the longest input, like a token that did not occur, is a row without gradient;
    # no whole tensor may be.
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert not silent


# -- what capture hands out -----------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_every_attention_layer_can_be_seen(name):
    model = build(CASES[name])
    first, second = inputs(model.config)
    layout = lengths_of(first, torch.tensor([1, first.shape[1], 4]))
    for tower, layers in model.attention_layers().items():
        if tower == "encoder":
            plain, seen = model.encode(first, layout), model.encode(first, layout, capture=layers)
        elif tower == "text":
            plain, seen = model.encode_text(second), model.encode_text(second, capture=layers)
        else:
            ids = first if second is None else second
            memory = memory_of(model, first, layout if second is not None else None)
            plain, seen = model.decode(ids, memory), model.decode(ids, memory, capture=layers)
        assert torch.equal(plain.hidden, seen.hidden), "looking changes nothing"
        assert list(seen.attended) == layers
        for layer, attended in seen.attended.items():
            weights = attended.weights()
            assert weights.shape[:2] == attended.q.shape[:2]
            alive = attended.mask.alive  # padding may have nothing in its window
            sums = torch.ones_like(weights[..., 0]) if alive is None else alive[..., 0].to(weights.dtype)
            torch.testing.assert_close(weights.sum(-1), sums.expand_as(weights[..., 0]))
            if "cross" in layer and layout.lengths is not None:
                assert weights[0, :, :, 1:].abs().max() == 0, "row 0 has one real source token"


def test_presets_cover_every_input_and_head():
    """The tiny presets are what the laws stand on: together they must reach every kind of piece."""
    towers = [t for c in CASES.values() for t in (c.encoder, c.decoder, c.text) if t is not None]
    assert {t.input.kind for t in towers} == {"tokens", "patches", "grid", "vector"}
    assert {c.head.kind for c in CASES.values()} == {"vocabulary", "labels", "pooled", "contrastive"}
    assert {c.shape for c in CASES.values()} == {"encoder", "decoder", "encoder-decoder", "two encoders"}
    assert {t.score for t in towers if isinstance(t, Recurrent)} == {None, "dot", "scaled_dot", "bilinear", "additive"}
    assert any(isinstance(t.input, Vector) for t in towers)
    assert all(t.input.vocab_size > 50 for t in towers if isinstance(t.input, Tokens))
