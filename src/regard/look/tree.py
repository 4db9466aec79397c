"""A search to be seen: the beam as a tree, a page with the tree and a stepper, and both as text for a terminal.

Time goes to the right, in as many bands below each other as it takes; each way has a line of its own, and the best that
it was not to go on with stand below it. What is the answer is bold, what went on solid, what was pruned pale and
dashed, with the reason under the pointer.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from regard.files import write_text
from regard.look import pictures
from regard.look.document import asset, document, image_address, view
from regard.look.page import printable
from regard.look.pictures import plain
from regard.schema import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.look.trace import Candidate, Trace, Way

LETTERS = 10  # of a token that are shown
WORD, DEEPEST = 30, 16  # the same in a line of text, and how often that is indented
END = 60  # letters of what was written before, under the pointer
LETTER, GAP, ROW, HIGH = 7.6, 26, 23, 18  # pixels: a letter, between columns, a line, a box
WIDE = 1_080  # of a band
INK, SOFT, BOLD = "#1e1c19", "#8a857c", "#b4470f"  # of a picture that cannot ask for the reader's
LEGEND = "bold: the answer; solid: went on; dashed: not taken, the reason is under the pointer"


class Node(NamedTuple):
    """A box of the tree. ``place`` is the step and the way that choosing it leads to."""

    column: int
    line: int
    label: str
    kind: str  # a fate
    answer: bool
    title: str
    place: tuple[int, int]
    parent: tuple[int, int] | None  # column and line
    alive: bool = False


# ---------------------------------------------------------------------------------------
# Where everything stands


def nodes(trace: Trace) -> list[Node]:
    """The boxes of a tree, column by column."""
    answers = _answers(trace)
    most = max(len(step.ways) for step in trace.steps)
    below = max(1, 4 // most)  # lines under each way's own
    start = trace.prompt[-1]
    found = [Node(0, 0, printable(start, LETTERS), "taken", True, f"start: {printable(start, 80)}", (0, 0), None, True)]
    lines = {0: 0}  # of the ways before a step
    for t, step in enumerate(trace.steps):
        free, then = list(range((1 + below) * most)), dict[int, int]()
        leaves = [*_leaves(step.ways, below)]
        whole = {(one.way, one.id): one for one in trace.finished if one.step == t}
        first = [leaf for leaf in leaves if (one := whole.get((leaf[0].number, leaf[1].id))) and one.answer]
        children = [(way, one, into) for way in step.ways for one in way.candidates for into in one.into]
        # What is the answer goes straight on; then the others, the best first; then what does not go on.
        order = [*((way, one, None) for way, one in first)]
        order += sorted(children, key=lambda child: ((t + 1, child[2]) not in answers, child[2]))
        order += [(way, one, None) for way, one in leaves if (way, one) not in first]
        for way, one, into in order[: len(free)]:
            at, end = lines[way.number], whole.get((way.number, one.id))
            own = [line for line in free if line % (1 + below) == 0 and into is not None]
            line = min(own or free, key=lambda line: (abs(line - at) + 0.5 * (line < at), line))
            free.remove(line)
            title = f"{_tail(way.text, END)} + {printable(one.token, 80)}\n{_numbers(one)}\n{one.why}"
            label, parent = printable(one.token, LETTERS), (t, at)
            if into is None:
                label, answer = f"{label} {end.score:.2f}" if end else label, end is not None and end.answer
                found.append(Node(t + 1, line, label, one.fate, answer, title, (t, way.number), parent))
            else:
                then[into], answer = line, (t + 1, into) in answers
                found.append(Node(t + 1, line, label, "taken", answer, title, (t + 1, into), parent, True))
        lines = then
    return found


def _leaves(ways: tuple[Way, ...], below: int) -> Iterator[tuple[Way, Candidate]]:
    """What finished, and of each way the best that did not go on; as many as there is room for."""
    leaves = [(way, one) for way in ways for one in way.candidates if one.fate != "taken"]
    yield from (pair for pair in leaves if pair[1].fate in ("ended", "cut", "stopped"))
    for way in ways:
        pruned = [one for one in way.candidates if one.fate == "pruned"]
        done = sum(one.fate in ("ended", "cut", "stopped") for one in way.candidates)
        yield from ((way, one) for one in pruned[: max(0, below - done)])


def _answers(trace: Trace) -> set[tuple[int, int]]:
    """The step and the way of all that led to an answer."""
    return {
        (t, way.number) for one in trace.finished if one.answer for t, way in enumerate(trace.path(one.step, one.way))
    }


def _numbers(one: Candidate) -> str:
    return f"log-probability {one.logprob:.2f}, in all {one.total:.2f}"


class _Band(NamedTuple):
    """Some columns of a tree, and how they are placed."""

    first: int
    last: int
    top: float
    wide: float  # a column

    def x(self, column: int) -> float:
        return 12 + self.wide * (column - self.first + 0.5) - GAP / 2

    def y(self, line: int) -> float:
        return self.top + ROW * (line + 1.5)


def _bands(boxes: list[Node]) -> tuple[list[_Band], float, float]:
    """The bands of a tree, and the width and height of all. A band begins with the column that the last one ends
    with."""
    wide = GAP + LETTER * max(4, *(cell_len(node.label) for node in boxes))
    last, lines = max(node.column for node in boxes), 1 + max(node.line for node in boxes)
    at_once, bands = max(3, int(WIDE // wide) - 1), []
    for i, first in enumerate(range(0, max(last, 1), at_once)):
        bands.append(_Band(first, min(last, first + at_once), i * ROW * (lines + 1.5), wide))
    return bands, 12 + wide * (min(last, at_once) + 1), bands[-1].top + ROW * (lines + 1.5)


# ---------------------------------------------------------------------------------------
# Drawing


def svg(trace: Trace) -> str:
    """The tree, for a page."""
    boxes = nodes(trace)
    bands, width, height = _bands(boxes)
    width, told = max(width, 460), _escaped(f"The search as a tree. The answer: {trace.answer.text}", 2_000)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="beam" viewBox="0 0 {width:.0f} {height + 24:.0f}"'
            f' width="{width:.0f}" height="{height + 24:.0f}" role="img" aria-label="{told}">',
            f"<style>{asset('tree.css')}</style>",
            f'<rect class="paper" width="{width:.0f}" height="{height + 24:.0f}"/>',
            *(line for band in bands for line in _drawn(boxes, band)),
            f'<text class="said left" x="12" y="{height + 10:.1f}">{LEGEND}</text>',
            "</svg>",
        ]
    )


def _drawn(boxes: list[Node], band: _Band) -> Iterator[str]:
    """The lines, and over them the boxes."""
    for column in range(max(band.first, 1), band.last + 1):
        yield f'<text class="said" x="{band.x(column):.1f}" y="{band.top + 14:.1f}">{column}</text>'
    here = [node for node in boxes if band.first <= node.column <= band.last]
    here = [node for node in here if node.column > band.first or node.alive or band.first == 0]
    for node in sorted(here, key=lambda node: node.answer):
        if node.parent is None or node.column == band.first:
            continue
        ends = [band.x(node.parent[0]), band.y(node.parent[1]), band.x(node.column), band.y(node.line)]
        middle = (ends[0] + ends[2]) / 2
        curve = f"M{ends[0]:.1f} {ends[1]:.1f}C{middle:.1f} {ends[1]:.1f} {middle:.1f} {ends[3]:.1f}"
        yield f'<path class="edge {_kind(node)}" d="{curve} {ends[2]:.1f} {ends[3]:.1f}"/>'
    for node in here:
        x, y, letter = band.x(node.column), band.y(node.line), 1.1 * LETTER if node.answer else LETTER
        half = (letter * cell_len(node.label) + 12) / 2
        step, way = node.place
        own = f' data-node="{step}-{way}"' if node.alive else ""
        yield (
            f'<g class="{_kind(node)}" data-step="{step}" data-way="{way}"{own}><title>{_escaped(node.title)}</title>'
            f'<rect class="box" x="{x - half:.1f}" y="{y - HIGH / 2:.1f}" width="{2 * half:.1f}" height="{HIGH}"'
            f' rx="4"/><text x="{x:.1f}" y="{y + 4:.1f}">{_escaped(node.label)}</text></g>'
        )


def _kind(node: Node) -> str:
    return f"{node.kind} answer" if node.answer else node.kind


def save(trace: Trace, path: Path) -> Path:
    """Write the picture, or the page."""
    if path.suffix == ".svg":
        write_text(path, svg(trace))
    elif path.suffix == ".png":
        pictures.save(path, _figure, trace)
    elif path.suffix == ".html":
        write_text(path, page(trace))
    else:
        raise InputError(f"{path}: what a search did is .svg, .png or .html")
    return path


def _figure(trace: Trace) -> Figure:
    from matplotlib.figure import Figure

    boxes = nodes(trace)
    bands, width, height = _bands(boxes)
    figure = Figure(figsize=(width / 80, height / 80))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    styles = {"pruned": (0, (2, 2)), "stopped": (0, (2, 2)), "cut": (0, (6, 2))}
    for band in bands:
        for node in boxes:
            if not band.first <= node.column <= band.last or (node.column == band.first > 0 and not node.alive):
                continue
            x, y, faint = band.x(node.column), band.y(node.line), node.kind in ("pruned", "stopped")
            colour = BOLD if node.answer else SOFT if faint else INK
            style = {"color": colour, "linestyle": styles.get(node.kind, "-"), "linewidth": 2.5 if node.answer else 0.8}
            if node.parent is not None and node.column > band.first:
                axes.plot([band.x(node.parent[0]), x], [band.y(node.parent[1]), y], zorder=1 + node.answer, **style)
            box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": colour, "linewidth": 0.8}
            weight = "bold" if node.answer else "normal"
            axes.text(
                x, y, plain(node.label), ha="center", va="center", fontsize=8, color=colour, weight=weight, bbox=box
            )
    return figure


# ---------------------------------------------------------------------------------------
# In a terminal


def steps_page(trace: Trace) -> Group:
    """A line for each way before each step: what it went on with, and the best of what it did not."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("step", "so far"):
        table.add_column(name, justify="right")
    for name, most in (("after", 20), ("went on with", 24), ("not with", None)):
        table.add_column(name, max_width=most, overflow="fold")
    for t, step in enumerate(trace.steps):
        for i, way in enumerate(step.ways):
            on = [one for one in way.candidates if one.fate in ("taken", "ended", "cut")]
            left = [one for one in way.candidates if one not in on][:1]
            table.add_row(
                str(t + 1) if i == 0 else "",
                f"{way.total:.2f}",
                Text(_tail(way.text, 20)),
                Text(", ".join(f"{printable(one.token, WORD)} {_share(one):.0%}" for one in on) or "-"),
                Text("".join(f"{printable(one.token, WORD)}: {one.why}" for one in left), style="dim"),
            )
    return Group(_written(trace), table, Text(f"\nover: {trace.over}"))


