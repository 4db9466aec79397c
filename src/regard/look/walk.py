"""The worked example: attention in six steps, with every number.

    1 inputs   2 queries, keys, values   3 scores   4 scaling   5 softmax   6 weighted sum

:func:`walk` runs a model, asks one of its layers what it attended with, and lays the steps of one head out; it computes
no attention of its own. :func:`walk_scores` starts at step 3, from scores that somebody wrote on a blackboard. Both
results print as tables, in a terminal and in a pipe, and turn into plain values for JSON.

torch is imported when a model runs: the blackboard needs none.
"""

from __future__ import annotations

import io
import math
import numbers
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from regard.config import InputError, ModelConfig, Pooled, Positions, Stack, Tokens, Tower

if TYPE_CHECKING:
    from torch import Tensor

    from regard.nn import Attended, Lowered, Transformer

# Small enough for every number to be seen; queries narrower than inputs, so that the shapes can be told apart;
# parameters spread wide enough for the softmax to choose.
SMALL = ModelConfig(
    encoder=Stack(
        input=Tokens(vocab_size=512),
        positions=Positions(kind="sinusoidal"),
        max_len=512,
        d_model=4,
        n_layers=1,
        n_heads=1,
        d_head=3,
        d_ff=8,
        bias=False,
        init_std=0.7,
    ),
    head=Pooled(pool="mean"),
)


# ---------------------------------------------------------------------------------------
# From a model


