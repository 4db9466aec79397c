"""Everything can be a token: ids, image patches, a CNN's grid or one vector become a sequence of vectors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import config as c
from regard.config import InputError
from regard.nn.linear import Linear
from regard.nn.masks import check_range


class TokenEmbed(nn.Module):
    """A learned vector for each id, and for each segment if there are any."""

    def __init__(self, config: c.Tokens, d: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, d))
        self.segments = nn.Parameter(torch.empty(config.n_segments, d)) if config.n_segments else None
        self.scale = math.sqrt(d) if config.scale else 1.0

    def reset_parameters(self, std: float | None = None) -> None:
        # By default, and scaled, these start at unit variance, as the paper's code has them.
        nn.init.normal_(self.weight, std=std or self.weight.shape[1] ** -0.5)
        if self.segments is not None:
            nn.init.normal_(self.segments, std=std or 0.02)

    def check(self, ids: Tensor, segments: Tensor | None) -> None:
        """Refuse ids that have no vector. Values are read only where that costs no device wait."""
        if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32):
            raise InputError(
                f"ids of shape {tuple(ids.shape)} and dtype {ids.dtype} must be int64 or int32, rows by positions"
            )
        check_range("id", ids, n := self.weight.shape[0], f"the vocabulary has {n}")
        if segments is not None:
            if self.segments is None:
                raise InputError("segments were given, but this model has none (n_segments is 0)")
            if segments.shape != ids.shape:
                raise InputError(
                    f"segments of shape {tuple(segments.shape)} must have the shape of the ids, {tuple(ids.shape)}"
                )
            check_range("segment", segments, n := self.segments.shape[0], f"this model has {n}")

    def forward(self, ids: Int[Tensor, "B T"], segments: Int[Tensor, "B T"] | None = None) -> Float[Tensor, "B T C"]:
        x = F.embedding(ids, self.weight)
        x = x * self.scale if self.scale != 1.0 else x
        if self.segments is not None:
            # Without segments every token belongs to the first.
            x = x + (self.segments[0] if segments is None else F.embedding(segments, self.segments))
        return x


def _check_pixels(pixels: Tensor, channels: int, size: int) -> None:
    if pixels.dim() != 4 or pixels.shape[1] != channels or not pixels.is_floating_point():
        given = f"pixels of shape {tuple(pixels.shape)} and dtype {pixels.dtype}"
        raise InputError(f"{given} must be floats (B, {channels}, {size}, {size})")
    if tuple(pixels.shape[2:]) != (size, size):
        given = f"image of {pixels.shape[2]} x {pixels.shape[3]} pixels"
        raise InputError(f"{given} must be {size} x {size}; resize it, or set image_size")


class PatchEmbed(nn.Module):
    """An image cut into square patches, each flattened (channel, row, column) and projected."""

    def __init__(self, config: c.Patches, d: int):
        super().__init__()
        self.config = config
        self.project = Linear(config.channels * config.patch_size**2, d, config.bias)
        self.class_token = nn.Parameter(torch.empty(d)) if config.class_token else None
        self.registers = nn.Parameter(torch.empty(config.registers, d)) if config.registers else None

    def reset_parameters(self, std: float | None = None) -> None:
        for learned in (self.class_token, self.registers):
            if learned is not None:
                nn.init.normal_(learned, std=std or 0.02)

    def check(self, pixels: Tensor, segments: None = None) -> None:
        _check_pixels(pixels, self.config.channels, self.config.image_size)

    def forward(self, pixels: Float[Tensor, "B K Y X"], segments: None = None) -> Float[Tensor, "B P C"]:
        size = self.config.patch_size
        b, k, y, x = pixels.shape
        patches = pixels.reshape(b, k, y // size, size, x // size, size)
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, P, K size size)
        out = self.project(patches)
        learned = [t.view(1, -1, out.shape[-1]) for t in (self.class_token, self.registers) if t is not None]
        return torch.cat([*(t.expand(b, -1, -1).to(out.dtype) for t in learned), out], dim=1) if learned else out


class GridEmbed(nn.Module):
    """The feature grid of a small CNN: each stage halves the image; each cell becomes a vector."""

    def __init__(self, config: c.Grid, d: int):
        super().__init__()
        self.config = config
        stages, width = [], config.channels
        for wider in config.widths:
            for stride in (2, *[1] * (config.depth - 1)):
                # One group: a norm over the whole image, which no other image of the batch can change.
                stages += [nn.Conv2d(width, wider, 3, stride=stride, padding=1), nn.GroupNorm(1, wider), nn.ReLU()]
                width = wider
        self.stages = nn.Sequential(*stages)
        self.project = Linear(width, d)

    def check(self, pixels: Tensor, segments: None = None) -> None:
        _check_pixels(pixels, self.config.channels, self.config.image_size)

    def forward(self, pixels: Float[Tensor, "B K Y X"], segments: None = None) -> Float[Tensor, "B P C"]:
        return self.project(self.stages(pixels).flatten(2).transpose(1, 2))


class VectorEmbed(nn.Module):
    """One vector as a few slots that a decoder can attend to."""

    def __init__(self, config: c.Vector, d: int):
        super().__init__()
        self.config = config
        self.project = Linear(config.d_vector, config.n_slots * d)

    def check(self, vector: Tensor, segments: None = None) -> None:
        if vector.dim() != 2 or vector.shape[1] != self.config.d_vector:
            raise InputError(f"vectors of shape {tuple(vector.shape)} must be (B, {self.config.d_vector})")

    def forward(self, vector: Float[Tensor, "B N"], segments: None = None) -> Float[Tensor, "B P C"]:
        return self.project(vector).unflatten(-1, (self.config.n_slots, -1))


def make_embed(config: c.Input, d: int) -> TokenEmbed | PatchEmbed | GridEmbed | VectorEmbed:
    """The embedder of an input, d wide."""
    match config:
        case c.Tokens():
            return TokenEmbed(config, d)
        case c.Patches():
            return PatchEmbed(config, d)
        case c.Grid():
            return GridEmbed(config, d)
        case c.Vector():
            return VectorEmbed(config, d)
