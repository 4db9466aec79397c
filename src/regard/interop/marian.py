"""Marian (Junczys-Dowmunt et al. 2018): MarianMTModel, the translators of the OPUS-MT project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from regard.config import ModelConfig, Positions, Stack, Tokens, Vocabulary
from regard.interop.mapping import Rule, as_stack, blocks, vocabulary
from regard.interop.options import THEIR_ACTIVATIONS, activation, architecture, is_stack_of, only

model_types = ("marian",)
spellings = ()
# The table of sines, saved as a weight.
ignored = (r"embed_positions\.weight$",)

DEFAULTS = {
    "vocab_size": 58101,
    "decoder_vocab_size": None,
    "max_position_embeddings": 1024,
    "encoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_layers": 12,
    "decoder_ffn_dim": 4096,
    "decoder_attention_heads": 16,
    "activation_function": "gelu",
    "d_model": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "init_std": 0.02,
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}

ENCODER_BLOCK = {
    "self_attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.out": "self_attn.out_proj",
    "self_norm": "self_attn_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
    "mlp_norm": "final_layer_norm",
}
DECODER_BLOCK = {
    **ENCODER_BLOCK,
    "cross_attn.q": "encoder_attn.q_proj",
    "cross_attn.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attn.out": "encoder_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
}


def fits(config: ModelConfig) -> bool:
    return (
        config.shape == "encoder-decoder"
        and is_stack_of(config.encoder, Tokens)
        and is_stack_of(config.decoder, Tokens)
    )


def to_config(hf: Mapping[str, Any]) -> ModelConfig:
    architecture(hf, "MarianMTModel")
    only(
        hf,
        static_position_embeddings=True,
        normalize_before=False,
        normalize_embedding=False,
        add_final_layer_norm=False,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
    )
    hf = DEFAULTS | dict(hf)
    shared = hf["share_encoder_decoder_embeddings"]
    if shared:
        only(hf, tie_word_embeddings=True)

    def tower(side: str, vocab_size: int) -> Stack:
        return Stack(
            input=Tokens(vocab_size=vocab_size, scale=hf["scale_embedding"]),
            positions=Positions(kind="sinusoidal", layout="half"),
            max_len=hf["max_position_embeddings"],
            d_model=hf["d_model"],
            n_layers=hf[f"{side}_layers"],
            n_heads=hf[f"{side}_attention_heads"],
            d_ff=hf[f"{side}_ffn_dim"],
            causal=side == "decoder",
            activation=activation(hf, "activation_function"),
            dropout=hf["dropout"],
            attn_dropout=hf["attention_dropout"],
            mlp_dropout=hf["activation_dropout"],
            embed_dropout=hf["dropout"],
            init_std=hf["init_std"],
        )

    return ModelConfig(
        encoder=tower("encoder", hf["vocab_size"]),
        decoder=tower("decoder", hf["vocab_size"] if shared else hf["decoder_vocab_size"] or hf["vocab_size"]),
        head=Vocabulary(tied=hf["tie_word_embeddings"], bias=True),
        share_embeddings=shared,
    )


def from_config(config: ModelConfig) -> dict[str, Any]:
    encoder, decoder = as_stack(config.encoder), as_stack(config.decoder)
    assert isinstance(encoder.input, Tokens)
    assert isinstance(decoder.input, Tokens)
    pad = decoder.input.vocab_size - 1
    return {
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "vocab_size": encoder.input.vocab_size,
        "decoder_vocab_size": decoder.input.vocab_size,
        "max_position_embeddings": decoder.max_len,
        "encoder_layers": encoder.n_layers,
        "encoder_ffn_dim": encoder.d_ff,
        "encoder_attention_heads": encoder.n_heads,
        "decoder_layers": decoder.n_layers,
        "decoder_ffn_dim": decoder.d_ff,
        "decoder_attention_heads": decoder.n_heads,
        "activation_function": THEIR_ACTIVATIONS.get(decoder.activation, decoder.activation),
        "d_model": decoder.d_model,
        "dropout": decoder.dropout,
        "attention_dropout": decoder.attn_dropout,
        "activation_dropout": decoder.mlp_dropout,
        "init_std": decoder.init_std or DEFAULTS["init_std"],
        "scale_embedding": decoder.input.scale,
        "share_encoder_decoder_embeddings": config.share_embeddings,
        "tie_word_embeddings": getattr(config.head, "tied", True),
        # Marian pads and starts with its last token and ends with its first; a tokenizer may say otherwise.
        "pad_token_id": min(pad, encoder.input.vocab_size - 1),
        "decoder_start_token_id": pad,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    }


def rules(config: ModelConfig) -> list[Rule]:
    encoder, decoder = as_stack(config.encoder), as_stack(config.decoder)
    assert isinstance(decoder.input, Tokens)
    return [
        *_tables(config),
        Rule("head.bias", ("final_logits_bias",), shape=(1, decoder.input.vocab_size)),
        *blocks(encoder, "encoder", "model.encoder.layers", ENCODER_BLOCK),
        *blocks(decoder, "decoder", "model.decoder.layers", DECODER_BLOCK),
    ]


def _tables(config: ModelConfig) -> Iterator[Rule]:
    sides = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    if config.share_embeddings:
        yield Rule("encoder.embed.weight", ("model.shared.weight",), also=(*sides, "lm_head.weight"))
    else:
        yield Rule("encoder.embed.weight", sides[:1])
        yield from vocabulary("decoder.embed.weight", sides[1], getattr(config.head, "tied", True))
