"""What a translator looks at: the cross-attention between a text and its translation, as a picture.

A row is a token of the translation, a column one of the source; a cell is the share of its attention that the row spent
there while it was written. :func:`align` runs a trained model and asks one of its layers; what comes back draws itself
in a terminal, as SVG (for a page, in its colours, light or dark) and, where matplotlib is installed, as PNG. One hue,
darker where there is more, so that it can be read without colours.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from rich.cells import cell_len
from rich.text import Text
from torch import Tensor

from regard.config import InputError
from regard.files import write_text
from regard.look import pictures
from regard.look.attention import Layer, Looks, attention
from regard.look.document import document
from regard.look.page import as_text, printable

if TYPE_CHECKING:
    from regard.model import Model

SHADES = " ░▒▓█"
LIGHT, DARK = "#08519c", "#9ecae1"  # a cell that has all of the attention, on white and on black
FONT = 12  # pixels of a picture's letters
LETTER = 0.62 * FONT  # width of one
MANY = 64  # tokens, of which not every name and cell can be read


@dataclass(frozen=True, kw_only=True, eq=False)
class Alignment:
    """Shares of attention: a row for each token of ``target``, a column for each of ``source``; rows sum to 1.

    >>> seen = Alignment(
    ...     source=("forty", "-", "two"),
    ...     target=("zwei", "undvierzig"),
    ...     weights=torch.tensor([[0.0, 0.1, 0.9], [0.7, 0.3, 0.0]]),
    ...     layer="1.cross",
    ...     head=2,
    ... )
    >>> print(seen)
               forty - two
    zwei               ███
    undvierzig ▓▓▓▓▓ ░
    >>> seen.strongest()
    [2, 0]
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Float[Tensor, "T S"]
    layer: str
    head: int | None  # None: the mean of all

    def __post_init__(self) -> None:
        if self.weights.shape != (len(self.target), len(self.source)):
            raise InputError(
                f"weights of shape {tuple(self.weights.shape)} must have a row for each of the {len(self.target)}"
                f" target tokens and a column for each of the {len(self.source)} source tokens"
            )

    def strongest(self) -> list[int]:
        """For each token of the target, which of the source it looked at most."""
        return self.weights.argmax(1).tolist()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        plain = {"source": list(self.source), "target": list(self.target), "layer": self.layer, "head": self.head}
        return {**plain, "weights": self.weights.tolist()}

    # -- in a terminal -------------------------------------------------------------------

    def __str__(self) -> str:
        return as_text(self, width=10_000)

    def __rich__(self) -> Text:
        """A column as wide as its token, filled with a shade; of many, what each looked at most."""
        names = max(map(_width, self.target), default=0)
        if max(self.weights.shape) > MANY:
            rows = zip(self.target, self.strongest(), self.weights.amax(1).tolist(), strict=True)
            told = (f"{_padded(t, names)}  {share:4.0%}  {printable(self.source[s])}" for t, s, share in rows)
            return Text("\n".join(told), no_wrap=True)
        lines = [Text(_padded(name, names)) for name in ("", *self.target)]
        for s, name in enumerate(self.source):
            lines[0].append(f" {printable(name)}", "dim")
            for t, line in enumerate(lines[1:]):
                shade = SHADES[min(int(float(self.weights[t, s]) * len(SHADES)), len(SHADES) - 1)]
                line.append(f" {shade * _width(name)}", "cyan")
        return Text("\n", no_wrap=True).join(lines)

    # -- as a picture --------------------------------------------------------------------

    def svg(self) -> str:
        """A picture for a page: inline, in the page's own text colour, with the numbers under the pointer."""
        cell = 28 if len(self.source) <= 16 else 20
        left = LETTER * max(map(_width, self.target), default=0) + 10
        above = 0.77 * LETTER * max(map(_width, self.source), default=0) + 16  # names are turned by 50 degrees
        beyond = 0.64 * LETTER * max((_width(name) for name in self.source[-3:]), default=0)
        width, height = left + cell * len(self.source) + beyond, above + cell * len(self.target) + 2
        return "\n".join(
            [
                f'<svg class="alignment" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
                f' height="{height:.0f}" role="img" aria-label="{_escaped(self._told())}">',
                f"<style>.alignment{{font:{FONT}px monospace;fill:currentColor;max-width:100%;height:auto}}"
                f".alignment .cell{{fill:{LIGHT}}}.alignment .most{{stroke:currentColor;stroke-width:1.5}}"
                ".alignment .grid{fill:none;stroke:currentColor;stroke-opacity:.15}"
                f"@media(prefers-color-scheme:dark){{.alignment .cell{{fill:{DARK}}}}}</style>",
                *self._cells(cell, left, above),
                "</svg>",
            ]
        )

    def _told(self) -> str:
        pairs = zip(self.target, self.strongest(), strict=True) if self.source else ()
        return "What was looked at most: " + ", ".join(f"{name} at {self.source[s]}" for name, s in pairs)

    def _cells(self, cell: int, left: float, above: float) -> Iterator[str]:
        """The names, a grid, and what is to be seen in it; of each row the strongest is framed."""
        for s, name in enumerate(self.source):
            x, y = left + cell * (s + 0.6), above - 6
            yield f'<text x="{x:.1f}" y="{y:.1f}" transform="rotate(-50 {x:.1f} {y:.1f})">{_escaped(name)}</text>'
        for t, name in enumerate(self.target):
            y = above + cell * (t + 0.5) + 0.35 * FONT
            yield f'<text x="{left - 6:.1f}" y="{y:.1f}" text-anchor="end">{_escaped(name)}</text>'
        right, below = left + cell * len(self.source), above + cell * len(self.target)
        rules = [f"M{left:.1f} {above + cell * t:.1f}H{right:.1f}" for t in range(len(self.target) + 1)]
        rules += [f"M{left + cell * s:.1f} {above:.1f}V{below:.1f}" for s in range(len(self.source) + 1)]
        yield f'<path class="grid" d="{"".join(rules)}"/>'
        for t, (row, most) in enumerate(zip(self.weights.tolist(), self.strongest(), strict=True)):
            for s, share in enumerate(row):
                if share < 0.005 and s != most:
                    continue
                framed = " most" if s == most else ""
                yield (
                    f'<rect class="cell{framed}" x="{left + cell * s + 1:.1f}" y="{above + cell * t + 1:.1f}"'
                    f' width="{cell - 2}" height="{cell - 2}" fill-opacity="{share:.3f}"><title>'
                    f"{_escaped(self.target[t])} looked at {_escaped(self.source[s])}: {share:.1%}</title></rect>"
                )

    def save(self, path: str | Path) -> Path:
        """Write the picture: .svg or .html; with matplotlib as .png, and of many tokens."""
        path = Path(path)
        if path.suffix not in (".svg", ".html") or max(self.weights.shape) > MANY:
            name = f"{self.layer}, {'mean of its heads' if self.head is None else f'head {self.head}'}"
            seen = Looks(name=name, rows=self.target, columns=self.source, weights=self.weights.numpy())
            return pictures.save(path, pictures.heatmap, seen)
        if path.suffix == ".svg":
            write_text(path, self.svg().replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))
        else:
            write_text(path, document("What was looked at", self.svg()))
        return path