@dataclass(frozen=True, kw_only=True, eq=False)
class Walk:
    """The six steps of one attention head. Rows are queries (T), columns of scores and weights are keys (S).

    ``scores`` and ``scaled`` are minus infinity where the mask forbids to look; ``outputs`` is the head's own part,
    before the layer joins its heads. In cross-attention ``key_tokens`` are the source's and ``memory`` is what the
    encoder made of them; in self-attention the keys are the tokens and there is no memory.

    >>> steps = walk("I am a student")
    >>> steps.tokens, tuple(steps.weights.shape)
    (('I', 'am', 'a', 'student'), (4, 4))
    """

    tokens: tuple[str, ...]
    key_tokens: tuple[str, ...]
    layer: str
    head: int
    config: Tower
    note: str
    inputs: Tensor  # (T, C)
    memory: Tensor | None  # (S, M)
    q: Tensor  # (T, D)
    k: Tensor  # (S, D)
    v: Tensor  # (S, E)
    scale: float
    scores: Tensor  # (T, S)
    scaled: Tensor  # (T, S)
    weights: Tensor  # (T, S)
    outputs: Tensor  # (T, E)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; None where the mask forbids to look.

        >>> walk("I am").to_dict()["tokens"]
        ['I', 'am']
        """
        tensors = ("inputs", "memory", "q", "k", "v", "scores", "scaled", "weights", "outputs")
        plain = {"tokens": list(self.tokens), "key_tokens": list(self.key_tokens), "layer": self.layer}
        plain |= {"head": self.head, "scale": self.scale, "note": self.note}
        return plain | {name: _plain(getattr(self, name)) for name in tensors}

    def __str__(self) -> str:
        return as_text(self)

    def __rich__(self) -> Group:
        return Group(*self._lines())

    def _lines(self) -> Iterator[RenderableType]:
        """The page, from its title down to step 6."""
        T, S = self.tokens, self.key_tokens
        cross = self.memory is not None
        kind = "Cross" if cross else "Self"
        yield Text(f"{kind}-attention in six steps: layer {self.layer}, head {self.head}", style="bold")
        yield Text(self.note)

        yield from _step(1, "Inputs", "X", f"What comes into the layer: {self.inputs.shape[1]} numbers a token.")
        yield from _table(T, [(_names("x", self.inputs), self.inputs)])
        if self.memory is not None:
            yield Text("\n   M, the memory: what the encoder made of the source.\n")
            yield from _table(S, [(_names("m", self.memory), self.memory)])

        yield from _step(2, "Queries, keys, values", *self._projection())
        q, k, v = ((_names(name, getattr(self, name)), getattr(self, name)) for name in "qkv")
        if cross:
            yield from _table(T, [q])
            yield Text()
            yield from _table(S, [k, v])
        else:
            yield from _table(T, [q, k, v])

        # One query and one key are worked out in full: the first query that may look at most keys, and the next key.
        shown = self.scores[:ROWS, :COLUMNS].isfinite()
        t = int(shown.sum(dim=1).argmax())
        s = 1 if len(S) > 1 and shown[t, 1] else 0
        asks, asked = _label(T[t]), _label(S[s])
        score, scaled, weight = (_number(x[t, s], x) for x in (self.scores, self.scaled, self.weights))

        additive = self.config.score == "additive"
        hidden = "" if self.scores.isfinite().all() else "; - is out of its sight"
        formula = "S = w · tanh(q + k)" if additive else "S = Q Kᵀ"
        yield from _step(3, "Scores", formula, f"How well each query (row) fits each key (column){hidden}.")
        yield from _table(T, [(S, self.scores)])
        if not additive:
            products = [
                f"{_number(a, self.q)} * {_number(b, self.k)}" for a, b in zip(self.q[t], self.k[s], strict=True)
            ]
            yield _example(f"{asks} · {asked} = {_sum(products, 3)} = {score}")

        yield from _step(4, "Scaling", *self._scaling())
        yield from _table(T, [(S, self.scaled)])
        if self.scale != 1 and not self._alibi:
            yield _example(f"{asks} · {asked}: {score} / {1 / self.scale:.3f} = {scaled}")

        yield from _step(5, "Softmax", "A = softmax of each row", "Every row becomes shares that sum to 1.")
        yield from _table(T, [(S, self.weights.masked_fill(self.scaled == -math.inf, -math.inf))], bars=True)
        seen = [i for i in range(len(S)) if math.isfinite(self.scaled[t, i])]
        powers = [f"e^{_number(self.scaled[t, i], self.scaled)}" for i in seen]
        yield _example(f"{asks} · {asked}: e^{scaled} / ({_sum(powers, 4)}) = {weight}")

        yield from _step(6, "Weighted sum", "Z = A V", "Every query takes its shares of the values.")
        yield from _table(T, [(_names("z", self.outputs), self.outputs)])
        shares = [f"{_number(self.weights[t, i], self.weights)} v({_label(S[i])})" for i in seen]
        yield _example(f"z({asks}) = {_sum(shares, 4)}")

    def _projection(self) -> tuple[str, str]:
        """The formula and the sentence of step 2."""
        if not isinstance(self.config, Stack):
            turned = {"bilinear": "Q = X W   K = M", "additive": "Q = X Wq   K = M Wk"}
            formula = turned.get(str(self.config.score), "Q = X   K = M")
            return f"{formula}   V = M", "The decoder's state before each token asks; the encoder's states answer."
        memory = "X" if self.memory is None else "M"
        bias = " + b" if self.config.bias else ""
        formula = f"Q = X Wq{bias}   K = {memory} Wk{bias}   V = {memory} Wv{bias}"
        after = ["normed"] if self.config.qk_norm else []
        after += ["turned by position"] if self.config.positions.kind == "rotary" and self.memory is None else []
        after += (
            [f"prepared for the {self.config.score} score"] if self.config.score in ("bilinear", "additive") else []
        )
        sentence = "What a token looks for, what it is found by, and what it hands over."
        return formula, sentence + (f" Q and K are then {' and '.join(after)}." if after else "")

    @property
    def _alibi(self) -> bool:
        return isinstance(self.config, Stack) and self.config.positions.kind == "alibi" and self.memory is None

    def _scaling(self) -> tuple[str, str]:
        """The formula and the sentence of step 4."""
        penalty = " From that goes ALiBi's penalty for distance." if self._alibi else ""
        if self.scale == 1:
            return "none", f"The {self.config.score} score is used as it is.{penalty}"
        formula = f"S / √d = S / √{self.q.shape[1]} = S / {1 / self.scale:.3f}"
        return formula, f"Longer vectors make larger products; dividing takes that out again.{penalty}"


def walk(
    text: str | Sequence[str] | Sequence[int] | Tensor,
    *,
    target: str | Sequence[str] | Sequence[int] | Tensor | None = None,
    model: Transformer | ModelConfig | None = None,
    layer: str | int | None = None,
    head: int = 0,
    tokens: Sequence[str] | None = None,
    target_tokens: Sequence[str] | None = None,
    seed: int = 0,
) -> Walk:
    """The six steps of one attention head over a text.

    The input may be a text, a list of words or ids, or the tensor that the model takes (one row). Words get ids in the
    order of their first appearance, for there is no tokenizer here; ``tokens`` says what ids are to be called.

    ``model`` may be a Transformer, or a configuration whose parameters are then drawn from ``seed``; without one, a
    tiny encoder is drawn. ``layer`` is a name out of ``model.attention_layers()``, with its tower in front where two
    have it ("decoder.0.self"), or a number for a self-attention. A decoder over an encoder reads ``target`` as well.

    >>> steps = walk("I am a student")
    >>> steps.weights[0]  # what "I" looks at
    tensor([0.1192, 0.3827, 0.3531, 0.1450])

    >>> from regard import presets
    >>> steps = walk("je suis ici", target="I am", model=presets.tiny_encoder_decoder(), layer="1.cross", head=2)
    >>> steps.tokens, steps.key_tokens
    (('I', 'am'), ('je', 'suis', 'ici'))
    """
    source, names = _read(text, tokens, "text")
    wanted, wanted_names = (None, None) if target is None else _read(target, target_tokens, "target")
    if model is None or isinstance(model, ModelConfig):
        model, note = _draw(model, seed), f"Parameters: drawn from seed {seed}, not trained."
    else:
        note = f"Parameters: the given model's, {model.n_parameters():,} of them."
    if _is_words(text) or _is_words(target):
        note += " Ids: 0, 1, 2 ... for each new word."
    tower, layer = _find(model, layer, words=_is_words(text))
    config: Tower = getattr(model.config, tower)
    n_heads = getattr(config, "n_heads", 1)
    if not isinstance(head, int) or not 0 <= head < n_heads:
        its = "its only head is 0" if n_heads == 1 else f"its heads are 0 to {n_heads - 1}"
        raise InputError(f"head ({head}) is not in layer {layer}; {its}")
    _check_reads(model, tower, words=_is_words(text), target=target)

    with _quiet(model):
        attended, memory = _run(model, tower, layer, source, wanted)
    cross = layer.endswith(".cross")
    if tower == "decoder" and wanted is not None:
        queries, keys = wanted_names, names if cross else wanted_names
    else:
        queries = keys = names
    step = _of_head(attended, head)
    return Walk(
        tokens=_named("target_tokens" if queries is wanted_names else "tokens", queries, step["q"]),
        key_tokens=_named("tokens", keys, step["k"]),
        layer=layer if len(model.attention_layers()) == 1 else f"{tower}.{layer}",
        head=head,
        config=config,
        note=note,
        memory=memory if cross else None,
        scale=attended.scale,
        **step,
    )


def _of_head(attended: Attended, head: int) -> dict[str, Any]:
    """The tensors of one head, from what its layer attended with."""
    from regard.nn import score

    group = head // (attended.q.shape[1] // attended.k.shape[1])
    x, q, k, v = attended.x[0], attended.q[0, head], attended.k[0, group], attended.v[0, group]
    x, q, k, v = (tensor.detach().float().cpu() for tensor in (x, q, k, v))
    w = None if attended.w is None else attended.w[head : head + 1].detach().float().cpu()
    penalty = _penalty(attended.mask, head, len(q), len(k))
    scores = score(q[None, None], k[None, None], 1.0, w)[0, 0]
    weights = attended.weights([head])[0, 0].detach().float().cpu()
    return {
        "inputs": x,
        "q": q,
        "k": k,
        "v": v,
        "scores": scores.masked_fill(penalty == -math.inf, -math.inf),
        "scaled": scores * attended.scale + penalty,
        "weights": weights,
        "outputs": weights @ v,
    }


def _penalty(mask: Lowered, head: int, t: int, s: int) -> Tensor:
    """What a mask adds to the scores: nothing, minus infinity, or ALiBi's penalty for distance."""
    import torch

    nothing = torch.zeros(t, s)
    if mask.is_causal:
        return nothing.masked_fill(~torch.ones(t, s, dtype=torch.bool).tril(), -math.inf)
    if mask.bias is None:
        return nothing
    bias = mask.bias[0, head if mask.bias.shape[1] > 1 else 0].cpu().expand(t, s)
    return nothing.masked_fill(~bias, -math.inf) if bias.dtype == torch.bool else bias.float()


