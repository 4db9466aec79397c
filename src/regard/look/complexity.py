"""What a layer costs as its sequence grows, measured here, beside the table of Vaswani et al. 2017 (section 4).

Four layers of the same width: self-attention, self-attention within a window, a GRU and a convolution. Every one is run
over longer and longer sequences; its time and the most memory that it holds at once are taken, and how they grow: the
exponent over the longest ones. Self-attention's memory does not grow as its table would have it, for the fused kernel
never forms the weights.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.look.pictures import save
from regard.nn.attention import Attention
from regard.nn.masks import Mask, lower

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
D, HEADS, WINDOW, KERNEL = 128, 4, 64, 3
ENOUGH = 0.3  # seconds of one layer at one length


@dataclass(frozen=True, kw_only=True)
class Theory:
    """What the table says of a layer: operations, how many must follow one another, and the longest way from one
    position to another."""

    operations: str
    sequential: str
    path: str


LAYERS = {
    "self-attention": Theory(operations="n² d", sequential="1", path="1"),
    f"within {WINDOW}": Theory(operations="r n d", sequential="1", path="n / r"),
    "recurrent (GRU)": Theory(operations="n d²", sequential="n", path="n"),
    f"convolution of {KERNEL}": Theory(operations="k n d²", sequential="1", path="logₖ n"),
}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One layer over one length."""

    layer: str
    length: int
    seconds: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Complexity:
    """What was measured: every layer over every length."""

    costs: tuple[Cost, ...]

    def of(self, layer: str, what: str) -> list[float]:
        """A layer's seconds or bytes, by length."""
        return [getattr(cost, what) for cost in self.costs if cost.layer == layer]

    @property
    def lengths(self) -> list[int]:
        return sorted({cost.length for cost in self.costs})

    def grows(self, layer: str, what: str = "seconds") -> float:
        """The exponent by which a cost grows from the third longest sequence to the longest: 1 is with the length, 2
        with its square."""
        lengths, values = self.lengths[-3:], self.of(layer, what)[-3:]
        return math.log(values[-1] / values[0]) / math.log(lengths[-1] / lengths[0])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "d": D,
            "window": WINDOW,
            "kernel": KERNEL,
            "theory": {name: vars(theory) for name, theory in LAYERS.items()},
            "costs": [vars(cost) for cost in self.costs],
        }

    def __rich__(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="dim")
        lengths = self.lengths[-3:]
        columns = ("layer", "operations", "in a row", "way", *(f"{n:,}" for n in lengths), "time", "memory")
        for i, name in enumerate(columns):
            table.add_column(name, justify="left" if i < 4 else "right")
        for name, theory in LAYERS.items():
            times = (f"{1000 * seconds:.1f} ms" for seconds in self.of(name, "seconds")[-3:])
            grows = (f"n^{self.grows(name, what):.1f}" for what in ("seconds", "bytes"))
            table.add_row(name, theory.operations, theory.sequential, theory.path, *times, *grows)
        first = f"Layers of width d = {D} over sequences of n tokens, on one CPU thread; r = {WINDOW}, k = {KERNEL}.\n"
        return Group(Text(first), table)

    def save(self, path: str | Path) -> Path:
        """The same as a picture, .png or .svg: time and memory over the length, and the table."""
        return save(path, _drawn, self)


def complexity(lengths: Sequence[int] = LENGTHS) -> Complexity:
    """Measure it: some twenty seconds.

    >>> found = complexity(lengths=[16, 32, 64])
    >>> len(found.costs), min(cost.seconds for cost in found.costs) > 0
    (12, True)
    """
    torch.manual_seed(1)
    threads = torch.get_num_threads()
    layers = dict(zip(LAYERS, (_attention(0), _attention(WINDOW), _recurrent(), _convolution()), strict=True))
    costs = []
    torch.set_num_threads(1)  # several are shared out otherwise for every length
    try:
        with torch.no_grad():
            for n in lengths:
                x = torch.randn(1, n, D)
                for name, layer in layers.items():
                    call = layer(n)
                    costs.append(Cost(layer=name, length=n, seconds=_seconds(call, x), bytes=_bytes(call, x)))
    finally:
        torch.set_num_threads(threads)
    return Complexity(costs=tuple(costs))


