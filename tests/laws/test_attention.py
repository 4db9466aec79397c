"""Law 1: fast attention equals the written-out reference, for every score function, mask and dtype, values and gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.nn import Attention, KeyValue, Lowered, Mask, attend, lower

B, H, G, T, S, D, E = 2, 6, 3, 5, 7, 11, 13

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2}


def may_attend(mask: Mask, b: int, h: int, i: int, j: int) -> bool:
    """The rules of masks, one pair at a time and in plain words."""
    slot = i if mask.slots is None else int(mask.slots[b, i])
    past = slot >= j or (mask.prefix is not None and j < int(mask.prefix[b]))
    rules = [
        past or not mask.causal,
        mask.window == 0 or abs(slot - j) <= mask.window,
        mask.starts is None or j >= int(mask.starts[b]),
        mask.ends is None or j < int(mask.ends[b]),
        mask.query_documents is None or bool(mask.query_documents[b, i] == mask.key_documents[b, j]),
        mask.allowed is None or bool(mask.allowed[b, h, i, j]),
    ]
    return all(rules)


def reference(q, k, v, mask: Mask, scale: float, w=None):
    """Query by query, head by head: score, softmax over what is allowed, weighted sum. Zeros where nothing is."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    weights = torch.zeros(*q.shape[:3], k.shape[2], dtype=q.dtype)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            for i in range(q.shape[2]):
                keys = [j for j in range(k.shape[2]) if may_attend(mask, b, h, i, j)]
                if not keys:
                    continue
                if w is None:
                    scores = torch.stack([(q[b, h, i] * k[b, g, j]).sum() * scale for j in keys])
                else:
                    scores = torch.stack([(w[h] * torch.tanh(q[b, h, i] + k[b, g, j])).sum() for j in keys])
                if mask.slopes is not None:
                    slot = i if mask.slots is None else int(mask.slots[b, i])
                    scores = scores - mask.slopes[h] * torch.tensor([abs(slot - j) for j in keys], dtype=q.dtype)
                share = torch.exp(scores - scores.max()) / torch.exp(scores - scores.max()).sum()
                weights[b, h, i, keys] = share
                out[b, h, i] = sum(share[n] * v[b, g, j] for n, j in enumerate(keys))
    return out, weights


