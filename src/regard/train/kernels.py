"""The loss's kernel for a GPU: a row of scores is read once from memory, and once more from the cache that it still
lies in, where compiled passes would read it three times. It needs triton: imported where there is a GPU alone."""

# pyright: reportMissingImports=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 4_096, 8  # scores at once, and by how many warps


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
def _cross_entropy(scores, targets, norms, picked, n_tokens, wide, kept, spread, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    scores += row * wide
    target = tl.load(targets + row)
    real = target >= 0
    at_target = tl.load(scores + tl.maximum(target, 0)).to(tl.float32)
    some = tl.load(scores + at, mask=at < n_tokens, other=float("-inf")).to(tl.float32)
    best = tl.max(some, 0)
    total = tl.exp(some - best)
    for start in range(BLOCK, n_tokens, BLOCK):
        some = tl.load(scores + start + at, mask=start + at < n_tokens, other=float("-inf")).to(tl.float32)
        better = tl.maximum(best, tl.max(some, 0))
        total = total * tl.exp(best - better) + tl.exp(some - better)
        best = better
    norm = best + tl.log(tl.sum(total, 0))
    tl.store(norms + row, norm)
    tl.store(picked + row, at_target)
    # The target's entry is put, not added: in bfloat16 a probability near 1 would swallow the difference.
    its_own = tl.exp(at_target - norm) - kept - spread
    for start in range(0, wide, BLOCK):
        place = start + at
        some = tl.load(scores + place, mask=place < n_tokens, other=float("-inf")).to(tl.float32)
        change = tl.where(place == target, its_own, tl.exp(some - norm) - spread)
        change = tl.where(real & (place < n_tokens), change, 0.0)
        tl.store(scores + place, change.to(scores.dtype.element_ty), mask=place < wide)
