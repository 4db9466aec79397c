"""Images in, captions out: a picture is encoded once, and what is said of it is searched as a translation is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.data.batch import number_of
from regard.decode.search import search
from regard.decode.settings import Decoding
from regard.decode.translate import Progress
from regard.decode.ways import Found
from regard.encode import images as pictures

if TYPE_CHECKING:
    from regard.model import Model


@dataclass(frozen=True)
class Caption:
    """What an image shows. ``logprob`` is the logarithm of its probability, ``score`` what it was ranked by, and
    ``others`` are the next best."""

    text: str
    score: float = 0.0
    logprob: float = 0.0
    tokens: tuple[str, ...] = ()
    others: tuple[Caption, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain: dict[str, Any] = {**dataclasses.asdict(self), "tokens": list(self.tokens)}
        plain["others"] = [other.to_dict() for other in self.others]
        return plain if self.others else {name: value for name, value in plain.items() if name != "others"}


def caption(model: Model, images: Sequence[Any], *, progress: Progress | None = None, **options: Any) -> list[Caption]:
    """A caption for each image; see :meth:`regard.Model.caption`.

    >>> import numpy as np
    >>> from regard import Model, Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_captioner"}, vocab_size=len(tokens))
    >>> size = config.encoder.input.image_size
    >>> black = np.zeros((size, size, 3), np.uint8)
    >>> [found] = caption(Model(Transformer(config), "caption", tokens), [black], max_length=5)
    >>> len(found.tokens) <= 5
    True
    """
    model.check_task("caption")
    how = Decoding(**options).validate()
    found: list[Caption] = []
    for pixels in pictures.batches(model, images, ways=how.ways):
        rows = search(model.net, **asked(model, pixels, how))
        found += [captioned(model, sequences[: how.n_best]) for sequences in rows]
        if progress is not None:
            progress(len(found), len(images), found[-1].text)
    return found


@torch.inference_mode()
def asked(model: Model, pixels: Tensor, how: Decoding) -> dict[str, Any]:
    """What is asked of a search for some images."""
    writes, room = model.tokenizer, getattr(model.config.decoder, "position_limit", None)
    longest = how.max_length or max(model.longest, how.min_length)
    return {
        "prompt": torch.full((len(pixels), 1), writes.start, device=model.device),
        "memory": model.net.encode(pixels),
        "end": writes.end,
        "limits": min(longest, room - 1) if room else longest,
        "how": how,
        "never": model.never,
        "requests": [number_of(one.tobytes()) for one in pixels.float().cpu().numpy()] if how.temperature else None,
        "recorder": model.recorder,
    }


def captioned(model: Model, found: Sequence[Found]) -> Caption:
    """The best of what was found, with the others."""
    first, *others = (
        Caption(
            model.tokenizer.decode(one.ids), one.score, one.logprob, tuple(model.tokenizer.token(id) for id in one.ids)
        )
        for one in found
    )
    return dataclasses.replace(first, others=tuple(others))
