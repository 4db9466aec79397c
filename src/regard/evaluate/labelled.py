"""The score card of a model that classifies texts or images, or tags: how many of a labelled file's labels it finds.

:func:`evaluate_labels` makes one from examples; :func:`read_examples` reads those from a file, as ``regard prepare``
does.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from regard import recipe
from regard.data import readers
from regard.data.images import Picture
from regard.data.readers import Corpus, File, Row, conll
from regard.decode.translate import Progress
from regard.encode import images
from regard.encode.labels import Classification, is_regression
from regard.encode.spans import is_scheme, spans
from regard.evaluate import facts, labels
from regard.evaluate.scorecard import Scorecard, about, table
from regard.evaluate.scores import Score
from regard.model import Model
from regard.schema import InputError, suggest

Example = tuple[Any, Any]
"""A text, a pair of texts, an image or a list of words; and its label, its number or the list of their tags."""
Classifier = Callable[[list[Any]], list[Classification]]
AT_ONCE = 512  # examples that are sorted by length together
PROMPTED = 64  # the same where each stands behind a prompt, and takes that much longer


@dataclass(frozen=True, kw_only=True)
class LabelCard(Scorecard):
    """The scores of a model that labels texts, with those of each label."""

    by_label: tuple[tuple[str, int, Score], ...]  # how often it is wanted, and its F1
    cut: int  # texts that were too long
    error: float | None = None  # of numbers: the mean of the squares

    @property
    def figures(self) -> dict[str, float]:
        return {} if self.error is None else {"mean squared error": self.error}

    def more(self) -> dict[str, Any]:
        parts = [{"label": label, "wanted": n, "f1": score.to_dict()} for label, n, score in self.by_label]
        errors = {} if self.error is None else {"mean_squared_error": round(self.error, 6)}
        return {"by_label": parts, **errors, "cut": self.cut}

    def pages(self) -> Iterator[RenderableType]:
        if self.cut:
            yield Text(f"too long for the model, and cut: {self.cut:,} of them")
        if self.by_label:
            yield Text()
            parts = table("label", "wanted", "F1", "95 % within")
            for label, n, score in self.by_label:
                low, high = score.interval
                parts.add_row(label, f"{n:,}", f"{score.value:.2f}", f"{low:.2f} to {high:.2f}")
            yield parts


class TagCard(LabelCard):
    """The scores of a model that tags words, with those of each kind of span, or of each tag."""

    unit: ClassVar[str] = "sentences"


class ImageCard(LabelCard):
    """The scores of a model that labels images."""

    unit: ClassVar[str] = "images"


def answered(
    ask: Callable[[list[Any]], list[Any]],
    texts: list[Any],
    wanted: Sequence[Any] | None,
    *,
    at_once: int,
    progress: Progress | None = None,
) -> list[Any]:
    """What is said of texts, asked some at a time. A bar is told how many of the labels or tags are those wanted, if
    there are such.

    >>> says_no = lambda texts: [Classification("no", 1.0, {"no": 1.0}) for _ in texts]
    >>> _ = answered(says_no, ["a", "b", "c"], ["no", "no", "yes"], at_once=2, progress=print)
    2 3 100.0% right
    3 3 66.7% right
    """
    answers, right = [], 0
    for begin in range(0, len(texts), at_once):
        some = ask(texts[begin : begin + at_once])
        answers += some
        if progress is None:
            continue
        so_far = ""
        if wanted is not None:
            said = (a.label if isinstance(a, Classification) else a.tags for a in some)
            right += sum(tuple(a) == tuple(b) for a, b in zip(said, wanted[begin : len(answers)], strict=True))
            so_far = f"{right / len(answers):.1%} right"
        progress(len(answers), len(texts), so_far)
    return answers


def evaluate_labels(
    model: Model,
    examples: Sequence[Example],
    *,
    name: str = "test",
    classify: Classifier | None = None,
    progress: Progress | None = None,
) -> LabelCard:
    """Classify texts or images, or tag texts, with a model and score the answers. ``classify`` is another way to do it:
    with a language model and a prompt, say.

    >>> from regard import Model, Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> table = {"preset": "tiny_encoder", "head": {"kind": "pooled"}}
    >>> config = recipe.model_config(table, vocab_size=len(tokens), n_labels=2)
    >>> model = Model(Transformer(config), "classify", tokens, labels=["no", "yes"])
    >>> card = evaluate_labels(model, [("a dog", "yes"), ("a cat", "no")])
    >>> [score.name for score in card.scores]
    ['accuracy', 'macro F1', 'Matthews']
    """
    if classify is None:
        model.check_task("classify", "tag")
    if not examples:
        raise InputError("nothing to score; give at least one text with its label")
    tags = model.task == "tag"
    texts, wanted = [text for text, _ in examples], [label for _, label in examples]
    card = ImageCard if images.reads_images(model) else LabelCard
    numbers = classify is None and is_regression(model)
    ask: Any = classify or (model.tag if tags else model.classify)
    begun = time.perf_counter()
    told = None if numbers else wanted
    answers = answered(ask, texts, told, at_once=AT_ONCE if classify is None else PROMPTED, progress=progress)
    seconds = time.perf_counter() - begun
    said = [a.tags if tags else a.score if numbers else a.label for a in answers]
    of = {
        "name": name,
        "seconds": seconds,
        "data": _hashes(texts, wanted),
        "cut": sum(answer.cut for answer in answers),
        **about(model),
    }
    if tags:
        scores, by_label = _tag_scores(said, wanted, is_scheme(model.labels))
        return TagCard(scores=scores, by_label=by_label, **of)
    if numbers:
        scores = labels.pearson(said, wanted), labels.spearman(said, wanted)
        error = float(np.mean((np.array(said) - np.array(wanted)) ** 2))
        return card(scores=scores, by_label=(), error=error, **of)
    scores = labels.accuracy(said, wanted), labels.macro_f1(said, wanted), labels.matthews(said, wanted)
    by_label = tuple((label, wanted.count(label), labels.f1(said, wanted, label)) for label in sorted(set(wanted)))
    return card(scores=scores, by_label=by_label, **of)


def _tag_scores(
    said: Any, wanted: Any, marks_spans: bool
) -> tuple[tuple[Score, ...], tuple[tuple[str, int, Score], ...]]:
    """The scores of tags, and of each kind of span or each tag."""
    if not marks_spans:
        each = [tag for tags in wanted for tag in tags]
        by_tag = tuple((tag, each.count(tag), labels.f1(said, wanted, tag)) for tag in sorted(set(each)))
        return (labels.accuracy(said, wanted), labels.macro_f1(said, wanted)), by_tag
    scores = (
        labels.entity_f1(said, wanted),
        labels.entity_precision(said, wanted),
        labels.entity_recall(said, wanted),
        labels.accuracy(said, wanted),
    )
    each = [span.label for tags in wanted for span in spans(tags)]
    by_kind = tuple((kind, each.count(kind), labels.entity_f1(said, wanted, kind)) for kind in sorted(set(each)))
    return scores, by_kind


def _hashes(texts: Sequence[Any], wanted: Sequence[Any]) -> dict[str, Any]:
    """The hashes of what is read and of what is wanted, a line each; words and texts of a pair with tabs between, of an
    image the hash of its bytes."""

    def lines(values: Sequence[Any]) -> list[str]:
        return [value if isinstance(value, str) else "\t".join(value) for value in values]

    numbers = wanted and isinstance(wanted[0], float)
    plain = [repr(value) for value in wanted] if numbers else lines(wanted)
    if isinstance(texts[0], Picture):
        return {"images": facts.text_hash([one.sha256() for one in texts]), "labels": facts.text_hash(plain)}
    return {"texts": facts.text_hash(lines(texts)), "labels": facts.text_hash(plain)}


# ---------------------------------------------------------------------------------------
# Files


def read_examples(model: Model, file: str | Path, columns: Sequence[str] = ()) -> list[Example]:
    """The texts of a file, or the images of a folder or a table, with their labels: the columns that are named, or
    those that the model was trained on. A row without text is left out, as in training; a label that the model does not
    know is refused."""
    task, trained = model.task, trained_on(model)
    names = tuple(columns or trained.get("columns", ()))
    numbers = task == "classify" and is_regression(model)
    pixels = None
    if images.reads_images(model):
        told, called = images.facts(model), (trained.get("images") or {}).get("names", ())
        pixels = recipe.Images(size=told["size"], channels=told["channels"], names=tuple(called))
    rows = read_rows(task, file, names, pixels)
    for row in rows:
        for i, label in enumerate(row.labels):
            place = f"{file}: line {row.line + i}"
            if numbers:
                _number(label, place)
            elif label not in model.labels:
                header = (
                    "; is this a header? name the columns: --columns"
                    if row.line == 1 and len(rows) > 1 and not names
                    else ""
                )
                raise InputError(
                    f"{place}: label {label!r} is not one that the model was trained on;"
                    f" {suggest(label, model.labels)}{header}"
                )
    return [example(row, task, numbers=numbers) for row in rows]


def read_texts(model: Model, file: str | Path, columns: Sequence[str] = (), *, n: int = 1) -> Iterator[Any]:
    """What a model is to label of a file that has columns, which need not be labelled: the columns that are named, or
    the texts that the model was trained on, or the first n. Several texts are a tuple, words to tag stand between
    spaces, and None for a row without one of them, which :func:`read_examples` leaves out."""
    trained = tuple(trained_on(model).get("columns", ()))
    if model.task == "tag":
        yield from (" ".join(words) for _, (words, _) in conll(File(Path(file)), trained, tagged=False))
        return
    names = tuple(columns) or (trained[:-1] if model.task == "classify" else ())
    for _, texts in readers.table(File(Path(file)), names, len(names) or n, label=False):
        if all(text.strip() for text in texts):
            yield texts[0] if len(texts) == 1 else texts
        else:
            yield None


def read_rows(
    task: str, file: str | Path, columns: Sequence[str] = (), images: recipe.Images | None = None
) -> list[Row]:
    """The rows of a labelled file that have text in every column, or an image."""
    data = recipe.Data(
        task=task,  # type: ignore[arg-type]
        train=recipe.Files(files=(str(file),)),
        columns=tuple(columns),
        images=images,
    ).validate()
    texts = (row for row in Corpus(data, data.train).rows())
    rows = [row for row in texts if all(part.strip() for value in row.values[:-1] for part in _each(value))]
    if not rows:
        raise InputError(f"{file}: no row has {'text' if images is None else 'an image'} and a label")
    return rows


def example(row: Row, task: str, *, numbers: bool = False) -> Example:
    """A row as what a model reads, and what it should say."""
    *texts, label = row.values
    text = texts[0] if len(texts) == 1 else tuple(texts)
    return text, _number(label, f"{row.file.path}: line {row.line}") if numbers else label


def _each(value: Any) -> list[str]:
    if isinstance(value, Picture):
        return [value.name]
    return [value] if isinstance(value, str) else value


def _number(text: str, place: str) -> float:
    with contextlib.suppress(ValueError):
        number = float(text)
        if np.isfinite(number):
            return number
    raise InputError(f"{place}: label {text!r} must be a number: the model was trained on numbers")


def trained_on(model: Model) -> dict[str, Any]:
    """How the data of the model's training was read, where its run directory tells."""
    if model.path is None:
        return {}
    try:
        return json.loads((model.path / "config.json").read_text(encoding="utf-8"))["recipe"]["data"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
