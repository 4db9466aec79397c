"""Kernels for a step of decoding on a GPU. A step of a few rows waits for launches and for weights, not for arithmetic:
so each of these does a product with all that stands around it, or the whole of an attention.

Weights do not depend on what was computed before. On cards that can (Hopper on), a kernel starts while the one before
it still runs, asks for its weights, and waits only then.

This module needs triton, and is imported by :mod:`regard.nn.steps` alone, where there is a GPU.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from regard.nn.cache import Cache
from regard.nn.norms import LayerNorm, RMSNorm
from regard.nn.products import followed

SOME = 128  # rows up to which these kernels are faster than the library's
# By measurement on an H200 (docs/performance.md).
ONE = 16_384  # weights that a program for one row holds at most: some columns, each whole
PROGRAMS = 4  # for one row, at least, on each processor
ONE_WARPS = 4
ROWS, COLUMNS = 64, 16  # of a program for some rows
PART = 128  # of the width, at once
STAGES = 4
KEYS, FEW_KEYS = 64, 128  # at once, by many programs or few


# ---------------------------------------------------------------------------------------
# Products


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: nn.Module | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """x, normed first if there is a norm, times a weight (N, K); then bias, activation, and what it is added to."""
    rows, k = x.shape
    n, wide = weight.shape[0], triton.next_power_of_2(k)
    one = rows == 1 and wide <= ONE
    some = not one and rows <= SOME and x.dtype != torch.float32 and k % 64 == 0
    if norm is not None and not one:
        x, norm = add_norm(x, None, norm), None
    if not one and not some:
        return _library(x, weight, bias, activation, residual, dtype)
    out = torch.empty(rows, n, device=x.device, dtype=dtype or x.dtype)
    scale, shift, eps, kind = _parts(norm)
    given = x, weight, bias, residual, out
    what = {"BIAS": bias is not None, "ACTIVATION": activation or "", "RESIDUAL": residual is not None}
    if one:
        columns = max(1, min(ONE // wide, triton.next_power_of_2(n // (PROGRAMS * _processors(x.device)) + 1)))
        _multiply_one[(triton.cdiv(n, columns),)](
            *given,
            scale,
            shift,
            n,
            k,
            eps,
            **what,
            NORM=kind,
            COLUMNS=columns,
            WIDE=wide,
            num_warps=ONE_WARPS,
            **_early(x),
        )
    else:
        columns = COLUMNS if n < 64 * _processors(x.device) else 64
        high = min(ROWS, matrix_size(rows))
        _multiply_some[(triton.cdiv(n, columns), triton.cdiv(rows, high))](
            *given, rows, n, k, **what, ROWS=high, COLUMNS=columns,
            PART=PART if k % PART == 0 else 64, num_warps=4, num_stages=STAGES, **_early(x),
        )  # fmt: skip
    return out


def _library(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, residual, dtype) -> Tensor:
    """The same for many rows, which the library's own kernels are made for."""
    if dtype not in (None, x.dtype) and bias is None and x.is_cuda:
        return torch.mm(x, weight.T, out_dtype=dtype)  # a sum is not rounded before it is widened
    if activation == "relu" and bias is not None and residual is None:
        return torch.ops.aten._addmm_activation(bias, x, weight.T)
    return followed(F.linear(x, weight, bias), activation, residual, dtype)


@triton.jit
def activated(x, KIND: tl.constexpr):
    if KIND == "relu":
        x = tl.maximum(x, 0.0)
    elif KIND == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == "gelu_quick":
        x = x * tl.sigmoid(1.702 * x)
    elif KIND == "silu":
        x = x * tl.sigmoid(x)
    return x