Call = Callable[[Tensor], Any]


def _attention(window: int) -> Callable[[int], Call]:
    layer = Attention(D, n_heads=HEADS).eval()

    def over(n: int) -> Call:
        mask = lower(Mask(window=window), n, n, device=torch.device("cpu"), dtype=torch.float32)
        return lambda x: layer(x, mask=mask)

    return over


def _recurrent() -> Callable[[int], Call]:
    layer = nn.GRU(D, D, batch_first=True).eval()
    return lambda n: layer


def _convolution() -> Callable[[int], Call]:
    layer = nn.Conv1d(D, D, KERNEL, padding=KERNEL // 2).eval()
    return lambda n: lambda x: layer(x.transpose(1, 2))


def _seconds(call: Call, x: Tensor) -> float:
    """The least of as many calls as there is time for: what else the machine does only adds."""
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < ENOUGH:
        begun = time.perf_counter()
        call(x)
        taken.append(time.perf_counter() - begun)
    return min(taken)


def _bytes(call: Call, x: Tensor) -> int:
    """The most that tensors hold at once, beside the input and the weights."""
    with Held(x) as held:
        call(x)
    return held.most


class Held(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive, after every operation."""

    def __init__(self, *given: Tensor):
        super().__init__()
        self.known = {x.untyped_storage().data_ptr() for x in given}
        self.alive: dict[int, tuple[weakref.ref, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # Weights come in as arguments; what an operation changes in place or looks at is no new memory.
        self.known |= {x.untyped_storage().data_ptr() for x in _tensors((args, kwargs))} - self.alive.keys()
        out = func(*args, **(kwargs or {}))
        for x in _tensors(out):
            place = x.untyped_storage()
            if place.data_ptr() not in self.known:
                self.alive[place.data_ptr()] = weakref.ref(place), place.nbytes()
        self.alive = {at: one for at, one in self.alive.items() if one[0]() is not None}
        self.most = max(self.most, sum(size for _, size in self.alive.values()))
        return out


def _tensors(values: Any) -> list[Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def _drawn(found: Complexity) -> Figure:
    from matplotlib.figure import Figure

    from regard.evaluate.shots import COLOURS, MARKS

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    panels = figure.subplots(1, 3, width_ratios=(1, 1, 1.25))
    for panel, what, scale, label in zip(
        panels, ("seconds", "bytes"), (1e3, 2**-20), ("milliseconds", "MiB held at once"), strict=False
    ):
        for i, name in enumerate(LAYERS):
            values = [value * scale for value in found.of(name, what)]
            panel.plot(found.lengths, values, color=COLOURS[i], marker=MARKS[i], label=name)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(found.lengths, [f"{n:,}" for n in found.lengths])
        panel.minorticks_off()
        panel.set_xlabel("tokens")
        panel.set_ylabel(label)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.3)
    panels[0].legend(frameon=False)
    panels[2].axis("off")
    rows = [
        [name, *vars(theory).values(), *(f"n^{found.grows(name, what):.1f}" for what in ("seconds", "bytes"))]
        for name, theory in LAYERS.items()
    ]
    table = panels[2].table(
        cellText=rows,
        colLabels=["layer", "operations", "in a row", "way", "time", "memory"],
        colWidths=[0.32, 0.17, 0.14, 0.13, 0.12, 0.14],
        cellLoc="left",
        edges="horizontal",
        loc="center",
    )
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    table.scale(1, 1.7)
    panels[2].set_title("in theory, and as measured", fontsize=8, y=0.8)
    return figure
