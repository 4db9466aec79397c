"""What a model attends to: the weights of every layer and head over one input, with the names of what is looked at.

Every family alike: text in encoders and decoders, an encoder and a decoder with their three kinds of attention, patches
of an image, two encoders, and the recurrent ancestors. The model runs as it always does, on the fused kernels; layers
that are asked for hand out what they attended with, and weights are formed from that, a layer at a time, when somebody
wants them. No layer runs above the last that is asked for, and no head.

Rollout is that of Abnar and Zuidema ("Quantifying attention flow in transformers", 2020): of every layer the mean over
its heads, mixed half and half with the identity, for the residual path carries a position's own vector past the
attention; each row made to sum to 1; and the layers multiplied. It tells where information could have come from, not
what was made of it.
"""

from __future__ import annotations

import html
import tempfile
import webbrowser
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from rich.console import Group
from rich.table import Table
from rich.text import Text

from regard.config import InputError
from regard.look.inputs import Inputs, read
from regard.look.page import as_text, printable
from regard.nn import Attended
from regard.schema import suggest

if TYPE_CHECKING:
    from regard.look.patches import Rollout
    from regard.model import Model

SHARPEST = 8  # heads that are told of


@dataclass(frozen=True, kw_only=True, eq=False)
class Looks:
    """Who looks at whom: a row for each position that looks, a column for each that is looked at, and the share that
    the row spends there. Of one head, of the mean over several, or of a rollout.

    >>> seen = Looks(
    ...     name="mine", rows=("zwei", "Hunde"), columns=("two", "dogs"), weights=np.array([[0.9, 0.1], [0.2, 0.8]])
    ... )
    >>> seen.strongest()
    [0, 1]
    """

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    weights: Float[NDArray, "T S"]

    def __post_init__(self) -> None:
        if self.weights.shape != (len(self.rows), len(self.columns)):
            raise InputError(
                f"weights of shape {self.weights.shape} must have a row for each of {len(self.rows)} names"
                f" and a column for each of {len(self.columns)}"
            )

    def strongest(self) -> list[int]:
        """For each row, the column that it looks at most."""
        return self.weights.argmax(1).tolist()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        plain = {"name": self.name, "rows": list(self.rows), "columns": list(self.columns)}
        return {**plain, "weights": self.weights.tolist()}

    def save(self, path: str | Path, *, lines: bool = False) -> Path:
        """Write it as .png, .svg or .html: a heatmap or, with ``lines``, two rows of names with lines between them."""
        from regard.look import pictures

        return pictures.save(path, pictures.lines if lines else pictures.heatmap, self)


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """One attention layer over one input: its name ("decoder.0.cross"), who looks, and who is looked at. A decoder
    looks at itself from the token that it reads, and at a source for the token that it writes, which name the rows."""

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    attended: Attended

    @property
    def n_heads(self) -> int:
        return self.attended.q.shape[1]

    @property
    def is_cross(self) -> bool:
        return self.name.endswith(".cross")

    @cached_property
    def weights(self) -> Float[NDArray[np.float32], "H T S"]:
        """Of all heads; rows sum to 1, or to 0 where there was nothing to attend to."""
        return self.formed().numpy()

    def formed(self, heads: Sequence[int] | None = None) -> Float[torch.Tensor, "H T S"]:
        """The weights of some heads, formed anew and not kept."""
        with torch.inference_mode():
            return self.attended.weights(heads)[0].float().cpu()

    def head(self, head: int | None = None) -> Looks:
        """What one head looks at; left out, the mean over all."""
        head = None if head is None else head_of(self.name, self.n_heads, head)
        weights = self.formed(None if head is None else [head]).mean(0).numpy()
        name = f"{self.name}, {'mean of its heads' if head is None else f'head {head}'}"
        return Looks(name=name, rows=self.rows, columns=self.columns, weights=weights)


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention:
    """What the layers of a model attend to over one input. ``image`` is the one that was read, if any: the last
    columns of what looks at it are ``side`` times ``side`` patches or cells of it.

    >>> from regard import Model, Transformer, presets
    >>> model = Model(Transformer(presets.tiny_decoder()), "generate", None)
    >>> seen = model.attention(torch.tensor([5, 7, 11]))
    >>> seen.names
    ('decoder.0.self', 'decoder.1.self')
    >>> seen["decoder.1.self"].weights.shape
    (3, 3, 3)
    """

    layers: tuple[Layer, ...]
    n_layers: dict[str, int]  # how many self-attentions each tower has, asked for or not
    image: UInt8[NDArray, "H W 3"] | None = None
    side: int | None = None
    said: str | None = None  # what was written, or given as written
    pool: str | None = None  # how a head reads the encoder: "class", "end" or "mean"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self.layers)

    def __getitem__(self, name: str | int) -> Layer:
        """A layer by its name, also without the tower, or by a number that only one has."""
        found = [layer for layer in self.layers if _answers(layer.name, name)]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(f"layer ({name!r}) may be any of {', '.join(layer.name for layer in found)}; say which")
        raise InputError(f"layer ({name!r}) was not looked at; {suggest(str(name), self.names)}")

    # -- numbers -------------------------------------------------------------------------

    def entropy(self) -> dict[str, Float[NDArray, " H"]]:
        """How spread the looks of each head are, in bits: 0 where every row looks at one place, the mean over rows.

        >>> from regard import Model, Transformer, presets
        >>> model = Model(Transformer(presets.tiny_decoder()), "generate", None)
        >>> {name: bits.shape for name, bits in model.attention(torch.tensor([5, 7, 11])).entropy().items()}
        {'decoder.0.self': (3,), 'decoder.1.self': (3,)}
        """
        return {layer.name: entropy(layer.formed()).numpy() for layer in self.layers}

    def rollout(self, tower: str | None = None) -> Looks:
        """Where each position's vector could have come from, from all layers up to the highest that was looked at. A
        decoder over an encoder has the source's positions for columns behind its own."""
        tower = tower or ("decoder" if self._of("decoder") else _tower(self.names[0]))
        mine = self._whole(tower)
        memory, columns = None, mine[0].rows
        if any(layer.is_cross for layer in mine):
            source = self._whole("encoder") if self.n_layers["encoder"] else []
            if len(source) < self.n_layers["encoder"]:
                raise InputError("rollout: the decoder reads what all layers of the encoder made; look at all of them")
            behind = next(layer for layer in mine if layer.is_cross).columns
            memory = rolled_out([layer.formed().double().numpy() for layer in source], len(behind))
            columns = (*columns, *behind)
        steps = [(layer.formed().double().numpy(), layer.is_cross) for layer in mine]
        flow = rolled_over(steps, memory)
        return Looks(name=f"{tower}, rollout", rows=mine[0].rows, columns=columns, weights=flow.astype(np.float32))

    def over_image(self) -> Rollout:
        """How much of each patch of the image reaches what the model's head reads, by rollout."""
        from regard.look.patches import Rollout

        if self.image is None or self.side is None or self.pool is None:
            raise InputError("rollout over an image: there is none, or no head that reads one vector of it")
        shares = head_reads(self.rollout("encoder").weights, self.pool)[-(self.side**2) :]
        return Rollout(weights=shares.reshape(self.side, self.side), picture=self.image)

    def _of(self, tower: str) -> list[Layer]:
        return [layer for layer in self.layers if layer.name.startswith(f"{tower}.")]

    def _whole(self, tower: str) -> list[Layer]:
        """The layers of a tower from the lowest up; refused where one between is missing."""
        mine = self._of(tower)
        n = sum(not layer.is_cross for layer in mine)
        crosses = any(layer.is_cross for layer in mine)
        whole = [f"{tower}.{i}.{kind}" for i in range(n) for kind in (("self", "cross") if crosses else ("self",))]
        if not n or [layer.name for layer in mine] != whole:
            has = ", ".join(layer.name for layer in mine) or "none"
            raise InputError(f"rollout: multiplies all self-attentions of a tower from 0 up; of the {tower}, has {has}")
        return mine

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        layers = [
            {"name": x.name, "rows": list(x.rows), "columns": list(x.columns), "weights": x.formed().tolist()}
            for x in self.layers
        ]
        return {"layers": layers, "said": self.said, "side": self.side}

    # -- to be seen ----------------------------------------------------------------------

    def __str__(self) -> str:
        return as_text(self)

    def __rich__(self) -> Group:
        """How sharp the heads are, and where the sharpest look."""
        bits = self.entropy()
        heads = sorted((float(b), layer, h) for layer, of in bits.items() for h, b in enumerate(of))
        t, s = len(self.layers[-1].rows), len(self.layers[-1].columns)
        layers = "one layer" if len(self.layers) == 1 else f"{len(self.layers)} layers"
        n = f"{len(heads)} {'head' if len(heads) == 1 else 'heads'} in {layers}"
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("layer", "head", "bits", "looks most at", "share"):
            table.add_column(name, justify="right" if name in ("head", "bits", "share") else "left")
        for b, layer, head in heads[:SHARPEST]:
            where, share = habit(self[layer].head(head))
            table.add_row(layer, str(head), f"{b:.2f}", Text(printable(where, 40)), f"{share:.0%}")
        of = "" if len(heads) <= SHARPEST else f", the {SHARPEST} sharpest"
        parts = [Text(f"{n}, {t} x {s} positions in the last{of}\n"), table]
        return Group(*([Text(f"written: {printable(self.said, 200)}\n")] if self.said else []), *parts)

    def report(self, layer: str | int | None = None, head: int | None = None) -> str:
        """A page that needs nothing else: every head small, one in full, to point at and to choose from."""
        from regard.look.report import page

        return page(self, layer, head)

    def save(self, path: str | Path, layer: str | int | None = None, head: int | None = None) -> Path:
        """Write the report (.html), or a picture (.png, .svg): of one head, of a layer's heads, or of all heads."""
        from regard.files import write_text
        from regard.look import pictures

        path = Path(path)
        if path.suffix == ".html":
            write_text(path, self.report(layer, head))
            return path
        if head is not None:
            return self.one(layer).head(head).save(path)
        return pictures.save(path, pictures.head_grid, [self.one(layer)] if layer is not None else self.layers)

    def one(self, layer: str | int | None) -> Layer:
        """A layer; left out, the only one."""
        if layer is None and len(self.layers) > 1:
            raise InputError(f"head: of which layer? there are {', '.join(self.names)}")
        return next(iter(self.layers)) if layer is None else self[layer]

    def show(self) -> Path:
        """Open the report in a browser; the file that it is in."""
        path = self.save(Path(tempfile.mkdtemp(prefix="regard-"), "attention.html"))
        webbrowser.open(path.as_uri())
        return path

    def _repr_html_(self) -> str:
        """For a notebook: the report in a frame of its own."""
        framed = html.escape(self.report())
        return f'<iframe srcdoc="{framed}" style="width:100%;height:720px;border:0" sandbox="allow-scripts"></iframe>'


