"""What a search has a model do on a GPU, recorded for a shape when it comes a second time, and replayed from then on:
one launch instead of hundreds, which is what a small step waits for. Recorded steps are made of few kernels where they
can be (:mod:`regard.nn.steps`).

A recording has memory of its own. A search of the same shape moves in: what it has chosen and remembers is copied
there, which takes no time beside a step, and its steps are replays. Its beginning is recorded likewise, what an encoder
makes of a source and what a decoder makes of that and of a prompt: inputs are copied in, and what was read is copied
out.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.nn import Transformer, steps
from regard.nn.cache import Cache
from regard.nn.masks import Layout
from regard.nn.outputs import Encoded
from regard.nn.recurrent import RecurrentCache, RecurrentTower
from regard.nn.transformer import check_room

if TYPE_CHECKING:
    from regard.decode.search import Search
    from regard.decode.ways import State

MOST_WAYS = 8_192  # in a batch: with more, the GPU is what a step waits for
MOST_MEMORY = 1 / 8  # of the device's, for all recordings together


class Recorder:
    """What is recorded of one model, by shape; those used last are kept."""

    def __init__(self) -> None:
        self.held: OrderedDict[Any, Recording | Reading] = OrderedDict()
        self.stream: torch.cuda.Stream | None = None  # what is recorded on one stream shares its memory in between:
        self.kept: Any = None  # no two steps run at once. That memory is there as long as one recording is.
        self.kernels: Any = None  # regard.decode.kernels, once a step is made of kernels

    def takes(self, ids: Tensor) -> bool:
        return fixed_shapes(ids.device) and ids.numel() <= MOST_WAYS

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

    @torch.inference_mode()
    def encode(self, model: Transformer, source: Int[Tensor, "B S"], lengths: Int[Tensor, " B"] | None) -> Encoded:
        """What the encoder makes of texts."""
        if not self.takes(source) or isinstance(model.encoder, RecurrentTower):
            return model.encode(source, lengths)

        def run(source, lengths):
            return (model.encode(source, lengths).hidden,)

        [hidden] = self._read("a source", run, source, lengths)
        return Encoded(hidden.clone(), Layout(lengths=lengths), None, {}, ())

    def begin(
        self,
        model: Transformer,
        prompt: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"] | None,
        memory: Encoded | None,
        *,
        max_len: int,
        lanes: int,
        dtype: torch.dtype | None,
    ) -> tuple[Cache | RecurrentCache, Float[Tensor, "B 1 V"]]:
        """What the function of this name gives. Prompts are read into a cache just as large as they are, and moved into
        one with all the room: so how much that is, is no part of what is recorded."""
        if not self.takes(prompt) or isinstance(model.decoder, RecurrentTower):
            return begin(model, prompt, lengths, memory, max_len=max_len, lanes=lanes, dtype=dtype)

        def run(prompt, lengths, hidden, real, starts):
            memory = None if hidden is None else Encoded(hidden, Layout(real, starts), None, {}, ())
            fused = self.kernels is not None
            return begin(model, prompt, lengths, memory, fused=fused, max_len=prompt.shape[1], dtype=dtype)

        layout = Layout() if memory is None else memory.layout
        given = (prompt, lengths, None if memory is None else memory.hidden, layout.lengths, layout.starts)
        cache, scores = self._read(("a prompt", dtype), run, *given)
        cache = cache.copied()
        cache.widen(max_len, lanes)
        return cache, scores.clone()

    def _read(self, what: Any, run: Callable[..., Any], *given: Tensor | None) -> Any:
        """What ``run`` makes of what is given, in memory of the recording of its shape."""
        device = cast(Tensor, given[0]).device
        shapes = (None if t is None else (t.shape, t.dtype) for t in given)
        key = (what, torch.is_autocast_enabled(device.type), *shapes)
        if key not in self.held:
            self.held[key] = Reading(self, run, given)
        return cast(Reading, self._kept(key, device)).read(given)

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
    """A pass over inputs of one shape: where they stand, what comes of them, and its launches."""

    def __init__(self, recorder: Recorder, run: Callable[..., Any], given: Sequence[Tensor | None]):
        self.recorder, self.run = recorder, run
        self.given = [None if t is None else t.clone() for t in given]
        self.made: tuple[Cache | Tensor, ...] = ()
        self.replay: Callable[[], None] | None = None
        self.bytes = 0

    def read(self, given: Sequence[Tensor | None]) -> tuple[Cache | Tensor, ...]:
        """What comes of these, to be copied before anything else is replayed, whose memory it may be: the first time as
        it is, which readies the kernels, from then on recorded."""
        for held, new in zip(self.given, given, strict=True):
            if held is not None and new is not None:
                held.copy_(new)
        if self.made and self.replay is None:
            self.replay = self.recorder.record(self._read, cast(Tensor, given[0]).device)
        (self.replay or self._read)()
        return self.made

    def _read(self) -> None:
        self.made = self.run(*self.given)
        self.bytes = sum(t.nbytes for t in tensors(*(t for t in self.given if t is not None), *self.made))


def choosing() -> Any:
    """The kernels that choose, which need triton."""
    from regard.decode import kernels

    return kernels


def begin(
    model: Transformer,
    prompt: Int[Tensor, "B T"],
    lengths: Int[Tensor, " B"] | None,
    memory: Encoded | None,
    *,
    max_len: int,
    lanes: int = 1,
    dtype: torch.dtype | None = None,
    fused: bool = False,
) -> tuple[Cache | RecurrentCache, Float[Tensor, "B 1 V"]]:
    """A cache with prompts in it, after a memory if there is one, and the scores of what follows them."""
    grows = not fixed_shapes(prompt.device)
    check_room(model.config.decoder, max_len)
    at_first = {"max_len": prompt.shape[1]} if grows else {"max_len": max_len, "lanes": lanes}
    cache = model.start(memory=memory, batch_size=len(prompt), dtype=dtype, **at_first)
    hidden = model.decode(prompt, cache=cache, layout=lengths).hidden
    if grows:
        cache.widen(max_len, lanes, at_once=False)
    if lengths is None:
        last = hidden[:, -1:]
    else:
        last = hidden.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, hidden.shape[2]))
    return cache, steps.scores(model, last[:, 0].contiguous())[:, None] if fused else model.logits(last).float()


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


def tensors(*holders: Cache | State | Tensor) -> Iterator[Tensor]:
    """All that a step reads and changes, beside the weights."""
    for one in holders:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, Cache):
            yield from (one.k, one.v, one.position, *(t for layer in one.cross for t in layer))
            yield from (t for t in (one.seen, one.memory_mask.bias, one.memory_mask.alive) if t is not None)
        else:
            yield from one.of_rows.values()


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
