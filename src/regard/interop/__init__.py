"""Foreign checkpoints in and out: Hugging Face's configurations and weights as ours, and ours as theirs.

One file a family. What goes in and out are plain values and tensors, under the names of a saved checkpoint
(``config.json``, ``model.safetensors``); transformers itself is not needed. The logits are the same on both
sides, and the way there and back changes no bit.

>>> from regard import presets
>>> config_from_hf(config_to_hf(presets.llama_small())) == presets.llama_small()
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Shaped
from torch import Tensor

from regard.config import ConfigError, ModelConfig
from regard.interop import bert, clip, deit, distilbert, gpt2, llama, marian, pegasus, roberta, timm, vit
from regard.interop.mapping import Family, read_weights, write_weights
from regard.interop.options import check_same
from regard.nn import Transformer, skeleton

__all__ = ["config_from_hf", "config_to_hf", "from_hf", "to_hf", "weights_from_hf"]

Weights = Mapping[str, Shaped[Tensor, "..."]]

# In the order in which a family is sought for a model of ours: the first that fits.
MODULES: tuple[Family, ...] = (gpt2, llama, bert, roberta, distilbert, vit, deit, pegasus, marian, clip, timm)
FAMILIES = {kind: family for family in MODULES for kind in family.model_types}


def config_from_hf(hf_config: Mapping[str, Any]) -> ModelConfig:
    """Our configuration of the model that a ``config.json`` describes.

    >>> config_from_hf({"model_type": "gpt2", "n_layer": 3}).decoder.n_layers
    3
    >>> config_from_hf({"model_type": "gpt3"})
    Traceback (most recent call last):
    regard.schema.ConfigError: model_type ('gpt3') is not supported; known: gpt2, llama, bert, roberta, ...
    """
    return _family(hf_config.get("model_type")).to_config(hf_config).validate()


def config_to_hf(config: ModelConfig, family: str | None = None) -> dict[str, Any]:
    """The ``config.json`` of a family, or of the first that our model fits; refused where it has no word for an option.

    >>> from regard import presets
    >>> config_to_hf(presets.bert_base())["architectures"]
    ['BertModel']
    >>> config_to_hf(presets.vaswani_base())
    Traceback (most recent call last):
    regard.schema.ConfigError: this model cannot be written as marian: encoder.positions.layout is 'interleaved' here...
    """
    name = family or next((name for name, family in FAMILIES.items() if family.fits(config)), None)
    if name is None:
        raise ConfigError([f"no family is of this kind ({config.shape}); known: {', '.join(FAMILIES)}"])
    return _as_family(config, name)


def weights_from_hf(state: Weights, config: ModelConfig, family: str) -> dict[str, Tensor]:
    """Our state dict from theirs; a missing, unknown or wrongly shaped tensor is an error that names it.

    A tensor that needs no change is handed on, not copied.

    >>> from regard import presets
    >>> weights_from_hf({}, presets.gpt2(), "gpt2")
    Traceback (most recent call last):
    regard.schema.InputError: this gpt2 checkpoint does not fit its configuration: missing: transformer.wte.weight, ...
    """
    _as_family(config, family)
    return read_weights(FAMILIES[family], config, state)


def from_hf(hf_config: Mapping[str, Any], state: Weights) -> Transformer:
    """Our model with their weights, in their dtype.

    >>> from regard import presets
    >>> config = presets.tiny_vit(d_model=21, d_value=7)
    >>> model = from_hf(*to_hf(Transformer(config)))
    >>> model.config.head == config.head
    True
    """
    config = config_from_hf(hf_config)
    model = skeleton(config)
    model.load_state_dict(weights_from_hf(state, config, hf_config["model_type"]), assign=True)
    return model.eval()


def to_hf(model: Transformer, family: str | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Their ``config.json`` and state dict of our model, to be saved and loaded there.

    Ids that a tokenizer decides (begin, end, pad) are the family's customary ones. What may be said in the words of
    several families (RoBERTa is a BERT) is said in those of the first, or of the one that is named.

    >>> from regard import presets
    >>> config = presets.tiny_decoder(d_model=21, d_value=7)
    >>> hf_config, state = to_hf(Transformer(config))
    >>> hf_config["n_embd"], state["transformer.h.0.attn.c_attn.weight"].shape
    (21, torch.Size([21, 63]))
    """
    hf_config = config_to_hf(model.config, family)
    return hf_config, write_weights(FAMILIES[hf_config["model_type"]], model.config, model.state_dict())


def _family(name: Any) -> Family:
    if name not in FAMILIES:
        raise ConfigError([f"model_type ({name!r}) is not supported; known: {', '.join(FAMILIES)}"])
    return FAMILIES[name]


def _as_family(config: ModelConfig, name: str) -> dict[str, Any]:
    """The configuration in the family's words, or an error where it has none."""
    family = _family(name)
    if not family.fits(config):
        raise ConfigError([f"this model cannot be written as {name}: it is of another kind ({config.shape})"])
    hf_config = {"model_type": name, **family.from_config(config)}
    # What comes back must be what went in: one rule for every option there is.
    check_same(config, family.to_config(hf_config), name)
    return hf_config
