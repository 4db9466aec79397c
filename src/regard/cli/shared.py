"""What the commands share: the app itself, options that mean the same everywhere, and how results are shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from regard.config import InputError

app = typer.Typer(
    name="regard",
    help="One Transformer, every shape: train it on your own text, and see what it attends to.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

Changes = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to change for this run: train.steps=100.")
]
ModelName = Annotated[
    str,
    typer.Argument(
        help="A run directory, a model that comes with regard (en-de), a Hugging Face directory, or a GGUF file."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.  [default: a GPU if there is one]")]
Precision = Annotated[str | None, typer.Option(help="float32, bfloat16, float16.  [default: bfloat16 on a GPU]")]
Int8 = Annotated[bool, typer.Option("--int8", help="On a CPU: multiply whole numbers. Faster, and less exact.")]
Beam = Annotated[int | None, typer.Option(help="Ways that go on at each step; 1 is greedy.  [default: 4]")]
LengthPenalty = Annotated[float | None, typer.Option(help="How much long ones are favoured.  [default: 0.6]")]
Penalty = Annotated[str | None, typer.Option(help="gnmt or plain: what the length penalty means.  [default: gnmt]")]


def aside(line: str) -> None:
    """A line on standard error. Where that is closed nowhere: it would be printed among the results."""
    if sys.stderr is not None:
        print(line, file=sys.stderr)


def show(page: Any, as_json: bool, width: int = 80) -> None:
    """A result on standard output: JSON alone, tables in colour for a terminal, plain text for a pipe."""
    import io

    from rich.console import Console

    console = Console(highlight=False)
    if as_json:
        print(json.dumps(page if isinstance(page, list) else page.to_dict(), ensure_ascii=False))
    elif console.is_terminal:
        console.print(page)
    else:  # as look.page.as_text has it, whose house does not open without torch
        plain = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, highlight=False)
        plain.print(page)
        print("\n".join(line.rstrip() for line in plain.file.getvalue().splitlines()))  # type: ignore[attr-defined]


def given(**options: Any) -> dict[str, Any]:
    """The options that were given; for the others, the room behind the door has its own defaults."""
    return {name: value for name, value in options.items() if value is not None}


def check_no_files(texts: list[str] | None) -> None:
    """Nobody wants the name of a file to be read as a text."""
    import os

    for text in texts or ():
        if "." in text and os.path.isfile(text):
            raise InputError(f"{text}: is a file; to read the texts in it, say --file {text}")


def lines_of(files: list[str]) -> Iterator[str]:
    """The lines of files, one after another; of standard input as they come. One that is missing is missed at once."""
    from pathlib import Path

    from regard.data.readers import File

    return _lines(files, {name: File(Path(name)) for name in files if name != "-"})


def _lines(files: list[str], opened: dict[str, Any]) -> Iterator[str]:
    from regard.data.readers import checked

    for name in files:
        if name != "-":
            yield from (checked(name, *line) for line in opened[name].lines())
            continue
        if sys.stdin is None:
            raise InputError("standard input: is closed; give texts, or --file")
        if sys.stdin.isatty():
            aside("a text a line; Ctrl-D ends")
        # Not sys.stdin.buffer: at Ctrl-C the interpreter would wait to close it, while a thread waits for a line of it.
        with open(sys.stdin.fileno(), "rb", closefd=False) as stdin:
            for number, line in enumerate(stdin, start=1):
                try:
                    text = line.decode().rstrip("\r\n")
                except UnicodeDecodeError:
                    raise InputError(f"standard input: line {number} is not valid UTF-8; convert it to UTF-8") from None
                yield checked("standard input", number, text.removeprefix("\ufeff") if number == 1 else text)


def load(name: str, device: str | None, precision: str | None, *tasks: str, int8: bool = False) -> Any:
    """A model for a task, or for one of several, or for any; or the reason why not."""
    if device not in (None, "cpu", "cuda"):
        raise InputError(f"--device ({device}) must be cpu or cuda")
    if precision not in (None, "float32", "bfloat16", "float16"):
        raise InputError(f"--precision ({precision}) must be float32, bfloat16 or float16")
    if int8 and precision is not None:
        raise InputError(f"--int8 and --precision ({precision}): give one of them")
    import numpy  # noqa: F401  before torch, which takes Ctrl-C within numpy's import for a numpy that is missing
    import torch

    from regard import model as models
    from regard.memory import keep_freed_memory

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device (cuda): there is no GPU here; leave it out")
    model = models.load(name, device=device, precision="int8" if int8 else precision)  # type: ignore[arg-type]
    if tasks:
        model.check_task(*tasks)
    if model.device.type == "cpu":
        keep_freed_memory()
    return model
