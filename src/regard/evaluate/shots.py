"""How many texts a language model classifies rightly from a few examples, over how many it is shown: a table of numbers
and a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from regard.decode.translate import Progress
from regard.encode.labels import Classification
from regard.encode.shots import Example
from regard.evaluate.labelled import PROMPTED, answered
from regard.evaluate.labels import accuracy
from regard.evaluate.scorecard import table
from regard.files import check_folder, drafted
from regard.schema import InputError, Node

# Colours that differ for every eye (Okabe and Ito 2008), with marks that differ without any.
COLOURS = ("#000000", "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7")
MARKS = ("o", "s", "^", "D", "v", "P", "X")


Prompted = Callable[..., list[Classification]]
"""Texts and ``shots`` in, answers out."""


@dataclass(frozen=True, kw_only=True)
class Shots(Node):
    """The accuracy with so many examples, and between which bounds it is."""

    shots: int
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class OverShots:
    """How the accuracy on a test set changes with the examples in a prompt. Show it with rich, or ``draw`` it."""

    name: str  # of the test set
    texts: int
    chance: float  # the accuracy of who always says the commonest label
    curves: dict[str, list[Shots]]  # by the names of models

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        curves = {name: [point.to_dict() for point in curve] for name, curve in self.curves.items()}
        return {"name": self.name, "texts": self.texts, "commonest_label": round(self.chance, 4), "curves": curves}

    def __rich__(self) -> RenderableType:
        return Group(*self._page())

    def _page(self) -> Iterator[RenderableType]:
        yield Text(f"{self.name}, {self.texts:,} texts; the commonest label: {self.chance:.2f}", style="bold")
        for name, curve in self.curves.items():
            yield Text(f"\n{name}")
            points = table("shots", "accuracy", "95 % within")
            for point in curve:
                points.add_row(str(point.shots), f"{point.accuracy:.2f}", f"{point.low:.2f} to {point.high:.2f}")
            yield points

    def draw(self, path: str | Path) -> Path:
        """Accuracy over the number of examples, a line a model with its interval, as .png or .svg; the same bytes each
        time."""
        path = Path(path)
        matplotlib = check_picture(path)
        matplotlib.use("Agg")
        from matplotlib import pyplot as plt

        with matplotlib.rc_context({"svg.hashsalt": "regard", "font.size": 10}):
            figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
            self._draw(axes)
            with drafted(path) as draft:
                figure.savefig(draft, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
            plt.close(figure)
        return path

    def _draw(self, axes: Any) -> None:
        for i, (name, curve) in enumerate(self.curves.items()):
            colour, mark = COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)]
            x, low, high = ([getattr(point, side) for point in curve] for side in ("shots", "low", "high"))
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(
                x, [p.accuracy for p in curve], color=colour, marker=mark, markersize=5, linewidth=1.5, label=name
            )
        axes.axhline(self.chance, color="grey", linewidth=1, linestyle="--", label="the commonest label")
        axes.set_xticks(sorted({point.shots for curve in self.curves.values() for point in curve}))
        axes.set_xlabel("examples in the prompt")
        axes.set_ylabel(f"accuracy on {self.name}, %")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=9)


def check_picture(path: str | Path) -> Any:
    """Refuse now what could not be drawn there later; matplotlib, if it can.

    >>> check_picture("shots.txt")
    Traceback (most recent call last):
    regard.schema.InputError: shots.txt: a picture must be .png or .svg
    """
    path = Path(path)
    if path.suffix not in (".png", ".svg"):
        raise InputError(f"{path}: a picture must be .png or .svg")
    check_folder(path)
    try:
        import matplotlib
    except ImportError:
        raise InputError(f"{path}: needs matplotlib; pip install 'regard[plots]'") from None
    return matplotlib


def accuracy_over_shots(
    models: Mapping[str, Prompted],
    test: Sequence[Example],
    shots: Sequence[int] = (0, 1, 2, 4, 8),
    *,
    name: str = "test",
    progress: Progress | None = None,
) -> OverShots:
    """The accuracy of language models on labelled texts, for each number of examples that they are shown. A model is
    :func:`~regard.encode.shots.classify_with_prompt` with all but the texts and ``shots``.

    >>> from regard.encode.labels import Classification
    >>> def says_no(texts, shots):
    ...     return [Classification("no", 1.0, {"no": 1.0, "yes": 0.0}) for _ in texts]
    >>> found = accuracy_over_shots({"a model": says_no}, [("a", "no"), ("b", "yes")], (0, 1))
    >>> [point.accuracy for point in found.curves["a model"]]
    [50.0, 50.0]
    """
    if not test:
        raise InputError("nothing to score; give at least one text with its label")
    texts, wanted = [text for text, _ in test], [label for _, label in test]
    curves: dict[str, list[Shots]] = {}
    done, of_all = 0, len(models) * len(shots) * len(texts)
    for model, answer in models.items():
        curves[model] = []
        for k in shots:

            def tell(n: int, _: int, right: str, *, done=done, what=f"{model}, {k} shots") -> None:
                if progress is not None:
                    progress(done + n, of_all, f"{what}: {right}")

            found = answered(partial(answer, shots=k), texts, wanted, at_once=PROMPTED, progress=tell)
            done += len(texts)
            score = accuracy([one.label for one in found], wanted)
            low, high = score.interval
            curves[model].append(Shots(shots=k, accuracy=score.value, low=low, high=high))
    chance = 100 * max(wanted.count(label) for label in set(wanted)) / len(wanted)
    return OverShots(name, len(test), chance, curves)
