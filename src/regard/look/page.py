"""How the worked example looks: titles, tables and one number worked out in full, as rich text 80 columns wide.

Nothing is computed here but what is shown: the first rows and columns of each matrix, and the first terms of a sum.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from regard.config import Stack

if TYPE_CHECKING:
    from torch import Tensor

    from regard.look.scores import ScoresWalk
    from regard.look.steps import Walk

ROWS = COLUMNS = 8
LABEL = 10  # width of a row's name
CELL = 7  # of a column's
BARS = "▁▂▃▄▅▆▇█"


def as_text(page: RenderableType, width: int = 80) -> str:
    """As printed into a pipe: no colour, and no spaces at the ends of lines.

    >>> as_text(Text("one two three"), width=8)
    'one two\\nthree'
    """
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, force_terminal=False, highlight=False).print(page)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


# ---------------------------------------------------------------------------------------
# The pages


def scores_page(steps: ScoresWalk) -> Group:
    """A row a key: its score, scaled, and its weight as a number and as a bar."""
    table = Table(box=None, padding=(0, 0, 0, 2), pad_edge=True)
    for heading in ("key", "score", "scaled", "weight"):
        table.add_column(heading, justify="right")
    table.add_column()
    for i, (score, scaled, weight) in enumerate(zip(steps.scores, steps.scaled, steps.weights, strict=True)):
        bar = Text("█" * round(20 * weight), style="cyan")
        table.add_row(str(i + 1), f"{score:g}", f"{scaled:.4f}", f"{weight:.4f}", bar)
    root = math.sqrt(steps.d_key)
    title = f"From scores to weights: divide by √{steps.d_key} = {root:.5g}, then softmax"
    return Group(Text(title, style="bold"), Text(), table)


def walk_page(steps: Walk) -> Group:
    """The six steps, from the title down."""
    return Group(*_walk_lines(steps))


def _walk_lines(steps: Walk) -> Iterator[RenderableType]:
    T, S = steps.tokens, steps.key_tokens
    q, k, v = Matrix("q", steps.q), Matrix("k", steps.k), Matrix("v", steps.v)
    scores, scaled = Matrix(S, steps.scores), Matrix(S, steps.scaled)
    weights = Matrix(S, steps.weights[:ROWS])
    visible = Matrix(S, weights.values.masked_fill(steps.scaled[:ROWS] == -math.inf, -math.inf))

    # One query and one key are worked out in full: the first query that may look at most keys, and the next key.
    shown = steps.scores[:ROWS, :COLUMNS].isfinite()
    t = int(shown.sum(dim=1).argmax())
    s = 1 if len(S) > 1 and shown[t, 1] else 0
    seen = steps.scaled[t].isfinite().nonzero().flatten().tolist()
    asks, asked = _label(T[t]), _label(S[s])

    kind = "Self" if steps.memory is None else "Cross"
    yield Text(f"{kind}-attention in six steps: layer {steps.layer}, head {steps.head}", style="bold")
    yield Text(steps.note)

    yield from _step(1, "Inputs", "X", f"What comes into the layer: {steps.inputs.shape[1]} numbers a token.")
    yield from _table(T, Matrix("x", steps.inputs))
    if steps.memory is not None:
        yield Text("\n   M, the memory: what the encoder made of the source.\n")
        yield from _table(S, Matrix("m", steps.memory))

    yield from _step(2, "Queries, keys, values", *_projection(steps))
    if steps.memory is None:
        yield from _table(T, q, k, v)
    else:
        yield from _table(T, q)
        yield Text()
        yield from _table(S, k, v)

    additive = steps.config.score == "additive"
    hidden = "" if steps.scores.isfinite().all() else "; - is out of its sight"
    formula = "S = w · tanh(q + k)" if additive else "S = Q Kᵀ"
    yield from _step(3, "Scores", formula, f"How well each query (row) fits each key (column){hidden}.")
    yield from _table(T, scores)
    if not additive:
        products = _sum(range(steps.q.shape[1]), 3, lambda i: f"{q.number(t, i)} * {k.number(s, i)}")
        yield _example(f"{asks} · {asked} = {products} = {scores.number(t, s)}")

    yield from _step(4, "Scaling", *_scaling(steps))
    yield from _table(T, scaled)
    if steps.scale != 1 and not _alibi(steps):
        yield _example(f"{asks} · {asked}: {scores.number(t, s)} / {1 / steps.scale:.3f} = {scaled.number(t, s)}")

    yield from _step(5, "Softmax", "A = softmax of each row", "Every row becomes shares that sum to 1.")
    yield from _table(T, visible, bars=True)
    powers = _sum(seen, 4, lambda i: f"e^{scaled.number(t, i)}")
    yield _example(f"{asks} · {asked}: e^{scaled.number(t, s)} / ({powers}) = {weights.number(t, s)}")

    yield from _step(6, "Weighted sum", "Z = A V", "Every query takes its shares of the values.")
    yield from _table(T, Matrix("z", steps.outputs))
    yield _example(f"z({asks}) = {_sum(seen, 4, lambda i: f'{weights.number(t, i)} v({_label(S[i])})')}")


# -- formulas and sentences that depend on the layer --------------------------------------


def _projection(steps: Walk) -> tuple[str, str]:
    """The formula and the sentence of step 2."""
    config = steps.config
    if not isinstance(config, Stack):
        turned = {"bilinear": "Q = X W   K = M", "additive": "Q = X Wq   K = M Wk"}
        formula = turned.get(str(config.score), "Q = X   K = M")
        return f"{formula}   V = M", "The decoder's state before each token asks; the encoder's states answer."
    memory = "X" if steps.memory is None else "M"
    bias = " + b" if config.bias else ""
    formula = f"Q = X Wq{bias}   K = {memory} Wk{bias}   V = {memory} Wv{bias}"
    after = ["normed"] if config.qk_norm else []
    after += ["turned by position"] if config.positions.kind == "rotary" and steps.memory is None else []
    after += [f"prepared for the {config.score} score"] if config.score in ("bilinear", "additive") else []
    sentence = "What a token looks for, what it is found by, and what it hands over."
    return formula, sentence + (f" Q and K are then {' and '.join(after)}." if after else "")


def _scaling(steps: Walk) -> tuple[str, str]:
    """The formula and the sentence of step 4."""
    penalty = " From that goes ALiBi's penalty for distance." if _alibi(steps) else ""
    if steps.scale == 1:
        return "none", f"The {steps.config.score} score is used as it is.{penalty}"
    formula = f"S / √d = S / √{steps.q.shape[1]} = S / {1 / steps.scale:.3f}"
    return formula, f"Longer vectors make larger products; dividing takes that out again.{penalty}"


def _alibi(steps: Walk) -> bool:
    return isinstance(steps.config, Stack) and steps.config.positions.kind == "alibi" and steps.memory is None


# ---------------------------------------------------------------------------------------
# What pages are made of


class Matrix:
    """Numbers under the names of their columns; a letter alone counts them: x1, x2 ...

    All have three decimals; fewer where one that is shown is large, so that six places are enough.
    """

    def __init__(self, columns: str | Sequence[str], values: Tensor):
        self.values, self.n_columns = values, values.shape[1]
        numbered = range(1, self.n_columns + 1)
        self.columns = [f"{columns}{i}" for i in numbered] if isinstance(columns, str) else columns
        shown = values[:ROWS, :COLUMNS].nan_to_num(0.0, 0.0, 0.0)
        largest = max(abs(float(end)) for end in shown.aminmax())
        decimals = sum(largest < limit for limit in (9.9995, 99.995, 999.95))
        self.format = f".{decimals}f" if largest < 99_999 else ".0e"

    def number(self, row: int, column: int) -> str:
        return f"{self.values[row, column]:{self.format}}"

    def cells(self, row: int, most: int, *, bars: bool) -> Iterator[Text]:
        """The first numbers of a row; a dash for what is none."""
        for value in self.values[row, :most].tolist():
            if not math.isfinite(value):
                yield Text("-", style="dim")
            elif bars:
                yield Text.assemble(f"{value:{self.format}} ", (BARS[min(int(8 * value), 7)], "cyan"))
            else:
                yield Text(f"{value:{self.format}}")


def _table(rows: Sequence[str], *matrices: Matrix, bars: bool = False) -> Iterator[RenderableType]:
    """Matrices with the same rows side by side, the first rows and columns of each, and a line on what is left out."""
    most = min(COLUMNS, 9 // len(matrices))
    table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False, header_style="dim")
    table.add_column(min_width=LABEL)
    for i, matrix in enumerate(matrices):
        if i:
            table.add_column(width=1)
        for name in matrix.columns[:most]:
            table.add_column(_short(name, CELL), justify="right", min_width=CELL if len(matrices) < 3 else 6)
    for r, name in enumerate(rows[:ROWS]):
        cells: list[Text] = []
        for i, matrix in enumerate(matrices):
            cells += [Text()] if i else []
            cells += matrix.cells(r, most, bars=bars)
        table.add_row(_short(name, LABEL), *cells)
    yield Padding(table, (0, 0, 0, 3))
    parts = [(len(rows), ROWS, "rows"), (max(matrix.n_columns for matrix in matrices), most, "columns")]
    left_out = [f"{n - shown} more {what}" for n, shown, what in parts if n > shown]
    if left_out:
        yield Padding(Text(f"... and {', '.join(left_out)}", style="dim"), (0, 0, 0, 3))


def _step(number: int, name: str, formula: str, sentence: str) -> Iterator[RenderableType]:
    yield Text.assemble("\n", (f"{number}  {name}", "bold"), "   ", (formula, "cyan"))
    yield Padding(Text(sentence), (0, 0, 1, 3))


def _example(line: str) -> RenderableType:
    return Padding(Text(line, style="italic"), (1, 0, 0, 3))


def _sum(indices: Sequence[int], most: int, term: Callable[[int], str]) -> str:
    """The terms with pluses between them; where there are too many, the first of them and dots."""
    if len(indices) <= most:
        return " + ".join(map(term, indices))
    return " + ".join([*map(term, indices[: most - 1]), "..."])


def _label(name: str) -> str:
    return _short(name, LABEL).plain


def _short(name: str, width: int) -> Text:
    text = Text(printable(name))
    text.truncate(width, overflow="ellipsis")
    return text


def printable(name: str, most: int | None = None) -> str:
    """A name to be shown, cut after so many characters: a token may be anything, and line ends and terminal codes must
    not get out.

    >>> printable("line\\nend"), printable("student", 4)
    ('line·end', 'stu…')
    """
    name = name if most is None or len(name) <= most else f"{name[: most - 1]}…"
    return "".join(c if c.isprintable() else "·" for c in name)
