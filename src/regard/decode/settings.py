"""How sequences are chosen, as data. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from regard.schema import InputError, Node, at_least

TEMPERATURE = 0.8  # of a language model that is told nothing else
LEAST = 1e-6  # temperature: scores over less are no numbers any more


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
    """Tokens before which nothing ends, the end token among them; of a text, before which no sentence of it does."""
    max_length: int | None = None
    """Tokens after which everything ends. Left out: twice the source and 16 more, or ``min_length`` if that is more."""
    temperature: float = 0.0
    """Above 0: draw each token, from sharper (below 1) or flatter (above 1) probabilities."""
    top_k: int = 0
    """Draw from so many of the most likely tokens only; 0 is all."""
    top_p: float = 1.0
    """Draw from the fewest most likely tokens that have this share of the probability together."""
    min_p: float = 0.0
    """Draw from the tokens that have at least this share of the most likely one's probability."""
    repetition_penalty: float = 1.0
    """Above 1: tokens that stand in the prompt or were written are made less likely (Keskar et al. 2019): of their
    logits the positive ones are divided by this, the negative ones multiplied."""
    seed: int = 0
    """Of the draws."""

    @property
    def ways(self) -> int:
        return self.n_best if self.temperature else 4 if self.beam is None else self.beam

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "beam", "n_best", "max_length")
        yield from at_least(self, 0, "length_penalty", "min_length", "temperature", "top_k", "seed")
        if 0 < self.temperature < LEAST:
            yield f"temperature ({self.temperature}) must be 0, which is greedy, or at least {LEAST}"
        if not 0 < self.top_p <= 1:
            yield f"top_p ({self.top_p}) must be above 0 and at most 1"
        if not 0 <= self.min_p <= 1:
            yield f"min_p ({self.min_p}) must be at least 0 and at most 1"
        if self.repetition_penalty <= 0:
            yield f"repetition_penalty ({self.repetition_penalty}) must be above 0; 1 is none"
        if self.repetition_penalty != 1 and not self.temperature and self.ways > 1:
            yield f"repetition_penalty ({self.repetition_penalty}): not with a beam of {self.ways}; take beam 1"
        if self.temperature and self.beam is not None:
            yield f"beam ({self.beam}) and temperature ({self.temperature}): a beam does not draw; give one of them"
        if not self.temperature and (self.top_k or self.top_p != 1 or self.min_p):
            yield "top_k, top_p and min_p: go with a temperature above 0"
        if self.n_best > self.ways >= 1:
            yield f"n_best ({self.n_best}) must be at most beam ({self.ways})"
        if self.max_length is not None and self.max_length < self.min_length:
            yield f"max_length ({self.max_length}) must be at least min_length ({self.min_length})"

    @property
    def asked_for(self) -> int:
        """Tokens that it says it wants: at the most, or else at the least."""
        return self.max_length or self.min_length

    def norm(self, n: Any) -> Any:
        """What the logarithm of the probability of n tokens is divided by: of a number, an array or a tensor."""
        return (n if self.penalty == "plain" else (5 + n) / 6) ** self.length_penalty


def to_generate(*, n: int = 1, stop: Sequence[str] = (), **options: Any) -> Decoding:
    """The settings of a language model: it draws, unless it is given a beam or a temperature of 0, which is greedy.

    >>> to_generate(n=3).temperature, to_generate(temperature=0).ways, to_generate(beam=4).ways
    (0.8, 1, 4)
    """
    if not isinstance(n, int) or n < 1:
        raise InputError(f"n ({n}) must be at least 1")
    if not all(isinstance(one, str) and one for one in stop):
        raise InputError(f"stop ({', '.join(map(repr, stop))}) must have at least one character")
    draws = bool(options.get("temperature", options.get("beam") is None))
    options = {"temperature": TEMPERATURE, **options} if draws else {"beam": 1, **options}
    if not draws and options["beam"] == 1 < n:
        raise InputError(f"n ({n}): greedy search finds one text; draw (temperature above 0), or give a beam of {n}")
    how = Decoding(n_best=n, **options).validate()
    if stop and not draws and how.ways > 1:
        raise InputError(f"stop: not with a beam of {how.ways}, which ranks whole texts; draw, or take beam 1")
    return how
