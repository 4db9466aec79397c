"""A text (or pair) a row, padded, rows of like length together."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from regard.config import InputError
from regard.data.batch import Batch, Batches, Ids, Size, joined, shuffled_order
from regard.data.dropout import every_epoch
from regard.data.store import DataDir
from regard.nn.masks import Layout
from regard.recipe import Train


class Bucketed(Batches):
    """A text (or pair) a row. Rows are sorted by length with ties in random order, cut where the token budget is full,
    and the batches shuffled. As long as lengths are the same in every epoch, so are the cuts, and with them the number
    of batches; where they are not (bpe_dropout), batches over the first epoch's number wait for another epoch, and
    where there are fewer, some come again."""

    def __init__(self, data: DataDir, split: str, train: Train, *, shuffled: bool, n_segments: int = 0):
        super().__init__(data, split, train, shuffled=shuffled)
        self.n_segments = n_segments
        self.between = self.tokenizer.between() if "second" in self.columns else []  # two texts, beside the first's end
        if data.task == "tag":
            tags = self.columns["tag"]
            so_far = np.concatenate([[0], np.cumsum(np.asarray(tags.ids) >= 0)])
            self.n_tags = so_far[tags.ends] - so_far[tags.ends - tags.lengths]
        most = max(int(side.max(initial=0)) for side in self._lengths(self.columns))
        if most > train.batch_tokens:
            raise InputError(
                f"batch_tokens ({train.batch_tokens}) must be at least {most}, the longest example's tokens;"
                " raise it, or lower data.max_tokens"
            )
        self.longest = most // 2 if data.task == "prefer" else most
        self.columns_in = every_epoch(self, self.longest - 1)
        self.order = lru_cache(maxsize=2)(self._order)
        self.n_batches = len(self.order(0)[2])

    def __len__(self) -> int:
        return self.n_batches

    def _lengths(self, columns: dict[str, Any], rows: Ids | slice = slice(None)) -> tuple[Ids, Ids]:
        """The tokens of each row, those that are read and those that are written, special ones among them."""
        if self.data.task == "translate":  # end; and start on the way in, end on the way out
            return columns["source"].lengths[rows] + 1, columns["target"].lengths[rows] + 1
        if self.data.task == "prefer":  # two rows, both as long as the longer: start, prompt, answer
            answers = np.maximum(columns["chosen"].lengths[rows], columns["rejected"].lengths[rows])
            source = 2 * (1 + columns["prompt"].lengths[rows] + answers)
            return source, np.ones_like(source)
        source = columns["text"].lengths[rows] + 2  # start, end
        if "second" in columns:
            source = source + len(self.between) + columns["second"].lengths[rows] + 1
        return source, np.ones_like(source)

    def _order(self, epoch: int) -> tuple[Ids, Ids, Ids]:
        """The rows by length, where to cut them into batches, and the order of those."""
        source, target = self._lengths(self.columns_in(epoch))
        # Boustrophedon: the source grows over even targets and shrinks over odd ones, so that it never jumps.
        turn = np.where(target % 2 == 0, source, source.max(initial=0) - source)
        key = target * (source.max(initial=0) + 1) + turn
        ties = shuffled_order(self.seed, epoch, 0, len(key)) if self.shuffled else np.arange(len(key))
        rows = ties[np.argsort(key[ties], kind="stable")]
        cuts = cut_rows(np.maximum(source, target)[rows], self.train.batch_tokens)
        n = len(cuts) - 1
        return rows, cuts, shuffled_order(self.seed, epoch, 1, n) if self.shuffled else np.arange(n)

    def rows(self, step: int) -> Ids:
        epoch, i = divmod(step, len(self))
        rows, cuts, batches = self.order(epoch)
        batch = batches[i % len(batches)]
        return rows[cuts[batch] : cuts[batch + 1]]

    def size(self, step: int) -> Size:
        rows = self.rows(step)
        source, target = self._lengths(self.columns_in(step // len(self)), rows)
        sides = (source, target) if self.data.task == "translate" else (source,)
        return Size(
            wanted=int((self.n_tags[rows] if self.data.task == "tag" else target).sum()),
            tokens=int(sides[-1].sum()),
            real=sum(int(side.sum()) for side in sides),
            padded=sum(int(side.max()) * len(rows) for side in sides),
        )

    def make(self, step: int, rows: Ids) -> Batch:
        if self.data.task == "translate":
            return self._pairs(step, rows)
        if self.data.task == "prefer":
            return self._answers(rows)
        tokens = self.tokenizer
        ids, lengths = joined(self.columns["text"], rows, before=tokens.start, after=tokens.end, pad=tokens.pad)
        segments = None
        if "second" in self.columns:
            before = self.between[0] if self.between else None
            more, extra = joined(self.columns["second"], rows, before=before, after=tokens.end, pad=tokens.pad)
            ids, segments = _side_by_side(ids, lengths, more, extra, tokens.pad)
            lengths = lengths + extra
        real = np.arange(ids.shape[1]) < lengths[:, None]
        ids = self.hidden_words(ids, real & (ids != tokens.start) & (ids != tokens.end), step, rows, tokens.mask)
        if self.data.task == "classify":
            labels = np.asarray(self.columns["label"][rows])
            wanted = labels if self.data.has_numbers else labels.astype(np.int64)
        else:
            wanted, _ = joined(self.columns["tag"], rows, before=-1, after=-1, pad=-1)
        keep = segments is not None and self.n_segments > 1
        return Batch(
            torch.from_numpy(ids),
            Layout(lengths=torch.from_numpy(lengths)),
            torch.from_numpy(wanted),
            segments=torch.from_numpy(segments) if keep else None,
        )

    def _pairs(self, step: int, rows: Ids) -> Batch:
        reads, writes, columns = self.source_tokenizer, self.tokenizer, self.columns_in(step // len(self))
        source, n_source = joined(columns["source"], rows, after=reads.end, pad=reads.pad)
        target, n_target = joined(columns["target"], rows, before=writes.start, pad=writes.pad)
        wanted, _ = joined(columns["target"], rows, after=writes.end, pad=-1)
        real = np.arange(source.shape[1]) < n_source[:, None] - 1
        source = self.hidden_words(source, real, step, rows, reads.mask)
        return Batch(
            torch.from_numpy(source),
            Layout(lengths=torch.from_numpy(n_source)),
            torch.from_numpy(wanted),
            torch.from_numpy(target),
            Layout(lengths=torch.from_numpy(n_target)),
        )

    def _answers(self, rows: Ids) -> Batch:
        """Each prompt twice: first all with the chosen answer, then all with the rejected one. What is asked for are
        the answers' tokens and their end."""
        tokens = self.tokenizer
        prompt, n_prompt = joined(self.columns["prompt"], rows, before=tokens.start, pad=tokens.pad)
        halves = [joined(self.columns[name], rows, pad=tokens.pad) for name in ("chosen", "rejected")]
        width = int((n_prompt + np.maximum(*(n for _, n in halves))).max())
        ids, lengths, asked = [], [], []
        for answer, n_answer in halves:
            both, is_answer = _side_by_side(prompt, n_prompt, answer, n_answer, tokens.pad)
            ids.append(np.pad(both, ((0, 0), (0, width - both.shape[1])), constant_values=tokens.pad))
            lengths.append(n_prompt + n_answer)
            following = np.pad(
                np.where(is_answer, both, -1), ((0, 0), (0, width + 1 - both.shape[1])), constant_values=-1
            )
            following[np.arange(len(rows)), lengths[-1]] = tokens.end
            asked.append(following[:, 1:])
        wanted = np.concatenate(asked)
        at = np.flatnonzero(wanted >= 0)
        reference = self.reference[rows] if len(self.reference) else np.zeros(len(rows), np.float32)
        return Batch(
            torch.from_numpy(np.concatenate(ids)),
            Layout(lengths=torch.from_numpy(np.concatenate(lengths))),
            torch.from_numpy(wanted.flat[at]),
            at=torch.from_numpy(at),
            reference=torch.from_numpy(reference),
        )


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


def cut_rows(longest: Ids, budget: int) -> Ids:
    """Where to cut sorted rows, so that rows times the longest of each batch stay within the budget.

    >>> cut_rows(np.array([2, 2, 3, 4, 6]), 8).tolist()
    [0, 2, 4, 5]
    """
    cuts = [0]
    while cuts[-1] < len(longest):
        begin = cuts[-1]
        window = longest[begin : begin + max(1, budget // int(longest[begin]))]
        sizes = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        cuts.append(begin + max(1, int(np.searchsorted(sizes, budget, side="right"))))
    return np.asarray(cuts)
