"""Choosing on a GPU: the best of a vocabulary, and what follows from them for a search, each by a kernel or two where
torch launches dozens. They do what :mod:`regard.decode.ways` does, to the letter; tests hold them to it.

This module needs triton, and is imported by recorded steps alone.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from regard.decode.ways import Beams, Draws

BLOCK = 64  # scores, of which the largest is noted
BLOCKS = 64  # that a program looks through


def best(
    scores: Tensor, k: int, *, never: Tensor, ends: Tensor, barrier: Tensor | None, t: Tensor
) -> tuple[Tensor, Tensor]:
    """The k best log-probabilities of each way, of scores (B, N, V) in float32, and their ids: not those that are never
    to be written, nor an end before there may be one. The k largest are in the k blocks with the largest maxima."""
    b, ways, v = scores.shape
    rows, blocks = b * ways, triton.cdiv(v, BLOCK)
    parts = triton.cdiv(blocks, BLOCKS)
    maxima = scores.new_empty(rows, blocks)
    sums = scores.new_empty(rows, parts, 2)
    values, ids = scores.new_empty(b, ways, k), torch.empty(b, ways, k, device=scores.device, dtype=torch.long)
    rules = never, ends, barrier, t
    what = {"NEVER": len(never), "ENDS": len(ends), "BARRIER": barrier is not None, "WAYS": ways, "BLOCK": BLOCK}
    _maxima[(rows, parts)](scores, maxima, sums, *rules, v, blocks, **what, BLOCKS=BLOCKS, num_warps=4)
    _best[(rows,)](
        scores, maxima, sums, values, ids, *rules, v, blocks, parts, **what, K=k, ALL=triton.next_power_of_2(blocks),
        WIDE=max(2, triton.next_power_of_2(k)), PARTS=triton.next_power_of_2(parts), num_warps=4,
    )  # fmt: skip
    return values, ids


@triton.jit
def _allowed(
    scores, id, never, ends, barrier, t, row,
    NEVER: tl.constexpr, ENDS: tl.constexpr, BARRIER: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    for i in tl.static_range(NEVER):
        scores = tl.where(id == tl.load(never + i), float("-inf"), scores)
    if BARRIER:
        hold = tl.load(barrier + tl.load(t + row // WAYS))
        for i in tl.static_range(ENDS):
            scores = tl.where(id == tl.load(ends + i), scores + hold, scores)
    return scores


@triton.jit
def _maxima(
    scores, maxima, sums, never, ends, barrier, t, v, blocks,
    NEVER: tl.constexpr, ENDS: tl.constexpr, BARRIER: tl.constexpr, WAYS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The largest score of each block, and what a part adds to the sum of exponentials."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    block = part * BLOCKS + tl.arange(0, BLOCKS)
    id = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    some = tl.load(scores + row * v + id, mask=id < v, other=float("-inf"))
    largest = tl.max(some)
    finite = tl.where(largest == float("-inf"), 0.0, largest)
    tl.store(sums + (row * tl.num_programs(1) + part) * 2, largest)
    tl.store(sums + (row * tl.num_programs(1) + part) * 2 + 1, tl.sum(tl.exp(some - finite)))
    some = _allowed(some, id, never, ends, barrier, t, row, NEVER, ENDS, BARRIER, WAYS)
    tl.store(maxima + row * blocks + block, tl.max(some, 1), mask=block < blocks)


@triton.jit
def _best(
    scores, maxima, sums, values, ids, never, ends, barrier, t, v, blocks, parts,
    NEVER: tl.constexpr, ENDS: tl.constexpr, BARRIER: tl.constexpr, WAYS: tl.constexpr, BLOCK: tl.constexpr,
    K: tl.constexpr, WIDE: tl.constexpr, ALL: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part, block, which = tl.arange(0, PARTS), tl.arange(0, ALL), tl.arange(0, WIDE)
    largest = tl.load(sums + (row * parts + part) * 2, mask=part < parts, other=float("-inf"))
    total = tl.load(sums + (row * parts + part) * 2 + 1, mask=part < parts, other=0.0)
    most = tl.max(largest, 0)
    norm = most + tl.log(tl.sum(total * tl.exp(largest - most), 0))
    heads = tl.load(maxima + row * blocks + block, mask=block < blocks, other=float("-inf"))
    chosen = tl.full((WIDE,), ALL, tl.int32)  # none
    for i in tl.static_range(K):
        at = tl.where(tl.max(heads, 0) == float("-inf"), ALL, tl.argmax(heads, 0))  # no block twice
        chosen = tl.where(which == i, at, chosen)
        heads = tl.where(block == at, float("-inf"), heads)
    id = chosen[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    some = tl.load(scores + row * v + id, mask=id < v, other=float("-inf"))
    some = _allowed(some, id, never, ends, barrier, t, row, NEVER, ENDS, BARRIER, WAYS)
    some, id = tl.reshape(some, (WIDE * BLOCK,)), tl.reshape(id, (WIDE * BLOCK,))
    place = tl.arange(0, WIDE * BLOCK)
    for i in tl.static_range(K):
        at = tl.argmax(some, 0)
        tl.store(values + row * K + i, tl.max(some, 0) - norm)
        tl.store(ids + row * K + i, tl.sum(tl.where(place == at, id, 0), 0).to(tl.int64))
        some = tl.where(place == at, float("-inf"), some)


# ---------------------------------------------------------------------------------------
# Greedy search


def take_best(state: Draws, values: Tensor, ids: Tensor) -> Tensor:
    """Write down the best token of every row, or that it has ended: the ids that go on."""
    (b, _, n), chosen = state.tokens.shape, torch.empty_like(state.tokens[:, :, 0])
    _take_best[(triton.cdiv(b, 64),)](
        values, ids, state.t, state.limit, state.ends, state.size, state.tokens, state.gains, state.ending, chosen,
        b, n, ENDS=len(state.end), ROWS=64, num_warps=2,
    )  # fmt: skip
    return chosen


@triton.jit
def _take_best(
    values, ids, t, limit, ends, size, tokens, gains, ending, chosen, b, n, ENDS: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < b
    at, has_ended = tl.load(t + row, mask=there, other=0), tl.load(ends + row, mask=there, other=1) != 0
    goes_on = (at < tl.load(limit + row, mask=there, other=0)) & (has_ended == 0)
    id = tl.where(goes_on, tl.load(ids + row, mask=there, other=0), tl.load(ending))
    ends_now = id != id
    for i in tl.static_range(ENDS):
        ends_now |= id == tl.load(ending + i)
    ends_now &= goes_on
    tl.store(ends + row, has_ended | ends_now, mask=there)
    held = tl.load(size + row, mask=there, other=0)
    tl.store(size + row, held + (goes_on & (ends_now == 0)).to(tl.int64), mask=there)
    inside = there & (at < n)
    tl.store(tokens + row * n + at, id, mask=inside)
    gain = tl.where(goes_on, tl.load(values + row, mask=there, other=0.0), 0.0)
    tl.store(gains + row * n + at, gain, mask=inside)
    tl.store(chosen + row, id, mask=there)


# ---------------------------------------------------------------------------------------
# Beam search


def go_on(state: Beams, values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """A beam's next ways from the best of each: the ids and the ways that they come from. What has ended is pooled."""
    (b, ways, n), wide = state.tokens.shape, values.shape[2]
    chosen, parents = (torch.empty_like(state.tokens[:, :, 0]) for _ in range(2))
    _go_on[(b,)](
        values, ids, state.t, state.limit, state.total, state.done, state.tokens, state.pool_rank, state.pool_total,
        state.pool_size, state.pool_tokens, state.norms, state.ending, chosen, parents, n,
        GIVEN=values.shape[1], WAYS=ways, WIDE=wide, N_BEST=state.how.n_best, ENDS=len(state.end),
        CANDIDATES=triton.next_power_of_2(ways * wide), LOOKED=triton.next_power_of_2(wide),
        KEPT=triton.next_power_of_2(ways), POOL=triton.next_power_of_2(3 * ways), COLUMNS=64, num_warps=4,
    )  # fmt: skip
    return chosen, parents


