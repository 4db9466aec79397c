"""The score card: how good a model's translations of a test set are, and all that is needed to say so again.

:func:`evaluate` makes one from texts and a model that translates; nothing is printed here, and nothing but
``scorecard.json`` in the run directory is written.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from regard.decode import Decoding
from regard.decode.translate import Progress
from regard.evaluate import facts
from regard.evaluate.loss import Likelihood, likelihood
from regard.evaluate.scores import Bucket, Difference, Score, bleu, check_packages, chrf, difference, moses_bleu
from regard.files import write_text
from regard.model import Model
from regard.schema import InputError
from regard.train.run import Run

FILE = "scorecard.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Scorecard:
    """A model's scores on one test set. Show it with rich, ``save`` it, or take ``to_dict()``."""

    name: str  # of the test set
    model: dict[str, Any]  # where it is, its size and precision, the hash of its weights
    scores: tuple[Score, ...]
    by_length: tuple[Bucket, ...]  # BLEU by the words of the source
    likelihood: Likelihood
    decoding: dict[str, Any]
    seconds: float  # that decoding took
    data: dict[str, Any]  # hashes of the texts
    versions: dict[str, str]
    hardware: str
    training: dict[str, Any] | None  # steps and seconds, where the run directory tells

    @property
    def sentences(self) -> int:
        return len(self.scores[0].counts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "name": self.name,
            "model": self.model,
            "sentences": self.sentences,
            "scores": {score.name: score.to_dict() for score in self.scores},
            "by_length": [{**bucket.to_dict(), "score": round(bucket.score, 4)} for bucket in self.by_length],
            "loss": _number(self.likelihood.loss, 6),
            "perplexity": _number(self.likelihood.perplexity, 4),
            "tokens": self.likelihood.tokens,
            "left_out_of_loss": self.likelihood.left_out,
            "decoding": self.decoding,
            "seconds": round(self.seconds, 3),
            "sentences_per_second": round(self.sentences / self.seconds, 3),
            "data": self.data,
            "versions": self.versions,
            "hardware": self.hardware,
            "training": self.training,
        }

    def save(self, run: str | Path) -> Path:
        """Write it into a run directory's scorecard.json, beside those of other test sets; one of the same name is
        replaced. The file is there whole or not at all."""
        path = Path(run) / FILE
        cards = read_cards(run) if path.exists() else {"format": FORMAT, "sets": {}}
        cards["sets"][self.name] = {key: value for key, value in self.to_dict().items() if key != "name"}
        write_text(path, json.dumps(cards, indent=2, ensure_ascii=False) + "\n")
        return path

    # -- the page ------------------------------------------------------------------------

    def __rich__(self) -> RenderableType:
        return Group(*self._page())

    def _page(self) -> Iterator[RenderableType]:
        yield Text(f"{self.model['path']}: {self.name}, {self.sentences:,} sentences\n", style="bold")
        table = _table("", "score", "95 % within")
        for score in self.scores:
            low, high = score.interval
            table.add_row(score.name, f"{score.value:.2f}", f"{low:.2f} to {high:.2f}")
        table.add_row("loss", f"{self.likelihood.loss:.4f}", "")
        table.add_row("perplexity", f"{self.likelihood.perplexity:.3f}", "")
        yield table
        if self.likelihood.left_out:
            yield Text(f"too long for the model's positions, and so for a loss: {self.likelihood.left_out:,} of them")
        yield Text()
        table = _table("words in the source", "sentences", self.scores[0].name)
        for bucket in self.by_length:
            table.add_row(bucket.words, f"{bucket.sentences:,}", f"{bucket.score:.2f}")
        yield table
        yield Text()
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row("decoding", ", ".join(f"{key} {value}" for key, value in self.decoding.items() if value))
        table.add_row("", f"{self.seconds:.1f} s, {self.sentences / self.seconds:,.1f} sentences a second")
        table.add_row("hardware", self.hardware)
        if self.training is not None:
            table.add_row("training", "; ".join(_trained(self.training)))
        yield table
        yield Text()
        for score in self.scores:
            yield Text(f"{score.name}: {score.signature}", style="dim", overflow="fold")


