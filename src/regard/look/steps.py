"""The worked example: attention in six steps, with every number.

    1 inputs   2 queries, keys, values   3 scores   4 scaling   5 softmax   6 weighted sum

:func:`walk` runs a model, asks one of its layers what it attended with, and sets the steps of one head out; it computes
no attention of its own. What comes back prints as tables (``page.py``), in a terminal and in a pipe, and turns into
plain values for JSON. torch is imported when a model runs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regard.config import InputError, ModelConfig, Pooled, Positions, Stack, Tokens, Tower
from regard.look.attention import head_of
from regard.look.given import check_reads, find, named, read
from regard.look.page import as_text, walk_page
from regard.presets import preset

if TYPE_CHECKING:
    from rich.console import Group
    from torch import Tensor

    from regard.nn import Attended, Transformer

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
        names = ("tokens", "key_tokens", "layer", "head", "scale", "note")
        tensors = ("inputs", "memory", "q", "k", "v", "scores", "scaled", "weights", "outputs")
        return {name: _plain(getattr(self, name)) for name in names + tensors}

    def __str__(self) -> str:
        return as_text(self)

    def __rich__(self) -> Group:
        return walk_page(self)


def _plain(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return [[x if math.isfinite(x) else None for x in row] for row in value.tolist()]
    return list(value) if isinstance(value, tuple) else value


def walk(
    text: str | Sequence[str] | Sequence[int] | Tensor,
    *,
    target: str | Sequence[str] | Sequence[int] | Tensor | None = None,
    model: Transformer | ModelConfig | str | None = None,
    layer: str | int | None = None,
    head: int = 0,
    tokens: Sequence[str] | None = None,
    target_tokens: Sequence[str] | None = None,
    seed: int = 0,
) -> Walk:
    """The six steps of one attention head over a text.

    The input may be a text, a list of words or ids, or the tensor that the model takes (one row). Words get ids in the
    order of their first appearance, for there is no tokenizer here; ``tokens`` says what ids are to be called.

    ``model`` may be a Transformer, or a configuration or a preset's name, whose parameters are then drawn from
    ``seed``; without one, a tiny encoder is drawn. ``layer`` is a name out of ``model.attention_layers()``, with its
    tower in front where two have it ("decoder.0.self"), or a number for a self-attention. A decoder over an encoder
    reads ``target`` as well.

    >>> steps = walk("I am a student")
    >>> steps.weights[0]  # what "I" looks at
    tensor([0.1192, 0.3827, 0.3531, 0.1450])

    >>> from regard import presets
    >>> steps = walk("je suis ici", target="I am", model=presets.tiny_encoder_decoder(), layer="1.cross", head=2)
    >>> steps.tokens, steps.key_tokens
    (('I', 'am'), ('je', 'suis', 'ici'))
    """
    source = read(text, tokens, "text")
    wanted = None if target is None else read(target, target_tokens, "target")
    if isinstance(model, str):
        model = preset(model)
    if model is None or isinstance(model, ModelConfig):
        model, note = _draw(model, seed), f"Parameters: drawn from seed {seed}, not trained."
    elif not hasattr(model, "attention_layers"):
        raise InputError(f"model ({type(model).__name__}) must be a Transformer, a ModelConfig or a preset's name")
    else:
        note = f"Parameters: the given model's, {model.n_parameters():,} of them."
    if source.words or (wanted is not None and wanted.words):
        note += " Ids: 0, 1, 2 ... for each new word."
    tower, layer = find(model, layer, words=source.words)
    config: Tower = getattr(model.config, tower)
    n_heads = getattr(config, "n_heads", 1)
    head = head_of(layer, n_heads, head)
    check_reads(model, tower, source, wanted)

    attended, memory = _run(model, tower, layer, source.row, None if wanted is None else wanted.row)
    step = _of_head(attended, head)
    asks = source if wanted is None else wanted
    cross = layer.endswith(".cross")
    names = named("tokens" if wanted is None else "target_tokens", asks.names, len(step["q"]))
    return Walk(
        tokens=names,
        key_tokens=named("tokens", source.names, len(step["k"])) if cross else names,
        layer=layer if len(model.attention_layers()) == 1 else f"{tower}.{layer}",
        head=head,
        config=config,
        note=note,
        memory=memory if cross else None,
        scale=attended.scale,
        **step,
    )


def _draw(config: ModelConfig | None, seed: int) -> Transformer:
    """A model with weights from a seed, leaving the caller's random numbers alone."""
    import torch

    from regard.nn import Transformer, skeleton

    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"seed ({seed!r}) must be a whole number from 0 up, below 2**63")
    config = SMALL if config is None else config
    _check_fits(skeleton(config).n_parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Transformer(config)


def _check_fits(n: int) -> None:
    """Refuse a model that this machine cannot hold, rather than be killed half-way."""
    if not hasattr(os, "sysconf"):  # Windows: no simple way to ask
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * n > memory:
        raise InputError(
            f"model: {n:,} parameters need {4 * n / 2**30:,.0f} GiB, this machine has {memory / 2**30:,.0f};"
            " choose a smaller size or fewer layers"
        )


def _run(
    model: Transformer, tower: str, layer: str, source: Tensor, target: Tensor | None
) -> tuple[Attended, Tensor | None]:
    """Run the model as far as the layer's tower; what the layer attended with, and the memory that a target is for."""
    device = next(model.parameters()).device
    source, target = source.to(device), None if target is None else target.to(device)
    inputs = (None, source) if tower == "text" else (source, target)
    with _quiet(model):
        attended = model.attended(*inputs, layers=[f"{tower}.{layer}"])[f"{tower}.{layer}"]
        return attended, None if target is None else _own(model.encode(source).hidden[0])


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


def _of_head(attended: Attended, head: int) -> dict[str, Tensor]:
    """The tensors of one head, from what its layer attended with."""
    from regard.nn import score

    group = head // (attended.q.shape[1] // attended.k.shape[1])
    q, k, v = _own(attended.q[0, head]), _own(attended.k[0, group]), _own(attended.v[0, group])
    w = None if attended.w is None else _own(attended.w[head : head + 1])
    penalty = _penalty(attended, head)
    scores = score(q[None, None], k[None, None], 1.0, w)[0, 0]
    weights = _own(attended.weights([head])[0, 0])
    return {
        "inputs": _own(attended.x[0]),
        "q": q,
        "k": k,
        "v": v,
        "scores": scores.masked_fill(penalty == -math.inf, -math.inf),
        "scaled": scores * attended.scale + penalty,
        "weights": weights,
        "outputs": weights @ v,
    }


def _penalty(attended: Attended, head: int) -> Tensor:
    """What the mask adds to a head's scores: nothing, minus infinity, or ALiBi's penalty for distance."""
    import torch

    t, s = attended.q.shape[2], attended.k.shape[2]
    mask = attended.mask.dense(t, s, device=attended.q.device, dtype=attended.q.dtype)
    bias = mask.bias
    if mask.is_causal:
        bias = torch.ones(1, 1, t, s, dtype=torch.bool).tril()
    if bias is None:
        return torch.zeros(t, s)
    bias = bias[0, head if bias.shape[1] > 1 else 0].cpu().expand(t, s)
    return torch.zeros(t, s).masked_fill(~bias, -math.inf) if bias.dtype == torch.bool else bias.float()


def _own(tensor: Tensor) -> Tensor:
    """As it is shown: on this machine, in single precision, and no part of a graph."""
    return tensor.detach().float().cpu()
