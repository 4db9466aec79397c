"""Attention within short texts, for training on a GPU: a program has a head of a whole text at once, or a block of it,
and gives its gradient in one pass.

A text of some thirty tokens is too short for kernels that share one out among many programs: most of their time goes
into what surrounds the arithmetic. Texts are rows of a batch, or lie one after the other by their bounds.

This module needs triton, and is imported by :mod:`regard.nn.attention` alone, where there is a GPU.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 64  # tokens of a block; longer texts are several
HIDDEN = tl.constexpr(-1e30)  # a score that is not to be seen; finite, so that a row of nothing else is no NaN


@torch.library.custom_op("regard::attend_short", mutates_args=())
def attend_short(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_bounds: Tensor | None,
    key_bounds: Tensor | None,
    longest_query: int,
    longest_key: int,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """What the tokens of q (N, H, D) see of k and v (M, H, D), each text by itself, and the logarithms of their sums of
    exponentials (N, H). Without bounds all texts are as long as the longest."""
    out, sums = _empty(q), torch.empty(q.shape[:2], device=q.device, dtype=torch.float32)
    texts = len(q) // longest_query if query_bounds is None else len(query_bounds) - 1
    with torch.cuda.device_of(q):  # where triton launches
        _forward[(texts * q.shape[1],)](
            q, k, v, out, sums, query_bounds, key_bounds, *_strides(q, k, v), scale, longest_query, longest_key,
            HEADS=q.shape[1], D=q.shape[2], CAUSAL=is_causal, **_blocks(longest_query, longest_key),
        )  # fmt: skip
    return out, sums


@attend_short.register_fake
def _(q, k, v, query_bounds, key_bounds, longest_query, longest_key, is_causal, scale):
    return _empty(q), torch.empty(q.shape[:2], device=q.device, dtype=torch.float32)


@torch.library.custom_op("regard::attend_short_backward", mutates_args=())
def attend_short_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sums: Tensor,
    query_bounds: Tensor | None,
    key_bounds: Tensor | None,
    longest_query: int,
    longest_key: int,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    gradient = gradient.contiguous()
    sizes = _blocks(longest_query, longest_key)
    # A query of several blocks of keys has its gradient in parts, which are added up where it stands.
    parts = longest_key > sizes["KEYS"]
    dq, dk, dv = torch.empty_like(_empty(q), dtype=torch.float32) if parts else _empty(q), _empty(k), _empty(v)
    texts = len(q) // longest_query if query_bounds is None else len(query_bounds) - 1
    with torch.cuda.device_of(q):
        _backward[(texts * q.shape[1],)](
            gradient, q, k, v, out, sums, dq, dk, dv, query_bounds, key_bounds, *_strides(q, k, v),
            scale, longest_query, longest_key, HEADS=q.shape[1], D=q.shape[2], CAUSAL=is_causal, PARTS=parts, **sizes,
        )  # fmt: skip
    return dq.to(q.dtype), dk, dv


@attend_short_backward.register_fake
def _(gradient, q, k, v, out, sums, query_bounds, key_bounds, longest_query, longest_key, is_causal, scale):
    return _empty(q), _empty(k), _empty(v)


def _keep(ctx, inputs, output) -> None:
    q, k, v, query_bounds, key_bounds, *ctx.rest = inputs
    ctx.save_for_backward(q, k, v, *output, query_bounds, key_bounds)


def _gradients(ctx, gradient, _):
    q, k, v, out, sums, query_bounds, key_bounds = ctx.saved_tensors
    found = attend_short_backward(gradient, q, k, v, out, sums, query_bounds, key_bounds, *ctx.rest)
    return *found, None, None, None, None, None, None


attend_short.register_autograd(_gradients, setup_context=_keep)


def _empty(x: Tensor) -> Tensor:
    return torch.empty(x.shape, device=x.device, dtype=x.dtype)


def _strides(*given: Tensor) -> tuple[int, ...]:
    """From a token to the next, and from a head to the next; a head's width lies together."""
    return tuple(stride for x in given for stride in x.stride()[:2])


def _blocks(longest_query: int, longest_key: int) -> dict[str, int]:
    queries, keys = (min(LARGEST, max(16, triton.next_power_of_2(n))) for n in (longest_query, longest_key))
    return {"QUERIES": queries, "KEYS": keys, "num_warps": 4 if max(queries, keys) > 32 else 2, "num_stages": 1}


@triton.jit
def _text(bounds, which, longest):
    """Where a text begins, and how many tokens it has."""
    if bounds is None:
        return which.to(tl.int64) * longest, longest
    begin = tl.load(bounds + which)
    return begin.to(tl.int64), tl.load(bounds + which + 1) - begin


@triton.jit
def _scores(q, k, at_query, at_key, keys, scale, CAUSAL: tl.constexpr):
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    seen = at_key[None, :] < keys
    if CAUSAL:
        seen = seen & (at_key[None, :] <= at_query[:, None])
    return tl.where(seen, scores, HIDDEN)


