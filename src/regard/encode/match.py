"""Images and texts in, how well each fits each out: two encoders that meet in one space (CLIP, Radford et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray

from regard.config import InputError
from regard.encode import images as pictures
from regard.encode.embed import embed
from regard.nn.heads import ContrastiveHead
from regard.nn.heads import pool as pooled

if TYPE_CHECKING:
    from regard.model import Model


class Match(NamedTuple):
    """How well each image fits each text: the cosine of their vectors, and as probabilities of the texts."""

    probabilities: Float[NDArray, "N M"]
    cosines: Float[NDArray, "N M"]


def match(model: Model, images: Sequence[Any], texts: Sequence[str], templates: Sequence[str] = ("{}",)) -> Match:
    """Every image against every text; see :meth:`regard.Model.match`.

    >>> from regard import Model, Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_clip"}, vocab_size=len(tokens))
    >>> model = Model(Transformer(config), "match", tokens)
    >>> found = match(model, [np.zeros((15, 15, 3), np.uint8)], ["dog", "cat"], ["a photo of a {}", "my {}"])
    >>> found.cosines.shape, round(float(found.probabilities.sum()), 3)
    ((1, 2), 1.0)
    """
    head = contrastive_head(model)
    for template in templates:
        if template.count("{}") != 1:
            raise InputError(f"template ({template!r}) must have {{}} in it once, where the label stands")
    if not texts or not templates:
        raise InputError("nothing to match with; give at least one text")
    each = [embed(model, [template.replace("{}", text) for text in texts]) for template in templates]
    text = np.mean(each, axis=0)
    text /= np.linalg.norm(text, axis=1, keepdims=True)
    cosines = embed_images(model, images) @ text.T
    scale = float(head.log_scale.detach().float().exp())
    return Match(torch.from_numpy(scale * cosines).softmax(-1).numpy(), cosines)


def contrastive_head(model: Model) -> ContrastiveHead:
    head = model.net.head
    if not isinstance(head, ContrastiveHead):
        raise InputError(f"{model.path or 'this model'}: was trained to {model.task}, not to match; give another model")
    return head


@torch.no_grad()
def embed_images(model: Model, images: Sequence[Any], normalise: bool = True) -> NDArray[np.float32]:
    """A vector for each image, in the space where it meets texts."""
    head = contrastive_head(model)
    found = [torch.zeros(0, head.config.d_embed)]
    for pixels in pictures.batches(model, images):
        vectors = head.first(pooled(model.net.encode(pixels).hidden, head.config.pool)).float()
        found.append((F.normalize(vectors, dim=-1) if normalise else vectors).cpu())
    return torch.cat(found).numpy()
