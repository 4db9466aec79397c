"""Sequences from a model: the most likely ones that a beam finds, or ones that are drawn, over one step function.

A step is ``cache.follow(parents)`` and ``model.decode(ids, cache=cache)``: every row of a batch goes on in several ways
at once, and Transformer and recurrent models alike take it. What is chosen stays on the device; the host looks now and
then which rows are done, takes their results and goes on with the others.

- **Beam search.** The ``beam`` best ways of each row go on. A sequence has ended when its end token is among the
  ``beam`` best continuations; a row is done when as many have ended as the beam is wide. It stops earlier where nothing
  can change any more: a way's logarithm of probability only falls, so what it could still score is known, and
  once ``n_best`` ended ones score at least that, the others need not go on. A beam of 1 is greedy search.
- **Drawing.** The number drawn for a token belongs to (seed, request, way, position): who else is in the batch changes
  nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.config import InputError
from regard.data.batch import uniform
from regard.decode.settings import Decoding
from regard.nn import Transformer
from regard.nn.outputs import Encoded


class Found(NamedTuple):
    """A sequence: its ids without start and end, the logarithm of its probability with the end, and what it was ranked
    by. One that reached its limit has not ended."""

    ids: list[int]
    logprob: float
    score: float
    ended: bool


@torch.inference_mode()
def search(
    model: Transformer,
    prompt: Int[Tensor, "B T"],
    lengths: Int[Tensor, " B"] | None = None,
    *,
    memory: Encoded | None = None,
    end: int,
    limits: Sequence[int] | int,
    how: Decoding = Decoding(),
    never: Sequence[int] = (),
    requests: Sequence[int] | None = None,
) -> list[list[Found]]:
    """For each row the sequences that follow its prompt, the best first.

    ``limits`` are the most tokens of each row, ``never`` ids that are not to be written (padding). ``requests`` number
    the rows for their draws; by default they are counted.

    >>> from regard import presets
    >>> model = Transformer(presets.tiny_encoder_decoder()).eval()
    >>> memory = model.encode(torch.tensor([[5, 6, 7], [8, 9, 10]]))
    >>> found = search(model, torch.tensor([[1], [1]]), memory=memory, end=2, limits=4, how=Decoding(beam=3, n_best=2))
    >>> len(found), len(found[0])
    (2, 2)
    """
    how.validate()
    rows = prompt.shape[0]
    limits = [limits] * rows if isinstance(limits, int) else [int(n) for n in limits]
    if len(limits) != rows or min(limits, default=1) < 1:
        raise InputError(f"limits ({limits}) must be at least 1, for each of {rows} rows")
    begun = prompt.shape[1]
    if memory is not None:
        cache = model.start(memory, max_len=begun + max(limits), lanes=how.ways)
    else:
        cache = model.start(batch_size=rows, max_len=begun + max(limits), lanes=how.ways)
    hidden = model.decode(prompt, cache=cache, layout=lengths).hidden
    if lengths is None:
        last = hidden[:, -1:]
    else:
        last = hidden.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, hidden.shape[2]))
    state = (_Draws if how.temperature or how.ways == 1 else _Beams)(how, limits, end, never, prompt.device, requests)
    for t in range(max(limits)):
        ids, parents = state.step(model.logits(last).float(), t)
        keep = state.leave(t)
        if keep is not None and not len(keep):
            break
        cache.follow(parents)  # before rows leave: these are the parents of all
        if keep is not None:
            cache.keep(keep)
            ids = ids[keep]
        last = model.decode(ids, cache=cache).hidden
    return state.found


class _State:
    """What is chosen so far, of the rows that are not done. The first axis of every tensor is the row."""

    def __init__(self, how: Decoding, limits, end, never, device, requests):
        self.how, self.end, self.never = how, end, list(never)
        self.limits = np.asarray(limits)
        self.rows = np.arange(len(limits))  # which of all rows these are
        self.found: list[list[Found]] = [[] for _ in limits]
        self.requests = self.rows if requests is None else np.asarray(requests)
        shape = (len(limits), how.ways, int(self.limits.max(initial=1)))
        self.tensors = {
            "tokens": torch.full(shape, end, device=device),
            "total": torch.zeros(shape[:2], dtype=torch.float32, device=device),
            "done": torch.zeros(shape[0], dtype=torch.bool, device=device),
            "limit": torch.tensor(limits, device=device),
        }

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.__dict__["tensors"][name]
        except KeyError:
            raise AttributeError(name) from None

    def step(self, logits: Float[Tensor, "B N V"], t: int) -> tuple[Int[Tensor, "B N"], Int[Tensor, "B N"]]:
        """Choose token t of every way; and which way each goes on from."""
        raise NotImplementedError

    def allowed(self, logprobs: Float[Tensor, "B N V"], t: int) -> Float[Tensor, "B N V"]:
        """The same without what may not be written. Takes them over."""
        if self.never:
            logprobs[..., self.never] = -torch.inf
        if t + 1 < self.how.min_length:
            logprobs[..., self.end] = -torch.inf
        return logprobs

    def leave(self, t: int) -> Tensor | None:
        """Take the results of rows that are done, if it is worth it; the places of the others, or None for all."""
        last = t + 1 >= self.limits.max()
        if not last and self.done.is_cuda and (t + 1) % LOOK_EVERY:
            return None
        done = self.done.cpu().numpy() | (t + 1 >= self.limits)
        if not last and not done.all() and done.mean() < LEAVE_SHARE:
            return None
        self._collect(np.flatnonzero(done))
        stay = np.flatnonzero(~done)
        self.rows, self.limits = self.rows[stay], self.limits[stay]
        keep = torch.from_numpy(stay).to(self.done.device)
        self.tensors = {name: value[keep] for name, value in self.tensors.items()}
        return keep

    def _collect(self, which: np.ndarray) -> None:
        """Results of some rows, to the host."""
        raise NotImplementedError


LOOK_EVERY = 8  # steps; each look waits for the device
LEAVE_SHARE = 0.25  # of the rows must be done for the others to move together


class _Beams(_State):
    """The best ways, and the best that have ended: ``pool``, by what they are ranked by."""

    def __init__(self, how: Decoding, limits, end, never, device, requests):
        super().__init__(how, limits, end, never, device, requests)
        b, k, n = self.tokens.shape
        rank = torch.full((b, k), -torch.inf, dtype=torch.float64, device=device)
        self.tensors |= {
            "pool_rank": rank,
            "pool_total": torch.zeros((b, k), dtype=torch.float32, device=device),
            "pool_size": torch.zeros((b, k), dtype=torch.long, device=device),
            "pool_tokens": torch.zeros((b, k, n), dtype=torch.long, device=device),
            "ended": torch.zeros(b, dtype=torch.long, device=device),
            # The norm at a row's limit: the most a score can be raised by going on.
            "furthest": self.how.norm(self.limit.double()),
        }
        self.order = torch.arange(2 * k, device=device)

    def step(self, logits, t):
        k = self.how.ways
        logprobs = self.allowed(logits.log_softmax(-1), t)
        best, ids = logprobs.topk(min(2 * k, logprobs.shape[-1]))  # (B, N, 2K): none but these can be among the 2K best
        totals = best if t == 0 else best + self.total[..., None]
        totals, at = totals.flatten(1).topk(min(2 * k, totals[0].numel()))
        ids, parents = ids.flatten(1).gather(1, at), at // best.shape[-1]
        ends = ids == self.end
        self._end(totals[:, :k], parents[:, :k], ends[:, :k], t)
        # The best that go on: at most as many end as there are ways.
        order = (self.order[: ids.shape[1]] + 2 * k * ends).topk(k, largest=False).indices
        ids, parents = ids.gather(1, order), parents.gather(1, order)
        tensors = self.tensors
        tensors["total"] = totals.gather(1, order)
        tensors["tokens"] = _taken(self.tokens, parents)
        tensors["tokens"][:, :, t] = ids
        tensors["done"] = self.done | (self.ended >= k) | self._settled()
        if (t + 1 >= self.limits).any():
            over = (t + 1 >= self.limit) & ~self.done
            # What has not ended is behind everything that has.
            rank = self.total.double() / self.how.norm(t + 1) - _NOT_ENDED
            self._pool(torch.where(over[:, None], rank, -torch.inf), self.total, t + 1, self.tokens)
            tensors["done"] = self.done | over
        return ids, parents

    def _settled(self) -> Tensor:
        """Rows whose answer cannot change: the best way would have to lose no more probability until its limit."""
        most = self.total[:, 0].double() / self.furthest
        return self.pool_rank[:, self.how.n_best - 1] >= most

    def _end(self, totals: Tensor, parents: Tensor, ends: Tensor, t: int) -> None:
        """Take what has ended at this step into the pool."""
        ends = ends & ~self.done[:, None]
        if not ends.is_cuda and not bool(ends.any()):
            return
        self.tensors["ended"] = self.ended + ends.sum(1)
        rank = totals.double() / self.how.norm(t + 1)
        self._pool(torch.where(ends, rank, -torch.inf), totals, t, _taken(self.tokens, parents))

    def _pool(self, rank: Tensor, total: Tensor, size: int, tokens: Tensor) -> None:
        new = {"rank": rank, "total": total, "size": torch.full_like(self.pool_size, size), "tokens": tokens}
        both = {name: torch.cat([self.tensors[f"pool_{name}"], value], dim=1) for name, value in new.items()}
        best = both["rank"].topk(self.how.ways).indices
        for name, value in both.items():
            self.tensors[f"pool_{name}"] = _taken(value, best) if value.dim() == 3 else value.gather(1, best)

    def _collect(self, which):
        if not len(which):
            return
        at = torch.from_numpy(which).to(self.done.device)
        rank, total, size, tokens = (
            self.tensors[f"pool_{name}"][at, : self.how.n_best].cpu().numpy()
            for name in ("rank", "total", "size", "tokens")
        )
        for i, row in enumerate(self.rows[which]):
            for n in range(rank.shape[1]):
                ended = bool(rank[i, n] > -_NOT_ENDED / 2)
                score = float(rank[i, n] if ended else rank[i, n] + _NOT_ENDED)
                self.found[row].append(Found(tokens[i, n, : size[i, n]].tolist(), float(total[i, n]), score, ended))


_NOT_ENDED = 1e6


def _taken(tokens: Int[Tensor, "B N T"], ways: Int[Tensor, "B M"]) -> Int[Tensor, "B M T"]:
    return tokens.gather(1, ways[..., None].expand(-1, -1, tokens.shape[2]))


class _Draws(_State):
    """Ways that are drawn independently of each other; at temperature 0 the only one is the most likely token."""

    def __init__(self, how: Decoding, limits, end, never, device, requests):
        super().__init__(how, limits, end, never, device, requests)
        b, k, n = self.tokens.shape
        self.tensors |= {
            "size": torch.zeros((b, k), dtype=torch.long, device=device),
            "ends": torch.zeros((b, k), dtype=torch.bool, device=device),
            "parents": torch.arange(k, device=device).expand(b, k),
        }
        if how.temperature:
            lots = uniform(how.seed, self.requests[:, None, None], np.arange(k)[None, :, None], np.arange(n))
            self.tensors["lots"] = torch.from_numpy(lots).to(device)

    def step(self, logits, t):
        logprobs = logits.log_softmax(-1).expand(-1, self.how.ways, -1)
        choices = self.allowed(logprobs.clone() if self.never or self.how.min_length else logprobs, t)
        if self.how.temperature:
            ids = drawn(choices / self.how.temperature, self.lots[:, :, t], self.how.top_k, self.how.top_p)
        else:
            ids = choices.argmax(-1)
        ids = torch.where(self.ends, self.end, ids)
        gain = logprobs.gather(2, ids[..., None])[..., 0]
        still = ~self.ends & (t < self.limit)[:, None]
        tensors = self.tensors
        tensors["total"] = self.total + torch.where(still, gain, 0)
        tensors["ends"] = self.ends | (still & (ids == self.end))
        tensors["size"] = self.size + (still & ~self.ends)
        tensors["done"] = self.ends.all(1) | (t + 1 >= self.limit)
        tensors["tokens"][:, :, t] = ids
        return ids, self.parents

    def _collect(self, which):
        at = torch.from_numpy(which).to(self.done.device)
        total, size, ends, tokens = (self.tensors[name][at].cpu() for name in ("total", "size", "ends", "tokens"))
        scores = total.double() / self.how.norm((size + ends).double())
        for i, row in enumerate(self.rows[which]):
            found = [
                Found(tokens[i, n, : size[i, n]].tolist(), float(total[i, n]), float(scores[i, n]), bool(ends[i, n]))
                for n in range(total.shape[1])
            ]
            self.found[row] = found


def drawn(
    scores: Float[Tensor, "... V"], lots: Float[Tensor, "..."], top_k: int = 0, top_p: float = 1.0
) -> Int[Tensor, "..."]:
    """A token for each lot from 0 up to 1: where it falls when the probabilities are laid end to end.

    >>> drawn(torch.tensor([[0.7, 0.2, 0.1]] * 3).log(), torch.tensor([0.1, 0.75, 0.95]))
    tensor([0, 1, 2])
    """
    if 0 < top_k < scores.shape[-1]:
        scores = scores.masked_fill(scores < scores.topk(top_k).values[..., -1:], -torch.inf)
    shares = scores.double().softmax(-1)
    if top_p < 1:
        ordered = shares.sort(descending=True).values
        # The last share that is needed: what is before it is not enough yet.
        needed = (ordered.cumsum(-1) - ordered < top_p).sum(-1, keepdim=True)
        shares = shares.masked_fill(shares < ordered.gather(-1, needed - 1), 0)
    upto = shares.cumsum(-1)
    wanted = lots.double()[..., None] * upto[..., -1:]
    # The first that reaches beyond the lot: one without a share never does.
    return (upto <= wanted).sum(-1).clamp_max(scores.shape[-1] - 1)
