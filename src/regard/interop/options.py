"""Configurations in two tongues: what the families' files share in reading and writing theirs.

An option of theirs that we have no counterpart for is refused, never dropped; and so is one of
ours that they have none for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.config import Activation, ConfigError, ModelConfig, Node, Positions, Recurrent, Stack, suggest

# Their names of the activations that we have, the one that we write last.
ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "swish": "silu",
    "silu": "silu",
}
THEIR_ACTIVATIONS: dict[str, str] = {ours: theirs for theirs, ours in ACTIVATIONS.items()}


def only(hf: Mapping[str, Any], **supported: Any) -> None:
    """Refuse every option that has another value than the one supported.

    >>> only({"is_decoder": True}, is_decoder=False)
    Traceback (most recent call last):
    regard.schema.ConfigError: is_decoder (True) is not supported; only False is
    """
    problems = [
        f"{key} ({hf[key]!r}) is not supported; only {value!r} is"
        for key, value in supported.items()
        if hf.get(key, value) != value
    ]
    if problems:
        raise ConfigError(problems)


def one_of(hf: Mapping[str, Any], key: str, known: Mapping[str, Any]) -> Any:
    """What the option's value means, or an error that lists the values that mean something.

    >>> one_of({"hidden_act": "mish"}, "hidden_act", {"relu": "relu", "gelu": "gelu"})
    Traceback (most recent call last):
    regard.schema.ConfigError: hidden_act ('mish') is not supported; known: relu, gelu
    """
    if hf[key] not in known:
        raise ConfigError([f"{key} ({hf[key]!r}) is not supported; known: {', '.join(known)}"])
    return known[hf[key]]


def activation(hf: Mapping[str, Any], key: str) -> Activation:
    return one_of(hf, key, ACTIVATIONS)


def encoder_sizes(hf: Mapping[str, Any]) -> dict[str, Any]:
    """What BERT, ViT and CLIP's two towers call by the same names, as ours."""
    return {
        "positions": Positions(kind="learned"),
        "d_model": hf["hidden_size"],
        "n_layers": hf["num_hidden_layers"],
        "n_heads": hf["num_attention_heads"],
        "d_ff": hf["intermediate_size"],
        "activation": activation(hf, "hidden_act"),
        "norm_eps": hf["layer_norm_eps"],
        "init_std": hf["initializer_range"],
    }


def their_encoder_sizes(stack: Stack) -> dict[str, Any]:
    """The same, as theirs."""
    return {
        "hidden_size": stack.d_model,
        "num_hidden_layers": stack.n_layers,
        "num_attention_heads": stack.n_heads,
        "intermediate_size": stack.d_ff,
        "hidden_act": THEIR_ACTIVATIONS.get(stack.activation, stack.activation),
        "layer_norm_eps": stack.norm_eps,
        "initializer_range": stack.init_std or 0.02,
    }


def architecture(hf: Mapping[str, Any], *known: str) -> str:
    """The class that the checkpoint was saved from, the first of the known ones where it does not say."""
    given = (hf.get("architectures") or [known[0]])[0]
    if given not in known:
        raise ConfigError([f"architectures ({given!r}) is not supported; {suggest(given, known)}"])
    return given


def square(hf: Mapping[str, Any], key: str) -> int:
    """One side of a square, which they may also write as a pair."""
    value = hf[key]
    sides = {value} if isinstance(value, int) else set(value)
    if len(sides) > 1:
        raise ConfigError([f"{key} ({value!r}) is not supported; only squares are"])
    return sides.pop()


def n_labels(hf: Mapping[str, Any]) -> int:
    """They write down the labels' names, and nothing where there are two."""
    return len(hf["id2label"]) if hf.get("id2label") else hf.get("num_labels", 2)


def labels(n: int) -> dict[str, Any]:
    names = {str(i): f"LABEL_{i}" for i in range(n)}
    return {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}


# ---------------------------------------------------------------------------------------
# Ours against what theirs can say

# What no logit depends on: their options for these are fewer than ours.
TRAINING_ONLY = ("dropout", "attn_dropout", "mlp_dropout", "embed_dropout", "init_std", "temperature")


def check_same(config: ModelConfig, theirs: ModelConfig, family: str) -> None:
    """Refuse a model that another family cannot be, naming each option and what it would become."""
    ours, other = _flat(config), _flat(theirs)
    problems = [
        f"{key} is {ours.get(key)!r} here and {other.get(key)!r} there"
        for key in ours | other
        if ours.get(key) != other.get(key)
    ]
    if problems:
        raise ConfigError([f"this model cannot be written as {family}: {'; '.join(problems)}"])


def _flat(node: Node, path: str = "") -> dict[str, Any]:
    """Every value by its path, defaults resolved to what they stand for."""
    if isinstance(node, Stack):
        d_head, d_value = node.head_widths
        pre = node.norm_order == "pre"
        node = node.replace(
            d_head=d_head,
            d_value=d_value,
            n_kv_heads=node.n_kv_heads or node.n_heads,
            max_len=node.n_positions,
            final_norm=pre if node.final_norm is None else node.final_norm,
            windows=() if not any(node.windows) else node.windows,
        )
    flat: dict[str, Any] = {}
    for key in node.to_dict():
        value = getattr(node, key)
        if isinstance(value, Node):
            flat |= _flat(value, f"{path}{key}.")
        elif key not in TRAINING_ONLY:
            flat[path + key] = value
    return flat


def is_stack_of(tower: Stack | Recurrent | None, *inputs: type[Node]) -> bool:
    """Whether a tower is a Transformer over one of these inputs."""
    return isinstance(tower, Stack) and isinstance(tower.input, inputs)
