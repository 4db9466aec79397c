"""A search's step on a GPU, recorded for a shape when it comes a second time, and replayed from then on: one launch
instead of hundreds, which is what a small step waits for.

A recording has memory of its own. A search of the same shape moves in: what it has chosen and remembers is copied there,
which takes no time beside a step, and its steps are replays.
"""

from __future__ import annotations

import copy
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

Step = Callable[[], None]


class Recorder:
    """The recorded steps of one model, by shape; those used last are kept."""

    def __init__(self) -> None:
        self.held: OrderedDict[Any, Recording] = OrderedDict()
        self.pool: Any = None  # what steps need in between: they never run at once

    def take(self, model: Transformer, cache: Cache, state: State, ids: Tensor) -> Recording:
        """The recording for a search that stands here, with the search moved into it."""
        key = (state.settings, cache.lanes, *((t.shape, t.dtype) for t in tensors(cache, state, ids)))
        recording = self.held.get(key)
        if recording is None:
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            recording = self.held[key] = Recording(model, cache, state, ids, self.pool)
            total = torch.cuda.get_device_properties(ids.device).total_memory
            while len(self.held) > 1 and sum(r.bytes for r in self.held.values()) > MOST_MEMORY * total:
                self.held.popitem(last=False)
        else:
            recording.move_in(cache, state, ids)
        self.held.move_to_end(key)
        return recording


class Recording:
    """A step of one shape: where its tensors are, and its launches for each number of positions that it looks at."""

    def __init__(self, model: Transformer, cache: Cache, state: State, ids: Tensor, pool: Any):
        # Copies of the holders: a search that goes on with fewer rows leaves these as they are.
        self.model, self.cache, self.state, self.ids = model, copy.copy(cache), state.copy(), ids
        self.pool = pool
        self.graphs: dict[int, torch.cuda.CUDAGraph | None] = {}
        self.bytes = sum(t.nbytes for t in tensors(cache, state, ids))

    def move_in(self, cache: Cache, state: State, ids: Tensor) -> None:
        """Copy a search's tensors here, and let it hold these."""
        for held, given in zip(
            tensors(self.cache, self.state, self.ids), tensors(cache, state, ids), strict=True
        ):
            held.copy_(given)
        vars(cache).update(vars(self.cache))
        state.of_rows, state.t = dict(self.state.of_rows), self.state.t

    def step(self, shown: int) -> Tensor:
        """A step that looks at so many positions: the first time as it is, which readies the kernels, then recorded."""
        self.cache.shown = shown
        if shown not in self.graphs:
            self.graphs[shown] = None
            step(self.model, self.cache, self.state, self.ids)
            return self.ids
        graph = self.graphs[shown]
        if graph is None:
            graph = self.graphs[shown] = self._record()
        graph.replay()
        return self.ids

    def _record(self) -> torch.cuda.CUDAGraph:
        """What torch.cuda.graph does, without emptying the allocator's cache and waiting for the device."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self.ids.device)
        stream.wait_stream(torch.cuda.current_stream(self.ids.device))
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            step(self.model, self.cache, self.state, self.ids)
            graph.capture_end()
        torch.cuda.current_stream(self.ids.device).wait_stream(stream)
        return graph


def step(model: Transformer, cache: Cache | RecurrentCache, state: State, ids: Tensor) -> None:
    """The next token of every way, from those before it. Everything is changed in place."""
    chosen, parents = state.step(model.logits(model.decode(ids, cache=cache).hidden).float())
    cache.follow(parents)
    ids.copy_(chosen)


def can_record(cache: Cache | RecurrentCache, ids: Tensor) -> bool:
    return ids.is_cuda and isinstance(cache, Cache) and ids.numel() <= MOST_WAYS


def tensors(cache: Cache, state: State, ids: Tensor) -> Iterator[Tensor]:
    """All that a step reads and changes, beside the weights."""
    yield from (ids, state.t, *state.of_rows.values(), cache.k, cache.v, cache.position)
    yield from (t for layer in cache.cross for t in layer)
    yield from (t for t in (cache.seen, cache.memory_mask.bias, cache.memory_mask.alive) if t is not None)
