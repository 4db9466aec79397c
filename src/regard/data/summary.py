"""What a person sees of a data directory: a bar while it is made, and a page of figures and samples of it.

Everything on the page comes from the directory itself, so it can be shown again at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as Rate
from rich.table import Table
from rich.text import Text

from regard.data.prepare import Progress as Report
from regard.data.store import DataDir, Ragged
from regard.data.tokenizer import Tokenizer

SAMPLES = 3
SHOWN = 60  # tokens of a sample; a terminal has no room for more


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A bar on standard error for each thing that is done, to hand to ``prepare``; nothing where nobody looks."""
    console = Console(stderr=True)
    columns = BarColumn(20), TaskProgressColumn(), Rate(), TimeRemainingColumn(elapsed_when_finished=True)
    stages: dict[str, TaskID] = {}
    with Progress(
        TextColumn("{task.description}"),
        *columns,
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not console.is_terminal,
    ) as bar:

        def progress(stage: str, done: int, total: int, note: str) -> None:
            if stage not in stages:
                for task in stages.values():
                    bar.update(task, completed=1, total=1)
                    bar.stop_task(task)
                stages[stage] = bar.add_task(stage, total=total, note=note)
            bar.update(stages[stage], completed=done, total=total or None, note=note)

        yield progress


class Summary:
    """The figures of a data directory; ``print`` it with rich, or take ``to_dict()``."""

    def __init__(self, data: DataDir):
        self.data = data

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        told = self.data.manifest
        return {
            "path": str(self.data.path),
            "task": self.data.task,
            "splits": self.splits,
            "labels": self.data.labels,
            "tokenizers": {file: {**facts, **self.use[file]} for file, facts in told["tokenizers"].items()},
            **({"images": told["images"]} if "images" in told else {}),
            "samples": [{name: " ".join(tokens) for name, tokens in sample.items()} for sample in self.samples],
        }

    @cached_property
    def splits(self) -> dict[str, dict[str, Any]]:
        """The lengths in each split, and what the filters dropped."""
        found: dict[str, dict[str, Any]] = {}
        for split in self.data.splits:
            facts = self.data.manifest["splits"][split]
            columns = {name: _lengths(rows) for name, rows in self._texts(split).items()}
            columns |= {"image": {"shape": list(self.data.split(split)["image"].shape[1:])}} if self.data.images else {}
            found[split] = {key: facts[key] for key in ("examples", "read", "dropped", "broken") if key in facts}
            if self.data.task == "translate":
                ratio = columns["source"]["tokens"] / columns["target"]["tokens"]
                found[split]["source_target_ratio"] = round(ratio, 3)
            found[split]["columns"] = columns
        return found

    @cached_property
    def use(self) -> dict[str, dict[str, float]]:
        """How much of each vocabulary occurs in the training data, and how much of that are single bytes."""
        counts: dict[str, np.ndarray] = {}
        for column, rows in self._texts("train").items():
            file, tokenizer = self._file(column), self.data.tokenizer_of(column)
            counts.setdefault(file, np.zeros(len(tokenizer), np.int64))
            for start in range(0, len(rows.ids), 1 << 22):  # bincount wants 8 bytes a token
                counts[file] += np.bincount(rows.ids[start : start + (1 << 22)], minlength=len(tokenizer))
        return {
            file: {
                "used": round(float((of > 0).mean()), 4),
                "bytes": round(float(of[self._tokenizer(file).byte_ids].sum() / of.sum()), 6),
            }
            for file, of in counts.items()
        }

    @cached_property
    def samples(self) -> list[dict[str, list[str]]]:
        """A few examples from all over the training data, as their tokens."""
        columns = {
            name: values for name, values in self.data.split("train").items() if name not in ("image", "of", "codes")
        }
        n = self.data.manifest["splits"]["train"]["examples"]
        shown = min(SAMPLES, n)
        return [self._sample(columns, n * k // shown) for k in range(shown)]

    def _sample(self, columns: dict[str, Ragged | np.ndarray], i: int) -> dict[str, list[str]]:
        labels, sample = self.data.labels, dict[str, list[str]]()
        for name, values in columns.items():
            row = np.atleast_1d(values[i])[:SHOWN].tolist()
            if name == "label":
                sample[name] = [labels[label] if labels else f"{label:g}" for label in row]
            elif name == "tag":
                sample[name] = [labels[label] if label >= 0 else "-" for label in row]
            else:
                sample[name] = [self.data.tokenizer_of(name).token(id) for id in row]
        return sample

    def _texts(self, split: str) -> dict[str, Ragged]:
        columns = self.data.split(split).items()
        return {name: rows for name, rows in columns if name != "tag" and isinstance(rows, Ragged)}

    def _file(self, column: str) -> str:
        own = column == "source" and self.data.source_tokenizer is not self.data.tokenizer
        return "source.tokenizer.json" if own else "tokenizer.json"

    def _tokenizer(self, file: str) -> Tokenizer:
        return self.data.source_tokenizer if file.startswith("source") else self.data.tokenizer

    # -- the page ------------------------------------------------------------------------

    def __rich__(self) -> RenderableType:
        return Group(*self._page())

    def _page(self) -> Iterator[RenderableType]:
        yield Text(f"{self.data.path}: {self.data.task}\n", style="bold")
        if self.data.images:
            yield from self._pictured()
            if not self.data.has_text:
                return
            yield Text()
        headings = ("examples", "tokens", "mean", "median", "95 %", "longest")
        table = _table("", "", *headings)
        for split, facts in self.splits.items():
            texts = {name: of for name, of in facts["columns"].items() if "tokens" in of}
            for i, (name, of) in enumerate(texts.items()):
                numbers = (of["tokens"], of["mean"], of["median"], of["p95"], of["longest"])
                first = (split, name, f"{facts['examples']:,}") if i == 0 else ("", name, "")
                table.add_row(*first, *(f"{number:,}" for number in numbers))
        yield table
        for split, facts in self.splits.items():
            if "source_target_ratio" in facts:
                yield Text(f"{split}: {facts['source_target_ratio']} source tokens to a target token")
            dropped = [f"{n:,} {_WHY[reason]}" for reason, n in facts.get("dropped", {}).items() if n]
            if dropped:
                yield Text(f"{split}: {', '.join(dropped)} dropped of {facts['read']:,}")
        if self.data.labels:
            yield Text(f"{len(self.data.labels)} labels: {', '.join(self.data.labels)}")

        yield Text()
        table = _table("vocabulary", "size", "occur", "tokens a word", "bytes")
        for file, facts in self.data.manifest["tokenizers"].items():
            use = self.use[file]
            shares = f"{use['used']:.1%}", f"{facts['tokens_per_word']:.2f}", f"{use['bytes']:.2%}"
            table.add_row(file, f"{facts['vocab_size']:,}", *shares)
        yield table

        yield Text()
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for sample in self.samples:
            for name, tokens in sample.items():
                table.add_row(name, Text(" ".join(tokens), no_wrap=True, overflow="ellipsis"))
        yield table

    def _pictured(self) -> Iterator[RenderableType]:
        """Of images: how many of each label there are, what could not be read, and the colours."""
        numbers = {split: np.bincount(self.data.split(split)["label"]) for split in self.splits if self.data.labels}
        table = _table("", *self.splits)
        table.add_row("images", *(f"{len(self.data.split(split)['image']):,}" for split in self.splits))
        for i, label in enumerate(self.data.labels):
            table.add_row(f"  {label}", *(f"{of[i] if i < len(of) else 0:,}" for of in numbers.values()))
        yield table
        told = self.data.manifest["images"]
        colours = "grey" if told["channels"] == 1 else "red, green, blue"
        mean, std = (", ".join(f"{value:.3f}" for value in told[name]) for name in ("mean", "std"))
        yield Text(f"\n{told['size']} x {told['size']} pixels, {colours}: mean {mean}; deviation {std}")
        for split, facts in self.splits.items():
            if broken := facts.get("broken"):
                n = facts["dropped"]["broken"]
                whose = "captions are of images that" if self.data.has_text else "images"
                yield Text(f"{split}: {n:,} of {facts['read']:,} {whose} cannot be read and are left out:")
                yield from (Text(f"  {why}") for why in broken)


_WHY = {
    "empty": "empty",
    "too long": "too long",
    "ratio": "of unequal length",
    "broken": "of images that cannot be read",
    "alike": "with the same answer twice",
}


def _lengths(rows: Ragged) -> dict[str, Any]:
    median, p95 = np.percentile(rows.lengths, [50, 95])
    return {
        "tokens": len(rows.ids),
        "mean": round(float(rows.lengths.mean()), 1),
        "median": round(float(median)),
        "p95": round(float(p95)),
        "longest": int(rows.lengths.max()),
    }


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i == 0 or not heading else "right", no_wrap=True)
    return table
