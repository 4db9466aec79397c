"""Translators and language models for CTranslate2 (OpenNMT): a directory that ``ctranslate2.Translator`` or
``ctranslate2.Generator`` opens.

Only out: CTranslate2 trains nothing. The weights are float32; what it computes with is chosen where it is opened,
``Translator(directory, compute_type="int8")``. Tokens go in and come out by their names. A translator's go without
special ones: it puts the end after the source and the start before the target by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import InputError, ModelConfig, Stack
from regard.data.tokenizer import SPECIAL, Tokenizer
from regard.interop.mapping import as_stack
from regard.nn import sinusoid

ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "gelu_quick": "GELUSigmoid",
    "silu": "SWISH",
    "swiglu": "SWISH",
}

# Theirs, and ours; a tower has what of it there is.
TOWER = {"layernorm_embedding": "embed_norm", "layer_norm": "stack.norm"}
BLOCK = {
    "self_attention/linear_0": "self_attn.qkv",
    "self_attention/linear_1": "self_attn.out",
    "self_attention/layer_norm": "self_norm",
    "attention/linear_0": "cross_attn.q",
    "attention/linear_1": "cross_attn.kv",
    "attention/linear_2": "cross_attn.out",
    "attention/layer_norm": "cross_norm",
    "ffn/linear_0": "mlp.up",
    "ffn/linear_1": "mlp.down",
    "ffn/layer_norm": "mlp_norm",
}


def problems(config: ModelConfig) -> Iterator[str]:
    """What of a translator or a language model CTranslate2 has no word for.

    >>> from regard import presets
    >>> list(problems(presets.vaswani_base()))
    []
    >>> list(problems(presets.tiny_encoder_decoder(d_model=21)))
    ['encoder.d_value is 5 here and 7 there', 'decoder.d_value is 5 here and 7 there']
    """
    given = {"encoder": config.encoder, "decoder": config.decoder}
    towers = {name: as_stack(tower) for name, tower in given.items() if tower is not None}
    for name, stack in towers.items():
        d_head, d_value = stack.head_widths
        allowed = {
            "score": (stack.score, ("scaled_dot",)),
            "positions.kind": (stack.positions.kind, ("sinusoidal", "learned", "rotary", "none")),
            "positions.join": (stack.positions.join, ("add",)),
            "d_value": (d_value, (d_head,)),
            "qk_norm": (stack.qk_norm, (False,)),
            "windows": (stack.windows if any(stack.windows) else (), ((),)),
            "input.n_segments": (getattr(stack.input, "n_segments", 0), (0,)),
            "causal": (stack.causal, (name == "decoder",)),
            "final_norm": (stack.final_norm, (None, False) if stack.norm_order == "post" else (None, True, False)),
            "norm_eps": (stack.norm_eps, (next(iter(towers.values())).norm_eps,)),
            "n_layers": (stack.n_layers, (max(1, stack.n_layers),)),
        }
        for key, (value, known) in allowed.items():
            if value not in known:
                yield f"{name}.{key} is {value!r} here and {' or '.join(map(repr, known))} there"
    if getattr(config.head, "transform", False):
        yield "head.transform is True here and False there"


def write(
    config: ModelConfig, weights: Mapping[str, Tensor], source: Sequence[str], target: Sequence[str], path: Path
) -> None:
    """Write a model and its vocabularies, the name of each id, into a directory that is there. The weights are our
    state dict, in float32 on the CPU."""
    transformer_spec = _specs()
    encoder, decoder = as_stack(config.encoder), as_stack(config.decoder)
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(**_options(encoder)),
        transformer_spec.TransformerDecoderSpec(**_options(decoder)),
    )
    table = "encoder.embed" if config.share_embeddings else "decoder.embed"
    _fill(spec, "encoder/embeddings_0", "encoder.embed", weights)
    _fill(spec, "decoder/embeddings", table, weights)
    _fill(spec, "decoder/projection", table, weights)
    _fill(spec, "decoder/projection", "head", weights)  # its own matrix and bias, where it has them
    _fill_tower(spec.encoder, encoder, "encoder", weights)
    _fill_tower(spec.decoder, decoder, "decoder", weights)

    spec.register_source_vocabulary(list(source))
    spec.register_target_vocabulary(list(target))
    start, end, mask = (SPECIAL[role][0] for role in ("start", "end", "mask"))
    settings = {
        "bos_token": start,
        "decoder_start_token": start,
        "eos_token": end,
        "unk_token": mask,  # it wants one; our tokenizers know everything
        "add_source_eos": True,
        "layer_norm_epsilon": encoder.norm_eps,
    }
    for key, value in settings.items():
        setattr(spec.config, key, value)
    spec.validate()
    spec.optimize()
    spec.save(str(path))


def write_decoder(
    config: ModelConfig, weights: Mapping[str, Tensor], names: Sequence[str], tokenizer: Tokenizer, path: Path
) -> None:
    """Write a language model and the name of each id, likewise."""
    transformer_spec, decoder = _specs(), as_stack(config.decoder)
    tower = transformer_spec.TransformerDecoderSpec(with_encoder_attention=False, **_options(decoder))
    spec = transformer_spec.TransformerDecoderModelSpec(tower)
    _fill(spec, "decoder/embeddings", "decoder.embed", weights)
    _fill(spec, "decoder/projection", "decoder.embed", weights)
    _fill(spec, "decoder/projection", "head", weights)
    _fill_tower(spec.decoder, decoder, "decoder", weights)
    spec.register_vocabulary(list(names))
    start, end = names[tokenizer.start], names[tokenizer.end]
    settings = {"bos_token": start, "eos_token": end, "unk_token": end, "layer_norm_epsilon": decoder.norm_eps}
    for key, value in settings.items():
        setattr(spec.config, key, value)
    spec.validate()
    spec.optimize()
    spec.save(str(path))


def _specs() -> Any:
    try:
        from ctranslate2.specs import transformer_spec
    except ImportError:
        raise InputError("--to ctranslate2 needs the package ctranslate2; pip install ctranslate2") from None
    return transformer_spec


def _options(stack: Stack) -> dict[str, Any]:
    """A tower's sizes and kinds, in their words."""
    from ctranslate2.specs.common_spec import Activation

    rotary = {}
    if stack.positions.kind == "rotary":
        interleave = stack.positions.layout == "interleaved"
        rotary = {"rotary_dim": 0, "rotary_interleave": interleave, "rotary_base": stack.positions.base}
    return {
        "num_layers": stack.n_layers,
        "num_heads": stack.n_heads,
        "num_heads_kv": stack.n_kv_heads,
        "head_dim": stack.d_head,
        "pre_norm": stack.norm_order == "pre",
        "no_final_norm": stack.final_norm is False,
        "activation": getattr(Activation, ACTIVATIONS[stack.activation]),
        "ffn_glu": stack.activation == "swiglu",
        "rms_norm": stack.norm == "rms",
        "layernorm_embedding": stack.embed_norm,
        **rotary,
    }


