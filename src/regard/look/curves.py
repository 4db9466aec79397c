"""The curves of a run: its losses over the steps, from metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from regard.config import InputError
from regard.look import pictures
from regard.look.page import as_text
from regard.train import watch
from regard.train.run import Run

STYLE = """
.curve { font: 12px system-ui, sans-serif; fill: currentColor; min-width: 34rem; max-width: 100%; height: auto; }
.curve line { stroke: currentColor; stroke-opacity: .15; }
.curve path { stroke-width: 2; }
.curve path.a { stroke: var(--read); }
.curve path.b { stroke: var(--write); stroke-dasharray: 6 3; }
.curve text.a { fill: var(--read); }
.curve text.b { fill: var(--write); }
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Curves:
    """What a run wrote down, a line each time: the step, the kind ("train" or "valid"), the loss and what else."""

    run: Run
    lines: tuple[dict[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"lines": list(self.lines)}

    def __str__(self) -> str:
        return as_text(self)

    def __rich__(self) -> Text:
        parts = [f"{self.run.path.name}: {self.lines[-1]['step']:,} steps"]
        for kind, name in (("train", "in training"), ("valid", "held out")):
            losses = [(x["loss"], x["step"]) for x in self.lines if x["kind"] == kind and x["loss"] is not None]
            if losses:
                best, step = min(losses)
                parts.append(
                    f"loss {name} {losses[0][0]:.3f} to {losses[-1][0]:.3f}, lowest {best:.3f} at step {step:,}"
                )
        return Text("\n".join(parts))

    def save(self, path: str | Path) -> Path:
        """Draw them."""
        return pictures.save(path, watch.curves, self.run)


def curves(run: str | Path) -> Curves:
    """Those of a run directory."""
    found = Run(run)
    lines = tuple(found.lines())
    if not lines:
        raise InputError(f"{found.metrics}: has nothing to draw; give the directory of a run that has trained")
    return Curves(run=found, lines=lines)


def curve(lines: Sequence[dict[str, Any]]) -> str:
    """The losses over the steps, on a scale of powers of ten, as inline SVG in the colours of its page.

    >>> curve([{"kind": "train", "step": 10, "loss": 2.5}]).count("<path")
    1
    """
    series = {
        name: [
            (x["step"], math.log10(max(x["loss"], 1e-9))) for x in lines if x["kind"] == kind and x["loss"] is not None
        ]
        for kind, name in (("train", "training"), ("valid", "held out"))
    }
    points = [point for those in series.values() for point in those] or [(1, 0.0)]
    last = max(step for step, _ in points)
    low, high = math.floor(min(loss for _, loss in points)), math.floor(max(loss for _, loss in points)) + 1
    width, height, left, right, above, below = 760, 300, 60, 670, 12, 255

    def x(step: float) -> str:
        return f"{left + step / last * (right - left):.1f}"

    def y(power: float, lower: float = 0) -> str:
        return f"{above + (high - power) / (high - low) * (below - above) + lower:.1f}"

    parts = [
        f'<svg class="curve" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-label="Loss over {last} steps">',
        f"<style>{STYLE}</style>",
    ]
    for power in range(low, high + 1):
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y(power)}" y2="{y(power)}"/>')
        parts.append(f'<text x="{left - 8}" y="{y(power, 4)}" text-anchor="end">{10.0**power:g}</text>')
    ten = 10 ** int(math.log10(last))
    for step in range(0, last + 1, ten if last >= 3 * ten else max(1, ten // 2)):
        parts.append(f'<text x="{x(step)}" y="{below + 20}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{(left + right) / 2}" y="{height - 6}" text-anchor="middle">steps</text>')
    parts.append(f'<text x="14" y="{(above + below) / 2}" transform="rotate(-90 14 {(above + below) / 2})">loss</text>')
    for (name, those), style, lower in zip(series.items(), "ab", (-6, 14), strict=True):
        if those:
            path = "L".join(f"{x(step)} {y(loss)}" for step, loss in those)
            parts.append(f'<path class="{style}" d="M{path}" fill="none"/>')
            parts.append(f'<text class="{style}" x="{right + 8}" y="{y(those[-1][1], lower)}">{name}</text>')
    return "\n".join([*parts, "</svg>"])
