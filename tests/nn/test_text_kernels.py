"""Attention within short texts by kernels is attention: where triton is (on a machine without a GPU: in its
interpreter)."""

import itertools

import pytest
import torch

from nn.test_steps import CUDA, DEVICE, needs_kernels

pytestmark = needs_kernels

TEXTS = {  # queries and keys of each text
    "rows": ([7] * 5, [7] * 5),
    "rows across": ([5] * 3, [13] * 3),
    "packed": ([1, 17, 3, 29, 0, 11], [1, 17, 3, 29, 0, 11]),
    "packed across": ([2, 19, 5, 0, 0], [23, 1, 11, 3, 0]),
    "without keys": ([3, 5], [0, 7]),
    "several blocks": ([67, 3, 150, 131], [67, 3, 150, 131]),
    "several blocks across": ([5, 139, 71, 2], [149, 70, 3, 65]),
}


def slowly(q, k, v, lengths, *, is_causal, scale):
    """Text by text, in float64; also the gradient's way."""
    out, begin_q, begin_k = [], 0, 0
    for n, m in zip(*lengths, strict=True):
        a, b, c = q[begin_q : begin_q + n], k[begin_k : begin_k + m], v[begin_k : begin_k + m]
        begin_q, begin_k = begin_q + n, begin_k + m
        scores = torch.einsum("nhd,mhd->hnm", a, b) * scale
        if is_causal:
            scores = scores.masked_fill(torch.ones(n, m, dtype=torch.bool, device=q.device).triu(1), -torch.inf)
        out.append(torch.einsum("hnm,mhd->nhd", scores.softmax(-1), c))
    return torch.cat(out)


def bounds(lengths, spare):
    ends = list(itertools.accumulate(lengths, initial=0))
    return torch.tensor(ends + ends[-1:] * spare, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, *([torch.bfloat16] if CUDA else [])])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("texts", TEXTS)
@pytest.mark.parametrize("came", ["one", "two", "three", "apart"])
def test_texts_see_themselves_alone(texts, is_causal, dtype, came):
    from regard.nn.text_kernels import attend_short

    lengths = TEXTS[texts]
    if lengths[0] != lengths[1] and (is_causal or came == "one"):
        pytest.skip("a text of other tokens has no order with these, and comes from another product")
    heads, width = 3, 32
    draw = torch.Generator(DEVICE).manual_seed(1)
    n, m = (sum(of) for of in lengths)

    def some(*shape):
        return torch.randn(*shape, heads, width, generator=draw, device=DEVICE).to(dtype)

    parts = {
        "one": lambda: [some(n, 3)],
        "two": lambda: [some(n, 1), some(m, 2)],
        "three": lambda: [some(n, 1), some(m, 1), some(m, 1)],
        "apart": lambda: [
            some(n, 3)[:, 1:2],
            *some(m, 5)[:, :2].split(1, 1),
        ],  # a token is not next to the one before it
    }[came]()
    for part in parts:
        part.requires_grad_()
    back = some(n)
    where = *(bounds(of, 2) for of in lengths), *(max(of) for of in lengths)
    out, _ = attend_short(parts, *where, is_causal, 0.31)
    found = torch.autograd.grad(out, parts, back)

    exact = [part.detach().double().requires_grad_() for part in parts]
    each = [x for part in exact for x in part.unbind(1)]
    wanted = slowly(*each, lengths, is_causal=is_causal, scale=0.31)
    gradients = torch.autograd.grad(wanted, exact, back.double())
    apart = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
    near = {"atol": apart, "rtol": apart}
    torch.testing.assert_close(out, wanted.to(dtype), **near)
    for mine, its in zip(found, gradients, strict=True):
        torch.testing.assert_close(mine, its.to(dtype), **near)


@pytest.mark.parametrize("is_causal", [False, True])
def test_heads_of_rows_and_of_packed_texts(is_causal):
    """As a layer calls them: heads before tokens, queries, keys and values from one product."""
    from regard.nn.attention import attend, attend_parts, attend_short
    from regard.nn.masks import Lowered, Texts

    draw = torch.Generator(DEVICE).manual_seed(2)
    qkv = torch.randn(3, 11, 3, 2, 16, generator=draw, device=DEVICE)
    q, k, v = qkv.transpose(1, 3).unbind(2)  # (3, 2, 11, 16)
    mine = attend_parts([qkv], Lowered(is_causal), scale=0.25).transpose(1, 2)
    assert torch.equal(mine, attend_short(q, k, v, Lowered(is_causal), scale=0.25))
    torch.testing.assert_close(mine, attend(q, k, v, Lowered(is_causal), scale=0.25))
    ends = bounds([4, 7, 11, 2, 9], 1)
    which = torch.repeat_interleave(torch.tensor([4, 7, 11, 2, 9], device=DEVICE)).view(3, 1, 11, 1)
    same = which == which.transpose(2, 3)
    wanted = attend(q, k, v, Lowered(bias=same.tril() if is_causal else same), scale=0.25)
    mask = Lowered(is_causal, texts=Texts(ends, ends, 11, 11))
    torch.testing.assert_close(attend_parts([qkv], mask, scale=0.25).transpose(1, 2), wanted)


def test_what_is_recorded_of_the_operators():
    """Shapes, aliasing, and the gradient's registration, as torch.compile relies on them."""
    from regard.nn.text_kernels import attend_short

    q, kv, qkv = (torch.randn(14, n, 2, 16, device=DEVICE, requires_grad=True) for n in (1, 2, 3))
    torch.library.opcheck(attend_short, ([qkv], bounds([7, 7], 0), bounds([7, 7], 0), 7, 7, True, 0.25))
    torch.library.opcheck(attend_short, ([q, kv], bounds([3, 11], 0), bounds([5, 9], 0), 11, 9, False, 0.25))
