"""What a head is for: a model with heads off (Michel et al., "Are sixteen heads really better than one?", 2019).

A head is off when nothing of it reaches the projection that joins the heads: :func:`without` puts zeros there, and all
else runs as ever, at full speed, whatever the model's job. :func:`ablate` compares what the model says, and how likely
it finds what it should say, with and without some heads, or without each head by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from regard.config import Contrastive, InputError, Labels, Pooled, Vocabulary
from regard.decode.recorded import Recorder
from regard.encode.labels import is_regression, parts_of, words_of
from regard.look.attention import chosen, head_of
from regard.look.inputs import Inputs, read, said_by
from regard.look.page import as_text, printable

if TYPE_CHECKING:
    from regard.model import Model

Head = tuple[str | int, int]
"""A layer, by its name or a part of it that only one has, and the number of a head."""
NEXT = 20  # tokens of what follows a prompt


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """A model's loss on what it should say and what it says, as it is and with heads off."""

    heads: tuple[tuple[str, int], ...]
    loss: float
    loss_without: float
    output: str | None
    output_without: str | None

    @property
    def change(self) -> float:
        return self.loss_without - self.loss

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**vars(self), "heads": [list(head) for head in self.heads]}

    def __str__(self) -> str:
        return as_text(self)

    def __rich__(self) -> Group:
        off = ", ".join(f"{layer} head {head}" for layer, head in self.heads) or "none"
        lines = [f"without {off}: loss {self.loss:.4f} -> {self.loss_without:.4f} ({self.change:+.4f})"]
        if self.output is not None and self.output_without is not None:
            lines += [f"  with     {printable(self.output)}", f"  without  {printable(self.output_without)}"]
        return Group(*map(Text, lines))


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadTable:
    """How much the loss rises without each head by itself: for each layer a number a head. Below 0, it falls."""

    loss: float
    changes: dict[str, Float[NDArray, " H"]]

    def most(self, n: int = 8) -> list[tuple[str, int, float]]:
        """The heads that are missed most, and by how much."""
        every = [(layer, head, float(by)) for layer, of in self.changes.items() for head, by in enumerate(of)]
        return sorted(every, key=lambda one: -one[2])[:n]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"loss": self.loss, "changes": {layer: of.tolist() for layer, of in self.changes.items()}}

    def __str__(self) -> str:
        return as_text(self, width=120)

    def __rich__(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("layer")
        for head in range(max(map(len, self.changes.values()))):
            table.add_column(str(head), justify="right")
        for layer, of in self.changes.items():
            table.add_row(layer, *(f"{by:+.3f}" for by in of))
        return Group(Text(f"loss {self.loss:.4f}; by how much it changes without each head:\n"), table)


@contextmanager
def without(model: Model, heads: Iterable[Head]) -> Iterator[None]:
    """Inside, some heads of a model are off, for everything that it does.

    >>> from regard import Model, Transformer, presets
    >>> model = Model(Transformer(presets.tiny_decoder()), "generate", None)
    >>> ids = torch.tensor([[5, 7, 11]])
    >>> whole = model.logits(ids)
    >>> with without(model, [(1, 2)]):
    ...     bool((model.logits(ids) == whole).all())
    False
    >>> bool((model.logits(ids) == whole).all())
    True
    """
    off: dict[str, list[int]] = {}
    for layer, head in resolved(model, heads):
        off.setdefault(layer, []).append(head)
    hooks = []
    recorder, model.recorder = model.recorder, Recorder()  # steps recorded with the heads on are not replayed here
    try:
        for layer, some in off.items():
            module = model.net.attention(layer)
            hooks.append(module.out.register_forward_pre_hook(_silence(some, module.n_heads)))
        yield
    finally:
        model.recorder = recorder
        for hook in hooks:
            hook.remove()


def _silence(heads: Sequence[int], n_heads: int) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Tensor]]:
    def hook(module: nn.Module, given: tuple[Any, ...]) -> tuple[Tensor]:
        kept = given[0].unflatten(-1, (n_heads, -1)).clone()
        for head in heads:
            kept[..., head, :] = 0
        return (kept.flatten(-2),)

    return hook