def align(
    model: Model, source: str, target: str | None = None, *, layer: str | None = None, head: int | None = None
) -> Alignment:
    """What a translator looked at while it wrote a target; left out, its own translation. A text is one sentence.

    Left out, layer and head are the :func:`aligning_head` of this sentence; a layer alone is the mean over its heads.
    """
    model.check_task("translate")
    seen = crosses(model, source, target)
    weights, layer, head = chosen(model, of_all_heads(seen), layer, head)
    return Alignment(source=seen[0].columns, target=seen[0].rows, weights=weights, layer=layer, head=head)


def chosen(
    model: Model, shares: Float[Tensor, "H T S"], layer: str | None, head: int | None
) -> tuple[Float[Tensor, "T S"], str, int | None]:
    """Those of one head, or the mean over a layer's, of the shares of all heads of all layers; and which that is."""
    layers = cross_layers(model)
    if layer is None and head is not None:
        raise InputError(f"head ({head}): of which layer? this model has {', '.join(layers)}")
    if layer is not None and layer not in layers:
        raise InputError(f"layer ({layer!r}): is no cross-attention of this model; it has {', '.join(layers)}")
    n_heads = len(shares) // len(layers)
    if head is not None and not 0 <= head < n_heads:
        raise InputError(f"head ({head}): is not in layer {layer}; its heads are 0 to {n_heads - 1}")
    if layer is None:
        layer, head = _place(model, spread(shares))
    of_layer = shares[layers.index(layer) * n_heads :][:n_heads]
    return of_layer.mean(0) if head is None else of_layer[head], layer, head


def aligning_head(model: Model, sources: Sequence[str]) -> tuple[str, int]:
    """The layer and head whose looks go to the most different places, over some sentences: the one that aligns.

    Of the upper half of the layers: those below look at what belongs to the token that was read, a row too early."""
    return _place(model, torch.stack([spread(of_all_heads(crosses(model, source))) for source in sources]).mean(0))


def spread(weights: Float[Tensor, "H T S"]) -> Float[Tensor, " H"]:
    """How many places the rows of each head look at together: 1 if all look at the same one, or everywhere alike.

    >>> spread(torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]]]))
    tensor([2., 1.])
    """
    return weights.amax(-2).sum(-1)


def cross_layers(model: Model) -> list[str]:
    """The names of a model's cross-attentions."""
    layers = [name for name in model.net.attention_layers()["decoder"] if name.endswith(".cross")]
    if not layers:
        raise InputError("this model has no cross-attention to look at")
    return layers


def _place(model: Model, of_heads: Tensor) -> tuple[str, int]:
    """The layer and head with the largest number, of all heads of the upper half of the layers."""
    layers = cross_layers(model)
    lowest, n_heads = len(layers) // 2, len(of_heads) // len(layers)
    layer, head = divmod(int(of_heads[lowest * n_heads :].argmax()), n_heads)
    return layers[lowest + layer], head


def crosses(model: Model, source: Any, target: str | None = None) -> tuple[Layer, ...]:
    """The cross-attentions of a translator over a sentence, or of a captioner over an image, and what is written."""
    return attention(model, source, target, layers=[f"decoder.{name}" for name in cross_layers(model)]).layers


def of_all_heads(layers: Sequence[Layer]) -> Float[Tensor, "H T S"]:
    return torch.cat([layer.formed() for layer in layers])


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _padded(name: str, width: int) -> str:
    return f"{printable(name)}{' ' * (width - _width(name))}"


def _width(name: str) -> int:
    """Columns of a terminal: two for a letter of East Asia."""
    return cell_len(printable(name))
