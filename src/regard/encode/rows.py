"""Texts as the rows a model was trained on: special tokens, segments, what is cut; and batches of rows of like length.

A row's batch does not change what is read from it, but for the rounding of matrix products.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.config import InputError, Tokens, Tower
from regard.data.bucketed import cut_rows
from regard.data.tokenizer import Tokenizer
from regard.nn.masks import Layout

if TYPE_CHECKING:
    from regard.model import Model

BATCH_TOKENS = {"cpu": 2_048, "cuda": 65_536}  # of one batch, padding included


class Row(NamedTuple):
    """What a model reads at once: ids, special ones among them, the segment of each, and whether something of the text
    did not fit."""

    ids: list[int]
    segments: list[int]
    cut: bool = False


class Read(NamedTuple):
    """A batch that was read: which rows it has, the vectors of their tokens, and where those are real."""

    rows: list[int]
    hidden: Float[Tensor, "B T C"]
    layout: Layout


def tower(model: Model) -> Tower:
    """What reads text; refused where a model reads something else."""
    config = model.config
    found = config.text or config.encoder or config.last
    if not isinstance(found.input, Tokens):
        raise InputError(f"{model.path or 'this model'}: reads {found.input.kind}, not text; give another model")
    return found


def tokenizer(model: Model) -> Tokenizer:
    return model.source_tokenizer if model.config.shape == "encoder-decoder" else model.tokenizer


def marks(model: Model) -> tuple[list[int], list[int]]:
    """The special tokens before a text and after it, as in training: a translator reads no start, a language model no
    end. Those that the model has no vector for are left out."""
    known, tokens = tower(model).input.vocab_size, tokenizer(model)  # type: ignore[union-attr]
    if model.task == "generate":
        return [id for id in model.prefix if id < known], []
    start = [] if model.task == "translate" else [tokens.start]
    return [id for id in start if id < known], [id for id in [tokens.end] if id < known]


def make_row(model: Model, first: Sequence[int], second: Sequence[int] | None = None, *, whole: bool = False) -> Row:
    """The row of a text's ids, or of two texts': start, text, end, second text, end.

    What does not fit is cut from the end of the longer text; with ``whole`` nothing is, and the row may be too long."""
    start, end = marks(model)
    texts = [list(first)] if second is None else [list(first), list(second)]
    between = model.between if second is not None else []
    limit = room(model, len(start) + len(texts) * len(end) + len(between)) if not whole else None
    over = 0 if limit is None else max(0, sum(map(len, texts)) - limit)
    for _ in range(over):
        max(reversed(texts), key=len).pop()
    ids, segments = list(start), [0] * len(start)
    for segment, text in enumerate(texts):
        marked = [*text, *end, *(between if segment == 0 else ())]
        ids += marked
        segments += [segment] * len(marked)
    return Row(ids, segments, over > 0)


def room(model: Model, specials: int = 2) -> int | None:
    """How many tokens of text fit beside special ones: as many as the model has positions for, and where it was trained
    on texts of a greatest length, no more than that. None where there is no end to it."""
    limit = getattr(tower(model), "position_limit", None)
    fits = None if limit is None else limit - specials
    if model.task in ("generate", "fill"):  # trained on rows cut from a stream, as long as there are positions
        return fits
    return model.longest if fits is None else min(model.longest, fits)


@torch.no_grad()
def read(model: Model, rows: Sequence[Row]) -> Iterator[Read]:
    """What the model makes of each row: the vectors under its head, in batches of rows of like length."""
    wants_segments = getattr(tower(model).input, "n_segments", 0) > 1
    lengths = np.array([len(row.ids) for row in rows], np.int64)
    order = np.argsort(lengths, kind="stable")
    for begin, end in pairwise(cut_rows(lengths[order], BATCH_TOKENS.get(model.device.type, 2_048))):
        some = order[begin:end].tolist()
        batch = [rows[i] for i in some]
        ids = rectangle([row.ids for row in batch], tokenizer(model).pad).to(model.device)
        layout = Layout(lengths=torch.from_numpy(lengths[some]).to(model.device))
        segments = None
        if wants_segments and any(1 in row.segments for row in batch):
            segments = rectangle([row.segments for row in batch], 0).to(model.device)
        yield Read(some, _hidden(model, ids, layout, segments), layout)


def rectangle(rows: Iterable[list[int]], pad: int) -> Int[Tensor, "B T"]:
    """Rows of ids, padded to the longest.

    >>> rectangle([[5], [7, 8]], pad=0)
    tensor([[5, 0],
            [7, 8]])
    """
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad)


def _hidden(model: Model, ids: Tensor, layout: Layout, segments: Tensor | None) -> Float[Tensor, "B T C"]:
    net = model.net
    if model.config.shape == "decoder":
        return net.decode(ids, layout=layout).hidden
    if model.config.shape == "two encoders":
        return net.encode_text(ids, layout).hidden
    encoded = net.encode(ids, layout, segments=segments)
    return encoded.hidden if net.mix is None else net.mix(encoded.layers)


def check_texts(texts: Sequence[str], what: str = "text") -> None:
    """Refuse what is no text, or has nothing in it.

    >>> check_texts(["a dog", " "])
    Traceback (most recent call last):
    regard.schema.InputError: text 2 is empty; give at least one word
    """
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise InputError(f"{what} {number} ({type(text).__name__}) must be a string")
        if not text.strip():
            raise InputError(f"{what} {number} is empty; give at least one word")
