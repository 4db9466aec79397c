"""What a Vision Transformer's patch embedding looks for: its first principal components, as patches (Dosovitskiy et al.
2020, figure 7)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from rich.text import Text

from regard.config import InputError
from regard.look import pictures
from regard.look.page import as_text
from regard.nn.embed import PatchEmbed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.model import Model

N, COLUMNS = 28, 7


@dataclass(frozen=True, kw_only=True, eq=False)
class Filters:
    """Patches in which the filters differ most, of length 1, and the share of their variance that each has.

    >>> from regard import Model, Transformer, presets
    >>> found = filters(Model(Transformer(presets.tiny_vit()), "classify", None))
    >>> found.components.shape, len(found.shares)
    ((27, 3, 3, 3), 27)
    """

    components: Float[NDArray, "N size size K"]
    shares: Float[NDArray, " N"]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"components": self.components.tolist(), "shares": self.shares.tolist()}

    def __str__(self) -> str:
        return as_text(self)

    def __rich__(self) -> Text:
        n, size, *_ = self.components.shape
        few = ", ".join(f"{share:.1%}" for share in self.shares[:5])
        return Text(
            f"{n} principal components of {size} x {size} pixels: {self.shares.sum():.1%} of the variance ({few} ...)"
        )

    def save(self, path: str | Path) -> Path:
        """Draw them, each from its darkest to its lightest."""
        return pictures.save(path, self._drawn)

    def _drawn(self) -> Figure:
        from matplotlib.figure import Figure

        rows = -(-len(self.components) // COLUMNS)
        figure = Figure(figsize=(COLUMNS, 1.12 * rows), layout="constrained")
        for axes in (grid := figure.subplots(rows, COLUMNS, squeeze=False)).flat:
            axes.set_axis_off()
        for axes, patch, share in zip(grid.flat, self.components, self.shares, strict=False):
            # Grey is nothing.
            light = 0.5 + 0.5 * patch / np.abs(patch).max()
            axes.imshow(light if light.shape[2] == 3 else light[..., 0], cmap="gray", vmin=0, vmax=1)
            axes.set_title(f"{share:.1%}", fontsize=pictures.LETTER - 1, pad=2)
        return figure


def filters(model: Model, n: int = N) -> Filters:
    """The first ``n`` principal components of a model's patch embedding. The model is one loaded with
    ``packed=False``, whose weights lie as they were trained."""
    embed = getattr(model.net.encoder, "embed", None)
    if not isinstance(embed, PatchEmbed):
        raise InputError(f"{model.path or 'this model'}: has no patch embedding to look at; give a ViT")
    weight = embed.project.weight.detach().double().cpu().numpy()  # (d, K size size)
    _, spread, components = np.linalg.svd(weight - weight.mean(0), full_matrices=False)
    size, channels = embed.config.patch_size, embed.config.channels
    patches = components[:n].reshape(-1, channels, size, size).transpose(0, 2, 3, 1)
    variance = spread**2
    return Filters(components=patches, shares=(variance / variance.sum())[:n])
