"""What dividing by the square root of the width buys (Vaswani et al. 2017, section 3.2.1), measured here.

A dot product of two random vectors of width d has a variance of d: the wider the heads, the further apart the scores,
and the nearer softmax is to choosing one key and passing no gradient. Three things show it: how sharp the weights are
at the start, how much gradient comes through them, and how two small models learn, alike but for the division.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from rich.console import Group
from rich.table import Table
from rich.text import Text

from regard.config import ModelConfig, Positions, Score, Stack, Tokens, Vocabulary
from regard.look import pictures
from regard.nn import Transformer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (4, 16, 64, 256, 1024)
KEYS = 64
QUERIES = 2_048
SYMBOLS = 29
LENGTH = 12
D_HEAD = 128
NAMES: dict[Score, str] = {"dot": "dot product", "scaled_dot": "divided by √d"}


@dataclass(frozen=True, kw_only=True)
class Start:
    """Weights over random keys of one width: the share of the strongest, their entropy in bits, and the norm of the
    gradient that comes through to the scores."""

    score: Score
    d: int
    strongest: float
    entropy: float
    gradient: float


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """What was measured: the start at every width, and the losses of two models step by step."""

    starts: tuple[Start, ...]
    losses: dict[Score, tuple[float, ...]]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"starts": [vars(one) for one in self.starts], "losses": {k: list(v) for k, v in self.losses.items()}}

    def __rich__(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("score", "d", "strongest weight", "entropy, bits", "gradient"):
            table.add_column(name, justify="left" if name == "score" else "right")
        for one in self.starts:
            values = f"{one.d:,}", f"{one.strongest:.3f}", f"{one.entropy:.2f}", f"{one.gradient:.4f}"
            table.add_row(NAMES[one.score], *values)
        n = len(next(iter(self.losses.values())))
        ends = ", ".join(f"{_last(of):.3f} ({NAMES[name]})" for name, of in self.losses.items())
        first = f"Weights over {KEYS} random keys; the most even there are have {math.log2(KEYS):.0f} bits.\n"
        then = f"\nTo repeat {LENGTH} symbols, heads {D_HEAD} wide: the loss after {n} steps is {ends}."
        return Group(Text(first), table, Text(then))

    def save(self, path: str | Path) -> Path:
        """The same as a picture, .png or .svg: three panels."""
        return pictures.save(path, self._drawn)

    def _drawn(self) -> Figure:
        from matplotlib.figure import Figure

        from regard.evaluate.shots import COLOURS, MARKS

        figure = Figure(figsize=(11, 3.4), layout="constrained")
        panels = figure.subplots(1, 3)
        looks = {name: (COLOURS[i], MARKS[i]) for name, i in (("dot", 5), ("scaled_dot", 4))}
        for panel, what, label in zip(
            panels[:2], ("entropy", "gradient"), ("entropy of the weights, bits", "gradient through them"), strict=True
        ):
            for name in NAMES:
                of = [one for one in self.starts if one.score == name]
                colour, mark = looks[name]
                values = [getattr(one, what) for one in of]
                panel.plot([one.d for one in of], values, color=colour, marker=mark, label=NAMES[name])
            panel.set_xscale("log", base=4)
            panel.set_xticks([*WIDTHS], [f"{d:,}" for d in WIDTHS])
            panel.set_xlabel("width of the keys")
            panel.set_ylabel(label)
        for name, of in self.losses.items():
            panels[2].plot(range(1, len(of) + 1), of, color=looks[name][0], label=NAMES[name])
        panels[2].set_xlabel("step")
        panels[2].set_ylabel(f"loss, heads {D_HEAD} wide")
        for panel in panels:
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(alpha=0.3)
            panel.set_ylim(bottom=0)
        panels[0].legend(frameon=False)
        return figure


def scaling(steps: int = 120, widths: Sequence[int] = WIDTHS, seed: int = 1) -> Scaling:
    """Measure it: some twenty seconds on one core.

    >>> found = scaling(steps=2, widths=[4, 256])
    >>> dot, scaled = (next(s for s in found.starts if (s.score, s.d) == (name, 256)) for name in NAMES)
    >>> dot.entropy < 1 < scaled.entropy
    True
    """
    starts = tuple(start for d in widths for start in _starts(d, seed))
    return Scaling(starts=starts, losses={name: tuple(_losses(name, steps, seed)) for name in NAMES})


def _starts(d: int, seed: int) -> Iterator[Start]:
    draw = torch.Generator().manual_seed(seed)
    q, k = torch.randn(QUERIES, d, generator=draw), torch.randn(KEYS, d, generator=draw)
    wanted = torch.randint(KEYS, (QUERIES,), generator=draw)
    for name, scale in (("dot", 1.0), ("scaled_dot", d**-0.5)):
        scores = (q @ k.T).mul(scale).requires_grad_()
        weights = scores.softmax(-1)
        # One key of each query is right, and wants more weight.
        (gradient,) = torch.autograd.grad(weights.gather(1, wanted[:, None]).sum(), scores)
        held = weights.detach()
        entropy = -(held * held.clamp_min(1e-30).log2()).sum(-1)
        yield Start(
            score=name,  # type: ignore[arg-type]
            d=d,
            strongest=float(held.max(-1).values.mean()),
            entropy=float(entropy.mean()),
            gradient=float(gradient.norm(dim=-1).mean()),
        )


def _losses(score: Score, steps: int, seed: int) -> Iterator[float]:
    """A small language model that learns to say twelve symbols again; from the same weights, on the same rows."""
    torch.manual_seed(seed)
    stack = Stack(
        input=Tokens(vocab_size=SYMBOLS),
        positions=Positions(kind="learned"),
        causal=True,
        max_len=2 * LENGTH,
        n_layers=2,
        d_model=2 * D_HEAD,
        n_heads=2,
        d_ff=2 * D_HEAD,
        norm_order="pre",
        score=score,
    )
    model = Transformer(ModelConfig(decoder=stack, head=Vocabulary(tied=True)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        first = torch.randint(SYMBOLS, (32, LENGTH), generator=draw)
        rows = torch.cat([first, first], 1)
        logits = model(rows[:, :-1])[:, LENGTH - 1 :]
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, LENGTH:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield float(loss.detach())


def _last(losses: Sequence[float]) -> float:
    some = losses[-10:]
    return sum(some) / len(some)
