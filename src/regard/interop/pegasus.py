"""Pegasus (Zhang et al. 2019): PegasusForConditionalGeneration, which is Marian with the norms before the branches and
one at the end of each tower: the class that holds our pre-norm translators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.config import ModelConfig
from regard.interop import marian
from regard.interop.mapping import Rule, as_stack, module
from regard.interop.options import architecture, only

model_types = ("pegasus",)
spellings = marian.spellings
ignored = marian.ignored

DEFAULTS = marian.DEFAULTS | {"vocab_size": 50265}


def fits(config: ModelConfig) -> bool:
    return marian.fits(config) and as_stack(config.decoder).norm_order == "pre"


def to_config(hf: Mapping[str, Any]) -> ModelConfig:
    architecture(hf, "PegasusForConditionalGeneration")
    only(hf, normalize_before=True, add_final_layer_norm=True, tie_word_embeddings=True)
    as_marian = {"architectures": None, "normalize_before": False, "add_final_layer_norm": False}
    config = marian.to_config({**DEFAULTS, **hf, **as_marian})
    encoder, decoder = as_stack(config.encoder), as_stack(config.decoder)
    return config.replace(encoder=encoder.replace(norm_order="pre"), decoder=decoder.replace(norm_order="pre"))


def from_config(config: ModelConfig) -> dict[str, Any]:
    hf = {**marian.from_config(config), "architectures": ["PegasusForConditionalGeneration"]}
    # They have one table for both sides, always.
    del hf["decoder_vocab_size"], hf["share_encoder_decoder_embeddings"]
    return hf


def rules(config: ModelConfig) -> list[Rule]:
    return [
        *marian.rules(config),
        *module("encoder.stack.norm", "model.encoder.layer_norm"),
        *module("decoder.stack.norm", "model.decoder.layer_norm"),
    ]
