"""Scores of labels, of tags and of numbers: lists in, scores with intervals out. Nothing here knows a model or a file.

All are printed times 100, as GLUE prints them. A text has one label, or a list of them, one for each word: then whole
sentences are what is drawn anew for an interval.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.encode.spans import spans
from regard.evaluate.scores import Score
from regard.schema import InputError

Labels = Sequence[str] | Sequence[Sequence[str]]
"""A label for each text, or those of the words of each sentence."""
Sums = NDArray[np.float64]


def accuracy(predicted: Labels, wanted: Labels) -> Score:
    """The share of labels that are right.

    >>> accuracy(["no", "yes", "yes", "no"], ["no", "yes", "no", "no"]).value
    75.0
    """
    rows = _rows(predicted, wanted)
    counts = [(sum(p == w for p, w in zip(*row, strict=True)), len(row[0])) for row in rows]
    return Score.of_sums("accuracy", np.array(counts, np.float64), lambda sums: _share(sums[0], sums[1]))


def f1(predicted: Labels, wanted: Labels, label: str) -> Score:
    """F1 of one label: the harmonic mean of how many that were said were right, and how many that were wanted were
    said.

    >>> round(f1(["no", "yes", "yes"], ["no", "yes", "no"], "yes").value, 1)
    66.7
    """
    rows = _rows(predicted, wanted)
    said = np.array([_hits(row, label) for row in rows], np.float64)
    return Score.of_sums(f"F1 of {label}", said, lambda sums: _f1(*sums))


def macro_f1(predicted: Labels, wanted: Labels) -> Score:
    """The mean F1 of all labels that are said or wanted.

    >>> round(macro_f1(["no", "yes", "yes"], ["no", "yes", "no"]).value, 1)
    66.7
    """
    rows = _rows(predicted, wanted)
    labels = _labels(rows)
    counts = np.array([[n for label in labels for n in _hits(row, label)] for row in rows], np.float64)

    def of(sums: Sums) -> float:
        each = sums.reshape(-1, 3)
        each = each[each[:, 1:].any(1)]
        return float(np.mean([_f1(*of_label) for of_label in each])) if len(each) else 0.0

    return Score.of_sums("macro F1", counts, of)


def matthews(predicted: Labels, wanted: Labels) -> Score:
    """Matthews' correlation of what is said and what is wanted, for two labels or more (Gorodkin 2004).

    >>> round(matthews(["no", "yes", "yes", "no"], ["no", "yes", "no", "no"]).value, 1)
    57.7
    """
    rows = _rows(predicted, wanted)
    labels = _labels(rows)
    hits = np.array([[_hits(row, label) for label in labels] for row in rows], np.float64)  # (N, L, 3)
    counts = np.concatenate([hits[:, :, 0].sum(1, keepdims=True), hits[:, :, 1], hits[:, :, 2]], axis=1)

    def of(sums: Sums) -> float:
        right, (said, asked) = sums[0], np.split(sums[1:], 2)
        n = said.sum()
        scale = np.sqrt((n**2 - said @ said) * (n**2 - asked @ asked))
        return 100 * float((right * n - said @ asked) / scale) if scale > 0 else 0.0

    return Score.of_sums("Matthews", counts, of)


# ---------------------------------------------------------------------------------------
# Entities: a span is right if its words and its kind are


def entity_f1(predicted: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]], label: str | None = None) -> Score:
    """F1 of the spans that tags mark (IOB1, IOB2, BIOES), as conlleval and seqeval count them; of one kind, or all.

    >>> round(entity_f1([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O", "O"]]).value, 1)
    66.7
    """
    counts = _entities(predicted, wanted, label)
    return Score.of_sums(f"F1 of {label}" if label else "entity F1", counts, lambda sums: _f1(*sums))


def entity_precision(predicted: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> Score:
    """The share of spans that are right, of those that were said.

    >>> entity_precision([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]]).value
    50.0
    """
    counts = _entities(predicted, wanted)
    return Score.of_sums("entity precision", counts, lambda sums: _share(sums[0], sums[1]))


def entity_recall(predicted: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> Score:
    """The share of spans that were said, of those that are wanted.

    >>> entity_recall([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]]).value
    100.0
    """
    counts = _entities(predicted, wanted)
    return Score.of_sums("entity recall", counts, lambda sums: _share(sums[0], sums[2]))


def _entities(predicted: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]], label: str | None = None) -> Sums:
    """Of each sentence how many spans are right, said and wanted."""
    counts = []
    for row in _rows(predicted, wanted):
        said, asked = ({span for span in spans(tags) if label in (None, span.label)} for tags in row)
        counts.append((len(said & asked), len(said), len(asked)))
    return np.array(counts, np.float64)


# ---------------------------------------------------------------------------------------
# Numbers


def pearson(predicted: Sequence[float], wanted: Sequence[float]) -> Score:
    """The correlation of numbers.

    >>> round(pearson([1.0, 2.0, 4.0], [1.0, 2.0, 3.0]).value, 1)
    98.2
    """
    values = _numbers(predicted, wanted)
    return Score("Pearson", values, lambda times: _correlation(values, times))


def spearman(predicted: Sequence[float], wanted: Sequence[float]) -> Score:
    """The correlation of the numbers' ranks, those of equal numbers averaged. A sample is ranked anew.

    >>> round(spearman([1.0, 2.0, 4.0], [1.0, 2.0, 3.0]).value)
    100
    """
    values = _numbers(predicted, wanted)
    places = [np.unique(column, return_inverse=True)[1] for column in values.T]

    def of(times: Sums) -> float:
        ranks = []
        for place in places:
            taken = np.bincount(place, times)  # how often each value is there
            ranks.append((np.cumsum(taken) - (taken - 1) / 2)[place])
        return _correlation(np.stack(ranks, axis=1), times)

    return Score("Spearman", values, of)


def _correlation(values: Sums, times: Sums) -> float:
    centred = values - times @ values / times.sum()
    (xx, xy), (_, yy) = (centred * times[:, None]).T @ centred
    return 100 * float(xy / np.sqrt(xx * yy)) if xx > 0 and yy > 0 else 0.0


def _numbers(predicted: Sequence[float], wanted: Sequence[float]) -> Sums:
    _check(predicted, wanted)
    return np.stack([np.asarray(predicted, np.float64), np.asarray(wanted, np.float64)], axis=1)


# ---------------------------------------------------------------------------------------
# Counting


def _check(predicted: Sequence, wanted: Sequence) -> None:
    if len(predicted) != len(wanted):
        raise InputError(f"{len(predicted):,} labels and {len(wanted):,} that are wanted: give as many of each")
    if not len(wanted):
        raise InputError("nothing to score; give at least one label")


def _rows(predicted: Labels, wanted: Labels) -> list[tuple[list[str], list[str]]]:
    """What is said and wanted of each text, as lists."""
    _check(predicted, wanted)
    rows = [
        ([said], [asked]) if isinstance(said, str) and isinstance(asked, str) else (list(said), list(asked))
        for said, asked in zip(predicted, wanted, strict=True)
    ]
    for number, (said, asked) in enumerate(rows, 1):
        if len(said) != len(asked):
            raise InputError(f"sentence {number} has {len(said)} tags and {len(asked)} that are wanted: give as many")
    return rows


def _labels(rows: list[tuple[list[str], list[str]]]) -> list[str]:
    return sorted({label for row in rows for side in row for label in side})


def _hits(row: tuple[list[str], list[str]], label: str) -> tuple[int, int, int]:
    """How often a label is right, said and wanted."""
    said, asked = row
    right = sum(s == a == label for s, a in zip(said, asked, strict=True))
    return right, said.count(label), asked.count(label)


def _share(part: float, whole: float) -> float:
    return 100 * float(part / whole) if whole else 0.0


def _f1(right: float, said: float, asked: float) -> float:
    return _share(2 * right, said + asked)
