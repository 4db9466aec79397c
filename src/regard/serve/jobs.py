"""A request as work for an engine: rows that are written step by step, or inputs that are read at once.

A job is prepared where the request is, so that a mistake in it is refused before it waits; what the model does with it
happens in the engine's thread, and what comes of it is handed back to the request's event loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from regard.config import InputError
from regard.data.images import Picture
from regard.decode import generate as generation
from regard.decode import translate as translation
from regard.decode.search import Search
from regard.decode.settings import Decoding, to_generate
from regard.decode.ways import Found
from regard.model import Model

IMAGES_AT_ONCE = 16  # then others have their turn


class Piece(NamedTuple):
    """Text that was written: of which prompt, and of which of its samples."""

    prompt: int
    sample: int
    text: str


class Job:
    """What every request is to an engine: an answer to come, and a way to say that nobody waits for it any more."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop
        self.answer: asyncio.Future[Any]
        self.cancelled = False

    def attach(self) -> None:
        """Let the answer come to the event loop that runs here."""
        self.loop = asyncio.get_running_loop()
        self.answer = self.loop.create_future()

    def cancel(self) -> None:
        """Nobody waits any more: what was begun leaves its batch at the next step."""
        self.cancelled = True

    def resolve(self, value: Any) -> None:
        """The answer, or the reason why there is none; called in the engine's thread."""
        self.call(self._resolve, value)

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call something in the request's event loop, if there is still one."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(function, *arguments)

    def _resolve(self, value: Any) -> None:
        if self.answer.done():
            return
        if isinstance(value, BaseException):
            self.answer.set_exception(value)
            self.answer.exception()  # seen: a request that has gone does not ask
        else:
            self.answer.set_result(value)


class Reading(Job):
    """Inputs that one pass answers: fill, classify, tag, embed. Those with the same ``key`` are read together."""

    def __init__(self, inputs: Sequence[Any], read: Callable[..., Iterable[Any]], **options: Any):
        super().__init__()
        self.inputs, self.read, self.options = list(inputs), read, options
        self.answers: list[Any] = []
        # So many are answered before others have their turn.
        self.share = IMAGES_AT_ONCE if isinstance(inputs[0], Picture) else len(inputs)
        self.key: Hashable = (read.__name__, *sorted(options.items()))


class Row(NamedTuple):
    """What is written at once: a sentence or a prompt, and how."""

    job: Writing
    item: Any
    how: Decoding

    @property
    def key(self) -> Hashable:
        """Rows of the same key may go on together."""
        return type(self.job), self.how.replace(seed=0, max_length=None), *self.job.model.ends

    @property
    def slots(self) -> int:
        """Tokens that it may come to, read and written, in all the ways in which it goes on."""
        return self.how.ways * self.job.length(self)


class Writing(Job, ABC):
    """Rows that are written token by token, and an answer made of them all."""

    def __init__(self, model: Model, how: Decoding, items: Sequence[Any]):
        super().__init__()
        self.model, self.how = model, how
        self.waiting = [Row(self, item, how) for item in items]
        self.left = len(self.waiting)

    @classmethod
    @abstractmethod
    def begin(cls, model: Model, rows: Sequence[Row]) -> Search:
        """A search over some rows, their first tokens written."""

    @abstractmethod
    def length(self, row: Row) -> int:
        """Tokens that a row may come to."""

    @abstractmethod
    def finish(self, row: Row, found: list[Found]) -> None:
        """Take what was found for a row."""

    @abstractmethod
    def all(self) -> Any:
        """The answer, once all rows are there."""

    @classmethod
    def read_on(cls, rows: dict[int, Row], running: Search) -> None:
        """Read what was written since the last time, where somebody wants to see it as it is written."""


class Translating(Writing):
    """Texts to translate: their sentences are the rows."""

    def __init__(self, model: Model, texts: Sequence[str], *, align: bool = False, **options: Any):
        model.check_task("translate")
        self.align, self.texts = align, [translation.Text(model, text, False) for text in texts]
        units = [unit for text in self.texts for unit in text.units if unit.ids]
        super().__init__(model, Decoding(**options).validate(), units)

    @classmethod
    def begin(cls, model: Model, rows: Sequence[Row]) -> Search:
        units = [row.item for row in rows]
        memory = translation.encode(model, units)
        return Search(model.net, **translation.asked(model, units, memory, [row.how for row in rows]))

    def length(self, row: Row) -> int:
        return 1 + translation.longest(row.item, row.how)

    def finish(self, row: Row, found: list[Found]) -> None:
        row.item.found = found
        if self.align:
            translation.align_words(self.model, [row.item], translation.encode(self.model, [row.item]))

    def all(self) -> list[translation.Translation]:
        return [text.translation(self.how, self.align) for text in self.texts]


class Generating(Writing):
    """Prompts to go on with. ``show`` is called in the request's event loop with what is written, as it is."""

    def __init__(
        self,
        model: Model,
        prompts: Sequence[generation.Prompt],
        *,
        max_new_tokens: int = generation.MAX_NEW_TOKENS,
        n: int = 1,
        stop: Sequence[str] = (),
        show: Callable[[Piece], None] | None = None,
        **options: Any,
    ):
        model.check_task("generate")
        how = to_generate(n=n, stop=stop, **options)
        if show is not None and not how.temperature and how.ways > 1:
            raise InputError(f"beam ({how.ways}): the best text is known in the end, not as it is written; take beam 1")
        self.given = [generation.Given(model, prompt, max_new_tokens, stop, how.n_best) for prompt in prompts]
        self.number = {id(one): i for i, one in enumerate(self.given)}
        self.stop, self.show = stop, show
        super().__init__(model, how, self.given)

    @classmethod
    def begin(cls, model: Model, rows: Sequence[Row]) -> Search:
        given, hows = [row.item for row in rows], [row.how for row in rows]
        return Search(model.net, **generation.asked(rows[0].job.model, given, hows))

    def length(self, row: Row) -> int:
        return len(row.item.ids) + row.item.limit

    @classmethod
    def read_on(cls, rows: dict[int, Row], running: Search) -> None:
        jobs: dict[int, Generating] = {}
        watched: dict[int, generation.Given] = {}
        for number, row in rows.items():
            if isinstance(row.job, Generating) and (row.job.stop or row.job.show):
                watched[number], jobs[id(row.item)] = row.item, row.job
        if not watched:
            return
        with torch.inference_mode():
            for one, sample, piece in generation.read_on(watched, running.state):
                job = jobs[id(one)]
                if job.show is not None:
                    job.call(job.show, Piece(job.number[id(one)], sample, piece))

    def finish(self, row: Row, found: list[Found]) -> None:
        row.item.found = found

    def all(self) -> list[generation.Generation]:
        return [one.generation(self.model) for one in self.given]
