"""Attention as a page that needs nothing else: one HTML file with its own styles, script and numbers, no network.

Numbers are square roots of weights, which tells small ones apart: every head in 8 bits, put together to at most
``SMALL`` times ``SMALL`` blocks; the chosen one, or all where they are few, in 16 bits as it is. A block is the share
that its rows spend on its columns, so that rows still sum to 1.
"""

from __future__ import annotations

import base64
import html
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from regard.config import InputError
from regard.look.alignment import spread
from regard.look.attention import entropy
from regard.look.document import document, image_address, view

if TYPE_CHECKING:
    from regard.look.attention import Attention, Layer, Looks

SMALL = 48
FULL = 1_000_000  # cells that may be in full beside the chosen head's: two bytes each


def page(seen: Attention, layer: str | int | None = None, head: int | None = None) -> str:
    """The report."""
    said = f'<p class="answered">written: <bdi>{html.escape(seen.said)}</bdi></p>\n' if seen.said else ""
    body = f'<h1>What the model attends to</h1>\n{said}<section class="card">{drawn(seen, layer, head)}</section>'
    return document("What a model attends to", body, views=["attention"], style="body { max-width: none; }\n")


def drawn(seen: Attention, layer: str | int | None = None, head: int | None = None) -> str:
    """The view, to be put into a page: the grid of all heads, and one of them as a heatmap or as lines."""
    return view("attention", data(seen, layer, head))


def data(seen: Attention, layer: str | int | None = None, head: int | None = None) -> dict[str, Any]:
    """What the page draws, ready for JSON. Left out, the chosen head is the one whose looks go to the most different
    places, of the cross-attentions where there are any. The last layer is the rollout of all.

    >>> from regard import Model, Transformer, presets
    >>> model = Model(Transformer(presets.tiny_decoder()), "generate", None)
    >>> found = data(model.attention(torch.tensor([5, 7, 11])), layer=1, head=2)
    >>> found["chosen"], found["layers"][1]["small"]["shape"], len(found["full"])
    ({'layer': 1, 'head': 2}, [3, 3], 7)
    """
    names: dict[tuple[str, ...], int] = {}
    layers: list[dict[str, Any]] = []
    full: dict[str, str] = {}
    spreads: dict[tuple[bool, int, int], float] = {}
    all_fit = sum(x.n_heads * len(x.rows) * len(x.columns) for x in seen.layers) <= FULL

    def add(name: str, of: Looks | Layer, weights: Tensor, note: str = "", verb: str = "looks at") -> None:
        small, i = downsampled(weights.numpy(), SMALL), len(layers)
        layers.append(
            {
                "name": name,
                "heads": len(weights),
                "rows": names.setdefault(of.rows, len(names)),
                "columns": names.setdefault(of.columns, len(names)),
                "entropy": [round(bits, 4) for bits in entropy(weights).tolist()],
                "small": {"shape": list(small.shape[1:]), "data": _text(np.sqrt(small) * 255, "u1")},
                "note": note,
                "verb": verb,
                "image": seen.side is not None and of.columns[-1] == f"{seen.side},{seen.side}",
            }
        )
        if all_fit:
            full.update({f"{i}/{h}": full_head(head) for h, head in enumerate(weights.numpy())})

    for i, one in enumerate(seen.layers):
        weights = one.formed()
        add(one.name, one, weights, "a row is the token that is written" if one.is_cross else "")
        spreads |= {(one.is_cross, i, h): by for h, by in enumerate(spread(weights).tolist())}
    place, number = _chosen(seen, layer, head, spreads)
    if not all_fit:
        full[f"{place}/{number}"] = full_head(seen.layers[place].head(number).weights)
    with suppress(InputError):  # not all layers are there
        flow = seen.rollout()
        add(flow.name, flow, torch.from_numpy(flow.weights)[None], "all layers, heads averaged", "comes from")
    told = {"layers": layers, "names": [list(of) for of in names], "chosen": {"layer": place, "head": number}}
    return {**told, "full": full, **_image(seen)}


def full_head(weights: Float[NDArray, "T S"]) -> str:
    """One head as the page wants it in full: square roots in 16 bits, little-endian, in base 64."""
    return _text(np.sqrt(weights) * 65_535, "<u2")


def downsampled(weights: Float[NDArray, "H T S"], most: int) -> Float[NDArray, "H t s"]:
    """Weights in at most so many rows and columns of blocks: of rows the mean, of columns the sum, so that rows still
    sum to 1.

    >>> downsampled(np.array([[[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]]), 2)
    array([[[0.5, 0.5],
            [0. , 1. ]]])
    """
    _, t, s = weights.shape
    if s > most:
        weights = np.add.reduceat(weights, _bounds(s, most), axis=2)
    if t > most:
        rows = _bounds(t, most)
        weights = np.add.reduceat(weights, rows, axis=1) / np.diff([*rows, t])[:, None]
    return weights


def _bounds(n: int, most: int) -> list[int]:
    """Where blocks begin: the page computes the same."""
    return [i * n // most for i in range(most)]


def _text(values: Float[NDArray, "..."], kind: str) -> str:
    return base64.b64encode(np.rint(values).astype(kind).tobytes()).decode("ascii")


def _chosen(
    seen: Attention, layer: str | int | None, head: int | None, spreads: dict[tuple[bool, int, int], float]
) -> tuple[int, int]:
    if layer is not None or head is not None:
        one = seen.one(layer)
        one.head(head)  # it is there
        at = seen.layers.index(one)
        spreads = {(c, i, h): by for (c, i, h), by in spreads.items() if i == at and head in (None, h)}
    crosses = any(is_cross for is_cross, _, _ in spreads)
    _, place, number = max((key for key in spreads if key[0] == crosses), key=lambda key: spreads[key])
    return place, number


def _image(seen: Attention) -> dict[str, Any]:
    if seen.image is None:
        return {}
    told: dict[str, Any] = {"image": image_address(seen.image), "side": seen.side}
    with suppress(InputError):  # no head that reads one vector, or not all layers
        told["rollout"] = [round(share, 6) for share in seen.over_image().weights.flatten().tolist()]
    return told
