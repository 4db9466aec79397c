"""The proof, on a user's own recipe, that killing and resuming changes nothing: the same few steps, once straight
through and once with the process killed on the way, compared loss by loss and byte by byte."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from regard.config import RegardError
from regard.recipe import Recipe
from regard.train import checkpoint
from regard.train.run import Run

STEPS, CHECKPOINT_EVERY, KILLED_AFTER = 12, 3, (4, 8)


@dataclass(frozen=True)
class Verdict:
    """Losses of both runs, a pair a step; whether the weights at the end are the same bytes."""

    losses: list[tuple[float, float]]
    same_weights: bool

    @property
    def largest_difference(self) -> float:
        return max(abs(a - b) / max(abs(a), 1e-30) for a, b in self.losses)

    @property
    def exact(self) -> bool:
        return self.same_weights and self.largest_difference == 0


def verify_resume(recipe: Recipe, data: Path, options: list[str], say: Callable[[str], None]) -> Verdict:
    """Run the recipe's first steps twice; ``options`` go to ``regard train`` as they are (``--device cpu``). ``say`` is
    told what is done."""
    train = recipe.train.replace(
        steps=STEPS, log_every=1, valid_every=2 * CHECKPOINT_EVERY, checkpoint_every=CHECKPOINT_EVERY
    )
    with tempfile.TemporaryDirectory(prefix="regard-verify-") as scratch:
        file = Path(scratch) / "recipe.json"
        file.write_text(recipe.replace(train=train).to_json(), encoding="utf-8")
        straight, broken = Run(Path(scratch) / "straight"), Run(Path(scratch) / "broken")
        begin = [str(file), "--data", str(data), *options]
        say(f"straight through, {STEPS} steps")
        _finish([*begin, "--out", str(straight.path)])
        once_more, resume = [*begin, "--out", str(broken.path)], ["--resume", str(broken.path), *options]
        for step in KILLED_AFTER:
            say(f"{'once more' if once_more is not resume else 'resumed'}, to be killed after step {step}")
            _kill(once_more, broken, step)
            once_more = resume
        say("resumed, to the end")
        _finish(resume)
        losses = [[line["loss"] for line in run.lines() if line["kind"] == "train"] for run in (straight, broken)]
        ends = [checkpoint.checkpoints(run.path)[-1] for run in (straight, broken)]
        hashes = [[told["sha256"] for told in checkpoint.read_facts(end)["files"].values()] for end in ends]
        return Verdict(list(zip(*losses, strict=True)), hashes[0] == hashes[1])


def _start(arguments: list[str]) -> subprocess.Popen:
    command = [sys.executable, "-m", "regard", "train", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _finish(arguments: list[str]) -> None:
    process = _start(arguments)
    _, said = process.communicate()
    if process.returncode:
        raise RegardError(f"the run to verify ended with {process.returncode}: {said.strip().splitlines()[-1]}")


def _kill(arguments: list[str], run: Run, step: int) -> None:
    """Start, and kill without warning once a step is done."""
    process = _start(arguments)
    while process.poll() is None and not any(line["step"] >= step for line in run.lines()):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    _, said = process.communicate()
    if process.returncode not in (-signal.SIGKILL, 0):
        raise RegardError(f"the run to verify ended with {process.returncode}: {said.strip().splitlines()[-1]}")