def _run(
    model: Transformer, tower: str, layer: str, source: Tensor, target: Tensor | None
) -> tuple[Attended, Tensor | None]:
    """Run the model as far as the layer's tower; what the layer attended with, and the encoder's memory."""
    device = next(model.parameters()).device
    source = source.to(device)
    if tower == "text":
        return model.encode_text(source, capture=[layer]).attended[layer], None
    if tower == "encoder":
        return model.encode(source, capture=[layer]).attended[layer], None
    if target is None:
        return model.decode(source, capture=[layer]).attended[layer], None
    memory = model.encode(source)
    attended = model.decode(target.to(device), memory, capture=[layer]).attended[layer]
    return attended, memory.hidden[0].detach().float().cpu()


@contextmanager
def _quiet(model: Transformer) -> Iterator[None]:
    """No dropout and no gradients inside; every module is in its own mode again afterwards."""
    import torch

    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _draw(config: ModelConfig | None, seed: int) -> Transformer:
    """A model with weights from a seed, leaving the caller's random numbers alone."""
    import torch

    from regard.nn import Transformer

    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"seed ({seed!r}) must be a whole number from 0 up, below 2**63")
    if config is not None:
        _check_fits(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Transformer(SMALL if config is None else config)


def _check_fits(config: ModelConfig) -> None:
    """Refuse a model that this machine cannot hold, rather than be killed half-way."""
    import torch

    from regard.nn import Transformer

    with torch.device("meta"):
        n = Transformer(config).n_parameters()
    if not hasattr(os, "sysconf"):  # Windows: no simple way to ask
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * n > memory:
        raise InputError(
            f"model: {n:,} parameters need {4 * n / 2**30:,.0f} GiB, this machine has {memory / 2**30:,.0f};"
            " choose a smaller size or fewer layers"
        )


# -- what the caller gave ---------------------------------------------------------------


def _is_words(given: Any) -> bool:
    return isinstance(given, str) or (isinstance(given, Sequence) and len(given) > 0 and isinstance(given[0], str))


def _read(given: Any, names: Sequence[str] | None, what: str) -> tuple[Tensor, Sequence[str] | None]:
    """What a model takes, one row of it, and what its tokens are called (None: they have no names)."""
    import torch

    if isinstance(given, torch.Tensor):
        rows = given[None] if given.dim() == 1 else given
        if rows.dim() == 0 or rows.shape[0] != 1 or not rows.numel():
            raise InputError(f"{what} of shape {tuple(given.shape)} must be one row with something in it")
        ids = rows[0].tolist() if rows.dim() == 2 and not rows.is_floating_point() else None
        return rows, names or (None if ids is None else [str(i) for i in ids])
    items = given.split() if isinstance(given, str) else list(given)
    if not items:
        raise InputError(f"{what} ({given!r}) is empty; give at least one word")
    if all(isinstance(item, str) for item in items):
        number = {word: i for i, word in enumerate(dict.fromkeys(items))}
        return torch.tensor([[number[word] for word in items]]), names or items
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return torch.tensor([items]), names or [str(i) for i in items]
    raise InputError(f"{what} must be a text, a list of words, a list of ids or a tensor, not a mixture")


def _named(what: str, names: Sequence[str] | None, rows: Tensor) -> tuple[str, ...]:
    """The names of the rows: as given, or their numbers."""
    if names is None:
        return tuple(str(i + 1) for i in range(len(rows)))
    if len(names) != len(rows):
        raise InputError(f"{what} ({len(names)} names) must name each of the {len(rows)} positions")
    return tuple(names)


def _find(model: Transformer, layer: str | int | None, *, words: bool) -> tuple[str, str]:
    """The tower and the name of a layer: "1.cross", "decoder.0.self", "3" or 3."""
    known = towers = model.attention_layers()
    if layer is None:  # the first there is
        layer = next((names[0] for names in known.values() if names), "0.self")
    tower, _, name = str(layer).partition(".")
    if tower in towers:
        towers = {tower: towers[tower]}
    else:
        name = str(layer)
    name = f"{name}.self" if name.isdigit() else name
    found = [tower for tower, names in towers.items() if name in names]
    if not found:
        each = [f"{tower} {_range(names)}" for tower, names in known.items() if names]
        raise InputError(f"layer ({str(layer)!r}) is not in this model; it has {', '.join(each) or 'no attention'}")
    # Words go to the tower that reads words: of CLIP's two encoders, the second.
    reads_words = [tower for tower in found if isinstance(getattr(model.config, tower).input, Tokens)]
    return (reads_words or found)[0] if words else found[0], name


def _range(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _check_reads(model: Transformer, tower: str, *, words: bool, target: Any) -> None:
    """Refuse words for a tower of images, a missing target, and one that nobody reads."""
    reader = "encoder" if tower == "decoder" and model.encoder is not None else tower
    kind = getattr(model.config, reader).input.kind
    if words and kind != "tokens":
        what = "vectors" if kind == "vector" else "images"
        raise InputError(f"text: the {reader} of this model reads {what}, not words; give its tensor from Python")
    if reader != tower and target is None:
        raise InputError("target: this decoder writes a target while it reads the text; give both")
    if reader == tower and target is not None:
        raise InputError(f"target: only a decoder that reads an encoder has one; this layer is the {tower}'s")


# ---------------------------------------------------------------------------------------
# From a blackboard


@dataclass(frozen=True, kw_only=True)
class ScoresWalk:
    """One query's scores on their way to weights: steps 4 and 5 by themselves.

    >>> print(walk_scores([102, 99], d_key=3))
    From scores to weights: divide by √3 = 1.7321, then softmax
    <BLANKLINE>
      key  score   scaled  weight
        1    102  58.8897  0.8497  █████████████████
        2     99  57.1577  0.1503  ███
    """

    scores: tuple[float, ...]
    d_key: int
    scaled: tuple[float, ...]
    weights: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON.

        >>> walk_scores([4, 4], d_key=4).to_dict()
        {'scores': [4.0, 4.0], 'd_key': 4, 'scaled': [2.0, 2.0], 'weights': [0.5, 0.5]}
        """
        lists = {name: list(getattr(self, name)) for name in ("scores", "scaled", "weights")}
        return {"scores": lists["scores"], "d_key": self.d_key, "scaled": lists["scaled"], "weights": lists["weights"]}

    def __str__(self) -> str:
        return as_text(self)

    def __rich__(self) -> Group:
        table = Table(box=None, padding=(0, 0, 0, 2), pad_edge=True)
        for heading in ("key", "score", "scaled", "weight"):
            table.add_column(heading, justify="right")
        table.add_column()
        for i, (score, scaled, weight) in enumerate(zip(self.scores, self.scaled, self.weights, strict=True)):
            bar = Text("█" * round(20 * weight), style="cyan")
            table.add_row(str(i + 1), f"{score:g}", f"{scaled:.4f}", f"{weight:.4f}", bar)
        root = math.sqrt(self.d_key)
        title = f"From scores to weights: divide by √{self.d_key} = {root:.5g}, then softmax"
        return Group(Text(title, style="bold"), Text(), table)


def walk_scores(scores: Iterable[float], d_key: int = 64) -> ScoresWalk:
    """Given scores of one query, divided by the square root of the keys' width, and their softmax.

    >>> [round(weight, 4) for weight in walk_scores([112, 96, 16, 8], d_key=64).weights]
    [0.8808, 0.1192, 0.0, 0.0]
    """
    given = list(scores)
    if not given:
        raise InputError("scores are empty; give at least one number")
    for score in given:
        if not isinstance(score, numbers.Real) or isinstance(score, bool) or not _finite(score):
            raise InputError(f"scores ({score!r}) must be finite numbers")
    if not isinstance(d_key, int) or isinstance(d_key, bool) or d_key < 1:
        raise InputError(f"d_key ({d_key!r}) must be a whole number of at least 1")
    exact = tuple(float(score) for score in given)
    scaled = tuple(score / math.sqrt(d_key) for score in exact)
    # Less the largest: the weights stay the same and nothing overflows.
    powers = [math.exp(score - max(scaled)) for score in scaled]
    weights = tuple(power / sum(powers) for power in powers)
    return ScoresWalk(scores=exact, d_key=d_key, scaled=scaled, weights=weights)


def _finite(score: Any) -> bool:
    try:
        return math.isfinite(score)
    except OverflowError:  # a whole number too long for a float
        return False


# ---------------------------------------------------------------------------------------
# How it looks: everything fits 80 columns

ROWS = COLUMNS = 8
LABEL = 10  # width of a row's name
CELL = 7  # of a column's
BARS = "▁▂▃▄▅▆▇█"


def as_text(page: RenderableType, width: int = 80) -> str:
    """As printed into a pipe: no colour, and no spaces at the ends of lines.

    >>> as_text(Text("one two three"), width=8)
    'one two\\nthree'
    """
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, highlight=False)
    console.print(page)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines)


def _step(number: int, name: str, formula: str, sentence: str) -> Iterator[RenderableType]:
    yield Text.assemble("\n", (f"{number}  {name}", "bold"), "   ", (formula, "cyan"))
    yield Padding(Text(sentence), (0, 0, 1, 3))


def _example(line: str) -> RenderableType:
    return Padding(Text(line, style="italic"), (1, 0, 0, 3))


def _names(letter: str, matrix: Tensor) -> list[str]:
    return [f"{letter}{i + 1}" for i in range(matrix.shape[1])]


def _table(
    rows: Sequence[str], groups: Sequence[tuple[Sequence[str], Tensor]], *, bars: bool = False
) -> Iterator[RenderableType]:
    """Matrices with the same rows side by side, the first rows and columns of each, and a line on what is left out."""
    most = min(COLUMNS, 9 // len(groups))
    table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False, header_style="dim")
    table.add_column(min_width=LABEL)
    for i, (names, _) in enumerate(groups):
        if i:
            table.add_column(width=1)
        for name in names[:most]:
            table.add_column(_short(name, CELL), justify="right", min_width=CELL if len(groups) < 3 else 6)
    for r, name in enumerate(rows[:ROWS]):
        cells: list[Text] = []
        for i, (_, matrix) in enumerate(groups):
            cells += [Text()] if i else []
            cells += [_cell(value, matrix, bars=bars) for value in matrix[r, :most]]
        table.add_row(_short(name, LABEL), *cells)
    yield Padding(table, (0, 0, 0, 3))
    parts = [(len(rows), ROWS, "rows"), (max(len(names) for names, _ in groups), most, "columns")]
    left_out = [f"{n - shown} more {what}" for n, shown, what in parts if n > shown]
    if left_out:
        yield Padding(Text(f"... and {', '.join(left_out)}", style="dim"), (0, 0, 0, 3))


def _cell(value: Tensor, matrix: Tensor, *, bars: bool) -> Text:
    if not math.isfinite(value):
        return Text("-", style="dim")
    if not bars:
        return Text(_number(value, matrix))
    return Text.assemble(_number(value, matrix), " ", (BARS[min(int(8 * value), 7)], "cyan"))


def _number(value: Tensor, matrix: Tensor) -> str:
    """Three decimals; fewer where the matrix holds large numbers, so that six places are enough."""
    finite = matrix[matrix.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    if largest >= 99_999:
        return f"{value:.0e}"
    return f"{value:.{sum(largest < limit for limit in (9.9995, 99.995, 999.95))}f}"


def _sum(terms: list[str], most: int) -> str:
    return " + ".join([*terms[: most - 1], "..."] if len(terms) > most else terms)


def _label(name: str) -> str:
    return _short(name, LABEL).plain


def _short(name: str, width: int) -> Text:
    # A token may be anything: line ends and terminal codes must not get out.
    text = Text("".join(c if c.isprintable() else "·" for c in name))
    text.truncate(width, overflow="ellipsis")
    return text


def _plain(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    return [[x if math.isfinite(x) else None for x in row] for row in tensor.tolist()]
