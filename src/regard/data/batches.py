"""Which examples an update sees, and as which tensors: a pure function of seed, epoch and step.

Nothing is kept between steps, so that a run resumes from a counter, and any batch can be made again to look at it. A
:class:`Batches` lays out one split: it knows the rows of every step (:meth:`Batches.rows`) and makes the tensors of a
part of them (:meth:`Batches.part`); parts are micro-batches and processes, and which part an example falls into never
changes what is drawn for it.

Three ways to lay text out:

- a text a row, padded, rows of like length together (translate, classify, tag): :class:`Bucketed`
- rows of fixed length, cut from the stream of all documents (generate, fill): :class:`Stream`
- rows of fixed length filled with whole pairs (translate, packed): :class:`Filled`

Packed texts don't see each other: the layout says where each begins and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from regard.config import InputError, ModelConfig, Recurrent
from regard.config import Stack as StackConfig
from regard.data.store import DataDir, Ragged
from regard.nn.masks import Layout
from regard.recipe import Train

Ids = NDArray[np.int64]


class Batch(NamedTuple):
    """What one part of an update works on. A negative ``wanted`` is left out of the loss.

    ``at`` names the positions that are scored, in the flattened batch, where they are few (masked tokens).
    """

    inputs: Int[Tensor, "B S"]
    layout: Layout
    wanted: Int[Tensor, "..."]
    target: Int[Tensor, "B T"] | None = None
    target_layout: Layout = Layout()
    segments: Int[Tensor, "B S"] | None = None
    at: Int[Tensor, " N"] | None = None
    pair: Int[Tensor, " B"] | None = None

    def to(self, device: torch.device) -> Batch:
        """The same on a device; where it is pinned, the host does not wait for the copy."""
        return self if device.type == "cpu" else _each_tensor(self, lambda t: t.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """The same in memory that a GPU can read by itself."""
        return _each_tensor(self, Tensor.pin_memory)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its name, to write them to a file."""
        found: dict[str, Tensor] = {}
        for name, value in self._asdict().items():
            if isinstance(value, Layout):
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
    only one), and over both sides what is real and what there is with padding."""

    wanted: int
    tokens: int
    real: int
    padded: int


# ---------------------------------------------------------------------------------------
# Numbers drawn for a place, not from a sequence: they don't depend on who else is in the batch


def draws(seed: int, *places: NDArray | int) -> NDArray[np.uint64]:
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


def uniform(seed: int, *places: NDArray | int) -> NDArray[np.float64]:
    """The same as shares from 0 up to 1.

    >>> bool((uniform(1, np.arange(1000)) < 1).all())
    True
    """
    return (draws(seed, *places) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _shuffled(seed: int, epoch: int, what: int, n: int) -> Ids:
    return np.random.default_rng([seed, epoch, what]).permutation(n)


# ---------------------------------------------------------------------------------------
# The layouts


class Batches:
    """One split as batches. ``len()`` is the number of batches an epoch; what it can be asked is the same for all."""

    def __init__(self, data: DataDir, split: str, train: Train, *, shuffled: bool):
        self.data, self.train, self.shuffled = data, train, shuffled
        self.columns = data.split(split)
        self.tokenizer, self.source_tokenizer = data.tokenizer, data.source_tokenizer
        self.seed = train.seed if shuffled else 0

    def __len__(self) -> int:
        raise NotImplementedError

    def rows(self, step: int) -> Ids:
        """The rows of a step."""
        raise NotImplementedError

    def size(self, step: int) -> Size:
        """How large a step is, over all of its parts."""
        raise NotImplementedError

    def part(self, step: int, index: int = 0, parts: int = 1) -> Batch:
        """The tensors of one of several equal parts of a step. A part that gets no row has one that asks for nothing,
        so that every process works in step."""
        rows = self.rows(step)
        mine = rows[index::parts]
        batch = self.make(step, mine if len(mine) else rows[:1])
        return batch if len(mine) else batch._replace(wanted=torch.full_like(batch.wanted, -1))

    def make(self, step: int, rows: Ids) -> Batch:
        raise NotImplementedError

    def hidden_words(self, ids: Ids, real: NDArray, step: int, rows: Ids, mask: int) -> Ids:
        """Word dropout: a share of the tokens read is hidden behind the mask token."""
        if not (self.shuffled and self.train.word_dropout):
            return ids
        cols = np.arange(ids.shape[1])
        hit = uniform(self.seed, step, 1, rows[:, None], cols[None]) < self.train.word_dropout
        return np.where(hit & real, mask, ids)


class Bucketed(Batches):
    """A text (or pair) a row. Rows are sorted by length with ties in random order, cut where the token budget is full,
    and the batches shuffled. Since the sorted lengths are the same in every epoch, so are the cuts, and with them the
    number of batches."""

    def __init__(self, data: DataDir, split: str, train: Train, *, shuffled: bool, n_segments: int = 0):
        super().__init__(data, split, train, shuffled=shuffled)
        self.n_segments = n_segments
        if data.task == "translate":
            self.source = self.columns["source"].lengths + 1  # end
            self.target = self.columns["target"].lengths + 1  # start on the way in, end on the way out
        else:
            self.source = self.columns["text"].lengths + 2  # start, end
            if "second" in self.columns:
                self.source = self.source + self.columns["second"].lengths + 1
            self.target = np.ones_like(self.source)
        self.wanted = self.target
        if data.task == "tag":
            tags = self.columns["tag"]
            so_far = np.concatenate([[0], np.cumsum(np.asarray(tags.ids) >= 0)])
            self.wanted = so_far[tags.ends] - so_far[tags.ends - tags.lengths]
        longest = np.maximum(self.source, self.target)
        self.longest = int(longest.max(initial=0))
        if self.longest > train.batch_tokens:
            raise InputError(
                f"batch_tokens ({train.batch_tokens}) must be at least {self.longest}, the longest example's tokens;"
                " raise it, or lower data.max_tokens"
            )
        # Boustrophedon: the source grows over even targets and shrinks over odd ones, so that it never jumps.
        turn = np.where(self.target % 2 == 0, self.source, self.source.max(initial=0) - self.source)
        self.key = self.target * (self.source.max(initial=0) + 1) + turn
        self.cuts = _cuts(longest[np.argsort(self.key, kind="stable")], train.batch_tokens)
        self.order = lru_cache(maxsize=2)(self._order)

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def _order(self, epoch: int) -> tuple[Ids, Ids]:
        if not self.shuffled:
            return np.argsort(self.key, kind="stable"), np.arange(len(self))
        ties = _shuffled(self.seed, epoch, 0, len(self.key))
        return ties[np.argsort(self.key[ties], kind="stable")], _shuffled(self.seed, epoch, 1, len(self))

    def rows(self, step: int) -> Ids:
        epoch, i = divmod(step, len(self))
        order, batches = self.order(epoch)
        return order[self.cuts[batches[i]] : self.cuts[batches[i] + 1]]

    def size(self, step: int) -> Size:
        rows = self.rows(step)
        sides = (self.source, self.target) if self.data.task == "translate" else (self.source,)
        return Size(
            wanted=int(self.wanted[rows].sum()),
            tokens=int(sides[-1][rows].sum()),
            real=sum(int(side[rows].sum()) for side in sides),
            padded=sum(int(side[rows].max()) * len(rows) for side in sides),
        )

    def make(self, step: int, rows: Ids) -> Batch:
        if self.data.task == "translate":
            return self._pairs(step, rows)
        tokens = self.tokenizer
        ids, lengths = _joined(self.columns["text"], rows, before=tokens.start, after=tokens.end, pad=tokens.pad)
        segments = None
        if "second" in self.columns:
            more, extra = _joined(self.columns["second"], rows, after=tokens.end, pad=tokens.pad)
            ids, segments = _side_by_side(ids, lengths, more, extra, tokens.pad)
            lengths = lengths + extra
        real = np.arange(ids.shape[1]) < lengths[:, None]
        ids = self.hidden_words(ids, real & (ids != tokens.start) & (ids != tokens.end), step, rows, tokens.mask)
        if self.data.task == "classify":
            wanted = np.asarray(self.columns["label"][rows], np.int64)
        else:
            wanted, _ = _joined(self.columns["tag"], rows, before=-1, after=-1, pad=-1)
        keep = segments is not None and self.n_segments > 1
        return Batch(
            torch.from_numpy(ids),
            Layout(lengths=torch.from_numpy(lengths)),
            torch.from_numpy(wanted),
            segments=torch.from_numpy(segments) if keep else None,
        )

    def _pairs(self, step: int, rows: Ids) -> Batch:
        reads, writes = self.source_tokenizer, self.tokenizer
        source, n_source = _joined(self.columns["source"], rows, after=reads.end, pad=reads.pad)
        target, n_target = _joined(self.columns["target"], rows, before=writes.start, pad=writes.pad)
        wanted, _ = _joined(self.columns["target"], rows, after=writes.end, pad=-1)
        real = np.arange(source.shape[1]) < n_source[:, None] - 1
        source = self.hidden_words(source, real, step, rows, reads.mask)
        return Batch(
            torch.from_numpy(source),
            Layout(lengths=torch.from_numpy(n_source)),
            torch.from_numpy(wanted),
            torch.from_numpy(target),
            Layout(lengths=torch.from_numpy(n_target)),
        )


class Stream(Batches):
    """Rows of fixed length cut from all documents in a row, shuffled anew each epoch. A document is what the row holds
    of it, and sees nothing else.

    For training the stream starts at another offset each epoch, so that the cuts move; what is left at its end is
    shorter than a row. Validation sees every token once, the last row padded.
    """

    def __init__(self, data: DataDir, split: str, train: Train, *, shuffled: bool, length: int, walls: bool = True):
        super().__init__(data, split, train, shuffled=shuffled)
        self.length = length
        self.text: Ragged = self.columns["text"]  # type: ignore[assignment]
        # generate: start + text in, text + end out. fill: start + text + end, read at once.
        self.sizes = self.text.lengths + (1 if data.task == "generate" else 2)
        self.total = int(self.sizes.sum())
        if shuffled and self.total < length:
            raise InputError(
                f"row_tokens ({length}) must be at most {self.total}, all the tokens there are; set train.row_tokens"
            )
        self.n_rows = self.total // length if shuffled else -(-self.total // length)
        self.per_batch = max(1, min(train.batch_tokens // length, self.n_rows))
        self.walls = walls and len(self.sizes) > 1  # one endless document needs none
        self.order = lru_cache(maxsize=2)(self._order)

    def __len__(self) -> int:
        return self.n_rows // self.per_batch if self.shuffled else -(-self.n_rows // self.per_batch)

    def _order(self, epoch: int) -> tuple[Ids, Ids, int, Ids]:
        """Documents as they follow one another, where each ends, the offset, and the rows' order."""
        if not self.shuffled:
            return np.arange(len(self.sizes)), np.cumsum(self.sizes), 0, np.arange(self.n_rows)
        documents = _shuffled(self.seed, epoch, 0, len(self.sizes))
        slack = self.total - self.n_rows * self.length if len(self.sizes) == 1 else self.length - 1
        offset = int(draws(self.seed, epoch) % np.uint64(slack + 1))
        return documents, np.cumsum(self.sizes[documents]), offset, _shuffled(self.seed, epoch, 1, self.n_rows)

    def rows(self, step: int) -> Ids:
        epoch, i = divmod(step, len(self))
        return self.order(epoch)[3][i * self.per_batch : (i + 1) * self.per_batch]

    def size(self, step: int) -> Size:
        rows = self.rows(step)
        tokens = len(rows) * self.length
        real = tokens if self.shuffled else int(np.clip(self.total - rows * self.length, 0, self.length).sum())
        if self.data.task == "generate":
            return Size(real, real, real, tokens)
        _, _, maskable, _, _ = self._tokens(step, rows)
        return Size(int(self._n_masked(maskable).sum()), real, real, tokens)

    def _n_masked(self, maskable: NDArray) -> Ids:
        """So many tokens of each row are to be guessed: a fixed share, at least one if there is one."""
        there = maskable.sum(1)
        return np.minimum(np.maximum(np.rint(there * self.train.mask_share).astype(np.int64), 1), there)

    def _tokens(self, step: int, rows: Ids):
        """The inputs, what follows each, which may be masked, the documents, and the places in them."""
        epoch = step // len(self)
        documents, ends, offset, _ = self.order(epoch)
        places = offset + rows[:, None] * self.length + np.arange(self.length)  # (B, L)
        beyond = places >= self.total
        places = places % self.total  # training wraps around to what the offset skipped
        which = np.searchsorted(ends, places, side="right")
        within = places - (ends - self.sizes[documents])[which]
        flat = (self.text.ends - self.text.lengths)[documents][which] + within
        last = self.text.lengths[documents][which]
        tokens = self.tokenizer
        n = len(self.text.ids)

        def text(at: Ids) -> Ids:
            return self.text.ids[np.clip(at, 0, n - 1)].astype(np.int64)

        inputs = np.where(within == 0, tokens.start, np.where(within > last, tokens.end, text(flat - 1)))
        following = np.where(within < last, text(flat), tokens.end)
        maskable = (within > 0) & (within <= last)
        if not self.shuffled:
            inputs, following, maskable = (
                np.where(beyond, fill, a) for a, fill in ((inputs, tokens.pad), (following, -1), (maskable, False))
            )
            which = np.where(beyond, len(self.sizes), which)
        return inputs, following, maskable, which, within

    def make(self, step: int, rows: Ids) -> Batch:
        inputs, following, maskable, which, within = self._tokens(step, rows)
        layout = _packed_layout(which, self.length, self.length) if self.walls else Layout()
        if self.data.task == "generate":
            inputs = self.hidden_words(inputs, within > 0, step, rows, self.tokenizer.mask)
            return Batch(torch.from_numpy(inputs), layout, torch.from_numpy(following))
        inputs, at, wanted = self._masked(step, rows, inputs, maskable)
        return Batch(torch.from_numpy(inputs), layout, torch.from_numpy(wanted), at=torch.from_numpy(at))

    def _masked(self, step: int, rows: Ids, ids: Ids, maskable: NDArray) -> tuple[Ids, Ids, Ids]:
        """BERT's masking: of the tokens to be guessed 80 % become the mask, 10 % another token, 10 % stay."""
        cols = np.arange(ids.shape[1])[None]
        lot = np.where(maskable, uniform(self.seed, step, 2, rows[:, None], cols), 2.0)
        rank = np.argsort(np.argsort(lot, axis=1), axis=1)
        hit = rank < self._n_masked(maskable)[:, None]
        fate = uniform(self.seed, step, 3, rows[:, None], cols)
        other = (draws(self.seed, step, 4, rows[:, None], cols) % np.uint64(len(self.tokenizer))).astype(np.int64)
        hidden = np.where(fate < 0.8, self.tokenizer.mask, np.where(fate < 0.9, other, ids))
        # A fixed number of positions, so that nothing changes shape; the unused ones ask for nothing.
        n = max(1, round(self.length * self.train.mask_share)) * len(rows)
        at = np.flatnonzero(hit)
        wanted = np.full(max(n, len(at)), -1, np.int64)
        wanted[: len(at)] = ids.flat[at]
        return np.where(hit, hidden, ids), np.pad(at, (0, len(wanted) - len(at))), wanted


