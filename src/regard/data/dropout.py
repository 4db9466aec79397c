"""Subword regularisation: the same text in other pieces every epoch, so that a model learns what words are made of.

Every learned token has two parents, the tokens whose merge it is. With some probability it falls apart into them, and
so may each of them. This is the effect of BPE-dropout (Provilkov et al. 2020), undone from the top on ids, where the
paper leaves merges out while it encodes text: only finer cuts of the usual tokens come out, never other tokens across
those cuts; and the share is that of tokens, not of merges, so that the same number splits somewhat less.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config import InputError
from regard.data.batch import Batches, Ids, draws
from regard.data.store import Ragged

AT_ONCE = 1 << 18  # tokens; more only take more memory


def every_epoch(batches: Batches, longest: int) -> Callable[[int], dict[str, Any]]:
    """The columns of a split as an epoch sees them: in other pieces each time for training with ``bpe_dropout``, else
    as they are. What they are in two epochs stays in memory, for one may be made ahead.

    ``longest`` is the most tokens a row may have; one that would have more stays whole.
    """
    share = batches.train.bpe_dropout if batches.shuffled else 0.0
    if not share:
        return lambda epoch: batches.columns
    parents = {name: batches.data.tokenizer_of(name).parents for name in ("source", "target")}
    for name, table in parents.items():
        if (table < 0).all():
            raise InputError(
                f"bpe_dropout ({share}): the tokenizer of the {name} has learned no merges that could be undone;"
                ' set it to 0, or prepare the data with tokenizer.kind = "bpe"'
            )

    @lru_cache(maxsize=2)
    def columns(epoch: int) -> dict[str, Any]:
        return {
            name: split_apart(batches.columns[name], table, share, longest, batches.seed, epoch, side)
            for side, (name, table) in enumerate(parents.items())
        }

    return columns


def split_apart(column: Ragged, parents: Ids, share: float, longest: int, seed: int, *places: int) -> Ragged:
    """A column whose tokens have fallen apart into their parents, each with probability ``share``, and those again.
    A row that would have more than ``longest`` tokens stays whole. What is drawn is a function of seed and places.

    >>> parents = np.array([[-1, -1], [-1, -1], [0, 1], [2, 2]])  # 2 = 0 1, 3 = 2 2
    >>> rows = split_apart(Ragged(np.array([2, 1, 3]), np.array([2, 3])), parents, 1.0, 4, seed=1)
    >>> rows.ids.tolist(), rows.ends.tolist()
    ([0, 1, 1, 0, 1, 0, 1], [3, 7])
    """
    ids, lengths = [np.zeros(0, column.ids.dtype)], [np.zeros(0, np.int64)]
    first = begin = 0
    while first < len(column):
        after = max(first + 1, int(np.searchsorted(column.ends, begin + AT_ONCE, "right")))
        end = int(column.ends[after - 1])
        some = column.lengths[first:after]
        state = draws(seed, *places, np.arange(begin, end))
        tokens, n_tokens = _split_rows(np.asarray(column.ids[begin:end]), some, state, parents, share, longest)
        ids.append(tokens)
        lengths.append(n_tokens)
        first, begin = after, end
    return Ragged(np.concatenate(ids), np.cumsum(np.concatenate(lengths)))


def _split_rows(
    ids: Ids, lengths: Ids, state: NDArray[np.uint64], parents: Ids, share: float, longest: int
) -> tuple[Ids, Ids]:
    """The tokens of some rows and how many each row has then."""
    hit = _hits(ids, state, parents, share)
    pieces, root = _pieces(ids[hit], state[hit], parents, share)
    count = np.ones(len(ids), np.int64)
    count[hit] = np.bincount(root, minlength=len(hit))

    row = np.repeat(np.arange(len(lengths)), lengths)
    new = np.bincount(row, count, len(lengths)).astype(np.int64)
    whole = new > longest  # would be too long
    count[whole[row]] = 1
    out = np.repeat(ids, count)
    out[np.repeat(count > 1, count)] = pieces[~whole[row[hit]][root]]
    return out, np.where(whole, lengths, new)


def _pieces(ids: Ids, state: NDArray[np.uint64], parents: Ids, share: float) -> tuple[Ids, Ids]:
    """What tokens that fall apart become, in order; and which of the tokens each piece is of."""
    root, hit = np.arange(len(ids)), np.arange(len(ids))
    while len(hit):
        count = np.ones(len(ids), np.int64)
        count[hit] = 2
        at = np.cumsum(count)[hit] - 2  # where the two parents come to stand
        halves = parents[ids[hit]]
        ids, root, state = np.repeat(ids, count), np.repeat(root, count), np.repeat(state, count)
        fresh = np.stack([at, at + 1], 1)
        ids[fresh] = halves
        state[fresh] = draws(0, state[fresh], np.arange(2))  # a token's draw decides its parents'
        fresh = fresh.ravel()
        hit = fresh[_hits(ids[fresh], state[fresh], parents, share)]
    return ids, root


def _hits(ids: Ids, state: NDArray[np.uint64], parents: Ids, share: float) -> Ids:
    """Where a token falls apart."""
    return np.flatnonzero(((state >> np.uint64(11)) < share * 2.0**53) & (parents[ids, 0] >= 0))
