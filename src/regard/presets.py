"""Whole model configurations by name: the published models, and tiny ones of each shape.

Every function returns a :class:`~regard.config.ModelConfig`; ``preset(name)`` finds one by name, and
``from_toml`` reads a file whose ``[model]`` table may start from one, with its arguments and changes::

    [model]
    preset = "vaswani_base"
    vocab_size = 16_000
    [model.encoder]
    n_layers = 12

Dropout is where each paper has it. The tiny ones have sizes that are distinct primes,
so that a swapped axis cannot pass a test.
"""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

from regard.config import (
    Codes,
    ConfigError,
    Contrastive,
    Grid,
    Head,
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
    merge,
    read_toml,
    suggest,
)

# ---------------------------------------------------------------------------------------
# Encoder-decoder: Vaswani et al. 2017, "Attention Is All You Need"


def vaswani_base(vocab_size: int = 37_000, max_len: int = 1024) -> ModelConfig:
    """The base translator: 6 + 6 layers, width 512, one shared and tied vocabulary.

    >>> vaswani_base().shape
    'encoder-decoder'
    """
    return _vaswani(vocab_size, max_len, d_model=512, n_heads=8, d_ff=2048, dropout=0.1)


def vaswani_big(vocab_size: int = 37_000, max_len: int = 1024) -> ModelConfig:
    """The big translator: width 1024, 16 heads, dropout 0.3."""
    return _vaswani(vocab_size, max_len, d_model=1024, n_heads=16, d_ff=4096, dropout=0.3)


def _vaswani(vocab_size: int, max_len: int, *, dropout: float, n_layers: int = 6, **sizes: Any) -> ModelConfig:
    encoder = Stack(
        input=Tokens(vocab_size=vocab_size, scale=True),
        positions=Positions(kind="sinusoidal"),
        n_layers=n_layers,
        max_len=max_len,
        dropout=dropout,
        embed_dropout=dropout,
        **sizes,
    )
    return ModelConfig(
        encoder=encoder,
        decoder=encoder.replace(causal=True),
        head=Vocabulary(tied=True),
        share_embeddings=True,
    )


# ---------------------------------------------------------------------------------------
# Decoders: GPT-1 (2018), GPT-2 (2019), GPT-3 (2020), and a small Llama (2023)


def gpt1() -> ModelConfig:
    """GPT-1: twelve post-norm layers, learned positions, 512 tokens."""
    return _gpt(40_478, 512, n_layers=12, d_model=768, n_heads=12, norm_order="post")


GPT2_SIZES = {
    "small": {"n_layers": 12, "d_model": 768, "n_heads": 12},
    "medium": {"n_layers": 24, "d_model": 1024, "n_heads": 16},
    "large": {"n_layers": 36, "d_model": 1280, "n_heads": 20},
    "xl": {"n_layers": 48, "d_model": 1600, "n_heads": 25},
}


def gpt2(size: str = "small") -> ModelConfig:
    """GPT-2 in its four sizes: small (124M), medium (355M), large (774M), xl (1,558M).

    >>> gpt2("xl").decoder.d_model
    1600
    """
    return _gpt(50_257, 1024, **_size("gpt2", GPT2_SIZES, size))


GPT3_SIZES = {
    "small": {"n_layers": 12, "d_model": 768, "n_heads": 12, "d_head": 64},
    "medium": {"n_layers": 24, "d_model": 1024, "n_heads": 16, "d_head": 64},
    "large": {"n_layers": 24, "d_model": 1536, "n_heads": 16, "d_head": 96},
    "xl": {"n_layers": 24, "d_model": 2048, "n_heads": 24, "d_head": 128},
    "2.7b": {"n_layers": 32, "d_model": 2560, "n_heads": 32, "d_head": 80},
    "6.7b": {"n_layers": 32, "d_model": 4096, "n_heads": 32, "d_head": 128},
    "13b": {"n_layers": 40, "d_model": 5140, "n_heads": 40, "d_head": 128},
    "175b": {"n_layers": 96, "d_model": 12_288, "n_heads": 96, "d_head": 128},
}


