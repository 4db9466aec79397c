"""Llama (Touvron et al. 2023): LlamaForCausalLM, its head tied or not, with grouped-query heads or without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.config import ConfigError, ModelConfig, Positions, Stack, Tokens, Vocabulary
from regard.interop.mapping import Rule, as_stack, blocks, module, vocabulary
from regard.interop.options import architecture, is_stack_of, one_of, only

model_types = ("llama",)
spellings = ()
ignored = (r"rotary_emb\.inv_freq$",)

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
}

BLOCK = {
    "self_attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.out": "self_attn.o_proj",
    "self_norm": "input_layernorm",
    "mlp.up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": "mlp.down_proj",
    "mlp_norm": "post_attention_layernorm",
}


def fits(config: ModelConfig) -> bool:
    return config.shape == "decoder" and is_stack_of(config.decoder, Tokens) and as_stack(config.decoder).norm == "rms"


def rotary_base(hf: Mapping[str, Any]) -> float:
    """The base of plain rotary positions, from either place where they keep it; scaled ones are refused."""
    key = "rope_parameters" if hf.get("rope_parameters") else "rope_scaling"
    rope = hf.get(key) or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ConfigError([f"{key} (of type {kind!r}) is not supported; only plain rotary positions ('default') are"])
    only({**hf, **rope}, partial_rotary_factor=1.0)
    return float(rope.get("rope_theta", hf.get("rope_theta", 10000.0)))


def to_config(hf: Mapping[str, Any]) -> ModelConfig:
    architecture(hf, "LlamaForCausalLM")
    hf = DEFAULTS | dict(hf)
    only(hf, mlp_bias=hf["attention_bias"])
    width, n_heads, n_kv_heads, d_head = (
        hf[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    decoder = Stack(
        input=Tokens(vocab_size=hf["vocab_size"]),
        positions=Positions(kind="rotary", layout="half", base=rotary_base(hf)),
        max_len=hf["max_position_embeddings"],
        d_model=width,
        n_layers=hf["num_hidden_layers"],
        n_heads=n_heads,
        # Left out where it says what is so anyway.
        n_kv_heads=None if n_kv_heads == n_heads else n_kv_heads,
        d_head=None if d_head == width // n_heads else d_head,
        d_ff=hf["intermediate_size"],
        causal=True,
        bias=hf["attention_bias"],
        activation=one_of(hf, "hidden_act", {"silu": "swiglu"}),
        norm="rms",
        norm_eps=hf["rms_norm_eps"],
        norm_order="pre",
        attn_dropout=hf["attention_dropout"],
        init_std=hf["initializer_range"],
    )
    return ModelConfig(decoder=decoder, head=Vocabulary(tied=hf["tie_word_embeddings"]))


def from_config(config: ModelConfig) -> dict[str, Any]:
    decoder = as_stack(config.decoder)
    assert isinstance(decoder.input, Tokens)
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": decoder.input.vocab_size,
        "hidden_size": decoder.d_model,
        "intermediate_size": decoder.d_ff,
        "num_hidden_layers": decoder.n_layers,
        "num_attention_heads": decoder.n_heads,
        "num_key_value_heads": decoder.n_kv_heads or decoder.n_heads,
        "head_dim": decoder.head_widths[0],
        "hidden_act": "silu" if decoder.activation == "swiglu" else decoder.activation,
        "max_position_embeddings": decoder.max_len,
        "initializer_range": decoder.init_std or DEFAULTS["initializer_range"],
        "rms_norm_eps": decoder.norm_eps,
        "tie_word_embeddings": getattr(config.head, "tied", False),
        # In the place that every version of theirs reads.
        "rope_theta": decoder.positions.base,
        "rope_scaling": None,
        "attention_bias": decoder.bias,
        "attention_dropout": decoder.attn_dropout,
        "mlp_bias": decoder.bias,
    }


def rules(config: ModelConfig) -> list[Rule]:
    head = config.head
    assert isinstance(head, Vocabulary)
    return [
        *vocabulary("decoder.embed.weight", "model.embed_tokens.weight", head.tied),
        *blocks(as_stack(config.decoder), "decoder", "model.layers", BLOCK),
        *module("decoder.stack.norm", "model.norm", bias=False),
    ]
