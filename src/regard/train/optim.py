"""How weights move: the learning rate as a pure function of the step, and AdamW and Muon without a wait for the device.

Clipping and skipping ride on the update itself: it divides the gradient by a number on the device, and leaves
everything as it was where another says so. Nothing is read back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.recipe import Train
from regard.train.muon import Muon


def learning_rate(train: Train, step: int) -> float:
    """The rate of update number ``step``, counted from 1.

    >>> train = Train(steps=1000, lr=0.5, warmup=100, schedule="noam")
    >>> [round(learning_rate(train, step), 4) for step in (1, 50, 100, 400)]
    [0.005, 0.25, 0.5, 0.25]
    """
    if step <= train.warmup:
        return train.lr * step / train.warmup
    floor, after = train.final_lr, step - train.warmup
    rest = max(1, train.steps - train.warmup)
    match train.schedule:
        case "noam":
            return train.lr * math.sqrt(max(train.warmup, 1) / step)
        case "cosine":
            share = 0.5 * (1 + math.cos(math.pi * min(1.0, after / rest)))
        case "wsd":
            fall = max(1, round(train.steps * train.cooldown))
            share = min(1.0, max(0, train.steps - step) / fall)
        case "constant":
            return train.lr
    return train.lr * (floor + (1 - floor) * share)


class Optimizer:
    """AdamW over named weights: matrices decay, norms and biases don't. Each moves with a share of the rate, all of it
    where there are no ``shares``. Those that ``muon`` names, with the rows of the matrices in them, move by Muon."""

    def __init__(
        self,
        weights: dict[str, Tensor],
        train: Train,
        shares: Mapping[str, float] | None = None,
        muon: Mapping[str, Sequence[int]] | None = None,
    ):
        self.weights, self.train = weights, train
        shares = shares or dict.fromkeys(weights, 1.0)
        turned = {name: tuple(muon[name]) for name in weights if name in muon} if muon else {}
        self.muon = Muon({name: weights[name] for name in turned}, turned, train, shares)
        self.by_adam = {name: weight for name, weight in weights.items() if name not in turned}
        groups: dict[tuple[bool, float], dict[str, Any]] = {}
        for name, weight in sorted(self.by_adam.items(), key=lambda item: item[1].dim() < 2):
            matrix, share = weight.dim() >= 2, shares[name]
            decay = train.weight_decay if matrix else 0.0
            group = groups.setdefault((matrix, share), {"params": [], "weight_decay": decay, "share": share})
            group["params"].append(weight)
        self.adam = torch.optim.AdamW(
            list(groups.values()),
            lr=0.0,
            betas=(train.betas[0], train.betas[1]),
            eps=train.eps,
            fused=True,
        )

    def gradients(self) -> list[Tensor]:
        return [w.grad for w in self.weights.values() if w.grad is not None]

    def clear(self) -> None:
        """Gradients of zero, in the memory that they have."""
        torch._foreach_zero_(self.gradients())  # type: ignore[attr-defined]

    def update(self, lr: float, norm: Tensor, finite: Tensor) -> None:
        """One update with gradients no longer than the recipe allows; none where they are not finite."""
        for group in self.adam.param_groups:
            group["lr"] = lr * group["share"]
        clip = self.train.clip
        scale = (norm / clip).clamp_min(1).float() if clip else None
        self.adam.grad_scale = scale  # type: ignore[attr-defined]
        self.adam.found_inf = (~finite).float()  # type: ignore[attr-defined]
        self.adam.step()
        self.muon.update(lr, scale, finite)

    def state(self) -> Iterable[tuple[str, str, Tensor]]:
        """Everything to resume from: (what, weight's name, tensor)."""
        for name, weight in self.by_adam.items():
            for what, value in self.adam.state[weight].items():
                yield what, name, value
        for name, value in self.muon.momenta().items():
            yield "momentum", name, value

    def load(self, state: dict[str, dict[str, Tensor]]) -> None:
        """The other way: ``state[what][name]``."""
        self.muon.load(state.get("momentum", {}))
        for name, weight in self.by_adam.items():
            entry = {what: values[name] for what, values in state.items() if name in values}
            # The fused update keeps its counter beside the weights.
            self.adam.state[weight] = {what: value.to(weight.device) for what, value in entry.items()}
