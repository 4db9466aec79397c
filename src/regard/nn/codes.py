"""Images as codes, and painted from them: a VQ-VAE (van den Oord et al. 2017) between two towers of the same blocks.

Every patch's vector is projected to a few dimensions and replaced by the nearest of the learned codes, all at unit
length (ViT-VQGAN, Yu et al. 2022); the painter above sees nothing but the codes. Choosing has no gradient: the
painter's goes straight through to the patch's vector, and to the code, for which it is exact.

No code dies, and there is nothing to restart: a patch pulls not only its own code but all, by how near they are (soft
k-means; as the temperature falls, it is the codebook's term of the paper). Adam makes steps of one size of however
small a pull, so that codes without patches come to where patches are. It is a sum over images, and has no state beside
the weights: parts of a batch, processes and resumed runs see the same.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import config as c
from regard.nn.linear import Linear
from regard.nn.masks import Layout

TEMPERATURE = 0.05  # of how near a code is: at unit length, 0.05 nearer pulls e times as much
ALIKE = 0.001  # share of a patch's pull that all codes get alike, or one on the other side would never feel any


class Coded(NamedTuple):
    """Patches and their codes: unit vectors, the ids of the nearest codes, and the products with all of them."""

    vectors: Float[Tensor, "B P E"]
    ids: Int[Tensor, "B P"]
    codes: Float[Tensor, "N E"]
    products: Float[Tensor, "B P N"]


class CodesHead(nn.Module):
    """A code for every patch, and the image that is painted from them. ``painter`` is a tower without an input."""

    def __init__(self, config: c.Codes, tower: c.Stack, painter: nn.Module):
        super().__init__()
        assert isinstance(tower.input, c.Patches)
        self.config, self.patches = config, tower.input
        self.down = Linear(tower.d_model, config.d_code)
        self.codes = nn.Parameter(torch.empty(config.n_codes, config.d_code))
        self.up = Linear(config.d_code, tower.d_input)
        self.painter = painter
        self.pixels = Linear(tower.d_model, self.patches.channels * self.patches.patch_size**2)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.codes, std=0.05)  # only directions count, and those of short vectors turn faster

    def coded(self, hidden: Float[Tensor, "B P C"]) -> Coded:
        """The nearest code of each patch. In full precision: what is nearest is decided by little."""
        with _exactly(hidden):
            vectors = F.normalize(self.down(hidden.to(self.codes.dtype)), dim=-1)
            codes = F.normalize(self.codes, dim=-1)
            products = vectors.detach() @ codes.T
        return Coded(vectors, products.argmax(-1), codes, products)

    def paint(self, codes: Float[Tensor, "B P E"]) -> Float[Tensor, "B K Y X"]:
        """The image of some codes' vectors."""
        size, side = self.patches.patch_size, self.patches.side
        hidden, _ = self.painter(codes, Layout(), embed=lambda vectors, _: self.up(vectors))
        patches = self.pixels(hidden).unflatten(-1, (-1, size, size)).unflatten(1, (side, side))
        return patches.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)

    def paint_ids(self, ids: Int[Tensor, "B P"]) -> Float[Tensor, "B K Y X"]:
        return self.paint(F.embedding(ids, F.normalize(self.codes, dim=-1)))

    def forward(self, hidden: Float[Tensor, "B P C"], layout: Layout = Layout()) -> Float[Tensor, "B K Y X"]:
        return self.painted(self.coded(hidden))

    def painted(self, found: Coded) -> Float[Tensor, "B K Y X"]:
        """The image of the codes that were found: values of the codes, and gradients to vectors and codes."""
        codes = F.embedding(found.ids, found.codes)
        return self.paint(codes + (found.vectors - found.vectors.detach()))

    def distances(self, found: Coded) -> Float[Tensor, " B"]:
        """VQ-VAE's other two terms, a number an image: how far the codes are from the patches (which moves the codes),
        and the patches from their own codes (which moves the patches)."""
        with _exactly(found.products):
            near = (found.products.detach() / TEMPERATURE).softmax(-1)
            near = (1 - ALIKE) * near + ALIKE / len(found.codes)
            of_codes = (near * (2 - 2 * found.products)).sum(-1)  # squared distances, at unit length
            own = F.embedding(found.ids, found.codes).detach()
            of_patches = (found.vectors - own).square().sum(-1)
            return (of_codes + self.config.commitment * of_patches).mean(-1)


def _exactly(x: Tensor) -> AbstractContextManager:
    """Without autocast, which the meta device does not know."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
