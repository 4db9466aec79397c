"""The score card: how good a model is on a test set, and all that is needed to say so again; and two of them compared.

What a translator or a classifier has on its card beside that is in translation.py and labelled.py. Nothing is printed
here, and nothing but ``scorecard.json`` in the run directory is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from regard.evaluate import facts
from regard.evaluate.scores import Difference, Score, difference
from regard.files import write_text
from regard.model import Model
from regard.schema import InputError
from regard.train.run import Run

FILE = "scorecard.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Scorecard:
    """A model's scores on one test set. Show it with rich, ``save`` it, or take ``to_dict()``.

    What a model does decides what else a card has: ``figures`` beside the scores, ``more`` in the file, ``pages`` and
    ``settings`` on the page."""

    unit: ClassVar[str] = "texts"  # what a test set is made of

    name: str  # of the test set
    model: dict[str, Any]  # where it is, its size and precision, the hash of its weights
    scores: tuple[Score, ...]
    seconds: float  # that the model took
    data: dict[str, Any]  # hashes of the texts
    versions: dict[str, str]
    hardware: str
    training: dict[str, Any] | None  # steps and seconds, where the run directory tells

    @property
    def size(self) -> int:
        """How many texts there are."""
        return len(self.scores[0].counts)

    @property
    def figures(self) -> dict[str, float]:
        """Numbers without an interval."""
        return {}

    def more(self) -> dict[str, Any]:
        """What the file says beside what every card has."""
        return {}

    def pages(self) -> Iterator[RenderableType]:
        """What the page shows between the scores and the settings."""
        yield from ()

    def settings(self) -> Iterator[tuple[str, str]]:
        """What the page says of how the model was used, by name."""
        yield from ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "name": self.name,
            "model": self.model,
            self.unit: self.size,
            "scores": {score.name: score.to_dict() for score in self.scores},
            **self.more(),
            "seconds": round(self.seconds, 3),
            f"{self.unit}_per_second": round(self.size / self.seconds, 3),
            "data": self.data,
            "versions": self.versions,
            "hardware": self.hardware,
            "training": self.training,
        }

    def save(self, run: str | Path) -> Path:
        """Write it into a run directory's scorecard.json."""
        return save(self, run)

    # -- the page ------------------------------------------------------------------------

    def __rich__(self) -> RenderableType:
        return Group(*self._page())

    def _page(self) -> Iterator[RenderableType]:
        yield Text(f"{self.model['path']}: {self.name}, {self.size:,} {self.unit}\n", style="bold")
        scores = table("", "score", "95 % within")
        for score in self.scores:
            low, high = score.interval
            scores.add_row(score.name, f"{score.value:.2f}", f"{low:.2f} to {high:.2f}")
        for name, value in self.figures.items():
            scores.add_row(name, f"{value:.4f}", "")
        yield scores
        yield from self.pages()
        yield Text()
        settings = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        settings.add_column(style="dim", no_wrap=True)
        settings.add_column(overflow="fold")
        for name, value in self.settings():
            settings.add_row(name, value)
        settings.add_row("time", f"{self.seconds:.1f} s, {self.size / self.seconds:,.1f} {self.unit} a second")
        settings.add_row("hardware", self.hardware)
        if self.training is not None:
            settings.add_row("training", "; ".join(_trained(self.training)))
        yield settings
        yield Text()
        for signature in dict.fromkeys(score.signature for score in self.scores):
            names = ", ".join(score.name for score in self.scores if score.signature == signature)
            yield Text(f"{names}: {signature}", style="dim", overflow="fold")


def about(model: Model) -> dict[str, Any]:
    """What every card says of a model, and of what it ran on."""
    return {
        "model": facts.of_model(model),
        "versions": facts.versions(),
        "hardware": facts.hardware(model.device),
        "training": None if model.path is None else Run(model.path).training(),
    }


def save(card: Any, run: str | Path) -> Path:
    """Write a card into a run directory's scorecard.json, beside those of other test sets; one of the same texts is
    replaced. The file is there whole or not at all."""
    path = Path(run) / FILE
    cards = read_cards(run) if path.exists() else {"format": FORMAT, "sets": {}}
    cards["sets"][entry(card, cards["sets"])] = {name: of for name, of in card.to_dict().items() if name != "name"}
    write_text(path, json.dumps(cards, indent=2, ensure_ascii=False) + "\n")
    return path