def resolved(model: Model, heads: Iterable[Head]) -> list[tuple[str, int]]:
    """Heads with the full names of their layers; refused where there is no such head."""
    found = []
    for layer, head in heads:
        names = chosen(model, layer)
        if len(names) > 1:
            raise InputError(f"layer ({layer!r}) may be any of {', '.join(names)}; say which")
        found.append((names[0], head_of(names[0], model.net.attention(names[0]).n_heads, head)))
    return found


def ablate(model: Model, given: Any, target: Any = None, *, heads: Iterable[Head]) -> Ablation:
    """The loss and the answer of a model with some heads off; see :meth:`regard.Model.ablate`.

    >>> from regard import Model, Transformer, presets
    >>> model = Model(Transformer(presets.tiny_decoder()), "generate", None)
    >>> ablate(model, torch.tensor([5, 7, 11]), heads=[]).change
    0.0
    """
    off = resolved(model, heads)
    inputs, wanted = _asked(model, given, target)
    with without(model, off):
        said = _said(model, inputs)
    return Ablation(
        heads=tuple(off),
        loss=_loss(model, inputs, wanted),
        loss_without=_loss(model, inputs, wanted, off),
        output=_said(model, inputs),
        output_without=said,
    )


def ablate_each(
    model: Model, given: Any, target: Any = None, *, layers: str | int | Iterable[str | int] | None = None
) -> HeadTable:
    """How much the loss rises without each head by itself, of all ``layers`` or of some.

    >>> from regard import Model, Transformer, presets
    >>> model = Model(Transformer(presets.tiny_decoder()), "generate", None)
    >>> {name: by.shape for name, by in ablate_each(model, torch.tensor([5, 7, 11]), layers=1).changes.items()}
    {'decoder.1.self': (3,)}
    """
    inputs, wanted = _asked(model, given, target)
    loss, changes = _loss(model, inputs, wanted), {}
    for layer in chosen(model, layers):
        heads = range(model.net.attention(layer).n_heads)
        changes[layer] = np.array([_loss(model, inputs, wanted, [(layer, head)]) - loss for head in heads])
    return HeadTable(loss=loss, changes=changes)


# ---------------------------------------------------------------------------------------
# What a model should say, and what it says


def _asked(model: Model, given: Any, target: Any) -> tuple[Inputs, Tensor]:
    """What the model reads, and what it should say of that: the target, or else its own answer as it is. A language
    model should say the text itself, each token after those before it."""
    shape, head = model.config.shape, model.config.head
    chosen(model)  # there is a head to switch off
    if not isinstance(head, Contrastive | Labels | Pooled | Vocabulary) or getattr(head, "n_labels", 1) is None:
        raise InputError(f"{model.path or 'this model'}: gives no answer whose loss could change; give another model")
    if isinstance(head, Contrastive):
        inputs = read(model, given, target)
        if inputs.inputs is None or inputs.target is None:
            raise InputError("target: missing; this model is asked how well an image and a text fit: give both")
        return inputs, torch.ones(1, device=model.device)  # a cosine of 1
    if shape == "encoder-decoder":
        inputs = read(model, given, target)
        assert inputs.target is not None
        if not isinstance(head, Vocabulary):
            return inputs, _scores(model, inputs).argmax(-1)
        end = [model.tokenizer.end] if model.has_tokenizer else []
        return inputs, torch.cat([inputs.target[0, 1:], inputs.target.new_tensor(end)])
    inputs = read(model, given)
    assert inputs.inputs is not None
    if shape == "decoder" and isinstance(head, Vocabulary):
        if target is not None:
            raise InputError(f"target ({target!r}): a language model is asked for the text itself; leave it out")
        if inputs.inputs.shape[1] < 2:
            raise InputError("a text of one token has nothing after it to be asked for; give a longer one")
        return inputs, inputs.inputs[0, 1:]
    scores = _scores(model, inputs)
    if is_regression(model):
        return inputs, scores[:, 0] if target is None else scores.new_tensor([float(target)])
    return inputs, scores.argmax(-1) if target is None else _ids_of(model, inputs, target, len(scores))


