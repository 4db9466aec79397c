"""GPT-2 (Radford et al. 2019): GPT2LMHeadModel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.config import ModelConfig, Positions, Stack, Tokens, Vocabulary
from regard.interop.mapping import Rule, as_stack, blocks, module, vocabulary
from regard.interop.options import THEIR_ACTIVATIONS, activation, architecture, is_stack_of, only

model_types = ("gpt2",)
# The first checkpoints were saved from the model without its head.
spellings = ((r"^(wte|wpe|h|ln_f)\.", r"transformer.\1."),)
# The causal mask, saved as a buffer.
ignored = (r"\.attn\.(masked_)?bias$",)

DEFAULTS = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
}

BLOCK = {
    "self_attn.qkv": "attn.c_attn",
    "self_attn.out": "attn.c_proj",
    "self_norm": "ln_1",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
    "mlp_norm": "ln_2",
}


def fits(config: ModelConfig) -> bool:
    return (
        config.shape == "decoder" and is_stack_of(config.decoder, Tokens) and as_stack(config.decoder).norm == "layer"
    )


def to_config(hf: Mapping[str, Any]) -> ModelConfig:
    architecture(hf, "GPT2LMHeadModel", "GPT2Model")
    only(hf, add_cross_attention=False, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    hf = DEFAULTS | dict(hf)
    decoder = Stack(
        input=Tokens(vocab_size=hf["vocab_size"]),
        positions=Positions(kind="learned"),
        max_len=hf["n_positions"],
        d_model=hf["n_embd"],
        n_layers=hf["n_layer"],
        n_heads=hf["n_head"],
        d_ff=hf["n_inner"] or 4 * hf["n_embd"],
        causal=True,
        activation=activation(hf, "activation_function"),
        norm_eps=hf["layer_norm_epsilon"],
        norm_order="pre",
        dropout=hf["resid_pdrop"],
        attn_dropout=hf["attn_pdrop"],
        embed_dropout=hf["embd_pdrop"],
        init_std=hf["initializer_range"],
    )
    return ModelConfig(decoder=decoder, head=Vocabulary(tied=hf["tie_word_embeddings"]))


def from_config(config: ModelConfig) -> dict[str, Any]:
    decoder = as_stack(config.decoder)
    assert isinstance(decoder.input, Tokens)
    end = decoder.input.vocab_size - 1
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": decoder.input.vocab_size,
        "n_positions": decoder.max_len,
        "n_embd": decoder.d_model,
        "n_layer": decoder.n_layers,
        "n_head": decoder.n_heads,
        "n_inner": decoder.d_ff,
        "activation_function": THEIR_ACTIVATIONS.get(decoder.activation, decoder.activation),
        "resid_pdrop": decoder.dropout,
        "embd_pdrop": decoder.embed_dropout,
        "attn_pdrop": decoder.attn_dropout,
        "layer_norm_epsilon": decoder.norm_eps,
        "initializer_range": decoder.init_std or DEFAULTS["initializer_range"],
        "tie_word_embeddings": getattr(config.head, "tied", True),
        # GPT-2's own end of text is its last token; a tokenizer may say otherwise.
        "bos_token_id": end,
        "eos_token_id": end,
    }


def rules(config: ModelConfig) -> list[Rule]:
    head = config.head
    assert isinstance(head, Vocabulary)
    return [
        *vocabulary("decoder.embed.weight", "transformer.wte.weight", head.tied),
        Rule("decoder.positions.weight", ("transformer.wpe.weight",)),
        *blocks(as_stack(config.decoder), "decoder", "transformer.h", BLOCK, transpose=True),
        *module("decoder.stack.norm", "transformer.ln_f"),
    ]