@triton.jit
def _go_on(
    values, ids, t, limit, total, done, tokens, pool_rank, pool_total, pool_size, pool_tokens, norms, ending,
    chosen, parents, n,
    GIVEN: tl.constexpr, WAYS: tl.constexpr, WIDE: tl.constexpr, N_BEST: tl.constexpr, ENDS: tl.constexpr,
    CANDIDATES: tl.constexpr, LOOKED: tl.constexpr, KEPT: tl.constexpr, POOL: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A row's step: a program."""
    row = tl.program_id(0).to(tl.int64)
    at, last, was_done = tl.load(t + row), tl.load(limit + row), tl.load(done + row) != 0
    # The best continuations of all ways, in order.
    some = tl.arange(0, CANDIDATES)
    there = some < GIVEN * WIDE
    score = tl.load(values + row * GIVEN * WIDE + some, mask=there, other=float("-inf"))
    score += tl.load(total + row * WAYS + some // WIDE, mask=there, other=0.0)
    looked = tl.arange(0, LOOKED)
    totals = tl.full((LOOKED,), float("-inf"), tl.float32)
    places = tl.zeros((LOOKED,), tl.int32)
    for i in tl.static_range(WIDE):
        place = tl.argmax(score, 0)
        totals = tl.where(looked == i, tl.max(score, 0), totals)
        places = tl.where(looked == i, place, places)
        score = tl.where(some == place, float("-inf"), score)
    id = tl.load(ids + row * GIVEN * WIDE + places)
    parent = places // WIDE
    ends = looked < 0
    for i in tl.static_range(ENDS):
        ends |= id == tl.load(ending + i)
    # Those that go on: the first that have not ended.
    goes_on = (ends == 0) & (looked < WIDE)
    number = tl.sum(tl.where(goes_on[None, :] & (looked[None, :] < looked[:, None]), 1, 0), 1)  # of those before it
    way = tl.arange(0, KEPT)
    is_way = way < WAYS
    takes = (number[:, None] == way[None, :]) & goes_on[:, None] & is_way[None, :]  # (LOOKED, KEPT)
    new_id = tl.sum(tl.where(takes, id[:, None], 0), 0)
    new_parent = tl.sum(tl.where(takes, parent[:, None], 0), 0)
    new_total = tl.sum(tl.where(takes, totals[:, None], 0.0), 0)
    # What is over: ended among the best, or at its limit; beside what was before.
    norm = tl.load(norms + at + 1)
    over = (at + 1 >= last) & (was_done == 0)
    entry = tl.arange(0, POOL)
    pooled, fresh = entry < WAYS, entry - WAYS  # then ended ones, then those cut off
    rank = tl.load(pool_rank + row * WAYS + entry, mask=pooled, other=float("-inf"))
    sums = tl.load(pool_total + row * WAYS + entry, mask=pooled, other=0.0)
    sizes = tl.load(pool_size + row * WAYS + entry, mask=pooled, other=0)
    source = tl.where(pooled, entry, 0)  # whose tokens
    has_ended = tl.where(ends & (looked < WAYS) & (was_done == 0), 1, 0)
    is_it = fresh[:, None] == looked[None, :]  # (POOL, LOOKED)
    its_end = tl.sum(tl.where(is_it, has_ended[None, :], 0), 1) > 0
    its_total = tl.sum(tl.where(is_it, totals[None, :], 0.0), 1)
    its_parent = tl.sum(tl.where(is_it, parent[None, :], 0), 1)
    rank = tl.where(its_end & (fresh >= 0) & (fresh < WAYS), its_total.to(tl.float64) / norm, rank)
    is_end = (fresh >= 0) & (fresh < WAYS)
    sums = tl.where(is_end, its_total, sums)
    sizes = tl.where(is_end, at, sizes)
    source = tl.where(is_end, its_parent, source)
    cut = (fresh - WAYS)[:, None] == way[None, :]  # (POOL, KEPT)
    is_cut = (fresh >= WAYS) & (fresh < 2 * WAYS)
    cut_total = tl.sum(tl.where(cut, new_total[None, :], 0.0), 1)
    cut_parent = tl.sum(tl.where(cut, new_parent[None, :], 0), 1)
    cut_id = tl.sum(tl.where(cut, new_id[None, :], 0), 1)
    rank = tl.where(is_cut & over, cut_total.to(tl.float64) / norm - 1e6, rank)
    sums = tl.where(is_cut, cut_total, sums)
    sizes = tl.where(is_cut, at + 1, sizes)
    source = tl.where(is_cut, cut_parent, source)
    # The best of them stay in the pool.
    order = tl.zeros((KEPT,), tl.int32)
    best_ranks = tl.full((KEPT,), float("-inf"), tl.float64)
    left = rank
    taken = entry < 0
    for i in tl.static_range(WAYS):
        most = tl.max(left, 0)
        place = tl.min(tl.where((left == most) & (taken == 0), entry, POOL), 0)
        order = tl.where(way == i, place, order)
        best_ranks = tl.where(way == i, most, best_ranks)
        taken |= entry == place
        left = tl.where(entry == place, float("-inf"), left)
    picks = order[None, :] == entry[:, None]  # (POOL, KEPT)
    kept_total = tl.sum(tl.where(picks, sums[:, None], 0.0), 0)
    kept_size = tl.sum(tl.where(picks, sizes[:, None], 0), 0)
    kept_source = tl.sum(tl.where(picks, source[:, None], 0), 0)
    kept_id = tl.sum(tl.where(picks, cut_id[:, None], 0), 0)
    from_pool, from_cut = order < WAYS, order >= 2 * WAYS
    # Tokens of both, some columns at a time: all are read before any is written.
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = is_way[:, None] & (column < n)[None, :]
        of_ways, of_pool = tokens + row * WAYS * n + column[None, :], pool_tokens + row * WAYS * n + column[None, :]
        written = tl.load(of_ways + new_parent[:, None] * n, mask=inside, other=0)
        written = tl.where(column[None, :] == at, new_id[:, None], written)
        kept = tl.load(of_ways + kept_source[:, None] * n, mask=inside & (from_pool == 0)[:, None], other=0)
        kept = tl.where(from_cut[:, None] & (column[None, :] == at), kept_id[:, None], kept)
        old = tl.load(of_pool + kept_source[:, None] * n, mask=inside & from_pool[:, None], other=0)
        kept = tl.where(from_pool[:, None], old, kept)
        tl.debug_barrier()
        tl.store(of_ways + way[:, None] * n, written, mask=inside)
        tl.store(of_pool + way[:, None] * n, kept, mask=inside)
    tl.store(pool_rank + row * WAYS + way, best_ranks, mask=is_way)
    tl.store(pool_total + row * WAYS + way, kept_total, mask=is_way)
    tl.store(pool_size + row * WAYS + way, kept_size, mask=is_way)
    tl.store(total + row * WAYS + way, new_total, mask=is_way)
    tl.store(chosen + row * WAYS + way, new_id, mask=is_way)
    tl.store(parents + row * WAYS + way, new_parent.to(tl.int64), mask=is_way)
    # Whether anything can still change.
    first = tl.sum(tl.where(way == 0, new_total, 0.0), 0).to(tl.float64)
    worst = tl.max(tl.where(way == WAYS - 1, best_ranks, float("-inf")), 0)
    wanted = tl.max(tl.where(way == N_BEST - 1, best_ranks, float("-inf")), 0)
    settled = (worst >= first / norm) | (wanted >= first / tl.load(norms + last))
    tl.store(done + row, was_done | over | settled)
