"""What a search did, step by step: the ways that went on, what each could go on with, what was taken and what was not,
and why; for whatever writes token by token: :meth:`~regard.Model.translate`, ``caption`` and ``generate``.

:func:`trace` runs the model's own job over the search of :mod:`regard.decode.search` and watches; nothing is searched
here. What comes back draws itself as a tree (``tree.py``) and as a page on which one goes through it step by step.
"""

from __future__ import annotations

import codecs
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from rich.console import Group
from torch import Tensor

from regard.config import Grid, InputError, Patches
from regard.data.images import read_pixels
from regard.data.tokenizer import Tokenizer
from regard.decode import caption as captions
from regard.decode import generate as generation
from regard.decode import translate as translation
from regard.decode.search import steps
from regard.decode.settings import Decoding, to_generate
from regard.decode.ways import Beams, Choice, Found, State, shares
from regard.encode import images as pictures
from regard.look import tree
from regard.look.page import as_text
from regard.nn.masks import Layout, Mask, allowed
from regard.nn.outputs import Encoded
from regard.nn.transformer import Tower

if TYPE_CHECKING:
    from regard.model import Model

SHOWN = 5  # candidates of each way, beside those that were taken
PIXELS = 224  # of a side of an image that is shown
AT_ONCE = 2_048  # tokens that are read again at once, to see what they looked at

Fate = Literal["taken", "ended", "cut", "pruned", "stopped"]
"""What became of a candidate: it went on; it ended its sequence; it was the last that there was room for; it was not
among the best, or not drawn; or it would have gone on, but the search was over."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A token that a way could go on with. ``logprob`` is the logarithm of its probability, ``total`` that of the whole
    sequence with it. Where tokens are drawn, ``share`` is the probability that it was drawn by."""

    id: int
    token: str
    logprob: float
    total: float
    share: float | None
    fate: Fate
    into: tuple[int, ...]  # the ways of the next step that it became
    why: str


@dataclass(frozen=True, kw_only=True)
class Way:
    """A sequence that goes on: its last token, which way of the step before it goes on from, and what comes next.

    ``attention`` has the shares of what was read that it looked at to choose what comes next: the mean over the heads
    of the layer that aligns; None where a model has no cross-attention."""

    number: int
    parent: int | None
    token: str
    text: str  # so far
    total: float
    candidates: tuple[Candidate, ...]
    attention: tuple[float, ...] | None


@dataclass(frozen=True, kw_only=True)
class Step:
    """The ways that were alive, the best first. ``sees`` are the positions of prompt and sequence that the last one may
    attend to, from and up to; None in a recurrent model, which has no mask."""

    ways: tuple[Way, ...]
    sees: tuple[int, int] | None


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A sequence that is whole: what it was ranked by, and where it finished: the step, the way, the last token.
    ``answer`` says that it was given as an answer; ``ended`` is False for one that there was no more room for."""

    text: str
    logprob: float
    score: float
    ended: bool
    answer: bool
    step: int
    way: int
    id: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """What a search did. ``answer`` is what the model's own job gives; ``finished`` has what else was found, the best
    first, and ``over`` says why the search ended.

    ``source`` names what was read, ``prompt`` the tokens that stand before the first step: of a translation or caption
    only the start. Of an image, the last ``side`` times ``side`` of the source are its cells, row by row.
    """

    task: str
    source: tuple[str, ...]
    prompt: tuple[str, ...]
    settings: Decoding
    steps: tuple[Step, ...]
    finished: tuple[Finished, ...]
    over: str
    answer: translation.Translation | captions.Caption | generation.Generation
    layer: str | None  # whose attention it is
    side: int | None = None
    image: UInt8[NDArray, "H W 3"] | None = None

    def path(self, step: int, way: int) -> list[Way]:
        """The ways that one came from, itself last: a token each, but for the first."""
        found = []
        for t in range(step, -1, -1):
            found.append(next(one for one in self.steps[t].ways if one.number == way))
            way = found[-1].parent or 0
        return found[::-1]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON. Of each way there is what its token ``added`` to the text: together they are
        as long as the texts, not as their square."""
        texts: list[dict[int, str]] = [{0: ""}]
        told = []
        for step in self.steps:
            texts.append({way.number: way.text for way in step.ways})
            ways = []
            for way in step.ways:
                plain = {name: value for name, value in vars(way).items() if name != "text"}
                plain["added"] = way.text[len(texts[-2][way.parent or 0]) :]
                plain["candidates"] = [_rounded(vars(one)) for one in way.candidates]
                plain["attention"] = way.attention and [round(share, 4) for share in way.attention]
                ways.append(_rounded(plain))
            told.append({"ways": ways, "sees": step.sees and list(step.sees)})
        return {
            "task": self.task,
            "source": list(self.source),
            "side": self.side,
            "prompt": list(self.prompt),
            "settings": self.settings.to_dict(),
            "layer": self.layer,
            "steps": told,
            "finished": [_rounded(vars(one)) for one in self.finished],
            "over": self.over,
            "answer": self.answer.to_dict(),
        }

    def __str__(self) -> str:
        return as_text(self, width=120)

    def __rich__(self) -> Group:
        """Step by step: what each way went on with, and the best of what it did not, with the reason."""
        return tree.steps_page(self)

    def tree(self) -> Group:
        """The ways as an indented tree, for a terminal."""
        return tree.tree_page(self)

    def svg(self) -> str:
        """The tree, for a page: in its colours where it has them, else light or dark as the reader's are."""
        return tree.svg(self)

    def save(self, path: str | Path) -> Path:
        """Write the tree as .svg or, with matplotlib, .png; or tree and stepper as one .html file."""
        return tree.save(self, Path(path))


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in plain.items()}


