"""Fine-tuning: what a run takes from the model that it begins with, and which of its weights move, how far.

The body (towers, positions) is the given model's, weight by weight; a head is taken where it is of the same kind, size
and labels, and else begins anew. Whatever is new or left behind is told (:class:`Beginning`). The data must be in the
given model's tokens. Images may have another size: learned positions are then resampled to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from regard.config import Grid, InputError, ModelConfig, Patches, Stack, Vocabulary
from regard.data.store import DataDir, sha256
from regard.data.tokenizer import Tokenizer
from regard.model import Model, load
from regard.nn import Transformer
from regard.nn.blocks import Block
from regard.nn.lora import add_lora, is_lora
from regard.nn.positions import resampled
from regard.recipe import Recipe, Train
from regard.train.run import Run, told_differences

TOWERS = ("decoder", "encoder", "text")  # from the top down
# What a tower may have otherwise than the given one: no weight's shape or meaning depends on it.
FREE = ("dropout", "attn_dropout", "mlp_dropout", "embed_dropout", "init_std")


def opened_to_tune(path: str | Path) -> Model:
    """A model to begin with, its weights as they are."""
    return load(path, device="cpu", precision="float32", packed=False)


def check_beginning(recipe: Recipe, *, begins: bool, shard: bool = False) -> None:
    """Refuse what needs a model to begin with and has none."""
    train, task = recipe.train, recipe.data.task
    if not begins and recipe.needs_model:
        raise InputError("model (no preset and no input): name a preset, or a model to begin with: --from MODEL")
    for name, given in (("lora", train.lora), ("train_last", train.train_last is not None)):
        if given and not begins:
            raise InputError(f"train.{name} ({getattr(train, name)}): needs a model to begin with: --from MODEL")
    if task == "prefer" and not begins:
        raise InputError("task 'prefer' needs a model to begin with and to be held to: --from MODEL")
    if task == "prefer" and shard:
        raise InputError("--shard: not for task 'prefer'; leave it out")


class Beginning(NamedTuple):
    """The weights that a run begins with, and the names of those that are drawn anew and of those not taken."""

    weights: dict[str, Tensor]
    new: list[str]
    left: list[str]

    def __str__(self) -> str:
        told = [f"{len(self.weights)} tensors taken"]
        told += [f"{what}: {', '.join(_parts(names))}" for what, names in self._others() if names]
        return "; ".join(told)

    def _others(self) -> Iterable[tuple[str, list[str]]]:
        return ("new, drawn at random", self.new), ("left behind", self.left)


def _parts(names: list[str]) -> list[str]:
    """Names with how many of LoRA's there are, not each of them."""
    n = sum(map(is_lora, names))
    return [name for name in names if not is_lora(name)] + ([f"{n} of LoRA"] if n else [])


def beginning(given: Model, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], data: DataDir) -> Beginning:
    """What a model with these weights takes from a given one; refused unless body and vocabularies are the same."""
    differences = told_differences(_body(given.config), _body(config), ("there", "here"))
    if differences:
        raise InputError(f"{given.path}: has another model ({differences}); begin from one with the same")
    if not _fits(given, data):
        if not given.has_tokenizer:
            raise InputError(f"{data.path}: has text, and {given.path} reads images; begin from another model")
        raise InputError(
            f"{data.path / 'tokenizer.json'}: is not the vocabulary of {given.path}; say where else the data goes with"
            " --data, and it is prepared with that"
        )
    weights, left = {}, []
    for name, weight in _resized(given, config):
        part = name.partition(".")[0]
        fits = part not in ("head", "mix") or given.config.head.kind == config.head.kind
        if name.startswith("head.classify") and given.labels != tuple(data.labels):
            fits = False
        if fits and shapes.get(name) == tuple(weight.shape):
            weights[name] = weight.detach()
        else:
            left.append(name)
    return Beginning(weights, [name for name in shapes if name not in weights], left)


