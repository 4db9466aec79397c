"""How likely a language model finds a text: the logarithm of the probability of each token, and what follows from it.

A text longer than the context is read in windows, each ``stride`` tokens further on than the one before; a token counts
in the first window that reaches it. A stride as long as the context is the cheapest, with the least to go by; at a
stride of 1 every token has as much before it as the model can read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from regard.decode.translate import Progress
from regard.evaluate import facts
from regard.evaluate.scorecard import about, save
from regard.model import Model
from regard.nn.masks import Layout
from regard.schema import InputError

BATCH_TOKENS = {"cpu": 2_048, "cuda": 32_768}
SCORED_AT_ONCE = 512  # tokens; times the vocabulary, they are the scores held at once


@torch.inference_mode()
def logprobs(
    model: Model, texts: Sequence[str], *, stride: int | None = None, progress: Progress | None = None
) -> list[NDArray[np.float64]]:
    """For each text the logarithm of the probability of each of its tokens, those that ``tokenizer.encode`` gives. A
    model that knows no beginning of a text cannot say how likely its first token is: not a number.

    Left out, the stride is half of the context. A text of its own is each, and the end of a text is not scored.

    >>> from regard import Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_decoder"}, vocab_size=len(tokens))
    >>> [one] = logprobs(Model(Transformer(config), "generate", tokens), ["a dog"])
    >>> one.shape, bool((one < 0).all())
    ((5,), True)
    """
    model.check_task("generate")
    context, stride = _windows(model, stride)
    found, windows = [], []
    for i, ids in enumerate(model.tokenizer.encode_batch(list(texts))):
        before = len(model.prefix)
        found.append(np.full(before + len(ids), math.nan))
        windows += _cut(i, np.array([*model.prefix, *ids], np.int64), context, stride)
    windows.sort(key=lambda window: -len(window.ids))
    begin, done, total, of_all = 0, 0, 0.0, sum(window.n for window in windows)
    while begin < len(windows):
        end = begin + max(1, BATCH_TOKENS[model.device.type] // len(windows[begin].ids))
        batch = windows[begin:end]
        for window, scores in zip(batch, _scored(model, batch), strict=True):
            found[window.text][window.at : window.at + len(scores)] = scores
            done, total = done + len(scores), total + scores.sum()
        begin = end
        if progress is not None:
            progress(done, of_all, f"tokens, perplexity {math.exp(min(-total / done, 700.0)):.2f}")
    return [scores[len(model.prefix) :] for scores in found]


class _Window(NamedTuple):
    """A part of a text, and how many of its tokens at the end are scored: the text's from ``at`` on."""

    text: int
    ids: NDArray[np.int64]  # one more than are read
    at: int
    n: int


