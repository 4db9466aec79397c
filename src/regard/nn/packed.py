"""Linear layers whose weights lie as a CPU's matrix kernel wants them: for a model that only runs.

oneDNN multiplies with a packed weight up to twice as fast as with a plain one (docs/performance.md), and applies what
follows before it writes the product down; the numbers are the same but for rounding. A packed layer has no parameters:
it cannot be trained or saved.

One row alone, as when one text is written, is a matter of reading: every weight is needed once. In float32 a plain
weight in several parts, each read by one thread from end to end, comes as fast as memory gives it; so the plain weights
of a language model stay beside the packed ones, unless that is too much.

In whole numbers (int8) a weight has a quarter of the bytes, and the machine multiplies several times as many a second.
Every row of a weight and every row that comes in has a scale of its own: no text changes its neighbour's answer.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.nn.blocks import MLP
from regard.nn.heads import VocabularyHead
from regard.nn.linear import Linear, has_onednn
from regard.nn.products import ACTIVATIONS
from regard.nn.transformer import Transformer
from regard.weights import quantised

ROWS = 256  # that the packing is chosen for; any number can be multiplied
FEW = 6  # rows, which take less time than one: the kernel for one or two does not read memory as fast as it could
PARTS = 4  # of a plain weight; more where there are more threads
BROAD = 4_096  # rows of a weight in whole numbers, from which oneDNN is the faster, all included; without VNNI, never
MOST_KEPT = 2**30  # bytes of plain weights that stay beside the packed ones

# What oneDNN calls the activations that it applies itself, and their kinds.
APPLIED = {
    "relu": ("relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
}
NOTHING = ("none", "")


class Packed(nn.Module):
    """A linear layer, packed, and the activation after it.

    >>> plain = nn.Linear(3, 5).requires_grad_(False)
    >>> x = torch.randn(2, 7, 3)
    >>> torch.allclose(Packed(plain.weight, plain.bias)(x), plain(x), atol=1e-6) if packs(plain.weight) else True
    True
    """

    def __init__(
        self,
        weight: Float[Tensor, "N K"],
        bias: Float[Tensor, " N"] | None,
        then: str | None = None,
        *,
        keep: bool = False,
    ):
        super().__init__()
        self.then, self.kind = APPLIED[then] if then else NOTHING
        self.activate = ACTIVATIONS[then] if then else None
        self.plain = _Plain(weight.detach(), bias) if keep and weight.dtype == torch.float32 else None
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        k = x.shape[-1]
        rows = x.numel() // k
        if not 0 < rows <= FEW // 2:
            return self._multiply(x)
        if rows == 1 and self.plain is not None:
            out = self.plain.multiply(x.contiguous()).view(*x.shape[:-1], -1)
            return out if self.activate is None else self.activate(out)
        again = x.reshape(rows, k).expand(FEW // rows, rows, k)
        return self._multiply(again)[0].view(*x.shape[:-1], -1)

    def _multiply(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, self.then, [], self.kind)


class Int8(nn.Module):
    """A linear layer in whole numbers, and the activation after it; what comes in and goes out are float32.

    >>> plain = nn.Linear(64, 5).requires_grad_(False)
    >>> x = torch.randn(2, 7, 64)
    >>> torch.allclose(Int8(plain.weight, plain.bias)(x), plain(x), atol=0.05) if multiplies_int8() else True
    True
    """

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None, then: str | None = None):
        super().__init__()
        self.activate = torch.relu_ if then == "relu" else ACTIVATIONS[then] if then else None  # in place where it can
        numbers, self.scales = quantised(weight)
        self.zeros = torch.zeros(len(numbers), dtype=torch.long)
        vnni = torch.cpu._is_vnni_supported()
        self.broad = vnni and len(numbers) >= BROAD and hasattr(torch.ops.onednn, "qlinear_prepack")
        self.weight = self._broad(numbers) if self.broad else self._narrow(numbers)
        self.bias = None if bias is None else bias.detach().float()
        # Without the instruction for it, sums of two products are kept in 16 bits, where 8 times 8 bits may not fit.
        self.most = 127 if vnni else 63
        # Plain ones would become tensors each time.
        self.times, self.over = torch.tensor(float(self.most)), torch.tensor(1 / self.most)

    def _broad(self, numbers: Tensor) -> Tensor:
        return torch.ops.onednn.qlinear_prepack(numbers, [ROWS, numbers.shape[1]])

    def _narrow(self, numbers: Tensor):
        with warnings.catch_warnings(), _engine("fbgemm"):
            warnings.filterwarnings("ignore", message=".*quantized tensor creation")
            # Not by torch.ops: its warning would go to the screen.
            rows = torch._make_per_channel_quantized_tensor(numbers, self.scales.double(), self.zeros, 0)  # type: ignore
            return torch.ops.quantized.linear_prepack(rows, None)

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        # Not x.abs().amax(-1), which writes all of x, nor a norm, which takes ten times as long.
        largest = torch.maximum(x.amax(-1, keepdim=True), x.amin(-1, keepdim=True).neg_()).clamp_min_(1e-12)
        scaled, zero = x * largest.reciprocal().mul_(self.times), self.most + 1
        if self.broad:  # oneDNN takes a sixth less for the product itself, but does not round
            whole = scaled.add_(zero + 0.5).to(torch.uint8)
            weight = self.weight, self.scales, self.zeros
            plain = None, 1.0, 0, torch.float32, "none", [], ""
            out = torch.ops.onednn.qlinear_pointwise(whole, 1.0, zero, *weight, *plain)
        else:
            out = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(scaled, 1.0, zero, self.weight)
        out.mul_(largest.mul_(self.over))  # addcmul would take several times as long as the two
        out = out if self.bias is None else out.add_(self.bias)
        return out if self.activate is None else self.activate(out)


@contextlib.contextmanager
def _engine(name: str) -> Iterator[None]:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = name
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


def multiplies_int8() -> bool:
    """Whether this machine and this torch can."""
    ops = torch.ops.quantized
    known = all(hasattr(ops, name) for name in ("linear_prepack", "linear_with_input_q_dq_qweight_dq_output_fp32"))
    return known and "fbgemm" in torch.backends.quantized.supported_engines


class _Plain:
    """A plain weight in parts of equal size, and what is left of it: for one row."""

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None):
        parts = max(PARTS, torch.get_num_threads())
        even = len(weight) - len(weight) % parts
        bias = weight.new_zeros(len(weight)) if bias is None else bias.detach()
        self.weight, self.bias = weight[:even].reshape(parts, -1, weight.shape[1]), bias[:even].view(parts, -1, 1)
        self.rest = (bias[even:], weight[even:]) if even < len(weight) else None

    def multiply(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "..."]:
        parts, _, k = self.weight.shape
        # Such strides has a row's transpose, by which bmm knows its layout; with 1 it would take eight times as long.
        out = torch.baddbmm(self.bias, self.weight, x.as_strided((parts, k, 1), (0, 1, k)))
        return out if self.rest is None else torch.cat([out.view(-1), torch.addmv(*self.rest, x.view(-1))])


def packs(weight: Tensor) -> bool:
    """Whether this machine and this torch can pack a weight."""
    known = has_onednn(weight.dtype) and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return known and weight.device.type == "cpu"


@torch.no_grad()
def pack(model: Transformer, *, int8: bool = False) -> None:
    """Pack every linear layer of a model, and the matrix that scores its vocabulary, where this machine can."""
    size = sum(weight.nbytes for weight in model.parameters())
    keep = model.config.shape == "decoder" and size <= MOST_KEPT
    make = Int8 if int8 else partial(Packed, keep=keep)
    # A layer that is held nowhere else goes when the next is packed: there are never two of the whole model.
    for module in [module for module in model.modules() if type(module) is not Linear]:
        for name, layer in module.named_children():
            if type(layer) is Linear and (int8 or packs(layer.weight)):
                then = None
                if isinstance(module, MLP) and name == "up" and not module.gated and module.activation in APPLIED:
                    then, module.activation = module.activation, None
                setattr(module, name, make(layer.weight, layer.bias, then))
    if isinstance(model.head, VocabularyHead) and (int8 or packs(model.vocabulary_table())):
        model.head.packed = make(model.vocabulary_table(), model.head.bias)
