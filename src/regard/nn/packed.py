"""Linear layers whose weights lie as a CPU's matrix kernel wants them: for a model that only runs.

oneDNN multiplies with a packed weight up to twice as fast as with a plain one (docs/performance.md); the numbers are
the same but for rounding. A packed layer has no parameters: it cannot be trained or saved.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.nn.heads import VocabularyHead
from regard.nn.transformer import Transformer

ROWS = 256  # that the packing is chosen for; any number can be multiplied


class Packed(nn.Module):
    """A linear layer, packed.

    >>> plain = nn.Linear(3, 5).requires_grad_(False)
    >>> x = torch.randn(2, 7, 3)
    >>> torch.allclose(Packed(plain.weight, plain.bias)(x), plain(x), atol=1e-6) if packs(plain.weight) else True
    True
    """

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None):
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


def packs(weight: Tensor) -> bool:
    """Whether this machine and this torch can pack a weight."""
    known = hasattr(torch.ops.mkldnn, "_linear_pointwise") and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    half = weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    right = weight.device.type == "cpu" and (weight.dtype == torch.float32 or half)
    return bool(known and right and torch.backends.mkldnn.is_available())


@torch.no_grad()
def pack(model: Transformer) -> None:
    """Pack every linear layer of a model, and the matrix that scores its vocabulary, where this machine can."""
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if type(layer) is nn.Linear and packs(layer.weight):
                setattr(module, name, Packed(layer.weight, layer.bias))
    if isinstance(model.head, VocabularyHead) and packs(table := model.vocabulary_table()):
        model.head.packed = Packed(table, model.head.bias)
