"""What a model over images looks at: how much of each patch reaches the vector that its head reads.

That is attention rollout (``attention.py``): the class token's row of it, or the mean of all rows, over the image.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray

from regard.config import Contrastive, Grid, InputError, Patches, Pooled
from regard.files import drafted
from regard.look.attention import attention
from regard.look.pictures import photos, save

if TYPE_CHECKING:
    from regard.model import Model

HUE = (214, 39, 40)  # what is laid over the patch that counts most
MOST = 0.75  # how much it covers there


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """The share of each patch in what the head reads, a row of patches a row. Together they are 1, less what the class
    token has of itself. ``picture`` is the image as the model was shown it, with more pixels.

    >>> seen = Rollout(weights=np.array([[0.1, 0.2], [0.1, 0.6]]), picture=np.zeros((4, 4, 3), np.uint8))
    >>> seen.strongest()
    (1, 1)
    >>> seen.drawn()[0, 0].tolist(), seen.drawn()[3, 3].tolist()
    ([27, 5, 5], [160, 29, 30])
    """

    weights: Float[NDArray[np.float32], "rows columns"]
    picture: UInt8[NDArray[np.uint8], "H W C"]

    def strongest(self) -> tuple[int, int]:
        """Row and column of the patch with the largest share."""
        row, column = np.unravel_index(self.weights.argmax(), self.weights.shape)
        return int(row), int(column)

    def drawn(self) -> UInt8[NDArray[np.uint8], "H W 3"]:
        """The picture with one hue over it: the more of it, the more a patch counts beside the strongest."""
        rows, columns = self.weights.shape
        high, wide = self.picture.shape[0] // rows, self.picture.shape[1] // columns
        cover = MOST * np.kron(self.weights / self.weights.max(), np.ones((high, wide)))[..., None]
        return ((1 - cover) * self.picture + cover * np.array(HUE)).round().astype(np.uint8)

    def save(self, path: str | Path) -> Path:
        """Write what is drawn: as .png it alone, as .svg or .html with matplotlib."""
        from PIL import Image

        path = Path(path)
        if path.suffix != ".png":
            return save(path, photos, [self.drawn()], [""], 1, 5.0)
        with drafted(path) as draft:
            Image.fromarray(self.drawn()).save(draft, format="png")
        return path


def rollout(model: Model, image: Any) -> Rollout:
    """What the head of a model over images reads from where: ``image`` is a path, the bytes of a file, an image of
    pillow, or an array.

    >>> from regard import Model, Transformer, presets
    >>> net = Transformer(presets.tiny_vit())
    >>> model = Model(net, "classify", None, labels=["cat", "dog"])
    >>> rollout(model, np.zeros((17, 13, 3), np.uint8)).weights.shape
    (5, 5)
    """
    encoder, head = model.config.encoder, model.config.head
    name = model.path or "this model"
    if encoder is None or not isinstance(encoder.input, Patches | Grid):
        raise InputError(f"{name}: reads no images; give another model")
    if not model.net.attention_layers()["encoder"] or not isinstance(head, Pooled | Contrastive):
        raise InputError(f"{name}: has no attention under a head that reads one vector; give a ViT")
    return attention(model, image, layers="encoder").over_image()
