"""How rows go on: by a beam's best ways (:class:`Beams`), or by one way or several that are drawn or greedy
(:class:`Draws`). A state holds what is chosen so far, and chooses the next token from a model's scores;
:class:`regard.decode.search.Search` moves it on.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batch import uniform
from regard.decode.settings import Decoding
from regard.nn.cache import put_rows


class Found(NamedTuple):
    """A sequence: its ids without start and end, the logarithm of its probability with the end, and what it was ranked
    by. One that reached its limit has not ended. Drawn or greedy, it also has the logarithm for each of its tokens."""

    ids: list[int]
    logprob: float
    score: float
    ended: bool
    logprobs: tuple[float, ...] = ()


class Choice(NamedTuple):
    """What a step chose from, and what it took: tensors that nobody else changes. A beam looks at more continuations
    than it takes, the best first; of draws they are those that were drawn, one for each way."""

    logprobs: Float[Tensor, "B N V"]  # of each way there was; of what may not be written, none
    choices: Float[Tensor, "B N V"]  # the same, or made less likely where it was used before
    ids: Int[Tensor, "B M"]  # the continuations that were looked at
    parents: Int[Tensor, "B M"]  # the way that each goes on from
    taken: Int[Tensor, "B K"]  # which of those go on, way by way


IDLE = -1  # the number of a place without a row


def placed(mine: NDArray, theirs: NDArray, which: NDArray, places: NDArray, rows: int, idle: int = 0) -> NDArray:
    """Some of their rows at places of mine, on the host."""
    out = np.append(mine, np.full(rows - len(mine), idle))
    out[places] = theirs[which]
    return out


class State(ABC):
    """What is chosen so far, of the rows that are not done. The first axis of every tensor in ``of_rows`` is the row.

    A step asks nothing of the host, the number of the step included, and changes tensors in place: it can be recorded
    and replayed. It launches little: beside a model's own kernels on one row, each launch is felt.
    """

    watch: Callable[[Choice], None] | None = None
    kernels: Any = None  # regard.decode.kernels, where a GPU chooses by those

    def __init__(self, how: Decoding, limits, room: int, end: Sequence[int], never, device, requests, seeds):
        self.how, self.end, self.never = how, list(end), list(never)
        self.ending = torch.tensor(self.end, device=device)
        self.forbidden = torch.tensor(self.never, dtype=torch.long, device=device)
        self.rows, self.limits = np.arange(len(limits)), np.asarray(limits)  # which of all rows these are
        self.written = np.zeros(len(limits), np.int64)  # tokens of each row; the host counts for itself
        self.count = len(limits)  # of all rows there ever were
        self.found: list[list[Found]] = [[] for _ in limits]
        b, k = len(limits), how.ways
        self.of_rows = {
            "t": torch.zeros(b, dtype=torch.long, device=device),
            "tokens": torch.full((b, k, room), self.end[0], device=device),
            "limit": torch.tensor(limits, device=device),
        }
        self._measure(room)

    def _measure(self, room: int) -> None:
        """What depends on the number of tokens written, up to the most there can be."""
        counted, how = torch.arange(room + 1, dtype=torch.float64, device=self.t.device), self.how
        self.norms = how.norm(counted)
        self.barrier = torch.where(counted + 1 < how.min_length, -torch.inf, 0).float() if how.min_length > 1 else None

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.__dict__["of_rows"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def settings(self) -> tuple[Any, ...]:
        """What a step depends on beside tensors."""
        return type(self), self.how.replace(seed=0, max_length=None), *self.end, -1, *self.never

    def copy(self) -> State:
        """Another holder of the same tensors."""
        other = copy.copy(self)
        other.of_rows = dict(self.of_rows)
        return other

    def move_out(self) -> None:
        """Go on with tensors of its own."""
        self.of_rows = {name: value.clone() for name, value in self.of_rows.items()}

    def put(self, **values: Tensor) -> None:
        for name, value in values.items():
            self.of_rows[name].copy_(value)

    def step(self, logits: Float[Tensor, "B N V"]) -> tuple[Int[Tensor, "B M"], Int[Tensor, "B M"]]:
        """Choose the next token of every way; and which way each goes on from. Takes the logits over."""
        chosen = self._choose(logits)
        self.t.add_(1)
        return chosen

    def _best(self, logits: Float[Tensor, "B N V"], k: int) -> tuple[Float[Tensor, "B N K"], Int[Tensor, "B N K"]]:
        """The k best log-probabilities of each way and their ids, by kernels."""
        rules = {"never": self.forbidden, "ends": self.ending, "barrier": self.barrier, "t": self.t}
        return self.kernels.best(logits, k, **rules)

    @abstractmethod
    def _choose(self, logits: Float[Tensor, "B N V"]) -> tuple[Int[Tensor, "B M"], Int[Tensor, "B M"]]:
        """The same, within a step."""

    def _allowed(self, scores: Float[Tensor, "B N V"]) -> Float[Tensor, "B N V"]:
        """Scores without those of what may not be written. Takes them over."""
        if self.never:
            scores.index_fill_(-1, self.forbidden, -torch.inf)
        if self.barrier is not None:
            for id in self.end:
                scores[..., id].add_(self.barrier[self.t][:, None])
        return scores

    def _ends(self, ids: Int[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        return ids == self.end[0] if len(self.end) == 1 else (ids[..., None] == self.ending).any(-1)

    def _write(self, ids: Int[Tensor, "B N"]) -> None:
        self.tokens.scatter_(2, self._here, ids[..., None])

    @property
    def _here(self) -> Int[Tensor, "B K 1"]:
        """Where each way of a row writes now."""
        return self.t[:, None, None].expand(-1, self.how.ways, 1)

    @abstractmethod
    def over(self) -> Bool[Tensor, " B"]:
        """Which rows are done."""

    @abstractmethod
    def end_rows(self, places: Int[Tensor, " N"]) -> None:
        """Rows at some places are done, whatever they have written."""

    def keep(self, places: NDArray) -> Tensor:
        """Go on with the rows at some places only; returns them for the device."""
        self.rows, self.limits, self.written = self.rows[places], self.limits[places], self.written[places]
        keep = torch.from_numpy(places).to(self.t.device)
        self.of_rows = {name: value[keep] for name, value in self.of_rows.items()}
        return keep

    def join(self, other: State, which: Int[Tensor, " N"], places: Int[Tensor, " N"], rows: int) -> list[int]:
        """Put some rows of another state at places of this one, which has so many then; returns their numbers here."""
        new, at = which.cpu().numpy(), places.cpu().numpy()
        numbers = self.count + np.arange(len(other.rows))
        self.count += len(numbers)
        self.rows = placed(self.rows, numbers, new, at, rows, IDLE)
        self.limits = placed(self.limits, other.limits, new, at, rows)
        self.written = placed(self.written, other.written, new, at, rows)
        was, n = self.tokens.shape[2], len(self.of_rows["limit"])
        for name, held in self.of_rows.items():
            self.of_rows[name] = put_rows(held, other.of_rows[name], which, places, rows)
        if self.tokens.shape[2] > was:
            self._measure(self.tokens.shape[2])
        if rows > n:  # places that nobody has taken yet
            self.end_rows(torch.arange(n, rows, device=self.t.device)[at.max(initial=n - 1) + 1 - n :])
        return numbers[new].tolist()

    def results(self, places: NDArray) -> Iterator[list[Found]]:
        """What was found for the rows at some places."""
        return self._results(torch.from_numpy(places))

    @abstractmethod
    def _results(self, which: Int[Tensor, " N"]) -> Iterator[list[Found]]:
        """What was found for some rows."""

    def _taken(self, which: Tensor, *names: str) -> list[Tensor]:
        """Some rows of tensors, on the host."""
        at = which.to(self.t.device)
        return [self.of_rows[name][at].cpu() for name in names]


class Beams(State):
    """The best ways, and the best that have ended: ``pool_...``, by what they are ranked by."""

    def __init__(self, how: Decoding, limits, room: int, end, never, device, requests, seeds):
        super().__init__(how, limits, room, end, never, device, requests, seeds)
        b, k, n = self.tokens.shape
        self.of_rows |= {
            "total": torch.zeros((b, k), device=device),
            "done": torch.zeros(b, dtype=torch.bool, device=device),
            "pool_rank": torch.full((b, k), -torch.inf, dtype=torch.float64, device=device),
            "pool_total": torch.zeros((b, k), device=device),
            "pool_size": torch.zeros((b, k), dtype=torch.long, device=device),
            "pool_tokens": torch.zeros((b, k, n), dtype=torch.long, device=device),
        }
        # So many are looked at that K go on: of each way, each end may be among them.
        self.order = torch.arange((1 + len(self.end)) * k, device=device)

    def _choose(self, logits):
        k, wide = self.how.ways, len(self.order)
        if self.kernels is not None and self.watch is None and wide <= logits.shape[-1]:
            return self.kernels.go_on(self, *self._best(logits, wide))
        logprobs = self._allowed(torch.log_softmax(logits, -1, out=logits))
        totals, at = largest(logprobs, self.total[:, : logits.shape[1]], min(wide, logprobs[0].numel()))
        ids, parents = at % logprobs.shape[-1], at // logprobs.shape[-1]
        ends = self._ends(ids)
        order = (self.order[: ids.shape[1]] + wide * ends).topk(k, largest=False).indices  # the best that go on
        if self.watch is not None:
            self.watch(Choice(logprobs, logprobs, ids, parents, order))
        was, ended = self.tokens.clone(), (totals[:, :k], parents[:, :k], ends[:, :k] & ~self.done[:, None])
        ids, parents = ids.gather(1, order), parents.gather(1, order)
        self.put(total=totals.gather(1, order), tokens=_of_ways(was, parents))
        self._write(ids)
        over = (self.t + 1 >= self.limit) & ~self.done
        norm = self.norms[self.t + 1]
        self._pool(*ended, over, was, norm[:, None])
        all_ended = self.pool_rank[:, -1] >= self.total[:, 0].double() / norm
        self.put(done=self.done | over | all_ended | self.settled())
        return ids, parents

    def over(self):
        return self.done

    def end_rows(self, places):
        self.done[places] = True

    def settled(self) -> Tensor:
        """Rows whose answer cannot change: the best way would have to lose no more probability until its limit."""
        most = self.total[:, 0].double() / self.norms[self.limit]
        return self.pool_rank[:, self.how.n_best - 1] >= most

    def _pool(self, totals: Tensor, parents: Tensor, ends: Tensor, over: Tensor, was: Tensor, norm: Tensor) -> None:
        """Take in what has ended at this step and, of rows at their limit, what has not: behind all that has."""
        if not ends.is_cuda and not bool(ends.any()) and not bool(over.any()):
            return
        ended = torch.where(ends, totals.double() / norm, -torch.inf)
        cut_off = torch.where(over[:, None], self.total.double() / norm - _NOT_ENDED, -torch.inf)
        size = self.t[:, None].expand_as(self.pool_size)
        all_of = {
            "rank": [ended, cut_off],
            "total": [totals, self.total],
            "size": [size, size + 1],
            "tokens": [_of_ways(was, parents), self.tokens],
        }
        together = {name: torch.cat([self.of_rows[f"pool_{name}"], *new], dim=1) for name, new in all_of.items()}
        best = together["rank"].topk(self.how.ways).indices
        for name, value in together.items():
            self.put(**{f"pool_{name}": _of_ways(value, best) if value.dim() == 3 else value.gather(1, best)})

    def _results(self, which):
        return (found[: self.how.n_best] for found in self.finished(which))

    def finished(self, which: Int[Tensor, " N"]) -> Iterator[list[Found]]:
        """The best that have finished by now, of some rows."""
        ranks, totals, sizes, tokens = self._taken(which, "pool_rank", "pool_total", "pool_size", "pool_tokens")
        for row in zip(ranks.tolist(), totals.tolist(), sizes.tolist(), tokens.tolist(), strict=True):
            yield [
                Found(ids[:size], total, rank if ended else rank + _NOT_ENDED, ended)
                for rank, total, size, ids in zip(*row, strict=True)
                for ended in [rank > -_NOT_ENDED / 2]
            ]


_NOT_ENDED = 1e6
BLOCK = 64  # numbers


def largest(
    scores: Float[Tensor, "B N V"], more: Float[Tensor, "B N"], k: int
) -> tuple[Float[Tensor, "B K"], Int[Tensor, "B K"]]:
    """``(scores + more[..., None]).flatten(1).topk(k)``, in a fifth of the time: the k largest are in the k blocks with
    the largest maxima.

    >>> largest(torch.arange(998.0).view(1, 2, 499), torch.tensor([[0.0, 1000.0]]), 2)
    (tensor([[1997., 1996.]]), tensor([[997, 996]]))
    """
    b, ways, v = scores.shape
    n = v // BLOCK
    if ways * n <= k:
        values, at = (scores + more[..., None]).flatten(1).topk(k)
        return values, at
    blocks = scores[..., : n * BLOCK].unflatten(-1, (n, BLOCK))
    best = (blocks.amax(-1) + more[..., None]).flatten(1).topk(k).indices  # (B, K)
    way, block = best // n, best % n
    rows = torch.arange(b, device=scores.device)[:, None]
    values = blocks[rows, way, block] + more.gather(1, way)[..., None]  # (B, K, BLOCK)
    places = (way * v + block * BLOCK)[..., None] + torch.arange(BLOCK, device=scores.device)
    values, places = values.flatten(1), places.flatten(1)
    if rest := v - n * BLOCK:
        last = scores[..., -rest:] + more[..., None]
        at = torch.arange(ways * v, device=scores.device).view(ways, v)[:, -rest:]
        values, places = torch.cat([values, last.flatten(1)], 1), torch.cat([places, at.flatten().expand(b, -1)], 1)
    values, at = values.topk(k)
    return values, places.gather(1, at)


def _of_ways(tokens: Int[Tensor, "B N T"], ways: Int[Tensor, "B M"]) -> Int[Tensor, "B M T"]:
    return tokens.gather(1, ways[..., None].expand(-1, -1, tokens.shape[2]))


class Draws(State):
    """Ways that are drawn independently of each other; at temperature 0 the only one is the most likely token."""

    def __init__(self, how: Decoding, limits, room: int, end, never, device, requests, seeds):
        super().__init__(how, limits, room, end, never, device, requests, seeds)
        b, k, n = self.tokens.shape
        self.of_rows |= {
            "size": torch.zeros((b, k), dtype=torch.long, device=device),
            "ends": torch.zeros((b, k), dtype=torch.bool, device=device),
            "gains": torch.zeros((b, k, n), device=device),
            "parents": torch.arange(k, device=device).repeat(b, 1),
        }
        if how.temperature:
            numbers = np.arange(b) if requests is None else np.asarray(requests)
            own = how.seed if seeds is None else np.asarray(seeds, np.uint64)[:, None, None]
            lots = uniform(own, numbers[:, None, None], np.arange(k)[None, :, None], np.arange(n))
            self.of_rows["lots"] = torch.from_numpy(lots).to(device)

    def _choose(self, logits):
        how = self.how
        greedy = how.ways == 1 and not how.temperature and how.repetition_penalty == 1
        if self.kernels is not None and self.watch is None and greedy:
            return self.kernels.take_best(self, *self._best(logits, 1)), self.parents
        logprobs = logits.log_softmax(-1)
        # What may not be written has no probability from here on; that of what is chosen stays.
        choices = self._allowed(logprobs if how.repetition_penalty == 1 else self._penalised(logits))
        logprobs, choices = logprobs.expand(-1, how.ways, -1), choices.expand(-1, how.ways, -1)
        if how.temperature:
            lots = self.lots.gather(2, self._here)[..., 0]
            ids = drawn(choices / how.temperature, lots, how.top_k, how.top_p, how.min_p)
        else:
            ids = choices.argmax(-1)
        if self.watch is not None:
            self.watch(Choice(logprobs, choices, ids, self.parents, self.parents))
        goes_on = (self.t < self.limit)[:, None] > self.ends  # and has not ended
        gain = torch.where(goes_on[..., None], logprobs.gather(2, ids[..., None]), 0)
        ids = torch.where(goes_on, ids, self.end[0])
        ending = goes_on & self._ends(ids)
        self.ends.logical_or_(ending)
        self.size.add_(goes_on > ending)
        self._write(ids)
        self.gains.scatter_(2, self._here, gain)
        if how.repetition_penalty != 1:
            self.used.scatter_(2, ids[..., None], True)
        return ids, self.parents

    def over(self):
        return self.ends.all(1) | (self.t >= self.limit)

    def end_rows(self, places):
        self.ends[places] = True

    def _penalised(self, logits: Float[Tensor, "B N V"]) -> Float[Tensor, "B K V"]:
        less = torch.where(logits > 0, logits / self.how.repetition_penalty, logits * self.how.repetition_penalty)
        return torch.where(self.used, less, logits)

    def _results(self, which):
        tokens, gains, *rest = self._taken(which, "tokens", "gains", "size", "ends", "limit")
        norms = self.norms.tolist()
        for *row, limit in zip(tokens.tolist(), gains.tolist(), *(x.tolist() for x in rest), strict=True):
            found = []
            for ids, gain, size, ended in zip(*row, strict=True):
                written = min(size + ended, limit)  # with the end; but a stop string may end a row at its last token
                total = math.fsum(gain[:written])
                each = tuple(gain[:size])
                found.append(Found(ids[:size], total, total / norms[written], ended, each))
            yield found


def used(prompt: Int[Tensor, "B T"], lengths: Int[Tensor, " B"] | None, ways: int, v: int) -> Bool[Tensor, "B K V"]:
    """Which tokens stand in a prompt, for each of its ways."""
    if lengths is not None:  # padding is not there: the first token stands for it
        places = torch.arange(prompt.shape[1], device=prompt.device)
        prompt = torch.where(places < lengths[:, None], prompt, prompt[:, :1])
    used = torch.zeros(prompt.shape[0], v, dtype=torch.bool, device=prompt.device).scatter_(1, prompt, True)
    return used[:, None].repeat(1, ways, 1)


def drawn(
    scores: Float[Tensor, "... V"],
    lots: Float[Tensor, "..."],
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Int[Tensor, "..."]:
    """A token for each lot from 0 up to 1: where it falls when the probabilities are laid end to end.

    >>> drawn(torch.tensor([[0.7, 0.2, 0.1]] * 3).log(), torch.tensor([0.1, 0.75, 0.95]))
    tensor([0, 1, 2])
    """
    upto = shares(scores, top_k, top_p, min_p).cumsum(-1)
    wanted = lots.double()[..., None] * upto[..., -1:]
    # The first that reaches beyond the lot: one without a share never does.
    return (upto <= wanted).sum(-1).clamp_max(scores.shape[-1] - 1)


def shares(
    scores: Float[Tensor, "... V"], top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Float[Tensor, "... V"]:
    """What tokens are drawn by: their probabilities, of those that may be drawn. They need not sum to 1.

    >>> shares(torch.tensor([0.5, 0.3, 0.2]).log(), top_p=0.7)
    tensor([0.5000, 0.3000, 0.0000], dtype=torch.float64)
    """
    if 0 < top_k < scores.shape[-1]:
        scores = scores.masked_fill(scores < scores.topk(top_k).values[..., -1:], -torch.inf)
    found = scores.double().softmax(-1)
    if top_p < 1:
        ordered = found.sort(descending=True).values
        # The last share that is needed: what is before it is not enough yet.
        needed = (ordered.cumsum(-1) - ordered < top_p).sum(-1, keepdim=True)
        found = found.masked_fill(found < ordered.gather(-1, needed - 1), 0)
    if min_p:
        found = found.masked_fill(found < min_p * found.amax(-1, keepdim=True), 0)
    return found
