"""What a trained model reads, to look at: a text, an image or both as one row of its tensors, and the names of the
positions that every tower attends over. Texts become rows as in the model's own job; nothing is cut unsaid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor

from regard.config import Grid, InputError, Patches, Tokens
from regard.data.tokenizer import Tokenizer
from regard.decode import draw, translate
from regard.decode.settings import Decoding
from regard.encode import fill, images, labels, rows

if TYPE_CHECKING:
    from regard.model import Model

PIXELS = 448  # at least so many are shown of an image's side


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """One row of what a network takes. ``names`` are those of each tower's positions, and over an encoder those of what
    is ``written`` at the decoder's; ``image`` is what the model was
    shown, with more pixels, and ``side`` how many patches or cells of it stand beside each other: they come last."""

    inputs: Tensor | None
    target: Tensor | None = None
    segments: Tensor | None = None
    names: dict[str, tuple[str, ...]]
    given: Any = None
    said: str | None = None  # the target as a text
    image: UInt8[NDArray, "H W 3"] | None = None
    side: int | None = None


def read(model: Model, given: Any, target: Any = None, *, writes: bool = True) -> Inputs:
    """What a model reads of a text, of two, of an image (a path, bytes, an image of pillow, an array), or of a tensor
    as the network takes it, one row. Over an encoder, a decoder's ``target`` left out is what the model itself says,
    or nothing unless it ``writes``; of two encoders, the target is the text, and a string alone is one, too."""
    shape = model.config.shape
    if isinstance(given, tuple) and shape != "encoder":
        raise InputError(f"{len(given)} texts: this model reads one; put it into quotes (--target: what it writes)")
    if shape in ("encoder", "decoder"):
        if target is not None:
            raise InputError(f"target ({target!r}): this model reads one input, and writes nothing beside it")
        return _first(model, shape, given)
    written = None
    if shape == "encoder-decoder":
        if target is None and writes:
            target, written = said_by(model, given)
    elif target is None and (isinstance(given, str) or (isinstance(given, Tensor) and given.dim() <= 2)):
        given, target = None, given
    first = Inputs(inputs=None, names={}) if given is None else _first(model, "encoder", given)
    if target is None:
        return first
    if isinstance(target, Tensor):
        ids = target
    elif not isinstance(target, str):
        raise InputError(f"target ({type(target).__name__}) must be a text")
    elif shape == "encoder-decoder":  # as it is read while it is written
        written = model.tokenizer.encode(target) if written is None else written
        ids = torch.tensor([model.tokenizer.start, *written])
    else:
        ids = torch.tensor(_row(model, target).ids)
    ids, names = _named(model, ids, model.tokenizer if model.has_tokenizer else None)
    said = target if isinstance(target, str) else None
    if shape == "two encoders":
        return replace(first, target=ids, names={**first.names, "text": names}, said=said)
    end = "…" if said is None else model.tokenizer.token(model.tokenizer.end)
    both = {"decoder": names, "written": (*names[1:], end)}
    return replace(first, target=ids, names={**first.names, **both}, said=said)


def _first(model: Model, tower: str, given: Any) -> Inputs:
    """Of the tower that reads what is given first."""
    reads = getattr(model.config, tower).input
    if isinstance(reads, Tokens):
        row = None if isinstance(given, Tensor) else _row(model, given)
        tokenizer = rows.tokenizer(model) if model.has_tokenizer else None
        ids, names = _named(model, given if row is None else torch.tensor(row.ids), tokenizer)
        segments = None
        if row is not None and reads.n_segments > 1 and 1 in row.segments:
            segments = torch.tensor([row.segments], device=model.device)
        return Inputs(inputs=ids, segments=segments, names={tower: names}, given=given)
    if not isinstance(reads, Patches | Grid):  # a vector, which only a tensor can be
        slots = tuple(str(i + 1) for i in range(reads.n_slots))
        return Inputs(inputs=_one_row(model, given, 2), names={tower: slots}, given=given)
    about = {"names": {tower: patch_names(reads)}, "given": given, "side": reads.side}
    if isinstance(given, Tensor):
        return Inputs(inputs=_one_row(model, given, 4), **about)
    [pixels] = images.batches(model, [given])
    shown = images.shown(model, given, reads.side * -(-PIXELS // reads.side))
    return Inputs(inputs=pixels, image=shown, **about)


def patch_names(config: Patches | Grid) -> tuple[str, ...]:
    """The vectors before an image, and the row and column of each patch or cell of it.

    >>> patch_names(Patches(image_size=4, patch_size=2, registers=1))
    ('[CLS]', '[REG1]', '1,1', '1,2', '2,1', '2,2')
    """
    before = []
    if isinstance(config, Patches):
        before = ["[CLS]"] * config.class_token + [f"[REG{i + 1}]" for i in range(config.registers)]
    places = range(1, config.side + 1)
    return (*before, *(f"{row},{column}" for row in places for column in places))


# ---------------------------------------------------------------------------------------
# Texts


def _row(model: Model, given: Any) -> rows.Row:
    """A text, or two, as the model's job reads it; refused where something would be cut off."""
    if model.task == "tag":
        words = labels.words_of(given, 1)
        row, *others = (part for _, part, _ in labels.parts_of(model, 0, words))
        if others:
            raise InputError(f"sentence of {len(words)} words is longer than this model reads at once; shorten it")
        return row
    first, *others = given if isinstance(given, tuple) else (given,)
    if len(others) > 1:
        raise InputError(f"{1 + len(others)} texts are too many: a model reads one, or two together")
    rows.check_texts([first, *others])
    if model.task == "draw":
        ids = draw.prompt_of(model, first)
        return rows.Row(ids, [0] * len(ids))
    if model.task == "fill" and not others:
        return fill.row_of(model, first.replace(model.tokenizer.token(model.tokenizer.mask), fill.MASK), 1)
    encode = rows.tokenizer(model).encode
    texts = [encode(text) for text in (first, *others)]
    if model.task == "translate" and len(units := translate.one_sentence(model, first).units) == 1:
        texts = [units[0].ids or texts[0]]  # what has nothing to translate is looked at all the same
    row = rows.make_row(model, *texts)
    if row.cut:
        raise InputError(f"text of {sum(map(len, texts)):,} tokens is longer than this model reads at once; shorten it")
    return row


