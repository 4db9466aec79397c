"""The score card of a translator: BLEU and chrF of its translations, by length; the loss of the references.

:func:`evaluate` makes one from texts and a model that translates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import RenderableType
from rich.text import Text

from regard.decode import Decoding
from regard.decode.translate import Progress
from regard.evaluate import facts
from regard.evaluate.loss import Likelihood, likelihood
from regard.evaluate.scorecard import Scorecard, about, table
from regard.evaluate.scores import Bucket, bleu, check_language, check_packages, chrf, moses_bleu
from regard.model import Model
from regard.schema import InputError


@dataclass(frozen=True, kw_only=True)
class TranslationCard(Scorecard):
    """A translator's scores on one test set."""

    unit: ClassVar[str] = "sentences"

    by_length: tuple[Bucket, ...]  # BLEU by the words of the source
    likelihood: Likelihood
    decoding: dict[str, Any]

    @property
    def figures(self) -> dict[str, float]:
        return {"loss": self.likelihood.loss, "perplexity": self.likelihood.perplexity}

    def more(self) -> dict[str, Any]:
        return {
            "by_length": [{**bucket.to_dict(), "score": round(bucket.score, 4)} for bucket in self.by_length],
            "loss": _number(self.likelihood.loss, 6),
            "perplexity": _number(self.likelihood.perplexity, 4),
            "tokens": self.likelihood.tokens,
            "left_out_of_loss": self.likelihood.left_out,
            "decoding": self.decoding,
        }

    def pages(self) -> Iterator[RenderableType]:
        if self.likelihood.left_out:
            yield Text(f"too long for the model's positions, and so for a loss: {self.likelihood.left_out:,} of them")
        yield Text()
        lengths = table("words in the source", "sentences", self.scores[0].name)
        for bucket in self.by_length:
            lengths.add_row(bucket.words, f"{bucket.sentences:,}", f"{bucket.score:.2f}")
        yield lengths

    def settings(self) -> Iterator[tuple[str, str]]:
        told = {key: value for key, value in self.decoding.items() if value or key == "length_penalty"}
        yield "decoding", ", ".join(f"{key} {value}" for key, value in told.items())


def evaluate(
    model: Model,
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    name: str = "test",
    language: str = "en",
    progress: Progress | None = None,
    **options: Any,
) -> TranslationCard:
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
    check_language(language)
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
    return TranslationCard(
        name=name,
        scores=scores,
        by_length=scores[0].by_length(sources),
        likelihood=likelihood(model, [*sources] * len(references), [line for lines in references for line in lines]),
        decoding=_settings(how),
        seconds=seconds,
        data={"source": facts.text_hash(sources), "references": [facts.text_hash(lines) for lines in references]},
        **about(model),
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
    drawing = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    other = ("beam", "length_penalty", "penalty") if how.temperature else drawing
    plain = {**how.to_dict(), "beam": how.ways}
    return {key: value for key, value in plain.items() if key not in (*other, "n_best")}


def _number(value: float, digits: int) -> float | None:
    """Rounded; a number that JSON has not is none."""
    return round(value, digits) if math.isfinite(value) else None
