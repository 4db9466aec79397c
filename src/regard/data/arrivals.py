"""Lines as they arrive, those that are there already together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator

READ_AHEAD = 1_024  # lines that are worked on together


def arriving(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines in groups: a fast writer's by the thousand, a slow one's each at once. What goes wrong while they are read
    is raised after those before it.

    >>> [line for group in arriving(["a", "b", "c"]) for line in group]
    ['a', 'b', 'c']
    """
    arrived: queue.Queue[str | BaseException | None] = queue.Queue(READ_AHEAD)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(line)
            arrived.put(None)
        except BaseException as error:
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    more = True
    while more:
        batch = [arrived.get()]
        while not arrived.empty() and isinstance(batch[-1], str) and len(batch) < READ_AHEAD:
            batch.append(arrived.get())
        last = batch[-1]
        if not isinstance(last, str):
            batch.pop()
            more = False
        if batch:
            yield [line for line in batch if isinstance(line, str)]
        if isinstance(last, BaseException):
            raise last
