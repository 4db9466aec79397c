"""What a score is, with its interval and the difference of two; and the scores of translations: lists of strings in,
numbers out. Nothing here knows a model or a file.

BLEU and chrF are sacreBLEU's (Post 2018), with the signatures to quote them by. Both are functions of counts that are
added up over sentences, so the score of any sample of sentences is a sum of rows away: that gives the intervals, the
comparison of two systems (Koehn 2004) and the score of sentences of like length.
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard import __version__
from regard.schema import InputError, Node

SAMPLES = 1000
SEED = 12345  # sacreBLEU's own: its intervals and p-values are then ours
BUCKETS = (5, 10, 20, 30, 50)  # the most words in each; what is longer comes last


class Score:
    """A score of a system's output, and what it follows from: a row of ``counts`` for each text, and a function of how
    often each row is taken. A signature says how it was counted.

    >>> score = bleu(["the cat sat on the mat", "a dog"], [["the cat sat on a mat", "a dog"]])
    >>> round(score.value, 1), score.name
    (55.8, 'BLEU')
    >>> low, high = score.interval
    >>> low <= score.value <= high
    True
    """

    def __init__(
        self,
        name: str,
        counts: NDArray[np.float64],
        of: Callable[[NDArray[np.float64]], float],
        signature: str = f"bs:{SAMPLES}|seed:{SEED}|version:regard-{__version__}",
    ):
        self.name, self.counts, self._of, self.signature = name, counts, of, signature

    @classmethod
    def of_sums(
        cls, name: str, counts: NDArray[np.float64], of: Callable[[NDArray[np.float64]], float], **options: str
    ):
        """A score that follows from the counts summed over all texts."""
        return cls(name, counts, lambda times: of(times @ counts), **options)

    @cached_property
    def value(self) -> float:
        """The score of all texts."""
        return self._of(np.ones(len(self.counts)))

    @cached_property
    def samples(self) -> NDArray[np.float64]:
        """The scores of bootstrap samples: as many texts, drawn with replacement. Systems with the same texts are given
        the same draws, so that their samples are pairs."""
        draw, n = np.random.default_rng(SEED), len(self.counts)
        times = (np.bincount(draw.integers(n, size=n), minlength=n) for _ in range(SAMPLES))
        return np.array([self._of(drawn.astype(np.float64)) for drawn in times])

    @property
    def interval(self) -> tuple[float, float]:
        """Between which 95 % of the samples are."""
        return _middle(self.samples)

    def by_length(self, texts: Sequence[str]) -> tuple[Bucket, ...]:
        """The score of sentences of like length, in words of ``texts``: the sources, say. Lengths that don't occur are
        left out.

        >>> score = bleu(["a b c d", "a b c d e f g"], [["a b c d", "a b c d x y z"]])
        >>> for bucket in score.by_length(["eins zwei", "eins zwei drei vier fünf sechs"]):
        ...     print(bucket.words, bucket.sentences, round(bucket.score, 1))
        1-5 1 100.0
        6-10 1 41.1
        """
        if len(texts) != len(self.counts):
            raise InputError(f"{len(texts):,} texts and {len(self.counts):,} translations: give as many of each")
        which = np.searchsorted(BUCKETS, [len(text.split()) for text in texts])
        least = [1, *(most + 1 for most in BUCKETS)]
        names = [*(f"{a}-{b}" for a, b in zip(least, BUCKETS, strict=False)), f">{BUCKETS[-1]}"]
        found = [(name, which == i) for i, name in enumerate(names) if (which == i).any()]
        return tuple(
            Bucket(words=name, sentences=int(here.sum()), score=self._of(here.astype(np.float64)))
            for name, here in found
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        low, high = self.interval
        return {
            "score": round(self.value, 4),
            "low": round(low, 4),
            "high": round(high, 4),
            "signature": self.signature,
        }


@dataclass(frozen=True, kw_only=True)
class Bucket(Node):
    """The score of sentences of like length."""

    words: str
    sentences: int
    score: float


# ---------------------------------------------------------------------------------------
# The metrics. References are a list for each: [[the first of every sentence], [the second of every sentence], ...]


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """sacreBLEU: BLEU of texts as they are, with the tokenizer that everybody has (13a).

    >>> bleu(["a cat"], [["a cat"], ["one cat"]]).signature
    'nrefs:2|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp|version:2...'
    """
    return _sacrebleu("BLEU", _package("sacrebleu").BLEU(), hypotheses, references)


def caption_bleu(captions: Sequence[str], references: Sequence[Sequence[str]], order: int = 4) -> Score:
    """BLEU-1 to BLEU-4 of captions, lowercased; ``references`` has those of each image, as many as it has.

    >>> score = caption_bleu(["a dog runs"], [["A dog runs", "one dog"]], order=2)
    >>> score.name, round(score.value)
    ('BLEU-2', 100)
    """
    metric = _package("sacrebleu").BLEU(max_ngram_order=order, lowercase=True, force=True)
    return _sacrebleu(f"BLEU-{order}", metric, captions, by_number(references))


def by_number(references: Sequence[Sequence[str]]) -> list[list[Any]]:
    """The references of each text as the first of every text, the second of every text, ...; None where there is none.

    >>> by_number([["a", "b"], ["c"]])
    [['a', 'c'], ['b', None]]
    """
    return [list(lines) for lines in itertools.zip_longest(*references)]


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """chrF2: how many pieces of up to six characters are shared, recall counting twice (Popović 2015).

    >>> round(chrf(["a cat sits"], [["a cat sat"]]).value, 1)
    47.4
    """
    return _sacrebleu("chrF2", _package("sacrebleu").CHRF(), hypotheses, references)


def check_language(language: str) -> None:
    """Refuse what is no code of a language, for Moses' tokenizer would take it for English without a word."""
    if not re.fullmatch("[a-z]{2,3}", language):
        raise InputError(f"language ({language}) must be the code of one, two or three small letters: de, fr")


