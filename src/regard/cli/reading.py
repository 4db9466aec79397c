"""What a model reads out of texts or images: fill, classify, tag, embed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.shared import AsJson, Device, ModelName, Precision, app, aside, check_no_files, given, lines_of, load
from regard.config import InputError
from regard.files import check_folder

if TYPE_CHECKING:
    from rich.table import Table

Lines = Annotated[list[str] | None, typer.Option(help="A file of texts, line by line; - is standard input.")]
Rows = Annotated[
    list[str] | None,
    typer.Option(help="A file of texts, line by line, or a table with columns as in training; - is standard input."),
]
Columns = Annotated[str | None, typer.Option(help="Columns of the examples, by name or number: text,label.")]

SHORT = 60  # characters of a text that a table shows


@app.command()
def fill(
    model: ModelName,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts with [MASK] in them.", show_default=False)] = None,
    file: Lines = None,
    top: Annotated[int, typer.Option(help="Candidates for each mask.")] = 5,
    device: Device = None,
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Fill in the blanks: the likeliest tokens for each [MASK]; [SEP] parts a text in two.

    regard fill MODEL "Let's make [MASK] chicken! [SEP] It [MASK] great with orange sauce"
    """
    _check_texts(texts, file)
    lines = _texts(texts, file)
    loaded = load(model, device, precision, "fill")
    found = (one for group in _groups(lines) for one in loaded.fill(group, top=top))
    for number, one in enumerate(found, 1):
        if as_json:
            _line(one.to_dict())
        elif _terminal():
            _show_filled(one)
        else:
            for i, mask in enumerate(one.masks, 1):
                for candidate in mask:
                    print(number, i, f"{candidate.probability:.4f}", candidate.text, sep="\t", flush=True)


@app.command()
def classify(
    model: ModelName,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts to classify, or files of images.", show_default=False)
    ] = None,
    file: Rows = None,
    pairs: Annotated[bool, typer.Option("--pairs", help="Each text is two, with a tab between them.")] = False,
    shots: Annotated[int | None, typer.Option(help="With a language model: so many examples are shown to it.")] = None,
    examples: Annotated[str | None, typer.Option(help="For --shots: a labelled file to take them from.")] = None,
    columns: Columns = None,
    labels: Annotated[str | None, typer.Option(help="For --shots: the labels.  [default: the examples']")] = None,
    template: Annotated[str | None, typer.Option(help="For --shots: a text and its label, {text} and {label}.")] = None,
    seed: Annotated[int | None, typer.Option(help="For --shots: picks the examples.")] = None,
    drawn: Annotated[
        str | None, typer.Option("--map", help="Of one image, draw what was looked at: out.png, .svg or .html.")
    ] = None,
    device: Device = None,
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Say of each text or image which label it has, and how sure that is.

    regard classify MODEL "A film that is over before it is over."

    regard classify MODEL photo.jpg
    """
    prompted = given(examples=examples, columns=columns, labels=labels, template=template, seed=seed)
    if shots is None and prompted:
        raise InputError(f"{', '.join(f'--{name}' for name in prompted)}: goes with --shots")
    if shots is not None and pairs:
        raise InputError("--pairs and --shots: a template has one text; give one of them")
    if drawn is not None and (len(texts or ()) != 1 or shots is not None):
        raise InputError(f"--map ({drawn}): draws one image; give one, as an argument")
    _check_texts(texts, file)
    if shots is None:
        loaded = load(model, device, precision, "classify")
        answer = loaded.classify
        if drawn is not None and texts:
            from regard.look import rollout

            rollout(loaded, texts[0]).save(drawn)
    else:
        loaded = load(model, device, precision, "generate")
        answer = prompter(loaded, shots, **prompted)
    from regard.encode.images import reads_images

    alone = bool(texts) and len(texts or ()) == 1
    what = "image" if reads_images(loaded) else "text"
    if what == "text":
        check_no_files(texts)
    for group in _groups(_texts(texts, file, loaded, columns, n=1 + pairs)):
        some = [line if isinstance(line, tuple) else _pair(line) if pairs else _no_pair(line) for line in group]
        answers = list(zip(some, answer(some), strict=True))
        if as_json:
            for text, found in answers:
                _line({what: text, **found.to_dict()})
        elif _terminal():
            _show_classified(answers, alone)
        else:
            for _, found in answers:
                said = (f"{found.score:.4f}",) if hasattr(found, "score") else (found.label, f"{found.probability:.4f}")
                print(*said, sep="\t", flush=True)
        _say_cut(found.cut for _, found in answers)


def prompter(
    model: Any,
    shots: int,
    examples: str | None = None,
    columns: str | None = None,
    labels: str | list[str] | None = None,
    **options: Any,
) -> Any:
    """A way to classify texts: with a language model, and examples of a file."""
    from functools import partial

    from regard.encode.shots import classify_with_prompt

    if examples is None and labels is None:
        raise InputError("--shots: give --examples FILE, or for no examples at all --labels good,bad")
    if isinstance(labels, str):
        labels = [label.strip() for label in labels.split(",")]
    how = {
        "labels": labels or [],
        "examples": [] if examples is None else labelled(examples, columns),
        "shots": shots,
        **options,
    }
    return partial(classify_with_prompt, model, **how)


def labelled(file: str, columns: str | None = None) -> list[tuple[str, str]]:
    """The texts of a file with their labels."""
    from regard.evaluate.labelled import read_rows

    rows = read_rows("classify", file, columns.split(",") if columns else ())
    if len(rows[0].values) != 2:
        raise InputError(f"--columns ({columns}): a prompt's examples have two columns, text and label")
    return [(text, label) for text, label in (row.values for row in rows)]


@app.command()
def tag(
    model: ModelName,
    sentences: Annotated[list[str] | None, typer.Argument(help="What to tag, words apart.", show_default=False)] = None,
    file: Rows = None,
    device: Device = None,
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Tag each word of sentences: names, parts of speech, whatever the model was trained on.

    regard tag MODEL "Angela Merkel visits Paris ."
    """
    _check_texts(sentences, file)
    check_no_files(sentences)
    loaded = load(model, device, precision, "tag")
    first = True
    for group in _groups(_texts(sentences, file, loaded)):
        answers = loaded.tag(group)
        for found in answers:
            if as_json:
                _line(found.to_dict())
                continue
            if not first:
                print()
            first = False
            if _terminal():
                _show_tagged(found)
            else:
                for word, name in zip(found.words, found.tags, strict=True):
                    print(word, name, sep="\t", flush=True)
        _say_cut(found.cut for found in answers)