def trace(model: Model, given: Any, **options: Any) -> Trace:
    """What a search did for one input: a sentence to translate, a prompt to go on with, an image to caption. Options
    are those of the model's own job (beam, n_best, temperature, seed, max_new_tokens, stop ...), and so is the answer.
    A text to translate is one sentence: it is not split.

    >>> from regard import Model, Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_decoder"}, vocab_size=len(tokens))
    >>> model = Model(Transformer(config), "generate", tokens)
    >>> seen = trace(model, "a dog", beam=3, max_new_tokens=5)
    >>> len(seen.steps), len(seen.steps[0].ways), len(seen.steps[1].ways)
    (5, 1, 3)
    >>> seen.answer == model.generate("a dog", beam=3, max_new_tokens=5)[0]
    True
    """
    model.check_task(*JOBS)
    job = JOBS[model.task](model, given, **options)
    watcher, choices, state = (_Beam if job.how.ways > 1 and not job.how.temperature else _Draws)(model, job), [], None
    with torch.inference_mode():
        for state in steps(model.net, **{**job.asked, "recorder": None, "watch": choices.append}):
            for _ in generation.read_on({0: job.prompt}, state) if job.prompt and job.stops else ():
                pass
            if not watcher.over:  # a GPU goes on for a while
                watcher.look(choices[-1], state)
            choices.clear()
        assert state is not None
        found, layer = state.found[0], translation.aligning_layer(model)
        looked = {} if layer is None else _looked(model, job, watcher.steps, layer)
    answer, sees = job.answer(found), _sees(model, len(job.prompt_ids), len(watcher.steps))
    return Trace(
        task=model.task,
        source=job.source,
        prompt=tuple(map(model.tokenizer.token, job.prompt_ids)),
        settings=job.how,
        steps=tuple(
            Step(ways=tuple(node.way(model.tokenizer, looked.get(node.place)) for node in nodes), sees=seen)
            for nodes, seen in zip(watcher.steps, sees, strict=True)
        ),
        finished=tuple(watcher.finished(found, [one.text for one in (answer, *answer.others)])),
        over=watcher.over,
        answer=answer,
        layer=layer,
        side=job.side,
        image=job.image,
    )


