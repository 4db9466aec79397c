"""What can be seen of a model, as plain values ready for JSON: facts, tokens, the next token, looks at an image.

Each is a job of the engine's thread like any other (:class:`Looking`). Nothing here knows of HTTP, and nothing is
computed that :mod:`regard.look` or a model's own jobs could answer.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.config import InputError, Tokens
from regard.data.images import Picture
from regard.decode import generate as generation
from regard.decode import translate as translation
from regard.encode import fill, rows
from regard.encode import images as pictures
from regard.look.alignment import spread
from regard.look.attention import Layer, chosen
from regard.look.caption import map_caption
from regard.look.patches import rollout
from regard.look.trace import trace
from regard.model import Model
from regard.serve.jobs import Reading

SIDE = 200  # rows and columns of a matrix that is sent
THUMB = 32  # of a small one
MOST_TOKENS = 2_500  # of a text whose attention is looked at: it takes memory as their square
LONG = 1_000  # characters of a text for which one layer is enough to choose from
QUALITY = 88  # of JPEG, for a photo that is shown again


class Looking(Reading):
    """Looks at some inputs, one after the other. Between two steps of what is written there is no more than one job of
    this kind, for it may take a while."""

    def __init__(self, look: Callable[..., Any], *inputs: Any, model: Model, **options: Any):
        super().__init__(inputs, lambda inputs: [look(model, one, **options) for one in inputs])
        self.key, self.share = id(self), 1


def check_kind(model: Model, given: Any) -> None:
    """Refuse an image where texts are read, and a text where images are: it would be taken for the name of a file."""
    if pictures.reads_images(model) != (is_image := isinstance(given, Picture | bytes)):
        wrong, right = ("an image", "text") if is_image else ("text", "an image")
        raise InputError(f"{wrong}: this model reads {right}; send that, or ask another model")


def facts(model: Model) -> dict[str, Any]:
    """What a model is: enough to know which views it has."""
    towers = {
        name: tower for name in ("encoder", "decoder", "text") if (tower := getattr(model.config, name)) is not None
    }
    return {
        "task": model.task,
        "shape": model.config.shape,
        "parameters": model.n_parameters,
        "text": model.has_tokenizer,
        "images": pictures.reads_images(model),
        "labels": list(model.labels),
        "vocabulary": len(model.tokenizer) if model.has_tokenizer else None,
        "longest": model.context if model.task == "generate" else model.longest,
        "attention": [
            {"tower": name, "layers": layers, "heads": getattr(towers[name], "n_heads", 1)}  # 1: a recurrent one
            for name, layers in model.net.attention_layers().items()
            if layers
        ],
    }


# ---------------------------------------------------------------------------------------
# Text


def tokens(model: Model, text: str) -> dict[str, Any]:
    """The tokens of a text as a model reads it, special ones among them."""
    config = model.config
    if isinstance((config.text or config.encoder or config.last).input, Tokens):
        reads, (before, after) = rows.tokenizer(model), rows.marks(model)
    else:  # it writes text, and reads none
        reads, before, after = model.tokenizer, [], [model.tokenizer.end]
    if model.task == "fill" and fill.MASK in text:
        ids = fill.row_of(model, text, 1).ids
    elif model.task == "tag":
        ids = [*before, *(id for word in reads.encode_words(text.split()) for id in word), *after]
    else:
        ids = [*before, *reads.encode(text), *after]
    special = [i < len(before) or i >= len(ids) - len(after) for i in range(len(ids))]
    return {"ids": ids, "tokens": [reads.token(id) for id in ids], "special": special}


@torch.inference_mode()
def next_tokens(model: Model, prompt: str, *, top: int, temperatures: Sequence[float] = ()) -> dict[str, Any]:
    """The likeliest tokens after a prompt with their logits, and for each temperature what all others come to together,
    the logarithm of the sum of their powers of e. From that the share of each token follows at those temperatures,
    whatever top_k or top_p: nobody has to ask again."""
    model.check_task("generate")
    given, writes = generation.Given(model, prompt, 1, (), 1), model.tokenizer
    read = model.net.decode(torch.tensor([given.ids], device=model.device)).hidden
    logits = model.net.logits(read[:, -1:])[0, 0].float()
    logits = logits.index_fill(0, torch.tensor(model.never, dtype=torch.long, device=logits.device), -torch.inf)
    best = logits.topk(min(top, int(logits.isfinite().sum())))
    others = logits.index_fill(0, best.indices, -torch.inf)
    begins, ids = not writes.decode(given.ids), best.indices.tolist()
    return {
        "read": len(given.ids),
        "dropped": given.dropped,
        "vocabulary": int(logits.isfinite().sum()),
        "ids": ids,
        "tokens": [writes.token(id) for id in ids],
        "texts": [_text(writes.piece(id, first=begins)) for id in ids],
        "ends": [id in model.ends for id in ids],
        "logits": best.values.tolist(),
        "rest": [_finite(float((others / t).logsumexp(0))) for t in temperatures],
    }


def _text(piece: bytes) -> str | None:
    """What a token adds; None where it is a part of a character, or nothing."""
    try:
        return piece.decode() or None
    except UnicodeDecodeError:
        return None


def _finite(number: float) -> float | None:
    return number if number > -float("inf") else None  # JSON knows no infinity


def traced(model: Model, given: str | bytes, *, sentence: int = 0, **options: Any) -> dict[str, Any]:
    """What a search did for a prompt, an image, or one of the sentences of a text to translate."""
    sentences = []
    check_kind(model, given)
    if model.task == "translate" and isinstance(given, str):
        sentences = [unit.text for unit in translation.Text(model, given, False).units if unit.ids]
        if sentence >= len(sentences):
            there = "has nothing to translate" if not sentences else f"has only {len(sentences)}, counted from 0"
            raise InputError(f"sentence ({sentence}): the text {there}")
        given = sentences[sentence]
    if model.task == "generate":  # whose own job calls them so
        for name, own in (("max_length", "max_new_tokens"), ("n_best", "n")):
            if name in options:
                options[own] = options.pop(name)
    seen = trace(model, given, **options)
    said = {"sentences": sentences, "sentence": sentence, "text": given if isinstance(given, str) else None}
    return {**said, **seen.to_dict(), "image": None if seen.image is None else as_base64(seen.image, "JPEG")}


# ---------------------------------------------------------------------------------------
# Attention


def attention(
    model: Model,
    text: str | None,
    *,
    image: bytes | None = None,
    target: str | None = None,
    layer: str | None = None,
    head: int | None = None,
    mean: bool = False,
) -> dict[str, Any]:
    """What one layer attends to: one head's weights, no more than ``SIDE`` rows and columns of them, and all heads as
    small pictures. Left out, layer and head are those whose looks go to the most different places."""
    if model.task != "match" or image is not None:  # of CLIP's two sides a text may stand alone
        check_kind(model, text if image is None else image)
    for read in (text, target):
        if read is not None and (n := len(rows.tokenizer(model).encode(read))) > MOST_TOKENS:
            raise InputError(f"text of {n:,} tokens is more than the {MOST_TOKENS:,} that are looked at; shorten it")
    given, target = (text, target) if image is None else (image, text if target is None else target)
    seen = model.attention(given, target, layers=layer or _telling(model, text))
    of, own = max(((one, _Heads(one)) for one in seen.layers), key=lambda pair: max(pair[1].spread))
    head = None if mean else own.spread.index(max(own.spread)) if head is None else head
    shown = of.head(head).weights
    small, block = (shown, (1, 1)) if image is not None else pooled(shown, SIDE)
    return {
        "layer": of.name,
        "head": head,
        "size": list(shown.shape),
        "block": list(block),
        "rows": _blocks(of.rows, block[0]),
        "columns": _blocks(of.columns, block[1]),
        "weights": small.astype(np.float64).round(4).tolist(),
        "thumb": list(pooled(shown, THUMB)[0].shape),
        "thumbs": own.thumbs,
        "mean": own.mean,
        "side": seen.side,
        "said": seen.said,
        "image": None if seen.image is None else as_base64(seen.image, "JPEG"),
    }


class _Heads:
    """All heads of a layer: how many places each looks at, and small pictures. One is formed at a time, for of a long
    text each is large."""

    def __init__(self, layer: Layer):
        self.spread: list[float] = []
        self.thumbs: list[str] = []
        total = torch.zeros(len(layer.rows), len(layer.columns))
        for head in range(layer.n_heads):
            weights = layer.formed([head])
            self.spread.append(float(spread(weights)[0]))
            self.thumbs.append(_thumb(weights[0].numpy()))
            total += weights[0]
        self.mean = _thumb((total / layer.n_heads).numpy())


def _telling(model: Model, text: str | None) -> list[str]:
    """The layers to choose from: those that look at what was read, else the last tower's, and of those the upper half;
    of a long text, the last."""
    known = chosen(model)
    cross = [name for name in known if name.endswith(".cross")]
    last = cross or [name for name in known if name.split(".")[0] == known[-1].split(".")[0]]
    return last[-1:] if text is not None and len(text) > LONG else last[len(last) // 2 :]


def pooled(weights: NDArray[np.float32], most: int) -> tuple[NDArray[np.float32], tuple[int, int]]:
    """Weights with at most so many rows and columns, and how many of each became one: the strongest look of those.

    >>> pooled(np.array([[0.1, 0.2, 0.7], [0.0, 0.5, 0.5]]), 2)
    (array([[0.2, 0.7],
           [0.5, 0.5]]), (1, 2))
    """
    high, wide = (-(-n // most) for n in weights.shape)
    rows, columns = (-(-n // by) for n, by in zip(weights.shape, (high, wide), strict=True))
    padded = np.zeros((rows * high, columns * wide), weights.dtype)
    padded[: weights.shape[0], : weights.shape[1]] = weights
    return padded.reshape(rows, high, columns, wide).max((1, 3)), (high, wide)


def _blocks(names: Sequence[str], by: int) -> list[str]:
    return list(names) if by == 1 else [" ".join(names[i : i + by]) for i in range(0, len(names), by)]


def _thumb(weights: NDArray[np.float32]) -> str:
    return base64.b64encode((255 * pooled(weights, THUMB)[0]).round().astype(np.uint8).tobytes()).decode()


# ---------------------------------------------------------------------------------------
# Images


def matched(model: Model, image: bytes, *, texts: Sequence[str], templates: Sequence[str]) -> dict[str, Any]:
    """How well an image fits each of some texts."""
    found = model.match([image], texts, templates)
    return {"probabilities": found.probabilities[0].tolist(), "cosines": found.cosines[0].tolist()}


def drawn(model: Model, text: str, **options: Any) -> list[dict[str, Any]]:
    """Images of a text, as base64 of PNG."""
    [drawings] = model.draw([text], **options)
    return [{"image": as_base64(one.image, "PNG"), "score": one.score} for one in drawings]


def rolled_out(model: Model, image: bytes) -> dict[str, Any]:
    """The share of each patch in what a model's head reads, and the image as it was shown to it."""
    seen = rollout(model, image)
    return {"weights": seen.weights.tolist(), "image": as_base64(seen.picture, "JPEG")}


def glimpses(model: Model, image: bytes, *, text: str | None = None, **where: Any) -> dict[str, Any]:
    """Where a captioner looked to write each word, and the image as it was shown to it."""
    seen = map_caption(model, image, text, **where)
    return {**seen.to_dict(), "image": as_base64(seen.image, "JPEG")}


def as_base64(image: NDArray[Any], kind: str) -> str:
    """A file of an image."""
    from PIL import Image

    file = io.BytesIO()
    shown = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    shown.save(file, kind, **({"quality": QUALITY} if kind == "JPEG" else {}))
    return base64.b64encode(file.getvalue()).decode()
