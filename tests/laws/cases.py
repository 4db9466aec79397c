"""Every shape in small, and how to run it: what the laws are proved on."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from regard import presets
from regard.config import (
    Grid,
    Labels,
    ModelConfig,
    Patches,
    Pooled,
    Positions,
    Recurrent,
    Stack,
    Tokens,
    Vector,
    Vocabulary,
)
from regard.nn import Encoded, Layout, Pair, Transformer

B, T, S = 3, 7, 11  # rows, target length, source length
EXACT = {"atol": 1e-10, "rtol": 1e-8}

TINY = {name: presets.preset(name) for name in presets.names() if name.startswith("tiny_")}

# The same shapes with every option that changes what is computed.
VARIANTS = {
    "rotary interleaved": presets.tiny_llama(positions=Positions(kind="rotary")),
    "alibi": presets.tiny_decoder(positions=Positions(kind="alibi")),
    "no positions": presets.tiny_decoder(positions=Positions()),
    "sinusoidal half": presets.tiny_decoder(positions=Positions(kind="sinusoidal", layout="half")),
    "sinusoidal concatenated": presets.tiny_encoder(
        head=Labels(n_labels=5), positions=Positions(kind="sinusoidal", join="concat", d_position=6)
    ),
    "learned concatenated": presets.tiny_decoder(
        positions=Positions(kind="learned", join="concat", d_position=6)
    ).replace(head=Vocabulary(tied=False)),
    "windows": presets.tiny_decoder(windows=(0, 2)),
    "windowed encoder": presets.tiny_encoder(windows=(1, 3)),
    "grouped heads, qk norm": presets.tiny_decoder(n_heads=6, n_kv_heads=2, qk_norm=True),
    "dot": presets.tiny_encoder_decoder(score="dot"),
    "bilinear": presets.tiny_encoder_decoder(score="bilinear"),
    "additive": presets.tiny_encoder_decoder(score="additive"),
    "additive, grouped": presets.tiny_decoder(score="additive", n_heads=6, n_kv_heads=3),
    "pre-norm translator": presets.tiny_encoder_decoder(norm_order="pre", activation="silu"),
    "shared embeddings": presets.tiny_encoder_decoder(input=Tokens(vocab_size=101, scale=True)).replace(
        share_embeddings=True
    ),
    "pooled translator": presets.tiny_encoder_decoder().replace(head=Pooled(n_labels=5, pool="mean")),
    "labelled translator": presets.tiny_encoder_decoder().replace(head=Labels(n_labels=5)),
    "gru over a transformer": presets.tiny_bahdanau().replace(encoder=presets.tiny_encoder_decoder().encoder),
    "mean pooled": presets.tiny_encoder(head=Pooled(n_labels=5, pool="mean")),
    "end pooled decoder": presets.tiny_decoder().replace(head=Pooled(n_labels=5, pool="end")),
    "mixed layers": presets.tiny_encoder(head=Labels(n_labels=5, mix=True)),
    "elmo tagger": presets.tiny_elmo(head=Labels(n_labels=5, mix=True)),
    "patches, mean": presets.tiny_vit(input=Patches(image_size=15, patch_size=3, class_token=False)).replace(
        head=Pooled(n_labels=5, pool="mean")
    ),
    "patches, registers": presets.tiny_vit(input=Patches(image_size=15, patch_size=3, registers=2)).replace(
        head=Pooled(n_labels=5, dense=True, activation="relu")
    ),
    "patches, sinusoidal rows and columns": presets.tiny_vit(
        input=Patches(image_size=15, patch_size=3, registers=1),
        positions=Positions(kind="sinusoidal", axes=2),
        d_model=24,
    ),
    "cnn": ModelConfig(
        encoder=Stack(input=Grid(image_size=12, widths=(5, 7), depth=2), d_model=23, n_layers=0, n_heads=1, d_ff=0),
        head=Pooled(n_labels=5, pool="mean", dense=True, activation="relu"),
    ),
    "gru without attention": presets.tiny_bahdanau(score=None),
    "gru, dot": presets.tiny_bahdanau(score="dot"),
    "gru, scaled dot": presets.tiny_bahdanau(score="scaled_dot"),
    "gru, bilinear": presets.tiny_bahdanau(score="bilinear"),
}

CASES: dict[str, ModelConfig] = {**TINY, **VARIANTS}
DECODERS = {name: config for name, config in CASES.items() if config.decoder is not None}
OVER_TOKENS = {
    name: config for name, config in CASES.items() if isinstance((config.encoder or config.last).input, Tokens)
}


def shrunk(config: ModelConfig) -> ModelConfig:
    """A published preset with its structure kept and its sizes made small."""

    def small(tower):
        if tower is None:
            return None
        given = tower.input
        if isinstance(given, Tokens):
            given = given.replace(vocab_size=53)
        elif isinstance(given, Vector):
            given = given.replace(d_vector=5)
        elif isinstance(given, Patches):
            given = given.replace(image_size=2 * given.patch_size)
        else:
            given = given.replace(image_size=2 ** len(given.widths) * 2, widths=(3, 5, 7, 11)[: len(given.widths)])
        if isinstance(tower, Recurrent):
            width = 10 if tower.bidirectional else 20
            sizes = {"d_input": 13, "d_hidden": width}
            sizes |= {"d_attention": 7} if tower.d_attention else {}
            sizes |= {"d_project": 13} if tower.d_project else {}
            return tower.replace(input=given, **sizes)
        heads = {"n_heads": 6, "n_kv_heads": 2} if tower.n_kv_heads else {"n_heads": 6 if tower.n_layers else 1}
        sizes = {"d_model": 36, "d_ff": 31 if tower.n_layers else 0, "n_layers": min(tower.n_layers, 2)}
        sizes |= {"d_head": 10} if tower.d_head else {}
        sizes |= {"max_len": 17} if tower.max_len else {}
        return tower.replace(input=given, **sizes, **heads)

    return config.replace(encoder=small(config.encoder), decoder=small(config.decoder), text=small(config.text))


def without_dropout(config: ModelConfig) -> ModelConfig:
    """The same model with every dropout at zero, for what must be exact in training mode."""

    def still(node):
        if node is None:
            return None
        return node.replace(**{f.name: 0.0 for f in dataclasses.fields(node) if f.name.endswith("dropout")})

    return config.replace(
        encoder=still(config.encoder), decoder=still(config.decoder), text=still(config.text), head=still(config.head)
    )


def build(config: ModelConfig, dtype: torch.dtype = torch.float64) -> Transformer:
    """A seeded model in double precision, with no weight left at a value that hides mistakes."""
    torch.manual_seed(11)
    model = Transformer(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.abs().max() == 0 or (parameter == 1).all():  # biases, norms
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def an_input(tower: Stack | Recurrent, rows: int = B, length: int = S, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random ids, pixels or vectors for a tower."""
    given = tower.input
    if isinstance(given, Tokens):
        return torch.randint(0, given.vocab_size, (rows, length))
    if isinstance(given, Vector):
        return torch.randn(rows, given.d_vector, dtype=dtype)
    return torch.randn(rows, given.channels, given.image_size, given.image_size, dtype=dtype)


