"""BERT (Devlin et al. 2018; MiniLM is one, too), with each of its heads::

BertModel                      Pooled(dense=True), the pooled vector
BertForMaskedLM                Vocabulary(bias=True, transform=True)
BertForPreTraining             the same, and a pair_head
BertForSequenceClassification  Pooled(n_labels, dense=True)
BertForTokenClassification     Labels(n_labels)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from regard.config import Labels, ModelConfig, Pooled, Stack, Tokens, Vocabulary
from regard.interop.mapping import Rule, as_stack, blocks, module
from regard.interop.options import (
    architecture,
    encoder_sizes,
    is_stack_of,
    labels,
    n_labels,
    only,
    their_encoder_sizes,
)

model_types = ("bert",)
# As TensorFlow called them; bert-base-uncased still does.
spellings = ((r"\.gamma$", ".weight"), (r"\.beta$", ".bias"))
# Heads that the checkpoint was trained with, and that its architecture does not use.
ignored = (r"embeddings\.position_ids$", r"^bert\.pooler\.", r"^cls\.seq_relationship\.")

DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "classifier_dropout": None,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}

BLOCK = {
    "self_attn.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "self_attn.out": "attention.output.dense",
    "self_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}


def fits(config: ModelConfig) -> bool:
    return config.shape == "encoder" and is_stack_of(config.encoder, Tokens) and has_segments(config)


def has_segments(config: ModelConfig) -> bool:
    """What sets BERT apart from DistilBERT."""
    return getattr(as_stack(config.encoder).input, "n_segments", 0) > 0


def to_config(hf: Mapping[str, Any]) -> ModelConfig:
    kind = architecture(
        hf,
        "BertModel",
        "BertForMaskedLM",
        "BertForPreTraining",
        "BertForSequenceClassification",
        "BertForTokenClassification",
    )
    only(hf, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    if kind in ("BertForMaskedLM", "BertForPreTraining"):
        only(hf, tie_word_embeddings=True)
    hf = DEFAULTS | dict(hf)
    dropout = hf["hidden_dropout_prob"]
    encoder = Stack(
        input=Tokens(vocab_size=hf["vocab_size"], n_segments=hf["type_vocab_size"]),
        max_len=hf["max_position_embeddings"],
        embed_norm=True,
        dropout=dropout,
        attn_dropout=hf["attention_probs_dropout_prob"],
        embed_dropout=dropout,
        **encoder_sizes(hf),
    )
    before_labels = dropout if hf["classifier_dropout"] is None else hf["classifier_dropout"]
    head = {
        "BertModel": Pooled(dense=True),
        "BertForSequenceClassification": Pooled(n_labels=n_labels(hf), dense=True, dropout=before_labels),
        "BertForTokenClassification": Labels(n_labels=n_labels(hf), dropout=before_labels),
    }.get(kind, Vocabulary(tied=True, bias=True, transform=True))
    pair_head = Pooled(n_labels=2, dense=True) if kind == "BertForPreTraining" else None
    return ModelConfig(encoder=encoder, head=head, pair_head=pair_head)


def from_config(config: ModelConfig) -> dict[str, Any]:
    encoder, head = as_stack(config.encoder), config.head
    assert isinstance(encoder.input, Tokens)
    match head:
        case Pooled(n_labels=0):
            kind = "BertModel"
        case Pooled():
            kind = "BertForSequenceClassification"
        case Labels():
            kind = "BertForTokenClassification"
        case _:
            kind = "BertForMaskedLM" if config.pair_head is None else "BertForPreTraining"
    of_labels = {}
    if isinstance(head, Pooled | Labels) and head.n_labels:
        of_labels = {"classifier_dropout": head.dropout, **labels(head.n_labels)}
    return {
        "architectures": [kind],
        "vocab_size": encoder.input.vocab_size,
        **their_encoder_sizes(encoder),
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attn_dropout,
        "max_position_embeddings": encoder.max_len,
        "type_vocab_size": encoder.input.n_segments,
        **of_labels,
    }


def rules(config: ModelConfig) -> list[Rule]:
    encoder, head = as_stack(config.encoder), config.head
    bare = isinstance(head, Pooled) and not head.n_labels
    bert = "" if bare else "bert."  # a model without a head is saved without its own name
    words = f"{bert}embeddings.word_embeddings.weight"
    tied = ("cls.predictions.decoder.weight",) if isinstance(head, Vocabulary) else ()
    return [
        Rule("encoder.embed.weight", (words,), also=tied),
        Rule("encoder.embed.segments", (f"{bert}embeddings.token_type_embeddings.weight",)),
        Rule("encoder.positions.weight", (f"{bert}embeddings.position_embeddings.weight",)),
        *module("encoder.embed_norm", f"{bert}embeddings.LayerNorm"),
        *blocks(encoder, "encoder", f"{bert}encoder.layer", BLOCK),
        *_heads(config, f"{bert}pooler.dense"),
    ]


def _heads(config: ModelConfig, pooler: str) -> Iterator[Rule]:
    match config.head:
        case Vocabulary():
            yield from module("head.dense", "cls.predictions.transform.dense")
            yield from module("head.norm", "cls.predictions.transform.LayerNorm")
            yield Rule("head.bias", ("cls.predictions.bias",), also=("cls.predictions.decoder.bias",))
        case Pooled(n_labels=n):
            yield from module("head.dense", pooler)
            yield from module("head.classify", "classifier") if n else ()
        case _:
            yield from module("head.classify", "classifier")
    if config.pair_head is not None:
        yield from module("pair_head.dense", pooler)
        yield from module("pair_head.classify", "cls.seq_relationship")
