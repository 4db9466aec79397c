"""The front door: one sub-command a job, each a thin call into a room behind it.

shared.py       the app, common options, how results are shown
training.py     prepare, train, plan, compare
translation.py  translate, export
generation.py   generate, chat
reading.py      fill, classify, tag, embed
pictures.py     caption, match, draw
evaluation.py   evaluate
serving.py      serve
looking.py      look
learning.py     quickstart, walk, explain, check, presets

Results go to standard output, as text for people or with ``--json`` for programs; a user's mistake is one line on
standard error and exit code 2. Nothing heavy is imported before a command needs it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from regard.cli.shared import app, aside
from regard.config import RegardError

# The commands, in the order of --help.
# isort: off
from regard.cli import training, translation, generation, reading, pictures, evaluation  # noqa: F401
from regard.cli import serving, looking, learning  # noqa: F401

# isort: on


def main() -> None:
    """Run the command line: what ``regard`` and ``python -m regard`` call."""
    if hasattr(signal, "SIGPIPE"):
        # A reader that has seen enough (`| head -1`) ends us quietly, as it ends every other program.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in filter(None, (sys.stdout, sys.stderr)):  # one that is closed is none
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without √ gets a ? for it
    try:
        code = app(standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk shows here, not after the last handler
        sys.exit(code)
    except typer.TyperException as error:
        _refuse(error)
        sys.exit(2)
    except typer.Abort:
        _complain("aborted")
        sys.exit(1)
    except RegardError as error:
        _complain(str(error))
        sys.exit(2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}")
        os._exit(1)  # the interpreter would try to flush once more, and complain


def _refuse(error: typer.TyperException) -> None:
    """What typer does not understand of a command line, in one line with the way out."""
    said, context = error.format_message(), getattr(error, "ctx", None)
    if "\n" in said:  # all of the help, for a command line without a word
        aside(said)
        return
    said, option = said.rstrip(" .?"), getattr(error, "option_name", None) or ""
    may_be_text = said.startswith("No such option") and (" " in option or option[:1] == "-" != option[1:2])
    ways = ["a text that begins with - goes behind --"] if may_be_text else []
    ways.append(f"{'regard' if context is None else context.command_path} --help tells more")
    _complain("; ".join([said[0].lower() + said[1:], *ways]))


def _complain(problems: str) -> None:
    for problem in problems.splitlines():
        aside(f"error: {problem}")


def _version(wanted: bool) -> None:
    if wanted:
        from regard import __version__

        print(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def _regard(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass
