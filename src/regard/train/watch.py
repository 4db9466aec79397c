"""What a person sees of a run: a progress bar, scores and samples on standard error, and the curves as a picture."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from regard.data.batches import padding
from regard.files import drafted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.train.loop import Trainer
    from regard.train.run import Run


class Watch:
    """Tells of a run on standard error: a live bar in a terminal, plain lines elsewhere, nothing when quiet."""

    def __init__(self, *, quiet: bool = False, tensorboard: bool = False):
        self.quiet = quiet
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=not _is_terminal())
        self.live = self.console.is_terminal and not quiet
        self.progress: Progress | None = None
        self.writer: Any = _writer() if tensorboard and not quiet else None

    def say(self, text: str) -> None:
        self.console.print(Text(text))

    # -- a run's way -------------------------------------------------------------------

    def began(self, trainer: Trainer) -> None:
        """Say what is about to run, and on what."""
        train, world = trainer.train, trainer.world
        padded = padding(trainer.batches, range(min(len(trainer.batches), 20)))
        told = f", {padded:.1%} padding" if trainer.batches.unit == "tokens" else ""
        how = "bfloat16" if trainer.dtype is not None else "float32"
        many = f", {world.size} processes{', sharded' if world.shard else ''}" if world.size > 1 else ""
        n = sum(p.numel() for p in trainer.parameters.values())
        moves = sum(p.numel() for p in trainer.parameters.values() if p.requires_grad)
        trained = f", {moves:,} of them trained" if moves < n else ""
        self.say(f"{trainer.run.path}: {f'going on from step {trainer.number}' if trainer.number else 'a new run'}")
        self.say(
            f"{trainer.config.shape}, {n:,} parameters{trained}, {how}, {trainer.device.type}{many}; "
            f"{len(trainer.batches):,} batches an epoch, {train.steps / len(trainer.batches):.1f} epochs{told}"
        )
        if trainer.held_out is None:
            self.say("nothing is held out: the last weights are those to use (data.hold_out = 0.02 holds some out)")
        if self.writer is not None:
            self.writer = self.writer(str(trainer.run.path / "tensorboard"))

    @contextlib.contextmanager
    def training(self, done: int, steps: int) -> Iterator[None]:
        if not self.live:
            self.last, self.steps = time.monotonic(), steps
            yield
            return
        columns = (
            "[bold]{task.description}",
            "loss {task.fields[loss]}",
            "{task.fields[rate]}",
            "lr {task.fields[lr]}",
        )
        self.progress = Progress(
            TextColumn(columns[0]),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            *(TextColumn(c) for c in columns[1:]),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            expand=True,
        )
        self.task = self.progress.add_task("step", total=steps, completed=done, loss="-", rate="-", lr="-")
        with self.progress:
            yield
        self.progress = None

    def stepped(self, number: int) -> None:
        if self.progress is not None:
            self.progress.update(self.task, completed=number)

    def show(self, line: dict[str, Any], skipped: int) -> None:
        """What the bar says beside the step."""
        if self.progress is not None:
            loss, rate = _loss_and_rate(line, skipped)
            self.progress.update(self.task, loss=loss, rate=rate, lr=f"{line['lr']:.2e}")
        elif time.monotonic() - self.last > 20:
            self._print(line, skipped)

    def _print(self, line: dict[str, Any], skipped: int) -> None:
        """A line of metrics, where there is no bar."""
        self.last = time.monotonic()
        loss, said = _loss_and_rate(line, skipped)
        left = (self.steps - line["step"]) * line["seconds"] / line["step"]
        self.say(f"step {line['step']}/{self.steps}  loss {loss}  lr {line['lr']:.2e}  {said}  {_clock(left)} left")

    def logged(self, line: dict[str, Any], skipped: int) -> None:
        """Show a line of metrics; in a pipe no more than one every few seconds."""
        if self.progress is not None:
            self.show(line, skipped)
        elif time.monotonic() - self.last > 5 or line["step"] == self.steps:
            self._print(line, skipped)
        if self.writer is not None:
            for name in ("loss", "lr", "gradient", _speed(line), "waited"):
                if line[name] is not None:
                    self.writer.add_scalar(f"train/{name}", line[name], line["step"])

    def validated(self, step: int, scores: dict[str, float], samples: list[dict[str, str]], *, best: bool) -> None:
        """Scores on held-out data, and a few samples."""
        self.say(f"step {step}  held out: {shown(scores)}{'  best so far' if best else ''}")
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for sample in samples:
            for name, text in sample.items():
                table.add_row(Text(name), Text(_short(text)))
        self.console.print(table)
        if self.writer is not None:
            for name, value in scores.items():
                self.writer.add_scalar(f"valid/{name}", value, step)

    def finished(self, run: Run, step: int, best: dict[str, Any], seconds: float) -> None:
        drawn = draw_curves(run)
        if self.writer is not None:
            self.writer.close()
        chosen = f"the weights of step {best['step']}" if best else "the last weights"
        if best.get("average"):
            chosen = f"the average of {best['average']} checkpoints"
        scores = shown({k: v for k, v in best.items() if k not in ("step", "average")})
        self.say(f"done: {step} steps in {_clock(seconds)}; {run.weights} has {chosen}{scores and f': {scores}'}")
        if not drawn:
            self.say("no curves.png: pip install 'regard[plots]' brings what draws it")


def _speed(line: dict[str, Any]) -> str:
    return "images_per_second" if "images_per_second" in line else "tokens_per_second"


def _loss_and_rate(line: dict[str, Any], skipped: int) -> tuple[str, str]:
    loss, speed = line["loss"], _speed(line)
    rate = f"{line[speed]:,.0f} {'images' if speed.startswith('images') else 'tok'}/s"
    return "-" if loss is None else f"{loss:.4f}", f"{rate}, {skipped} skipped" if skipped else rate


def shown(scores: dict[str, float]) -> str:
    """Scores in one line.

    >>> shown({"loss": 1.23456, "bleu": 34.5678})
    'loss 1.2346  bleu 34.57'
    """
    return "  ".join(f"{name} {value:.{2 if name == 'bleu' else 4}f}" for name, value in scores.items())


def _is_terminal() -> bool:
    return Console(stderr=True).is_terminal


def _writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        from regard.config import InputError

        raise InputError("--tensorboard needs the package; pip install 'regard[tensorboard]'") from None
    return SummaryWriter


def _clock(seconds: float) -> str:
    """A length of time for people.

    >>> _clock(3723)
    '1:02:03'
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _short(text: str, most: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def draw_curves(run: Run) -> Path | None:
    """The losses over the steps as curves.png in the run directory; None without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return None
    path = run.path / "curves.png"
    with drafted(path) as draft:
        curves(run).savefig(draft, dpi=120)
    return path


def curves(run: Run) -> Figure:
    """The losses over the steps, the learning rate and, of translations, BLEU."""
    from matplotlib.figure import Figure

    lines = list(run.lines())
    trained = [line for line in lines if line["kind"] == "train" and line["loss"] is not None]
    held_out = [line for line in lines if line["kind"] == "valid" and line["loss"] is not None]
    translated = any("bleu" in line for line in held_out)
    heights = [3, 2, 1] if translated else [3, 1]
    figure = Figure(figsize=(8, 2 * sum(heights) - 2), layout="constrained")
    losses, *middle, rates = figure.subplots(len(heights), 1, height_ratios=heights, sharex=True)
    losses.plot([x["step"] for x in trained], [x["loss"] for x in trained], color="#4477aa", label="training")
    if held_out:
        _draw_held_out(losses, held_out, "loss", min)
    losses.set_ylabel("loss (nats)")
    losses.legend(frameon=False)
    losses.set_title(run.path.name)
    if translated:
        _draw_held_out(middle[0], held_out, "bleu", max)
        middle[0].set_ylabel("BLEU")
    rates.plot([x["step"] for x in trained], [x["lr"] for x in trained], color="#228833")
    rates.set_ylabel("learning rate")
    rates.set_xlabel("step")
    for axes in (losses, *middle, rates):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(left=0)
    return figure


def _draw_held_out(axes: Any, lines: list[dict[str, Any]], name: str, best: Callable[..., int]) -> None:
    """A score on held-out data over the steps, its best value written beside it."""
    steps, values = [x["step"] for x in lines], [x[name] for x in lines]
    axes.plot(steps, values, "o-", color="#ee6677", label="held out", markersize=4)
    at = best(range(len(values)), key=values.__getitem__)
    label = f"{values[at]:.4g}"
    axes.annotate(label, (steps[at], values[at]), textcoords="offset points", xytext=(0, 8), ha="center")
