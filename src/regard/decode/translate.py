"""Texts in, translations out: sentences of like length together, each text put back as it was.

A text is split into sentences, and a sentence that is longer than any the model was trained on into parts; line ends,
what stands between sentences, emoji behind them and what marks a line (``- ``, ``# ``, ``1. ``) stay. What has nothing
to translate (no letter or digit, or mostly letters of a script that the model hardly knows) is copied, as a translator
would; and so are characters without a token within a sentence, where the model wrote bytes that are no text. Spaces of
other widths are read as spaces, and what cannot be seen is not read. A sentence in capitals that the tokenizer can only
spell is read in small letters, and its translation written in capitals.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.config import InputError
from regard.data.arrivals import arriving
from regard.data.batch import number_of
from regard.data.sentences import Piece, ends_line, mark, shorten, split, tail
from regard.data.tokenizer import Tokenizer, script
from regard.decode import recorded
from regard.decode.recorded import fixed_length, fixed_size
from regard.decode.search import search
from regard.decode.settings import Decoding
from regard.decode.ways import Found
from regard.nn.outputs import Encoded

if TYPE_CHECKING:
    from regard.model import Model

BROKEN = "\ufffd"  # what bytes that are no character become
UNSEEN = "\u00ad\u200b\u2060\ufeff"  # soft hyphen, and spaces of no width; joiners hold emoji together
SPELLED = 1.5  # times the tokens of small letters: then capitals are spelled, and no words to the model
BATCH_TOKENS = {"cpu": 8_192, "cuda": 131_072}  # tokens read, times the ways in which a sentence goes on
MOST_READ = {"cpu": 2_048, "cuda": 131_072}  # of them, where the ways are few: more lengths would be in a batch


Progress = Callable[[int, int, str], None]
"""Told now and then how many answers there are, of how many, and one of them or how good they are."""


@dataclass(frozen=True)
class Translation:
    """A text in the other language.

    ``logprob`` is the logarithm of its probability, ``score`` what it was ranked by; of several sentences, the sums.
    ``alignment`` pairs words of the source with words of this text, both counted from 0. ``others`` are the next best.
    """

    text: str
    score: float = 0.0
    logprob: float = 0.0
    tokens: tuple[str, ...] = ()
    alignment: tuple[tuple[int, int], ...] | None = None
    others: tuple[Translation, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain: dict[str, Any] = {
            "text": self.text,
            "score": self.score,
            "logprob": self.logprob,
            "tokens": list(self.tokens),
        }
        if self.alignment is not None:
            plain["alignment"] = [list(pair) for pair in self.alignment]
        if self.others:
            plain["others"] = [other.to_dict() for other in self.others]
        return plain


def translate(
    model: Model,
    texts: Sequence[str],
    *,
    align: bool = False,
    whole: bool = False,
    batch_tokens: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> list[Translation]:
    """Translate each text; see :meth:`regard.Model.translate`.

    ``whole`` texts are read as they are, and not split unless they are too long: so are the lines of a test set.
    """
    model.check_task("translate")
    how = Decoding(**options).validate()
    given = [Text(model, text, whole) for text in texts]
    find(model, given, how, align=align, batch_tokens=batch_tokens, progress=progress)
    return [text.translation(how, align) for text in given]


def find(
    model: Model,
    texts: Iterable[Text],
    how: Decoding,
    *,
    align: bool = False,
    batch_tokens: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Search translations for the sentences of texts, those of like length together."""
    wanted, done = [unit for text in texts for unit in text.units if unit.ids], 0
    device = model.device.type
    budget = batch_tokens // how.ways if batch_tokens else min(BATCH_TOKENS[device] // how.ways, MOST_READ[device])
    for batch in batches(wanted, budget, fixed=recorded.fixed_shapes(model.device)):
        memory = encode(model, batch)
        _search(model, batch, memory, how)
        if align:
            align_words(model, batch, memory)
        done += len(batch)
        if progress is not None:
            progress(done, len(wanted), model.tokenizer.decode(batch[0].found[0].ids))


