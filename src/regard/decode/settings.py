"""How sequences are chosen, as data. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from regard.schema import Node, at_least


@dataclass(frozen=True, kw_only=True)
class Decoding(Node):
    """How sequences are chosen.

    >>> Decoding(temperature=0.8, n_best=3).ways
    3
    """

    beam: int | None = None
    """Ways that go on at each step; 1 is greedy search. Left out: 4, and with a temperature none."""
    n_best: int = 1
    """Sequences to return: the best that the beam found, or so many draws."""
    length_penalty: float = 0.6
    """How much long sequences are favoured: 0 not at all. A score is the logarithm of the probability over the
    penalty."""
    penalty: Literal["gnmt", "plain"] = "gnmt"
    """The penalty of n tokens: ((5 + n) / 6) ** length_penalty (Wu et al. 2016), or n ** length_penalty."""
    min_length: int = 0
    """Tokens before which nothing ends, the end token among them."""
    max_length: int | None = None
    """Tokens after which everything ends. Left out: twice the source and 16 more."""
    temperature: float = 0.0
    """Above 0: draw each token, from sharper (below 1) or flatter (above 1) probabilities."""
    top_k: int = 0
    """Draw from so many of the most likely tokens only; 0 is all."""
    top_p: float = 1.0
    """Draw from the fewest most likely tokens that have this share of the probability together."""
    seed: int = 0
    """Of the draws."""

    @property
    def ways(self) -> int:
        return self.n_best if self.temperature else 4 if self.beam is None else self.beam

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "beam", "n_best", "max_length")
        yield from at_least(self, 0, "length_penalty", "min_length", "temperature", "top_k", "seed")
        if not 0 < self.top_p <= 1:
            yield f"top_p ({self.top_p}) must be above 0 and at most 1"
        if self.temperature and self.beam is not None:
            yield f"beam ({self.beam}) and temperature ({self.temperature}): a beam does not draw; give one of them"
        if not self.temperature and (self.top_k or self.top_p != 1):
            yield "top_k and top_p: go with a temperature above 0"
        if self.n_best > self.ways >= 1:
            yield f"n_best ({self.n_best}) must be at most beam ({self.ways})"
        if self.max_length is not None and self.max_length < self.min_length:
            yield f"max_length ({self.max_length}) must be at least min_length ({self.min_length})"

    def norm(self, n: Any) -> Any:
        """What the logarithm of the probability of n tokens is divided by: of a number, an array or a tensor."""
        return (n if self.penalty == "plain" else (5 + n) / 6) ** self.length_penalty
