"""The loss's kernel for a GPU: a row of scores is read once from memory, and once more from the cache that it still
lies in, where compiled passes would read it three times. It needs triton: imported where there is a GPU alone."""

# pyright: reportMissingImports=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 4_096, 32  # scores at once, and by how many warps; by measurement on an H200
LOG2_E = tl.constexpr(1.4426950408889634)  # a processor's own exponential is that of two
HIDDEN = tl.constexpr(-1e30)  # a score that counts for nothing; finite, so that two of them have a difference


@torch.library.custom_op("regard::cross_entropy", mutates_args=("scores",))
def cross_entropy(scores: Tensor, targets: Tensor, n_tokens: int, smoothing: float) -> tuple[Tensor, Tensor]:
    """For each row of scores (n, V or more) the logarithm of its first V's sum of exponentials, and the score of its
    target; in place of the scores, the loss's gradient: zeros beyond V, and where a target is negative."""
    rows, wide = scores.shape
    norm, at_target = (torch.empty(rows, 1, device=scores.device, dtype=torch.float32) for _ in range(2))
    given = scores, targets, norm, at_target, n_tokens, wide, 1 - smoothing, smoothing / n_tokens
    with torch.cuda.device_of(scores):  # where triton launches
        _cross_entropy[(rows,)](*given, BLOCK=BLOCK, num_warps=WARPS)
    return norm, at_target


@cross_entropy.register_fake
def _(scores, targets, n_tokens, smoothing):
    norm = scores.new_empty((scores.shape[0], 1), dtype=torch.float32)
    return norm, torch.empty_like(norm)


@triton.jit
def _more(best, total, some):
    """Each lane's largest score yet and, in terms of it, its sum of exponentials, with one more score a lane. Of the
    two exponentials that this takes one is always that of zero."""
    apart = some - best
    less = tl.exp2(-tl.abs(apart))
    return tl.maximum(best, some), tl.where(apart > 0, total * less + 1.0, total + less)


@triton.jit
def _cross_entropy(scores, targets, norms, picked, n_tokens, wide, kept, spread, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    scores += row * wide
    target = tl.load(targets + row)
    real = target >= 0
    at_target = tl.load(scores + tl.maximum(target, 0)).to(tl.float32)
    whole = n_tokens // BLOCK * BLOCK  # up to here no block needs a mask
    best, total = tl.full([BLOCK], HIDDEN, tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, whole, BLOCK):
        some = tl.load(scores + start + at, eviction_policy="evict_last").to(tl.float32) * LOG2_E
        best, total = _more(best, total, some)
    place = whole + at
    some = tl.load(scores + place, mask=place < n_tokens, other=float("-inf")).to(tl.float32)
    best, total = _more(best, total, tl.maximum(some * LOG2_E, HIDDEN))
    largest = tl.max(best, 0)
    norm = largest + tl.log2(tl.sum(total * tl.exp2(best - largest), 0))
    tl.store(norms + row, norm / LOG2_E)
    tl.store(picked + row, at_target)
    shift, less = tl.where(real, norm, float("inf")), tl.where(real, spread, 0.0)
    for start in range(0, whole, BLOCK):
        some = tl.load(scores + start + at, eviction_policy="evict_first").to(tl.float32)
        tl.store(scores + start + at, (tl.exp2(some * LOG2_E - shift) - less).to(scores.dtype.element_ty))
    for start in range(whole, wide, BLOCK):
        place = start + at
        some = tl.load(scores + place, mask=place < n_tokens, other=float("-inf")).to(tl.float32)
        change = tl.where(place < n_tokens, tl.exp2(some * LOG2_E - shift) - less, 0.0)
        tl.store(scores + place, change.to(scores.dtype.element_ty), mask=place < wide)
    tl.debug_barrier()  # all have written
    # The target's entry is put, not added: in bfloat16 a probability near 1 would swallow the difference.
    its_own = tl.exp2(at_target * LOG2_E - norm) - kept - spread
    tl.store(scores + target, its_own.to(scores.dtype.element_ty), mask=real)