class Halves(Stream):
    """Masked tokens with BERT's second task: a row is one chunk of a document in two halves, and in every other row the
    second half comes from another document; the pair head says which."""

    def __init__(self, data: DataDir, split: str, train: Train, *, shuffled: bool, length: int):
        Batches.__init__(self, data, split, train, shuffled=shuffled)
        self.length, self.room = length, length - 3  # start A end B end
        self.text = self.columns["text"]  # type: ignore[assignment]
        counts = np.maximum(1, -(-self.text.lengths // self.room))
        self.document = np.repeat(np.arange(len(self.text)), counts)
        index = np.arange(len(self.document)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.begin = (self.text.ends - self.text.lengths)[self.document] + index * self.room
        self.chunk = np.minimum(self.room, self.text.ends[self.document] - self.begin)
        enough = self.chunk >= 2
        self.document, self.begin, self.chunk = self.document[enough], self.begin[enough], self.chunk[enough]
        if len(np.unique(self.document)) < 2:
            raise InputError(
                "pair_head: telling halves of different documents apart needs two documents; see documents"
            )
        self.n_rows = len(self.document)
        self.per_batch = max(1, min(train.batch_tokens // length, self.n_rows))
        self.order = lru_cache(maxsize=2)(self._row_order)

    def _row_order(self, epoch: int):
        order = _shuffled(self.seed, epoch, 1, self.n_rows) if self.shuffled else np.arange(self.n_rows)
        return None, None, 0, order

    def size(self, step: int) -> Size:
        rows = self.rows(step)
        _, maskable, _, lengths, _ = self._halves(step, rows)
        real = int(lengths.sum())
        return Size(int(self._n_masked(maskable).sum()), real, real, len(rows) * self.length)

    def _halves(self, step: int, rows: Ids):
        swapped = uniform(self.seed, step, 5, rows) < 0.5
        others = (draws(self.seed, step, 6, rows) % np.uint64(self.n_rows)).astype(np.int64)
        while (same := self.document[others] == self.document[rows]).any():
            others = np.where(same, (others + 1) % self.n_rows, others)
        second = np.where(swapped, others, rows)
        n_first, n_second = self.chunk[rows] // 2, self.chunk[second] - self.chunk[second] // 2
        n_second = np.minimum(n_second, self.room - n_first)
        ids = np.full((len(rows), self.length), self.tokenizer.pad, np.int64)
        segments, maskable = np.zeros_like(ids), np.zeros(ids.shape, bool)
        begin_second = self.begin[second] + self.chunk[second] // 2
        for i, (a, b) in enumerate(zip(n_first, n_second, strict=True)):
            first = self.text.ids[self.begin[rows[i]] : self.begin[rows[i]] + a]
            then = self.text.ids[begin_second[i] : begin_second[i] + b]
            end = [self.tokenizer.end]
            ids[i, : a + b + 3] = np.concatenate([[self.tokenizer.start], first, end, then, end])
            segments[i, a + 2 : a + b + 3] = 1
            maskable[i, 1 : a + 1] = maskable[i, a + 2 : a + b + 2] = True
        return ids, maskable, segments, n_first + n_second + 3, swapped

    def make(self, step: int, rows: Ids) -> Batch:
        ids, maskable, segments, lengths, swapped = self._halves(step, rows)
        inputs, at, wanted = self._masked(step, rows, ids, maskable)
        return Batch(
            torch.from_numpy(inputs),
            Layout(lengths=torch.from_numpy(lengths)),
            torch.from_numpy(wanted),
            segments=torch.from_numpy(segments),
            at=torch.from_numpy(at),
            pair=torch.from_numpy(swapped.astype(np.int64)),
        )


class Filled(Batches):
    """Rows of fixed length, each filled with whole pairs in random order until one side is full. Every batch has the
    same shape, with next to no padding, and lengths are mixed in it as they are in the data.

    The last token of a row is padding on both sides, so that there is always a text of it that can see itself.
    """

    def __init__(self, data: DataDir, split: str, train: Train, *, length: int):
        super().__init__(data, split, train, shuffled=True)
        self.length = length
        self.source = self.columns["source"].lengths + 1
        self.target = self.columns["target"].lengths + 1
        self.longest = int(np.maximum(self.source, self.target).max(initial=0))
        if self.longest > length - 1:
            raise InputError(
                f"row_tokens ({length}) must be above {self.longest}, the longest example's tokens; raise it, or lower"
                " data.max_tokens"
            )
        self.per_batch = max(1, train.batch_tokens // length)
        self.order = lru_cache(maxsize=2)(self._order)
        self.n_batches = -(-len(self.order(0)[1]) // self.per_batch)

    def __len__(self) -> int:
        return self.n_batches

    def _order(self, epoch: int) -> tuple[Ids, Ids, Ids, int]:
        """The pairs as they follow one another, where each row of them begins and ends, and the longest text, a row's
        padding among them."""
        n = len(self.source)
        pairs = _shuffled(self.seed, epoch, 0, n)
        source, target = np.cumsum(self.source[pairs]), np.cumsum(self.target[pairs])
        ends, end = [], 0
        room = self.length - 1
        while end < n:
            used = (source[end - 1], target[end - 1]) if end else (0, 0)
            end = int(
                min(np.searchsorted(source, used[0] + room, "right"), np.searchsorted(target, used[1] + room, "right"))
            )
            ends.append(end)
        cuts = np.asarray(ends, np.int64)
        if len(cuts) > 1:
            cuts = cuts[:-1]  # the rest, less than a row, waits for another epoch
        begins = np.concatenate([[0], cuts[:-1]])
        used = np.minimum(*(np.diff(side[cuts - 1], prepend=0) for side in (source, target)))
        longest = max(self.longest, self.length - int(used.min()))
        return pairs, begins, cuts, -(-longest // 64) * 64  # rounded, so that it is the same in nearly every epoch

    def rows(self, step: int) -> Ids:
        """Rows of the epoch; another epoch may have a few more or fewer, so that the last batch takes in the first
        rows again, and rows over the fixed number of batches wait for the next epoch."""
        epoch, i = divmod(step, len(self))
        n = len(self.order(epoch)[1])
        rows = np.arange(i * self.per_batch, (i + 1) * self.per_batch)
        return rows % n

    def _pairs_of(self, step: int, rows: Ids) -> tuple[Ids, Ids]:
        """The pairs in these rows, and which row each is in."""
        pairs, begins, ends, _ = self.order(step // len(self))
        counts = ends[rows] - begins[rows]
        row = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        return pairs[begins[rows][row] + within], row

    def size(self, step: int) -> Size:
        rows = self.rows(step)
        pairs, _ = self._pairs_of(step, rows)
        wanted = int(self.target[pairs].sum())
        return Size(wanted, wanted, wanted + int(self.source[pairs].sum()), 2 * len(rows) * self.length)

    def make(self, step: int, rows: Ids) -> Batch:
        pairs, row = self._pairs_of(step, rows)
        reads, writes = self.source_tokenizer, self.tokenizer
        longest = self.order(step // len(self))[3]
        source, inside = _filled(
            self.columns["source"], pairs, row, len(rows), self.length, after=reads.end, pad=reads.pad
        )
        target, of_target = _filled(
            self.columns["target"], pairs, row, len(rows), self.length, before=writes.start, pad=writes.pad
        )
        wanted, _ = _filled(self.columns["target"], pairs, row, len(rows), self.length, after=writes.end, pad=-1)
        source = self.hidden_words(source, (source != reads.pad) & (source != reads.end), step, rows, reads.mask)
        return Batch(
            torch.from_numpy(source),
            _packed_layout(inside, longest, self.longest),
            torch.from_numpy(wanted),
            torch.from_numpy(target),
            _packed_layout(of_target, longest, self.longest),
        )


# ---------------------------------------------------------------------------------------
# Ragged rows as rectangles


def _joined(column, rows: Ids, *, before: int | None = None, after: int | None = None, pad: int) -> tuple[Ids, Ids]:
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


def _side_by_side(first: Ids, n_first: Ids, second: Ids, n_second: Ids, pad: int) -> tuple[Ids, Ids]:
    """Two padded blocks as one, the second right after what is real of the first; and the segment of every token."""
    ids = np.full((len(first), int((n_first + n_second).max())), pad, np.int64)
    segments = np.zeros_like(ids)
    ids[:, : first.shape[1]] = np.where(np.arange(first.shape[1]) < n_first[:, None], first, pad)[:, : ids.shape[1]]
    cols = np.arange(ids.shape[1]) - n_first[:, None]
    inside = (cols >= 0) & (cols < n_second[:, None])
    ids[inside] = second[np.nonzero(inside)[0], cols[inside]]
    segments[inside] = 1
    return ids, segments


def _filled(column, pairs: Ids, row: Ids, n_rows: int, length: int, *, before=None, after=None, pad: int):
    """Texts one after the other in their rows; and which text each place belongs to (padding to one of its own).

    Texts are numbered over the batch in order, a row's padding after its last text.
    """
    texts, lengths = _joined(column, pairs, before=before, after=after, pad=pad)
    ends = np.cumsum(lengths)
    first = np.searchsorted(row, np.arange(n_rows))  # each row's first text
    base = np.where(first > 0, ends[first - 1], 0)
    starts = row * length + ends - lengths - base[row]
    flat, which = np.full(n_rows * length, pad, np.int64), np.full(n_rows * length, -1, np.int64)
    inside = np.arange(texts.shape[1]) < lengths[:, None]
    places = (starts[:, None] + np.arange(texts.shape[1]))[inside]
    flat[places] = texts[inside]
    which[places] = np.repeat(np.arange(len(pairs)) + row, lengths)
    last = np.append(first[1:], len(pairs)) + np.arange(n_rows)  # the number of each row's padding
    which = which.reshape(n_rows, length)
    return flat.reshape(n_rows, length), np.where(which < 0, last[:, None], which)


def _packed_layout(which: Ids, longest: int, n_positions: int) -> Layout:
    """The layout of rows whose every place belongs to a numbered text. Padding may be longer than any text: it stays
    within the positions that texts have."""
    first = np.ones(which.shape, bool)
    first[:, 1:] = which[:, 1:] != which[:, :-1]
    cols = np.arange(which.shape[1])
    positions = cols - np.maximum.accumulate(np.where(first, cols, 0), axis=1)
    begins = np.flatnonzero(first)
    # As many bounds in nearly every batch, so that nothing changes shape: a power of two, the rest of the texts empty.
    bounds = np.full(1 + 2 ** int(np.ceil(np.log2(len(begins)))), which.size, np.int32)
    bounds[: len(begins)] = begins
    return Layout(
        positions=torch.from_numpy(np.minimum(positions, n_positions - 1)),
        documents=torch.from_numpy(which),
        bounds=torch.from_numpy(bounds),
        longest=longest,
    )


def _cuts(longest: Ids, budget: int) -> Ids:
    """Where to cut sorted rows, so that rows times the longest of each batch stay within the budget.

    >>> _cuts(np.array([2, 2, 3, 4, 6]), 8).tolist()
    [0, 2, 4, 5]
    """
    cuts = [0]
    while cuts[-1] < len(longest):
        begin = cuts[-1]
        window = longest[begin : begin + max(1, budget // int(longest[begin]))]
        sizes = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        cuts.append(begin + max(1, int(np.searchsorted(sizes, budget, side="right"))))
    return np.asarray(cuts)


# ---------------------------------------------------------------------------------------
# The layout that a recipe asks for


def make_batches(data: DataDir, split: str, train: Train, model: ModelConfig, *, shuffled: bool = True) -> Batches:
    """A split as batches, as the recipe says: ``train`` shuffled, ``valid`` in order."""
    towers = [t for t in (model.encoder, model.decoder) if t is not None]
    max_len = min([t.max_len for t in towers if isinstance(t, StackConfig) and t.max_len], default=None)
    streams = data.task in ("generate", "fill")
    packed = streams if train.packed is None else train.packed
    if packed and data.task in ("classify", "tag"):
        raise InputError(f"packed (true): {data.task} has a row a text; leave it out")
    if packed and data.task == "translate" and any(isinstance(tower, Recurrent) for tower in towers):
        raise InputError("packed (true): a recurrent model cannot keep the texts of a row apart; leave it out")
    if streams and not packed:
        raise InputError(f"packed (false): {data.task} always packs; leave it out")
    if streams:
        length = train.row_tokens or max_len or 256
        if max_len is not None and length > max_len:
            raise InputError(f"row_tokens ({length}) must be at most the model's max_len ({max_len})")
        if model.pair_head is not None:
            return Halves(data, split, train, shuffled=shuffled, length=length)
        walls = not isinstance(towers[0], Recurrent)  # a state is carried over: the start token says that a text begins
        return Stream(data, split, train, shuffled=shuffled, length=length, walls=walls)
    segments = getattr(towers[0].input, "n_segments", 0)
    batches: Bucketed | Filled
    if packed and shuffled:
        batches = Filled(data, split, train, length=train.row_tokens or 1024)
    else:  # what is held out is seen once: a text a row is simplest
        batches = Bucketed(data, split, train, shuffled=shuffled, n_segments=segments)
    if max_len is not None and batches.longest > max_len:
        raise InputError(
            f"max_len ({max_len}) must be at least {batches.longest}, the longest example's tokens; raise the model's,"
            " or lower data.max_tokens"
        )
    return batches


def padding(batches: Batches, steps: Iterator[int] | range) -> float:
    """The share of padding over some steps."""
    sizes = [batches.size(step) for step in steps]
    return 1 - sum(s.real for s in sizes) / sum(s.padded for s in sizes)
