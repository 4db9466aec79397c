"""LayerNorm (Ba 2016) and RMSNorm (Zhang 2019): the width that comes in goes out.

Autocast would hand on float32, and the residual stream of a post-norm stack would stay there.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.config import Stack
from regard.nn.products import COLUMNS, HALF, trains_by_kernels

WIDEST = 1_024  # of a row that a kernel holds whole, and was measured with


class LayerNorm(nn.LayerNorm):
    """Zero mean and unit variance, then a learned scale and shift."""

    def forward(self, input: Float[Tensor, "... C"]) -> Float[Tensor, "... C"]:
        if _fits(input):
            return _Normed.apply(input, self.weight, self.bias, self.eps)
        return super().forward(input).to(input.dtype)


class RMSNorm(nn.RMSNorm):
    """Unit mean square, then a learned scale."""

    def forward(self, x: Float[Tensor, "... C"]) -> Float[Tensor, "... C"]:
        assert self.weight is not None
        if _fits(x) and self.eps is not None:
            return _Normed.apply(x, self.weight, None, self.eps)
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps).to(x.dtype)


def normed_beside(norm: LayerNorm | RMSNorm, x: Float[Tensor, "... C"]) -> tuple[Tensor, Tensor]:
    """x, as it goes past a norm, and its norm. In training their gradients come together, and are added as they are
    made.

    >>> x, normed = normed_beside(LayerNorm(3), torch.eye(3))
    >>> bool((x == torch.eye(3)).all()), normed.shape
    (True, torch.Size([3, 3]))
    """
    if not _fits(x) or x.shape[-1] > WIDEST or norm.eps is None:
        return x, norm(x)
    return _Beside.apply(x, norm.weight, getattr(norm, "bias", None), norm.eps)


def make_norm(config: Stack, d: int | None = None) -> LayerNorm | RMSNorm:
    """The stack's kind of norm, d_model wide unless told otherwise."""
    d = config.d_model if d is None else d
    return RMSNorm(d, config.norm_eps) if config.norm == "rms" else LayerNorm(d, config.norm_eps)


def _fits(x: Tensor) -> bool:
    """Whether a graph for a GPU is compiled that trains in half precision."""
    return trains_by_kernels(x) and torch.compiler.is_compiling() and x.dtype in HALF and x.shape[-1] % COLUMNS == 0


class _Normed(torch.autograd.Function):
    """A norm written out, for the compiler to make it a part of what stands around it; but for the gradients of scale
    and shift. They are sums over rows, of which a compiler that just summed over columns makes poor kernels."""

    @staticmethod
    def forward(ctx, x, scale, shift, eps: float):
        return _normed(ctx, x, scale, shift, eps)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[override]
        from regard.nn.training_kernels import norm_sums

        x, mean, rate, scale = ctx.saved_tensors
        rows = gradient.flatten(0, -2), x.flatten(0, -2)
        sums = norm_sums(*rows, mean.flatten(), rate.flatten(), ctx.shifted)
        back = gradient.float() * scale
        normed = (x.float() - mean if ctx.shifted else x.float()) * rate
        change = back - normed * (back * normed).mean(-1, keepdim=True)
        change = change - back.mean(-1, keepdim=True) if ctx.shifted else change
        return (change * rate).to(x.dtype), sums[0], sums[1] if ctx.shifted else None, None


class _Beside(torch.autograd.Function):
    """The same with what goes past it: there a compiler has less to make it a part of, and a kernel makes all of it. It
    is given x as it is: of a view of it the compiler made the sum before the norm a second time."""

    @staticmethod
    def forward(ctx, x, scale, shift, eps: float):
        return x.view_as(x), _normed(ctx, x, scale, shift, eps)

    @staticmethod
    def backward(ctx, past, gradient):  # type: ignore[override]
        from regard.nn.training_kernels import norm_gradient

        change, sums = norm_gradient(gradient, *ctx.saved_tensors, past, ctx.shifted)
        return change, sums[0], sums[1] if ctx.shifted else None, None


def _normed(ctx, x: Tensor, scale: Tensor, shift: Tensor | None, eps: float) -> Tensor:
    wide = x.float()
    if shift is not None:
        normed, mean, rate = torch.native_layer_norm(wide, wide.shape[-1:], scale, shift, eps)
    else:
        mean = rate = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        normed = wide * rate * scale
    ctx.save_for_backward(x, mean, rate, scale)
    ctx.shifted = shift is not None
    return normed.to(x.dtype)
