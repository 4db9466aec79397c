"""What came of several recipes on the same data with the same budget: a table, a report, a picture, and JSON.

Nothing here trains or translates, and nothing is claimed: what the report states are the numbers that were measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from regard.config import ModelConfig, Recurrent, Tower
from regard.evaluate import Score, TranslationCard, difference
from regard.files import drafted, write_text
from regard.nn import skeleton
from regard.recipe import Recipe
from regard.schema import Node

FEWEST = 10  # sentences; of fewer, a BLEU says too little to be drawn


@dataclass(frozen=True, kw_only=True)
class Point(Node):
    """A validation: the step, how long had been trained until then, and the scores on the held-out part."""

    step: int
    seconds: float
    bleu: float
    loss: float | None  # none where it was no number


@dataclass(frozen=True, kw_only=True)
class Result:
    """One of the models: how it was made, how it learned, and its score card."""

    name: str
    recipe: Recipe
    model: ModelConfig
    curve: tuple[Point, ...]
    tokens_per_second: float  # of training, on the side that is written, over all steps
    card: TranslationCard

    @property
    def bleu(self) -> Score:
        return self.card.scores[0]

    @property
    def chrf(self) -> Score:
        return self.card.scores[1]

    @property
    def parameters(self) -> int:
        return skeleton(self.model).n_parameters()

    @property
    def seconds(self) -> float:
        """That training took, without validations."""
        return self.curve[-1].seconds

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        card = self.card.to_dict()
        return {
            "name": self.name,
            "about": described(self.model),
            "parameters": self.parameters,
            "scores": {score.name: score.to_dict() for score in (self.bleu, self.chrf)},
            "by_length": card["by_length"],
            "loss": card["loss"],
            "training": {
                "steps": self.curve[-1].step,
                "seconds": round(self.seconds, 1),
                "tokens_per_second": round(self.tokens_per_second, 1),
            },
            "decoding": {**card["decoding"], "seconds": card["seconds"]},
            "curve": [point.to_dict() for point in self.curve],
            "recipe": self.recipe.to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Models that learned the same. Show it with rich, ``save`` it, or take ``to_dict()``."""

    results: tuple[Result, ...]  # in the order in which they were given
    examples: dict[str, int]  # pairs of each split of the data

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        card = self._any.card
        return {
            "test": {"name": card.name, "sentences": card.size, **card.data},
            "examples": self.examples,
            "hardware": card.hardware,
            "versions": card.versions,
            "models": [result.to_dict() for result in self.results],
        }

    def save(self, folder: str | Path) -> None:
        """Write report.md, compare.json and the picture, compare.png and compare.svg."""
        folder = Path(folder)
        write_text(folder / "compare.json", json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n")
        write_text(folder / "report.md", self.report())
        draw(self, [folder / "compare.png", folder / "compare.svg"])

    @property
    def _any(self) -> Result:
        return self.results[0]

    # -- tables --------------------------------------------------------------------------

    def _scores(self) -> Iterator[Sequence[str]]:
        yield "model", "BLEU", "95 % within", "chrF2", "loss", "parameters", "training s", "tokens/s", "decoding s"
        for result in self.results:
            low, high = result.bleu.interval
            yield (
                result.name,
                f"{result.bleu.value:.1f}",
                f"{low:.1f} to {high:.1f}",
                f"{result.chrf.value:.1f}",
                f"{result.card.likelihood.loss:.3f}",
                f"{result.parameters:,}",
                f"{result.seconds:,.0f}",
                f"{result.tokens_per_second:,.0f}",
                f"{result.card.seconds:,.1f}",
            )

    def _lengths(self) -> Iterator[Sequence[str]]:
        buckets = self._any.card.by_length
        yield "words in the source", *(bucket.words for bucket in buckets)
        yield "sentences", *(f"{bucket.sentences:,}" for bucket in buckets)
        for result in self.results:
            yield result.name, *(f"{bucket.score:.1f}" for bucket in result.card.by_length)

    def _settings(self) -> Iterator[Sequence[str]]:
        """What of training is not the same for all."""
        tables = [result.recipe.train.to_dict() for result in self.results]
        yield "train", *(result.name for result in self.results)
        for key in tables[0]:
            values = [json.dumps(table[key]) for table in tables]
            if len(set(values)) > 1:
                yield key, *values

    def __rich__(self) -> RenderableType:
        card = self._any.card
        title = Text(f"{card.name}, {card.size:,} sentences\n", style="bold")
        return Group(title, _table(self._scores()), Text(), _table(self._lengths()))

    # -- the report ----------------------------------------------------------------------

    def report(self) -> str:
        """All of it as Markdown."""
        return "\n\n".join(self._sections()) + "\n"

    def _sections(self) -> Iterator[str]:
        card, train = self._any.card, self._any.recipe.train
        vocabulary = self._any.model.to_dict()["decoder"]["input"]["vocab_size"]
        searched = ", ".join(f"{key} {value}" for key, value in card.decoding.items() if value)
        yield f"# {len(self.results)} models, the same data and budget"
        yield (
            f"{self.examples['train']:,} pairs to learn from, a vocabulary of {vocabulary:,}, {train.steps:,} updates"
            f" of {train.batch_tokens:,} tokens. Every {train.valid_every:,} updates the first"
            f" {min(train.bleu, self.examples['valid']):,} of {self.examples['valid']:,} held-out sentences were"
            " translated greedily, and the weights with the best BLEU kept. The scores are those of the"
            f" {card.size:,} sentences of {card.name} ({searched})."
        )
        yield _markdown(self._scores())
        yield (
            "Training is without validations, tokens are those of the side that is written, decoding is that of all"
            f" {card.size:,} sentences. On {card.hardware}, with torch {card.versions['torch']}. BLEU:"
            f" `{self._any.bleu.signature}`."
        )
        yield "![BLEU over training time, and BLEU by sentence length](compare.png)"
        yield "## What they are"
        yield "\n".join(f"- **{result.name}**: {described(result.model)}." for result in self.results)
        settings = list(self._settings())
        if len(settings) > 1:
            yield "All are trained alike but for:"
            yield _markdown(settings)
        yield "## BLEU by sentence length"
        yield _markdown(self._lengths())
        yield "## Findings"
        yield "\n".join(f"- {finding}." for finding in self._findings())

    def _findings(self) -> Iterator[str]:
        ranked = sorted(self.results, key=lambda result: -result.bleu.value)
        for better, worse in pairwise(ranked):
            found = difference(worse.bleu, better.bleu)
            yield (
                f"{better.name} has {found.difference:.1f} BLEU more than {worse.name} (95 % within {found.low:+.1f} to"
                f" {found.high:+.1f}, p {found.p:.3f} by paired bootstrap)"
            )
        at = _many_enough(self._any.card)
        if len(at) > 1:
            short, long = self._any.card.by_length[at[0]].words, self._any.card.by_length[at[-1]].words
            changes = ", ".join(
                f"{result.name} {b.score - a.score:+.1f}"
                for result in self.results
                for a, b in [(result.card.by_length[at[0]], result.card.by_length[at[-1]])]
            )
            yield f"From sentences of {short} words to those of {long}, BLEU changes: {changes}"
        for what, seconds in (
            ("Training took", {result.name: result.seconds for result in self.results}),
            ("Decoding took", {result.name: result.card.seconds for result in self.results}),
        ):
            least, most = min(seconds, key=seconds.__getitem__), max(seconds, key=seconds.__getitem__)
            yield f"{what} from {seconds[least]:,.1f} s ({least}) to {seconds[most]:,.1f} s ({most})"


def described(config: ModelConfig) -> str:
    """A translator in a line.

    >>> from regard import presets
    >>> described(presets.tiny_bahdanau())
    'encoder: bidirectional GRU, 1 layer of 11; decoder: GRU, 1 layer of 19, additive attention'
    """
    assert config.encoder is not None
    assert config.decoder is not None
    decoder = _tower(config.decoder)
    if isinstance(config.decoder, Recurrent):
        decoder += f", {config.decoder.score} attention" if config.decoder.score else ", no attention"
    return f"encoder: {_tower(config.encoder)}; decoder: {decoder}"


def _tower(tower: Tower) -> str:
    layers = f"{tower.n_layers} layer{'s' if tower.n_layers > 1 else ''}"
    if isinstance(tower, Recurrent):
        return f"{'bidirectional ' if tower.bidirectional else ''}{tower.cell.upper()}, {layers} of {tower.d_hidden}"
    return (
        f"Transformer, {layers} of {tower.d_model}, {tower.n_heads} heads, feed-forward {tower.d_ff},"
        f" {tower.norm_order}-norm"
    )


def _many_enough(card: TranslationCard) -> list[int]:
    """Which lengths have enough sentences."""
    return [i for i, bucket in enumerate(card.by_length) if bucket.sentences >= FEWEST]


def _markdown(rows: Iterable[Sequence[str]]) -> str:
    head, *body = rows
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body))


