"""What :mod:`regard.nn.kernels` does for a step of decoding on a GPU, on a CPU, by torch's operations. For one row most
of them take longer to call than to run: so here are few, and nothing is asked that was known before the step.

It is imported by :mod:`regard.nn.steps` alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.attention import attend
from regard.nn.cache import Cache, put
from regard.nn.masks import Layout, Lowered, lower_densely, self_mask, side_by_side
from regard.nn.norms import LayerNorm
from regard.nn.products import followed


def linear(
    x: Tensor,
    weight: Tensor | nn.Module,
    bias: Tensor | None = None,
    *,
    norm: nn.Module | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """x, normed first if there is a norm, times a weight (N, K) or by a packed layer; then bias, activation, and what
    it is added to."""
    x = x if norm is None else _normed(x, norm)
    out = F.linear(x, weight, bias) if isinstance(weight, Tensor) else weight(x)
    return followed(out, activation, residual, dtype)


def add_norm(x: Tensor, branch: Tensor, norm: nn.Module) -> Tensor:
    """norm(x + branch), which is taken over."""
    return _normed(branch.add_(x), norm)


def _normed(x: Tensor, norm: nn.Module) -> Tensor:
    if isinstance(norm, LayerNorm):
        return torch.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return norm(x)


def past(cache: Cache, slots: Tensor) -> dict[str, Any]:
    """Where this step's keys go, how many there are then, and which of them each way may look at."""
    t, span, place = slots.shape[1], cache.span(slots.shape[1]), cache.place(slots)
    bias = cache.visible(slots, span)
    if bias is None:
        mask = side_by_side(self_mask(Layout(), causal=True, slots=slots), place, span)
        bias = lower_densely(mask, t, span, device=slots.device, dtype=cache.k.dtype).bias
    else:
        bias = bias[:, None]
    return {"slots": slots, "place": place, "span": span, "bias": bias}


def look(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    heads: int,
    new: tuple[Tensor, Tensor] | None = None,
    slots: Tensor | None = None,
    place: slice | None = None,
    span: int | None = None,
    bias: Tensor | None = None,
    alive: Tensor | None = None,
) -> Tensor:
    """Attend from the ways of each row, q (B N, heads D), to keys k (B, G, S, D) and values v (B, G, S, E); to those
    before and with ``new`` ones, (B N, G D) and (B N, G E), which are put among them, as :func:`past` says."""
    b, groups = k.shape[:2]
    ways = q.shape[0] // b
    if new is not None and slots is not None:
        for kept, given in zip((k, v), new, strict=True):
            put(kept, given.view(b, ways, groups, -1).transpose(1, 2), slots, place)
        k, v = k[:, :, :span], v[:, :, :span]
    queries = q.view(b, ways, heads, -1).transpose(1, 2)
    out = attend(queries, k, v, Lowered(bias=bias, alive=alive), scale=scale)  # (B, H, N, E)
    return out.transpose(1, 2).reshape(q.shape[0], -1)