class _Line(NamedTuple):
    """A branch of the tree, what is written on its line, and the branch that those stand under that go on from it."""

    branch: Tree
    words: list[str]
    home: Tree
    depth: int

    def parted(self) -> _Line:
        """A line for one of several that go on; at the deepest they stand below each other, after dots."""
        branch, flat = self.home.add(""), self.depth >= DEEPEST
        return _Line(branch, ["…"] if flat else [], self.home if flat else branch, self.depth + 1)


def tree_page(trace: Trace) -> Group:
    """The ways as an indented tree: a line goes on until its way parts, ends, or is given up, and says why it was."""
    root = Tree("")
    lines = [_Line(root, [printable(trace.prompt[-1], WORD)], root, 0)]
    runs = {0: lines[0]}  # of the ways before a step
    for t, step in enumerate(trace.steps):
        then = {}
        for way in step.ways:
            line = runs[way.number]
            whole = {one.id: one for one in trace.finished if (one.step, one.way) == (t, way.number)}
            on = [(one, into) for one in way.candidates for into in one.into or ((None,) if one.id in whole else ())]
            for one, into in on:
                run = line if len(on) == 1 else line.parted()
                lines += [run] if run is not line else []
                run.words.append(printable(one.token, WORD))
                if into is not None:
                    then[into] = run
                else:
                    end = whole[one.id]
                    run.words.append(f" {end.score:.2f}{', the answer' if end.answer else ''}")
                    run.branch.style = "bold" if end.answer else ""
            if not on:
                line.words.append(f" ✗ {printable(way.candidates[0].token, WORD)}: {way.candidates[0].why}")
                line.branch.style = "dim"
        runs = then
    for line in lines:
        line.branch.label = Text(" ".join(line.words))
    return Group(_written(trace), root, Text(f"\nover: {trace.over}"))


