"""Texts with gaps in, the likeliest tokens for each gap out (BERT, Devlin et al. 2019; ELMo, Peters et al. 2018).

Each gap is judged by itself, with the others still open. A bidirectional LSTM language model reads up to a gap from
both sides, and its two opinions are multiplied.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.config import InputError, Recurrent, Vocabulary
from regard.data.tokenizer import Tokenizer
from regard.encode import rows

if TYPE_CHECKING:
    from regard.model import Model

MASK, PART = "[MASK]", "[SEP]"


@dataclass(frozen=True)
class Candidate:
    """A token for a gap: as text, as the tokenizer has it, and how likely it is there."""

    text: str
    token: str
    probability: float


@dataclass(frozen=True)
class Filled:
    """A text, and for each of its gaps the likeliest tokens, the best first."""

    text: str
    masks: tuple[tuple[Candidate, ...], ...]

    @property
    def best(self) -> str:
        """The text with the likeliest token in each gap.

        >>> Filled("a [MASK] runs", ((Candidate("dog", "▁dog", 0.5),),)).best
        'a dog runs'
        """
        words = iter(candidates[0].text for candidates in self.masks)
        return re.sub(re.escape(MASK), lambda _: next(words), self.text)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"text": self.text, "best": self.best, "masks": [[vars(c) for c in found] for found in self.masks]}


def fill(model: Model, texts: Sequence[str], *, top: int = 5) -> list[Filled]:
    """The likeliest tokens for each [MASK] of each text; see :meth:`regard.Model.fill`.

    >>> from regard import Model, Transformer, recipe
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_encoder"}, vocab_size=len(tokens))
    >>> found = fill(Model(Transformer(config), "fill", tokens), ["a d[MASK]g[SEP]r[MASK]n"], top=2)
    >>> [len(mask) for mask in found[0].masks]
    [2, 2]
    """
    model.check_task("fill")
    if not isinstance(top, int) or top < 1:
        raise InputError(f"top ({top}) must be at least 1")
    if not isinstance(model.config.head, Vocabulary):
        raise InputError(f"{model.path or 'this model'}: has no scores for tokens; give a model with its fill head")
    mask = model.tokenizer.mask
    if "mask" in model.tokenizer.lacks or mask >= model.config.last.input.vocab_size:  # type: ignore[union-attr]
        raise InputError(f"{model.path or 'this model'}: has no mask token; give a model that was trained to fill")
    rows.check_texts(texts)
    texts = [_one_name(model.tokenizer, text, i) for i, text in enumerate(texts, 1)]
    given = [row_of(model, text, i) for i, text in enumerate(texts, 1)]
    found: list[tuple[tuple[Candidate, ...], ...]] = [()] * len(given)
    for batch in rows.read(model, given):
        where = [(i, at) for i, row in enumerate(batch.rows) for at, id in enumerate(given[row].ids) if id == mask]
        best = _scores(model, batch.hidden, where).topk(min(top, len(model.tokenizer)))
        candidates = [
            tuple(_candidate(model.tokenizer, id, p) for id, p in zip(ids, ps, strict=True))
            for ids, ps in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        for (i, _), of_mask in zip(where, candidates, strict=True):
            found[batch.rows[i]] += (of_mask,)
    return [Filled(text, masks) for text, masks in zip(texts, found, strict=True)]


@torch.no_grad()
def _scores(model: Model, hidden: Float[Tensor, "B T C"], where: list[tuple[int, int]]) -> Float[Tensor, "N V"]:
    """The probability of every token at some places."""
    row, at = (torch.tensor(side, device=hidden.device) for side in zip(*where, strict=True))
    if isinstance(model.config.last, Recurrent):
        # What read up to the token before, and what read down to the token after.
        ahead = model.net.logits(hidden[row, at - 1][None])[0, :, 0]
        back = model.net.logits(hidden[row, at + 1][None])[0, :, 1]
        return (ahead.float().log_softmax(-1) + back.float().log_softmax(-1)).softmax(-1)
    return model.net.logits(hidden[row, at][None])[0].float().softmax(-1)


# ---------------------------------------------------------------------------------------
# Texts with gaps


def _one_name(tokens: Tokenizer, text: str, number: int) -> str:
    """A text whose gaps are all called [MASK], whatever the tokenizer calls them."""
    text = text.replace(tokens.token(tokens.mask), MASK)
    if MASK not in text:
        raise InputError(f"text {number} ({_short(text)!r}) has no {MASK}: put one where a word is to be found")
    return text


def row_of(model: Model, text: str, number: int) -> rows.Row:
    """A text with gaps, or with none, as the model reads it; refused where it is too long."""
    if text.count(PART) > 1:
        raise InputError(f"text {number} has {text.count(PART)} {PART}: at most one parts it, in two segments")
    parts = [_ids(model.tokenizer, part.strip()) for part in text.split(PART)]
    row, limit = rows.make_row(model, *parts, whole=True), rows.room(model, 0)
    if limit is not None and len(row.ids) > limit:
        raise InputError(
            f"text {number} has {len(row.ids):,} tokens, more than the {limit:,} of this model; shorten it"
        )
    return row


def _ids(tokens: Tokenizer, text: str) -> list[int]:
    """The ids of a text with gaps. Where tokens begin with the space before them, a gap's token does so too."""
    pieces = text.split(MASK)
    if tokens.splits_words or len(tokens.encode_parts([" a"])[0]) == 1 or (tokens.parents >= 0).any():
        pieces = [*(piece.removesuffix(" ") for piece in pieces[:-1]), pieces[-1]]
    first, *others = tokens.encode_parts([tokens.open(pieces[0]), *pieces[1:]])
    return [*first, *(id for piece in others for id in (tokens.mask, *piece))]


def _candidate(tokens: Tokenizer, id: int, probability: float) -> Candidate:
    text, token = tokens.decode([id]).strip(), tokens.token(id)
    return Candidate(token if not text or "\ufffd" in text else text, token, probability)


def _short(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
