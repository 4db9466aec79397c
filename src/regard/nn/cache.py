"""What decoding remembers: keys and values of a fixed size, passed in, never an attribute of a module.

Rows are independent. Each has its own ``position`` on the device, so that prompts of different lengths stand side by
side, rows reorder and one that has finished is filled again. Nothing here changes shape as decoding goes on: one
compiled step serves every position.

A row may go on in several ways at once, the beams of a search or several samples. They share its memory and its prompt,
and nothing of theirs is ever copied: each keeps its tokens in its own lane, and ``seen`` says which slots of all lanes
are its past.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from regard.config import InputError
from regard.nn.masks import Lowered, check_range

AHEAD = 16  # tokens of each way that there is room for at first


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


def check_batch(batch_size: int, position: Int[Tensor, " B"], t: int, ways: int | None) -> None:
    """Refuse ids that have another number of rows than a cache, or of ways in which they go on."""
    if batch_size != position.shape[0]:
        raise InputError(f"the cache has {position.shape[0]} rows, the ids have {batch_size}")
    if ways is not None and t != ways:
        raise InputError(f"each row of the cache goes on in {ways} ways, the ids have {t} tokens a row")


def put(
    held: Float[Tensor, "B G S D"], given: Float[Tensor, "B G T D"], slots: Int[Tensor, "B T"], place: slice | None
) -> None:
    """Write keys or values at their slots, which are a slice if there is one."""
    if place is not None:
        held[:, :, place] = given
    elif slots.shape[0] == 1:  # by half the kernel
        held.index_copy_(2, slots[0], given.to(held.dtype))
    else:
        held.scatter_(2, slots[:, None, :, None].expand_as(given), given.to(held.dtype))


def put_rows(
    mine: Shaped[Tensor, "..."],
    theirs: Shaped[Tensor, "..."],
    which: Int[Tensor, " N"],
    places: Int[Tensor, " N"],
    rows: int,
    *,
    axis: int = 0,
    fill: float = 0,
) -> Shaped[Tensor, "..."]:
    """Mine with so many rows, some of theirs at places among them: in place where they are no more and no larger, else
    a copy with room for both; what is there of neither is ``fill``.

    >>> put_rows(torch.tensor([[1], [2]]), torch.tensor([[3, 4]]), torch.tensor([0]), torch.tensor([1]), 2)
    tensor([[1, 0],
            [3, 4]])
    """
    size = [max(pair) for pair in zip(mine.shape, theirs.shape, strict=True)]
    size[axis] = rows
    if list(mine.shape) != size:
        larger = mine.new_full(size, fill)
        larger[tuple(slice(n) for n in mine.shape)] = mine
        mine = larger
    new = theirs.index_select(axis, which).to(mine.dtype)
    size[axis] = len(which)
    if list(new.shape) != size:
        larger = new.new_full(size, fill)
        larger[tuple(slice(n) for n in new.shape)] = new
        new = larger
    return mine.index_copy_(axis, places, new)


def join_masks(
    mine: Lowered, theirs: Lowered, which: Int[Tensor, " N"], places: Int[Tensor, " N"], rows: int, *memories: Tensor
) -> Lowered:
    """The same for the masks over two memories, whose first two axes are the rows and the tokens."""
    (b, s), (_, s2) = sizes = [memory.shape[:2] for memory in memories]
    if mine.bias is theirs.bias is mine.alive is theirs.alive is None and s == s2:
        return mine
    like = next((mask.bias for mask in (mine, theirs) if mask.bias is not None), torch.ones((), dtype=torch.bool))
    may, not_ = (1, 0) if like.dtype == torch.bool else (0, float("-inf"))
    device = memories[0].device
    biases = [
        torch.full((n, 1, 1, m), may, dtype=like.dtype, device=device) if mask.bias is None
        else mask.bias.expand(n, -1, -1, -1).contiguous()
        for mask, (n, m) in zip((mine, theirs), sizes, strict=True)
    ]  # fmt: skip
    bias, other = (F.pad(held, (0, max(s, s2) - held.shape[3]), value=not_) if s != s2 else held for held in biases)
    if rows > b:  # a place that nobody takes may see anything: no softmax is empty
        bias = torch.cat([bias, bias.new_full((rows - b, *bias.shape[1:]), may)])
    joined = mine._replace(bias=put_rows(bias, other, which, places, rows))
    if mine.alive is None and theirs.alive is None:
        return joined
    alive, other = (
        torch.ones((n, 1, 1, 1), dtype=torch.bool, device=device) if mask.alive is None
        else mask.alive.expand(n, -1, -1, -1).contiguous()
        for mask, (n, _) in zip((mine, theirs), sizes, strict=True)
    )  # fmt: skip
    return joined._replace(alive=put_rows(alive, other, which, places, rows, fill=1))


def moved_up(
    held: Shaped[Tensor, "..."], rows: Int[Tensor, " N"], axis: int = 0, used: int | None = None
) -> Shaped[Tensor, "..."]:
    """Some rows of keys or values. On a CPU they stay where they are: only what comes to stand elsewhere is moved, as
    far as its slots (the last axis but one) are ``used``."""
    if held.device.type != "cpu":
        return held.index_select(axis, rows)
    n = len(rows)
    (elsewhere,) = torch.where(rows != torch.arange(n))
    if len(elsewhere):
        some = held if used is None else held.narrow(-2, 0, used)
        moved = [some.select(axis, row).clone() for row in rows[elsewhere].tolist()]
        for place, row in zip(elsewhere.tolist(), moved, strict=True):
            some.select(axis, place).copy_(row)
    return held.narrow(axis, 0, n)


def _widened(held: Shaped[Tensor, "*B S D"], used: int, slots: int) -> Shaped[Tensor, "*B M D"]:
    """What is held with so many slots, of which the first were used."""
    wide = held.new_zeros(*held.shape[:-2], slots, held.shape[-1])
    wide[..., :used, :] = held[..., :used, :]
    return wide


class Cache:
    """A Transformer decoder's memory of its own past and of the encoder's output.

    ``k`` and ``v`` hold (layer, row, head, slot, width); ``cross`` the encoder's keys and values, computed once when
    decoding starts, and ``memory_mask`` where they are real. A token at position p in lane n has slot p ``lanes`` + n.
    One slot more than there are takes the padding of rows that are full.

    For a search on a CPU there are at first fewer slots than ``max_len`` needs (:meth:`make_room`): few texts become as
    long as they may, and memory that is touched for the first time costs more than what is done with it.

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
        lanes: int = 1,
        n_heads: int,
        d_head: int,
        d_value: int,
        device: torch.device,
        dtype: torch.dtype,
        cross: list[KeyValue],
        memory_mask: Lowered,
    ):
        self.max_len, self.lanes = max_len, lanes
        size = (n_layers, batch_size, n_heads, max_len * lanes + 1)
        self.k = torch.zeros(*size, d_head, device=device, dtype=dtype)
        self.v = torch.zeros(*size, d_value, device=device, dtype=dtype)
        self.position = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.cross = cross
        self.memory_mask = memory_mask
        self.seen: Tensor | None = None  # (B, lanes, slots), once the rows have forked
        self.shown: int | None = None  # positions to look at, where somebody knows better than the device tells

    def slots(self, t: int) -> Int[Tensor, "B T"]:
        """Where the next t tokens of each row stand: one after another in the first lane or, forked, side by side."""
        first = self.position[:, None] if self.lanes == 1 else self.position[:, None] * self.lanes
        if t > 1:
            first = first + torch.arange(t, device=first.device) * (1 if self.seen is not None else self.lanes)
        return first.clamp_max(self.k.shape[3] - 1)

    def span(self, t: int) -> int:
        """How many slots a step of t tokens has to look at: all, in a compiled graph or where asking would wait for a
        device; else as many as are in use."""
        if self.shown is not None:
            return self.shown * self.lanes
        if torch.compiler.is_compiling() or self.position.device.type != "cpu":
            return self.k.shape[3]
        return min((self._used() + (t if self.seen is None else 1)) * self.lanes, self.k.shape[3])

    def _used(self) -> int:
        return int(self.position.max()) if self.position.numel() else 0

    def follow(self, parents: Int[Tensor, "B N"]) -> None:
        """Way n of each row goes on from what was its way parents[n]; the first time, all from what the row holds."""
        if self.lanes == 1:
            return  # the only way there is
        if self.seen is None:
            places = torch.arange(self.k.shape[3], device=self.position.device)
            prompt = (places % self.lanes == 0) & (places < self.position[:, None] * self.lanes)
            self.seen = prompt[:, None].repeat(1, self.lanes, 1)
        else:
            self.seen.copy_(self.seen.gather(1, parents[..., None].expand(-1, -1, self.seen.shape[2])))

    def visible(self, slots: Int[Tensor, "B T"], span: int) -> Bool[Tensor, "rows queries S"] | None:
        """Which slots a step may look at, its own included, beside those that come after; None where all."""
        if self.lanes == 1:
            return None
        if self.seen is None:
            return (torch.arange(span, device=slots.device) % self.lanes == 0)[None, None]
        self.seen.scatter_(2, slots[..., None], True)
        return self.seen[:, :, :span]

    def place(self, slots: Int[Tensor, "B T"]) -> slice | None:
        """The slots as a slice, where that can be known without waiting and all rows stand at the same: it is written
        to much faster."""
        if torch.compiler.is_compiling() or slots.device.type != "cpu" or not slots.numel():
            return None
        first, last = int(slots[0, 0]), int(slots[0, -1])
        same = bool((slots == slots[0]).all()) and last < self.k.shape[3] - 1  # those beyond are clamped to one
        return slice(first, last + 1, 1 if self.seen is not None else self.lanes) if same else None

    def write(
        self, layer: int, new: KeyValue, slots: Int[Tensor, "B T"] | None, place: slice | None, span: int
    ) -> KeyValue:
        """Put new keys and values (not their gradients) at their slots; return the layer's first ``span``."""
        assert slots is not None, "a mask over a cache places its queries"
        k, v = self.k[layer], self.v[layer]
        put(k, new.k.detach(), slots, place)
        put(v, new.v.detach(), slots, place)
        return KeyValue(k[:, :, :span], v[:, :, :span])

    def advance(self, by: int | Tensor) -> None:
        """Move each row on by its number of real tokens."""
        self.position += by

    def check(self, batch_size: int, t: int, lengths: Int[Tensor, " B"] | None) -> None:
        """Refuse what does not fit. The position is only read where that costs no device wait."""
        check_batch(batch_size, self.position, t, None if self.seen is None else self.lanes)
        if self.seen is not None:
            t, lengths = 1, None
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
        if self.seen is not None:
            raise InputError("the rows of this cache have forked; their ways move with follow")
        used = self.span(0)
        for held in (*self.k[:, :, :, :used], *self.v[:, :, :, :used]):  # a layer at a time: a small copy
            held.copy_(held.index_select(0, rows))
        self.position.copy_(self.position.index_select(0, rows))
        if cross:
            mask = (self.memory_mask.bias, self.memory_mask.alive)
            for held in (*(t for layer in self.cross for t in layer), *(t for t in mask if t is not None)):
                held.copy_(held.index_select(0, rows))

    def copied(self) -> Cache:
        """Another that holds the same, in memory of its own."""
        other = copy.copy(self)
        other.k, other.v, other.position = self.k.clone(), self.v.clone(), self.position.clone()
        other.cross = [KeyValue(layer.k.clone(), layer.v.clone()) for layer in self.cross]
        bias, alive = (None if t is None else t.clone() for t in (self.memory_mask.bias, self.memory_mask.alive))
        other.memory_mask = self.memory_mask._replace(bias=bias, alive=alive)
        other.seen = None if self.seen is None else self.seen.clone()
        return other

    def widen(self, max_len: int, lanes: int, *, at_once: bool = True) -> None:
        """Have more room, for the only lane there is and for others beside it: ``at_once`` for all tokens that there
        may be, or for the next ones."""
        assert self.lanes == 1, "slots of one lane are moved apart"
        n, room = self.max_len, max_len if at_once else min(max_len, self.max_len + AHEAD)

        def spread(held: Tensor) -> Tensor:
            wide = held.new_zeros(*held.shape[:3], room * lanes + 1, held.shape[4])
            wide[:, :, :, : n * lanes : lanes] = held[:, :, :, :n]
            return wide

        self.max_len, self.lanes, self.k, self.v = max_len, lanes, spread(self.k), spread(self.v)

    def make_room(self) -> None:
        """Have slots for the next token of each way, and some more."""
        used = self._used()
        if (used + 1) * self.lanes < self.k.shape[3] or used == self.max_len:
            return
        slots, room = used * self.lanes, min(self.max_len, used + max(AHEAD, used // 2))
        self.k, self.v = (_widened(held, slots, room * self.lanes + 1) for held in (self.k, self.v))
        if self.seen is not None:
            self.seen = _widened(self.seen[..., None], slots, room * self.lanes + 1)[..., 0]

    def keep(self, rows: Int[Tensor, " N"]) -> None:
        """Go on with some rows only."""
        used = self.span(0)
        self.k, self.v = moved_up(self.k, rows, 1, used), moved_up(self.v, rows, 1, used)
        self.cross = [KeyValue(moved_up(layer.k, rows), moved_up(layer.v, rows)) for layer in self.cross]
        self.position = self.position[rows]
        bias, alive = (None if t is None else t[rows] for t in (self.memory_mask.bias, self.memory_mask.alive))
        self.memory_mask = self.memory_mask._replace(bias=bias, alive=alive)
        self.seen = None if self.seen is None else self.seen[rows]

    def join(self, other: Cache, which: Int[Tensor, " N"], places: Int[Tensor, " N"], rows: int) -> None:
        """Put some rows of another cache at places of this one, which has so many rows then: in place where they fit,
        else with room for the longer of both. What stood there is gone."""
        if self.cross:
            memories = (self.cross[0].k.transpose(1, 2), other.cross[0].k.transpose(1, 2))
            self.memory_mask = join_masks(self.memory_mask, other.memory_mask, which, places, rows, *memories)
            self.cross = [
                KeyValue(*(put_rows(*pair, which, places, rows) for pair in zip(mine, theirs, strict=True)))
                for mine, theirs in zip(self.cross, other.cross, strict=True)
            ]
        self.k, self.v = (
            put_rows(mine, theirs, which, places, rows, axis=1)
            for mine, theirs in ((self.k, other.k), (self.v, other.v))
        )
        self.position = put_rows(self.position, other.position, which, places, rows)
        if self.seen is not None and other.seen is not None:
            self.seen = put_rows(self.seen, other.seen, which, places, rows)
        self.max_len = max(self.max_len, other.max_len)

    def narrow(self, rows: Int[Tensor, " N"], max_len: int) -> None:
        """Give up room that none of these rows needs, for so many tokens and for its memory, where it is more than half
        of what there is. Other rows are as good as empty then."""
        if 2 * max_len < self.max_len:
            self.max_len, slots = max_len, max_len * self.lanes + 1
            self.k, self.v = self.k[:, :, :, :slots].clone(), self.v[:, :, :, :slots].clone()
            self.seen = None if self.seen is None else self.seen[:, :, :slots].clone()
            self.position.clamp_(max=max_len - 1)
        bias = self.memory_mask.bias
        if bias is None or bias.dtype != torch.bool or not len(rows):
            return
        longest = int(bias[rows].flatten(0, 2).any(0).nonzero()[-1]) + 1
        if 2 * longest < bias.shape[3]:
            bias = bias[..., :longest].clone()
            bias[..., 0] |= ~bias.any(-1)  # no softmax is empty
            self.memory_mask = self.memory_mask._replace(bias=bias)
            self.cross = [KeyValue(*(t[:, :, :longest].clone() for t in layer)) for layer in self.cross]

    def reset(self, rows: Int[Tensor, " N"]) -> None:
        """Empty some rows, to be filled anew by the next decode. The encoder's keys stay as they are."""
        self.position[rows] = 0