def _written(trace: Trace) -> Text:
    return Text(f"written: {printable(trace.answer.text, 2_000)}\n")


def _share(one: Candidate) -> float:
    return math.exp(one.logprob) if one.share is None else one.share


def _tail(text: str, most: int) -> str:
    return printable(text if len(text) <= most else f"…{text[1 - most :]}")


# ---------------------------------------------------------------------------------------
# The page


def page(trace: Trace) -> str:
    """One file with the tree and the stepper, which needs nothing else."""
    title = f"How a {({'translate': 'translation', 'caption': 'caption'}).get(trace.task, 'text')} was written"
    answer = _escaped(trace.answer.text, 20_000) or "nothing"
    body = (
        f'<h1>{title}</h1>\n<p class="answered"><bdi>{answer}</bdi></p>\n<section class="card">{drawn(trace)}</section>'
    )
    return document(title, body, views=["stepper"])


def drawn(trace: Trace) -> str:
    """The view, to be put into a page: the stepper, and the tree below it."""
    image = {} if trace.image is None else {"image": image_address(trace.image)}
    tree = f'<div class="step-tree" role="group" aria-label="The tree" tabindex="0">\n{svg(trace)}\n</div>'
    return f"{view('stepper', trace.to_dict(), **image)}\n{tree}"


def _escaped(text: str, most: int = 1_000) -> str:
    return "\n".join(html.escape(printable(line, most)) for line in text.split("\n"))
