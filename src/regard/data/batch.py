"""What an update works on, and what every way of laying out batches shares: draws that belong to a place, and ragged
rows as rectangles."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from regard.data.augment import Treatment, treated
from regard.data.store import DataDir
from regard.nn.masks import Layout
from regard.recipe import Train

Ids = NDArray[np.int64]


class Vectors(NamedTuple):
    """What both sides of pairs look like to a model with two encoders, and which of them are pairs at all."""

    first: Float[Tensor, "N E"]
    text: Float[Tensor, "N E"]
    real: Bool[Tensor, " N"]


class Batch(NamedTuple):
    """What one part of an update works on. A negative ``wanted`` is left out of the loss, and so is a number that is
    none (labels that are numbers may be negative).

    ``at`` names the positions that are scored, in the flattened batch, where they are few (masked tokens, answers).
    Of preferences the first half of the rows has the chosen answers, the second the rejected ones; ``reference`` is how
    much likelier each chosen one was to the model that training began with, as a difference of logarithms.
    Images travel as bytes, with what is to be done to them in ``treatment``: :meth:`ready` does it.
    """

    inputs: Int[Tensor, "B S"] | UInt8[Tensor, "B H W C"] | Float[Tensor, "B C H W"]
    layout: Layout
    wanted: Int[Tensor, "..."] | Float[Tensor, " B"]
    target: Int[Tensor, "B T"] | None = None
    target_layout: Layout = Layout()
    segments: Int[Tensor, "B S"] | None = None
    at: Int[Tensor, " N"] | None = None
    pair: Int[Tensor, " B"] | None = None
    reference: Float[Tensor, " N"] | None = None
    treatment: Treatment | None = None
    second: Int[Tensor, " B"] | None = None
    """Another label, where images are mixed."""
    share: Float[Tensor, " B"] | None = None
    """Of the first label, beside that."""

    beside: Vectors | None = None
    """Of pairs: those of the whole update, where this is a part of it."""
    place: Int[Tensor, ""] | None = None
    """Where among them this part begins."""

    def ready(self, dtype: torch.dtype) -> Batch:
        """The same with images as a model reads them, changed as it was drawn for them, and the labels that they then
        have."""
        how = self.treatment
        if how is None:
            return self
        return self._replace(
            inputs=treated(self.inputs, how).to(dtype), treatment=None, second=how.second, share=how.share
        )

    def to(self, device: torch.device) -> Batch:
        """The same on a device; where it is pinned, the host does not wait for the copy."""
        return self if device.type == "cpu" else _each_tensor(self, lambda t: t.to(device, non_blocking=True))

    def used_on(self, stream: torch.cuda.Stream) -> None:
        """Not to be overwritten, when nobody holds it any more, before that stream is done with it."""
        _each_tensor(self, lambda t: t.record_stream(stream) or t)

    def pinned(self) -> Batch:
        """The same in memory that a GPU can read by itself."""
        return _each_tensor(self, Tensor.pin_memory)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its name, to write them to a file."""
        found: dict[str, Tensor] = {}
        for name, value in self._asdict().items():
            if isinstance(value, Layout | Treatment):
                found |= {f"{name}.{n}": v for n, v in value._asdict().items() if isinstance(v, Tensor)}
            elif isinstance(value, Tensor):
                found[name] = value
        return found


