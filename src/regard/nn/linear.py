"""The linear layer, and products of matrices, as a machine does them best.

torch multiplies float32 by MKL, which leaves AVX-512 to the processors of its maker: AMD's, which have all of it since
Zen 5, do half of what they can (two cores: 230 of 520 GFLOP/s). oneDNN, by which torch multiplies bfloat16, uses it, so
there products of some size go to it, gradients included. oneDNN keeps half a megabyte for every shape that it meets,
and every batch of text has another: rows of zeros make them few.

On a GPU a compiled training in half precision has cuBLASLt multiply (:mod:`regard.nn.cublaslt`), and the gradients of
weights come in the weights' own precision. Elsewhere all of these are torch's own.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.nn import cublaslt

HALF = (torch.bfloat16, torch.float16)
FEWEST = 2**22  # multiplications of a product, from which oneDNN is the faster, its call included
ROWS = 128  # a multiple of which it is given,
MANY = 4 * ROWS  # from so many on: few rows would cost as much as those that fill them up
ZEN_5 = 26  # AMD's family


class Linear(nn.Linear):
    """torch's linear layer, by :func:`linear`.

    >>> layer, x = Linear(3, 5), torch.ones(2, 3)
    >>> torch.allclose(layer(x), F.linear(x, layer.weight, layer.bias))
    True
    """

    def forward(self, input: Float[Tensor, "*N K"]) -> Float[Tensor, "*N M"]:
        return linear(input, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*N K"], weight: Float[Tensor, "M K"], bias: Float[Tensor, " M"] | None = None
) -> Float[Tensor, "*N M"]:
    """``x @ weight.T + bias``, as autocast would have it.

    >>> linear(torch.ones(2, 3), torch.ones(5, 3)).shape
    torch.Size([2, 5])
    """
    dtype = autocast_dtype(x) or x.dtype
    on_cpu = _is_large(x, weight.t()) and dtype in by_onednn()
    if not on_cpu and not (is_compiled(x, dtype) and is_aligned(weight)):
        return F.linear(x, weight, bias)
    out = _Linear.apply(x.reshape(-1, x.shape[-1]).to(dtype), weight, bias)
    return out.view(*x.shape[:-1], len(weight))


class _Linear(torch.autograd.Function):
    """Rows in the precision that is computed in; weight and bias in their own, and so their gradients."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        weight, ctx.dtype = weight.to(x.dtype), weight.dtype
        bias = None if bias is None else bias.to(x.dtype)
        ctx.save_for_backward(x, weight)  # as they are: others may keep x too
        multiply = _onednn if x.dtype == torch.float32 else affine  # torch gives bfloat16 to oneDNN by itself
        return multiply(filled_up(x), weight, bias)[: len(x)]

    @staticmethod
    @once_differentiable
    def backward(ctx, change):  # type: ignore[override]
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        d_bias = change.sum(0, dtype=ctx.dtype) if wants_bias else None
        change = filled_up(change)
        d_x = product(change, weight)[: len(x)] if wants_x else None
        return d_x, product(change.t(), filled_up(x), dtype=ctx.dtype) if wants_weight else None, d_bias


def affine(x: Float[Tensor, "N K"], weight: Float[Tensor, "M K"], bias: Float[Tensor, " M"] | None) -> Tensor:
    """``x @ weight.T + bias``, of which no gradient is asked, and all in one precision.

    >>> affine(torch.ones(2, 3), torch.ones(5, 3), None).shape
    torch.Size([2, 5])
    """
    return cublaslt.product(x, weight.t(), bias, x.dtype) if is_compiled(x) else F.linear(x, weight, bias)


def product(
    a: Float[Tensor, "N K"],
    b: Float[Tensor, "K M"],
    *,
    out: Float[Tensor, "N M"] | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "N M"]:
    """``a @ b``, of which no gradient is asked, in their precision or another; torch's own may be put into ``out``,
    which saves new memory.

    >>> product(torch.ones(2, 3), torch.ones(3, 5)).shape
    torch.Size([2, 5])
    """
    dtype = dtype or a.dtype
    if is_compiled(a):
        return cublaslt.product(a, b, None, dtype)
    if not _is_faster(a, b):
        return torch.mm(a, b, out=out).to(dtype)
    if a.is_contiguous() or len(a) <= b.shape[1]:
        return _onednn(a, b.t()).to(dtype)
    return _onednn(b.t(), a).t().to(dtype)  # the left one is laid out anew, row by row: better the smaller


