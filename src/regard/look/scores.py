"""The blackboard: scores that somebody wrote down, scaled and turned into weights. No model, and no torch."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regard.config import InputError
from regard.look.page import as_text, scores_page

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(frozen=True, kw_only=True)
class ScoresWalk:
    """One query's scores on their way to weights: steps 4 and 5 by themselves.

    >>> print(walk_scores([102, 99], d_key=3))
    From scores to weights: divide by √3 = 1.7321, then softmax
    <BLANKLINE>
      key  score   scaled  weight
        1    102  58.8897  0.8497  █████████████████
        2     99  57.1577  0.1503  ███
    """

    scores: tuple[float, ...]
    d_key: int
    scaled: tuple[float, ...]
    weights: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON.

        >>> walk_scores([4, 4], d_key=4).to_dict()
        {'scores': [4.0, 4.0], 'd_key': 4, 'scaled': [2.0, 2.0], 'weights': [0.5, 0.5]}
        """
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    def __str__(self) -> str:
        return as_text(self)

    def __rich__(self) -> Group:
        return scores_page(self)


def walk_scores(scores: Iterable[float], d_key: int = 64) -> ScoresWalk:
    """Given scores of one query, divided by the square root of the keys' width, and their softmax.

    >>> [round(weight, 4) for weight in walk_scores([112, 96, 16, 8], d_key=64).weights]
    [0.8808, 0.1192, 0.0, 0.0]
    """
    given = list(scores)
    if not given:
        raise InputError("scores are empty; give at least one number")
    for score in given:
        if not isinstance(score, numbers.Real) or isinstance(score, bool) or not _finite(score):
            raise InputError(f"scores ({score!r}) must be finite numbers")
    if not isinstance(d_key, int) or isinstance(d_key, bool) or d_key < 1:
        raise InputError(f"d_key ({d_key!r}) must be a whole number of at least 1")
    exact = tuple(float(score) for score in given)
    scaled = tuple(score / math.sqrt(d_key) for score in exact)
    # Less the largest: the weights stay the same and nothing overflows.
    largest = max(scaled)
    powers = [math.exp(score - largest) for score in scaled]
    total = sum(powers)
    weights = tuple(power / total for power in powers)
    return ScoresWalk(scores=exact, d_key=d_key, scaled=scaled, weights=weights)


def _finite(score: Any) -> bool:
    try:
        return math.isfinite(score)
    except OverflowError:  # a whole number too long for a float
        return False
