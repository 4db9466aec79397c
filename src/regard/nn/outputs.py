"""What encoders and decoders hand on: vectors, where they are real, and what was asked for beside them."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from regard.nn.attention import Attended
from regard.nn.masks import Layout


class Encoded(NamedTuple):
    """An encoder's output: the memory that a decoder attends to.

    ``summary`` is a recurrent encoder's thought vector, ``attended`` what the captured layers attended with, ``layers``
    every layer's output where the head mixes them.
    """

    hidden: Float[Tensor, "B S C"]
    layout: Layout
    summary: Float[Tensor, "B C"] | None
    attended: dict[str, Attended]
    layers: tuple[Tensor, ...]


class Decoded(NamedTuple):
    """A decoder's output."""

    hidden: Float[Tensor, "B T C"]
    attended: dict[str, Attended]
