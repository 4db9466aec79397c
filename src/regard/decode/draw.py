"""Images from texts: a decoder goes on from a text with codes, and a painter makes an image of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray

from regard.config import Codes, InputError
from regard.data.batch import number_of
from regard.decode.search import search
from regard.decode.settings import to_generate
from regard.encode.match import contrastive_head
from regard.files import check_folder, drafted

if TYPE_CHECKING:
    from regard.model import Model

AT_ONCE = {"cpu": 64, "cuda": 1_024}  # images that are drawn together


@dataclass(frozen=True)
class Drawing:
    """An image of a text, the logarithm of the probability of its codes, and, where a model was asked that matches
    images and texts, the cosine that it finds between the two."""

    image: UInt8[NDArray, "H W C"]
    text: str
    score: float
    codes: tuple[int, ...]
    cosine: float | None = None


@torch.inference_mode()
def draw(
    model: Model,
    texts: Sequence[str],
    *,
    n: int | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    rerank: Model | None = None,
) -> list[list[Drawing]]:
    """``n`` images of each text (8). What is drawn belongs to the seed and the text: other texts beside it change
    nothing, and more images begin with the same ones. A temperature of 0 gives the one image of the likeliest codes.
    With ``rerank``, a model that matches images and texts, those that it finds nearest to their text come first."""
    model.check_task("draw")
    if rerank is not None:
        contrastive_head(rerank)  # before much is drawn
    n = (8 if temperature else 1) if n is None else n
    if n > 1 and not temperature:
        raise InputError(f"n ({n}): at temperature 0 there is one image, of the likeliest codes; leave n out")
    how = to_generate(n=n, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    painter = model.painter
    head, first = painter.config.head, len(model.tokenizer)
    assert isinstance(head, Codes)
    prompts = [prompt_of(model, text) for text in texts]
    last, known = first + head.n_codes, model.config.last.input.vocab_size  # type: ignore[union-attr]
    size = painter.config.last.n_positions  # type: ignore[union-attr]
    never = [*range(first), *range(last, known)]  # nothing but codes
    found: list[list[Drawing]] = []
    at_once = max(1, AT_ONCE.get(model.device.type, 64) // n)
    for start in range(0, len(texts), at_once):
        some = prompts[start : start + at_once]
        drawn = search(
            model.net,
            torch.tensor(some, device=model.device),
            end=model.tokenizer.end,
            limits=size,
            how=how,
            never=never,
            requests=[number_of(prompt) for prompt in some],
            recorder=model.recorder,
        )
        codes = np.array([way.ids for ways in drawn for way in ways]) - first
        images = iter(zip(painter.paint(codes), codes.tolist(), strict=True))
        for text, ways in zip(texts[start:], drawn, strict=False):
            several = ((way, *next(images)) for way in ways)
            found.append([Drawing(image, text, way.logprob, tuple(ids)) for way, image, ids in several])
    return found if rerank is None else [_nearest_first(rerank, drawings) for drawings in found]


def _nearest_first(judge: Model, drawings: list[Drawing]) -> list[Drawing]:
    """The drawings of one text by how near a model finds them to it."""
    cosines = judge.match([one.image for one in drawings], [drawings[0].text]).cosines[:, 0].tolist()
    told = [replace(one, cosine=cosine) for one, cosine in zip(drawings, cosines, strict=True)]
    return sorted(told, key=lambda one: -(one.cosine or 0.0))


def prompt_of(model: Model, text: str) -> list[int]:
    """A text as the model was trained to read it: with padding up to one length."""
    tokens, most = model.tokenizer, model.longest
    ids = tokens.encode(text)
    if not ids:
        raise InputError(f"text ({text!r}) is empty; say what is to be drawn")
    if len(ids) > most:
        raise InputError(f"text ({text!r}) has {len(ids)} tokens, and this model reads {most}; say it shorter")
    return [tokens.start, *ids, *[tokens.pad] * (most - len(ids))]


def grid(rows: Sequence[Sequence[NDArray[np.uint8]]], gap: int = 2) -> UInt8[NDArray, "H W C"]:
    """Images as one, a row each under the other, with white between them.

    >>> grid([[np.zeros((3, 3, 1), np.uint8)] * 4, [np.zeros((3, 3, 1), np.uint8)]]).shape
    (8, 18, 1)
    """
    h, w, c = rows[0][0].shape
    wide = max(map(len, rows))
    whole = np.full((len(rows) * (h + gap) - gap, wide * (w + gap) - gap, c), 255, np.uint8)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            whole[i * (h + gap) :, j * (w + gap) :][:h, :w] = image
    return whole


def save(path: str | Path, found: Sequence[Sequence[Drawing]]) -> None:
    """Write drawings as one image, a text a row, of the kind that the file's name says."""
    from PIL import Image

    kind, whole = kind_of(path), grid([[one.image for one in drawings] for drawings in found])
    with drafted(Path(path)) as draft:
        Image.fromarray(whole[..., 0] if whole.shape[2] == 1 else whole).save(draft, format=kind)


def kind_of(path: str | Path) -> str:
    """The kind of image that a file's name says.

    >>> kind_of("boots.png")
    'PNG'
    """
    from PIL import Image

    ending = Path(path).suffix
    kind = Image.registered_extensions().get(ending.lower())
    if kind not in Image.SAVE:
        raise InputError(f"{path}: {ending or 'without an ending'} is no kind of image; name it like drawing.png")
    check_folder(path)
    return kind
