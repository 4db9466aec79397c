"""The score card of a captioner: BLEU-1 to BLEU-4 and chrF of what it says of images, each against all captions that
people wrote of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from regard.data.images import Picture
from regard.decode import Decoding
from regard.decode.translate import Progress
from regard.encode import images
from regard.evaluate import facts
from regard.evaluate.labelled import read_rows, trained_on
from regard.evaluate.scorecard import Scorecard, about
from regard.evaluate.scores import by_number, caption_bleu, chrf
from regard.model import Model
from regard.recipe import Images
from regard.schema import InputError

Captioned = tuple[Picture, list[str]]
"""An image, and all captions that it has."""
SEED = 1  # of shuffled images


@dataclass(frozen=True, kw_only=True)
class CaptionCard(Scorecard):
    """A captioner's scores on one test set; of ``shuffled`` images, what they would be without the pictures."""

    unit: ClassVar[str] = "images"

    decoding: dict[str, Any]
    shuffled: bool = False

    def more(self) -> dict[str, Any]:
        return {"decoding": self.decoding, **({"shuffled_images": {"seed": SEED}} if self.shuffled else {})}

    def settings(self) -> Iterator[tuple[str, str]]:
        if self.shuffled:
            yield "images", f"shuffled: each is that of another example (seed {SEED})"
        yield "decoding", ", ".join(f"{key} {value}" for key, value in self.decoding.items())


def evaluate_captions(
    model: Model,
    examples: Sequence[Captioned],
    *,
    name: str = "test",
    shuffled: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> CaptionCard:
    """Caption images with a model and score what it says. Options are those of :class:`~regard.decode.Decoding`. With
    ``shuffled`` images, each caption is of another example's: what is left of the score is not owed to the pictures.

    >>> import numpy as np
    >>> from regard import Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_captioner"}, vocab_size=len(tokens))
    >>> black = Picture("black", np.zeros((12, 12, 3), np.uint8))
    >>> model = Model(Transformer(config), "caption", tokens)
    >>> card = evaluate_captions(model, [(black, ["black", "it is dark"])], max_length=5)
    >>> [score.name for score in card.scores]
    ['BLEU-1', 'BLEU-2', 'BLEU-3', 'BLEU-4', 'chrF2']
    """
    how = Decoding(**options).validate()
    if not examples:
        raise InputError("nothing to score; give images, and at least one caption of each")
    shown = with_other_images(examples) if shuffled else examples
    pictures, references = (list(side) for side in zip(*shown, strict=True))
    begun = time.perf_counter()
    said = [found.text for found in model.caption(pictures, progress=progress, **options)]
    seconds = time.perf_counter() - begun
    return CaptionCard(
        name=f"{name}, images shuffled" if shuffled else name,  # or it would take the place of the true ones
        shuffled=shuffled,
        scores=(*(caption_bleu(said, references, order) for order in (1, 2, 3, 4)), chrf(said, by_number(references))),
        decoding={"beam": how.ways, "length_penalty": how.length_penalty, "penalty": how.penalty},
        seconds=seconds,
        data=hashes(examples),
        **about(model),
    )


def with_other_images(examples: Sequence[Captioned]) -> list[Captioned]:
    """The captions of each, with the picture of another one: of the one before, in one ring that is drawn through all.

    >>> [name for (name, _), _ in with_other_images([(Picture(name, b""), [name]) for name in "abcd"])]
    ['d', 'a', 'b', 'c']
    """
    if len(examples) < 2:
        raise InputError(f"images of {len(examples)} example cannot be shuffled; give at least two")
    ring = np.random.default_rng(SEED).permutation(len(examples))
    other = dict(zip(ring.tolist(), np.roll(ring, 1).tolist(), strict=True))
    return [(examples[other[i]][0], own) for i, (_, own) in enumerate(examples)]


def hashes(examples: Sequence[Captioned]) -> dict[str, Any]:
    """Of the images, and of all of their captions."""
    lines = [line for _, own in examples for line in own]
    return {
        "images": facts.text_hash([picture.sha256() for picture, _ in examples]),
        "captions": facts.text_hash(lines),
    }


def read_captioned(model: Model, file: str | Path, columns: Sequence[str] = ()) -> list[Captioned]:
    """The images of a table, each once, in their order, with all of their captions: of the columns that are named, or
    of those that the model was trained on."""
    told = images.facts(model)
    names = tuple(columns or trained_on(model).get("columns", ()))
    rows = read_rows(model.task, file, names, Images(size=told["size"], channels=told["channels"]))
    found: dict[str, Captioned] = {}
    for row in rows:
        picture, text = row.values
        if text.strip():
            found.setdefault(picture.key, (picture, []))[1].append(text)
    return list(found.values())