def _resized(given: Model, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """The given weights, learned positions in an image made to fit its new size."""
    tower = config.encoder
    for name, weight in given.net.named_parameters():
        if name == "encoder.positions.weight" and isinstance(tower, Stack) and len(weight) != tower.n_positions:
            assert isinstance(tower.input, Patches | Grid), "_body is not the same otherwise"
            weight = resampled(weight.detach(), tower.input.side, tower.n_positions - tower.input.side**2)
        yield name, weight


def tokenizers(given: Model) -> dict[str, Tokenizer]:
    """A model's tokenizers, by the names of their files in a data directory; one over images alone has none."""
    if not given.has_tokenizer:
        return {}
    own = given.source_tokenizer is not given.tokenizer
    return {"tokenizer.json": given.tokenizer} | ({"source.tokenizer.json": given.source_tokenizer} if own else {})


def data_for(given: Model, place: str) -> str:
    """Where data for a model is: in a place that has its tokens, or will; beside it, where another's are there."""
    path = Path(place)
    if path.exists() and not _fits(given, DataDir(path)):
        return f"{place}-for-{given.path.name if given.path else 'another'}"
    return place


def _fits(given: Model, data: DataDir) -> bool:
    files = tokenizers(given)
    if bool(files) != data.has_text:
        return False
    there = ("source.tokenizer.json" in data.manifest["files"]) == (len(files) > 1)
    return there and all(tokenizer.same_as(Tokenizer.load(data.path / file)) for file, tokenizer in files.items())


def _body(config: ModelConfig) -> dict[str, Any]:
    plain = {name: tower for name, tower in config.to_dict().items() if name in (*TOWERS, "share_embeddings")}
    parts = {
        name: {key: value for key, value in part.items() if key not in FREE} if isinstance(part, dict) else part
        for name, part in plain.items()
    }
    if isinstance(parts["encoder"], dict):
        parts["encoder"]["input"].pop("image_size", None)
    return parts


def told(given: Model, begun: Beginning) -> dict[str, Any]:
    """What config.json says of it."""
    facts: dict[str, Any] = {"path": None if given.path is None else str(given.path.resolve())}
    if given.path is not None:
        file = given.path / "model.safetensors"
        facts |= {"sha256": sha256(file) if file.exists() else None, "training": Run(given.path).training()}
    return facts | {"new": begun.new, "left": begun.left}


# ---------------------------------------------------------------------------------------
# Which weights move


def distance(name: str, config: ModelConfig) -> int:
    """How far a weight is below the head: 0 for the head's own, 1 for the last layer's, and so on; the embeddings are
    the furthest. An encoder's layers count as below its decoder's.

    >>> from regard import presets
    >>> config = presets.gpt2()
    >>> [distance(f"decoder.{name}", config) for name in ("stack.norm.weight", "stack.blocks.0.mlp.up.weight")]
    [1, 12]
    >>> distance("decoder.embed.weight", config), distance("head.bias", config)
    (13, 0)
    """
    layers = {part: tower.n_layers for part in TOWERS if (tower := getattr(config, part)) is not None}
    part, _, rest = name.partition(".")
    if part not in layers:
        return 0
    if rest.startswith(("embed", "positions")):
        return sum(layers.values()) + 1
    above = layers["decoder"] if part == "encoder" and "decoder" in layers else 0
    layer = re.search(r"\b(?:blocks|forwards|backwards)\.(\d+)\.", rest)
    return above + (layers[part] - int(layer[1]) if layer else 1)


def is_trained(name: str, config: ModelConfig, train: Train) -> bool:
    """Whether a weight moves. With LoRA those of the layers don't, and neither does a head over the vocabulary.

    >>> from regard import presets
    >>> is_trained("encoder.embed.weight", presets.bert_base(), Train(steps=1, train_last=2))
    False
    """
    far = distance(name, config)
    if train.lora and not is_lora(name):
        return far == 0 and not isinstance(config.head, Vocabulary)
    return train.train_last is None or far <= train.train_last


def choose(model: Transformer, train: Train) -> None:
    """Freeze what a recipe does not train, and put LoRA beside it where it says so."""
    config = model.config
    if train.lora:
        blocks = {name: module for name, module in model.named_modules() if isinstance(module, Block)}
        reach = len(blocks) if train.train_last is None else train.train_last
        near = [block for name, block in blocks.items() if distance(f"{name}.", config) <= reach]
        add_lora(near, train.lora, train.lora_alpha)
    _check(train, config, [name for name, _ in model.named_parameters()])
    for name, weight in model.named_parameters():
        weight.requires_grad_(is_trained(name, config, train))


def _check(train: Train, config: ModelConfig, names: Iterable[str]) -> None:
    """Refuse to train nothing, or more layers than there are."""
    layers = sum(tower.n_layers for part in TOWERS if (tower := getattr(config, part)) is not None)
    if train.train_last is not None and train.train_last > layers:
        raise InputError(
            f"train_last ({train.train_last}) must be at most {layers}, the layers there are; leave it out to train all"
        )
    if not any(is_trained(name, config, train) for name in names):
        raise InputError(
            f"train_last ({train.train_last}): this model's {config.head.kind} head has no weights of its own to train"
        )
