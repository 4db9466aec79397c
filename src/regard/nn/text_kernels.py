"""Attention within short texts, for training on a GPU: a program has a head of a whole text at once, and gives its
gradient in one pass.

A text of some thirty tokens is too short for kernels that share one out among many programs: most of their time goes
into what surrounds the arithmetic. Texts lie one after the other, by their bounds; a longer one is worked through block
by block.

This module needs triton, and is imported by :mod:`regard.nn.attention` alone, where there is a GPU.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.kernels import matrix_size

BLOCK = 64  # tokens at most
HIDDEN = tl.constexpr(-1e30)  # a score that is not to be seen; finite, so that a row of nothing else is no NaN


@torch.library.custom_op("regard::attend_short", mutates_args=())
def attend_short(
    parts: list[Tensor],
    query_bounds: Tensor,
    key_bounds: Tensor,
    longest_query: int,
    longest_key: int,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """What queries see of keys and values, each text by itself (N, H, D), and the logarithms of their sums of
    exponentials (N, H). The three come in the parts that products made them in: one (N, 3, H, D), queries (N, 1, H, D)
    and the others (M, 2, H, D), or each by itself; and so do their gradients."""
    q, k, v = _unbound(parts)
    out, sums = _results(parts)
    with torch.cuda.device_of(q):  # where triton launches
        _forward[_programs(q, query_bounds)](
            q, k, v, out, sums, query_bounds, key_bounds, *_strides(q, k, v), scale,
            HEADS=q.shape[1], D=q.shape[2], CAUSAL=is_causal, **_sizes(longest_query, longest_key),
        )  # fmt: skip
    return out, sums


@attend_short.register_fake
def _(parts, *rest):
    return _results(parts)


@torch.library.custom_op("regard::attend_short_backward", mutates_args=())
def attend_short_backward(
    gradient: Tensor,
    out: Tensor,
    sums: Tensor,
    parts: list[Tensor],
    query_bounds: Tensor,
    key_bounds: Tensor,
    longest_query: int,
    longest_key: int,
    is_causal: bool,
    scale: float,
) -> list[Tensor]:
    """The gradients of the parts."""
    (q, k, v), found = _unbound(parts), [_like(part) for part in parts]
    dq, dk, dv = _unbound(found)
    with torch.cuda.device_of(q):
        _backward[_programs(q, query_bounds)](
            gradient.contiguous(), out, sums, q, k, v, dq, dk, dv, query_bounds, key_bounds,
            *_strides(q, k, v), *(x.stride(0) for x in (dq, dk, dv)), scale,
            HEADS=q.shape[1], D=q.shape[2], CAUSAL=is_causal, **_sizes(longest_query, longest_key),
        )  # fmt: skip
    return found


@attend_short_backward.register_fake
def _(gradient, out, sums, parts, *rest):
    return [_like(part) for part in parts]


def _keep(ctx, inputs, output) -> None:
    parts, query_bounds, key_bounds, *ctx.rest = inputs
    ctx.save_for_backward(*output, query_bounds, key_bounds, *parts)


def _gradients(ctx, gradient, _):
    out, sums, query_bounds, key_bounds, *parts = ctx.saved_tensors
    return attend_short_backward(gradient, out, sums, parts, query_bounds, key_bounds, *ctx.rest), *6 * (None,)


attend_short.register_autograd(_gradients, setup_context=_keep)


def _unbound(parts: list[Tensor]) -> list[Tensor]:
    """Queries, keys and values (N | M, H, D)."""
    return [x for part in parts for x in part.unbind(1)]


def _like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, device=x.device, dtype=x.dtype)


def _results(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    q = parts[0][:, 0]
    return _like(q), torch.empty(q.shape[:2], device=q.device, dtype=torch.float32)


def _programs(q: Tensor, bounds: Tensor) -> tuple[int]:
    """One for each head of each text."""
    return ((len(bounds) - 1) * q.shape[1],)


def _strides(*given: Tensor) -> tuple[int, ...]:
    """From a token to the next, and from a head to the next; a head's width lies together."""
    return tuple(stride for x in given for stride in x.stride()[:2])


