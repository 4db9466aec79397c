"""Rows of fixed length from the documents of a corpus: what language models and masked models read."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from regard.config import InputError
from regard.data.batch import Batch, Batches, Ids, Size, draws, packed_layout, shuffled_order, uniform
from regard.data.store import DataDir, Ragged
from regard.nn.masks import Layout
from regard.recipe import Train


class Stream(Batches):
    """Rows of fixed length cut from all documents in a row, shuffled anew each epoch. A document is what the row holds
    of it, and sees nothing else, unless there are no ``walls``. ``both_ways`` asks for the token after each and for
    the one before it, instead of masked ones: what a model with a reader from either side is trained on (ELMo).

    For training the stream starts at another offset each epoch, so that the cuts move; what is left at its end is
    shorter than a row. Validation sees every token once, the last row padded.
    """

    def __init__(
        self,
        data: DataDir,
        split: str,
        train: Train,
        *,
        shuffled: bool,
        length: int,
        walls: bool = True,
        both_ways: bool = False,
    ):
        super().__init__(data, split, train, shuffled=shuffled)
        self.length, self.both_ways = length, both_ways
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
        # One endless document needs none; but padding is no part of it.
        self.walls = walls and (len(self.sizes) > 1 or not shuffled)
        self.begins = self.text.ends - self.text.lengths
        self.texts_a_row = 1 + len(self.sizes) / max(self.n_rows, 1)
        self.order = lru_cache(maxsize=2)(self._order)

    def __len__(self) -> int:
        return self.n_rows // self.per_batch if self.shuffled else -(-self.n_rows // self.per_batch)

    def _order(self, epoch: int) -> tuple[Ids, Ids, int, Ids]:
        """Documents as they follow one another, where each ends, the offset, and the rows' order."""
        if not self.shuffled:
            return np.arange(len(self.sizes)), np.cumsum(self.sizes), 0, np.arange(self.n_rows)
        documents = shuffled_order(self.seed, epoch, 0, len(self.sizes))
        slack = self.total - self.n_rows * self.length if len(self.sizes) == 1 else self.length - 1
        offset = int(draws(self.seed, epoch) % np.uint64(slack + 1))
        return documents, np.cumsum(self.sizes[documents]), offset, shuffled_order(self.seed, epoch, 1, self.n_rows)

    def rows(self, step: int) -> Ids:
        epoch, i = divmod(step, len(self))
        return self.order(epoch)[3][i * self.per_batch : (i + 1) * self.per_batch]

    def size(self, step: int) -> Size:
        rows = self.rows(step)
        tokens = len(rows) * self.length
        real = tokens if self.shuffled else int(np.clip(self.total - rows * self.length, 0, self.length).sum())
        if self.data.task == "generate":
            return Size(real, real, real, tokens)
        if self.both_ways:  # the last of a row has none after it, the first none before it
            return Size(2 * (real - len(rows)), real, real, tokens)
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
        document = documents[which]
        within = places - (ends[which] - self.sizes[document])
        flat = self.begins[document] + within
        last = self.text.lengths[document]
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
        layout = packed_layout(which, self.length, self.length, self.texts_a_row) if self.walls else Layout()
        if self.data.task == "generate":
            inputs = self.hidden_words(inputs, within > 0, step, rows, self.tokenizer.mask)
            return Batch(torch.from_numpy(inputs), layout, torch.from_numpy(following))
        if self.both_ways:
            return self._from_both_sides(inputs, which < len(self.sizes))
        inputs, at, wanted = self._masked(step, rows, inputs, maskable)
        return Batch(torch.from_numpy(inputs), layout, torch.from_numpy(wanted), at=torch.from_numpy(at))

    def _from_both_sides(self, ids: Ids, real: NDArray) -> Batch:
        """Each token is asked for its neighbours in the row, (B, L, 2): the next one, the one before."""
        wanted = np.full((*ids.shape, 2), -1, np.int64)
        inside = real[:, 1:]  # padding stands at the end
        wanted[:, :-1, 0] = np.where(inside, ids[:, 1:], -1)
        wanted[:, 1:, 1] = np.where(inside, ids[:, :-1], -1)
        layout = Layout() if self.shuffled else Layout(lengths=torch.from_numpy(real.sum(1)))
        return Batch(torch.from_numpy(ids), layout, torch.from_numpy(wanted))

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
        order = shuffled_order(self.seed, epoch, 1, self.n_rows) if self.shuffled else np.arange(self.n_rows)
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