def gpt3(size: str = "175b", window: int = 128) -> ModelConfig:
    """GPT-3 in the eight sizes of its paper, dense and banded layers by turns.

    The paper does not give the width of the band; 128 is the Sparse Transformer's for text.
    """
    return _gpt(50_257, 2048, windows=(0, window), **_size("gpt3", GPT3_SIZES, size))


def _gpt(vocab_size: int, max_len: int, *, norm_order: Any = "pre", dropout: float = 0.1, **sizes: Any):
    return ModelConfig(
        decoder=Stack(
            input=Tokens(vocab_size=vocab_size),
            positions=Positions(kind="learned"),
            max_len=max_len,
            d_ff=4 * sizes["d_model"],
            causal=True,
            activation="gelu_tanh",
            norm_order=norm_order,
            dropout=dropout,
            attn_dropout=dropout,
            embed_dropout=dropout,
            init_std=0.02,
            **sizes,
        ),
        head=Vocabulary(tied=True),
    )


def llama_small(vocab_size: int = 49_152, max_len: int = 2048) -> ModelConfig:
    """A Llama of 135M parameters: rotary positions, RMSNorm, SwiGLU, three key/value heads for nine."""
    return ModelConfig(
        decoder=Stack(
            input=Tokens(vocab_size=vocab_size),
            positions=Positions(kind="rotary", layout="half"),
            max_len=max_len,
            d_model=576,
            n_layers=30,
            n_heads=9,
            n_kv_heads=3,
            d_ff=1536,
            causal=True,
            bias=False,
            activation="swiglu",
            norm="rms",
            norm_order="pre",
            init_std=0.02,
        ),
        head=Vocabulary(tied=True),
    )


# ---------------------------------------------------------------------------------------
# Encoders: BERT (2018), ViT (2020), CLIP (2021)

FEATURES = Pooled(pool="class", dense=True)
MASKED_TOKENS = Vocabulary(tied=True, bias=True, transform=True)


def bert_base(head: Head = FEATURES, pair_head: Pooled | None = None) -> ModelConfig:
    """BERT-base (uncased). The default head gives the pooled vector; for pre-training::

    bert_base(head=MASKED_TOKENS, pair_head=Pooled(n_labels=2, dense=True))
    """
    return _bert(head, pair_head, n_layers=12, d_model=768, n_heads=12)


def bert_large(head: Head = FEATURES, pair_head: Pooled | None = None) -> ModelConfig:
    """BERT-large (uncased)."""
    return _bert(head, pair_head, n_layers=24, d_model=1024, n_heads=16)


def _bert(head: Head, pair_head: Pooled | None, **sizes: Any) -> ModelConfig:
    return ModelConfig(
        encoder=Stack(
            input=Tokens(vocab_size=30_522, n_segments=2),
            positions=Positions(kind="learned"),
            max_len=512,
            d_ff=4 * sizes["d_model"],
            activation="gelu",
            norm_eps=1e-12,
            embed_norm=True,
            dropout=0.1,
            attn_dropout=0.1,
            embed_dropout=0.1,
            init_std=0.02,
            **sizes,
        ),
        head=head,
        pair_head=pair_head,
    )


def vit_b16(n_labels: int = 1000, image_size: int = 224) -> ModelConfig:
    """ViT-B/16: an image as 16 x 16 patches."""
    return _vit(n_labels, image_size, n_layers=12, d_model=768, n_heads=12)


def vit_l16(n_labels: int = 1000, image_size: int = 224) -> ModelConfig:
    """ViT-L/16."""
    return _vit(n_labels, image_size, n_layers=24, d_model=1024, n_heads=16)


def _vit(n_labels: int, image_size: int, **sizes: Any) -> ModelConfig:
    return ModelConfig(
        encoder=Stack(
            input=Patches(image_size=image_size, patch_size=16),
            positions=Positions(kind="learned"),
            d_ff=4 * sizes["d_model"],
            activation="gelu",
            norm_eps=1e-6,
            norm_order="pre",
            dropout=0.1,
            mlp_dropout=0.1,
            embed_dropout=0.1,
            init_std=0.02,
            **sizes,
        ),
        head=Pooled(n_labels=n_labels, pool="class"),
    )