@torch.inference_mode()
def _looked(
    model: Model, job: _Job, steps: Sequence[Sequence[_Node]], layer: str
) -> dict[tuple[int, int], list[float]]:
    """What each way looked at of what was read. They are read again for it, each to where nothing went on from it:
    the search itself runs as it always does."""
    nodes, memory, found = [node for of in steps for node in of], job.asked["memory"], {}
    inner = {node.parent.place for node in nodes if node.parent is not None}
    leaves = sorted((node for node in nodes if node.place not in inner), key=lambda node: -node.place[0])
    while leaves:
        n = max(1, AT_ONCE // (leaves[0].place[0] + 1))
        batch, leaves = leaves[:n], leaves[n:]
        rows = [torch.tensor([*job.prompt_ids, *node.ids]) for node in batch]
        target = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(model.device)
        attended = model.net.decode(target, _repeated(memory, len(batch)), capture=[layer]).attended[layer]
        for leaf, weights in zip(batch, attended.weights().mean(1).float().cpu(), strict=True):  # (T, S)
            node: _Node | None = leaf
            while node is not None and node.place not in found:
                found[node.place] = weights[node.place[0], : len(job.source)].tolist()
                node = node.parent
    return found


def _repeated(memory: Encoded, n: int) -> Encoded:
    """The first row of a memory, so many times."""
    hidden, lengths, summary = (
        None if x is None else x[:1].repeat_interleave(n, 0)
        for x in (memory.hidden, memory.layout.lengths, memory.summary)
    )
    assert hidden is not None
    return Encoded(hidden, Layout(lengths=lengths), summary, {}, ())


def _sees(model: Model, prompt: int, n: int) -> list[tuple[int, int] | None]:
    """The positions that each of the n steps after a prompt may attend to in some layer."""
    decoder = model.net.decoder
    if not isinstance(decoder, Tower):
        return [None] * n
    windows = decoder.stack.windows
    slots = torch.arange(prompt - 1, prompt - 1 + n)[None]
    mask = Mask(causal=decoder.config.causal, window=0 if 0 in windows else max(windows), slots=slots)
    may = allowed(mask, n, prompt - 1 + n)
    assert may is not None, "a decoder is causal"
    return [(int(row.int().argmax()), prompt + t) for t, row in enumerate(may[0, 0])]


# ---------------------------------------------------------------------------------------
# The jobs, as the models do them


class _Job(NamedTuple):
    """What is asked of a search, and what becomes of what it finds."""

    how: Decoding
    asked: dict[str, Any]
    answer: Callable[[list[Found]], Any]
    prompt_ids: list[int]
    source: tuple[str, ...] = ()
    stops: bool = False
    prompt: generation.Given | None = None
    side: int | None = None
    image: NDArray[Any] | None = None


def _translating(model: Model, given: Any, **options: Any) -> _Job:
    how, reads = Decoding(**options).validate(), model.source_tokenizer
    if not isinstance(given, str):
        raise InputError(f"text ({type(given).__name__}) must be one text")
    text = translation.one_sentence(model, given)
    if len(text.units) != 1:
        raise InputError(f"text: more than the {model.longest - 1} tokens this model reads at once; give one sentence")
    [unit] = text.units
    if not unit.ids:
        raise InputError(f"text ({given[:40]!r}): has nothing to translate; it is copied, and nothing is searched")

    def answer(found: list[Found]) -> translation.Translation:
        unit.found = found
        return text.translation(how, False)

    asked = translation.asked(model, [unit], translation.encode(model, [unit]), [how])
    return _Job(how, asked, answer, [model.tokenizer.start], tuple(map(reads.token, [*unit.ids, reads.end])))


def _generating(
    model: Model,
    given: Any,
    *,
    max_new_tokens: int = generation.MAX_NEW_TOKENS,
    n: int = 1,
    stop: Sequence[str] | str = (),
    **options: Any,
) -> _Job:
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    how = to_generate(n=n, stop=stop, **options)
    one = generation.Given(model, given, max_new_tokens, stop, how.n_best)

    def answer(found: list[Found]) -> generation.Generation:
        one.found = found
        return one.generation(model)

    asked = generation.asked(model, [one], [how])
    return _Job(how, asked, answer, one.ids, stops=bool(stop), prompt=one)


def _captioning(model: Model, given: Any, **options: Any) -> _Job:
    how, encoder = Decoding(**options).validate(), model.config.encoder
    assert encoder is not None
    assert isinstance(encoder.input, Patches | Grid)
    side, writes = encoder.input.side, model.tokenizer
    [pixels] = pictures.batches(model, [given])
    asked = captions.asked(model, pixels, how)
    cells = tuple(f"row {row + 1}, column {column + 1}" for row in range(side) for column in range(side))
    beside = tuple(f"beside the image, {i + 1}" for i in range(asked["memory"].hidden.shape[1] - len(cells)))
    image = read_pixels(given, PIXELS, 3)

    def answer(found: list[Found]) -> captions.Caption:
        return captions.captioned(model, found[: how.n_best])

    return _Job(how, asked, answer, [writes.start], (*beside, *cells), side=side, image=image)


JOBS: dict[str, Callable[..., _Job]] = {
    "translate": _translating,
    "generate": _generating,
    "caption": _captioning,
}


# ---------------------------------------------------------------------------------------
# Watching


@dataclass
class _Node:
    """A way before a step, and what it could go on with."""

    place: tuple[int, int]  # the step and the way
    parent: _Node | None
    id: int | None  # its last token
    text: str
    decoder: codecs.IncrementalDecoder  # of bytes that are no whole character yet
    total: float
    candidates: list[Candidate] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """The tokens so far."""
        found, node = [], self
        while node.parent is not None:
            found.append(node.id)
            node = node.parent
        return found[::-1]

    def way(self, writes: Tokenizer, looked: Sequence[float] | None) -> Way:
        return Way(
            number=self.place[1],
            parent=None if self.parent is None else self.parent.place[1],
            token="" if self.id is None else writes.token(self.id),
            text=self.text,
            total=self.total,
            candidates=tuple(self.candidates),
            attention=None if looked is None else tuple(looked),
        )


class _Whole(NamedTuple):
    """A sequence that finished: where, with which token, and as which way."""

    node: _Node
    last: Candidate
    way: int

    @property
    def ids(self) -> list[int]:
        """Its tokens, without the end."""
        return [*self.node.ids, *([] if self.last.fate == "ended" else [self.last.id])]


class _Watcher(ABC):
    """Makes nodes of what a search chose from and what it has chosen, step by step. Row 0 of its batch is the one."""

    def __init__(self, model: Model, job: _Job):
        self.writes, self.how = model.tokenizer, job.how
        limits, end = job.asked["limits"], job.asked["end"]
        self.limit = limits if isinstance(limits, int) else limits[0]
        self.ends = {end} if isinstance(end, int) else set(end)
        self.begins = not self.writes.decode(job.prompt_ids)
        whole = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.alive, self.steps = [_Node((0, 0), None, None, "", whole, 0.0)], list[list[_Node]]()
        self.whole: list[_Whole] = []
        self.over = ""  # why the search is

    @abstractmethod
    def look(self, choice: Choice, state: State) -> None:
        """Take in a step."""

    @abstractmethod
    def finished(self, found: Sequence[Found], texts: Sequence[str]) -> Iterator[Finished]:
        """What finished, the best first; the first have been answered with these texts."""

    def _show(
        self,
        node: _Node,
        scores: Tensor,
        logprobs: Tensor,
        totals: Tensor,
        into: Mapping[tuple[int, int], Sequence[int]],
        told: Callable[[int, float], tuple[Fate, str]],
        by: Tensor | None = None,
    ) -> None:
        """The best candidates of a way, and all that became something, by what they are chosen by."""
        own = {id for way, id in into if way == node.place[1]}
        shown = {*scores.topk(min(SHOWN, len(scores))).indices.tolist(), *own}
        for id in sorted(shown, key=lambda id: -float(scores[id])):
            if scores[id] == -torch.inf:
                continue
            total, ways = float(totals[id]), into.get((node.place[1], id), ())
            fate, why = told(id, total)
            one = Candidate(
                id=id,
                token=self.writes.token(id),
                logprob=float(logprobs[id]),
                total=total,
                share=None if by is None else float(by[id]),
                fate=fate,
                into=tuple(ways) if fate == "taken" else (),
                why=why,
            )
            node.candidates.append(one)
            self.whole += [_Whole(node, one, way) for way in ways if fate in ("ended", "cut")]

    def _go_on(self) -> None:
        """The nodes of the next step."""
        nodes = []
        for node in self.alive:
            for one in node.candidates:
                for way in one.into:
                    decoder = copy.copy(node.decoder)
                    first = self.begins and node.parent is None
                    text = node.text + decoder.decode(self.writes.piece(one.id, first=first))
                    nodes.append(_Node((len(self.steps), way), node, one.id, text, decoder, one.total))
        self.alive = sorted(nodes, key=lambda node: node.place)

    def _finished(self, one: _Whole, logprob: float, score: float, text: str | None) -> Finished:
        return Finished(
            text=self.writes.decode(one.ids) if text is None else text,
            logprob=logprob,
            score=score,
            ended=one.last.fate == "ended",
            answer=text is not None,
            step=one.node.place[0],
            way=one.node.place[1],
            id=one.last.id,
        )


class _Beam(_Watcher):
    """Over the best ways: what is among the best of all goes on, or has ended."""

    def __init__(self, model: Model, job: _Job):
        super().__init__(model, job)
        self.totals = torch.zeros(1)  # of the ways, as the search has them
        self.pool: list[Found] = []  # the best that have finished

    def look(self, choice: Choice, state: State) -> None:
        assert isinstance(state, Beams)
        self.steps.append(self.alive)
        k, n = self.how.ways, len(self.steps)
        logprobs = choice.logprobs[0].cpu()
        totals = logprobs + self.totals[: len(logprobs), None]
        ranked = [*zip(choice.parents[0].tolist(), choice.ids[0].tolist(), strict=True)]  # a way and a token each
        into = {ranked[i]: (way,) for way, i in enumerate(choice.taken[0].tolist())}
        least, last = min(float(totals[one]) for one in into), float(totals[ranked[:k][-1]])
        ended = {one: (0,) for one in ranked[:k] if one[1] in self.ends}
        self.pool = [one for one in next(state.finished(torch.tensor([0]))) if one.score > -torch.inf]
        over, settled = bool(state.done[0]), bool(state.settled()[0])
        for node in self.alive:
            w = node.place[1]

            def told(id: int, total: float, node: _Node = node, w: int = w) -> tuple[Fate, str]:
                score = total / self.how.norm(n)
                if (w, id) in ended:
                    beaten = "" if node.ids in (one.ids for one in self.pool) else f"; {k} finished ones score better"
                    return "ended", f"ended, with a score of {score:.2f}{beaten}"
                if (w, id) not in into:
                    is_end, under = id in self.ends, last if id in self.ends else least
                    where = f"its end is not among the {k} best" if is_end else f"beyond the beam of {k}"
                    return "pruned", f"{where}: its {total:.2f} is under {under:.2f}"
                if not over:
                    return "taken", f"among the {k} best that go on"
                if n >= self.limit:
                    return "cut", f"cut off after {n} tokens, with a score of {score:.2f}"
                if settled:
                    there, most = self.pool[self.how.n_best - 1].score, total / self.how.norm(self.limit)
                    return "stopped", f"cannot beat what is finished: at best {most:.2f}, and that has {there:.2f}"
                return "stopped", f"{k} have finished that score at least as much as the best that goes on"

            self._show(node, logprobs[w], logprobs[w], totals[w], ended | into, told)
        if over and n >= self.limit:
            self.over = f"the limit of {n} tokens is reached"
        elif over:
            enough = f"{k} have finished that score at least as much as the best that goes on"
            self.over = "what goes on cannot beat what is finished" if settled else enough
        self.totals = state.total[0].cpu().clone()
        self._go_on()

    def finished(self, found: Sequence[Found], texts: Sequence[str]) -> Iterator[Finished]:
        left = list(self.whole)
        for i, one in enumerate(self.pool):
            whole = next(w for w in left if w.ids == one.ids and (w.last.fate == "ended") == one.ended)
            left.remove(whole)
            text = texts[i] if i < min(len(found), len(texts)) else None
            yield self._finished(whole, one.logprob, one.score, text)
        scores = {id(w): w.last.total / self.how.norm(w.node.place[0] + 1) for w in left}
        for whole in sorted(left, key=lambda w: (w.last.fate != "ended", -scores[id(w)])):
            yield self._finished(whole, whole.last.total, scores[id(whole)], None)


class _Draws(_Watcher):
    """Over ways that are drawn, or the one that is the most likely: none depends on another."""

    def look(self, choice: Choice, state: State) -> None:
        self.steps.append(self.alive)
        how, n = self.how, len(self.steps)
        drawn, ends, by = choice.ids[0].tolist(), state.ends[0].tolist(), None
        scores, logprobs = choice.choices[0].cpu(), choice.logprobs[0].cpu()
        if how.temperature:
            by = shares(scores / how.temperature, how.top_k, how.top_p, how.min_p)
            by = by / by.sum(-1, keepdim=True)
        into: dict[tuple[int, int], list[int]] = {}
        for way in range(how.ways) if n == 1 else [node.place[1] for node in self.alive]:
            into.setdefault((0 if n == 1 else way, drawn[way]), []).append(way)  # first, all go on from the prompt
        limits = {"top_k": how.top_k, "top_p": how.top_p % 1, "min_p": how.min_p}
        limit = " and ".join(f"{name} ({getattr(how, name)})" for name, used in limits.items() if used)
        for node in self.alive:
            w = node.place[1]

            def told(id: int, total: float, w: int = w) -> tuple[Fate, str]:
                share = None if by is None else float(by[w, id])
                if (w, id) not in into:
                    if share is None:
                        return "pruned", "less likely than the one taken"
                    return "pruned", f"not drawn: its share was {share:.1%}" if share else f"left out by {limit}"
                so = "the most likely" if share is None else f"drawn: its share was {share:.1%}"
                if id in self.ends:
                    return "ended", f"{so}; ended"
                if all(ends[way] for way in into[w, id]):
                    return "ended", f"{so}; met a stop string"
                return ("cut", f"{so}; cut off after {n} tokens") if n >= self.limit else ("taken", so)

            totals = logprobs[w] + node.total
            self._show(node, scores[w], logprobs[w], totals, into, told, None if by is None else by[w])
        if bool(state.over()[0]) or all(ends):
            self.over = "all have ended" if all(ends) else f"the limit of {n} tokens is reached"
        self._go_on()

    def finished(self, found: Sequence[Found], texts: Sequence[str]) -> Iterator[Finished]:
        for whole in sorted(self.whole, key=lambda one: one.way):
            one = found[whole.way]
            yield self._finished(whole, one.logprob, one.score, texts[whole.way])
