"""What decoding remembers: keys and values of a fixed size, passed in, never an attribute of a module.

Rows are independent slots. Each has its own ``position`` on the device, so that prompts of different
lengths stand side by side, beams reorder and a row that has finished is filled again. Nothing here
changes shape as decoding goes on: one compiled step serves every position.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.config import InputError
from regard.nn.masks import Layout, check_range


class KeyValue(NamedTuple):
    """Keys and values, split into heads and ready to be attended to."""

    k: Float[Tensor, "B G S D"]
    v: Float[Tensor, "B G S E"]


def check_rows(rows: Int[Tensor, " B"], position: Int[Tensor, " B"]) -> None:
    """Refuse an order that is not one row for each row of a cache."""
    n = position.shape[0]
    if not isinstance(rows, Tensor) or rows.shape != position.shape or rows.is_floating_point():
        raise InputError(f"rows must be a tensor of {n} whole numbers, the row that each row becomes")
    if not torch.compiler.is_compiling():
        check_range("row", rows, n, f"the cache has {n}")


def check_batch(batch_size: int, position: Int[Tensor, " B"]) -> None:
    """Refuse ids that have another number of rows than a cache."""
    if batch_size != position.shape[0]:
        raise InputError(f"the cache has {position.shape[0]} rows, the ids have {batch_size}")


class Cache:
    """A Transformer decoder's memory of its own past and of the encoder's output.

    ``k`` and ``v`` hold (layer, row, slot, head, width); ``cross`` the encoder's keys and values, computed
    once when decoding starts, and ``memory`` where they are real. One slot more than ``max_len`` takes the padding of
    rows that are full.

    >>> from regard import presets
    >>> from regard.nn import Transformer
    >>> model = Transformer(presets.tiny_decoder()).eval()
    >>> cache = model.start(batch_size=2, max_len=7)
    >>> _ = model.decode(torch.tensor([[1, 2], [3, 4]]), cache=cache)
    >>> cache.position
    tensor([2, 2])
    """

    def __init__(
        self,
        n_layers: int,
        batch_size: int,
        max_len: int,
        *,
        n_heads: int,
        d_head: int,
        d_value: int,
        device: torch.device,
        dtype: torch.dtype,
        cross: list[KeyValue],
        memory: Layout,
    ):
        self.max_len = max_len
        size = (n_layers, batch_size, max_len + 1, n_heads)
        self.k = torch.zeros(*size, d_head, device=device, dtype=dtype)
        self.v = torch.zeros(*size, d_value, device=device, dtype=dtype)
        self.position = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.cross = cross
        self.memory = memory

    def slots(self, t: int) -> Int[Tensor, "B T"]:
        """Where the next t tokens of each row stand."""
        return (self.position[:, None] + torch.arange(t, device=self.position.device)).clamp_max(self.max_len)

    def span(self, t: int) -> int:
        """How many slots a step of t tokens has to look at: all, in a compiled graph or where asking would wait for a
        device; else as many as are in use."""
        if torch.compiler.is_compiling() or self.position.device.type != "cpu":
            return self.k.shape[2]
        return min(self._used() + t, self.k.shape[2])

    def _used(self) -> int:
        return int(self.position.max()) if self.position.numel() else 0

    def write(self, layer: int, new: KeyValue, slots: Int[Tensor, "B T"] | None, span: int) -> KeyValue:
        """Put new keys and values (not their gradients) at their slots; return the layer's first ``span``."""
        assert slots is not None, "a mask over a cache places its queries"
        rows = torch.arange(slots.shape[0], device=slots.device)[:, None]
        for held, given in ((self.k, new.k), (self.v, new.v)):
            held[layer].index_put_((rows, slots), given.detach().transpose(1, 2).to(held.dtype))
        return KeyValue(self.k[layer, :, :span].transpose(1, 2), self.v[layer, :, :span].transpose(1, 2))

    def advance(self, by: int | Tensor) -> None:
        """Move each row on by its number of real tokens."""
        self.position += by

    def check(self, batch_size: int, t: int, lengths: Int[Tensor, " B"] | None) -> None:
        """Refuse what does not fit. The position is only read where that costs no device wait."""
        check_batch(batch_size, self.position)
        if self.position.device.type != "cpu" or not batch_size:
            return
        needed = int((self.position + (t if lengths is None else lengths)).max())
        if needed > self.max_len:
            raise InputError(
                f"the cache holds {self.max_len} tokens, {self._used()} are used and {t} more do not fit;"
                f" start it with max_len={needed} or more"
            )

    def reorder(self, rows: Int[Tensor, " B"], *, cross: bool = True) -> None:
        """Row i becomes what row rows[i] was: beams move on the device, in place.

        Beams that stay with their source need not move its keys: ``cross=False``.
        """
        check_rows(rows, self.position)
        used = self.span(0)
        for held in (*self.k[:, :, :used], *self.v[:, :, :used]):  # a layer at a time: a small copy
            held.copy_(held.index_select(0, rows))
        self.position.copy_(self.position.index_select(0, rows))
        if cross:
            memory = (self.memory.lengths, self.memory.starts)
            for held in (*(t for layer in self.cross for t in layer), *(t for t in memory if t is not None)):
                held.copy_(held.index_select(0, rows))

    def reset(self, rows: Int[Tensor, " N"]) -> None:
        """Empty some rows, to be filled anew by the next decode. The encoder's keys stay as they are."""
        self.position[rows] = 0