def clip_b32() -> ModelConfig:
    """CLIP ViT-B/32: an image and a text encoder that meet in 512 dimensions."""
    common = {"activation": "gelu_quick", "norm_order": "pre", "positions": Positions(kind="learned"), "init_std": 0.02}
    return ModelConfig(
        encoder=Stack(
            input=Patches(image_size=224, patch_size=32, bias=False),
            d_model=768,
            n_layers=12,
            n_heads=12,
            d_ff=3072,
            embed_norm=True,
            **common,  # type: ignore[arg-type]
        ),
        text=Stack(
            input=Tokens(vocab_size=49_408),
            max_len=77,
            d_model=512,
            n_layers=12,
            n_heads=8,
            d_ff=2048,
            causal=True,
            **common,  # type: ignore[arg-type]
        ),
        head=Contrastive(d_embed=512),
    )


def vq_vae(n_codes: int = 512, image_size: int = 32) -> ModelConfig:
    """A tokenizer of images: VQ-VAE's codes (van den Oord et al. 2017) between two small ViTs."""
    return ModelConfig(
        encoder=Stack(
            input=Patches(image_size=image_size, patch_size=4, class_token=False),
            positions=Positions(kind="learned"),
            d_model=256,
            n_layers=4,
            n_heads=4,
            d_ff=1024,
            activation="gelu",
            norm_eps=1e-6,
            norm_order="pre",
            init_std=0.02,
        ),
        head=Codes(n_codes=n_codes, n_layers=4),
    )


# ---------------------------------------------------------------------------------------
# The recurrent ancestors


def bahdanau(source_vocab: int = 30_000, target_vocab: int = 30_000, score: Any = "additive") -> ModelConfig:
    """RNNsearch (Bahdanau et al. 2014): a bidirectional GRU read by an attention GRU.

    ``score`` may be any score function, or None for the encoder-decoder that has only the thought vector.
    """
    return ModelConfig(
        encoder=Recurrent(input=Tokens(vocab_size=source_vocab), d_input=620, d_hidden=1000, bidirectional=True),
        decoder=Recurrent(
            input=Tokens(vocab_size=target_vocab),
            d_input=620,
            d_hidden=2000 if score in ("dot", "scaled_dot") else 1000,
            score=score,
            d_attention=1000 if score == "additive" else None,
        ),
        head=Vocabulary(tied=False, bias=True),
    )


def show_attend_tell(vocab_size: int = 10_000, image_size: int = 224) -> ModelConfig:
    """Show, Attend and Tell (Xu et al. 2015): the grid of a small CNN read by an attention GRU.

    The paper's CNN is a pre-trained VGG and its decoder an LSTM; this one trains from scratch.
    """
    return ModelConfig(
        encoder=Stack(input=Grid(image_size=image_size), d_model=512, n_layers=0, n_heads=1, d_ff=0),
        decoder=Recurrent(
            input=Tokens(vocab_size=vocab_size),
            d_input=512,
            d_hidden=512,
            score="additive",
            d_attention=512,
            dropout=0.5,
        ),
        head=Vocabulary(tied=False, bias=True),
    )


def elmo(vocab_size: int = 50_000, head: Head | None = None) -> ModelConfig:
    """ELMo (Peters et al. 2018): forward and backward LSTM language models over one token table.

    The paper reads characters through a CNN; this one reads subwords, as every other model here.
    With a ``Labels`` or ``Pooled`` head and ``mix=True`` it is the paper's feature extractor.
    """
    return ModelConfig(
        encoder=Recurrent(
            input=Tokens(vocab_size=vocab_size),
            d_input=512,
            d_hidden=4096,
            d_project=512,
            n_layers=2,
            cell="lstm",
            bidirectional=True,
            residual=True,
            dropout=0.1,
        ),
        head=head or Vocabulary(tied=False, bias=True),
    )


# ---------------------------------------------------------------------------------------
# Tiny ones of each shape, for tests and for looking at numbers

_TINY = {"d_model": 29, "n_layers": 2, "n_heads": 3, "d_head": 7, "d_value": 5, "d_ff": 31}