@app.command()
def embed(
    model: ModelName,
    texts: Annotated[list[str] | None, typer.Argument(help="What to embed.", show_default=False)] = None,
    file: Lines = None,
    out: Annotated[str | None, typer.Option(help="A .npy file to write.  [default: JSON, a line a text]")] = None,
    pool: Annotated[str | None, typer.Option(help="mean, class, end.  [default: the model's own, or mean]")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Vectors as they are, not of length 1.")] = False,
    device: Device = None,
    precision: Precision = None,
) -> None:
    """Turn texts into vectors, to search, compare or group them by.

    regard embed MODEL --file texts.txt --out vectors.npy
    """
    if pool not in (None, "mean", "class", "end"):
        raise InputError(f"--pool ({pool}) must be mean, class or end")
    if out is not None and not out.endswith(".npy"):
        raise InputError(f"--out ({out}) must end with .npy")
    if out is not None:
        check_folder(out)
    _check_texts(texts, file)
    check_no_files(texts)
    lines = _texts(texts, file)
    loaded = load(model, device, precision)
    vectors: list[Any] = []
    for group in _groups(lines):
        found = loaded.embed(group, pool=pool, normalise=not raw)
        if out is not None:
            vectors.append(found)
            continue
        for text, vector in zip(group, found, strict=True):
            _line({"text": text, "vector": [round(float(x), 6) for x in vector]})
    if out is not None:
        from pathlib import Path

        import numpy as np

        from regard.files import drafted

        if not vectors:
            raise InputError("nothing to embed; give at least one text")
        with drafted(Path(out)) as draft, draft.open("wb") as opened:
            np.save(opened, np.concatenate(vectors))


# ---------------------------------------------------------------------------------------
# Texts in


def _check_texts(texts: list[str] | None, file: list[str] | None) -> None:
    if texts and file:
        raise InputError("texts and --file; give one of them")
    for _ in _none_empty(texts or [], "text"):
        pass


def _texts(
    texts: list[str] | None, file: list[str] | None, model: Any = None, columns: str | None = None, n: int = 1
) -> Iterator[Any]:
    """Texts, or the lines of files; of a table what a model for labels reads of its columns. Before any file is read
    all are there, and of a kind that can be."""
    if texts:
        return iter(texts)
    kinds = [(name, "" if name == "-" else _table_kind(name)) for name in file or ["-"]]
    from regard.encode.images import reads_images

    what = "a text" if model is None or not reads_images(model) else "the path of an image"
    for name, kind in kinds:
        if kind and (model is None or what != "a text" or (kind == "conll" and model.task != "tag")):
            raise InputError(f"{name}: is a table, and {what} is a line here; cut the column of them out of it")
    wanted = columns.split(",")[:-1] if columns else ()

    def read(name: str, kind: str) -> Iterator[Any]:
        if not kind:
            yield from _none_empty(lines_of([name]), f"{name}: line" if len(kinds) > 1 else "line")
            return
        from regard.evaluate.labelled import read_texts

        assert model is not None, "refused above"
        left_out = 0
        for text in read_texts(model, name, wanted, n=n):
            if text is None:
                left_out += 1
            else:
                yield text
        if left_out:
            aside(f"{name}: {left_out:,} row{'s' if left_out > 1 else ''} without text, left out")

    return (text for name, kind in kinds for text in read(name, kind))


def _table_kind(name: str) -> str:
    """tsv, csv, jsonl, parquet or conll; nothing of a text."""
    from pathlib import Path

    from regard.data.readers import File

    file = File(Path(name))
    return "conll" if file.suffix == ".conll" else "" if file.format == "text" else file.format


def _none_empty(lines: Iterable[str], what: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise InputError(f"{what} {number} is empty; give at least one word")
        yield line


def _groups(lines: Iterator[str]) -> Iterator[list[str]]:
    """Lines that have arrived together."""
    from regard.data.arrivals import arriving

    return arriving(lines)


def _pair(line: str) -> tuple[str, str]:
    first, tab, second = line.partition("\t")
    if not tab:
        raise InputError(f"{line!r}: --pairs needs two texts, with a tab between them")
    return first, second


def _no_pair(line: str) -> str:
    if "\t" in line:
        raise InputError(
            f"{line!r}: a text has no tab; cut the column of texts out of a table (cut -f 1), or give it as a file"
            " (--file TABLE.tsv); say --pairs of pairs"
        )
    return line


# ---------------------------------------------------------------------------------------
# Answers out


def _line(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)


def _terminal() -> bool:
    from rich.console import Console

    return Console().is_terminal


def _say_cut(cuts: Any) -> None:
    n = sum(cuts)
    if n:
        aside(f"{n:,} of them too long for the model, and cut")


def bar(share: float, width: int = 20) -> str:
    """A share as a bar of blocks, in eighths of them.

    >>> bar(0.5, 4), bar(0.03, 4)
    ('██  ', '▏   ')
    """
    eighths = max(round(share * width * 8), 1 if share >= 0.005 else 0)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)


def _table(*headings: str) -> Table:
    from rich.table import Table

    return Table(
        *headings, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=any(headings)
    )


def _print(*pages: Any) -> None:
    from rich.console import Console

    Console(highlight=False).print(*pages)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _show_filled(found: Any) -> None:
    _print(f"[bold]{_escaped(found.best)}[/bold]\n")
    for i, mask in enumerate(found.masks, 1):
        table = _table("", "", "")
        for one in mask:
            table.add_row(_escaped(one.text), f"[cyan]{bar(one.probability)}[/cyan]", f"{one.probability:.1%}")
        _print(*([f"[dim]mask {i}[/dim]"] if len(found.masks) > 1 else []), table, "")


def _show_classified(answers: list[tuple[Any, Any]], alone: bool) -> None:
    if alone and hasattr(answers[0][1], "probabilities"):
        table = _table("", "", "")
        for label, share in sorted(answers[0][1].probabilities.items(), key=lambda pair: -pair[1]):
            table.add_row(_escaped(label), f"[cyan]{bar(share)}[/cyan]", f"{share:.1%}")
        _print(table)
        return
    table = _table("", "", "", "")
    for text, found in answers:
        if hasattr(found, "score"):
            table.add_row(_shortened(text), f"{found.score:.4f}")
        else:
            share = found.probability
            table.add_row(_shortened(text), _escaped(found.label), f"[cyan]{bar(share)}[/cyan]", f"{share:.1%}")
    _print(table)


def _show_tagged(found: Any) -> None:
    table = _table("", "", "", "")
    for word, name, share in zip(found.words, found.tags, found.probabilities, strict=True):
        style = "dim" if name == "O" else "bold"
        told = f"[{style}]{_escaped(word)}[/{style}]", f"[{style}]{_escaped(name)}[/{style}]"
        table.add_row(*told, f"[cyan]{bar(share)}[/cyan]", f"{share:.1%}")
    _print(table)
    if found.spans:
        _print("\n" + "\n".join(f"[bold]{_escaped(s.text)}[/bold]  {_escaped(s.label)}" for s in found.spans))


def _shortened(text: str | tuple[str, ...]) -> str:
    text = text if isinstance(text, str) else " | ".join(text)
    return _escaped(text if len(text) <= SHORT else f"{text[: SHORT - 1]}…")
