"""Sequences from a model: the most likely ones that a beam finds, or ones that are drawn, over one step function.

A step (:func:`regard.decode.recorded.step`) is ``model.decode(ids, cache=cache)`` and ``cache.follow(parents)``: every
row of a batch goes on in several ways at once, and Transformer and recurrent models alike take it. What is chosen stays
on the device; the host looks now and then which rows are done, takes their results and goes on with the others.

- **Beam search.** The ``beam`` best ways of each row go on. A sequence has ended when its end token is among the
  ``beam`` best continuations. A row is done when as many that have ended as the beam is wide score at least what the
  best that goes on scores by now: counting endings alone would let worthless ones end the search while the best goes
  on. It stops earlier where nothing can change any more: a way's logarithm of probability only falls, so what it could
  still score is known, and once ``n_best`` ended ones score at least that, the others need not go on. A beam of 1 is
  greedy search.
- **Drawing.** The number drawn for a token belongs to (seed, request, way, position): who else is in the batch changes
  nothing.

:func:`steps` hands out the state after each step, to who wants to see what is written as it is, or to end some of it.
Who wants to see what it was chosen from gives a ``watch``, which is shown each :class:`Choice`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from regard.config import InputError
from regard.decode import recorded
from regard.decode.recorded import Recorder, Recording, fixed_length, fixed_size
from regard.decode.settings import Decoding
from regard.decode.ways import IDLE, Beams, Choice, Draws, Found, State, placed, used
from regard.nn import Transformer
from regard.nn.cache import Cache, put_rows
from regard.nn.outputs import Encoded
from regard.nn.steps import composes


def search(
    model: Transformer,
    prompt: Int[Tensor, "B T"],
    lengths: Int[Tensor, " B"] | None = None,
    *,
    memory: Encoded | None = None,
    end: int | Sequence[int],
    limits: Sequence[int] | int,
    how: Decoding = Decoding(),
    never: Sequence[int] = (),
    requests: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    recorder: Recorder | None = None,
) -> list[list[Found]]:
    """For each row the sequences that follow its prompt, the best first.

    Any of the ids of ``end`` ends one. ``limits`` are the most tokens of each row, ``never`` ids that are not to be
    written (padding). ``requests`` number the rows for their draws, and ``seeds`` are theirs; by default they are
    counted, and have the settings' seed. A ``recorder`` replays beginnings and steps on a GPU.

    >>> from regard import presets
    >>> model = Transformer(presets.tiny_encoder_decoder()).eval()
    >>> memory = model.encode(torch.tensor([[5, 6, 7], [8, 9, 10]]))
    >>> found = search(model, torch.tensor([[1], [1]]), memory=memory, end=2, limits=4, how=Decoding(beam=3, n_best=2))
    >>> len(found), len(found[0])
    (2, 2)
    """
    options = {"memory": memory, "end": end, "limits": limits, "how": how, "never": never, "recorder": recorder}
    *_, last = steps(model, prompt, lengths, requests=requests, seeds=seeds, **options)
    return last.found


@torch.inference_mode()
def steps(
    model: Transformer, prompt: Int[Tensor, "B T"], lengths: Int[Tensor, " B"] | None = None, **options: Any
) -> Iterator[State]:
    """The same step by step: what is chosen so far, of the rows that are not done, always in the same state. When there
    are no more, its ``found`` has all. Options are those of :func:`search`, and ``watch``."""
    running = Search(model, prompt, lengths, **options)
    while True:
        yield running.state
        if not running.leave():
            return
        running.step()


def closed_up(places: NDArray) -> NDArray:
    """The same places, in an order in which as many as can be stay where they are.

    >>> closed_up(np.array([1, 3, 4])).tolist()
    [3, 1, 4]
    """
    order = np.arange(len(places))
    order[np.setdiff1d(order, places)] = places[places >= len(places)]
    return order


LOOK_EVERY = 8  # steps on a GPU: each look waits for it
LEAVE_SHARE = 0.25  # of the rows must be done for the others to move together


class Search:
    """Rows that go on together, from their prompts on: the first token of each is chosen when this is made.

    ``leave`` and ``step`` in turns bring a batch to its end. Where requests come and go (a server), ``take``, ``join``
    and ``step`` in turns do: ``take`` hands out what is done and leaves the place of it idle, and ``join`` puts another
    search's rows in idle places, or behind the others. A row is the same wherever it stands and whoever stands beside
    it; so nobody's answer depends on when others come.

    >>> from regard import presets
    >>> model = Transformer(presets.tiny_decoder()).eval()
    >>> first, second = (Search(model, torch.tensor([[n]]), end=2, limits=5, how=Decoding(beam=1)) for n in (3, 4))
    >>> first.step()
    >>> first.join(second)
    [1]
    >>> first.state.written.tolist()
    [2, 1]
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: Transformer,
        prompt: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"] | None = None,
        *,
        memory: Encoded | None = None,
        end: int | Sequence[int],
        limits: Sequence[int] | int,
        how: Decoding = Decoding(),
        never: Sequence[int] = (),
        requests: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
        recorder: Recorder | None = None,
        watch: Callable[[Choice], None] | None = None,
    ):
        how.validate()
        choices = model.vocabulary_table().shape[0] - len(never)
        if how.ways > choices and not how.temperature:
            raise InputError(f"beam ({how.ways}) must be at most {choices}: there are no more tokens to choose from")
        rows = prompt.shape[0]
        ends = [end] if isinstance(end, int) else list(end)
        limits = [limits] * rows if isinstance(limits, int) else [int(n) for n in limits]
        if len(limits) != rows or min(limits, default=1) < 1:
            raise InputError(f"limits ({limits}) must be at least 1, for each of {rows} rows")
        given = [prompt.shape[1]] * rows if lengths is None else lengths.tolist()
        # Of a row with a long prompt and one with much to write, no row needs both.
        most, room = max(limits), max(prompt.shape[1], *(n + limit for n, limit in zip(given, limits, strict=True)))
        if recorded.fixed_shapes(prompt.device):
            most, room = fixed_length(most), fixed_length(room, getattr(model.config.decoder, "position_limit", None))
        # On a CPU attention to a float32 cache is exact, and no slower.
        half = prompt.device.type == "cpu" and next(model.parameters()).dtype in (torch.bfloat16, torch.float16)
        sizes = {"max_len": room, "lanes": how.ways, "dtype": torch.float32 if half else None}
        begin = recorded.begin if recorder is None else recorder.begin
        cache, scores = begin(model, prompt, lengths, memory, **sizes)
        kind = Draws if how.temperature or how.ways == 1 else Beams
        state = kind(how, limits, most, ends, never, prompt.device, requests, seeds)
        state.watch, state.kernels = watch, None if recorder is None else recorder.kernels
        if how.repetition_penalty != 1:
            state.of_rows["used"] = used(prompt, lengths, how.ways, model.vocabulary_table().shape[0])
        ids, parents = state.step(scores)
        cache.follow(parents)
        state.written += 1
        self.model, self.cache, self.state, self.ids, self.recorder = model, cache, state, ids, recorder
        self.given = np.asarray(given)  # tokens of each row's prompt
        self.recording: Recording | None = None
        self.since = 0  # steps since somebody looked

    @functools.cached_property
    def fused(self) -> bool:
        """Whether its steps are made of few operations on a CPU; on a GPU a recording's are. Asked by the first step:
        a search that joins another makes none."""
        cache, ids = self.cache, self.ids
        return ids.device.type == "cpu" and isinstance(cache, Cache) and composes(self.model, cache, ids)

    @torch.inference_mode()
    def step(self) -> None:
        """The next token of every way."""
        cache, state, recorder = self.cache, self.state, self.recorder
        if recorder is not None and self.recording is None and isinstance(cache, Cache) and recorder.takes(self.ids):
            self.recording = recorder.move_in(self)
        if isinstance(cache, Cache) and recorded.fixed_shapes(self.ids.device):
            cache.shown = fixed_length(int((self.given + state.written).max()), cache.max_len)
        if self.recording is not None:
            self.ids = self.recording.step(cast(int, cast(Cache, cache).shown))
        else:
            if isinstance(cache, Cache) and not recorded.fixed_shapes(self.ids.device):
                cache.make_room()
            recorded.step(self.model, cache, state, self.ids, fused=self.fused)
        state.written += 1
        self.since += 1

    @torch.inference_mode()
    def move_out(self) -> None:
        """Go on with memory of its own: another search needs that of the recording."""
        vars(self.cache).update(vars(cast(Cache, self.cache).copied()))
        self.state.move_out()
        self.ids, self.recording = self.ids.clone(), None

    @torch.inference_mode()
    def leave(self) -> bool:
        """Take the results of rows that are done into ``state.found``, and go on with the others, if it is worth it;
        False where there are no others."""
        state, fixed = self.state, recorded.fixed_shapes(self.ids.device)
        last = bool((state.written >= state.limits).all())
        if not last and fixed and state.written.max() % LOOK_EVERY:
            return True
        done = state.over().cpu().numpy()
        stay = np.flatnonzero(~done)
        if fixed and len(stay):  # half of them or none; some that are done go along
            size = fixed_size(len(stay))
            if 2 * size > len(done):
                return True
            stay = np.append(stay, np.flatnonzero(done)[: size - len(stay)])
        elif not last and len(stay) and done.mean() < LEAVE_SHARE:
            return True
        for row, found in zip(state.rows[done], state.results(np.flatnonzero(done)), strict=True):
            state.found[row] = found
        if not len(stay):
            state.keep(stay)
            return False
        self._keep(stay)
        return True

    def _keep(self, places: NDArray) -> None:
        """Go on with the rows at some places only."""
        places = closed_up(places)
        keep = self.state.keep(places)
        self.cache.keep(keep)
        self.given, self.ids, self.recording = self.given[places], self.ids[keep], None

    @torch.inference_mode()
    def take(self) -> dict[int, list[Found]]:
        """What was found for rows that are done by now, by their numbers; their places are idle from now on. A GPU is
        asked now and then only, and when a row must be done by its limit."""
        state = self.state
        at_limit = (state.written >= state.limits)[state.rows != IDLE].any()
        if recorded.fixed_shapes(self.ids.device) and not at_limit and self.since < LOOK_EVERY:
            return {}
        self.since = 0
        done = np.flatnonzero(state.over().cpu().numpy() & (state.rows != IDLE))
        found = dict(zip(state.rows[done].tolist(), state.results(done), strict=True))
        state.rows[done] = IDLE
        idle = np.flatnonzero(state.rows == IDLE)
        if len(idle):  # they go along with the others, and never far
            at = torch.from_numpy(idle).to(self.ids.device)
            state.t[at], state.written[idle], self.given[idle] = 0, 0, 0
            if isinstance(self.cache, Cache):
                self.cache.reset(at)
        return found

    @property
    def n_live(self) -> int:
        """Rows that are not done."""
        return int((self.state.rows != IDLE).sum())

    @torch.inference_mode()
    def close_up(self) -> None:
        """Move the rows together, if enough places are idle."""
        stay = np.flatnonzero(self.state.rows != IDLE)
        n = len(self.state.rows)
        if recorded.fixed_shapes(self.ids.device):
            stay = np.append(stay, np.flatnonzero(self.state.rows == IDLE)[: fixed_size(len(stay)) - len(stay)])
        if len(stay) and n - len(stay) >= LEAVE_SHARE * n:
            self._keep(stay)

    @torch.inference_mode()
    def join(self, other: Search) -> list[int]:
        """Take in another search's rows, of the same settings; returns the numbers that they have here. The other is
        used up."""
        mine, theirs = self.state, other.state
        assert mine.settings == theirs.settings, "rows that go on together are chosen alike"
        if isinstance(self.cache, Cache) and not recorded.fixed_shapes(self.ids.device):
            live = mine.rows != IDLE  # what was needed by a long row that has left is given up
            needed = max((self.given + mine.limits)[live].max(initial=1), cast(Cache, other.cache).max_len)
            self.cache.narrow(torch.from_numpy(np.flatnonzero(live)), int(needed))
        n, new = len(mine.rows), np.flatnonzero(theirs.rows != IDLE)
        idle = np.flatnonzero(mine.rows == IDLE)[: len(new)]
        places = np.append(idle, np.arange(n, n + len(new) - len(idle)))
        rows = max(n, int(places.max(initial=-1)) + 1)
        if recorded.fixed_shapes(self.ids.device):
            rows = fixed_size(rows)
        which, at = (torch.from_numpy(some).to(self.ids.device) for some in (new, places))
        self.cache.join(other.cache, which, at, rows)  # type: ignore[arg-type]  # both are of one model
        self.ids = put_rows(self.ids, other.ids, which, at, rows)
        self.given = placed(self.given, other.given, new, places, rows)
        self.recording = None
        return mine.join(theirs, which, at, rows)

    @torch.inference_mode()
    def drop(self, numbers: Collection[int]) -> None:
        """End some rows; nobody wants them any more. Their places are idle after the next ``take``."""
        places = np.flatnonzero(np.isin(self.state.rows, list(numbers)))
        if len(places):
            self.state.end_rows(torch.from_numpy(places).to(self.ids.device))