def tiny_decoder(**changes: Any) -> ModelConfig:
    """A GPT of a few thousand parameters."""
    stack = {
        "input": Tokens(vocab_size=101),
        "positions": Positions(kind="learned"),
        "max_len": 37,
        "causal": True,
        "norm_order": "pre",
        "activation": "gelu_tanh",
    }
    return ModelConfig(decoder=Stack(**{**_TINY, **stack, **changes}), head=Vocabulary(tied=True))  # type: ignore[arg-type]


def tiny_llama(**changes: Any) -> ModelConfig:
    """Rotary positions, grouped-query heads, RMSNorm and SwiGLU, in small."""
    stack = {
        "positions": Positions(kind="rotary", layout="half"),
        "n_heads": 6,
        "n_kv_heads": 2,
        "d_head": 14,
        "d_value": None,
        "bias": False,
        "activation": "swiglu",
        "norm": "rms",
    }
    config = tiny_decoder(**{**stack, **changes})
    return config.replace(head=Vocabulary(tied=False))


def tiny_encoder(head: Head = MASKED_TOKENS, **changes: Any) -> ModelConfig:
    """A BERT in small: segments, embedding norm, post-norm."""
    stack = {
        "input": Tokens(vocab_size=101, n_segments=2),
        "positions": Positions(kind="learned"),
        "max_len": 37,
        "embed_norm": True,
        "activation": "gelu",
    }
    return ModelConfig(encoder=Stack(**{**_TINY, **stack, **changes}), head=head)  # type: ignore[arg-type]


def tiny_encoder_decoder(**changes: Any) -> ModelConfig:
    """A Vaswani in small, with a vocabulary for each side."""
    stack = {"input": Tokens(vocab_size=103, scale=True), "positions": Positions(kind="sinusoidal"), "max_len": 37}
    encoder = Stack(**{**_TINY, **stack, **changes})  # type: ignore[arg-type]
    decoder = encoder.replace(input=Tokens(vocab_size=101, scale=True), causal=True)
    return ModelConfig(encoder=encoder, decoder=decoder, head=Vocabulary(tied=True))


def tiny_vec2seq() -> ModelConfig:
    """A decoder conditioned on one vector."""
    encoder = Stack(input=Vector(d_vector=13), d_model=23, n_layers=0, n_heads=1, d_ff=0)
    return tiny_decoder().replace(encoder=encoder)


def tiny_vit(n_labels: int = 11, **changes: Any) -> ModelConfig:
    """A ViT over 5 x 5 patches of 3 x 3 pixels."""
    stack = {
        "input": Patches(image_size=15, patch_size=3),
        "positions": Positions(kind="learned"),
        "norm_order": "pre",
        "activation": "gelu",
    }
    return ModelConfig(
        encoder=Stack(**{**_TINY, **stack, **changes}),  # type: ignore[arg-type]
        head=Pooled(n_labels=n_labels, pool="class"),
    )


def tiny_vq_vae(**changes: Any) -> ModelConfig:
    """Codes for 5 x 5 patches of 3 x 3 pixels, and a painter of one block."""
    given = Patches(image_size=15, patch_size=3, class_token=False)
    return tiny_vit(**{"input": given, **changes}).replace(head=Codes(n_codes=19, d_code=5, n_layers=1))


def tiny_captioner() -> ModelConfig:
    """A CNN grid under a Transformer encoder and decoder."""
    encoder = Stack(
        **{**_TINY, "d_model": 23},  # type: ignore[arg-type]
        input=Grid(image_size=12, widths=(5, 7)),
        positions=Positions(kind="learned"),
        norm_order="pre",
    )
    return tiny_decoder().replace(encoder=encoder)


def tiny_clip() -> ModelConfig:
    """Two encoders that meet in 17 dimensions."""
    text = tiny_decoder(d_model=23, activation="gelu_quick").decoder
    image = tiny_vit().encoder.replace(embed_norm=True)  # type: ignore[union-attr]
    return ModelConfig(encoder=image, text=text, head=Contrastive(d_embed=17))  # type: ignore[arg-type]


def tiny_bahdanau(score: Any = "additive") -> ModelConfig:
    """RNNsearch in small, with any score function or none."""
    return ModelConfig(
        encoder=Recurrent(input=Tokens(vocab_size=103), d_input=13, d_hidden=11, bidirectional=True),
        decoder=Recurrent(
            input=Tokens(vocab_size=101),
            d_input=17,
            d_hidden=22 if score in ("dot", "scaled_dot") else 19,
            score=score,
            d_attention=7 if score == "additive" else None,
        ),
        head=Vocabulary(tied=False, bias=True),
    )


