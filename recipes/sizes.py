"""A score over how much labelled data there was: what labelled.py and inductive.py have in common."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

from regard.files import drafted

SIZES = [100, 300, 1_000, 3_000, 10_000, 0]  # 0: all there are
MANY = 3_000  # up to here a set is drawn, and trained on, several times

Figures = dict[str, list[float]]  # the scores of each size, by how many examples that are


def read_figures(folder: Path, names: Iterable[str]) -> dict[str, Figures]:
    """Those that are there: NAME.json of each."""
    there = {name: folder / f"{name}.json" for name in names}
    return {name: json.loads(file.read_text()) for name, file in there.items() if file.exists()}


def over_sizes(
    axes: Any, found: dict[str, Figures], looks: dict[str, dict[str, Any]], labels: dict[str, str], shade: float
) -> None:
    """A line for each, through the means, in a band from its worst run to its best."""
    for name, of_sizes in found.items():
        x, values = [int(n) for n in of_sizes], list(of_sizes.values())
        axes.fill_between(x, [*map(min, values)], [*map(max, values)], color=looks[name]["color"], alpha=shade)
        axes.plot(x, [*map(mean, values)], markersize=5, linewidth=1.5, label=labels[name], **looks[name])
    ticks = sorted({int(n) for of_sizes in found.values() for n in of_sizes})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)


def blank() -> tuple[Any, Any]:
    """A picture with nothing on it yet."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(7.2, 4.4), layout="constrained")


def keep(figure: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    with drafted(path) as file:
        figure.savefig(file, dpi=150, format="png")
    plt.close(figure)