def one_sentence(model: Model, text: str) -> Text:
    """A text as it is translated, if it is one sentence; else whole, as if it were."""
    as_translated = Text(model, text, False)
    return as_translated if len(as_translated.units) == 1 else Text(model, text, True)


def stream(model: Model, lines: Iterable[str], **options: Any) -> Iterator[tuple[str, Translation]]:
    """Each line with its translation, as they come, in their order.

    What has arrived is translated together: a fast writer's lines by the thousand, a slow one's each at once."""
    for texts in arriving(lines):
        yield from zip(texts, translate(model, texts, **options), strict=True)


# ---------------------------------------------------------------------------------------
# Texts and their sentences


class Unit:
    """A sentence, or a part of one: what the model translates at once. Without ids it is copied; the ids of a ``loud``
    one, which is in capitals, are of small letters."""

    def __init__(self, text: str, ids: list[int], loud: bool = False):
        self.text, self.ids, self.loud, self.request = text, ids, loud, number_of(ids)
        self.found: list[Found] = []
        self.alignments: list[tuple[tuple[int, int], ...]] = []


class Text:
    """A text as units and what stands between them."""

    def __init__(self, model: Model, text: str, whole: bool):
        self.model, self.reads = model, model.source_tokenizer
        self.parts: list[Unit | str] = []
        if whole:
            self.parts += self._pieces(Piece(text), as_it_is=True)
            return
        begins = True  # a line, which may have a mark
        for piece in split(text):
            layout = mark(piece.text) if begins else ""
            signs = tail(piece.text[len(layout) :])
            words = piece.text[len(layout) : len(piece.text) - len(signs)]
            self.parts += [*([layout] if layout else []), *self._pieces(Piece(words, signs + piece.after))]
            begins = ends_line(piece.after) or (begins and not piece.text)

    def _pieces(self, piece: Piece, *, as_it_is: bool = False) -> Iterator[Unit | str]:
        """A sentence as units that are not too long, and what stands after each."""
        text, longest = piece.text, self.model.longest - 1  # and an end token
        ids, loud = self._encode(text), False
        if text.isupper() and not as_it_is and (small := text[0] + text[1:].lower()).upper() == text:
            of_small = self._encode(small)
            if loud := SPELLED * len(of_small) < len(ids):
                text, ids = small, of_small
        if len(ids) <= longest:
            yield from (self._unit(text, ids, loud), piece.after)
            return
        for part in shorten(piece._replace(text=text), longest, lambda t: len(self._encode(t))):
            yield from (self._unit(part.text, self._encode(part.text), loud), part.after)

    def _encode(self, text: str) -> list[int]:
        joined = self.reads.joined
        if joined and not (text.isascii() and text.isprintable()):
            text = "".join(c if c in joined else seen(c) for c in text)
        return self.reads.encode(text)

    def _unit(self, text: str, ids: list[int], loud: bool) -> Unit:
        letters, without = [c for c in text if c.isalnum()], set("".join(self._without_token(ids)))
        known = self.reads.scripts
        strange = sum(c in without or bool(known and script(c) not in known) for c in letters)
        return Unit(text.upper() if loud else text, ids if letters and 2 * strange <= len(letters) else [], loud)

    def _without_token(self, ids: Sequence[int]) -> list[str]:
        """What of a text has no token of its own, in runs."""
        runs = itertools.groupby(ids, self.reads.strange_ids.__contains__)
        return [b"".join(map(self.reads.piece, run)).decode(errors="replace") for strange, run in runs if strange]

    def _copied(self, text: str, unit: Unit) -> str:
        """A translation whose broken characters are what the source has in their place: those without a token, in
        order, but for what came out whole; else signs that are missing, if they are as many; else nothing."""
        if BROKEN not in text:
            return text
        left = [given for given in self._without_token(unit.ids) if given not in text]
        signs = [c for c in unit.text if not c.isalnum() and not c.isspace() and c not in text]
        if not left and len(signs) == len(re.findall(f"{BROKEN}+", text)):
            left = signs
        each = iter(left)
        return re.sub(f"{BROKEN}+", lambda _: next(each, ""), text)

    @property
    def units(self) -> list[Unit]:
        return [part for part in self.parts if isinstance(part, Unit)]

    def translation(self, how: Decoding, align: bool) -> Translation:
        """The best translation, and with it the next best ones; or a draw, and with it the others."""
        choices = self._draws(how.n_best) if how.temperature else self._best(how.n_best)
        first, *others = (self._joined(chosen, align) for chosen in choices)
        return dataclasses.replace(first, others=tuple(others))

    def _draws(self, n: int) -> list[tuple[int, ...]]:
        """The first draw of every sentence, the second of every sentence, and so on."""
        return [tuple(i if unit.found else 0 for unit in self.units) for i in range(n)]

    def _best(self, n: int) -> list[tuple[int, ...]]:
        """The n choices of a translation for each sentence whose scores together are the highest, or as many as there
        are."""
        ranked: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for unit in self.units:
            scores = [found.score for found in unit.found] or [0.0]
            longer = [(score + more, (*chosen, i)) for score, chosen in ranked for i, more in enumerate(scores)]
            ranked = heapq.nsmallest(n, longer, key=lambda one: (-one[0], one[1]))
        return [chosen for _, chosen in ranked]

    def _joined(self, chosen: tuple[int, ...], align: bool) -> Translation:
        """The text with the chosen translation of each sentence."""
        model, numbers = self.model, iter(chosen)
        source, text, score, logprob, tokens, pairs = "", "", 0.0, 0.0, [], dict[int, int]()
        for part in self.parts:
            read, n = (part, 0) if isinstance(part, str) else (part.text, next(numbers))
            if isinstance(part, Unit) and part.found:
                found = part.found[n]
                score, logprob = score + found.score, logprob + found.logprob
                tokens += [model.tokenizer.token(id) for id in found.ids]
                said = self._copied(model.tokenizer.decode(found.ids), part)
                said, aligned = said.upper() if part.loud else said, part.alignments[n] if align else ()
            else:
                said, aligned = read, [(i, i) for i in range(len(read.split()))]
            i, j = words_before(source, read), words_before(text, said)
            for a, b in aligned:
                pairs.setdefault(j + b, i + a)
            source, text = source + read, text + said
        alignment = tuple((i, j) for j, i in pairs.items()) if align else None
        return Translation(text, score, logprob, tuple(tokens), alignment)


