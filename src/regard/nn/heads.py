"""What comes out: a score for every token, a label for each position or the whole, or a pair of vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard import config as c
from regard.nn.linear import Linear, linear
from regard.nn.masks import Layout
from regard.nn.norms import make_norm
from regard.nn.products import ACTIVATIONS


class VocabularyHead(nn.Module):
    """Scores over the vocabulary. Tied, it borrows the token table and owns no weight of its own.

    ``transformed`` is everything before the large product, for a loss that never forms all of the scores.
    """

    def __init__(self, config: c.Vocabulary, d: int, vocab_size: int, tower: c.Tower):
        super().__init__()
        self.dense = self.norm = None
        if config.transform:
            assert isinstance(tower, c.Stack)
            self.dense, self.norm = Linear(d, d), make_norm(tower, d)
            self.activation = ACTIVATIONS[tower.activation]
        self.weight = None if config.tied else nn.Parameter(torch.empty(vocab_size, d))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if config.bias else None
        self.packed: nn.Module | None = None  # the table, as nn.packed lays it out

    def reset_parameters(self, std: float | None = None) -> None:
        if self.weight is not None:
            nn.init.normal_(self.weight, std=std or self.weight.shape[1] ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def transformed(self, hidden: Float[Tensor, "... C"]) -> Float[Tensor, "... C"]:
        if self.dense is None or self.norm is None:
            return hidden
        return self.norm(self.activation(self.dense(hidden)))

    def forward(self, hidden: Float[Tensor, "... C"], table: Float[Tensor, "V C"]) -> Float[Tensor, "... V"]:
        hidden = self.transformed(hidden)
        return linear(hidden, table, self.bias) if self.packed is None else self.packed(hidden)


class Mix(nn.Module):
    """ELMo's learned sum of all layers: gamma times a softmax-weighted average."""

    def __init__(self, n: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(n))
        self.gamma = nn.Parameter(torch.ones(()))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weights)
        nn.init.ones_(self.gamma)

    def forward(self, layers: Sequence[Float[Tensor, "B T C"]]) -> Float[Tensor, "B T C"]:
        return self.gamma * sum(w * layer for w, layer in zip(self.weights.softmax(0), layers, strict=True))


class LabelsHead(nn.Module):
    """A label for every position."""

    def __init__(self, config: c.Labels, d: int):
        super().__init__()
        self.dropout = config.dropout
        self.classify = Linear(d, config.n_labels)

    def forward(self, hidden: Float[Tensor, "B T C"], layout: Layout = Layout()) -> Float[Tensor, "B T L"]:
        return self.classify(F.dropout(hidden, self.dropout, self.training))


def pool(hidden: Float[Tensor, "B T C"], how: str, layout: Layout = Layout()) -> Float[Tensor, "B C"]:
    """One vector a row: the first real position (class token), the last (end token), or the mean of all real ones;
    zeros where there are none.

    >>> pool(torch.tensor([[[1.0], [3.0], [9.0]]]), "mean", Layout(lengths=torch.tensor([2])))
    tensor([[2.]])
    """
    real = layout.real(hidden.shape[1], hidden.device)
    if how == "mean":
        if real is None:
            return hidden.mean(1)
        total = torch.where(real[..., None], hidden, 0).sum(1)
        return total / real.sum(1, keepdim=True).clamp_min(1)
    if real is None:
        return hidden[:, 0 if how == "class" else -1]
    t = hidden.shape[1]
    start, end = layout.span(t)
    first = torch.zeros_like(end) if start is None else start
    at = (first if how == "class" else end - 1).clamp(0, t - 1)
    picked = hidden.gather(1, at[:, None, None].expand(-1, 1, hidden.shape[2]))[:, 0]
    return torch.where((end > first)[:, None], picked, 0)


class PooledHead(nn.Module):
    """One label for the whole row, or the pooled vector where there are no labels."""

    def __init__(self, config: c.Pooled, d: int):
        super().__init__()
        self.how, self.activation, self.dropout = config.pool, config.activation, config.dropout
        self.dense = Linear(d, d) if config.dense else None
        self.classify = Linear(d, config.n_labels) if config.n_labels else None

    def forward(self, hidden: Float[Tensor, "B T C"], layout: Layout = Layout()) -> Float[Tensor, "B L"]:
        pooled = pool(hidden, self.how, layout)
        if self.dense is not None:
            pooled = getattr(torch, self.activation)(self.dense(pooled))
        if self.classify is None:
            return pooled
        return self.classify(F.dropout(pooled, self.dropout, self.training))


class Pair(NamedTuple):
    """Unit vectors of both sides and the scale (one over the temperature) of their products."""

    first: Float[Tensor, "B E"]
    text: Float[Tensor, "N E"]
    scale: Float[Tensor, ""]

    @property
    def logits(self) -> Float[Tensor, "B N"]:
        """Every first against every text."""
        return self.scale * self.first @ self.text.T


class ContrastiveHead(nn.Module):
    """Two towers' pooled vectors, projected into one space (CLIP)."""

    def __init__(self, config: c.Contrastive, d_first: int, d_text: int):
        super().__init__()
        self.config = config
        self.first = Linear(d_first, config.d_embed, bias=False)
        self.text = Linear(d_text, config.d_embed, bias=False)
        self.log_scale = nn.Parameter(torch.empty(()))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.log_scale, math.log(1 / self.config.temperature))

    def embed_first(self, hidden: Float[Tensor, "B T C"], layout: Layout = Layout()) -> Float[Tensor, "B E"]:
        return F.normalize(self.first(pool(hidden, self.config.pool, layout)), dim=-1)

    def embed_text(self, hidden: Float[Tensor, "B T C"], layout: Layout = Layout()) -> Float[Tensor, "B E"]:
        return F.normalize(self.text(pool(hidden, self.config.text_pool, layout)), dim=-1)

    def forward(self, first: Tensor, text: Tensor, first_layout: Layout, text_layout: Layout) -> Pair:
        return Pair(
            self.embed_first(first, first_layout),
            self.embed_text(text, text_layout),
            self.log_scale.exp(),  # training keeps it below 100, as in the paper
        )