def _ids_of(model: Model, inputs: Inputs, target: Any, n: int) -> Tensor:
    """A label, a tag a word, or a word a mask, as ids."""
    words = [target] if isinstance(target, str) and isinstance(model.config.head, Pooled) else target
    words = words.split() if isinstance(words, str) else list(words)
    if len(words) != n:
        raise InputError(f"target ({len(words)} of them) must name each of the {n} answers that are asked for")
    ids = []
    for word in words:
        if not isinstance(model.config.head, Vocabulary):
            if word not in model.labels:
                raise InputError(f"target ({word!r}) is no label of this model; known: {', '.join(model.labels)}")
            ids.append(model.labels.index(word))
            continue
        of_word = model.tokenizer.encode(word)
        if len(of_word) != 1:
            raise InputError(f"target ({word!r}) is {len(of_word)} tokens, and a mask stands for one; choose another")
        ids += of_word
    return torch.tensor(ids, device=model.device)


@torch.inference_mode()
def _scores(model: Model, inputs: Inputs) -> Float[Tensor, "N L"]:
    """The scores of all answers, at every place where one is asked for."""
    net, first = model.net, inputs.inputs
    assert first is not None
    if inputs.target is not None:
        out = net(first, inputs.target)
        if isinstance(model.config.head, Contrastive):
            return (out.first * out.text).sum(-1, keepdim=True).float()  # type: ignore[union-attr]
        return (out[0] if out.dim() == 3 else out).float()  # type: ignore[union-attr, index]
    out = net(first, segments=inputs.segments) if inputs.segments is not None else net(first)
    assert isinstance(out, Tensor)
    if isinstance(model.config.head, Pooled):
        return out.float()
    out = out[0].float()
    if isinstance(model.config.head, Labels) and inputs.given is not None and not isinstance(inputs.given, Tensor):
        [(_, _, places)] = parts_of(model, 0, words_of(inputs.given, 1))
        return out[places]
    if model.config.shape == "decoder" and isinstance(model.config.head, Vocabulary):
        return out[:-1]
    if isinstance(model.config.head, Vocabulary) and model.has_tokenizer:
        masks = (first[0] == model.tokenizer.mask).nonzero().flatten()
        if not len(masks):
            raise InputError("the text has no [MASK]: put one where a word is to be found")
        return out[masks]
    return out


def _loss(model: Model, inputs: Inputs, wanted: Tensor, heads: Iterable[Head] = ()) -> float:
    """Of what should be said, a token or an answer; of numbers the squared error, of a cosine what it lacks."""
    with without(model, heads) if heads else nullcontext():
        scores = _scores(model, inputs)
    if isinstance(model.config.head, Contrastive):
        return float(1 - scores.squeeze())
    if is_regression(model):
        return float(F.mse_loss(scores[:, 0], wanted))
    return float(F.cross_entropy(scores[: len(wanted)], wanted))


def _said(model: Model, inputs: Inputs) -> str | None:
    """What the model says of what it reads, by its own job; None of a tensor."""
    given = inputs.given
    if given is None or isinstance(given, Tensor):
        return None
    match model.task:
        case "translate" | "caption":
            return said_by(model, given)[0]
        case "generate":
            return model.generate([given], max_new_tokens=NEXT, temperature=0.0)[0].text
        case "fill":
            return model.fill([given])[0].best
        case "tag":
            return " ".join(model.tag([given])[0].tags)
        case "classify":
            found = model.classify([given])[0]
            return f"{found.score:.4f}" if is_regression(model) else found.label  # type: ignore[union-attr]
        case "match":
            return f"{float(model.match([given], [inputs.said or '']).cosines[0, 0]):.4f}"
    return None
