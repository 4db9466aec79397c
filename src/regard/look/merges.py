"""Which merges made a word's subwords (Sennrich et al. 2016): a tokenizer's own, from letters up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from regard.config import InputError
from regard.data.tokenizer import Tokenizer
from regard.look import pictures
from regard.look.page import as_text, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 60  # letters that are drawn


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A token and the two that it was merged from, with the number of that merge; a letter or a byte has none."""

    name: str
    number: int | None = None
    parts: tuple[Piece, ...] = ()

    def steps(self) -> Iterator[Piece]:
        """The merges below it and its own."""
        for part in self.parts:
            yield from part.steps()
        if self.parts:
            yield self

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"name": self.name, "number": self.number, "parts": [part.to_dict() for part in self.parts]}


@dataclass(frozen=True, kw_only=True)
class Merges:
    """The subwords of a text, each with what it was merged from.

    >>> from regard import recipe
    >>> mine = Tokenizer.train(["dog dog do"], recipe.Tokenizer(vocab_size=267))
    >>> print(merges(mine, "dog do"))
    dog do: 2 tokens: ▁dog ▁do
    <BLANKLINE>
    merge  of         makes
        1  ▁ + d      ▁d
        2  ▁d + o     ▁do
        3  ▁do + g    ▁dog
    """

    text: str
    pieces: tuple[Piece, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"text": self.text, "pieces": [piece.to_dict() for piece in self.pieces]}

    def __str__(self) -> str:
        return as_text(self)

    def __rich__(self) -> Group:
        names = " ".join(printable(piece.name) for piece in self.pieces)
        title = Text(f"{printable(self.text, 200)}: {len(self.pieces)} tokens: {names}\n")
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("merge", justify="right")
        table.add_column("of", min_width=9)
        table.add_column("makes")
        once = {(step.number, step.name): step for piece in self.pieces for step in piece.steps()}
        for _, step in sorted(once.items(), key=lambda one: one[0]):
            of = " + ".join(printable(part.name) for part in step.parts)
            table.add_row(f"{(step.number or 0) + 1:,}", Text(of), Text(printable(step.name)))
        return Group(title, table)

    def save(self, path: str | Path) -> Path:
        """Draw them as trees, letters below."""
        if (n := sum(_leaves(piece) for piece in self.pieces)) > MOST:
            raise InputError(f"text of {n} letters is too long for one picture; give one of at most {MOST}")
        return pictures.save(path, self._drawn)

    def _drawn(self) -> Figure:
        from matplotlib.figure import Figure

        wide, high = sum(_leaves(piece) for piece in self.pieces), max(map(_height, self.pieces))
        figure = Figure(figsize=(max(3.0, 0.62 * wide + 0.6), 0.55 * high + 1.2), layout="constrained")
        axes = figure.add_subplot()
        left = 0.0
        for piece in self.pieces:
            _draw(axes, piece, left)
            left += _leaves(piece)
        axes.set_xlim(-0.7, wide - 0.3)
        axes.set_ylim(-0.5, high + 0.6)
        axes.set_axis_off()
        return figure


def merges(tokenizer: Tokenizer, text: str) -> Merges:
    """What the tokens of a word or a short text were merged from."""
    ids = tokenizer.encode(text)
    if not ids:
        raise InputError(f"text ({text!r}) is empty; give a word")
    model = json.loads(tokenizer.to_json())["model"]
    if not model.get("merges"):
        raise InputError(f"this tokenizer ({model['type']}) does not merge; give a model with subwords of byte pairs")
    names, prefix = model["vocab"], model.get("continuing_subword_prefix") or ""
    number = {}
    for i, (first, second) in enumerate(model["merges"]):
        number.setdefault(names[first + second.removeprefix(prefix)], i)

    def piece(id: int) -> Piece:
        parts = tuple(piece(part) for part in tokenizer.parents[id].tolist() if part >= 0)
        return Piece(name=tokenizer.token(id), number=number[id] if parts else None, parts=parts)

    return Merges(text=text, pieces=tuple(map(piece, ids)))


def _leaves(piece: Piece) -> int:
    return sum(map(_leaves, piece.parts)) or 1


def _height(piece: Piece) -> int:
    return 1 + max(map(_height, piece.parts)) if piece.parts else 0


def _draw(axes: Axes, piece: Piece, left: float) -> float:
    """A piece over its parts; where its middle is."""
    middles, at = [], left
    for part in piece.parts:
        middles.append((_draw(axes, part, at), _height(part)))
        at += _leaves(part)
    x, y = (sum(middle for middle, _ in middles) / len(middles), _height(piece)) if middles else (left, 0)
    for middle, below in middles:
        axes.plot([middle, middle, x], [below, y, y], color="#9a9ba3", linewidth=1, zorder=1)
    box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": pictures.DARKEST if middles else "#9a9ba3"}
    told = pictures.plain(piece.name) + ("" if piece.number is None else f"\n{piece.number + 1:,}")
    axes.text(x, y, told, ha="center", va="center", bbox=box, fontsize=pictures.LETTER, zorder=2)
    return x
