"""Where a token stands, told to a model that would otherwise see a bag of words.

Sinusoidal (Vaswani 2017) and learned vectors join the input; rotary (Su 2021) turns queries and keys by their position;
ALiBi (Press 2021) lowers the scores of far keys. Each takes position ids, so that padding on the
left, packed documents and a cache need nothing special.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.config import Positions


def sinusoid(length: int, d: int, base: float = 10000.0, layout: str = "interleaved") -> Float[Tensor, "T d"]:
    """sin and cos of each position at d/2 wavelengths from 2 pi to 2 pi base.

    ``interleaved`` alternates sin and cos as the paper writes it, ``half`` puts all sines first as its code
    does. Computed in float64 and rounded once.

    >>> sinusoid(2, 4)[1]
    tensor([0.8415, 0.5403, 0.0100, 0.9999])
    """
    angle = _angles(length, d, base)  # (T, ceil(d / 2))
    if layout == "half":
        table = torch.cat([angle.sin(), angle.cos()[:, : d // 2]], dim=-1)
    else:
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :d]
    return table.float()


def sinusoid_2d(
    side: int, d: int, base: float = 10000.0, layout: str = "interleaved", ahead: int = 0
) -> Float[Tensor, "T d"]:
    """The places of a square, row by row: half of each vector is the sinusoid of its row, half that of its column. The
    ``ahead`` vectors before them are zeros.

    >>> sinusoid_2d(2, 4, ahead=1)[:3]
    tensor([[0.0000, 0.0000, 0.0000, 0.0000],
            [0.0000, 1.0000, 0.0000, 1.0000],
            [0.0000, 1.0000, 0.8415, 0.5403]])
    """
    line = sinusoid(side, d // 2, base, layout)
    rows, cols = line[:, None].expand(-1, side, -1), line[None].expand(side, -1, -1)
    return torch.cat([line.new_zeros(ahead, d), torch.cat([rows, cols], -1).flatten(0, 1)])


def resampled(weight: Float[Tensor, "P d"], side: int, ahead: int = 0) -> Float[Tensor, "Q d"]:
    """Learned positions of a square, for one with another ``side``: between them lies a bicubic surface (Dosovitskiy
    2020, when an image has another size). The ``ahead`` vectors before them stay.

    >>> resampled(torch.tensor([[7.0], [1.0], [1.0], [1.0], [1.0]]), side=1, ahead=1).tolist()
    [[7.0], [1.0]]
    """
    first, grid = weight[:ahead], weight[ahead:]
    square = grid.T.reshape(1, weight.shape[1], math.isqrt(len(grid)), -1)
    made = nn.functional.interpolate(square.float(), (side, side), mode="bicubic", align_corners=False)
    return torch.cat([first, made[0].flatten(1).T.to(weight.dtype)])


def _angles(length: int, d: int, base: float) -> Float[Tensor, "T half"]:
    # On the CPU whatever the device context: a model built on the meta device keeps its real table.
    position = torch.arange(length, dtype=torch.float64, device="cpu")
    frequency = base ** (-torch.arange(0, d, 2, dtype=torch.float64, device="cpu") / d)
    return position[:, None] * frequency


class Sinusoidal(nn.Module):
    """A fixed table of sines, looked up by position: ``make`` computes it."""

    def __init__(self, make: Callable[[], Tensor]):
        super().__init__()
        self.make = make
        self.register_buffer("table", self.make(), persistent=False)
        self.table: Tensor

    def reset_parameters(self) -> None:
        self.table.copy_(self.make())

    def forward(self, positions: Int[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
        return self.table[positions]


class Learned(nn.Module):
    """A learned vector for each position."""

    def __init__(self, length: int, d: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, d))

    def reset_parameters(self, std: float | None = None) -> None:
        nn.init.normal_(self.weight, std=std or 0.02)

    def forward(self, positions: Int[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
        return nn.functional.embedding(positions, self.weight)


class Rotation(NamedTuple):
    """The angles of one forward pass, ready for every layer's queries and keys."""

    cos: Tensor  # (B | 1, 1, T, D / 2)
    sin: Tensor
    interleaved: bool


class Rotary(nn.Module):
    """Rotary positions: :func:`rotate` turns each pair of a head's dimensions by an angle that grows
    with the position."""

    def __init__(self, length: int, d_head: int, base: float, layout: str):
        super().__init__()
        self.make = partial(_angles, length, d_head, base)
        self.register_buffer("cos", self.make().cos().float(), persistent=False)
        self.register_buffer("sin", self.make().sin().float(), persistent=False)
        self.cos: Tensor
        self.sin: Tensor
        self.interleaved = layout == "interleaved"

    def reset_parameters(self) -> None:
        self.cos.copy_(self.make().cos())
        self.sin.copy_(self.make().sin())

    def forward(self, positions: Int[Tensor, "B T"]) -> Rotation:
        return Rotation(self.cos[positions][:, None], self.sin[positions][:, None], self.interleaved)


def rotate(x: Float[Tensor, "B H T D"], by: Rotation) -> Float[Tensor, "B H T D"]:
    """Rotate the pairs of x, (2i, 2i + 1) interleaved or (i, i + D/2) in halves."""
    if by.interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
    else:
        a, b = x.chunk(2, dim=-1)
    turned = a * by.cos - b * by.sin, b * by.cos + a * by.sin
    out = torch.stack(turned, dim=-1).flatten(-2) if by.interleaved else torch.cat(turned, dim=-1)
    return out.to(x.dtype)


class Alibi(nn.Module):
    """A slope for each head."""

    def __init__(self, n_heads: int):
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(n_heads), persistent=False)
        self.slopes: Tensor

    def reset_parameters(self) -> None:
        self.slopes.copy_(alibi_slopes(len(self.slopes)))


def alibi_slopes(n_heads: int) -> Float[Tensor, " H"]:
    """ALiBi's slope of each head: a geometric series, filled up from the next power of two.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    whole = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    between = [2 ** (-4 * (2 * i + 1) / whole) for i in range(n_heads - whole)]
    return torch.tensor(slopes + between, device="cpu")


def joined_positions(
    config: Positions, length: int, d_model: int, side: int | None = None
) -> Sinusoidal | Learned | None:
    """The positions that join the input, added or concatenated; None for the kinds that don't. ``side`` is that of an
    image's square of them."""
    d = config.d_position if config.join == "concat" else d_model
    assert d is not None
    if config.kind == "sinusoidal" and config.axes == 2:
        assert side is not None
        return Sinusoidal(partial(sinusoid_2d, side, d, config.base, config.layout, ahead=length - side**2))
    if config.kind == "sinusoidal":
        return Sinusoidal(partial(sinusoid, length, d, config.base, config.layout))
    return Learned(length, d) if config.kind == "learned" else None
