"""RoBERTa (Liu et al. 2019): BERT with other names for its heads, and with positions that are counted from the padding
token's id on.

The rows of the table up to that id stand for padding: no token reads them. Here the table begins after them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from regard.config import ConfigError, Labels, ModelConfig, Pooled
from regard.interop import bert
from regard.interop.mapping import Rule
from regard.interop.options import architecture, only

model_types = ("roberta",)
spellings = bert.spellings
ignored = (r"embeddings\.position_ids$", r"^roberta\.pooler\.")

PAD = 1
DEFAULTS = bert.DEFAULTS | {"vocab_size": 50265}

fits = bert.fits


def to_config(hf: Mapping[str, Any]) -> ModelConfig:
    kind = architecture(
        hf,
        "RobertaModel",
        "RobertaForMaskedLM",
        "RobertaForSequenceClassification",
        "RobertaForTokenClassification",
    )
    only(hf, pad_token_id=PAD)
    if kind == "RobertaForMaskedLM":
        only(hf, hidden_act="gelu")  # its head has no other
    hf = DEFAULTS | dict(hf)
    longest = hf["max_position_embeddings"] - PAD - 1
    as_bert = {"architectures": [kind.replace("Roberta", "Bert")], "max_position_embeddings": longest}
    return bert.to_config({**hf, **as_bert})


def from_config(config: ModelConfig) -> dict[str, Any]:
    hf = bert.from_config(config)
    if config.pair_head is not None:
        raise ConfigError(["this model cannot be written as roberta: it has a pair_head, which only bert knows"])
    return {
        **hf,
        "architectures": [hf["architectures"][0].replace("Bert", "Roberta")],
        "max_position_embeddings": hf["max_position_embeddings"] + PAD + 1,
        "bos_token_id": 0,
        "pad_token_id": PAD,
        "eos_token_id": 2,
    }


def rules(config: ModelConfig) -> list[Rule]:
    names = [(r"^bert\.", "roberta.")]
    match config.head:
        case Pooled(n_labels=n) if n:
            names += [(r"^classifier\.", "classifier.out_proj."), (r"^roberta\.pooler\.", "classifier.")]
        case Pooled() | Labels():
            pass
        case _:
            names += [(r"^cls\.predictions\.(transform\.)?", "lm_head.")]
            names += [(r"^lm_head\.LayerNorm\.", "lm_head.layer_norm.")]

    def renamed(name: str) -> str:
        for old, new in names:
            name = re.sub(old, new, name)
        return name

    def theirs(rule: Rule) -> Rule:
        skip = PAD + 1 if rule.ours == "encoder.positions.weight" else 0
        return rule._replace(theirs=tuple(map(renamed, rule.theirs)), also=tuple(map(renamed, rule.also)), skip=skip)

    return [theirs(rule) for rule in bert.rules(config)]