def attention(
    model: Model, given: Any, target: Any = None, *, layers: str | int | Iterable[str | int] | None = None
) -> Attention:
    """What a model attends to over one input; see :meth:`regard.Model.attention`.

    >>> from regard import Model, Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_encoder_decoder"}, vocab_size=len(tokens))
    >>> model = Model(Transformer(config), "translate", tokens)
    >>> seen = attention(model, "ah", "oh", layers="cross")
    >>> seen.names
    ('decoder.0.cross', 'decoder.1.cross')
    >>> seen.layers[0].rows, seen.layers[0].columns
    (('<0x6F>', '<0x68>', '</s>'), ('<0x61>', '<0x68>', '</s>'))
    """
    names = chosen(model, layers)
    inputs = read(model, given, target, writes=any(name.startswith("decoder.") for name in names))
    if layers is None:  # of two encoders, those that have something to read
        names = [name for name in names if _tower(name) in inputs.names]
    for name in names:
        if _tower(name) not in inputs.names:
            raise InputError(f"layer {name} has nothing to read; give an image and a text")
    attended = model.net.attended(inputs.inputs, inputs.target, layers=names, segments=inputs.segments)
    return Attention(
        layers=tuple(_layer(name, inputs, attended[name]) for name in names),
        n_layers={
            tower: sum(name.endswith(".self") for name in of) for tower, of in model.net.attention_layers().items()
        },
        image=inputs.image,
        side=inputs.side,
        said=inputs.said,
        pool=getattr(model.config.head, "pool", None) if model.config.shape != "encoder-decoder" else None,
    )


