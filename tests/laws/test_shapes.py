"""Laws 4, 5 (forward) and 7, and what capture hands out, for every shape and every variant of it."""

import pytest
import torch

from laws.cases import (
    CASES,
    DECODERS,
    EXACT,
    B,
    T,
    an_input,
    build,
    inputs,
    lengths_of,
    memory_of,
    outputs,
    shrunk,
    without_dropout,
)
from regard import presets
from regard.config import Contrastive, Positions, Recurrent, Tokens, Vector
from regard.nn import Layout, Transformer


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
    assert {c.head.kind for c in CASES.values()} == {"vocabulary", "labels", "pooled", "contrastive", "codes"}
    assert {c.shape for c in CASES.values()} == {"encoder", "decoder", "encoder-decoder", "two encoders"}
    assert {t.score for t in towers if isinstance(t, Recurrent)} == {None, "dot", "scaled_dot", "bilinear", "additive"}
    assert any(isinstance(t.input, Vector) for t in towers)
    assert all(t.input.vocab_size > 50 for t in towers if isinstance(t.input, Tokens))


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@torch.no_grad()
def test_queries_and_keys_are_normed_and_then_turned(layout):
    """Su's formula with complex numbers, from what capture says came in."""
    base, d = 50.0, 14
    rotary = Positions(kind="rotary", layout=layout, base=base)
    model = build(presets.tiny_llama(positions=rotary, qk_norm=True, norm_eps=0.1))
    ids, positions = an_input(model.config.decoder, 1, T), torch.tensor([[2, 3, 5, 7, 11, 13, 17]])
    attended = model.decode(ids, layout=Layout(positions=positions), capture=["0.self"]).attended["0.self"]
    block = model.decoder.stack.blocks[0]
    torch.testing.assert_close(attended.x, block.self_norm(model.decoder.embed(ids)))
    q, k, _ = block.self_attn.qkv(attended.x).split(block.self_attn.widths, dim=-1)
    angle = positions[..., None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)  # (1, T, d / 2)
    parts = (lambda x: (x[..., ::2], x[..., 1::2])) if layout == "interleaved" else (lambda x: x.chunk(2, dim=-1))
    for flat, norm, got in ((q, block.self_attn.q_norm, attended.q), (k, block.self_attn.k_norm, attended.k)):
        heads = flat.unflatten(-1, (-1, d)).transpose(1, 2)
        heads = heads / (heads.square().mean(-1, keepdim=True) + 0.1).sqrt() * norm.weight
        turned = torch.complex(*parts(heads)) * torch.polar(torch.ones_like(angle), angle)[:, None]
        torch.testing.assert_close(torch.complex(*parts(got)), turned, atol=1e-5, rtol=1e-5)
