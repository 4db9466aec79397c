"""A search's step on a GPU, recorded for a shape when it comes a second time, and replayed from then on: one launch
instead of hundreds, which is what a small step waits for.

A recording has memory of its own. A search of the same shape moves in: what it has chosen and remembers is copied
there, which takes no time beside a step, and its steps are replays.
"""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.nn import Transformer
from regard.nn.cache import Cache
from regard.nn.recurrent import RecurrentCache

if TYPE_CHECKING:
    from regard.decode.search import State

MOST_WAYS = 8_192  # in a batch: with more, the GPU is what a step waits for
MOST_MEMORY = 1 / 8  # of the device's, for all recordings together


class Recorder:
    """The recorded steps of one model, by shape; those used last are kept."""

    def __init__(self) -> None:
        self.held: OrderedDict[Any, Recording] = OrderedDict()
        self.stream: torch.cuda.Stream | None = None  # what is recorded on one stream shares its memory in between:
        self.kept: Any = None  # no two steps run at once. That memory is there as long as one recording is.

    def takes(self, ids: Tensor) -> bool:
        return fixed_shapes(ids.device) and ids.numel() <= MOST_WAYS

    def move_in(self, model: Transformer, cache: Cache, state: State, ids: Tensor) -> Recording:
        """The recording of a search's shape, with the search moved into it."""
        key = (state.settings, cache.lanes, *((t.shape, t.dtype) for t in tensors(cache, state, ids)))
        if key in self.held:
            self.held[key].take(cache, state, ids)
        else:
            self.held[key] = Recording(self, model, cache, state, ids)
        self.held.move_to_end(key)
        while len(self.held) > 1 and sum(r.bytes for r in self.held.values()) > self.room(ids.device):
            self.held.popitem(last=False)
        return self.held[key]

    def room(self, device: torch.device) -> float:
        return MOST_MEMORY * torch.cuda.get_device_properties(device).total_memory

    def record(self, step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        """A step's launches, without running them. It is what torch.cuda.graph does, but does not empty the
        allocator's cache nor wait for the device."""
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
        self.stream, self.kept = self.stream or torch.cuda.Stream(device), self.kept or graph
        pool = torch.cuda.graph_pool_handle() if self.kept is graph else self.kept.pool()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                step()
            finally:
                graph.capture_end()
        here.wait_stream(self.stream)
        return graph.replay


class Recording:
    """A step of one shape: where its tensors are, and its launches for each number of positions that it looks at."""

    def __init__(self, recorder: Recorder, model: Transformer, cache: Cache, state: State, ids: Tensor):
        # Copies of the holders: a search that goes on with fewer rows leaves these as they are.
        self.recorder, self.model = recorder, model
        self.cache, self.state, self.ids = copy.copy(cache), state.copy(), ids
        self.replays: dict[int, Callable[[], None] | None] = {}
        self.bytes = sum(t.nbytes for t in tensors(cache, state, ids))

    def take(self, cache: Cache, state: State, ids: Tensor) -> None:
        """Copy a search's tensors here, and let it hold these."""
        for held, given in zip(tensors(self.cache, self.state, self.ids), tensors(cache, state, ids), strict=True):
            held.copy_(given)
        vars(cache).update(vars(self.cache))
        state.of_rows = dict(self.state.of_rows)

    def step(self, shown: int) -> Tensor:
        """The next ids, from what is at so many positions: the first time as it is, which readies the kernels, from
        then on recorded."""
        self.cache.shown = shown
        if shown not in self.replays:
            self.replays[shown] = None
            self._step()
            return self.ids
        replay = self.replays[shown]
        if replay is None:
            replay = self.replays[shown] = self.recorder.record(self._step, self.ids.device)
        replay()
        return self.ids

    def _step(self) -> None:
        step(self.model, self.cache, self.state, self.ids)


def step(model: Transformer, cache: Cache | RecurrentCache, state: State, ids: Tensor) -> None:
    """The next token of every way, from those before it. Everything is changed in place."""
    if isinstance(cache, Cache):
        cache.position.clamp_(
            max=cache.max_len - 1
        )  # a row that is done goes along with the others, and writes nowhere
    chosen, parents = state.step(model.logits(model.decode(ids, cache=cache).hidden).float())
    cache.follow(parents)
    ids.copy_(chosen)


def tensors(cache: Cache, state: State, ids: Tensor) -> Iterator[Tensor]:
    """All that a step reads and changes, beside the weights."""
    yield from (ids, *state.of_rows.values(), cache.k, cache.v, cache.position)
    yield from (t for layer in cache.cross for t in layer)
    yield from (t for t in (cache.seen, cache.memory_mask.bias, cache.memory_mask.alive) if t is not None)


# ---------------------------------------------------------------------------------------
# A few fixed shapes, that come again


def fixed_shapes(device: torch.device) -> bool:
    """Whether searches on a device have them."""
    return device.type == "cuda"


def fixed_length(n: int, limit: int | None = None) -> int:
    """A length as one of few, if they are no more than a model's limit.

    >>> fixed_length(16), fixed_length(17), fixed_length(17, 30)
    (16, 32, 30)
    """
    return min(-(-n // 16) * 16, limit or sys.maxsize)


def fixed_size(n: int) -> int:
    """A number of rows as one of few.

    >>> fixed_size(1), fixed_size(5), fixed_size(64)
    (1, 8, 64)
    """
    return 1 << max(0, n - 1).bit_length()
