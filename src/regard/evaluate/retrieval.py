"""How often the right one is found: which text belongs to an image, and which image to a text (R@1, R@5, R@10); and the
score card of a model that was trained to tell."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.decode.translate import Progress
from regard.evaluate.captions import Captioned, hashes
from regard.evaluate.scorecard import Scorecard, about
from regard.evaluate.scores import Score
from regard.model import Model
from regard.schema import InputError

BEST = (1, 5, 10)
AT_ONCE = 1_024  # rows that are compared with everything
ALIKE = 1e-6  # how far apart the same text may be in two batches
EMBEDDED = 256  # images or texts between two looks at how far it is


def ranks(
    images: Float[Tensor, "N E"], texts: Float[Tensor, "M E"], of: Int[Tensor, " M"]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many wrong texts are at least as near to each image as the nearest of its own, and how many wrong images to
    each text as its own. ``of`` says which image each text belongs to.

    >>> near = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> ranks(near, torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 0, 1]))
    (array([0, 0]), array([0, 0, 1]))
    """
    to_text, to_image = [], []
    for start in range(0, len(images), AT_ONCE):
        near = images[start : start + AT_ONCE] @ texts.T
        own = of == torch.arange(start, start + len(near), device=of.device)[:, None]
        best = near.masked_fill(~own, float("-inf")).amax(1, keepdim=True)
        to_text.append(((near >= best - ALIKE) & ~own).sum(1))
    for start in range(0, len(texts), AT_ONCE):
        near = texts[start : start + AT_ONCE] @ images.T
        right = of[start : start + AT_ONCE, None]
        to_image.append((near >= near.gather(1, right) - ALIKE).sum(1) - 1)
    return torch.cat(to_text).cpu().numpy(), torch.cat(to_image).cpu().numpy()


def recalls(images: Tensor, texts: Tensor, of: Tensor) -> dict[str, float]:
    """The shares of images and of texts whose right one is among the nearest, for a line of metrics."""
    sides = zip(("image_to_text", "text_to_image"), ranks(images, texts, of), strict=True)
    return {f"{name}_r{k}": float((wrong < k).mean()) for name, wrong in sides for k in BEST}


class MatchCard(Scorecard):
    """The scores of a model that tells which text belongs to which image. What is drawn anew for an interval are
    images, with all of their texts."""

    unit: ClassVar[str] = "images"


def evaluate_matches(
    model: Model, examples: Sequence[Captioned], *, name: str = "test", progress: Progress | None = None
) -> MatchCard:
    """Find the texts of images and the images of texts with a model of two encoders, and score how often it is right.

    >>> from regard import Transformer, recipe
    >>> from regard.data.images import Picture
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_clip"}, vocab_size=len(tokens))
    >>> black = Picture("black", np.zeros((15, 15, 3), np.uint8))
    >>> card = evaluate_matches(Model(Transformer(config), "match", tokens), [(black, ["black", "dark"])])
    >>> card.scores[0].name, card.scores[0].value
    ('image to text R@1', 100.0)
    """
    if not examples:
        raise InputError("nothing to score; give images, and at least one text of each")
    pictures = [picture for picture, _ in examples]
    of = np.repeat(np.arange(len(examples)), [len(own) for _, own in examples])
    begun = time.perf_counter()
    captions = [text for _, own in examples for text in own]
    vectors, done = [], 0
    for side, what in ((pictures, "images"), (captions, "texts")):
        for start in range(0, len(side), EMBEDDED):
            vectors.append(model.embed(side[start : start + EMBEDDED]))
            done += len(vectors[-1])
            if progress is not None:
                progress(done, len(pictures) + len(captions), what)
    images, texts = np.split(np.concatenate(vectors), [len(pictures)])
    seconds = time.perf_counter() - begun
    to_text, to_image = ranks(*(torch.from_numpy(side) for side in (images, texts, of)))
    return MatchCard(
        name=name,
        scores=(
            *(_recall("image to text", to_text, np.arange(len(examples)), k) for k in BEST),
            *(_recall("text to image", to_image, of, k) for k in BEST),
        ),
        seconds=seconds,
        data=hashes(examples),
        **about(model),
    )


def _recall(what: str, wrong: NDArray[np.int64], of: NDArray[Any], k: int) -> Score:
    hits = [np.bincount(of, weights=each) for each in (wrong < k, np.ones(len(of)))]
    counts = np.stack(hits, axis=1).astype(np.float64)
    return Score.of_sums(f"{what} R@{k}", counts, lambda sums: float(100 * sums[0] / max(sums[1], 1)))
