"""DeiT (Touvron et al. 2020): DeiTForImageClassification and DeiTModel, a ViT with a distillation token.

The token is a register here: every layer sees it, and the head does not read it. DeiTForImageClassificationWithTeacher
has a second classifier that does; there is no such head here. The first DeiT, without the token, is a ViT.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from regard.config import ConfigError, ModelConfig, Patches
from regard.interop import vit
from regard.interop.mapping import Rule, as_stack
from regard.interop.options import architecture, is_stack_of

model_types = ("deit",)
spellings = vit.spellings
ignored = (r"^deit\.pooler\.",)

DEFAULTS = vit.DEFAULTS


def fits(config: ModelConfig) -> bool:
    return (
        config.shape == "encoder"
        and is_stack_of(config.encoder, Patches)
        and getattr(as_stack(config.encoder).input, "registers", 0) > 0
    )


def to_config(hf: Mapping[str, Any]) -> ModelConfig:
    if "DeiTForImageClassificationWithTeacher" in (hf.get("architectures") or ()):
        raise ConfigError(
            [
                "architectures ('DeiTForImageClassificationWithTeacher') is not supported: no head here has two"
                " classifiers; save it as a DeiTForImageClassification with one of them"
            ]
        )
    kind = architecture(hf, "DeiTForImageClassification", "DeiTModel")
    config = vit.to_config({**hf, "architectures": [kind.replace("DeiT", "ViT")]})
    encoder = as_stack(config.encoder)
    return config.replace(encoder=encoder.replace(input=encoder.input.replace(registers=1)))


def from_config(config: ModelConfig) -> dict[str, Any]:
    hf = vit.from_config(config)
    return {**hf, "architectures": [hf["architectures"][0].replace("ViT", "DeiT")]}


def rules(config: ModelConfig) -> list[Rule]:
    width = as_stack(config.encoder).d_model
    name = "deit." if getattr(config.head, "n_labels", 0) else ""
    token = Rule("encoder.embed.registers", (f"{name}embeddings.distillation_token",), shape=(1, 1, width))
    as_deit = [r._replace(theirs=tuple(re.sub(r"^vit\.", "deit.", n) for n in r.theirs)) for r in vit.rules(config)]
    return [*as_deit, token]
