"""What a person sees while there is much to answer: a bar on standard error, with answers a second and one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from regard.decode.translate import Progress


class _Rate(ProgressColumn):
    def render(self, task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


@contextmanager
def answering(what: str) -> Iterator[Progress]:
    """A bar to hand to ``translate``, ``evaluate`` and the like as ``progress``; nothing where nobody looks."""
    console = Console(stderr=True)
    sentence = TextColumn("{task.fields[one]}", style="dim", markup=False, table_column=Column(ratio=1, no_wrap=True))
    columns = BarColumn(20), MofNCompleteColumn(), _Rate(), TimeRemainingColumn(elapsed_when_finished=True)
    bar = Bar(
        TextColumn("{task.description}", markup=False), *columns, sentence,
        console=console, disable=not console.is_terminal, expand=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task(what, total=None, one="")

        def progress(done: int, total: int, one: str) -> None:
            bar.update(task, completed=done, total=total, one=one)

        yield progress
