"""Linear layers as training has them on a GPU: each with what stands beside its product.

Between two products a compiled graph passes over memory more often than it must: for the activation, for the
activation's gradient, again for the bias's, which sums it up, and where a layer's output was cut into queries, keys and
values, to put their gradients together and to sum those. Here ReLU is a part of the product, and each gradient is made
and summed up in one pass. Elsewhere these are the layers themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TypeGuard

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.nn import cublaslt
from regard.nn.linear import HALF, Linear, affine, autocast_dtype, is_aligned, is_compiled, product

HAS_TRITON = find_spec("triton") is not None
COLUMNS = 64  # at least, that a kernel takes together


def gelu_quick(x: Tensor) -> Tensor:
    """CLIP's approximation, x sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_quick": gelu_quick,
    "silu": F.silu,
    "swiglu": F.silu,
}


def activated(layer: nn.Module, x: Float[Tensor, "*N K"], activation: str | None) -> Float[Tensor, "*N M"]:
    """A layer's output after its activation, if there is one.

    >>> layer = Linear(3, 5)
    >>> bool((activated(layer, torch.ones(2, 3), "relu") >= 0).all())
    True
    """
    if activation is None:
        return layer(x)
    if not _fits(layer, x):
        return ACTIVATIONS[activation](layer(x))
    out = _Activated.apply(*_operands(layer, x), activation)
    return out.unflatten(0, x.shape[:-1])


def parted(layer: nn.Module, x: Float[Tensor, "*N K"], widths: Sequence[int]) -> tuple[Tensor, ...]:
    """A layer's output in two or three parts: queries, keys and values.

    >>> [part.shape[1] for part in parted(Linear(3, 11), torch.ones(2, 3), [5, 4, 2])]
    [5, 4, 2]
    """
    if not _fits(layer, x) or any(width % COLUMNS for width in widths):
        return layer(x).split(widths, dim=-1)
    parts = _Parted.apply(*_operands(layer, x), list(widths))
    return tuple(part.unflatten(0, x.shape[:-1]) for part in parts)


def followed(
    out: Float[Tensor, "*N M"], activation: str | None, residual: Tensor | None, dtype: torch.dtype | None
) -> Float[Tensor, "*N M"]:
    """A product's output, which is taken over, with all that follows: an activation, what it is added to, a dtype.

    >>> followed(torch.tensor([-1.0, 2.0]), "relu", torch.ones(2), torch.float64)
    tensor([1., 3.], dtype=torch.float64)
    """
    out = out if activation is None else ACTIVATIONS[activation](out)
    out = out if residual is None else out.add_(residual)
    return out if dtype is None else out.to(dtype)


def trains_by_kernels(x: Tensor) -> bool:
    """Whether x is trained on where there are kernels for that.

    >>> trains_by_kernels(torch.ones(3))
    False
    """
    return HAS_TRITON and x.is_cuda and torch.is_grad_enabled()


def _fits(layer: nn.Module, x: Tensor) -> TypeGuard[Linear]:
    """Whether a layer is trained in half precision on a GPU, and is what it seems: no adapter, no whole numbers."""
    if not trains_by_kernels(x) or type(layer) is not Linear or (autocast_dtype(x) or x.dtype) not in HALF:
        return False
    return layer.bias is not None and layer.out_features % COLUMNS == 0 and is_aligned(layer.weight)


def _operands(layer: Linear, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows as autocast would have them; weight and bias as they are."""
    return x.flatten(0, -2).to(autocast_dtype(x) or x.dtype), layer.weight, layer.bias


class _Activated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, activation: str):
        from regard.nn.training_kernels import activate, linear_relu

        ctx.dtype, weight, bias = weight.dtype, weight.to(x.dtype), bias.to(x.dtype)
        if activation == "relu":  # whose gradient its output tells
            kept = out = linear_relu(x, weight, bias)
        elif activation == "gelu_tanh" and is_compiled(x):
            out, kept = cublaslt.linear_gelu(x, weight, bias)
        else:
            kept = affine(x, weight, bias)
            out = activate(kept, activation)
        ctx.save_for_backward(x, weight, kept)
        ctx.activation = activation
        return out

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[override]
        from regard.nn.training_kernels import activation_gradient

        kept = ctx.saved_tensors[2]
        return *_gradients(ctx, *activation_gradient(kept, gradient, ctx.activation)), None


class _Parted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, widths: list[int]):
        ctx.dtype, weight, bias = weight.dtype, weight.to(x.dtype), bias.to(x.dtype)
        ctx.save_for_backward(x, weight)
        return affine(x, weight, bias).split(widths, dim=1)

    @staticmethod
    def backward(ctx, *gradients):  # type: ignore[override]
        from regard.nn.training_kernels import put_together

        return *_gradients(ctx, *put_together(list(gradients))), None


def _gradients(ctx, change: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of rows, weight and bias, from that of what they make and the sum of its rows."""
    x, weight = ctx.saved_tensors[:2]
    return product(change, weight), product(change.t(), x, dtype=ctx.dtype), total.to(ctx.dtype)
