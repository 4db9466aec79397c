"""A text and the codes of its image, one after the other: what a model that draws learns from (DALL-E, Ramesh et al.
2021). Every text is padded to one length with padding that is read, so that codes have the same places in all rows.

The text itself is not asked for: a model that draws is given one. (DALL-E gives it an eighth of the loss.)
"""

from __future__ import annotations

import numpy as np
import torch

from regard.data.batch import Batch, Ids, Size, joined
from regard.data.pictures import BATCH, Pictures
from regard.data.store import DataDir
from regard.nn.masks import Layout
from regard.recipe import Train


class Drawings(Pictures):
    """Rows of a start, a text, padding up to a fixed length, and all codes but the last."""

    def __init__(self, data: DataDir, split: str, train: Train, *, shuffled: bool):
        super().__init__(data, split, train, shuffled=shuffled)
        self.n = len(self.columns["text"])
        self.batch = min(train.batch_images or BATCH, self.n)
        self.room = data.manifest["data"]["max_tokens"]  # of a text
        self.n_codes = self.columns["codes"].shape[1]  # of an image
        self.length = 1 + self.room + self.n_codes  # with the start, and the last code, which is written and not read

    def size(self, step: int) -> Size:
        n = len(self.rows(step))
        return Size(wanted=n * self.n_codes, tokens=n, real=n, padded=n)

    def make(self, step: int, rows: Ids) -> Batch:
        tokens = self.tokenizer
        ids = np.full((len(rows), self.length - 1), tokens.pad, np.int64)
        text, _ = joined(self.columns["text"], rows, before=tokens.start, pad=tokens.pad)
        codes = self.columns["codes"][rows].astype(np.int64) + len(tokens)
        ids[:, : text.shape[1]] = text
        ids[:, self.room + 1 :] = codes[:, :-1]
        at = np.arange(ids.size).reshape(ids.shape)[:, self.room :]
        return Batch(
            torch.from_numpy(ids), Layout(), torch.from_numpy(codes.flatten()), at=torch.from_numpy(at.flatten())
        )
