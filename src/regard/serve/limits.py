"""What one request may ask for, and how much a server takes on. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from regard.schema import Node, at_least


@dataclass(frozen=True, kw_only=True)
class Limits(Node):
    """Where a server says no, each with its status code.

    >>> Limits(queue=8).queue
    8
    """

    body: int = 1_048_576
    """Bytes of a request: 413."""
    characters: int = 20_000
    """Of all texts of a request together: 422."""
    tokens: int = 1_024
    """To write, of each text: 422."""
    ways: int = 16
    """In which one text goes on, beams or samples: 422."""
    batch: int = 64
    """Rows that a model works on at once; others wait."""
    queue: int = 256
    """Requests that wait for a model: 429."""
    connections: int = 512
    """On which a client is waited for; of more, that of the slowest is closed."""
    seconds: float = 60.0
    """For a request to arrive: 408; from there to its answer: 504; and for a client to read that."""

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "body", "characters", "tokens", "ways", "batch", "queue", "connections")
        if self.seconds <= 0:
            yield f"seconds ({self.seconds}) must be above 0"
