"""Batches made ahead of time, in a thread, and brought to a GPU beside the update before them, so that it never waits
for them; and a clock that shows it."""

from __future__ import annotations

import queue
import threading
import time
from typing import NamedTuple

import torch

from regard.data.batches import Batch, Batches, Size

AHEAD = 8  # updates


class Update(NamedTuple):
    """What one update works on: this process's parts, and the size of the whole."""

    step: int
    parts: list[Batch]
    size: Size


class Arriving(NamedTuple):
    """An update on its way to a GPU, and when it is there."""

    update: Update
    there: torch.cuda.Event


class Loader:
    """The updates from a step on. ``waited`` is how long the loop has stood still for them, in seconds."""

    def __init__(self, batches: Batches, first: int, *, parts: int, rank: int, world: int, device: torch.device):
        self.batches, self.next, self.parts, self.rank, self.world = batches, first, parts, rank, world
        self.device = device
        self.copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.arriving: Update | Arriving | BaseException | None = None
        self.waited = 0.0
        self.made: queue.Queue[Update | BaseException] = queue.Queue(AHEAD)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        step = self.next
        try:
            while not self.stopped.is_set():
                self._put(self.make(step))
                self._look_ahead(step)
                step += 1
        except BaseException as error:
            self._put(error)

    def _look_ahead(self, step: int) -> None:
        """In the middle of an epoch, ask for the first rows of the next, beside it: to order and to split a large
        corpus takes seconds, in which a GPU would stand still."""
        epoch, i = divmod(step - 1, n := len(self.batches))
        if i == n // 2 and n > 2 * AHEAD:
            threading.Thread(target=self.batches.rows, args=((epoch + 1) * n,), daemon=True).start()

    def _put(self, value: Update | BaseException) -> None:
        while not self.stopped.is_set():
            try:
                self.made.put(value, timeout=0.1)
                return
            except queue.Full:
                continue

    def make(self, step: int) -> Update:
        """Update number ``step`` counts from 1; its batch from 0."""
        whole = self.world * self.parts
        parts = [self.batches.part(step - 1, self.rank * self.parts + i, whole) for i in range(self.parts)]
        return Update(step, parts if self.copies is None else [p.pinned() for p in parts], self.batches.size(step - 1))

    def __next__(self) -> Update:
        begin = time.perf_counter()
        value = self.arriving or self._send(self.made.get())
        self.waited += time.perf_counter() - begin
        self.arriving = None
        if isinstance(value, BaseException):
            raise value
        if isinstance(value, Update):
            return value
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(value.there)
        for part in value.update.parts:
            part.used_on(stream)
        if not self.made.empty():
            self.arriving = self._send(self.made.get())
        return value.update

    def _send(self, value: Update | BaseException) -> Update | Arriving | BaseException:
        """Off to the GPU, on a stream of its own: what is computed meanwhile does not wait for it."""
        if isinstance(value, BaseException) or self.copies is None:
            return value
        with torch.cuda.stream(self.copies):
            parts = [part.to(self.device) for part in value.parts]
            there = torch.cuda.Event()
            there.record()
        return Arriving(value._replace(parts=parts), there)

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join()
