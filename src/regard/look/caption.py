"""What a captioner looks at: where in the image each word of a caption comes from (Xu et al. 2015), as one picture.

The cross-attention of the decoder is over the patches of the image, or over the cells of its CNN: :func:`map_caption`
asks one head, and :meth:`CaptionMap.save` draws the photo and, for each word, the photo again, which fades where the
word did not look.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from regard.config import Grid, InputError, Patches
from regard.data.images import read_pixels
from regard.decode.translate import words_of
from regard.look.alignment import chosen, crosses, of_all_heads
from regard.look.pictures import photos, plain, save

if TYPE_CHECKING:
    from regard.model import Model

SHOWN = 224  # pixels of a side of the photo in a picture
FADED = 0.12  # what is left of it where a word did not look at all
COLUMNS = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptionMap:
    """For each word the shares of attention over the cells of the image, which sum to 1; and the image as the model has
    it: its middle, as a square."""

    image: UInt8[NDArray, "H W 3"]
    words: tuple[str, ...]
    weights: Float[Tensor, "T Y X"]
    layer: str
    head: int | None  # None: the mean of all

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        told = {"words": list(self.words), "layer": self.layer, "head": self.head}
        return {**told, "weights": self.weights.tolist()}

    def seen(self, i: int) -> UInt8[NDArray, "H W 3"]:
        """The image as word ``i`` looked at it: where it looked most as it is, elsewhere paler."""
        height, width, _ = self.image.shape
        share = self.weights[i] / self.weights[i].max()
        wide = F.interpolate(share[None, None], size=(height, width), mode="bilinear", antialias=False)[0, 0]
        kept = (FADED + (1 - FADED) * wide).numpy()[..., None]
        return (self.image * kept + 255 * (1 - kept)).round().astype(np.uint8)

    def save(self, path: str | Path) -> Path:
        """Write the picture as .png, .svg or .html. Over each word's is the largest share that a cell has of it."""
        largest = [f"{plain(word)}\n{float(of.max()):.0%}" for word, of in zip(self.words, self.weights, strict=True)]
        shown = [self.image, *(self.seen(i) for i in range(len(self.words)))]
        return save(path, photos, shown, ["", *largest], COLUMNS, 1.8)


def map_caption(
    model: Model, image: Any, text: str | None = None, *, layer: str | None = None, head: int | None = None
) -> CaptionMap:
    """Where a captioner looked to write each word of a text; left out, of its own caption. What went to vectors beside
    the image (a class token) is left out, and the cells of a word are brought to a sum of 1.

    Left out, layer and head are those of the upper layers whose looks go to the most different places; a layer alone is
    the mean over its heads.

    >>> from regard import Model, Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_captioner"}, vocab_size=len(tokens))
    >>> black = np.zeros((12, 12, 3), np.uint8)
    >>> found = map_caption(Model(Transformer(config), "caption", tokens), black, "a dog")
    >>> found.words, found.weights.shape
    (('a', 'dog'), torch.Size([2, 3, 3]))
    """
    model.check_task("caption")
    encoder, writes = model.config.encoder, model.tokenizer
    assert encoder is not None
    assert isinstance(encoder.input, Patches | Grid)
    if text is None:
        text = model.caption([image])[0].text
    if not text.split():
        raise InputError(f"caption ({text!r}) has no words to look for")
    ids, side = writes.encode(text), encoder.input.side
    shares = of_all_heads(crosses(model, image, text))[:, : len(ids), -(side**2) :]  # the image comes last
    shares = shares / shares.sum(-1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)
    weights, layer, head = chosen(model, shares, layer, head)
    words = torch.tensor(words_of(writes, ids))
    of_words = torch.stack([weights[words == i].mean(0) for i in range(int(words.max()) + 1)])
    return CaptionMap(
        image=read_pixels(image, SHOWN, 3),
        words=tuple(writes.decode(ids).split()),
        weights=of_words.unflatten(1, (side, side)),
        layer=layer,
        head=head,
    )
