"""Attention as pictures for paper: a heatmap, lines between two rows of names, a grid of all heads. As .png, .svg, or
.html, which is dark where the system is.

They need matplotlib. One hue, darker where there is more, so that they can be read without colours. How dark a share is
depends on how many there are to look at: one that is as large as all others' is a quarter dark, of four tokens as of
four hundred. Names that would touch are left out.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray

from regard.config import InputError
from regard.files import drafted, write_text
from regard.look.document import document
from regard.look.page import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

    from regard.look.attention import Layer, Looks

DARKEST = "#08519c"  # all of the attention; white is none
DPI = 120
NAME = 18  # characters of a name
LETTER = 8  # points
APART = 0.14  # inches between names
MOST = 30  # names of a side, unless there is room for all
FEW, LEAST = 3, 0.001  # lines of each that looks, and the share of the thinnest
PAGE = """html { background: white; }
body { place-items: center; min-height: 100vh; max-width: none; }
svg { max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) {
  html { background: black; }
  svg, svg image[id^="photo"] { filter: invert(1) hue-rotate(180deg); }
}
"""  # dark is the same, turned inside out with its hues kept; photos are turned back
CELL, GAP = 48, 4  # pixels of a small head, and between two


def save(path: str | Path, draw: Callable[..., Figure], *what: Any) -> Path:
    """Draw something and write it as .png, .svg or .html, by the ending."""
    path = Path(path)
    if path.suffix not in (".png", ".svg", ".html"):
        raise InputError(f"{path}: a picture is .png, .svg or .html")
    try:
        import matplotlib
    except ImportError:
        raise InputError(f"{path}: needs matplotlib; pip install 'regard[plots]'") from None
    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": LETTER}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a script that the font has not: a box
        figure = draw(*what)
        if path.suffix == ".html":
            file = io.StringIO()
            figure.savefig(file, format="svg")
            svg = file.getvalue()
            write_text(path, document(path.stem, svg[svg.index("<svg") :], style=PAGE))
            return path
        with drafted(path) as draft:
            # The best compression would take as long as all the rest.
            how: dict[str, Any] = {"pil_kwargs": {"compress_level": 3}} if path.suffix == ".png" else {}
            figure.savefig(draft, format=path.suffix[1:], dpi=DPI, **how)
    return path


def heatmap(seen: Looks) -> Figure:
    """A row for each that looks, a column for each that is looked at."""
    t, s = seen.weights.shape
    cell = min(0.3, max(1 / DPI, 8 / max(t, s)))  # inches; at least a pixel
    figure = _figure(cell * s + 2.4, cell * t + 1.8)
    axes = figure.add_subplot()
    shades = _shades(s)
    axes.imshow(shades.to_rgba(seen.weights, bytes=True), aspect="auto", interpolation="nearest")
    _names(axes, seen.rows, seen.columns, cell)
    axes.set_title(plain(seen.name, 80), fontsize=LETTER + 2, pad=10)
    figure.colorbar(shades, ax=axes, ticks=_ticks(s), shrink=min(1.0, 2 / (cell * t)), label="share")
    return figure


def lines(seen: Looks) -> Figure:
    """Two columns of names and lines from each on the left to what it looks at on the right, thicker where it looks
    more; of each, the few that it looks at most."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    t, s = seen.weights.shape
    step = min(0.22, max(0.02, 14 / max(t, s)))  # inches
    figure = _figure(6, step * max(t, s) + 0.6)
    axes = figure.add_subplot()
    most = np.argsort(-seen.weights, axis=1, kind="stable")[:, :FEW]
    shown = [(i, int(j), float(seen.weights[i, j])) for i in range(t) for j in most[i] if seen.weights[i, j] > LEAST]
    colours = [to_rgba(DARKEST, min(1.0, share ** power(s))) for _, _, share in shown]
    widths = [0.4 + 2.6 * share for *_, share in shown]
    ends = [[(0.0, float(i)), (1.0, float(j))] for i, j, _ in shown]
    axes.add_collection(LineCollection(ends, colors=colours, linewidths=widths, capstyle="round"))
    for names, x, side in ((seen.rows, -0.02, "right"), (seen.columns, 1.02, "left")):
        for i in _thinned(len(names), step):
            axes.text(x, i, plain(names[i]), ha=side, va="center")
    axes.set_xlim(-0.75, 1.75)
    axes.set_ylim(max(t, s) - 0.5, -0.5)
    axes.set_title(plain(seen.name, 80), fontsize=LETTER + 2)
    axes.set_axis_off()
    return figure