def said_by(model: Model, given: Any) -> tuple[str, Sequence[int] | None]:
    """What the model itself writes after what it read; and its tokens, where they are not those of that text."""
    if isinstance(given, Tensor):
        raise InputError("target: missing; beside a tensor, give the tensor of the target")
    if model.task == "caption":
        return model.caption([given])[0].text, None
    model.check_task("translate")
    text, how = translate.one_sentence(model, given), Decoding()
    translate.find(model, [text], how)
    found = [unit.found[0].ids for unit in text.units if unit.found]
    return text.translation(how, False).text, found[0] if len(found) == 1 else None


def _named(model: Model, ids: Tensor, tokenizer: Tokenizer | None) -> tuple[Tensor, tuple[str, ...]]:
    """Ids as one row on the model's device, and the names of their tokens; numbers where there is no tokenizer."""
    row = _one_row(model, ids, 2)
    name = str if tokenizer is None else tokenizer.token
    return row, tuple(name(int(id)) for id in row[0])


def _one_row(model: Model, given: Any, dims: int) -> Tensor:
    if not isinstance(given, Tensor):
        raise InputError(f"input ({type(given).__name__}) must be a tensor: this model reads vectors")
    row = given[None] if given.dim() == dims - 1 else given
    if row.dim() != dims or row.shape[0] != 1 or not row.numel():
        raise InputError(f"a tensor of shape {tuple(given.shape)} must be one row with something in it")
    return row.to(model.device)