@triton.jit
def _forward(
    q, k, v, out, sums, query_bounds, key_bounds, q_token, q_head, k_token, k_head, v_token, v_head,
    scale, longest_query, longest_key,
    HEADS: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    which, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    first_query, queries = _text(query_bounds, which, longest_query)
    first_key, keys = _text(key_bounds, which, longest_key)
    q += first_query * q_token + head * q_head
    k += first_key * k_token + head * k_head
    v += first_key * v_token + head * v_head
    out += first_query * HEADS * D + head * D
    sums += first_query * HEADS + head
    wide = tl.arange(0, D)[None, :]
    for query in range(0, queries, QUERIES):
        at_query = query + tl.arange(0, QUERIES)
        real = at_query < queries
        some = tl.load(q + at_query[:, None] * q_token + wide, mask=real[:, None], other=0.0)
        best = tl.full([QUERIES], HIDDEN, tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        seen = tl.zeros([QUERIES, D], tl.float32)
        last = keys
        if CAUSAL:
            last = tl.minimum(keys, query + QUERIES)
        for key in range(0, last, KEYS):
            at_key = key + tl.arange(0, KEYS)
            there = (at_key < keys)[:, None]
            some_k = tl.load(k + at_key[:, None] * k_token + wide, mask=there, other=0.0)
            some_v = tl.load(v + at_key[:, None] * v_token + wide, mask=there, other=0.0)
            scores = _scores(some, some_k, at_query, at_key, keys, scale, CAUSAL)
            better = tl.maximum(best, tl.max(scores, 1))
            shares = tl.exp(scores - better[:, None])
            less = tl.exp(best - better)
            total = total * less + tl.sum(shares, 1)
            seen = seen * less[:, None] + tl.dot(shares.to(some_v.dtype), some_v, input_precision="ieee")
            best = better
        total = tl.where(total > 0, total, 1.0)  # a text without keys
        seen = (seen / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + at_query[:, None] * (HEADS * D) + wide, seen, mask=real[:, None])
        tl.store(sums + at_query * HEADS, best + tl.log(total), mask=real)


@triton.jit
def _backward(
    gradient, q, k, v, out, sums, dq, dk, dv, query_bounds, key_bounds,
    q_token, q_head, k_token, k_head, v_token, v_head, scale, longest_query, longest_key,
    HEADS: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr, PARTS: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    which, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    first_query, queries = _text(query_bounds, which, longest_query)
    first_key, keys = _text(key_bounds, which, longest_key)
    q += first_query * q_token + head * q_head
    k += first_key * k_token + head * k_head
    v += first_key * v_token + head * v_head
    token = HEADS * D  # of what is contiguous
    gradient += first_query * token + head * D
    out += first_query * token + head * D
    dq += first_query * token + head * D
    sums += first_query * HEADS + head
    dk += first_key * token + head * D
    dv += first_key * token + head * D
    wide = tl.arange(0, D)[None, :]
    for key in range(0, tl.maximum(keys, 1), KEYS):  # once also without keys: the queries' gradient is zero then
        at_key = key + tl.arange(0, KEYS)
        there = (at_key < keys)[:, None]
        some_k = tl.load(k + at_key[:, None] * k_token + wide, mask=there, other=0.0)
        some_v = tl.load(v + at_key[:, None] * v_token + wide, mask=there, other=0.0)
        some_dk = tl.zeros([KEYS, D], tl.float32)
        some_dv = tl.zeros([KEYS, D], tl.float32)
        first = 0
        if CAUSAL:
            first = key // QUERIES * QUERIES
        for query in range(first, queries, QUERIES):
            at_query = query + tl.arange(0, QUERIES)
            real = at_query < queries
            place = at_query[:, None] * token + wide
            some_q = tl.load(q + at_query[:, None] * q_token + wide, mask=real[:, None], other=0.0)
            back = tl.load(gradient + place, mask=real[:, None], other=0.0)
            seen = tl.load(out + place, mask=real[:, None], other=0.0)
            norm = tl.load(sums + at_query * HEADS, mask=real, other=0.0)
            scores = _scores(some_q, some_k, at_query, at_key, keys, scale, CAUSAL)
            shares = tl.exp(scores - norm[:, None])
            some_dv += tl.dot(tl.trans(shares.to(back.dtype)), back, input_precision="ieee")
            mean = tl.sum(back.to(tl.float32) * seen.to(tl.float32), 1)
            change = shares * (tl.dot(back, tl.trans(some_v), input_precision="ieee") - mean[:, None]) * scale
            change = change.to(some_q.dtype)
            some_dk += tl.dot(tl.trans(change), some_q, input_precision="ieee")
            some_dq = tl.dot(change, some_k, input_precision="ieee")
            if PARTS:
                some_dq += tl.load(dq + place, mask=real[:, None] & (key > 0), other=0.0)
            tl.store(dq + place, some_dq.to(dq.dtype.element_ty), mask=real[:, None])
        tl.store(dk + at_key[:, None] * token + wide, some_dk.to(dk.dtype.element_ty), mask=there)
        tl.store(dv + at_key[:, None] * token + wide, some_dv.to(dv.dtype.element_ty), mask=there)
        if PARTS:
            tl.debug_barrier()  # what is written is read by other threads of this program, a block of keys further on
