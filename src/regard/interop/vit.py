"""ViT (Dosovitskiy et al. 2020): ViTForImageClassification, and ViTModel with its pooled vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.config import ModelConfig, Patches, Pooled, Stack
from regard.interop.mapping import Rule, as_stack, blocks, module
from regard.interop.options import (
    architecture,
    encoder_sizes,
    is_stack_of,
    labels,
    n_labels,
    only,
    square,
    their_encoder_sizes,
)

model_types = ("vit",)
# The modules of transformers 5 have new names; it reads and saves the old ones.
spellings = (
    (r"(^|\.)layers\.(\d+)\.", r"\1encoder.layer.\2."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)
# Old classifiers were saved with a pooler that they do not use.
ignored = (r"^vit\.pooler\.",)

DEFAULTS = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
}

BLOCK = {
    "self_attn.qkv": ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    "self_attn.out": "attention.output.dense",
    "self_norm": "layernorm_before",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "mlp_norm": "layernorm_after",
}


def fits(config: ModelConfig) -> bool:
    return (
        config.shape == "encoder"
        and is_stack_of(config.encoder, Patches)
        and not getattr(as_stack(config.encoder).input, "registers", 0)
    )


def to_config(hf: Mapping[str, Any]) -> ModelConfig:
    kind = architecture(hf, "ViTForImageClassification", "ViTModel")
    hf = DEFAULTS | dict(hf)
    width, dropout = hf["hidden_size"], hf["hidden_dropout_prob"]
    only(hf, qkv_bias=True, pooler_act="tanh")
    if hf.get("pooler_output_size"):
        only(hf, pooler_output_size=width)
    encoder = Stack(
        input=Patches(
            image_size=square(hf, "image_size"), patch_size=square(hf, "patch_size"), channels=hf["num_channels"]
        ),
        norm_order="pre",
        dropout=dropout,
        attn_dropout=hf["attention_probs_dropout_prob"],
        embed_dropout=dropout,
        **encoder_sizes(hf),
    )
    head = Pooled(dense=True) if kind == "ViTModel" else Pooled(n_labels=n_labels(hf))
    return ModelConfig(encoder=encoder, head=head)


def from_config(config: ModelConfig) -> dict[str, Any]:
    encoder, count = as_stack(config.encoder), getattr(config.head, "n_labels", 0)
    assert isinstance(encoder.input, Patches)
    return {
        "architectures": ["ViTForImageClassification" if count else "ViTModel"],
        **their_encoder_sizes(encoder),
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attn_dropout,
        "image_size": encoder.input.image_size,
        "patch_size": encoder.input.patch_size,
        "num_channels": encoder.input.channels,
        "qkv_bias": encoder.bias,
        **(labels(count) if count else {}),
    }


def rules(config: ModelConfig) -> list[Rule]:
    encoder, head = as_stack(config.encoder), config.head
    image = encoder.input
    assert isinstance(image, Patches)
    assert isinstance(head, Pooled)
    vit = "vit." if head.n_labels else ""  # a model without a head is saved without its own name
    width, embeddings = encoder.d_model, f"{vit}embeddings"
    patches = f"{embeddings}.patch_embeddings.projection"
    return [
        Rule("encoder.embed.class_token", (f"{embeddings}.cls_token",), shape=(1, 1, width)),
        Rule("encoder.positions.weight", (f"{embeddings}.position_embeddings",), shape=(1, image.n_positions, width)),
        # A convolution whose stride is its size is our linear layer over flat patches.
        Rule(
            "encoder.embed.project.weight",
            (f"{patches}.weight",),
            shape=(width, image.channels, image.patch_size, image.patch_size),
        ),
        Rule("encoder.embed.project.bias", (f"{patches}.bias",)),
        *blocks(encoder, "encoder", f"{vit}encoder.layer", BLOCK),
        *module("encoder.stack.norm", f"{vit}layernorm"),
        *(module("head.classify", "classifier") if head.n_labels else module("head.dense", "pooler.dense")),
    ]
