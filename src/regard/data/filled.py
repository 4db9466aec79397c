"""Rows of fixed length, filled with whole pairs."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
import torch

from regard.config import InputError
from regard.data.batch import Batch, Batches, Ids, Size, joined, packed_layout, shuffled_order
from regard.data.dropout import every_epoch
from regard.data.store import DataDir
from regard.recipe import Train


class Filled(Batches):
    """Rows of fixed length, each filled with whole pairs in random order until one side is full. Every batch has the
    same shape, with next to no padding, and lengths are mixed in it as they are in the data.

    Every batch of an epoch and of the next has not only the same shape but, for the kernels, texts of the same longest
    length: the padding of a row counts as texts of its own, as many on both sides and none longer than a real one. The
    last few tokens of a row are padding, so that there is enough of it for that.
    """

    def __init__(self, data: DataDir, split: str, train: Train, *, length: int):
        super().__init__(data, split, train, shuffled=True)
        self.length = length
        self.longest = 1 + max(int(self.columns[side].lengths.max(initial=0)) for side in ("source", "target"))
        self.most = 2 ** int(np.ceil(np.log2(self.longest)))  # tokens of a text, as the kernels are told
        self.reserve = min(4, -(-length // self.most))
        if self.longest > length - self.reserve:
            raise InputError(
                f"row_tokens ({length}) must be at least {self.longest + self.reserve}, the longest example's tokens"
                f" and {self.reserve} more; raise it, or lower data.max_tokens"
            )
        self.columns_in = every_epoch(self, self.longest - 1)
        self.order = lru_cache(maxsize=2)(self._order)
        n_rows = len(self.order(0)[1])
        self.per_batch = max(1, min(train.batch_tokens // length, n_rows))
        self.n_batches = -(-n_rows // self.per_batch)
        self.texts_a_row = 1 + len(self.columns["source"]) / n_rows  # and a row's padding

    def __len__(self) -> int:
        return self.n_batches

    def _order(self, epoch: int) -> tuple[Ids, Ids, Ids, Ids, int]:
        """The pairs as they follow one another, where each row of them begins and ends, how many texts its padding is,
        and the longest of those or of the real ones."""
        columns = self.columns_in(epoch)
        n = len(columns["source"])
        pairs = shuffled_order(self.seed, epoch, 0, n)
        source, target = (np.cumsum(columns[side].lengths[pairs] + 1) for side in ("source", "target"))
        ends, end = [], 0
        room = self.length - self.reserve
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
        free = [self.length - np.diff(side[cuts - 1], prepend=0) for side in (source, target)]
        texts = np.minimum(-(-np.maximum(*free) // self.most), np.minimum(*free))
        longest = max(self.most, int((-(-np.maximum(*free) // texts)).max()))
        return pairs, begins, cuts, texts, 2 ** int(np.ceil(np.log2(longest)))

    def rows(self, step: int) -> Ids:
        """Rows of the epoch; another epoch may have a few more or fewer, so that the last batch takes in the first
        rows again, and rows over the fixed number of batches wait for the next epoch."""
        epoch, i = divmod(step, len(self))
        n = len(self.order(epoch)[1])
        rows = np.arange(i * self.per_batch, (i + 1) * self.per_batch)
        return rows % n

    def _pairs_of(self, step: int, rows: Ids) -> tuple[Ids, Ids]:
        """The pairs in these rows, and which row each is in."""
        pairs, begins, ends, *_ = self.order(step // len(self))
        counts = ends[rows] - begins[rows]
        row = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        return pairs[begins[rows][row] + within], row

    def size(self, step: int) -> Size:
        rows = self.rows(step)
        pairs, _ = self._pairs_of(step, rows)
        columns = self.columns_in(step // len(self))
        source, wanted = (len(pairs) + int(columns[side].lengths[pairs].sum()) for side in ("source", "target"))
        return Size(wanted, wanted, wanted + source, 2 * len(rows) * self.length)

    def make(self, step: int, rows: Ids) -> Batch:
        pairs, row = self._pairs_of(step, rows)
        reads, writes = self.source_tokenizer, self.tokenizer
        epoch = step // len(self)
        columns, (*_, texts, longest) = self.columns_in(epoch), self.order(epoch)
        fill = partial(_filled, pairs=pairs, row=row, padding=texts[rows], length=self.length)
        source, inside = fill(columns["source"], after=reads.end, pad=reads.pad)
        target, of_target = fill(columns["target"], before=writes.start, pad=writes.pad)
        wanted, _ = fill(columns["target"], after=writes.end, pad=-1)
        source = self.hidden_words(source, (source != reads.pad) & (source != reads.end), step, rows, reads.mask)
        return Batch(
            torch.from_numpy(source),
            packed_layout(inside, longest, self.longest, self.texts_a_row),
            torch.from_numpy(wanted),
            torch.from_numpy(target),
            packed_layout(of_target, longest, self.longest, self.texts_a_row),
        )


def _filled(
    column, *, pairs: Ids, row: Ids, padding: Ids, length: int, before: int | None = None, after=None, pad: int
) -> tuple[Ids, Ids]:
    """Texts one after the other in their rows; and which text each place belongs to. Texts are numbered over the batch
    in order, after a row's last one the ``padding`` texts that the rest of it is cut into."""
    texts, lengths = joined(column, pairs, before=before, after=after, pad=pad)
    n_rows = len(padding)
    ends = np.cumsum(lengths)
    first = np.searchsorted(row, np.arange(n_rows))  # each row's first text
    base = np.where(first > 0, ends[first - 1], 0)
    starts = row * length + ends - lengths - base[row]
    flat, which = np.full(n_rows * length, pad, np.int64), np.full(n_rows * length, -1, np.int64)
    inside = np.arange(texts.shape[1]) < lengths[:, None]
    places = (starts[:, None] + np.arange(texts.shape[1]))[inside]
    flat[places] = texts[inside]
    before_row = np.cumsum(padding) - padding
    which[places] = np.repeat(np.arange(len(pairs)) + before_row[row], lengths)
    which = which.reshape(n_rows, length)
    used = (which >= 0).sum(1, keepdims=True)
    rest = (np.arange(length) - used) * padding[:, None] // (length - used)
    last = np.append(first[1:], len(pairs)) + before_row  # the number of each row's first padding
    return flat.reshape(n_rows, length), np.where(which < 0, last[:, None] + rest, which)
