"""What needs no input to be looked at: the vectors that say where a token stands, and who may look at whom."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from rich.console import Group
from rich.table import Table
from rich.text import Text

from regard.config import InputError
from regard.look import pictures
from regard.look.page import as_text
from regard.nn.masks import Mask, allowed
from regard.nn.positions import sinusoid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.model import Model

SIZES = ((10, 64), (50, 128))  # positions and width of the lectures' pictures
DISTANCES = (0, 1, 2, 4, 8, 16, 32)
N = 8  # tokens of a mask


# ---------------------------------------------------------------------------------------
# Positions


@dataclass(frozen=True, kw_only=True, eq=False)
class PositionTable:
    """The vectors of the first positions, a row each."""

    name: str
    values: Float[NDArray, "T d"]

    def similarity(self) -> Float[NDArray, "T T"]:
        """The cosine between every two."""
        unit = self.values / np.linalg.norm(self.values, axis=1, keepdims=True).clip(1e-12)
        return unit @ unit.T


@dataclass(frozen=True, kw_only=True, eq=False)
class PositionTables:
    """Some tables of positions, to be seen beside each other.

    >>> print(positions())
    cosine between positions that stand so far apart
    <BLANKLINE>
    table                        0     1     2     4     8    16    32
    sinusoidal, 10 x 64       1.00  0.97  0.88  0.75  0.70
    sinusoidal, 50 x 128      1.00  0.97  0.90  0.76  0.71  0.62  0.56
    """

    tables: tuple[PositionTable, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"tables": [{"name": one.name, "values": one.values.tolist()} for one in self.tables]}

    def __str__(self) -> str:
        return as_text(self, width=100)

    def __rich__(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("table", min_width=24)
        for distance in DISTANCES:
            table.add_column(str(distance), justify="right", min_width=4)
        for one in self.tables:
            alike = one.similarity()
            means = [np.diagonal(alike, d).mean() if d < len(alike) else None for d in DISTANCES]
            table.add_row(one.name, *("" if mean is None else f"{mean:.2f}" for mean in means))
        return Group(Text("cosine between positions that stand so far apart\n"), table)

    def save(self, path: str | Path) -> Path:
        """Draw them: the numbers, and how alike every two positions are."""
        return pictures.save(path, self._drawn)

    def _drawn(self) -> Figure:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 3.2 * len(self.tables)), layout="constrained")
        panels = figure.subplots(len(self.tables), 2, width_ratios=[2.4, 1], squeeze=False)
        for (left, right), one in zip(panels, self.tables, strict=True):
            most = float(np.abs(one.values).max()) or 1.0
            shown = left.imshow(one.values, cmap="PuOr", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
            left.set(title=pictures.plain(one.name, 80), xlabel="number of the vector", ylabel="position")
            figure.colorbar(shown, ax=left)
            alike = right.imshow(one.similarity(), cmap="PuOr", vmin=-1, vmax=1, interpolation="nearest")
            right.set(title="cosine between positions", xlabel="position", ylabel="position")
            figure.colorbar(alike, ax=right)
        return figure


def positions(model: Model | None = None) -> PositionTables:
    """The sinusoids of the 2017 paper, 10 positions of 64 numbers and 50 of 128; or the vectors that a model has."""
    if model is None:
        tables = [(f"sinusoidal, {n} x {d}", sinusoid(n, d)) for n, d in SIZES]
    else:
        towers = {name: getattr(model.net, name) for name in ("encoder", "decoder", "text")}
        joined = {name: of for name, tower in towers.items() if (of := getattr(tower, "positions", None)) is not None}
        if not joined:
            raise InputError(
                f"{model.path or 'this model'}: has no vectors of positions to look at; give another model"
            )
        tables = []
        for name, module in joined.items():
            config = getattr(model.config, name)
            most, width = SIZES[-1]
            ids = torch.arange(min(most, config.n_positions), device=model.device)[None]
            with torch.no_grad():
                vectors = module(ids)[0, :, :width].float().cpu()
            title = f"{name}, {config.positions.kind}, {vectors.shape[0]} x {vectors.shape[1]}"
            tables.append((title, vectors))
    return PositionTables(tables=tuple(PositionTable(name=name, values=of.numpy()) for name, of in tables))


# ---------------------------------------------------------------------------------------
# Masks


@dataclass(frozen=True, kw_only=True, eq=False)
class Masks:
    """Who may look at whom, in each kind of mask: rows look, columns are looked at.

    >>> print(masks().tables["causal"].astype(int)[:3, :4])
    [[1 0 0 0]
     [1 1 0 0]
     [1 1 1 0]]
    """

    tables: dict[str, Bool[NDArray, "T T"]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {name: of.tolist() for name, of in self.tables.items()}

    def __str__(self) -> str:
        return as_text(self)

    def __rich__(self) -> Group:
        parts = []
        names = list(self.tables)
        for some in (names[i : i + 3] for i in range(0, len(names), 3)):
            parts.append(Text("".join(f"{name:25}" for name in some), "bold"))
            for row in zip(*(self.tables[name] for name in some), strict=True):
                parts.append(Text("".join(f"{' '.join('█' if may else '·' for may in one):25}" for one in row)))
            parts.append(Text())
        return Group(*parts[:-1])

    def save(self, path: str | Path) -> Path:
        """Draw them."""
        return pictures.save(path, self._drawn)

    def _drawn(self) -> Figure:
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 5.6), layout="constrained")
        for axes, (name, may) in zip(figure.subplots(2, 3).flat, self.tables.items(), strict=True):
            axes.pcolormesh(
                may[::-1],
                cmap=ListedColormap(["white", pictures.DARKEST]),
                vmin=0,
                vmax=1,
                edgecolors="#9a9ba3",
                lw=0.5,
            )
            axes.set(title=name, xticks=[], yticks=[], aspect="equal")
        figure.supxlabel("is looked at", fontsize=pictures.LETTER + 1)
        figure.supylabel("looks", fontsize=pictures.LETTER + 1)
        return figure


def masks() -> Masks:
    """The masks of a row of eight tokens, as the model builds them."""
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]])
    kinds = {
        "padding (6 are real)": Mask(ends=torch.tensor([6])),
        "causal": Mask(causal=True),
        "prefix (of 3)": Mask(causal=True, prefix=torch.tensor([3])),
        "window (of 2)": Mask(window=2),
        "causal window (of 2)": Mask(causal=True, window=2),
        "packed (3 texts)": Mask(query_documents=documents, key_documents=documents),
    }
    tables = {}
    for name, mask in kinds.items():
        may = allowed(mask, N, N)
        assert may is not None, "each forbids something"
        tables[name] = may.expand(1, 1, N, N)[0, 0].numpy()
    return Masks(tables=tables)