def moses_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str = "en") -> Score:
    """Tokenised lowercased BLEU, as papers print it: both sides through Moses' tokenizer for the language that is
    written. Where Moses does not know the language it does as for English.

    >>> score = moses_bleu(["A dog's life."], [["a Dog's life."]])
    >>> round(score.value), score.signature
    (100, 'nrefs:1|bs:1000|seed:12345|case:lc|eff:no|tok:moses-en-sacremoses-...|smooth:exp|version:2...')
    """
    moses = _package("sacremoses")
    tokenizer = moses.MosesTokenizer(lang=language)

    def tokenised(texts: Sequence[str]) -> list[str]:
        options = {"aggressive_dash_splits": False, "escape": False, "return_str": True}
        return [tokenizer.tokenize(text, **options) for text in texts]

    return _sacrebleu(
        "tokenised lowercased BLEU",
        _package("sacrebleu").BLEU(tokenize="none", lowercase=True, force=True),
        tokenised(hypotheses),
        [tokenised(lines) for lines in references],
        tokenizer=f"moses-{language}-sacremoses-{moses.__version__}",
    )


def _sacrebleu(
    name: str,
    metric: Any,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    tokenizer: str | None = None,
) -> Score:
    for i, lines in enumerate(references, 1):
        if len(lines) != len(hypotheses):
            raise InputError(
                f"{len(hypotheses):,} translations and {len(lines):,} lines of reference {i}: give as many of each"
            )
    if not references or not hypotheses:
        raise InputError("nothing to score; give translations, and at least one reference for each")
    counts = np.asarray(metric._extract_corpus_statistics(hypotheses, references), np.float64)
    metric.n_bootstrap, metric.seed = SAMPLES, SEED
    signature = metric.get_signature()
    if tokenizer is not None:
        signature.update("tok", tokenizer)
    return Score.of_sums(
        name,
        counts,
        lambda sums: metric._compute_score_from_stats(sums.tolist()).score,
        signature=str(signature),
    )


def check_packages() -> None:
    """Refuse to begin what could not be scored in the end."""
    for name in ("sacrebleu", "sacremoses"):
        _package(name)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"scores need {name}; install it: pip install {name}") from None


# ---------------------------------------------------------------------------------------
# Two systems


@dataclass(frozen=True, kw_only=True)
class Difference(Node):
    """How much better the second of two systems is, between what bounds, and how likely as much is by chance."""

    first: float
    second: float
    difference: float
    low: float
    high: float
    p: float


def difference(first: Score, second: Score) -> Difference:
    """Two systems on the same sentences: paired bootstrap resampling (Koehn 2004), with sacreBLEU's p-value.

    >>> references = [["a dog runs over the field", "two cats sleep", "the bird sings"]]
    >>> good, bad = bleu(references[0], references), bleu(["a dog", "cats cats", "the bird sings"], references)
    >>> difference(bad, good).difference > 0
    True
    >>> difference(good, good).p
    1.0
    """
    if len(first.counts) != len(second.counts) or first.signature != second.signature:
        raise InputError(
            f"{len(first.counts):,} sentences ({first.signature}) and {len(second.counts):,} ({second.signature}):"
            " only scores of one kind, of the same sentences, can be compared"
        )
    by_chance = np.abs(second.samples - first.samples)
    real = second.value - first.value
    low, high = _middle(second.samples - first.samples)
    # At least as far from their mean, not only farther as in sacreBLEU: of a system and itself that would say 0.001.
    as_far = by_chance - by_chance.mean() >= abs(real)
    p = (int(as_far.sum()) + 1) / (SAMPLES + 1)
    return Difference(first=first.value, second=second.value, difference=real, low=low, high=high, p=p)


def _middle(samples: NDArray[np.float64]) -> tuple[float, float]:
    """The bounds that leave out 2.5 % on either side."""
    ordered, out = np.sort(samples), SAMPLES // 40
    return float(ordered[out]), float(ordered[-out - 1])