def head_grid(layers: Sequence[Layer]) -> Figure:
    """Every head small: a row for each layer, a column for each head; their rows and columns are put together where
    there are many."""
    from regard.look.report import SMALL, downsampled

    n_heads = max(layer.n_heads for layer in layers)
    tile = CELL + GAP
    columns = min(SMALL, max(len(layer.columns) for layer in layers))
    whole = np.full((tile * len(layers) - GAP, tile * n_heads - GAP), np.nan)
    for i, layer in enumerate(layers):
        for h, small in enumerate(downsampled(layer.formed().numpy(), SMALL)):
            whole[tile * i : tile * i + CELL, tile * h : tile * h + CELL] = _stretched(small, CELL)
    inch = 0.62
    figure = _figure(inch * n_heads + 1.8, inch * len(layers) + 0.9)
    axes = figure.add_subplot()
    axes.imshow(_shades(columns).to_rgba(np.ma.masked_invalid(whole), bytes=True), interpolation="nearest")
    for i, layer in enumerate(layers):
        for h in range(layer.n_heads):
            axes.add_patch(_frame(tile * h - 0.5, tile * i - 0.5, CELL))
    axes.set_xticks([tile * h + CELL / 2 for h in range(n_heads)], [str(h) for h in range(n_heads)])
    axes.set_yticks([tile * i + CELL / 2 for i in range(len(layers))], [layer.name for layer in layers])
    axes.tick_params(top=True, bottom=False, labeltop=True, labelbottom=False, length=0)
    axes.set_xlim(-1.5, whole.shape[1] + 0.5)
    axes.set_ylim(whole.shape[0] + 0.5, -1.5)
    axes.set_title("heads", fontsize=LETTER + 2)
    axes.spines[:].set_visible(False)
    return figure


def photos(images: Sequence[UInt8[NDArray, "H W 3"]], names: Sequence[str], across: int, inches: float) -> Figure:
    """Images beside and below each other, each under its name and so wide."""
    across = min(across, len(images))
    rows = math.ceil(len(images) / across)
    figure = _figure(inches * across, (inches + 0.4) * rows)
    for i, (image, name) in enumerate(zip(images, names, strict=True)):
        axes = figure.add_subplot(rows, across, i + 1)
        axes.imshow(image, gid=f"photo-{i}", interpolation="nearest")
        axes.set_title(name, fontsize=LETTER + 1)
        axes.set_axis_off()
    return figure


def plain(name: str, most: int = NAME) -> str:
    """A name to be drawn: short, printable, and no mathematics.

    >>> plain("$x_1$"), plain("line\\nend")
    ('\\\\$x_1\\\\$', 'line·end')
    """
    return printable(name, most).replace("$", r"\$")


# ---------------------------------------------------------------------------------------


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(max(width, 3.2), max(height, 2.0)), layout="constrained")


def power(columns: int) -> float:
    """What a share is raised to, to be as dark as it is shown; the page computes the same.

    >>> [round((1 / n) ** power(n), 2) for n in (4, 400)]
    [0.25, 0.25]
    """
    return min(1.0, math.log(4) / math.log(max(columns, 2)))


def _shades(columns: int) -> ScalarMappable:
    """From white to the darkest. Weights are coloured before they are drawn: matplotlib would take twice as long."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    hue = LinearSegmentedColormap.from_list("one hue", ["white", DARKEST])
    return ScalarMappable(PowerNorm(power(columns), vmin=0, vmax=1), hue)


def _ticks(columns: int) -> list[float]:
    """Shares to be named beside the shades, none so near to another that they touch."""
    ticks = [0.0]
    for share in (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0):
        if share ** power(columns) - ticks[-1] ** power(columns) > 0.12:
            ticks.append(share)
    return ticks


def _frame(x: float, y: float, side: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), side, side, fill=False, edgecolor="#9a9ba3", linewidth=0.5)


def _names(axes: Axes, rows: Sequence[str], columns: Sequence[str], cell: float) -> None:
    """Names at both sides of a heatmap, as many as there is room for."""
    below, across = _thinned(len(rows), cell), _thinned(len(columns), cell)
    axes.set_yticks(below, [plain(rows[i]) for i in below])
    axes.set_xticks(across, [plain(columns[j]) for j in across], rotation=90)
    axes.tick_params(top=True, bottom=False, labeltop=True, labelbottom=False, length=2)
    axes.spines[:].set_color("#9a9ba3")


def _thinned(n: int, apart: float) -> list[int]:
    """Which of n names have room, where two stand so many inches apart.

    >>> _thinned(5, 0.2), _thinned(5, 0.07)
    ([0, 1, 2, 3, 4], [0, 2, 4])
    """
    every = max(1, int(np.ceil(APART / apart - 1e-9)))
    return list(range(0, n, every if every == 1 else max(every, -(-n // MOST))))


def _stretched(small: Float[NDArray, "t s"], size: int) -> Float[NDArray, "size size"]:
    """The same with so many rows and columns, repeated."""
    t, s = small.shape
    return small[np.arange(size) * t // size][:, np.arange(size) * s // size]
