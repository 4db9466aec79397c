"""Which examples an update sees, and as which tensors: a pure function of seed, epoch and step.

Nothing is kept between steps, so that a run resumes from a counter, and any batch can be made again to look at it. A
:class:`Batches` lays out one split: it knows the rows of every step (:meth:`Batches.rows`) and makes the tensors of a
part of them (:meth:`Batches.part`); parts are micro-batches and processes, and which part an example falls into never
changes what is drawn for it.

Images are all of one size, and a batch has as many at every step: :mod:`regard.data.pictures`, and with texts
:mod:`regard.data.captions`, or with texts and as codes :mod:`regard.data.drawings`. Three ways to lay text out:

- a text a row, padded, rows of like length together (translate, classify, tag, prefer): :mod:`regard.data.bucketed`
- rows of fixed length, cut from the stream of all documents (generate, fill): :mod:`regard.data.stream`
- rows of fixed length filled with whole pairs (translate, packed): :mod:`regard.data.filled`

Packed texts don't see each other: the layout says where each begins and ends. Subwords may fall apart anew in every
epoch: :mod:`regard.data.dropout`.
"""

from __future__ import annotations

from collections.abc import Iterable

from regard.config import InputError, ModelConfig, Recurrent, Stack
from regard.data.batch import Batch as Batch
from regard.data.batch import Batches as Batches
from regard.data.batch import Size as Size
from regard.data.bucketed import Bucketed
from regard.data.captions import Captions, Matches
from regard.data.drawings import Drawings
from regard.data.filled import Filled
from regard.data.pictures import Pictures
from regard.data.store import DataDir
from regard.data.stream import Halves, Stream
from regard.recipe import CAPTIONED, Train


def make_batches(data: DataDir, split: str, train: Train, model: ModelConfig, *, shuffled: bool = True) -> Batches:
    """A split as batches, as the recipe says: ``train`` shuffled, ``valid`` in order."""
    if data.task in CAPTIONED:
        return _captions(data, split, train, model, shuffled=shuffled)
    if data.images is not None:
        return Pictures(data, split, train, shuffled=shuffled)
    towers = [t for t in (model.encoder, model.decoder) if t is not None]
    max_len = min([t.max_len for t in towers if isinstance(t, Stack) and t.max_len], default=None)
    streams = data.task in ("generate", "fill")
    packed = streams if train.packed is None else train.packed
    if packed and data.task in ("classify", "tag", "prefer"):
        raise InputError(f"packed (true): {data.task} has a row a text; leave it out")
    if packed and data.task == "translate" and any(isinstance(tower, Recurrent) for tower in towers):
        raise InputError("packed (true): a recurrent model cannot keep the texts of a row apart; leave it out")
    if train.bpe_dropout and data.task != "translate":
        raise InputError(f"bpe_dropout ({train.bpe_dropout}): only for translate, not {data.task}; set it to 0")
    if train.row_tokens is not None and train.row_tokens > train.batch_tokens:
        raise InputError(f"row_tokens ({train.row_tokens}) must be at most batch_tokens ({train.batch_tokens})")
    if streams and not packed:
        raise InputError(f"packed (false): {data.task} always packs; leave it out")
    if streams:
        length = train.row_tokens or min(max_len or 256, train.batch_tokens)
        if max_len is not None and length > max_len:
            raise InputError(f"row_tokens ({length}) must be at most the model's max_len ({max_len})")
        if model.pair_head is not None:
            return Halves(data, split, train, shuffled=shuffled, length=length)
        if isinstance(towers[0], Recurrent):  # a state is carried over: the start token says that a text begins
            both = data.task == "fill"
            return Stream(data, split, train, shuffled=shuffled, length=length, walls=False, both_ways=both)
        return Stream(data, split, train, shuffled=shuffled, length=length)
    segments = getattr(towers[0].input, "n_segments", 0)
    batches: Bucketed | Filled
    if packed and shuffled:
        batches = Filled(data, split, train, length=train.row_tokens or min(1024, train.batch_tokens))
    else:  # what is held out is seen once: a text a row is simplest
        batches = Bucketed(data, split, train, shuffled=shuffled, n_segments=segments)
    if max_len is not None and batches.longest > max_len:
        raise InputError(
            f"max_len ({max_len}) must be at least {batches.longest}, the longest example's tokens; raise the model's,"
            " or lower data.max_tokens"
        )
    return batches


def _captions(data: DataDir, split: str, train: Train, model: ModelConfig, *, shuffled: bool) -> Captions:
    kinds: dict[str, type[Captions]] = {"caption": Captions, "match": Matches, "draw": Drawings}
    made = kinds[data.task](data, split, train, shuffled=shuffled)
    limit = getattr(model.decoder or model.text, "position_limit", None)
    if limit is not None and made.longest > limit:
        raise InputError(
            f"max_len ({limit}) must be at least {made.longest}, {made.longest_is}; raise the model's, or lower"
            " data.max_tokens"
        )
    return made


def padding(batches: Batches, steps: Iterable[int]) -> float:
    """The share of padding over some steps."""
    sizes = [batches.size(step) for step in steps]
    return 1 - sum(s.real for s in sizes) / sum(s.padded for s in sizes)
