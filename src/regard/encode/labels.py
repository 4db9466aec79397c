"""Texts or images in, labels out; sentences in, a tag for each word out.

A text that is too long is cut, and its answer says so. A sentence that is too long is tagged in parts, so that every
word has a tag. A word's tag is read at its first token, as it was in training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from regard.config import InputError, Labels, Pooled
from regard.encode import images, rows
from regard.encode.spans import is_scheme, spans

if TYPE_CHECKING:
    from regard.model import Model

Text = str | tuple[str, str]
"""A text, or two that are judged together."""
Given = Text | Any
"""A text, or an image: a path, the bytes of a file, an image of pillow, an array, or a Picture."""


@dataclass(frozen=True)
class Classification:
    """What a text or an image is: the likeliest label, and the probability of each. ``cut`` where a text was too
    long."""

    label: str
    probability: float
    probabilities: dict[str, float]
    cut: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Scored:
    """A text's number, of a model that was trained on numbers."""

    score: float
    cut: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Span:
    """Words that belong together, from number ``begin`` up to ``end``, and what they are."""

    label: str
    begin: int
    end: int
    text: str


@dataclass(frozen=True)
class Tagged:
    """A sentence's words, the likeliest tag of each and its probability; ``spans`` where the tags mark any. ``cut``
    where the sentence was too long, and tagged in parts."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    spans: tuple[Span, ...] = ()
    cut: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def is_regression(model: Model) -> bool:
    """Whether a model gives a text a number: one output without a name."""
    return not model.labels and isinstance(model.config.head, Pooled) and model.config.head.n_labels == 1


def classify(model: Model, texts: Sequence[Given]) -> list[Classification] | list[Scored]:
    """The label of each text or image; see :meth:`regard.Model.classify`.

    >>> from regard import Model, Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> table = {"preset": "tiny_encoder", "head": {"kind": "pooled"}}
    >>> config = recipe.model_config(table, vocab_size=len(tokens), n_labels=2)
    >>> model = Model(Transformer(config), "classify", tokens, labels=["no", "yes"])
    >>> [found] = classify(model, ["a dog"])
    >>> found.label in ("no", "yes"), list(found.probabilities)
    (True, ['no', 'yes'])
    """
    model.check_task("classify")
    if not is_regression(model):
        _check_labels(model, Pooled)
    if images.reads_images(model):
        answers = [_answers(model, _logits_of(model, pixels)) for pixels in images.batches(model, texts)]
        return [answer for some in answers for answer in some]
    pairs = [(text, None) if isinstance(text, str) else tuple(text) for text in texts]
    if any(len(pair) != 2 for pair in pairs):
        raise InputError("a text to classify must be a string, or two of them")
    for number, (_, second) in enumerate(pairs, 1):
        if model.n_texts not in (None, 1 if second is None else 2):
            trained, way_out = ("single texts", "give one") if model.n_texts == 1 else ("pairs", "give two (--pairs)")
            raise InputError(f"text {number}: the model was trained on {trained}; {way_out}")
    rows.check_texts([first for first, _ in pairs])
    rows.check_texts([second if second is not None else "-" for _, second in pairs], "second text")
    encode = rows.tokenizer(model).encode_batch
    firsts = encode([first for first, _ in pairs])
    seconds = iter(encode([second for _, second in pairs if second is not None]))
    given = [
        rows.make_row(model, ids, None if second is None else next(seconds))
        for ids, (_, second) in zip(firsts, pairs, strict=True)
    ]
    found: list[Any] = [None] * len(given)
    for batch in rows.read(model, given):
        answers = _answers(model, _logits(model, batch), [given[row].cut for row in batch.rows])
        for row, answer in zip(batch.rows, answers, strict=True):
            found[row] = answer
    return found


def _answers(model: Model, scores: torch.Tensor, cuts: Sequence[bool] = ()) -> list[Any]:
    cuts = cuts or [False] * len(scores)
    if is_regression(model):
        return [Scored(score, cut) for score, cut in zip(scores[:, 0].tolist(), cuts, strict=True)]
    return [named(model.labels, shares, cut) for shares, cut in zip(scores.softmax(-1).tolist(), cuts, strict=True)]


@torch.no_grad()
def _logits_of(model: Model, pixels: torch.Tensor) -> torch.Tensor:
    return model.net(pixels).float()


@torch.no_grad()
def _logits(model: Model, batch: rows.Read) -> torch.Tensor:
    return model.net.logits(batch.hidden, batch.layout).float()


def named(labels: Sequence[str], shares: Sequence[float], cut: bool = False) -> Classification:
    """The likeliest of labels, by their probabilities.

    >>> named(["no", "yes"], [0.25, 0.75]).label
    'yes'
    """
    by_name = dict(zip(labels, shares, strict=True))
    best = max(by_name, key=by_name.__getitem__)
    return Classification(best, by_name[best], by_name, cut)


def tag(model: Model, sentences: Sequence[Sequence[str] | str]) -> list[Tagged]:
    """The tag of each word; see :meth:`regard.Model.tag`.

    >>> from regard import Model, Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_tagger"}, vocab_size=len(tokens), n_labels=3)
    >>> model = Model(Transformer(config), "tag", tokens, labels=["B-DOG", "I-DOG", "O"])
    >>> tag(model, ["a dog runs"])[0].words
    ('a', 'dog', 'runs')
    """
    model.check_task("tag")
    _check_labels(model, Labels)
    words = [words_of(sentence, i) for i, sentence in enumerate(sentences, 1)]
    parts = [part for i, some in enumerate(words) for part in parts_of(model, i, some)]
    tags: list[list[str]] = [[] for _ in words]
    shares: list[list[float]] = [[] for _ in words]
    answers: list[tuple[list[int], list[float]]] = [([], [])] * len(parts)
    for batch in rows.read(model, [row for _, row, _ in parts]):
        best = _logits(model, batch).softmax(-1).max(-1)
        likeliest, probable = best.indices.cpu(), best.values.cpu()  # at once: a device is waited for each time
        for part, ids, probabilities in zip(batch.rows, likeliest, probable, strict=True):
            at = parts[part][2]
            answers[part] = ids[at].tolist(), probabilities[at].tolist()
    for (sentence, *_), (ids, probabilities) in zip(parts, answers, strict=True):
        tags[sentence] += [model.labels[id] for id in ids]
        shares[sentence] += probabilities
    n_parts = Counter(sentence for sentence, *_ in parts)
    marks = is_scheme(model.labels)
    return [
        Tagged(tuple(w), tuple(t), tuple(p), tuple(_spans(w, t)) if marks else (), n_parts[i] > 1)
        for i, (w, t, p) in enumerate(zip(words, tags, shares, strict=True))
    ]


def words_of(sentence: Sequence[str] | str, number: int) -> list[str]:
    """The words of a sentence; refused where there are none."""
    words = sentence.split() if isinstance(sentence, str) else list(sentence)
    if not words:
        raise InputError(f"sentence {number} is empty; give at least one word")
    rows.check_texts(words, f"sentence {number}: word")
    return words


def _spans(words: Sequence[str], tags: Sequence[str]) -> Iterator[Span]:
    for found in spans(tags):
        yield Span(*found, " ".join(words[found.begin : found.end]))


def parts_of(model: Model, sentence: int, words: list[str]) -> Iterator[tuple[int, rows.Row, list[int]]]:
    """Rows of as many words as fit, each with its sentence and the place of every word's first token in it."""
    limit, mask = rows.room(model), model.tokenizer.mask
    # Of a word that a tokenizer from elsewhere leaves nothing of, the model is told that there is one.
    pieces = [ids[:limit] or [mask] for ids in model.tokenizer.encode_words(words)]
    part: list[int] = []
    places: list[int] = []
    ahead = len(rows.marks(model)[0])
    for ids in pieces:
        if limit is not None and len(part) + len(ids) > limit:
            yield sentence, rows.make_row(model, part), places
            part, places = [], []
        places.append(ahead + len(part))
        part += ids
    yield sentence, rows.make_row(model, part), places


def _check_labels(model: Model, head: type[Pooled] | type[Labels]) -> None:
    """A name for every output, and a head of the right kind."""
    name, own = model.path or "this model", model.config.head
    if not isinstance(own, head):
        raise InputError(f"{name}: has a head of kind {own.kind!r}, not {head.kind!r}; give another model")
    if len(model.labels) != own.n_labels:
        raise InputError(
            f"{name}: names {len(model.labels)} labels, and its head has {own.n_labels}; labels.json must be that of"
            " its training"
        )
