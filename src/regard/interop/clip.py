"""CLIP (Radford et al. 2021): CLIPModel, an image and a text encoder.

Their text vector stands at the end token, which they look for among the ids. Ours stands at the last real token, which
the lengths tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from regard.config import Contrastive, ModelConfig, Patches, Stack, Tokens
from regard.interop.mapping import Rule, as_stack, blocks, module
from regard.interop.options import architecture, encoder_sizes, is_stack_of, square, their_encoder_sizes

model_types = ("clip",)
spellings = ()
ignored = (r"embeddings\.position_ids$",)

COMMON = {
    "num_hidden_layers": 12,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
}
TEXT_DEFAULTS = {
    **COMMON,
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
}
VISION_DEFAULTS = {
    **COMMON,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
}
DEFAULTS = {"projection_dim": 512, "logit_scale_init_value": 2.6592}

BLOCK = {
    "self_attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.out": "self_attn.out_proj",
    "self_norm": "layer_norm1",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
    "mlp_norm": "layer_norm2",
}


def fits(config: ModelConfig) -> bool:
    return config.shape == "two encoders" and is_stack_of(config.encoder, Patches) and is_stack_of(config.text, Tokens)


def _common(hf: Mapping[str, Any]) -> dict[str, Any]:
    """What both towers have."""
    return {"norm_order": "pre", "attn_dropout": hf["attention_dropout"], **encoder_sizes(hf)}


def _their_common(stack: Stack) -> dict[str, Any]:
    return {"attention_dropout": stack.attn_dropout, **their_encoder_sizes(stack)}


def to_config(hf: Mapping[str, Any]) -> ModelConfig:
    architecture(hf, "CLIPModel")
    hf = DEFAULTS | dict(hf)
    # Old files have a second table that overrides the first.
    text, vision = (
        defaults | dict(hf.get(f"{side}_config") or {}) | dict(hf.get(f"{side}_config_dict") or {})
        for side, defaults in (("text", TEXT_DEFAULTS), ("vision", VISION_DEFAULTS))
    )
    return ModelConfig(
        encoder=Stack(
            input=Patches(
                image_size=square(vision, "image_size"),
                patch_size=square(vision, "patch_size"),
                channels=vision["num_channels"],
                bias=False,
            ),
            embed_norm=True,
            **_common(vision),
        ),
        text=Stack(
            input=Tokens(vocab_size=text["vocab_size"]),
            max_len=text["max_position_embeddings"],
            causal=True,
            **_common(text),
        ),
        # They round the logarithm of CLIP's 0.07.
        head=Contrastive(d_embed=hf["projection_dim"], temperature=round(math.exp(-hf["logit_scale_init_value"]), 4)),
    )


def from_config(config: ModelConfig) -> dict[str, Any]:
    encoder, text, head = as_stack(config.encoder), as_stack(config.text), config.head
    assert isinstance(encoder.input, Patches)
    assert isinstance(text.input, Tokens)
    assert isinstance(head, Contrastive)
    end = text.input.vocab_size - 1
    return {
        "architectures": ["CLIPModel"],
        "projection_dim": head.d_embed,
        "logit_scale_init_value": round(math.log(1 / head.temperature), 4),
        "vision_config": {
            "model_type": "clip_vision_model",
            **_their_common(encoder),
            "projection_dim": head.d_embed,
            "image_size": encoder.input.image_size,
            "patch_size": encoder.input.patch_size,
            "num_channels": encoder.input.channels,
        },
        "text_config": {
            "model_type": "clip_text_model",
            **_their_common(text),
            "projection_dim": head.d_embed,
            "vocab_size": text.input.vocab_size,
            "max_position_embeddings": text.max_len,
            # CLIP's own tokenizer ends with the two; another one may not.
            "bos_token_id": end - 1,
            "eos_token_id": end,
        },
    }


def rules(config: ModelConfig) -> list[Rule]:
    encoder, text = as_stack(config.encoder), as_stack(config.text)
    image = encoder.input
    assert isinstance(image, Patches)
    embeddings = "vision_model.embeddings"
    return [
        Rule("encoder.embed.class_token", (f"{embeddings}.class_embedding",)),
        Rule("encoder.positions.weight", (f"{embeddings}.position_embedding.weight",)),
        # A convolution whose stride is its size is our linear layer over flat patches.
        Rule(
            "encoder.embed.project.weight",
            (f"{embeddings}.patch_embedding.weight",),
            shape=(encoder.d_model, image.channels, image.patch_size, image.patch_size),
        ),
        *module("encoder.embed_norm", "vision_model.pre_layrnorm"),
        *blocks(encoder, "encoder", "vision_model.encoder.layers", BLOCK),
        *module("encoder.stack.norm", "vision_model.post_layernorm"),
        Rule("text.embed.weight", ("text_model.embeddings.token_embedding.weight",)),
        Rule("text.positions.weight", ("text_model.embeddings.position_embedding.weight",)),
        *blocks(text, "text", "text_model.encoder.layers", BLOCK),
        *module("text.stack.norm", "text_model.final_layer_norm"),
        *module("head.first", "visual_projection", bias=False),
        *module("head.text", "text_projection", bias=False),
        Rule("head.log_scale", ("logit_scale",)),
    ]