def evaluate(
    model: Model,
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    name: str = "test",
    language: str = "en",
    progress: Progress | None = None,
    **options: Any,
) -> Scorecard:
    """Translate texts with a model and score the translations.

    ``references`` has a list for each reference of the whole set, one at least. ``name`` is what the set is called in
    ``scorecard.json``, ``language`` that of what is written, for Moses' tokenizer. Options are those of
    :class:`~regard.decode.Decoding`: beam, length_penalty ...

    >>> from regard import Model, Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_encoder_decoder"}, vocab_size=len(tokens))
    >>> card = evaluate(Model(Transformer(config), "translate", tokens), ["A dog."], [["Ein Hund."]], beam=2)
    >>> card.decoding["beam"], [score.name for score in card.scores]
    (2, ['BLEU', 'chrF2', 'tokenised lowercased BLEU'])
    """
    how = Decoding(**options).validate()
    _check(model, sources, references)
    begun = time.perf_counter()
    hypotheses = [
        translation.text for translation in model.translate(sources, whole=True, progress=progress, **options)
    ]
    seconds = time.perf_counter() - begun
    scores = (
        bleu(hypotheses, references),
        chrf(hypotheses, references),
        moses_bleu(hypotheses, references, language),
    )
    return Scorecard(
        name=name,
        model=facts.of_model(model),
        scores=scores,
        by_length=scores[0].by_length(sources),
        likelihood=likelihood(model, [*sources] * len(references), [line for lines in references for line in lines]),
        decoding=_settings(how),
        seconds=seconds,
        data={"source": facts.text_hash(sources), "references": [facts.text_hash(lines) for lines in references]},
        versions=facts.versions(),
        hardware=facts.hardware(model.device),
        training=None if model.path is None else Run(model.path).training(),
    )


def _check(model: Model, sources: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Find what cannot be scored before it is translated."""
    model.check_task("translate")
    if not sources or not references:
        raise InputError("nothing to score; give source texts and at least one reference for each")
    for i, lines in enumerate(references, 1):
        if len(lines) != len(sources):
            raise InputError(f"{len(sources):,} source texts and {len(lines):,} of reference {i}: give as many of each")
    check_packages()


def _settings(how: Decoding) -> dict[str, Any]:
    """What the translations depend on: a beam, or how they were drawn."""
    other = ("beam", "length_penalty", "penalty") if how.temperature else ("temperature", "top_k", "top_p", "seed")
    plain = {**how.to_dict(), "beam": how.ways}
    return {key: value for key, value in plain.items() if key not in (*other, "n_best")}


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
    if not isinstance(cards, dict) or not isinstance(cards.get("sets"), dict) or cards.get("format") != FORMAT:
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
        yield Text(f"{self.first.name}, {self.first.sentences:,} sentences\n", style="bold")
        yield Text(f"A  {self.first.model['path']}\nB  {self.second.model['path']}\n")
        table = _table("", "A", "B", "B - A", "95 % within", "p")
        for name, of in self.differences.items():
            scores = f"{of.first:.2f}", f"{of.second:.2f}", f"{of.difference:+.2f}"
            table.add_row(name, *scores, f"{of.low:+.2f} to {of.high:+.2f}", f"{of.p:.4f}")
        for name in ("loss", "perplexity"):
            a, b = (getattr(card.likelihood, name) for card in (self.first, self.second))
            table.add_row(name, f"{a:.4f}", f"{b:.4f}", f"{b - a:+.4f}", "", "")
        yield table
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


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right" if table.columns else "left", no_wrap=True)
    return table


def _number(value: float, digits: int) -> float | None:
    """Rounded; a number that JSON has not is none."""
    return round(value, digits) if math.isfinite(value) else None


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
