"""What a search has a model do on a GPU, recorded for a shape when it comes a second time, and replayed from then on:
one launch instead of hundreds, which is what a small step waits for. Recorded steps are made of few kernels where they
can be (:mod:`regard.nn.steps`).

A recording has memory of its own. A search of the same shape moves in: what it has chosen and remembers is copied
there, which takes no time beside a step, and its steps are replays. A prompt is read likewise, and what was read is
copied out.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from regard.nn import Transformer, steps
from regard.nn.cache import Cache
from regard.nn.recurrent import RecurrentCache, RecurrentTower

if TYPE_CHECKING:
    from regard.decode.search import Search, State

MOST_WAYS = 8_192  # in a batch: with more, the GPU is what a step waits for
MOST_MEMORY = 1 / 8  # of the device's, for all recordings together


class Recorder:
    """The recorded steps of one model, by shape; those used last are kept."""

    def __init__(self) -> None:
        self.held: OrderedDict[Any, Recording | Reading] = OrderedDict()
        self.stream: torch.cuda.Stream | None = None  # what is recorded on one stream shares its memory in between:
        self.kept: Any = None  # no two steps run at once. That memory is there as long as one recording is.
        self.kernels: Any = None  # regard.decode.kernels, once a step is made of kernels

    def takes(self, ids: Tensor) -> bool:
        return fixed_shapes(ids.device) and ids.numel() <= MOST_WAYS

    def reads(self, model: Transformer, prompt: Tensor) -> bool:
        return self.takes(prompt) and not isinstance(model.decoder, RecurrentTower)

    def move_in(self, search: Search) -> Recording:
        """The recording of a search's shape, with the search moved into it. Who was there goes on with copies."""
        cache, state, ids = cast(Cache, search.cache), search.state, search.ids
        key = (state.settings, cache.lanes, *((t.shape, t.dtype) for t in tensors(cache, state, ids)))
        if key not in self.held:
            self.held[key] = Recording(self, search.model, cache, state, ids)
        recording = cast(Recording, self._kept(key, ids.device))
        before = None if recording.holder is None else recording.holder()
        if before is not None and before.recording is recording:
            before.move_out()
        if recording.holder is not None:
            recording.take(cache, state, ids)
        recording.holder = weakref.ref(search)
        return recording

    def read(self, model: Transformer, prompt: Tensor, lengths: Tensor | None, **sizes: Any) -> tuple[Cache, Tensor]:
        """A cache with prompts in it, and the scores of what follows them."""
        key = ("reading", prompt.shape, lengths is None, torch.is_autocast_enabled(prompt.device.type), *sizes.items())
        if key not in self.held:
            self.held[key] = Reading(self, model, prompt, lengths, sizes)
        return cast(Reading, self._kept(key, prompt.device)).read(prompt, lengths)

    def _kept(self, key: Any, device: torch.device) -> Recording | Reading:
        """One that is used now; those that were used long ago go where there is no room for all."""
        self.held.move_to_end(key)
        while len(self.held) > 1 and sum(r.bytes for r in self.held.values()) > self.room(device):
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
        self.fused = steps.fits(model, cache, ids)
        if self.fused:
            recorder.kernels = self.state.kernels = choosing()
        self.holder: weakref.ref[Search] | None = None  # whose step it is
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
        if self.fused:
            shown = self.cache.max_len  # it looks at what is in use, whatever is shown
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
        step(self.model, self.cache, self.state, self.ids, fused=self.fused)


class Reading:
    """A pass over prompts of one shape: where they stand, the cache that they go into, and its launches."""

    def __init__(
        self, recorder: Recorder, model: Transformer, prompt: Tensor, lengths: Tensor | None, sizes: dict[str, Any]
    ):
        self.recorder, self.model = recorder, model
        self.prompt, self.lengths = prompt.clone(), None if lengths is None else lengths.clone()
        self.cache = cast(Cache, model.start(batch_size=len(prompt), **sizes))
        self.scores: Tensor | None = None
        self.replay: Callable[[], None] | None = None
        self.bytes = self.cache.k.nbytes + self.cache.v.nbytes

    def read(self, prompt: Tensor, lengths: Tensor | None) -> tuple[Cache, Tensor]:
        """What was read, for who goes on from it."""
        self.prompt.copy_(prompt)
        if self.lengths is not None and lengths is not None:
            self.lengths.copy_(lengths)
        if self.replay is None and self.scores is not None:
            self.replay = self.recorder.record(self._read, prompt.device)
        (self.replay or self._read)()
        assert self.scores is not None
        return self.cache.copied(), self.scores.clone()

    def _read(self) -> None:
        self.cache.position.zero_()
        fused = self.recorder.kernels is not None
        self.scores = read(self.model, self.cache, self.prompt, self.lengths, fused=fused)


def choosing() -> Any:
    """The kernels that choose, which need triton."""
    from regard.decode import kernels

    return kernels


def read(
    model: Transformer,
    cache: Cache | RecurrentCache,
    prompt: Tensor,
    lengths: Tensor | None,
    *,
    fused: bool = False,
) -> Tensor:
    """Take prompts into an empty cache; the scores of what follows them."""
    hidden = model.decode(prompt, cache=cache, layout=lengths).hidden
    if lengths is None:
        last = hidden[:, -1:]
    else:
        last = hidden.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, hidden.shape[2]))
    return steps.scores(model, last[:, 0].contiguous())[:, None] if fused else model.logits(last).float()


def step(model: Transformer, cache: Cache | RecurrentCache, state: State, ids: Tensor, *, fused: bool = False) -> None:
    """The next token of every way, from those before it. Everything is changed in place."""
    if isinstance(cache, Cache):
        cache.position.clamp_(
            max=cache.max_len - 1
        )  # a row that is done goes along with the others, and writes nowhere
    if fused and isinstance(cache, Cache):
        scores = steps.step(model, cache, ids)
    else:
        scores = model.logits(model.decode(ids, cache=cache).hidden).float()
    chosen, parents = state.step(scores)
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