def _each_tensor(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return type(value)(*(_each_tensor(v, change) for v in value))  # type: ignore[arg-type]
    return value


class Size(NamedTuple):
    """How large one update is, known before it runs: predictions asked for, tokens on the side that is written (or the
    only one) or images, and over both sides what is real and what there is with padding."""

    wanted: int
    tokens: int
    real: int
    padded: int


class Batches(ABC):
    """One split as batches. ``len()`` is the number of batches an epoch; what it can be asked is the same for all."""

    unit = "tokens"  # what Size.tokens counts

    def __init__(self, data: DataDir, split: str, train: Train, *, shuffled: bool):
        self.data, self.train, self.shuffled = data, train, shuffled
        self.columns = data.split(split)
        if data.has_text:
            self.tokenizer, self.source_tokenizer = data.tokenizer, data.source_tokenizer
        self.seed = train.seed if shuffled else 0
        self.reference = np.zeros(0, np.float32)  # for preferences: a number a pair, once somebody has worked it out

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def rows(self, step: int) -> Ids:
        """The rows of a step."""

    @abstractmethod
    def size(self, step: int) -> Size:
        """How large a step is, over all of its parts."""

    @abstractmethod
    def make(self, step: int, rows: Ids) -> Batch:
        """The tensors of some rows of a step."""

    def part(self, step: int, index: int = 0, parts: int = 1) -> Batch:
        """The tensors of one of several equal parts of a step. A part that gets no row has one that asks for nothing,
        so that every process works in step."""
        rows = self.rows(step)
        mine = rows[index::parts]
        batch = self.make(step, mine if len(mine) else rows[:1])
        nothing = math.nan if batch.wanted.is_floating_point() else -1
        return batch if len(mine) else batch._replace(wanted=torch.full_like(batch.wanted, nothing))

    def hidden_words(self, ids: Ids, real: NDArray, step: int, rows: Ids, mask: int) -> Ids:
        """Word dropout: a share of the tokens read is hidden behind the mask token."""
        if not (self.shuffled and self.train.word_dropout):
            return ids
        cols = np.arange(ids.shape[1])
        hit = uniform(self.seed, step, 1, rows[:, None], cols[None]) < self.train.word_dropout
        return np.where(hit & real, mask, ids)


# ---------------------------------------------------------------------------------------
# Numbers drawn for a place, not from a sequence: they don't depend on who else is in the batch


def draws(seed: NDArray | int, *places: NDArray | int) -> NDArray[np.uint64]:
    """A random 64-bit number for every combination of the places (splitmix64 over each in turn).

    >>> bool((draws(1, np.arange(3), 5) == draws(1, np.arange(9)[:3], 5)).all())
    True
    """
    state = np.asarray(seed, np.uint64)
    with np.errstate(over="ignore"):
        for place in places:
            state = state + np.asarray(place).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return state


def uniform(seed: NDArray | int, *places: NDArray | int) -> NDArray[np.float64]:
    """The same as shares from 0 up to 1.

    >>> bool((uniform(1, np.arange(1000)) < 1).all())
    True
    """
    return (draws(seed, *places) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def number_of(ids: Sequence[int] | bytes) -> int:
    """A number that belongs to what is read, so that its draws depend on no place in a list.

    >>> number_of([5, 7]) == number_of((5, 7)) != number_of([7, 5])
    True
    """
    read = ids if isinstance(ids, bytes) else np.array(ids, "<i8").tobytes()
    told = hashlib.blake2b(read, digest_size=8).digest()
    return int.from_bytes(told, "little") >> 1


def shuffled_order(seed: int, epoch: int, what: int, n: int) -> Ids:
    return np.random.default_rng([seed, epoch, what]).permutation(n)


# ---------------------------------------------------------------------------------------
# Ragged rows as rectangles


def joined(column, rows: Ids, *, before: int | None = None, after: int | None = None, pad: int) -> tuple[Ids, Ids]:
    """Rows of a column with a token before or after each, padded to the longest; and their lengths."""
    n = column.lengths[rows]
    ahead = before is not None
    lengths = n + ahead + (after is not None)
    out = np.full((len(rows), int(lengths.max(initial=1))), pad, np.int64)
    cols = np.arange(out.shape[1]) - ahead
    inside = (cols >= 0) & (cols < n[:, None])
    out[inside] = column.ids[((column.ends[rows] - n)[:, None] + cols)[inside]]
    if ahead:
        out[:, 0] = before
    if after is not None:
        out[np.arange(len(rows)), n + ahead] = after
    return out, lengths


def packed_layout(which: Ids, longest: int, n_positions: int, texts_a_row: float) -> Layout:
    """The layout of rows whose every place belongs to a numbered text. Padding may be longer than any text: it stays
    within the positions that texts have. ``texts_a_row`` is what is to be expected."""
    first = np.ones(which.shape, bool)
    first[:, 1:] = which[:, 1:] != which[:, :-1]
    cols = np.arange(which.shape[1])
    positions = cols - np.maximum.accumulate(np.where(first, cols, 0), axis=1)
    begins = np.flatnonzero(first)
    # As many bounds in every batch, the last texts empty: another shape would be compiled anew. Batches differ by about
    # the square root of what they hold; one with still more has twice as many bounds.
    expected = texts_a_row * len(which)
    room = 8 * int(np.ceil((expected + 8 * np.sqrt(expected)) / 8))
    bounds = np.full(1 + room * 2 ** max(0, int(np.ceil(np.log2(len(begins) / room)))), which.size, np.int32)
    bounds[: len(begins)] = begins
    return Layout(
        positions=torch.from_numpy(np.minimum(positions, n_positions - 1)),
        documents=torch.from_numpy(np.cumsum(first).reshape(which.shape) - 1),
        bounds=torch.from_numpy(bounds),
        longest=longest,
    )
