"""Images, all of one size, a batch of as many at every step."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.augment import N_DRAWN, Treatment, draw, draw_mixed, mixes
from regard.data.batch import Batch, Batches, Ids, Size, shuffled_order, uniform
from regard.data.store import DataDir
from regard.nn.masks import Layout
from regard.recipe import Train

BATCH = 128  # images, unless a recipe says


class Pictures(Batches):
    """Images in random order, anew in every epoch; what does not fill a last batch waits for another epoch, so that all
    batches have one shape. Held-out images in order, all of them."""

    unit = "images"

    def __init__(self, data: DataDir, split: str, train: Train, *, shuffled: bool):
        super().__init__(data, split, train, shuffled=shuffled)
        self.n = self._n_rows()
        self.batch = min(train.batch_images or BATCH, self.n)
        self.order = lru_cache(maxsize=2)(self._order)
        told = data.manifest["images"]
        self.mean, self.std = torch.tensor(told["mean"]), torch.tensor(told["std"])

    def _n_rows(self) -> int:
        return len(self.columns["image"])

    def __len__(self) -> int:
        return self.n // self.batch if self.shuffled else math.ceil(self.n / self.batch)

    def _order(self, epoch: int) -> Ids:
        return shuffled_order(self.seed, epoch, 0, self.n) if self.shuffled else np.arange(self.n)

    def rows(self, step: int) -> Ids:
        epoch, i = divmod(step, len(self))
        return self.order(epoch)[i * self.batch : (i + 1) * self.batch]

    def size(self, step: int) -> Size:
        n = len(self.rows(step))
        return Size(wanted=n, tokens=n, real=n, padded=n)

    def make(self, step: int, rows: Ids) -> Batch:
        # An image that is to be painted has no label: it is asked for itself, or (-1) not.
        labels = np.asarray(self.columns["label"][rows]) if "label" in self.columns else np.zeros(len(rows), np.int64)
        return Batch(
            torch.from_numpy(self.columns["image"][rows]),
            Layout(),
            torch.from_numpy(labels if self.data.has_numbers else labels.astype(np.int64)),
            treatment=self._treatment(step, rows),
        )

    def _treatment(self, step: int, rows: Ids) -> Treatment:
        """What is drawn for these images of a step, and for those that they are mixed with: each with the next of the
        whole batch, whichever part that is in. Held-out images stay as they are."""
        if not self.shuffled:
            return Treatment(self.mean, self.std)
        size, mixed, every = self.columns["image"].shape[1], {}, rows
        if mixes(self.train):
            whole = self.rows(step)
            by_row = np.argsort(whole)
            at = by_row[np.searchsorted(whole, rows, sorter=by_row)]
            partners = whole[(at + 1) % len(whole)]
            other, more = _found(partners, rows)
            every = np.concatenate([rows, more])
            mixed = {
                "others": torch.from_numpy(self.columns["image"][more]) if len(more) else None,
                "other": torch.from_numpy(other),
                "second": torch.from_numpy(self.columns["label"][partners].astype(np.int64)),
                **draw_mixed(self.train, self._numbers(step, rows), self._shares(step, len(whole))[at], size),
            }
        return Treatment(self.mean, self.std, **draw(self.train, self._numbers(step, every), size), **mixed)

    def _numbers(self, step: int, rows: Ids) -> NDArray[np.float64]:
        return uniform(self.seed, step, 2, rows[:, None], np.arange(N_DRAWN)[None])

    def _shares(self, step: int, n: int) -> NDArray[np.float64]:
        """How much of each of a step's images is its own, by mixup and by cutmix."""
        generator = np.random.default_rng([self.seed, step, 3])
        return np.stack(
            [generator.beta(a, a, n) if a else np.ones(n) for a in (self.train.mixup, self.train.cutmix)], 1
        )


def _found(wanted: Ids, rows: Ids) -> tuple[Ids, Ids]:
    """Where each of some rows is among others, with those behind them that are not.

    >>> _found(np.array([5, 9]), np.array([7, 5]))
    (array([1, 2]), array([9]))
    """
    more = np.array([row for row in dict.fromkeys(wanted.tolist()) if row not in set(rows.tolist())], np.int64)
    every = np.concatenate([rows, more])
    by_row = np.argsort(every, kind="stable")
    return by_row[np.searchsorted(every, wanted, sorter=by_row)], more