def _sizes(longest_query: int, longest_key: int) -> dict[str, int]:
    queries, keys = (min(BLOCK, matrix_size(n)) for n in (longest_query, longest_key))
    return {"QUERIES": queries, "KEYS": keys, "num_warps": 4 if max(queries, keys) > 32 else 1, "num_stages": 1}


# ---------------------------------------------------------------------------------------
# The kernels


@triton.jit
def _text(bounds, which):
    """Where a text begins, and how many tokens it has."""
    begin = tl.load(bounds + which)
    return begin.to(tl.int64), tl.load(bounds + which + 1) - begin


@triton.jit
def _tokens(x, at, stride, n, D: tl.constexpr):
    """Some tokens of a text of n; zeros after its end."""
    return tl.load(x + at[:, None] * stride + tl.arange(0, D)[None, :], mask=(at < n)[:, None], other=0.0)


@triton.jit
def _store(x, at, stride, n, given, D: tl.constexpr):
    place = x + at[:, None] * stride + tl.arange(0, D)[None, :]
    tl.store(place, given.to(x.dtype.element_ty), mask=(at < n)[:, None])


@triton.jit
def _scores(q, k, at_query, at_key, keys, scale, CAUSAL: tl.constexpr):
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    seen = at_key[None, :] < keys
    if CAUSAL:
        seen = seen & (at_key[None, :] <= at_query[:, None])
    return tl.where(seen, scores, HIDDEN)


