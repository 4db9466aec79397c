"""Texts in, a vector for each out: what the last layer says of its tokens, pooled to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from regard.config import InputError
from regard.encode import rows
from regard.nn.heads import ContrastiveHead
from regard.nn.heads import pool as pooled

if TYPE_CHECKING:
    from regard.model import Model, Pooling

WAYS = ("mean", "class", "end")


def embed(
    model: Model, texts: Sequence[str], *, pool: Pooling | None = None, normalise: bool = True
) -> NDArray[np.float32]:
    """A vector for each text; see :meth:`regard.Model.embed`. Of two encoders, it is the one that is compared with
    images, unless a way to pool is given.

    >>> from regard import Model, Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_encoder"}, vocab_size=len(tokens))
    >>> embed(Model(Transformer(config), "fill", tokens), ["a dog", "two cats"]).shape
    (2, 29)
    """
    if pool not in (None, *WAYS):
        raise InputError(f"pool ({pool!r}) must be {', '.join(WAYS[:-1])} or {WAYS[-1]}")
    d_out = rows.tower(model).d_out
    rows.check_texts(texts)
    given = [rows.make_row(model, ids) for ids in rows.tokenizer(model).encode_batch(list(texts))]
    if not given:
        return np.zeros((0, d_out), np.float32)
    found: list[Tensor] = []
    places: list[int] = []
    for batch in rows.read(model, given):
        vectors = _pooled(model, batch, pool).float()
        found.append((F.normalize(vectors, dim=-1) if normalise else vectors).cpu())
        places += batch.rows
    return torch.cat(found)[np.argsort(places)].numpy()


@torch.no_grad()
def _pooled(model: Model, batch: rows.Read, pool: Pooling | None) -> Tensor:
    head = model.net.head
    if isinstance(head, ContrastiveHead) and pool is None and model.pooling is None:
        return head.text(pooled(batch.hidden, head.config.text_pool, batch.layout))
    return pooled(batch.hidden, pool or model.pooling or "mean", batch.layout)