def _windows(model: Model, stride: int | None) -> tuple[int, int]:
    context = model.context or model.longest
    if stride is not None and not (isinstance(stride, int) and 1 <= stride <= context):
        raise InputError(f"stride ({stride}) must be at least 1 and at most the model's context ({context})")
    return context, stride or max(1, context // 2)


def _cut(text: int, ids: NDArray[np.int64], context: int, stride: int) -> Iterator[_Window]:
    reached = 1  # the first token has nothing before it
    for begin in range(0, max(0, len(ids) - 1), stride):
        if reached >= len(ids):
            return
        part = ids[begin : begin + context + 1]
        end = begin + len(part)
        yield _Window(text, part, reached, end - reached)
        reached = end


def _scored(model: Model, batch: Sequence[_Window]) -> list[NDArray[np.float64]]:
    lengths = [len(window.ids) - 1 for window in batch]
    ids = np.zeros((len(batch), max(lengths) + 1), np.int64)
    for row, window in zip(ids, batch, strict=True):
        row[: len(window.ids)] = window.ids
    given, wanted = torch.from_numpy(ids[:, :-1]).to(model.device), torch.from_numpy(ids[:, 1:]).to(model.device)
    layout = Layout(lengths=torch.tensor(lengths, device=model.device)) if len({*lengths}) > 1 else Layout()
    hidden = model.net.decode(given, layout=layout).hidden
    width = ids.shape[1] - 1
    places = [i * width + length - window.n for i, (window, length) in enumerate(zip(batch, lengths, strict=True))]
    at = np.concatenate([np.arange(place, place + w.n) for place, w in zip(places, batch, strict=True)])
    scores = []
    for some in torch.from_numpy(at).to(model.device).split(SCORED_AT_ONCE):
        logits = model.net.logits(hidden.flatten(0, 1)[some][None])[0].float()
        scores.append(-F.cross_entropy(logits, wanted.flatten()[some], reduction="none").double().cpu().numpy())
    return np.split(np.concatenate(scores), np.cumsum([window.n for window in batch])[:-1])


# ---------------------------------------------------------------------------------------
# The card


@dataclass(frozen=True, kw_only=True)
class LanguageCard:
    """How well a model predicts a text. Show it with rich, ``save`` it, or take ``to_dict()``."""

    name: str  # of the text
    total: float  # the logarithm of the probability of all tokens
    tokens: int
    words: int  # between spaces
    bytes: int  # in UTF-8
    context: int
    stride: int
    seconds: float
    data: dict[str, Any]  # the hash of the text
    model: dict[str, Any]
    versions: dict[str, str]
    hardware: str
    training: dict[str, Any] | None

    @property
    def loss(self) -> float:
        """What training calls it: a token's share."""
        return -self.total / self.tokens

    @property
    def perplexity(self) -> float:
        """Among how many tokens, all alike, the model would have as hard a choice."""
        return math.exp(min(self.loss, 700.0))

    @property
    def word_perplexity(self) -> float:
        """The same for whole words: what models with different tokens can be compared by."""
        return math.exp(min(-self.total / self.words, 700.0)) if self.words else math.nan

    @property
    def bits_per_byte(self) -> float:
        """How small the model could make the text."""
        return -self.total / math.log(2) / self.bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        word_perplexity = round(self.word_perplexity, 4) if self.words else None
        return {
            "name": self.name,
            "model": self.model,
            "loss": round(self.loss, 6),
            "perplexity": round(self.perplexity, 4),
            "word_perplexity": word_perplexity,
            "bits_per_byte": round(self.bits_per_byte, 6),
            "tokens": self.tokens,
            "words": self.words,
            "bytes": self.bytes,
            "context": self.context,
            "stride": self.stride,
            "seconds": round(self.seconds, 3),
            "data": self.data,
            "versions": self.versions,
            "hardware": self.hardware,
            "training": self.training,
        }

    def save(self, run: str | Path) -> Path:
        """Write it into a run directory's scorecard.json, beside those of other test sets."""
        return save(self, run)

    def __rich__(self) -> RenderableType:
        return Group(*self._page())

    def _page(self) -> Iterator[RenderableType]:
        yield Text(f"{self.model['path']}: {self.name}\n", style="bold")
        scores = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        scores.add_column(no_wrap=True)
        scores.add_column(justify="right")
        scores.add_row("perplexity of a word", f"{self.word_perplexity:.3f}")
        scores.add_row("perplexity of a token", f"{self.perplexity:.3f}")
        scores.add_row("loss of a token", f"{self.loss:.4f}")
        scores.add_row("bits per byte", f"{self.bits_per_byte:.4f}")
        yield scores
        yield Text(f"\n{self.tokens:,} tokens, {self.words:,} words, {self.bytes:,} bytes; windows of {self.context}")
        yield Text(f"tokens, each {self.stride} further on; {self.seconds:.1f} s on {self.hardware}", style="dim")


def evaluate_text(
    model: Model,
    text: str | Sequence[str],
    *,
    name: str = "text",
    stride: int | None = None,
    progress: Progress | None = None,
) -> LanguageCard:
    """How well a model predicts a text, or several that have nothing to do with each other. The stride is that of
    :func:`logprobs`.

    >>> from regard import Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_decoder"}, vocab_size=len(tokens))
    >>> card = evaluate_text(Model(Transformer(config), "generate", tokens), "a dog runs")
    >>> card.tokens, card.words, card.bytes
    (10, 3, 10)
    """
    texts = [text] if isinstance(text, str) else list(text)
    context, step = _windows(model, stride)
    begin = time.perf_counter()
    found = logprobs(model, texts, stride=stride, progress=progress)
    seconds = time.perf_counter() - begin
    scores = np.concatenate([scores[~np.isnan(scores)] for scores in found] or [np.zeros(0)])
    if not len(scores):
        raise InputError("there is no token to predict in the text; give more of it")
    return LanguageCard(
        name=name,
        total=float(scores.sum()),
        tokens=len(scores),
        words=sum(len(one.split()) for one in texts),
        bytes=sum(len(one.encode()) for one in texts),
        context=context,
        stride=step,
        seconds=seconds,
        data={"text": facts.text_hash(text.splitlines() if isinstance(text, str) else texts)},
        **about(model),
    )
