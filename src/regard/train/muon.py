"""Muon: the matrices of a model's blocks move by their momentum made orthogonal, so that no direction moves more than
another (Jordan 2024), and as far as AdamW would move them (Liu et al. 2025): one learning rate is right for both.

torch.optim.Muon goes from matrix to matrix, some twenty launches for each; here those of one shape go together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.nn.attention import Attention
from regard.nn.blocks import MLP, Block
from regard.recipe import Train


class Muon:
    """Named weights, and the rows of the matrices that stand in each (:func:`matrices`). One call is one update."""

    BETA = 0.95  # the momentum's memory

    def __init__(
        self,
        weights: dict[str, Tensor],
        rows: Mapping[str, Sequence[int]],
        train: Train,
        shares: Mapping[str, float],
    ):
        self.weights, self.decay = weights, train.weight_decay
        self.places: dict[tuple[torch.Size, float], list[tuple[str, int]]] = {}  # by shape and share of the rate
        self.parts = {name: weight.detach().split(list(rows[name])) for name, weight in weights.items()}
        for name, parts in self.parts.items():
            for i, part in enumerate(parts):
                self.places.setdefault((part.shape, shares[name]), []).append((name, i))
        self.momentum = {
            group: torch.stack([torch.zeros_like(self.parts[name][i]) for name, i in places])
            for group, places in self.places.items()
        }

    @torch.no_grad()
    def update(self, lr: float, scale: Tensor | None, finite: Tensor) -> None:
        gradients_of = {name: self._split(name, cast(Tensor, weight.grad)) for name, weight in self.weights.items()}
        goes = finite.float()
        for group, places in self.places.items():
            shape, share = group
            gradients = torch.stack([gradients_of[name][i] for name, i in places])
            gradients = torch.where(finite, gradients if scale is None else gradients / scale, 0)
            momentum = self.momentum[group]
            momentum.lerp_(gradients, (1 - self.BETA) * goes)
            moves = orthogonal(gradients.lerp_(momentum, self.BETA))
            far = lr * share * 0.2 * math.sqrt(max(shape))
            weights = [self.parts[name][i] for name, i in places]
            torch._foreach_mul_(weights, 1 - lr * share * self.decay * goes)  # type: ignore[attr-defined]
            torch._foreach_sub_(weights, list((moves * (far * goes)).unbind()))  # type: ignore[attr-defined]

    def momenta(self) -> dict[str, Tensor]:
        held = {
            place: m
            for group, places in self.places.items()
            for place, m in zip(places, self.momentum[group], strict=True)
        }
        return {name: torch.cat([held[name, i] for i in range(len(parts))]) for name, parts in self.parts.items()}

    def load(self, momenta: Mapping[str, Tensor]) -> None:
        parts = {name: self._split(name, value) for name, value in momenta.items()}
        for group, places in self.places.items():
            for (name, i), held in zip(places, self.momentum[group], strict=True):
                held.copy_(parts[name][i])

    def _split(self, name: str, value: Tensor) -> Sequence[Tensor]:
        """A weight's gradient or momentum, as the matrices that stand in it."""
        return value.split([len(part) for part in self.parts[name]])


# Five steps of this polynomial bring singular values up to 1 as near to 1 as Muon needs them (Jordan 2024).
NEARER = 3.4445, -4.7750, 2.0315


def orthogonal(m: Float[Tensor, "N R C"], steps: int = 5) -> Float[Tensor, "N R C"]:
    """Matrices with the same singular vectors and values near 1: after five steps from 0.68 to 1.14, where they were
    not tiny. On a GPU in bfloat16.

    >>> orthogonal(torch.diag(torch.tensor([3.0, 2.0, 1.0]))[None]).diagonal(dim1=1, dim2=2).round(decimals=1)
    tensor([[1.1000, 0.7000, 0.7000]])
    """
    tall = m.shape[1] > m.shape[2]
    x = m.mT if tall else m
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    x = x.bfloat16() if m.is_cuda else x
    a, b, c = NEARER
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(m.dtype)


def matrices(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The weights of blocks that are matrices, by name, each with the rows of those that stand in it one above the
    other: queries, keys and values; or a gate and what it is for.

    >>> from regard import presets
    >>> from regard.nn import Transformer
    >>> found = matrices(Transformer(presets.tiny_decoder()))
    >>> found["decoder.stack.blocks.0.self_attn.qkv.weight"]
    (21, 21, 15)
    """
    found: dict[str, tuple[int, ...]] = {}
    for prefix, block in model.named_modules():
        if not isinstance(block, Block):
            continue
        for name, module in block.named_modules(prefix=prefix):
            if isinstance(module, Attention) and module.fused:
                found[f"{name}.qkv.weight"] = module.widths
            elif isinstance(module, Attention) and module.fused_kv:
                found[f"{name}.kv.weight"] = module.widths[1:]
            elif isinstance(module, MLP) and module.gated:
                found[f"{name}.up.weight"] = (module.up.out_features // 2,) * 2
            elif isinstance(module, nn.Linear):
                found.setdefault(f"{name}.weight", (module.out_features,))
    return found