@triton.jit
def _forward(
    q, k, v, out, sums, query_bounds, key_bounds, q_token, q_head, k_token, k_head, v_token, v_head, scale,
    HEADS: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    which, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    first_query, queries = _text(query_bounds, which)
    first_key, keys = _text(key_bounds, which)
    q += first_query * q_token + head * q_head
    k += first_key * k_token + head * k_head
    v += first_key * v_token + head * v_head
    out += (first_query * HEADS + head) * D
    sums += first_query * HEADS + head
    for query in range(0, queries, QUERIES):
        at_query = query + tl.arange(0, QUERIES)
        some_q = _tokens(q, at_query, q_token, queries, D)
        best = tl.full([QUERIES], HIDDEN, tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        seen = tl.zeros([QUERIES, D], tl.float32)
        last = keys
        if CAUSAL:
            last = tl.minimum(keys, query + QUERIES)
        for key in range(0, last, KEYS):
            at_key = key + tl.arange(0, KEYS)
            some_v = _tokens(v, at_key, v_token, keys, D)
            scores = _scores(some_q, _tokens(k, at_key, k_token, keys, D), at_query, at_key, keys, scale, CAUSAL)
            better = tl.maximum(best, tl.max(scores, 1))
            shares = tl.exp(scores - better[:, None])
            less = tl.exp(best - better)
            total = total * less + tl.sum(shares, 1)
            seen = seen * less[:, None] + tl.dot(shares.to(some_v.dtype), some_v, input_precision="ieee")
            best = better
        total = tl.where(total > 0, total, 1.0)  # a text without keys
        _store(out, at_query, HEADS * D, queries, seen / total[:, None], D)
        tl.store(sums + at_query * HEADS, best + tl.log(total), mask=at_query < queries)


@triton.jit
def _changes(q, k, v, back, seen, norm, at_query, at_key, keys, scale, CAUSAL: tl.constexpr):
    """The shares of a block, and the gradient of its scores before they were scaled."""
    shares = tl.exp(_scores(q, k, at_query, at_key, keys, scale, CAUSAL) - norm[:, None])
    mean = tl.sum(back.to(tl.float32) * seen.to(tl.float32), 1)
    change = shares * (tl.dot(back, tl.trans(v), input_precision="ieee") - mean[:, None]) * scale
    return shares.to(q.dtype), change.to(q.dtype)


@triton.jit
def _backward(
    gradient, out, sums, q, k, v, dq, dk, dv, query_bounds, key_bounds,
    q_token, q_head, k_token, k_head, v_token, v_head, dq_token, dk_token, dv_token, scale,
    HEADS: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    which, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    first_query, queries = _text(query_bounds, which)
    first_key, keys = _text(key_bounds, which)
    q += first_query * q_token + head * q_head
    k += first_key * k_token + head * k_head
    v += first_key * v_token + head * v_head
    token = HEADS * D  # from one to the next of what was given out
    gradient += first_query * token + head * D
    out += first_query * token + head * D
    dq += first_query * dq_token + head * D
    dk += first_key * dk_token + head * D
    dv += first_key * dv_token + head * D
    sums += first_query * HEADS + head
    at_query, at_key = tl.arange(0, QUERIES), tl.arange(0, KEYS)
    if (queries <= QUERIES) & (keys <= KEYS):  # a block is the whole of it
        some_q, some_k = _tokens(q, at_query, q_token, queries, D), _tokens(k, at_key, k_token, keys, D)
        back, seen = _tokens(gradient, at_query, token, queries, D), _tokens(out, at_query, token, queries, D)
        norm = tl.load(sums + at_query * HEADS, mask=at_query < queries, other=0.0)
        some_v = _tokens(v, at_key, v_token, keys, D)
        shares, change = _changes(some_q, some_k, some_v, back, seen, norm, at_query, at_key, keys, scale, CAUSAL)
        _store(dv, at_key, dv_token, keys, tl.dot(tl.trans(shares), back, input_precision="ieee"), D)
        _store(dk, at_key, dk_token, keys, tl.dot(tl.trans(change), some_q, input_precision="ieee"), D)
        _store(dq, at_query, dq_token, queries, tl.dot(change, some_k, input_precision="ieee"), D)
    else:
        for key in range(0, keys, KEYS):
            here = key + at_key
            some_k, some_v = _tokens(k, here, k_token, keys, D), _tokens(v, here, v_token, keys, D)
            some_dk, some_dv = tl.zeros([KEYS, D], tl.float32), tl.zeros([KEYS, D], tl.float32)
            first = 0
            if CAUSAL:
                first = key // QUERIES * QUERIES
            for query in range(first, queries, QUERIES):
                there = query + at_query
                some_q = _tokens(q, there, q_token, queries, D)
                back, seen = _tokens(gradient, there, token, queries, D), _tokens(out, there, token, queries, D)
                norm = tl.load(sums + there * HEADS, mask=there < queries, other=0.0)
                shares, change = _changes(some_q, some_k, some_v, back, seen, norm, there, here, keys, scale, CAUSAL)
                some_dv += tl.dot(tl.trans(shares), back, input_precision="ieee")
                some_dk += tl.dot(tl.trans(change), some_q, input_precision="ieee")
            _store(dv, here, dv_token, keys, some_dv, D)
            _store(dk, here, dk_token, keys, some_dk, D)
        for query in range(0, queries, QUERIES):
            there = query + at_query
            some_q = _tokens(q, there, q_token, queries, D)
            back, seen = _tokens(gradient, there, token, queries, D), _tokens(out, there, token, queries, D)
            norm = tl.load(sums + there * HEADS, mask=there < queries, other=0.0)
            some_dq = tl.zeros([QUERIES, D], tl.float32)
            last = keys
            if CAUSAL:
                last = tl.minimum(keys, query + QUERIES)
            for key in range(0, last, KEYS):
                here = key + at_key
                some_k, some_v = _tokens(k, here, k_token, keys, D), _tokens(v, here, v_token, keys, D)
                _, change = _changes(some_q, some_k, some_v, back, seen, norm, there, here, keys, scale, CAUSAL)
                some_dq += tl.dot(change, some_k, input_precision="ieee")
            _store(dq, there, dq_token, queries, some_dq, D)