def words_before(text: str, more: str) -> int:
    """The number of the word with which more text begins: the last one goes on where no space is between.

    >>> words_before("a b ", "c"), words_before("a b", "c"), words_before("", "c")
    (2, 1, 0)
    """
    joined = text and more and not text[-1].isspace() and not more[0].isspace()
    return len(text.split()) - bool(joined)


def seen(character: str) -> str:
    """A character as a reader sees it: a space for one of another width, nothing for what has none.

    >>> seen("\u2009"), seen("\u00ad"), seen("a")
    (' ', '', 'a')
    """
    if character.isspace():
        return " "
    return "" if character in UNSEEN or unicodedata.category(character) == "Cc" else character


def batches(units: Sequence[Unit], budget: int, *, fixed: bool = False) -> Iterator[list[Unit]]:
    """Units of like length together, the longest first, as many as the budget of tokens takes; or, ``fixed``, the
    largest of a few numbers that is no more."""
    ordered = sorted(units, key=lambda unit: -len(unit.ids))
    begin = 0
    while begin < len(ordered):
        n = max(1, budget // (len(ordered[begin].ids) + 1))
        end = begin + (fixed_size(n // 2 + 1) if fixed else n)
        yield ordered[begin:end]
        begin = end


# ---------------------------------------------------------------------------------------
# What the model does


def encode(model: Model, batch: Sequence[Unit]) -> Encoded:
    """What the encoder makes of units."""
    reads = model.source_tokenizer
    lengths = np.array([len(unit.ids) + 1 for unit in batch])
    width, rows = int(lengths.max()), len(batch)
    if recorded.fixed_shapes(model.device):  # a row more than there are is an empty text
        width = fixed_length(width, getattr(model.config.encoder, "position_limit", None))
        rows = fixed_size(rows)
        lengths = np.append(lengths, np.ones(rows - len(batch), np.int64))
    source = np.full((rows, width), reads.pad)
    for row, unit in zip(source, batch, strict=False):
        row[: len(unit.ids)] = unit.ids
    source[np.arange(rows), lengths - 1] = reads.end
    return model.recorder.encode(model.net, *(torch.from_numpy(ids).to(model.device) for ids in (source, lengths)))


def _search(model: Model, batch: list[Unit], memory: Encoded, how: Decoding) -> None:
    found = search(model.net, **asked(model, batch, memory, [how] * len(batch)))
    for unit, sequences in zip(batch, found, strict=False):
        unit.found = sequences


def longest(unit: Unit, how: Decoding) -> int:
    """Tokens after which its translation ends."""
    return how.max_length or max(2 * len(unit.ids) + 16, how.min_length)


def asked(model: Model, batch: Sequence[Unit], memory: Encoded, hows: Sequence[Decoding]) -> dict[str, Any]:
    """What is asked of a search; settings may differ in their seed and their greatest length."""
    writes = model.tokenizer
    room = getattr(model.config.decoder, "position_limit", None)
    limits = [longest(unit, how) for unit, how in zip(batch, hows, strict=True)]
    empty = [1] * (memory.hidden.shape[0] - len(batch))
    return {
        "prompt": torch.full((memory.hidden.shape[0], 1), writes.start, device=model.device),
        "memory": memory,
        "end": writes.end,
        "limits": ([min(n, room - 1) for n in limits] if room else limits) + empty,
        "how": hows[0],
        "never": model.never,
        "requests": [unit.request for unit in batch] + empty,
        "seeds": [how.seed for how in hows] + empty,
        "recorder": model.recorder,
    }


def aligning_layer(model: Model) -> str | None:
    """The cross-attention whose heads together tell what was translated from what: of the last layer but one (Garg et
    al. 2019); of a shallow decoder the last: low layers look at what belongs to the word before. None where a model has
    none."""
    layers = [name for name in model.net.attention_layers()["decoder"] if name.endswith(".cross")]
    return layers[-2 if len(layers) > 3 else -1] if layers else None


def align_words(model: Model, batch: Sequence[Unit], memory: Encoded) -> None:
    """The source word that each word of a translation attends to most, over the heads of the aligning layer."""
    layer, writes = aligning_layer(model), model.tokenizer
    if layer is None:
        raise InputError("align: this model has no cross-attention to tell from")
    for n in range(max(len(unit.found) for unit in batch)):
        chosen = [unit.found[min(n, len(unit.found) - 1)].ids for unit in batch]
        chosen += [[]] * (memory.hidden.shape[0] - len(batch))  # rows that were added
        rows = [torch.tensor([writes.start, *ids]) for ids in chosen]
        target = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=writes.pad).to(model.device)
        with torch.inference_mode():
            attended = model.net.decode(target, memory, capture=[layer]).attended[layer]
            weights = attended.weights().mean(1).float().cpu()  # (B, T, S)
        for unit, ids, shares in zip(batch, chosen, weights, strict=False):
            reads, of_source = model.source_tokenizer, shares[: len(ids), : len(unit.ids)]
            pairs = aligned(of_source, words_of(reads, unit.ids), words_of(writes, ids))
            unit.alignments.append(pairs[: len(writes.decode(ids).split())])  # of spaces alone there is no word


def words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Which word of the text each token belongs to."""
    return [max(0, len(tokenizer.decode(ids[: i + 1]).split()) - 1) for i in range(len(ids))]


def aligned(weights: Float[Tensor, "T S"], source: Sequence[int], target: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """For each word of the target the word of the source with the largest share, from weights between tokens.

    >>> aligned(torch.tensor([[0.1, 0.2, 0.7], [0.8, 0.1, 0.1]]), [0, 0, 1], [0, 1])
    ((1, 0), (0, 1))
    """
    if not source or not target:
        return ()
    by_word = torch.zeros(len(target), max(source) + 1).index_add_(1, torch.tensor(source), weights)
    by_words = torch.zeros(max(target) + 1, max(source) + 1).index_add_(0, torch.tensor(target), by_word)
    return tuple((int(i), j) for j, i in enumerate(by_words.argmax(1)))