def an_example(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    q, k, v = torch.randn(B, H, T, D), torch.randn(B, G, S, D), torch.randn(B, G, S, E)
    return [x.to(dtype).requires_grad_() for x in (q, k, v)]


MASKS = {
    "none": Mask(),
    "causal": Mask(causal=True),
    "window": Mask(window=2),
    "causal window": Mask(causal=True, window=1),
    "lengths": Mask(ends=torch.tensor([7, 3])),
    "nothing to attend": Mask(ends=torch.tensor([4, 0])),
    "left padding": Mask(causal=True, starts=torch.tensor([0, 3])),
    "prefix": Mask(causal=True, prefix=torch.tensor([3, 0])),
    "documents": Mask(
        causal=True,
        query_documents=torch.tensor([[0, 0, 1, 1, 2], [5, 5, 5, 6, 6]]),
        key_documents=torch.tensor([[0, 0, 1, 1, 2, 2, 2], [5, 5, 5, 6, 6, 6, 6]]),
    ),
    "slots": Mask(causal=True, slots=torch.tensor([[2, 3, 4, 5, 6], [0, 1, 2, 3, 4]])),
    "one's own": Mask(allowed=torch.rand(B, H, T, S, generator=torch.Generator().manual_seed(3)) < 0.5),
    "alibi": Mask(causal=True, slopes=torch.arange(1, H + 1) / 7),
    "alibi, lengths": Mask(slopes=torch.arange(1, H + 1) / 7, ends=torch.tensor([7, 0])),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("additive", [False, True], ids=["dot", "additive"])
@pytest.mark.parametrize("name", MASKS)
def test_fast_equals_reference(name, additive, dtype):
    mask, scale = MASKS[name], 0.37
    q, k, v = an_example(dtype)
    w = (torch.randn(H, D) / 3).to(dtype).requires_grad_() if additive else None
    parameters = [q, k, v, *([] if w is None else [w])]
    lowered = lower(mask, T, S, device=q.device, dtype=dtype)
    out = attend(q, k, v, lowered, scale=scale, w=w)
    exact = [p.detach().double().requires_grad_() for p in parameters]
    wanted, _ = reference(*exact[:3], mask, scale, *exact[3:])
    direction = torch.randn(wanted.shape, dtype=torch.float64)
    got = torch.autograd.grad((out.double() * direction).sum(), parameters)
    grads = torch.autograd.grad((wanted * direction).sum(), exact)
    for mine, theirs in [(out, wanted), *zip(got, grads, strict=True)]:
        assert mine.isfinite().all()
        torch.testing.assert_close(mine.double(), theirs, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@st.composite
def masks(draw):
    numbers = lambda low, high: torch.tensor([draw(st.integers(low, high)) for _ in range(B)])  # noqa: E731
    maybe = lambda make: make() if draw(st.booleans()) else None  # noqa: E731
    documents = maybe(lambda: torch.tensor([sorted(draw(st.integers(0, 2)) for _ in range(S)) for _ in range(B)]))
    starts = maybe(lambda: numbers(0, S))
    return Mask(
        causal=draw(st.booleans()),
        window=draw(st.integers(0, 3)),
        starts=starts,
        ends=maybe(lambda: numbers(0, S)),
        prefix=maybe(lambda: numbers(0, S)),
        query_documents=None if documents is None else documents[:, :T],
        key_documents=documents,
        slots=maybe(lambda: numbers(0, S - T)[:, None] + torch.arange(T)),
        slopes=maybe(lambda: torch.rand(H)),
    )


@settings(max_examples=60, deadline=None)
@given(masks())
def test_any_combination_of_masks(mask):
    q, k, v = an_example()
    lowered = lower(mask, T, S, device=q.device, dtype=q.dtype)
    out = attend(q, k, v, lowered, scale=0.5)
    wanted, _ = reference(q, k, v, mask, 0.5)
    if lowered.is_causal:  # the kernel need not hide padding from a query that is padding itself
        keep = mask.ends if mask.ends is not None else torch.full((B,), S)
        real = torch.arange(T)[None] < keep[:, None]
        out, wanted = out.transpose(1, 2)[real], wanted.transpose(1, 2)[real]
    torch.testing.assert_close(out, wanted, atol=1e-10, rtol=1e-7)
    for gradient in torch.autograd.grad(out.sum(), [q, k, v]):
        assert gradient.isfinite().all()


SCORES = ["dot", "scaled_dot", "bilinear", "additive"]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["none", "causal", "lengths", "nothing to attend", "alibi"])
def test_weights_on_request_are_the_written_out_softmax(score, name):
    mask = MASKS[name]
    layer = Attention(
        17, d_memory=19, d_values=23, d_out=29, n_heads=H, n_kv_heads=G, d_head=D, d_value=E, score=score
    ).double()
    x, memory, values = (torch.randn(B, n, d, dtype=torch.float64) for n, d in ((T, 17), (S, 19), (S, 23)))
    lowered = lower(mask, T, S, device=x.device, dtype=x.dtype)
    out, attended = layer(x, memory, values, mask=lowered, capture=True)
    kept, nothing = layer(x, memory, values, mask=lowered)
    assert nothing is None
    assert torch.equal(out, kept), "looking changes nothing"
    _, weights = reference(attended.q, attended.k, attended.v, mask, attended.scale, attended.w)
    with torch.no_grad():
        torch.testing.assert_close(attended.weights(), weights, atol=1e-12, rtol=1e-9)
        torch.testing.assert_close(attended.weights([4, 1]), weights[:, [4, 1]], atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(attended.weights(), weights, atol=1e-12, rtol=1e-9)  # with gradients, too
    by_hand = (weights @ attended.v.repeat_interleave(H // G, dim=1)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer.out(by_hand), out, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("score", SCORES)
def test_score_functions_written_out(score):
    """Each score as its paper has it, from raw queries and keys: q.k, q.k / sqrt d, q W k, w . tanh(W1 q + W2 k)."""
    q_width, k_width = (D, D) if "dot" in score else (D, E)
    layer = Attention(q_width, d_memory=k_width, score=score, identity=("q", "k", "v", "out"), d_attention=17).double()
    q, memory = torch.randn(B, T, q_width, dtype=torch.float64), torch.randn(B, S, k_width, dtype=torch.float64)
    _, attended = layer(q, memory, capture=True)
    scores = {
        "dot": lambda x, y: x @ y,
        "scaled_dot": lambda x, y: x @ y / math.sqrt(D),
        "bilinear": lambda x, y: x @ layer.score_q[0] @ y,
        "additive": lambda x, y: layer.score_w[0] @ torch.tanh(x @ layer.score_q[0] + y @ layer.score_k[0]),
    }[score]
    table = torch.stack(
        [torch.stack([torch.stack([scores(x, y) for y in m]) for x in r]) for r, m in zip(q, memory, strict=True)]
    )
    torch.testing.assert_close(attended.weights()[:, 0], table.softmax(-1))


@pytest.mark.parametrize("score", SCORES)
def test_context_attention_is_the_same_class(score):
    """A decoder state over raw GRU states, softmax(score) times the states, is Attention with identity projections."""
    states = nn.GRU(5, D, batch_first=True).double()(torch.randn(B, S, 5, dtype=torch.float64))[0]
    asking = torch.randn(B, 1, D, dtype=torch.float64)
    layer = Attention(D, d_memory=D, score=score, identity=("q", "k", "v", "out")).double()
    out, attended = layer(asking, states, capture=True)
    torch.testing.assert_close(out[:, 0], torch.einsum("bs,bsd->bd", attended.weights()[:, 0, 0], states))
    if score == "dot":
        by_hand = torch.einsum("bs,bsd->bd", torch.einsum("bd,bsd->bs", asking[:, 0], states).softmax(-1), states)
        torch.testing.assert_close(out[:, 0], by_hand)


@pytest.mark.parametrize("batch_first_mask", [None, "causal", "padding"])
def test_equals_torch_multihead_attention(batch_first_mask):
    width, heads = 21, 3
    theirs = nn.MultiheadAttention(width, heads, batch_first=True).double()
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours = Attention(width, n_heads=heads).double()
    ours.qkv.weight, ours.qkv.bias = theirs.in_proj_weight, theirs.in_proj_bias
    ours.out.load_state_dict(theirs.out_proj.state_dict())
    x = torch.randn(B, T, width, dtype=torch.float64)
    ends = torch.tensor([T, 2])
    mask, extra = Mask(), {}
    if batch_first_mask == "causal":
        mask, extra = Mask(causal=True), {"attn_mask": ~torch.ones(T, T, dtype=torch.bool).tril()}
    elif batch_first_mask == "padding":
        mask, extra = Mask(ends=ends), {"key_padding_mask": torch.arange(T)[None] >= ends[:, None]}
    out, attended = ours(x, mask=lower(mask, T, T, device=x.device, dtype=x.dtype), capture=True)
    wanted, weights = theirs(x, x, x, average_attn_weights=False, **extra)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(attended.weights(), weights)


def test_equals_torch_multihead_attention_across_widths():
    theirs = nn.MultiheadAttention(21, 3, kdim=13, vdim=17, batch_first=True).double()
    ours = Attention(21, d_memory=13, d_values=17, n_heads=3, d_head=7).double()
    bias = theirs.in_proj_bias.chunk(3)
    for name, weight, part in zip(
        "qkv", (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight), bias, strict=True
    ):
        getattr(ours, name).weight.data, getattr(ours, name).bias.data = weight.data, part.data
    ours.out.load_state_dict(theirs.out_proj.state_dict())
    q, k, v = (torch.randn(B, n, d, dtype=torch.float64) for n, d in ((T, 21), (S, 13), (S, 17)))
    torch.testing.assert_close(ours(q, k, v)[0], theirs(q, k, v)[0])


def test_memory_remembered_once_is_the_same():
    layer = Attention(D, d_memory=E, n_heads=1).double()
    x, memory = torch.randn(B, T, D, dtype=torch.float64), torch.randn(B, S, E, dtype=torch.float64)
    kept = layer.remember(memory)
    assert isinstance(kept, KeyValue)
    assert torch.equal(layer(x, kept)[0], layer(x, memory)[0])


def test_attention_dropout_keeps_the_mean_and_off_in_eval():
    layer = Attention(D, n_heads=1, dropout=0.5).double()
    x = torch.randn(1, T, D, dtype=torch.float64)
    layer.train()
    draws = torch.stack([layer(x)[0] for _ in range(3000)])
    assert draws.std(0).max() > 0.01
    layer.eval()
    torch.testing.assert_close(draws.mean(0), layer(x)[0], atol=0.05, rtol=0.05)
    assert Lowered() == layer(x, capture=True)[1].mask
