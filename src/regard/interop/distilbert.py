"""DistilBERT (Sanh et al. 2019): BERT without segments, and without a pooled vector before its labels::

DistilBertModel                      Pooled(), the first token's vector
DistilBertForMaskedLM                Vocabulary(bias=True, transform=True)
DistilBertForSequenceClassification  Pooled(n_labels, dense=True, activation="relu")
DistilBertForTokenClassification     Labels(n_labels)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from regard.config import Labels, ModelConfig, Pooled, Positions, Stack, Tokens, Vocabulary
from regard.interop import bert
from regard.interop.mapping import Rule, as_stack, blocks, module
from regard.interop.options import (
    THEIR_ACTIVATIONS,
    activation,
    architecture,
    is_stack_of,
    labels,
    n_labels,
    only,
)

model_types = ("distilbert",)
spellings = bert.spellings
ignored = (r"embeddings\.position_ids$",)

DEFAULTS = {
    "vocab_size": 30522,
    "dim": 768,
    "n_layers": 6,
    "n_heads": 12,
    "hidden_dim": 3072,
    "activation": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "seq_classif_dropout": 0.2,
    "max_position_embeddings": 512,
    "initializer_range": 0.02,
}
NORM_EPS = 1e-12  # which no option of theirs changes

BLOCK = {
    "self_attn.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "self_attn.out": "attention.out_lin",
    "self_norm": "sa_layer_norm",
    "mlp.up": "ffn.lin1",
    "mlp.down": "ffn.lin2",
    "mlp_norm": "output_layer_norm",
}


def fits(config: ModelConfig) -> bool:
    return config.shape == "encoder" and is_stack_of(config.encoder, Tokens) and not bert.has_segments(config)


def to_config(hf: Mapping[str, Any]) -> ModelConfig:
    kind = architecture(
        hf,
        "DistilBertModel",
        "DistilBertForMaskedLM",
        "DistilBertForSequenceClassification",
        "DistilBertForTokenClassification",
    )
    only(hf, sinusoidal_pos_embds=False)
    if kind == "DistilBertForMaskedLM":
        only(hf, tie_word_embeddings=True)
    hf = DEFAULTS | dict(hf)
    encoder = Stack(
        input=Tokens(vocab_size=hf["vocab_size"]),
        positions=Positions(kind="learned"),
        max_len=hf["max_position_embeddings"],
        d_model=hf["dim"],
        n_layers=hf["n_layers"],
        n_heads=hf["n_heads"],
        d_ff=hf["hidden_dim"],
        activation=activation(hf, "activation"),
        norm_eps=NORM_EPS,
        embed_norm=True,
        dropout=hf["dropout"],
        attn_dropout=hf["attention_dropout"],
        embed_dropout=hf["dropout"],
        init_std=hf["initializer_range"],
    )
    before_labels = {"n_labels": n_labels(hf), "dropout": hf["seq_classif_dropout"]}
    head = {
        "DistilBertModel": Pooled(),
        "DistilBertForMaskedLM": Vocabulary(tied=True, bias=True, transform=True),
        "DistilBertForSequenceClassification": Pooled(dense=True, activation="relu", **before_labels),
        "DistilBertForTokenClassification": Labels(n_labels=n_labels(hf), dropout=hf["dropout"]),
    }[kind]
    return ModelConfig(encoder=encoder, head=head)


def from_config(config: ModelConfig) -> dict[str, Any]:
    encoder, head = as_stack(config.encoder), config.head
    assert isinstance(encoder.input, Tokens)
    match head:
        case Pooled(n_labels=0):
            kind, more = "DistilBertModel", {}
        case Pooled(n_labels=n):
            kind, more = "DistilBertForSequenceClassification", {"seq_classif_dropout": head.dropout, **labels(n)}
        case Labels(n_labels=n):
            kind, more = "DistilBertForTokenClassification", labels(n)
        case _:
            kind, more = "DistilBertForMaskedLM", {}
    return {
        "architectures": [kind],
        "vocab_size": encoder.input.vocab_size,
        "dim": encoder.d_model,
        "n_layers": encoder.n_layers,
        "n_heads": encoder.n_heads,
        "hidden_dim": encoder.d_ff,
        "activation": THEIR_ACTIVATIONS.get(encoder.activation, encoder.activation),
        "dropout": encoder.dropout,
        "attention_dropout": encoder.attn_dropout,
        "max_position_embeddings": encoder.max_len,
        "initializer_range": encoder.init_std or DEFAULTS["initializer_range"],
        **more,
    }


def rules(config: ModelConfig) -> list[Rule]:
    encoder, head = as_stack(config.encoder), config.head
    bare = isinstance(head, Pooled) and not head.n_labels
    name = "" if bare else "distilbert."  # a model without a head is saved without its own name
    tied = ("vocab_projector.weight",) if isinstance(head, Vocabulary) else ()
    return [
        Rule("encoder.embed.weight", (f"{name}embeddings.word_embeddings.weight",), also=tied),
        Rule("encoder.positions.weight", (f"{name}embeddings.position_embeddings.weight",)),
        *module("encoder.embed_norm", f"{name}embeddings.LayerNorm"),
        *blocks(encoder, "encoder", f"{name}transformer.layer", BLOCK),
        *_head(config),
    ]


def _head(config: ModelConfig) -> Iterator[Rule]:
    match config.head:
        case Vocabulary():
            yield from module("head.dense", "vocab_transform")
            yield from module("head.norm", "vocab_layer_norm")
            yield Rule("head.bias", ("vocab_projector.bias",))
        case Pooled(n_labels=0):
            pass
        case Pooled():
            yield from module("head.dense", "pre_classifier")
            yield from module("head.classify", "classifier")
        case _:
            yield from module("head.classify", "classifier")