def add_product(total: Float[Tensor, "N M"], a: Float[Tensor, "N K"], b: Float[Tensor, "K M"]) -> None:
    """``total += a @ b``, of which no gradient is asked; the total may be the more exact.

    >>> total = torch.ones(2, 5)
    >>> add_product(total, torch.ones(2, 3), torch.ones(3, 5))
    >>> total[0, 0]
    tensor(4.)
    """
    if is_compiled(a):
        cublaslt.add_product(total, a, b)
    elif total.dtype != a.dtype or _is_faster(a, b):
        total.add_(product(a, b, dtype=total.dtype))
    else:
        total.addmm_(a, b)


def filled_up(x: Tensor, value: int = 0) -> Tensor:
    """With more rows after the last, up to a multiple of ROWS, on a CPU; as they are where they are few.

    >>> len(filled_up(torch.ones(515, 2))), len(filled_up(torch.ones(3, 2)))
    (640, 3)
    """
    more = -len(x) % ROWS if x.device.type == "cpu" and len(x) >= MANY else 0
    return F.pad(x, (0, 0) * (x.dim() - 1) + (0, more), value=value) if more else x


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """What autocast would compute in where x is; None where it is off."""
    device = x.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


@cache
def by_onednn() -> tuple[torch.dtype, ...]:
    """What oneDNN multiplies: bfloat16 where the processor can, and float32 where it is the faster.

    >>> torch.float64 in by_onednn()
    False
    """
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkl.is_available()
    is_best = {torch.float32: wide and amd_family(_processor()) >= ZEN_5, torch.bfloat16: True}
    return tuple(dtype for dtype in is_best if is_best[dtype] and has_onednn(dtype))


def has_onednn(dtype: torch.dtype) -> bool:
    """Whether this torch has oneDNN's product, and this machine knows the precision.

    >>> has_onednn(torch.float64)
    False
    """
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    half = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return bool(dtype == torch.float32 or half)


def is_aligned(weight: Float[Tensor, "M K"]) -> bool:
    """Whether rows and columns begin where a GPU's matrix units want them.

    >>> is_aligned(torch.ones(16, 24)), is_aligned(torch.ones(2, 24))
    (True, False)
    """
    return not any(n % 8 for n in weight.shape)


def is_compiled(x: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether a graph for a GPU is compiled in which x is computed in half precision, by cuBLASLt.

    >>> is_compiled(torch.ones(3))
    False
    """
    return cublaslt.IS_THERE and x.is_cuda and torch.compiler.is_compiling() and (dtype or x.dtype) in HALF


def _is_large(a: Float[Tensor, "*N K"], b: Float[Tensor, "K M"]) -> bool:
    """Whether a product is large, and a CPU does it as it comes."""
    return a.device.type == "cpu" and not torch.compiler.is_compiling() and a.numel() * b.shape[1] >= FEWEST


def _is_faster(a: Float[Tensor, "N K"], b: Float[Tensor, "K M"]) -> bool:
    """Whether oneDNN is to multiply what torch would not give to it."""
    return _is_large(a, b) and a.dtype == torch.float32 and a.dtype in by_onednn()


def _onednn(x: Float[Tensor, "N K"], weight: Float[Tensor, "M K"], bias: Tensor | None = None) -> Float[Tensor, "N M"]:
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.contiguous()
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, bias, "none", [], "")


def amd_family(told: str) -> int:
    """The family of a processor by AMD, from what the system says of it; 0 of another's.

    >>> amd_family("AMD64 Family 26 Model 2 Stepping 1, AuthenticAMD")
    26
    """
    found = re.search(r"(?i)family\W+(\d+)", told)
    return int(found[1]) if found and "AuthenticAMD" in told else 0


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        return file.read(1_000)
    return os.environ.get("PROCESSOR_IDENTIFIER", "")  # on Windows
