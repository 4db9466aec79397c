"""Tags of words to spans of them, as conlleval and seqeval read them: IOB1, IOB2 (BIO) and BIOES alike.

A span goes on where an I or E follows a B or I of its own kind, and ends everywhere else; so the I that begins a span
in IOB1, and one that a model put where the scheme has none, begin a span.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_SCHEME = re.compile(r"O|[BIES](-.+)?")


class Stretch(NamedTuple):
    """Words from number ``begin`` up to ``end``, the last not among them, and what they are."""

    label: str
    begin: int
    end: int


def is_scheme(labels: Iterable[str]) -> bool:
    """Whether labels are of a scheme that marks spans.

    >>> is_scheme(["B-PER", "I-PER", "O"]), is_scheme(["NOUN", "VERB"]), is_scheme(["O"])
    (True, False, False)
    """
    labels = set(labels)
    return labels != {"O"} and bool(labels) and all(_SCHEME.fullmatch(label) for label in labels)


def spans(tags: Sequence[str]) -> list[Stretch]:
    """The spans that tags mark.

    >>> spans(["B-PER", "I-PER", "O", "B-LOC", "B-LOC"])
    [Stretch(label='PER', begin=0, end=2), Stretch(label='LOC', begin=3, end=4), Stretch(label='LOC', begin=4, end=5)]
    """
    found: list[Stretch] = []
    begin: int | None = None
    before = ("O", "")
    for i, tag in enumerate([*tags, "O"]):
        prefix, kind = tag[:1], tag[1:].partition("-")[2] or "_"
        goes_on = prefix in "IE" and before[0] in "BI" and before[1] == kind
        if begin is not None and not goes_on:
            found.append(Stretch(before[1], begin, i))
            begin = None
        if prefix != "O" and begin is None:
            begin = i
        before = prefix, kind
    return found