def _layer(name: str, inputs: Inputs, attended: Attended) -> Layer:
    sides = ("written", "encoder") if name.endswith(".cross") else (_tower(name), _tower(name))
    rows, columns = (inputs.names[side] for side in sides)
    return Layer(name=name, rows=rows, columns=columns, attended=attended)


def _tower(name: str) -> str:
    return name.partition(".")[0]


def head_of(layer: str, n_heads: int, head: Any) -> int:
    """The number of a head, also of numpy's; refused where the layer has none of that number."""
    if not hasattr(head, "__index__") or not 0 <= head < n_heads:
        its = "its only head is 0" if n_heads == 1 else f"its heads are 0 to {n_heads - 1}"
        raise InputError(f"head ({head}) is not in layer {layer}; {its}")
    return int(head)


def chosen(model: Model, layers: str | int | Iterable[str | int] | None = None) -> list[str]:
    """The full names of a model's attention layers, or of those that are asked for. A name may be a part of it: a
    tower, a number, or a kind, with dots between where there are several ("decoder.cross").

    >>> from regard import Model, Transformer, presets
    >>> model = Model(Transformer(presets.tiny_encoder_decoder()), "translate", None)
    >>> chosen(model, [0, "1.cross"])
    ['encoder.0.self', 'decoder.0.self', 'decoder.0.cross', 'decoder.1.cross']
    """
    known = [f"{tower}.{name}" for tower, names in model.net.attention_layers().items() for name in names]
    if not known:
        raise InputError(f"{model.path or 'this model'}: has no attention to look at; give another model")
    if layers is None:
        return known
    wanted = [layers] if isinstance(layers, str | int) else list(layers)
    for one in wanted:
        if not any(_answers(name, one) for name in known):
            raise InputError(f"layer ({one!r}) is not in this model; {suggest(str(one), known)}")
    return [name for name in known if any(_answers(name, one) for one in wanted)]


