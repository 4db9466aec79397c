"""What decoding remembers: keys and values of a fixed size, passed in, never an attribute of a module.

Rows are independent slots. Each has its own ``position`` on the device, so that prompts of different
lengths stand side by side, beams reorder and a server refills a row that has finished. Nothing here
changes shape as decoding goes on: one compiled step serves every position.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.config import InputError
from regard.nn.masks import Layout


class KeyValue(NamedTuple):
    """Keys and values, split into heads and ready to be attended to."""

    k: Float[Tensor, "B G S D"]
    v: Float[Tensor, "B G S E"]


class Cache:
    """A Transformer decoder's memory of its own past and of the encoder's output.

    ``k`` and ``v`` hold (layer, row, slot, head, width); ``cross`` the encoder's keys and values, computed
    once when decoding starts.

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
        cross: list[KeyValue] | None = None,
        memory: Layout = Layout(),
    ):
        self.k = torch.zeros(n_layers, batch_size, max_len, n_heads, d_head, device=device, dtype=dtype)
        self.v = torch.zeros(n_layers, batch_size, max_len, n_heads, d_value, device=device, dtype=dtype)
        self.position = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.cross = cross or []
        self.memory = memory

    @property
    def max_len(self) -> int:
        return self.k.shape[2]

    def slots(self, t: int) -> Int[Tensor, "B T"]:
        """Where the next t tokens of each row stand."""
        return self.position[:, None] + torch.arange(t, device=self.position.device)

    def write(self, layer: int, new: KeyValue, slots: Int[Tensor, "B T"]) -> KeyValue:
        """Put new keys and values (not their gradients) at their slots; return all of the layer's."""
        rows = torch.arange(slots.shape[0], device=slots.device)[:, None]
        self.k[layer].index_put_((rows, slots), new.k.detach().transpose(1, 2).to(self.k.dtype))
        self.v[layer].index_put_((rows, slots), new.v.detach().transpose(1, 2).to(self.v.dtype))
        return KeyValue(self.k[layer].transpose(1, 2), self.v[layer].transpose(1, 2))

    def advance(self, by: int | Tensor) -> None:
        """Move each row on by its number of real tokens."""
        self.position += by

    def check(self, batch_size: int, t: int) -> None:
        """Refuse what does not fit. The position is only read where that costs no device wait."""
        if batch_size != self.position.shape[0]:
            raise InputError(f"the cache has {self.position.shape[0]} rows, the ids have {batch_size}")
        used = int(self.position.max()) if self.position.device.type == "cpu" and batch_size else 0
        if used + t > self.max_len:
            raise InputError(
                f"the cache holds {self.max_len} tokens, {used} are used and {t} more do not fit;"
                f" start it with max_len={used + t} or more"
            )

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        """Row i becomes what row rows[i] was: beams move on the device, in place."""
        for held in (self.k, self.v):
            held.copy_(held.index_select(1, rows))
        for layer in self.cross:
            layer.k.copy_(layer.k.index_select(0, rows))
            layer.v.copy_(layer.v.index_select(0, rows))
        self.position.copy_(self.position.index_select(0, rows))
        for held in (self.memory.lengths, self.memory.starts):
            if held is not None:
                held.copy_(held.index_select(0, rows))
