"""Rows of fixed length, filled with whole pairs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from regard.config import InputError
from regard.data.batch import Batch, Batches, Ids, Size, joined, packed_layout, shuffled_order
from regard.data.store import DataDir
from regard.recipe import Train


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
        self.order = lru_cache(maxsize=2)(self._order)
        self.per_batch = max(1, min(train.batch_tokens // length, len(self.order(0)[1])))
        self.n_batches = -(-len(self.order(0)[1]) // self.per_batch)

    def __len__(self) -> int:
        return self.n_batches

    def _order(self, epoch: int) -> tuple[Ids, Ids, Ids, int]:
        """The pairs as they follow one another, where each row of them begins and ends, and the longest text, a row's
        padding among them."""
        n = len(self.source)
        pairs = shuffled_order(self.seed, epoch, 0, n)
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
            packed_layout(inside, longest, self.longest),
            torch.from_numpy(wanted),
            torch.from_numpy(target),
            packed_layout(of_target, longest, self.longest),
        )


def _filled(column, pairs: Ids, row: Ids, n_rows: int, length: int, *, before=None, after=None, pad: int):
    """Texts one after the other in their rows; and which text each place belongs to (padding to one of its own).

    Texts are numbered over the batch in order, a row's padding after its last text.
    """
    texts, lengths = joined(column, pairs, before=before, after=after, pad=pad)
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
