"""What the caller of the worked example gave: an input, the names of its tokens, and a layer to look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.config import InputError, Tokens

if TYPE_CHECKING:
    from torch import Tensor

    from regard.nn import Transformer


class Given(NamedTuple):
    """An input as a model takes it, and what its tokens are called (None: they have no names)."""

    row: Tensor  # (1, T) of ids, or pixels or vectors
    names: Sequence[str] | None
    words: bool = False  # given as words, not as what the model takes


def read(given: Any, names: Sequence[str] | None, what: str) -> Given:
    """A text, words, ids or a tensor. Words get ids in the order of their first appearance."""
    import torch

    if isinstance(given, torch.Tensor):
        row = given[None] if given.dim() == 1 else given
        if row.dim() == 0 or row.shape[0] != 1 or not row.numel():
            raise InputError(f"{what} of shape {tuple(given.shape)} must be one row with something in it")
        are_ids = row.dim() == 2 and not row.is_floating_point()
        return Given(row, names or ([str(i) for i in row[0].tolist()] if are_ids else None))
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise InputError(f"{what} ({given!r}) must be a text, a list of words, a list of ids or a tensor")
    items = given.split() if isinstance(given, str) else list(given)
    if not items:
        raise InputError(f"{what} ({given!r}) is empty; give at least one word")
    if all(isinstance(item, str) for item in items):
        number = {word: i for i, word in enumerate(dict.fromkeys(items))}
        return Given(torch.tensor([[number[word] for word in items]]), names or items, words=True)
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return Given(torch.tensor([items]), names or [str(i) for i in items])
    raise InputError(f"{what} must be a text, a list of words, a list of ids or a tensor, not a mixture")


def named(what: str, names: Sequence[str] | None, n: int) -> tuple[str, ...]:
    """The names of n positions: as given, or their numbers."""
    if names is None:
        return tuple(str(i + 1) for i in range(n))
    if len(names) != n:
        raise InputError(f"{what} ({len(names)} names) must name each of the {n} positions")
    return tuple(names)


def find(model: Transformer, layer: str | int | None, *, words: bool) -> tuple[str, str]:
    """The tower and the name of a layer: "1.cross", "decoder.0.self", "3" or 3."""
    known = model.attention_layers()
    if not any(known.values()):
        raise InputError("this model has no attention layers to walk through")
    if layer is None:  # the first there is
        layer = next(names[0] for names in known.values() if names)
    tower, _, name = str(layer).partition(".")
    towers, name = ([tower], name) if tower in known else (list(known), str(layer))
    name = f"{name}.self" if name.isdigit() else name
    found = [tower for tower in towers if name in known[tower]]
    if not found:
        each = [
            f"{tower} {' to '.join(dict.fromkeys((names[0], names[-1])))}" for tower, names in known.items() if names
        ]
        raise InputError(f"layer ({str(layer)!r}) is not in this model; it has {', '.join(each)}")
    if words:  # they go to the tower that reads words: of CLIP's two encoders, the second
        found.sort(key=lambda tower: not isinstance(getattr(model.config, tower).input, Tokens))
    return found[0], name


def check_reads(model: Transformer, tower: str, source: Given, target: Given | None) -> None:
    """Refuse words for a tower of images, more words than it knows, a missing target, and one that nobody reads."""
    reader = "encoder" if tower == "decoder" and model.encoder is not None else tower
    reads = getattr(model.config, reader).input
    if source.words and not isinstance(reads, Tokens):
        what = "vectors" if reads.kind == "vector" else "images"
        raise InputError(f"text: the {reader} of this model reads {what}, not words; give its tensor from Python")
    if source.words and (n := int(source.row.max()) + 1) > reads.vocab_size:
        way = "shorten it, or choose a model with a larger vocabulary, such as gpt2"
        raise InputError(f"text: {n} different words are more than the {reads.vocab_size} of this model; {way}")
    if reader != tower and target is None:
        raise InputError("target: this decoder writes a target while it reads the text; give both")
    if reader == tower and target is not None:
        way = "; choose a layer of its decoder, such as 0.cross" if model.decoder and model.encoder else ""
        raise InputError(f"target: only a decoder that reads an encoder has one; this layer is the {tower}'s{way}")