def entry(card: Any, sets: Mapping[str, Any]) -> str:
    """The name of a card among those that are kept: its own, or where other texts have that, with a hash behind it."""
    data = json.dumps(card.data, sort_keys=True)
    if card.name not in sets or json.dumps(sets[card.name].get("data"), sort_keys=True) == data:
        return card.name
    return f"{card.name} {hashlib.sha256(data.encode()).hexdigest()[:8]}"


def read_cards(run: str | Path) -> dict[str, Any]:
    """A run directory's scorecard.json: under ``sets``, what is known of each test set.

    >>> read_cards("nowhere")
    Traceback (most recent call last):
    regard.schema.InputError: nowhere/scorecard.json: cannot be read (No such file or directory)
    """
    path = Path(run) / FILE
    try:
        cards = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error}); move it away") from None
    sets = cards.get("sets") if isinstance(cards, dict) and cards.get("format") == FORMAT else None
    if not isinstance(sets, dict) or not all(isinstance(card, dict) for card in sets.values()):
        raise InputError(f"{path}: is no score card of format {FORMAT}; move it away")
    return cards


# ---------------------------------------------------------------------------------------
# Two models


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two models on the same test set: each score of both, and whether the difference is more than chance."""

    first: Scorecard
    second: Scorecard
    differences: dict[str, Difference]  # of each score, by its name

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON: both cards, and the differences."""
        rounded = {
            name: {key: round(value, 4) for key, value in of.to_dict().items()} for name, of in self.differences.items()
        }
        return {"first": self.first.to_dict(), "second": self.second.to_dict(), "differences": rounded}

    def __rich__(self) -> RenderableType:
        return Group(*self._page())

    def _page(self) -> Iterator[RenderableType]:
        yield Text(f"{self.first.name}, {self.first.size:,} {self.first.unit}\n", style="bold")
        yield Text(f"A  {self.first.model['path']}\nB  {self.second.model['path']}\n")
        scores = table("", "A", "B", "B - A", "95 % within", "p")
        for name, of in self.differences.items():
            both = f"{of.first:.2f}", f"{of.second:.2f}", f"{of.difference:+.2f}"
            scores.add_row(name, *both, f"{of.low:+.2f} to {of.high:+.2f}", f"{of.p:.4f}")
        for name, a in self.first.figures.items():
            b = self.second.figures[name]
            scores.add_row(name, f"{a:.4f}", f"{b:.4f}", f"{b - a:+.4f}", "", "")
        yield scores
        yield Text(f"\n{PAIRED}", style="dim")


PAIRED = "p: how likely a difference as large is by chance (paired bootstrap resampling, Koehn 2004)"


def compare(first: Scorecard, second: Scorecard) -> Comparison:
    """Hold two models' score cards of the same test set against each other: paired bootstrap resampling."""
    if first.data != second.data:
        raise InputError(f"{first.name} and {second.name}: not the same texts; evaluate both models on one test set")
    pairs = zip(first.scores, second.scores, strict=True)
    return Comparison(first=first, second=second, differences={a.name: difference(a, b) for a, b in pairs})


# ---------------------------------------------------------------------------------------
# What pages are made of


def table(*headings: str) -> Table:
    """Names on the left, numbers on the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        made.add_column(heading, justify="right" if made.columns else "left", no_wrap=True)
    return made


def _trained(training: dict[str, Any]) -> Iterator[str]:
    """How long a run took, then the one that it began from, and so on."""
    yield f"{training['steps']:,} steps, {_duration(training['seconds'])}"
    began = training.get("from")
    if began:
        earlier = _trained(began["training"]) if began["training"] else iter(["unknown"])
        yield f"from {began['path']}: {next(earlier)}"
        yield from earlier


def _duration(seconds: float) -> str:
    """A time in its two largest units.

    >>> _duration(7440), _duration(187.2), _duration(3.14)
    ('2 h 4 min', '3 min 7 s', '3 s')
    """
    minutes, s = divmod(round(seconds), 60)
    h, m = divmod(minutes, 60)
    return f"{h} h {m} min" if h else f"{m} min {s} s" if m else f"{s} s"
