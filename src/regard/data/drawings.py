"""A text and the codes of its image, one after the other: what a model that draws learns from (DALL-E, Ramesh et al.
2021). Every text is padded to one length with padding that is read, so that codes have the same places in all rows.

The text itself is not asked for: a model that draws is given one. (DALL-E gives it an eighth of the loss.)
"""

from __future__ import annotations

import numpy as np
import torch

from regard.data.batch import Batch, Ids, Size, joined
from regard.data.captions import Captions
from regard.data.store import DataDir
from regard.nn.masks import Layout
from regard.recipe import Train


class Drawings(Captions):
    """Rows of a start, a text, padding up to a fixed length, and all codes but the last."""

    longest_is = "a start, data.max_tokens and the codes of an image"

    def __init__(self, data: DataDir, split: str, train: Train, *, shuffled: bool):
        super().__init__(data, split, train, shuffled=shuffled)
        self.room = data.manifest["data"]["max_tokens"]  # of a text
        self.n_codes = self.columns["codes"].shape[1]  # of an image
        self.longest = 1 + self.room + self.n_codes  # the last code is written and not read

    def size(self, step: int) -> Size:
        n = len(self.rows(step))
        return Size(wanted=n * self.n_codes, tokens=n, real=n, padded=n)

    def make(self, step: int, rows: Ids) -> Batch:
        tokens = self.tokenizer
        ids = np.full((len(rows), self.longest - 1), tokens.pad, np.int64)
        text, _ = joined(self.columns["text"], rows, before=tokens.start, pad=tokens.pad)
        codes = self.columns["codes"][self.columns["of"][rows]].astype(np.int64) + len(tokens)
        ids[:, : text.shape[1]] = text
        ids[:, self.room + 1 :] = codes[:, :-1]
        at = np.arange(ids.size).reshape(ids.shape)[:, self.room :]
        return Batch(
            torch.from_numpy(ids), Layout(), torch.from_numpy(codes.flatten()), at=torch.from_numpy(at.flatten())
        )