def _answers(name: str, wanted: str | int) -> bool:
    """Whether a layer is meant by a name or a part of one."""
    return not set(str(wanted).split(".")) - set(name.split("."))


# ---------------------------------------------------------------------------------------
# What weights say


def entropy(weights: Float[torch.Tensor, "H T S"]) -> Float[torch.Tensor, " H"]:
    """Bits of each head's rows, their mean.

    >>> entropy(torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]))
    tensor([0.5000])
    """
    return torch.special.entr(weights).sum(-1).mean(-1) / np.log(2)


def rolled_out(layers: Sequence[Float[NDArray, "H T T"]], n: int | None = None) -> Float[NDArray, "T T"]:
    """Where each position's vector comes from, from the weights of all self-attentions, the lowest first.

    >>> rolled_out([np.array([[[0.0, 1.0], [0.0, 1.0]]])])
    array([[0.5, 0.5],
           [0. , 1. ]])
    """
    return rolled_over([(weights, False) for weights in layers]) if layers else np.eye(n or 0)


def rolled_over(
    layers: Iterable[tuple[Float[NDArray, "H T S"], bool]], memory: Float[NDArray, "S N"] | None = None
) -> Float[NDArray, "T M"]:
    """The same where some layers are cross-attentions (True), which bring in what reached a memory: its positions are
    the columns behind the first T.

    >>> rolled_over([(np.array([[[1.0]]]), False), (np.array([[[0.0, 1.0]]]), True)], np.eye(2))
    array([[0.5, 0. , 0.5]])
    """
    flow = None
    for weights, is_cross in layers:
        mean, t = weights.mean(0), weights.shape[1]
        if flow is None:
            flow = np.eye(t, t + (0 if memory is None else memory.shape[1]))
        if is_cross:
            assert memory is not None, "what a cross-attention looks at"
            brought = np.hstack([np.zeros((t, t)), mean @ memory])
        else:
            brought = mean @ flow
        flow = (flow + brought) / (1 + mean.sum(1, keepdims=True))
    assert flow is not None, "there is a layer"
    return flow


def head_reads(flow: Float[NDArray, "T T"], pool: str) -> Float[NDArray, " T"]:
    """Where the vector comes from that a model's head pools.

    >>> head_reads(np.array([[0.5, 0.5], [0.0, 1.0]]), "mean")
    array([0.25, 0.75])
    """
    return flow.mean(0) if pool == "mean" else flow[0 if pool == "class" else -1]


def habit(seen: Looks) -> tuple[str, float]:
    """Where a head looks most, over all rows: at itself, at a neighbour, at one position, or each row elsewhere, if
    that has half of the attention and none of the others a quarter; and with which share.

    >>> habit(Looks(name="", rows=("a", "b", "c"), columns=("a", "b", "c"), weights=np.eye(3)[[0, 0, 1]]))
    ('the one before', 1.0)
    """
    places = seen.weights.mean(0)
    at = int(places.argmax())
    found = {f"{seen.columns[at]} ({at + 1})": float(places[at])}
    if seen.rows == seen.columns:
        for name, by in (("itself", 0), ("the one before", -1), ("the one after", 1)):
            here = np.diagonal(seen.weights, by)
            found[name] = float(here.mean()) if len(here) else 0.0
    where = max(found, key=found.__getitem__)
    if found[where] < 0.25 and (own := float(seen.weights.max(1).mean())) > 0.5:
        return "each at a place of its own", own
    return where, found[where]
