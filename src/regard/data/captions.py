"""Images with texts: captions to write (:class:`Captions`), or pairs to find again (:class:`Matches`).

An image is there once, however many texts it has; ``of`` says which image each text belongs to. Texts are padded to the
longest of the split, so that all batches have one shape.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from regard.data.batch import Batch, Ids, Size, draws, joined
from regard.data.pictures import Pictures
from regard.data.store import DataDir
from regard.nn.masks import Layout
from regard.recipe import Train


class Captions(Pictures):
    """A caption a row, with its image; an image comes as often in an epoch as it has captions."""

    n_special = 1  # tokens beside a text's own: start on the way in, end on the way out
    longest_is = "the longest text's tokens"

    def __init__(self, data: DataDir, split: str, train: Train, *, shuffled: bool):
        super().__init__(data, split, train, shuffled=shuffled)
        self.longest = int(self.columns["text"].lengths.max(initial=0)) + self.n_special

    def _n_rows(self) -> int:
        return len(self.columns["text"])

    def size(self, step: int) -> Size:
        n = self.columns["text"].lengths[self.rows(step)] + self.n_special
        return Size(wanted=int(n.sum()), tokens=len(n), real=int(n.sum()), padded=len(n) * self.longest)

    def make(self, step: int, rows: Ids) -> Batch:
        tokens, texts = self.tokenizer, self.columns["text"]
        target, lengths = joined(texts, rows, before=tokens.start, pad=tokens.pad)
        wanted, _ = joined(texts, rows, after=tokens.end, pad=-1)
        return Batch(
            torch.from_numpy(self.columns["image"][self.columns["of"][rows]]),
            Layout(),
            self._padded(wanted, -1),
            self._padded(target, tokens.pad),
            Layout(lengths=torch.from_numpy(lengths)),
            treatment=self._treatment(step, rows),
        )

    def _padded(self, ids: Ids, pad: int) -> torch.Tensor:
        room = self.longest - ids.shape[1]
        return torch.from_numpy(np.pad(ids, ((0, 0), (0, room)), constant_values=pad))


class Matches(Captions):
    """An image a row, with one of its texts, another in every epoch; of held-out images the first. No image is there
    twice, so that no other text of a batch is right."""

    n_special = 2  # start and end

    def __init__(self, data: DataDir, split: str, train: Train, *, shuffled: bool):
        super().__init__(data, split, train, shuffled=shuffled)
        of = np.asarray(self.columns["of"])
        self.by_image = np.argsort(of, kind="stable")
        self.counts = np.bincount(of, minlength=self.n)
        self.begins = np.cumsum(self.counts) - self.counts
        self.chosen = lru_cache(maxsize=2)(self._chosen)

    def _n_rows(self) -> int:
        return len(self.columns["image"])

    def _chosen(self, epoch: int) -> Ids:
        """The text of each image in an epoch."""
        drawn = draws(self.seed, epoch, 4, np.arange(self.n)) % self.counts.astype(np.uint64)
        return self.by_image[self.begins + (drawn.astype(np.int64) if self.shuffled else 0)]

    def size(self, step: int) -> Size:
        rows = self.rows(step)
        real = int((self.columns["text"].lengths[self.chosen(step // len(self))[rows]] + self.n_special).sum())
        return Size(wanted=len(rows), tokens=len(rows), real=real, padded=len(rows) * self.longest)

    def texts(self, texts: Ids) -> tuple[torch.Tensor, Layout]:
        """Some texts as the model reads them."""
        tokens = self.tokenizer
        ids, lengths = joined(self.columns["text"], texts, before=tokens.start, after=tokens.end, pad=tokens.pad)
        return self._padded(ids, tokens.pad), Layout(lengths=torch.from_numpy(lengths))

    def make(self, step: int, rows: Ids) -> Batch:
        ids, layout = self.texts(self.chosen(step // len(self))[rows])
        return Batch(
            torch.from_numpy(self.columns["image"][rows]),
            Layout(),
            torch.zeros(len(rows), dtype=torch.int64),  # every row is a pair
            ids,
            layout,
            treatment=self._treatment(step, rows),
        )