def _fill_tower(spec: Any, stack: Stack, name: str, weights: Mapping[str, Tensor]) -> None:
    spec.scale_embeddings = getattr(stack.input, "scale", False)
    n, d, positions = stack.n_positions, stack.d_model, stack.positions
    tables = {
        "sinusoidal": lambda: sinusoid(n, d, positions.base, positions.layout),
        "learned": lambda: weights[f"{name}.positions.weight"],
        "none": lambda: torch.zeros(n, d),  # without a table it would take sines
    }
    if positions.kind in tables:
        spec.position_encodings.encodings = tables[positions.kind]()
    for theirs, ours in TOWER.items():
        _fill(spec, theirs, f"{name}.{ours}", weights)
    for i, layer in enumerate(spec.layer):
        block = f"{name}.stack.blocks.{i}"
        for theirs, ours in BLOCK.items():
            _fill(layer, theirs, f"{block}.{ours}", weights)
        if stack.activation == "swiglu":  # one matrix here, two there
            _fill(layer, "ffn/linear_0", f"{block}.mlp.up", weights, slice(stack.d_ff))
            _fill(layer, "ffn/linear_0_noact", f"{block}.mlp.up", weights, slice(stack.d_ff, None))


def _fill(spec: Any, theirs: str, ours: str, weights: Mapping[str, Tensor], rows: slice = slice(None)) -> None:
    """Give one of their layers the weight and bias of one of ours, as far as it has them."""
    from ctranslate2.specs.model_spec import index_spec

    names = ("gamma", "beta") if "norm" in theirs else ("weight", "bias")
    for name, part in zip(names, ("weight", "bias"), strict=True):
        if f"{ours}.{part}" in weights:
            setattr(index_spec(spec, theirs), name, weights[f"{ours}.{part}"][rows])
