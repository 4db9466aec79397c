"""How likely a model finds the references: what training calls loss, on texts instead of prepared data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from regard.data.batch import joined
from regard.data.bucketed import cut_rows
from regard.data.store import Ragged
from regard.data.tokenizer import Tokenizer
from regard.model import Model
from regard.nn.masks import Layout

BATCH_TOKENS = 2048  # of the longer side, padding included; times the vocabulary, they are the scores held at once


class Likelihood(NamedTuple):
    """The loss a token, over so many tokens; sentences longer than the model's positions are left out.

    >>> round(Likelihood(loss=2.0, tokens=7, left_out=0).perplexity, 3)
    7.389
    """

    loss: float
    tokens: int
    left_out: int

    @property
    def perplexity(self) -> float:
        """Among how many tokens, all alike, the model would have as hard a choice."""
        return math.exp(min(self.loss, 700.0)) if self.tokens else math.nan


@torch.no_grad()
def likelihood(model: Model, sources: Sequence[str], targets: Sequence[str]) -> Likelihood:
    """The model's loss on each target after its source, the end of the sentence included.

    >>> from regard import Transformer, recipe
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_encoder_decoder"}, vocab_size=len(tokens))
    >>> likelihood(Model(Transformer(config), "translate", tokens), ["a dog"], ["ein Hund"]).tokens
    9
    """
    net, reads, writes = model.net, model.source_tokenizer, model.tokenizer
    device = model.device
    source, target = _ids(reads, sources), _ids(writes, targets)
    n_source, n_target = source.lengths + 1, target.lengths + 1  # with the end
    fits = (n_source <= _limit(net.config.encoder)) & (n_target <= _limit(net.config.decoder))
    order = np.lexsort((n_source, n_target))
    order = order[fits[order]]
    ends = cut_rows(np.maximum(n_source, n_target)[order], BATCH_TOKENS)
    total, count = torch.zeros((), dtype=torch.float64, device=device), 0
    for begin, end in pairwise(ends):
        rows = order[begin:end]
        read, n_read = joined(source, rows, after=reads.end, pad=reads.pad)
        given, n_given = joined(target, rows, before=writes.start, pad=writes.pad)
        wanted, _ = joined(target, rows, after=writes.end, pad=-1)
        read, given, wanted, n_read, n_given = (
            torch.from_numpy(array).to(device) for array in (read, given, wanted, n_read, n_given)
        )
        logits = net(read, given, layout=Layout(lengths=n_read), target_layout=Layout(lengths=n_given))
        total += F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), ignore_index=-1, reduction="sum")
        count += int(n_target[rows].sum())
    return Likelihood(total.item() / count if count else math.nan, count, int((~fits).sum()))


def _ids(tokenizer: Tokenizer, texts: Sequence[str]) -> Ragged:
    rows = tokenizer.encode_batch(list(texts))
    lengths = [len(row) for row in rows]
    return Ragged(np.fromiter((id for row in rows for id in row), np.int64), np.cumsum(lengths))


def _limit(tower: Any) -> float:
    """How many tokens a tower takes; a recurrent one, as many as there are."""
    limit = getattr(tower, "position_limit", None)
    return math.inf if limit is None else limit
