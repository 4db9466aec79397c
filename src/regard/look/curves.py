"""The curves of a run: its losses over the steps, from metrics.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from regard.config import InputError
from regard.look import pictures
from regard.look.page import as_text
from regard.train import watch
from regard.train.run import Run


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