@triton.jit
def _normed(x, scale, shift, at, inside, k, eps, KIND: tl.constexpr):
    """A row of k real numbers, in float32."""
    if KIND == "layer":
        x = tl.where(inside, x - tl.sum(x, 0) / k, 0.0)
        x = x * tl.rsqrt(tl.sum(x * x, 0) / k + eps)
        x = x * tl.load(scale + at, mask=inside, other=0.0).to(tl.float32)
        x = x + tl.load(shift + at, mask=inside, other=0.0).to(tl.float32)
    elif KIND == "rms":
        x = x * tl.rsqrt(tl.sum(x * x, 0) / k + eps)
        x = x * tl.load(scale + at, mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit
def _multiply_one(
    x, weight, bias, residual, out, scale, shift, n, k, eps,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, RESIDUAL: tl.constexpr, NORM: tl.constexpr,
    COLUMNS: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One row: each program has some columns, whose weights are on their way before there is anything to multiply."""
    if EARLY:
        gdc_launch_dependents()
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    at = tl.arange(0, WIDE)
    there, inside = column < n, at < k
    weights = tl.load(
        weight + column[:, None].to(tl.int64) * k + at[None, :], mask=there[:, None] & inside[None, :], other=0.0
    )
    if EARLY:
        gdc_wait()
    row = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    row = _normed(row, scale, shift, at, inside, k, eps, NORM)
    row = row.to(x.dtype.element_ty).to(tl.float32)  # as a norm of its own would write it down
    total = tl.sum(weights.to(tl.float32) * row[None, :], 1)
    if BIAS:
        total += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)
    total = activated(total, ACTIVATION)
    if RESIDUAL:
        total += tl.load(residual + column, mask=there, other=0.0).to(tl.float32)
    tl.store(out + column, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def _multiply_some(
    x, weight, bias, residual, out, rows, n, k,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PART: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Some rows and columns, part by part of the width."""
    if EARLY:
        gdc_launch_dependents()
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    at = tl.arange(0, PART)
    here, there = row < rows, column < n
    lefts = x + row[:, None] * k + at[None, :]
    rights = weight + column[None, :].to(tl.int64) * k + at[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    if EARLY:
        gdc_wait()
    for _ in range(0, k, PART):
        left = tl.load(lefts, mask=here[:, None], other=0.0)
        right = tl.load(rights, mask=there[None, :], other=0.0)
        total = tl.dot(left, right, total)
        lefts += PART
        rights += PART
    if BIAS:
        total += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[None, :]
    total = activated(total, ACTIVATION)
    places, both = row[:, None] * n + column[None, :], here[:, None] & there[None, :]
    if RESIDUAL:
        total += tl.load(residual + places, mask=both, other=0.0).to(tl.float32)
    tl.store(out + places, total.to(out.dtype.element_ty), mask=both)


# ---------------------------------------------------------------------------------------
# Norms


def add_norm(x: Tensor, branch: Tensor | None, norm: nn.Module) -> Tensor:
    """norm(x + branch), each row by a program."""
    scale, shift, eps, kind = _parts(norm)
    rows, k = x.shape
    out = torch.empty_like(x)
    wide = triton.next_power_of_2(k)
    _add_norm[(rows,)](
        x, branch, out, scale, shift, k, eps, BRANCH=branch is not None, NORM=kind, WIDE=wide,
        num_warps=min(16, max(1, wide // 256)), **_early(x),
    )  # fmt: skip
    return out


@triton.jit
def _add_norm(
    x, branch, out, scale, shift, k, eps,
    BRANCH: tl.constexpr, NORM: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row, at = tl.program_id(0), tl.arange(0, WIDE)
    inside = at < k
    sum = tl.load(x + row * k + at, mask=inside, other=0.0).to(tl.float32)
    if BRANCH:
        sum += tl.load(branch + row * k + at, mask=inside, other=0.0).to(tl.float32)
        sum = sum.to(out.dtype.element_ty).to(tl.float32)  # as it is written down elsewhere
    sum = _normed(sum, scale, shift, at, inside, k, eps, NORM)
    tl.store(out + row * k + at, sum.to(out.dtype.element_ty), mask=inside)


def _parts(norm: nn.Module | None):
    """Scale, shift, epsilon and kind of a norm."""
    if norm is None:
        return None, None, 0.0, ""
    assert isinstance(norm, LayerNorm | RMSNorm)
    return norm.weight, getattr(norm, "bias", None), norm.eps, "layer" if isinstance(norm, LayerNorm) else "rms"


# ---------------------------------------------------------------------------------------
# Attention


def past(cache: Cache, slots: Tensor) -> dict[str, Tensor | None]:
    """Where this step's keys go, and which of those before each way may look at."""
    return {"position": cache.position, "seen": cache.visible(slots, cache.k.shape[3])}


def look(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    heads: int,
    new: tuple[Tensor, Tensor] | None = None,
    position: Tensor | None = None,
    seen: Tensor | None = None,
    bias: Tensor | None = None,
    alive: Tensor | None = None,
) -> Tensor:
    """Attend from the ways of each row, q (B N, heads D), to keys k (B, G, S, D) and values v (B, G, S, E).

    With ``new`` keys and values of the ways themselves, (B N, G D) and (B N, G E), these are put into the slots after
    ``position``, and looked at beside those before it: by each way at what it has ``seen`` (B, N, S), or all. Without,
    at all keys that ``bias`` (B, 1, 1, S) allows, or as it adds; rows that are not ``alive`` (B, 1, 1, 1) get zeros.
    """
    (b, groups, _, d), e = k.shape, v.shape[3]
    ways, shared = q.shape[0] // b, heads // groups
    out = torch.empty(b * ways, heads * e, device=q.device, dtype=q.dtype)
    new_k, new_v = new or (None, None)
    few = b * groups <= _processors(q.device)
    _look[(b, groups)](
        q, new_k, new_v, k, v, position, seen, bias, alive, out, scale, k.shape[2],
        q.stride(0), 0 if new_k is None else new_k.stride(0), *k.stride()[:3], *v.stride()[:3],
        0 if seen is None else seen.stride(1), 0 if bias is None or bias.shape[0] == 1 else bias.stride(0),
        0 if alive is None or alive.shape[0] == 1 else 1,
        OWN=new is not None, SEEN=seen is not None, ALIVE=alive is not None,
        BIAS="" if bias is None else "may" if bias.dtype == torch.bool else "added",
        WAYS=ways, SHARED=shared, D=d, E=e, WIDE=matrix_size(d), BROAD=matrix_size(e),
        QUERIES=matrix_size(ways * shared), KEYS=FEW_KEYS if few else KEYS, num_warps=4,
        **_early(q),
    )  # fmt: skip
    return out


@triton.jit
def _look(
    q, new_k, new_v, k, v, position, seen, bias, alive, out, scale, slots,
    q_row, new_row, k_row, k_head, k_slot, v_row, v_head, v_slot, seen_way, bias_row, alive_row,
    OWN: tl.constexpr, SEEN: tl.constexpr, BIAS: tl.constexpr, ALIVE: tl.constexpr,
    WAYS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    WIDE: tl.constexpr, BROAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A row and the heads that share keys: all of their queries are looked with at once."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    query, key = tl.arange(0, QUERIES), tl.arange(0, KEYS)
    at, to = tl.arange(0, WIDE), tl.arange(0, BROAD)
    way, head = query // SHARED, group * SHARED + query % SHARED
    real = query < WAYS * SHARED
    token = row * WAYS + way
    queries = tl.load(
        q + token[:, None] * q_row + head[:, None] * D + at[None, :], mask=real[:, None] & (at < D)[None, :], other=0.0
    )
    keys, values = k + row * k_row + group * k_head, v + row * v_row + group * v_head
    end = slots
    best = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    sum = tl.zeros((QUERIES, BROAD), tl.float32)
    if OWN:  # of the newest keys and values a way sees its own alone
        end = (tl.load(position + row) * WAYS).to(tl.int32)
        inside, within = real[:, None] & (at < D)[None, :], real[:, None] & (to < E)[None, :]
        own = tl.load(new_k + token[:, None] * new_row + group * D + at[None, :], mask=inside, other=0.0)
        mine = tl.load(new_v + token[:, None] * new_row + group * E + to[None, :], mask=within, other=0.0)
        first = (query % SHARED == 0)[:, None]
        place = (end + way)[:, None]
        tl.store(keys + place * k_slot + at[None, :], own, mask=inside & first)
        tl.store(values + place * v_slot + to[None, :], mine, mask=within & first)
        best = tl.sum(queries.to(tl.float32) * own.to(tl.float32), 1) * scale
        total += 1.0
        sum += mine.to(tl.float32)
    for start in range(0, end, KEYS):
        slot = start + key
        there = slot < end
        some = tl.load(keys + slot[:, None] * k_slot + at[None, :], mask=there[:, None] & (at < D)[None, :], other=0.0)
        scores = tl.dot(queries, tl.trans(some), input_precision="ieee") * scale
        may = there[None, :] & real[:, None]
        if SEEN:
            may &= tl.load(seen + token[:, None] * seen_way + slot[None, :], mask=may, other=0) != 0
        if BIAS == "may":
            may &= (tl.load(bias + row * bias_row + slot, mask=there, other=0) != 0)[None, :]
        elif BIAS == "added":
            scores += tl.load(bias + row * bias_row + slot, mask=there, other=0.0).to(tl.float32)[None, :]
        scores = tl.where(may, scores, float("-inf"))
        better = tl.maximum(best, tl.max(scores, 1))
        finite = tl.where(better == float("-inf"), 0.0, better)  # nothing to see yet
        shares, less = tl.exp(scores - finite[:, None]), tl.exp(best - finite)
        some = tl.load(
            values + slot[:, None] * v_slot + to[None, :], mask=there[:, None] & (to < E)[None, :], other=0.0
        )
        sum = sum * less[:, None] + tl.dot(shares.to(some.dtype), some, input_precision="ieee")
        total = total * less + tl.sum(shares, 1)
        best = better
    sum = sum / tl.where(total == 0.0, 1.0, total)[:, None]
    if ALIVE:
        sum = tl.where(tl.load(alive + row * alive_row) != 0, sum, 0.0)
    tl.store(
        out + token[:, None] * (tl.num_programs(1) * SHARED * E) + head[:, None] * E + to[None, :],
        sum.to(out.dtype.element_ty), mask=real[:, None] & (to < E)[None, :],
    )  # fmt: skip


# ---------------------------------------------------------------------------------------
# The card


def _early(x: Tensor) -> dict[str, bool]:
    """Whether kernels start before the one before them has ended."""
    can = x.is_cuda and torch.cuda.get_device_capability(x.device)[0] >= 9
    return {"EARLY": True, "launch_pdl": True} if can else {"EARLY": False}


def matrix_size(n: int) -> int:
    """A size that matrix units take: a power of two, 16 at least."""
    return max(16, triton.next_power_of_2(n))


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