def _table(rows: Iterable[Sequence[str]]) -> Table:
    head, *body = rows
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in head:
        table.add_column(heading, justify="right" if table.columns else "left", no_wrap=True)
    for row in body:
        table.add_row(*row)
    return table


# ---------------------------------------------------------------------------------------
# The picture

# Colours that differ for every eye (Okabe and Ito 2008), with marks that differ without any.
COLOURS = ("#000000", "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "", "///")


def draw(compared: Comparison, paths: Sequence[Path]) -> None:
    """BLEU over training time beside BLEU by sentence length, as files of whichever kinds; the same bytes each time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with matplotlib.rc_context({"svg.hashsalt": "regard", "font.size": 10, "hatch.linewidth": 0.6}):
        figure, (over_time, by_length) = plt.subplots(
            1, 2, figsize=(12, 4.5), width_ratios=[1.15, 1], layout="constrained"
        )
        _draw_over_time(over_time, compared)
        _draw_by_length(by_length, compared)
        for axes in (over_time, by_length):
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_ylim(bottom=0)
            axes.set_axisbelow(True)
        for path in paths:
            with drafted(path) as draft:
                figure.savefig(draft, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def _draw_over_time(axes: Any, compared: Comparison) -> None:
    """A line a model, its name at the end of it."""
    results = compared.results
    for i, result in enumerate(results):
        x, y = [point.seconds for point in result.curve], [point.bleu for point in result.curve]
        axes.plot(x, y, color=_nth(COLOURS, i), marker=_nth(MARKS, i), markersize=4, linewidth=1.5)
    axes.set_xlim(left=0)
    top = axes.get_ylim()[1]
    ends = [result.curve[-1].bleu for result in results]
    for i, at in enumerate(_apart(ends, 0.055 * top)):
        axes.annotate(
            f"{results[i].name} {ends[i]:.1f}",
            xy=(results[i].curve[-1].seconds, ends[i]),
            xytext=(1.03, at),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            arrowprops={"arrowstyle": "-", "color": _nth(COLOURS, i), "linewidth": 0.8},
            annotation_clip=False,
        )
    axes.grid(alpha=0.3)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("BLEU, held out, greedy")


def _draw_by_length(axes: Any, compared: Comparison) -> None:
    """A group of bars a length, a bar a model, in the order of the legend."""
    results, card = compared.results, compared.results[0].card
    shown = _many_enough(card) or range(len(card.by_length))
    width = 0.84 / len(results)
    for i, result in enumerate(results):
        x = np.arange(len(shown)) + (i - (len(results) - 1) / 2) * width
        heights = [result.card.by_length[at].score for at in shown]
        style = {"color": _nth(COLOURS, i), "hatch": _nth(HATCHES, i), "edgecolor": "white", "linewidth": 0.5}
        axes.bar(x, heights, width, label=result.name, **style)
    names = [f"{card.by_length[at].words}\n({card.by_length[at].sentences:,})" for at in shown]
    axes.set_xticks(range(len(shown)), names)
    axes.grid(axis="y", alpha=0.3)
    axes.set_xlabel("words in the source (sentences)")
    axes.set_ylabel(f"BLEU, {card.name}")
    axes.margins(y=0.25)  # for the legend
    axes.legend(frameon=False, ncols=3, loc="upper center", fontsize=9)


def _nth(choices: Sequence[Any], i: int) -> Any:
    return choices[i % len(choices)]


def _apart(heights: Sequence[float], least: float) -> list[float]:
    """Places for labels beside heights, in their order, none closer to another than ``least``.

    >>> _apart([1.0, 5.0, 1.0], 1.0)
    [0.5, 5.0, 1.5]
    """
    order = sorted(range(len(heights)), key=heights.__getitem__)
    places = [heights[i] for i in order]
    for _ in range(100):  # push neighbours apart, each by half
        for a, b in pairwise(range(len(places))):
            push = max(0.0, least - (places[b] - places[a])) / 2
            places[a], places[b] = places[a] - push, places[b] + push
    return [place for _, place in sorted(zip(order, places, strict=True))]
