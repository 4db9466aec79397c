"""Batches made ahead of time, in a thread, so that the device never waits for them; and a clock that shows it."""

from __future__ import annotations

import queue
import threading
import time
from typing import NamedTuple

from regard.data.batches import Batch, Batches, Size

AHEAD = 8  # updates


class Update(NamedTuple):
    """What one update works on: this process's parts, and the size of the whole."""

    step: int
    parts: list[Batch]
    size: Size


class Loader:
    """The updates from a step on. ``waited`` is how long the loop has stood still for them, in seconds."""

    def __init__(self, batches: Batches, first: int, *, parts: int, rank: int, world: int, pin: bool):
        self.batches, self.next, self.parts, self.rank, self.world, self.pin = batches, first, parts, rank, world, pin
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
                step += 1
        except BaseException as error:
            self._put(error)

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
        return Update(step, [p.pinned() for p in parts] if self.pin else parts, self.batches.size(step - 1))

    def __next__(self) -> Update:
        begin = time.perf_counter()
        value = self.made.get()
        self.waited += time.perf_counter() - begin
        if isinstance(value, BaseException):
            raise value
        return value

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join()
