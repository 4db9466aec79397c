"""timm's ViTs (Wightman): vit_base_patch16_224 and its kin, and DeiT's without a distillation token.

Their ``config.json`` has no ``model_type`` but an ``architecture``, whose name tells the sizes; ``model_args``
overrides them, and ``pretrained_cfg`` tells how a picture is treated. The others of their models are refused by name.
Mean pooling is ours where they norm before it and no class token is averaged with the patches: ``global_pool`` "avg"
with ``fc_norm`` and ``class_token`` false.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from regard.config import ConfigError, ModelConfig, Patches, Pooled, Positions, Stack
from regard.interop import vit
from regard.interop.mapping import Rule, as_stack, blocks, module
from regard.interop.options import one_of, only, square

model_types = ("timm",)
spellings = ()
ignored = ()

NAME = re.compile(r"(?:vit|deit)_(tiny|small|base|large|huge)_patch(\d+)_(\d+)")
# Width, depth and heads, by name.
SIZES = {
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "huge": (1280, 32, 16),
}
POOLS = {"token": "class", "avg": "mean"}
# What changes no logit here: images have one size, and rates are of training.
FREE = ("dynamic_img_size", "dynamic_img_pad", "drop_rate", "drop_path_rate", "attn_drop_rate", "weight_init")

BLOCK = {
    "self_attn.qkv": "attn.qkv",
    "self_attn.out": "attn.proj",
    "self_norm": "norm1",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
    "mlp_norm": "norm2",
}


def is_timm(facts: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is theirs."""
    return "architecture" in facts and "model_type" not in facts


def worded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Their ``config.json`` with what Hugging Face's say besides: a family, and the names of the labels.

    >>> worded({"architecture": "vit_tiny_patch16_224", "label_names": ["cat", "dog"]})["id2label"]
    {'0': 'cat', '1': 'dog'}
    """
    names = facts.get("label_names") or []
    return {**facts, "model_type": "timm", "id2label": {str(i): name for i, name in enumerate(names)}}


def fits(config: ModelConfig) -> bool:
    return vit.fits(config)


def to_config(hf: Mapping[str, Any]) -> ModelConfig:
    given = hf.get("architecture")
    named = NAME.fullmatch(str(given))
    if not named:
        raise ConfigError([f"architecture ({given!r}) is not supported; known: vit_base_patch16_224 and its kin"])
    size, patch, side = named.groups()
    width, depth, heads = SIZES[size]
    defaults = {"embed_dim": width, "depth": depth, "num_heads": heads, "mlp_ratio": 4.0, "in_chans": 3}
    defaults |= {"img_size": int(side), "patch_size": int(patch), "class_token": True, "fc_norm": None}
    defaults |= {"num_classes": hf.get("num_classes", 1000), "global_pool": hf.get("global_pool") or "token"}
    told = hf.get("model_args") or {}
    if unknown := sorted(told.keys() - defaults.keys() - {*FREE}):
        raise ConfigError([f"model_args.{name} ({told[name]!r}) is not supported" for name in unknown])
    args = defaults | dict(told)
    pool = one_of(args, "global_pool", POOLS)
    only(args, class_token=pool == "class")
    if args["fc_norm"] or (pool == "mean" and args["fc_norm"] is None):  # left out, it comes with a mean
        raise ConfigError(
            [f"model_args.fc_norm ({args['fc_norm']!r}) is not supported with this pooling; only False is"]
        )
    return ModelConfig(
        encoder=Stack(
            input=Patches(
                image_size=square(args, "img_size"),
                patch_size=square(args, "patch_size"),
                channels=args["in_chans"],
                class_token=args["class_token"],
            ),
            positions=Positions(kind="learned"),
            d_model=args["embed_dim"],
            n_layers=args["depth"],
            n_heads=args["num_heads"],
            d_ff=int(args["embed_dim"] * args["mlp_ratio"]),
            activation="gelu",
            norm_order="pre",
            norm_eps=1e-6,
            init_std=0.02,
        ),
        head=Pooled(n_labels=args["num_classes"], pool=pool),
    )


def from_config(config: ModelConfig) -> dict[str, Any]:
    encoder, head = as_stack(config.encoder), config.head
    assert isinstance(encoder.input, Patches)
    assert isinstance(head, Pooled)
    ratio = encoder.d_ff / encoder.d_model
    if int(ratio * encoder.d_model) < encoder.d_ff:  # they cut what rounding took
        ratio = math.nextafter(ratio, math.inf)
    args = {
        "embed_dim": encoder.d_model,
        "depth": encoder.n_layers,
        "num_heads": encoder.n_heads,
        "mlp_ratio": ratio,
        "in_chans": encoder.input.channels,
        "img_size": encoder.input.image_size,
        "patch_size": encoder.input.patch_size,
        "class_token": encoder.input.class_token,
        **({"global_pool": "avg", "fc_norm": False} if head.pool == "mean" else {"global_pool": "token"}),
    }
    return {"architecture": "vit_base_patch16_224", "num_classes": head.n_labels, "model_args": args}


def rules(config: ModelConfig) -> list[Rule]:
    encoder, head = as_stack(config.encoder), config.head
    image, width = encoder.input, encoder.d_model
    assert isinstance(image, Patches)
    token = [Rule("encoder.embed.class_token", ("cls_token",), shape=(1, 1, width))] if image.class_token else []
    return [
        *token,
        Rule("encoder.positions.weight", ("pos_embed",), shape=(1, image.n_positions, width)),
        # A convolution whose stride is its size is our linear layer over flat patches.
        Rule(
            "encoder.embed.project.weight",
            ("patch_embed.proj.weight",),
            shape=(width, image.channels, image.patch_size, image.patch_size),
        ),
        Rule("encoder.embed.project.bias", ("patch_embed.proj.bias",)),
        *blocks(encoder, "encoder", "blocks", BLOCK),
        *module("encoder.stack.norm", "norm"),
        *(module("head.classify", "head") if getattr(head, "n_labels", 0) else ()),
    ]
