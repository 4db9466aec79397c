"""Lines as they arrive, those that are there already together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

READ_AHEAD = 1_024  # lines that are worked on together

Line = TypeVar("Line")


class _Arrived(NamedTuple, Generic[Line]):
    """A line, or the end of all, or why there are no more."""

    line: list[Line]
    error: BaseException | None = None


def arriving(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Lines in groups: a fast writer's by the thousand, a slow one's each at once. What goes wrong while they are read
    is raised after those before it.

    >>> [line for group in arriving(["a", "b", "c"]) for line in group]
    ['a', 'b', 'c']
    """
    arrived: queue.Queue[_Arrived[Line]] = queue.Queue(READ_AHEAD)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(_Arrived([line]))
            arrived.put(_Arrived([]))
        except BaseException as error:
            arrived.put(_Arrived([], error))

    threading.Thread(target=read, daemon=True).start()
    last = _Arrived[Line]([])
    while True:
        group: list[Line] = []
        while not group or (not arrived.empty() and len(group) < READ_AHEAD):
            last = arrived.get()
            if not last.line:
                break
            group += last.line
        if group:
            yield group
        if not last.line:
            break
    if last.error is not None:
        raise last.error
