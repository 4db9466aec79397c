"""A thread that works for one model: what has arrived is worked on together, and leaves as it is done.

Continuous batching (Yu et al. 2022, Orca): between two steps of what is being written, rows that are done hand over
their answers, and rows that wait take their places. Inputs that one pass answers are collected and read together.
Neither changes an answer: see :class:`regard.decode.search.Search`.

Nothing here knows of HTTP. A job is submitted from an event loop, and its answer comes back there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable

import torch

from regard.decode.search import Search
from regard.model import Model
from regard.schema import RegardError
from regard.serve.jobs import Job, Reading, Row, Writing
from regard.serve.limits import Limits

READ_AT_ONCE = 128  # inputs, between two steps of what is written
MOST_SLOTS = {"cpu": 65_536, "cuda": 1_048_576}  # tokens that are remembered, in all rows and their ways


class Full(RegardError):
    """Too many requests wait already."""


class Closing(RegardError):
    """No new requests are taken on."""


class Engine:
    """The thread of a model. ``working`` and ``waiting`` may be read from anywhere, and so may ``n_written``."""

    def __init__(self, model: Model, limits: Limits = Limits()):
        self.model, self.limits = model, limits
        self.n_written = 0  # tokens, of all ways
        self.arrived: deque[Job] = deque()
        self.change = threading.Condition()
        self.closing = False
        self.reading: deque[Reading] = deque()
        self.writing: deque[Writing] = deque()  # with rows that wait
        self.running: dict[Hashable, tuple[Search, dict[int, Row]]] = {}
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.thread.start()

    @property
    def working(self) -> int:
        """Rows that are being written."""
        return sum(len(rows) for _, rows in list(self.running.values()))

    @property
    def waiting(self) -> int:
        """Requests of which nothing has begun yet, or not all."""
        return len(self.arrived) + len(self.reading) + len(self.writing)

    def submit(self, job: Job) -> None:
        """Take a job on; refused where too many wait."""
        with self.change:
            if self.closing:
                raise Closing("the server is stopping; ask another, or try again soon")
            if self.waiting >= self.limits.queue:
                raise Full(f"{self.waiting} requests wait, and no more than {self.limits.queue} may; try again soon")
            job.attach()
            self.arrived.append(job)
            self.change.notify()

    def close(self) -> None:
        """Take on nothing new, finish what there is, and end the thread."""
        with self.change:
            self.closing = True
            self.change.notify()
        self.thread.join()

    # -- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while self._arrivals():
            try:
                self._read()
                self._admit()
                self._step()
            except Exception as error:  # a mistake of ours: those in hand are told, and others are served
                self._fail(error)

    def _arrivals(self) -> bool:
        """Take in what has come; waits where there is nothing else to do. False when all is done for good."""
        with self.change:
            while not (self.arrived or self.reading or self.writing or self.running):
                if self.closing:
                    return False
                self.change.wait()
            while self.arrived:
                job = self.arrived.popleft()
                if isinstance(job, Reading):
                    self.reading.append(job)
                elif isinstance(job, Writing):
                    if job.waiting:
                        self.writing.append(job)
                    else:
                        job.resolve(job.all())
        return True

    def _read(self) -> None:
        """Read together what is asked alike, as much as is good at once; of images a few, and then it is the others'
        turn."""
        waiting = [job for job in self.reading if not job.cancelled]
        self.reading = deque(waiting)
        if not waiting:
            return
        some, n = [], 0
        for job in waiting:
            if job.key == waiting[0].key and (not some or n + job.share <= READ_AT_ONCE):
                some.append(job)
                n += job.share
        try:
            self._answer(some)
        except Exception:  # one of them is wrong: each by itself
            for job in some:
                try:
                    self._answer([job])
                except Exception as error:
                    self.reading.remove(job)
                    job.resolve(error)

    def _answer(self, jobs: list[Reading]) -> None:
        parts = [job.inputs[len(job.answers) :][: job.share] for job in jobs]
        answers = iter(jobs[0].read([one for part in parts for one in part], **jobs[0].options))
        for job, part in [(job, [next(answers) for _ in part]) for job, part in zip(jobs, parts, strict=True)]:
            job.answers += part
            self.reading.remove(job)
            if len(job.answers) == len(job.inputs):
                job.resolve(job.answers)
            else:
                self.reading.append(job)

    def _admit(self) -> None:
        """Begin rows that wait, a row of each request in turn, as many as there is room for."""
        begun: dict[Hashable, list[Row]] = {}
        together = {key: list(rows.values()) for key, (_, rows) in self.running.items()}
        while self.writing:
            job = self.writing[0]
            if job.cancelled:
                self.writing.popleft()
                continue
            row = job.waiting[0]
            together.setdefault(row.key, []).append(row)
            if not self._has_room(list(together.values())):
                break
            self.writing.rotate(-1)
            job.waiting.pop(0)
            begun.setdefault(row.key, []).append(row)
            if not job.waiting:
                self.writing.pop()
        for key, rows in begun.items():
            try:
                self._begin(key, rows)
            except Exception as error:
                for row in rows:
                    row.job.cancel()
                    row.job.resolve(error)

    def _has_room(self, groups: list[list[Row]]) -> bool:
        """Whether rows may go on at once; of each group all need the room of the longest. One by itself always may."""
        slots = sum(len(rows) * max(row.slots for row in rows) for rows in groups if rows)
        n, most = sum(map(len, groups)), MOST_SLOTS.get(self.model.device.type, MOST_SLOTS["cpu"])
        return n == 1 or (n <= self.limits.batch and slots <= most)

    def _begin(self, key: Hashable, rows: list[Row]) -> None:
        new = type(rows[0].job).begin(self.model, rows)
        self.n_written += len(rows) * new.state.how.ways
        of_new = dict(enumerate(rows))
        type(rows[0].job).read_on(of_new, new)
        self._hand_out(new, of_new)  # some may be done with their first token
        if key not in self.running:
            self.running[key] = new, of_new
        elif of_new:
            search, known = self.running[key]
            known.update(zip(search.join(new), of_new.values(), strict=True))  # both in the order of their places

    def _step(self) -> None:
        """A token more of every row; those that are done, or that nobody waits for, leave."""
        for key, (search, rows) in list(self.running.items()):
            gone = [number for number, row in rows.items() if row.job.cancelled]
            if len(gone) == len(rows):
                del self.running[key]
                continue
            search.drop(gone)
            search.step()
            self.n_written += len(rows) * search.state.how.ways
            type(next(iter(rows.values())).job).read_on(rows, search)
            self._hand_out(search, rows)
            if rows and not self.writing:
                search.close_up()

    def _hand_out(self, search: Search, rows: dict[int, Row]) -> None:
        for number, found in search.take().items():
            row = rows.pop(number, None)  # none: a row that only fills a shape
            if row is None or row.job.cancelled:
                continue
            job = row.job
            try:
                job.finish(row, found)
                job.left -= 1
                if not job.left:
                    job.resolve(job.all())
            except Exception as error:  # of this request alone
                job.cancel()
                job.resolve(error)

    def _fail(self, error: Exception) -> None:
        for _, rows in self.running.values():
            for row in rows.values():
                row.job.cancel()
                row.job.resolve(error)
        self.running.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
