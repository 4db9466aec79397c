"""Prompts in, what follows them out: drawn, or the most likely that a search finds; all at once or as it is written.

Prompts of like length go together, whatever their order. The numbers that are drawn belong to the seed and the prompt
itself, so that it goes on alike in any batch. A prompt that is given twice has one answer; for several, ask for ``n``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from regard.config import InputError
from regard.data.batch import number_of
from regard.decode import recorded
from regard.decode.recorded import fixed_length, fixed_size
from regard.decode.search import LOOK_EVERY, steps
from regard.decode.settings import Decoding, to_generate
from regard.decode.text import Reader
from regard.decode.ways import Found, State

if TYPE_CHECKING:
    from regard.model import Model

MAX_NEW_TOKENS = 100
BATCH_TOKENS = {"cpu": 8_192, "cuda": 65_536}  # read and written, in all the ways a prompt goes on

Prompt = str | Sequence[int]
"""A text, or ids that are taken as they are, without what the model puts before a prompt."""


@dataclass(frozen=True)
class Generation:
    """What follows a prompt.

    ``finish`` says why it ended: the model ended it, it met a stop string, or it reached its length. ``logprob`` is the
    logarithm of its probability by the model itself, whatever it was drawn by, and ``logprobs`` that of each token (not
    of a beam's). Of one that met a stop string the last token may reach into it. ``dropped`` counts the first tokens of
    a prompt that were left out because it did not fit. ``others`` are the next samples, or the next best.
    """

    text: str
    prompt: str = ""
    tokens: tuple[str, ...] = ()
    logprob: float = 0.0
    logprobs: tuple[float, ...] = ()
    finish: Literal["end", "stop", "length"] = "end"
    dropped: int = 0
    others: tuple[Generation, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain |= {"tokens": list(self.tokens), "logprobs": list(self.logprobs)}
        return {**plain, "others": [other.to_dict() for other in self.others]}


@torch.inference_mode()
def generate(
    model: Model,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int = MAX_NEW_TOKENS,
    n: int = 1,
    stop: Sequence[str] | str = (),
    batch_tokens: int | None = None,
    **options: Any,
) -> list[Generation]:
    """What follows each prompt, in up to ``max_new_tokens`` tokens and up to the first of the ``stop`` strings; ``n``
    samples of each.

    Options are those of :class:`~regard.decode.Decoding`: temperature (0.8, unless a beam is given; 0 is greedy),
    top_k, top_p, min_p, repetition_penalty, seed; beam, length_penalty ...

    A model with a limited context ends what it writes where that is full. Of a prompt that does not fit by itself the
    last tokens are kept, and room for what is asked for is left, up to half of the context.

    >>> from regard import Model, Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_decoder"}, vocab_size=len(tokens))
    >>> model = Model(Transformer(config), "generate", tokens)
    >>> [said] = generate(model, ["a dog"], max_new_tokens=5, temperature=0)
    >>> len(said.tokens), said.finish
    (5, 'length')
    """
    model.check_task("generate")
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    how = to_generate(n=n, stop=stop, **options)
    given = [Given(model, prompt, max_new_tokens, stop, how.n_best) for prompt in prompts]
    budget = batch_tokens or BATCH_TOKENS[model.device.type]
    for batch in _batches(given, budget, how.ways, fixed=recorded.fixed_shapes(model.device)):
        state = None
        for t, state in enumerate(steps(model.net, **asked(model, batch, [how] * len(batch)))):
            if stop and ((t + 1) % LOOK_EVERY == 0 or not recorded.fixed_shapes(model.device)):
                for _ in read_on(dict(enumerate(batch)), state):
                    pass
        assert state is not None
        for one, found in zip(batch, state.found, strict=False):
            one.found = found
    return [one.generation(model) for one in given]


@torch.inference_mode()
def stream(
    model: Model,
    prompt: Prompt,
    *,
    max_new_tokens: int = MAX_NEW_TOKENS,
    stop: Sequence[str] | str = (),
    **options: Any,
) -> Generator[str, None, Generation]:
    """The same for one prompt, piece by piece as it is written: whole characters, and nothing of a stop string.
    Together the pieces are the text of the :class:`Generation` that the generator returns in the end."""
    model.check_task("generate")
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    how = to_generate(stop=stop, **options)
    if how.ways > 1:
        raise InputError(f"beam ({how.ways}): the best text is known in the end, not as it is written; take beam 1")
    one = Given(model, prompt, max_new_tokens, stop, 1)
    [reader], state = one.readers, None
    for t, state in enumerate(steps(model.net, **asked(model, [one], [how]))):
        if not bool(state.ends[0, 0]) and (piece := reader.add(int(state.tokens[0, 0, t]))):
            yield piece
        _mark(reader, state, 0, 0)
    assert state is not None
    [one.found] = state.found[:1]
    if piece := reader.finish():
        yield piece
    return one.generation(model)


# ---------------------------------------------------------------------------------------
# What is asked for


class Given:
    """A prompt, and what becomes of it."""

    def __init__(self, model: Model, prompt: Prompt, max_new_tokens: int, stop: Sequence[str], n: int):
        if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
            raise InputError(f"max_new_tokens ({max_new_tokens}) must be at least 1")
        tokens = model.tokenizer
        before = model.prefix if isinstance(prompt, str) else []
        ids = tokens.encode(prompt) if isinstance(prompt, str) else [int(id) for id in prompt]
        self.limit, self.dropped, context = max_new_tokens, 0, model.context
        if context is not None:
            if len(before) + len(ids) >= context:
                room = max(1, min(max_new_tokens, context // 2))
                self.dropped = len(before) + len(ids) + room - context
            self.limit = min(max_new_tokens, context - len(before) - len(ids) + self.dropped)
        self.prompt = prompt if isinstance(prompt, str) else tokens.decode(ids)
        self.ids = [*before, *ids[self.dropped :]]
        if not self.ids:
            raise InputError(
                "prompt ('') is empty, and this model knows no beginning of a text; give at least a letter"
            )
        self.request = number_of(self.ids)
        begins = not tokens.decode(self.ids)
        self.readers = [Reader(tokens, stop, begins=begins) for _ in range(n)]
        self.found: list[Found] = []

    def generation(self, model: Model) -> Generation:
        first, *others = (self._nth(model, *pair) for pair in zip(self.found, self.readers, strict=True))
        return dataclasses.replace(first, others=tuple(others))

    def _nth(self, model: Model, found: Found, reader: Reader) -> Generation:
        for id in found.ids[len(reader.sizes) :]:
            if reader.stopped:
                break
            reader.add(id)
        reader.finish()
        n = reader.n_tokens if reader.stopped else len(found.ids)
        return Generation(
            text=reader.text,
            prompt=self.prompt,
            tokens=tuple(model.tokenizer.token(id) for id in found.ids[:n]),
            logprob=sum(found.logprobs[:n]) if reader.stopped else found.logprob,
            logprobs=found.logprobs[:n],
            finish="stop" if reader.stopped else "end" if found.ended else "length",
            dropped=self.dropped,
        )


# ---------------------------------------------------------------------------------------
# What the model does


def _batches(given: Sequence[Given], budget: int, ways: int, *, fixed: bool) -> Iterator[list[Given]]:
    """Prompts of like length together, the longest first, as many as the budget of tokens takes; ``fixed``, the largest
    of a few numbers that is no more."""
    ordered = sorted(given, key=lambda one: -len(one.ids))
    begin = 0
    while begin < len(ordered):
        most = max(one.limit for one in ordered[begin:])
        n = max(1, budget // (len(ordered[begin].ids) + ways * most))
        end = begin + (fixed_size(n // 2 + 1) if fixed else n)
        yield ordered[begin:end]
        begin = end


def asked(model: Model, batch: Sequence[Given], hows: Sequence[Decoding]) -> dict[str, Any]:
    """What is asked of a search; settings may differ in their seed."""
    lengths, limits = [len(one.ids) for one in batch], [one.limit for one in batch]
    longest, rows = max(lengths), len(batch)
    if recorded.fixed_shapes(model.device):  # a row more than there are is the first token of another
        longest, rows = fixed_length(longest, model.context), fixed_size(rows)
    empty = rows - len(batch)
    prompts = np.full((rows, longest), batch[0].ids[0])
    for row, one in zip(prompts, batch, strict=False):
        row[: len(one.ids)] = one.ids
    same = len({*lengths, longest}) == 1 and not empty
    return {
        "prompt": torch.from_numpy(prompts).to(model.device),
        "lengths": None if same else torch.tensor(lengths + [1] * empty, device=model.device),
        "end": model.endings,
        "limits": limits + [1] * empty,
        "how": hows[0],
        "never": model.never,
        "requests": [one.request for one in batch] + [0] * empty,
        "seeds": [how.seed for how in hows] + [0] * empty,
        "recorder": model.recorder,
    }


def read_on(batch: Mapping[int, Given], state: State) -> Iterator[tuple[Given, int, str]]:
    """Read what was written since, by the numbers of the rows: of each way what can be shown now. What has met a stop
    string is ended; what was written after it is cut off later."""
    tokens, sizes, ends = (t.cpu() for t in (state.tokens, state.size, state.ends))
    for place, row in enumerate(state.rows.tolist()):
        for way, reader in enumerate(batch[row].readers if row in batch else ()):
            new = tokens[place, way, len(reader.sizes) : sizes[place, way]].tolist()
            if piece := "".join(map(reader.add, new)):
                yield batch[row], way, piece
            if not ends[place, way]:
                _mark(reader, state, place, way)


def _mark(reader: Reader, state: State, place: int, way: int) -> None:
    if reader.stopped:
        state.ends[place, way] = True