def tiny_show_attend_tell() -> ModelConfig:
    """A CNN grid under an attention GRU."""
    encoder = Stack(input=Grid(image_size=12, widths=(5, 7)), d_model=23, n_layers=0, n_heads=1, d_ff=0)
    return tiny_bahdanau().replace(encoder=encoder)


def tiny_lstm() -> ModelConfig:
    """A two-layer LSTM language model."""
    return ModelConfig(
        decoder=Recurrent(input=Tokens(vocab_size=101), d_input=13, d_hidden=19, n_layers=2, cell="lstm"),
        head=Vocabulary(tied=False),
    )


def tiny_elmo(head: Head | None = None) -> ModelConfig:
    """ELMo in small; ``head=Labels(n_labels=5, mix=True)`` makes it a tagger."""
    return ModelConfig(
        encoder=Recurrent(
            input=Tokens(vocab_size=101),
            d_input=13,
            d_hidden=19,
            d_project=11,
            n_layers=2,
            cell="lstm",
            bidirectional=True,
            residual=True,
        ),
        head=head or Vocabulary(tied=False, bias=True),
    )


def tiny_tagger() -> ModelConfig:
    """An encoder with a label for every token."""
    return tiny_encoder(head=Labels(n_labels=5))


# ---------------------------------------------------------------------------------------
# By name


def names() -> list[str]:
    """Every preset's name.

    >>> "gpt2" in names()
    True
    """
    return sorted(
        name
        for name, f in globals().items()
        if inspect.isfunction(f)
        and f.__module__ == __name__
        and not name.startswith("_")
        and name not in ("names", "preset", "from_toml", "resolve")
    )


def preset(name: str, **arguments: Any) -> ModelConfig:
    """A preset by its name, with its arguments.

    >>> preset("gpt2", size="medium").decoder.n_layers
    24
    """
    if name not in names():
        raise ConfigError([f"preset ({name!r}) is not known; {suggest(str(name), names())}"])
    known = _arguments(name)
    stray = [f"{key}: preset {name} does not take it; {suggest(key, known)}" for key in arguments if key not in known]
    if stray and "changes" not in known:
        raise ConfigError(stray)
    return globals()[name](**arguments)


def resolve(table: dict[str, Any]) -> ModelConfig:
    """A ``[model]`` table: a whole configuration, or a preset with its arguments and changes.

    >>> resolve({"preset": "gpt2", "size": "xl", "decoder": {"n_layers": 3}}).decoder.n_layers
    3
    """
    if not isinstance(table, dict):
        raise ConfigError([f"model ({table!r}) must be a table of keys"])
    name = table.get("preset")
    if name is None:
        return ModelConfig.from_dict(table)
    own = {f.name for f in dataclasses.fields(ModelConfig)}
    known = _arguments(name) if name in names() else []
    arguments = {k: v for k, v in table.items() if k in known and k not in own and k != "changes"}
    wrong = [f"{k} ({v!r}) must be a number or text" for k, v in arguments.items() if not isinstance(v, int | str)]
    if wrong:
        raise ConfigError(wrong)
    changes = {k: v for k, v in table.items() if k not in arguments and k != "preset"}
    return ModelConfig.from_dict(merge(preset(name, **arguments).to_dict(), changes))


def _arguments(name: str) -> list[str]:
    return list(inspect.signature(globals()[name]).parameters)


def from_toml(path: str | Path) -> ModelConfig:
    """The model that a TOML file's ``[model]`` table describes."""
    document = read_toml(path)
    if "model" not in document:
        raise ConfigError([f"{path}: has no [model] table"])
    return resolve(document["model"])


def _size(name: str, sizes: dict[str, dict[str, int]], size: str) -> dict[str, Any]:
    if not isinstance(size, str) or size not in sizes:
        raise ConfigError([f"{name} size ({size!r}) is not known; {suggest(str(size), sizes)}"])
    return dict(sizes[size])