def inputs(config: ModelConfig, rows: int = B, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor | None]:
    """What the model's forward takes: one input, or two."""
    first = an_input(config.encoder or config.last, rows, S if config.encoder else T, dtype)
    second = config.text or (config.decoder if config.encoder else None)
    return first, None if second is None else an_input(second, rows, T, dtype)


def outputs(out: Tensor | Pair) -> Tensor:
    """A model's output as one tensor whose rows are the batch's."""
    return torch.cat([out.first, out.text], dim=-1) if isinstance(out, Pair) else out


def lengths_of(first: Tensor, lengths: Tensor) -> Layout:
    """Lengths where the input is tokens; images and vectors have none."""
    return Layout(lengths=lengths) if not first.is_floating_point() else Layout()


def memory_of(model: Transformer, first: Tensor, layout: Layout | None = None) -> Encoded | None:
    """The encoder's output, where there is an encoder."""
    return None if model.encoder is None else model.encode(first, layout)


def decoded(model: Transformer, ids: Tensor, memory: Encoded | None = None, **how) -> Tensor:
    """A decoder's logits, or its vectors where the head is of another kind."""
    hidden = model.decode(ids, memory, **how).hidden
    return model.logits(hidden) if isinstance(model.config.head, Vocabulary) else hidden


def placed(ids: Tensor, left: int, right: int, fill: Tensor) -> Tensor:
    """Rows with padding of other ids on either side."""
    return torch.cat([fill[:, :left], ids, fill[:, left : left + right]], dim=1)
