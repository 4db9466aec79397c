"""What a model is, as data: frozen dataclasses, TOML or JSON in, JSON out.

Nothing here imports torch, so that the command line can read, check and explain a configuration at once.
``validate()`` collects every problem and raises one :class:`ConfigError`; a key that does not exist is refused with
the nearest one that does. How that is done is in :mod:`regard.schema`.

A model is up to two encoders, a decoder and a head. A *tower* is an input (tokens,
patches, a CNN grid, a vector) with the stack above it, Transformer or recurrent. Which towers are
present decides the shape::

    encoder                 BERT, ViT            encoder + decoder   translator, captioner, vec2seq
    decoder                 GPT, Llama           encoder + text      CLIP
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from regard.schema import ConfigError as ConfigError
from regard.schema import InputError as InputError
from regard.schema import Node as Node
from regard.schema import RegardError as RegardError
from regard.schema import at_least, fractions, from_dict
from regard.schema import merge as merge
from regard.schema import must_divide as must_divide
from regard.schema import read_toml as read_toml
from regard.schema import suggest as suggest

MOST_LAYERS = 1024  # the deepest anybody has trained; building a million would never end

Score = Literal["dot", "scaled_dot", "bilinear", "additive"]
Activation = Literal["relu", "gelu", "gelu_tanh", "gelu_quick", "silu", "swiglu"]


@dataclass(frozen=True, kw_only=True)
class Tokens(Node):
    """Ids in, vectors out."""

    kind: Literal["tokens"] = "tokens"
    """Ids, each with a vector of its own."""
    vocab_size: int
    """How many ids there are."""
    scale: bool = False
    """Multiply the vectors by the square root of their width (Vaswani)."""
    n_segments: int = 0
    """Segments with a vector each, added to their tokens' (BERT); 0 for none."""

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "vocab_size")
        yield from at_least(self, 0, "n_segments")


@dataclass(frozen=True, kw_only=True)
class Patches(Node):
    """Square pixels in, one vector a patch out (Dosovitskiy)."""

    kind: Literal["patches"] = "patches"
    """An image cut into square patches."""
    image_size: int
    """Pixels of a side of the image."""
    patch_size: int
    """Pixels of a side of a patch."""
    channels: int = 3
    """Colours of a pixel."""
    class_token: bool = True
    """Put a learned vector before the patches, for a head to read."""
    registers: int = 0
    """Learned vectors after the class token that no head reads: DeiT's distillation token is one."""
    bias: bool = True
    """Add a bias where a patch is projected."""

    @property
    def side(self) -> int:
        """Patches of a row, and of a column."""
        return self.image_size // self.patch_size

    @property
    def n_positions(self) -> int:
        return self.side**2 + self.class_token + self.registers

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "image_size", "patch_size", "channels")
        yield from at_least(self, 0, "registers")
        yield from must_divide("image_size", self.image_size, "patch_size", self.patch_size)


@dataclass(frozen=True, kw_only=True)
class Grid(Node):
    """Square pixels in, the feature grid of a small CNN out (Xu): each stage halves the image."""

    kind: Literal["grid"] = "grid"
    """The cells of a small CNN over an image."""
    image_size: int
    """Pixels of a side of the image."""
    channels: int = 3
    """Colours of a pixel."""
    widths: tuple[int, ...] = (64, 128, 256, 512)
    """Width of each stage of the CNN."""
    depth: int = 1
    """Convolutions of each stage; the first halves the image."""

    @property
    def side(self) -> int:
        """Cells of a row, and of a column."""
        return self.image_size // 2 ** len(self.widths)

    @property
    def n_positions(self) -> int:
        return self.side**2

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "image_size", "channels", "depth")
        if not self.widths or min(self.widths) < 1:
            yield f"widths ({list(self.widths)}) must name at least one stage, each at least 1 wide"
        yield from must_divide("image_size", self.image_size, "2 ** the number of stages", 2 ** len(self.widths))


@dataclass(frozen=True, kw_only=True)
class Vector(Node):
    """One vector in, a few out, for a decoder to attend to (vec2seq).
    Over a single one the softmax would be constant and the scores would never learn."""

    kind: Literal["vector"] = "vector"
    """One vector for the whole input."""
    d_vector: int
    """Width of the vector."""
    n_slots: int = 4
    """Vectors that it becomes."""

    @property
    def n_positions(self) -> int:
        return self.n_slots

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "d_vector")
        yield from at_least(self, 2, "n_slots")


@dataclass(frozen=True, kw_only=True)
class Positions(Node):
    """How order enters: with the input, inside attention, or not at all."""

    kind: Literal["sinusoidal", "learned", "rotary", "alibi", "none"] = "none"
    """Vectors that join the input (sinusoidal, learned), queries and keys turned (rotary), lower scores for far keys
    (alibi), or nothing."""
    base: float = 10000.0
    """For sinusoidal and rotary: the longest wavelength is this times 2 pi."""
    layout: Literal["interleaved", "half"] = "interleaved"
    """For sinusoidal and rotary: pairs stand side by side (as the papers write it) or in two halves (Llama)."""
    axes: Literal[1, 2] = 1
    """For sinusoidal: places are counted one after the other, or (2, of images) half of the vector tells the row and
    half the column; learned vectors before the patches then have none."""
    join: Literal["add", "concat"] = "add"
    """For sinusoidal and learned: added to the input's vectors or put beside them."""
    d_position: int | None = None
    """For concat: width of the positions; the input has the rest of d_model."""

    def problems(self) -> Iterator[str]:
        if self.base <= 1:
            yield f"base ({self.base}) must be above 1; the paper has 10000"
        if self.axes == 2 and self.kind != "sinusoidal":
            yield f"axes (2) needs kind 'sinusoidal', not {self.kind!r}"
        if self.join == "concat" and self.d_position is None:
            yield "d_position (None) must say how wide the concatenated positions are"
        if self.join == "concat" and self.kind not in ("sinusoidal", "learned"):
            yield f"join ('concat') does not fit {self.kind} positions; only sinusoidal and learned can be"
        yield from at_least(self, 1, "d_position")


Input = Tokens | Patches | Grid | Vector


@dataclass(frozen=True, kw_only=True)
class Stack(Node):
    """A tower with a Transformer: an input, positions, and a stack of blocks."""

    is_default: ClassVar[bool] = True
    kind: Literal["transformer"] = "transformer"
    """A stack of attention and feed-forward."""
    input: Input
    """What comes in."""
    d_model: int
    """Width of the vectors between the layers."""
    n_layers: int
    """Blocks; 0 leaves the embedded input as it is."""
    n_heads: int
    """Heads of each attention."""
    d_ff: int
    """Width inside the feed-forward."""
    max_len: int | None = None
    """Tokens that fit; images and vectors know theirs."""
    positions: Positions = Positions()
    """How order enters."""
    n_kv_heads: int | None = None
    """Heads of keys and values, each shared by a group of query heads. Left out: n_heads."""
    d_head: int | None = None
    """Width of a query or key head. Left out: d_model / n_heads."""
    d_value: int | None = None
    """Width of a value head. Left out: d_head."""
    causal: bool = False
    """A token sees itself and what stands before it only."""
    windows: tuple[int, ...] = ()
    """How far each layer sees to either side, cycled over the layers, 0 for everything: GPT-3 alternates [0, 128]."""
    score: Score = "scaled_dot"
    """How well a query fits a key."""
    qk_norm: bool = False
    """Norm queries and keys, each head by itself."""
    bias: bool = True
    """Add biases in attention and feed-forward."""
    activation: Activation = "relu"
    """What bends the feed-forward; swiglu has a gate beside it."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm or RMSNorm."""
    norm_eps: float = 1e-5
    """The norm's guard against division by zero."""
    norm_order: Literal["pre", "post"] = "post"
    """Norm what goes into a branch (pre) or the sum that comes out (post)."""
    embed_norm: bool = False
    """Norm the embedded input."""
    final_norm: bool | None = None
    """Norm what the last block hands on. Left out: with pre-norm."""
    dropout: float = 0.0
    """Share of a branch's output that is dropped."""
    attn_dropout: float = 0.0
    """Share of the attention weights that is dropped."""
    mlp_dropout: float = 0.0
    """Share of the feed-forward's inside that is dropped."""
    embed_dropout: float = 0.0
    """Share of the embedded input that is dropped."""
    init_std: float | None = None
    """Weights start normal, this wide; with pre-norm, what ends a branch is divided by sqrt(2 n_layers) (GPT-2). Left
    out: uniform (Xavier)."""

    @property
    def d_out(self) -> int:
        return self.d_model

    @property
    def d_input(self) -> int:
        """The width of the embedded input, before positions are concatenated to it."""
        joined = self.positions.join == "concat"
        return self.d_model - (self.positions.d_position or 0) if joined else self.d_model

    @property
    def n_positions(self) -> int:
        return self.max_len or 0 if isinstance(self.input, Tokens) else self.input.n_positions

    @property
    def position_limit(self) -> int | None:
        """How far the positions reach; None where they have no table: without any, and with ALiBi (its very point)."""
        return None if self.positions.kind in ("none", "alibi") else self.n_positions

    @property
    def head_widths(self) -> tuple[int, int]:
        """Width of a query or key head, and of a value head."""
        d_head = self.d_head or self.d_model // self.n_heads
        return d_head, self.d_value or d_head

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "d_model", "n_heads", "n_kv_heads", "d_head", "d_value", "max_len")
        yield from at_least(self, 0, "n_layers")
        if self.n_layers > MOST_LAYERS:
            yield f"n_layers ({self.n_layers}) must be at most {MOST_LAYERS}"
        if self.n_layers > 0:
            yield from at_least(self, 1, "d_ff")
        yield from fractions(self, "dropout", "attn_dropout", "mlp_dropout", "embed_dropout")
        if self.d_head is None:
            yield from must_divide("d_model", self.d_model, "n_heads", self.n_heads)
        if self.n_kv_heads is not None:
            yield from must_divide("n_heads", self.n_heads, "n_kv_heads", self.n_kv_heads)
        if self.norm_eps <= 0:
            yield f"norm_eps ({self.norm_eps}) must be above 0"
        if self.init_std is not None and self.init_std <= 0:
            yield f"init_std ({self.init_std}) must be above 0, or left out for Xavier's"
        if any(w < 0 for w in self.windows):
            yield f"windows ({list(self.windows)}) must be radii of at least 1, or 0 for a dense layer"
        if isinstance(self.input, Tokens) and self.max_len is None:
            yield "max_len (None) must say how many tokens fit"
        if self.positions.join == "concat" and (self.positions.d_position or 0) >= self.d_model:
            yield f"d_position ({self.positions.d_position}) must be below d_model ({self.d_model})"
        if self.positions.axes == 2:
            joined = self.positions.join == "concat"
            name, d = ("d_position", self.positions.d_position or 0) if joined else ("d_model", self.d_model)
            if not isinstance(self.input, Patches | Grid):
                yield f"positions.axes (2) needs an image under it, not {self.input.kind}; set axes = 1"
            elif d % 2:
                yield f"{name} ({d}) must be even: half of it tells the row, half the column"
        if self.positions.kind == "rotary":
            if self.n_heads > 0 and self.head_widths[0] % 2:
                yield f"d_head ({self.head_widths[0]}) must be even for rotary positions"
            if self.score not in ("dot", "scaled_dot"):
                yield f"score ({self.score!r}) must be 'dot' or 'scaled_dot' for rotary positions"


@dataclass(frozen=True, kw_only=True)
class Recurrent(Node):
    """A tower with a GRU or LSTM: Bahdanau's, Xu's, ELMo's.

    As a decoder over a memory it attends with ``score`` from its previous state to the raw memory
    (context attention); without one it only starts from the memory's summary, the thought vector.
    """

    kind: Literal["recurrent"] = "recurrent"
    """A GRU or an LSTM."""
    input: Tokens
    """What comes in."""
    d_input: int
    """Width of the token vectors."""
    d_hidden: int
    """Width of the state."""
    n_layers: int = 1
    """Layers, one above the other."""
    cell: Literal["gru", "lstm"] = "gru"
    """Gated recurrent unit or long short-term memory."""
    bidirectional: bool = False
    """A second one reads from the end, and both outputs stand side by side."""
    d_project: int | None = None
    """For lstm: the output is projected to this width. Left out: it is not."""
    residual: bool = False
    """Add a layer's input to its output, from the second layer on (ELMo)."""
    score: Score | None = None
    """For a decoder: how well its state fits a position of the memory. Left out: it does not attend."""
    d_attention: int | None = None
    """For the additive score: width of its hidden layer."""
    dropout: float = 0.0
    """Share of a layer's output that is dropped."""
    embed_dropout: float = 0.0
    """Share of the token vectors that is dropped."""

    @property
    def d_state(self) -> int:
        """Width of one direction's output."""
        return self.d_project or self.d_hidden

    @property
    def d_out(self) -> int:
        return self.d_state * (2 if self.bidirectional else 1)

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "d_input", "d_hidden", "n_layers", "d_project", "d_attention")
        if self.n_layers > MOST_LAYERS:
            yield f"n_layers ({self.n_layers}) must be at most {MOST_LAYERS}"
        yield from fractions(self, "dropout", "embed_dropout")
        if self.d_project is not None and self.cell != "lstm":
            yield f"d_project ({self.d_project}) needs cell 'lstm', not {self.cell!r}"
        if self.score == "additive" and self.d_attention is None:
            yield "d_attention (None) must say how wide the additive score's hidden layer is"
        if self.score is not None and (self.n_layers != 1 or self.cell != "gru" or self.bidirectional):
            yield f"score ({self.score!r}) needs one forward GRU layer, Bahdanau's decoder"


Tower = Stack | Recurrent


@dataclass(frozen=True, kw_only=True)
class Vocabulary(Node):
    """A score for every token at every position; a bidirectional language model scores each direction (logits
    (B, T, 2, V))."""

    kind: Literal["vocabulary"] = "vocabulary"
    """A score for every token of the vocabulary, at every position."""
    tied: bool = True
    """Score with the token vectors of the input."""
    bias: bool = False
    """Add a bias to each score."""
    transform: bool = False
    """A dense layer, activation and norm first (BERT)."""


@dataclass(frozen=True, kw_only=True)
class Labels(Node):
    """A label for every position."""

    kind: Literal["labels"] = "labels"
    """A label for every position."""
    n_labels: int
    """How many labels there are."""
    dropout: float = 0.0
    """Share of what comes in that is dropped."""
    mix: bool = False
    """Learn a weighted sum of all layers first (ELMo)."""

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "n_labels")
        yield from fractions(self, "dropout")


@dataclass(frozen=True, kw_only=True)
class Pooled(Node):
    """One label for the whole sequence."""

    kind: Literal["pooled"] = "pooled"
    """One label for the whole sequence."""
    n_labels: int = 0
    """How many labels there are; with 0 the pooled vector itself comes out."""
    pool: Literal["class", "end", "mean"] = "class"
    """Read the first position (class token), the last (end token) or the mean."""
    dense: bool = False
    """A dense layer first (BERT)."""
    activation: Literal["tanh", "relu"] = "tanh"
    """What bends it: BERT has tanh, DistilBERT relu."""
    dropout: float = 0.0
    """Share of the pooled vector that is dropped."""
    mix: bool = False
    """Learn a weighted sum of all layers first (ELMo)."""

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 0, "n_labels")
        yield from fractions(self, "dropout")


@dataclass(frozen=True, kw_only=True)
class Contrastive(Node):
    """Two pooled vectors in one space, unit length, compared at a learned temperature (CLIP)."""

    kind: Literal["contrastive"] = "contrastive"
    """Two vectors in one space."""
    d_embed: int
    """Width of that space."""
    pool: Literal["class", "end", "mean"] = "class"
    """What the encoder's vector is read from: class token, end token or mean."""
    text_pool: Literal["class", "end", "mean"] = "end"
    """What the text encoder's vector is read from."""
    temperature: float = 0.07
    """The products of two vectors are divided by this at first; it is learned."""

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "d_embed")
        if self.temperature <= 0:
            yield f"temperature ({self.temperature}) must be above 0; CLIP starts at 0.07"


@dataclass(frozen=True, kw_only=True)
class Codes(Node):
    """An image as one of a few learned vectors a patch, and painted again from those (VQ-VAE, van den Oord et al.
    2017): what makes tokens of images. The painter is a tower as the encoder is, above the codes."""

    kind: Literal["codes"] = "codes"
    """A code for every patch, and the image painted from them."""
    n_codes: int = 512
    """How many codes there are."""
    d_code: int = 16
    """Width of a code; patches are compared with codes there, at unit length (ViT-VQGAN), and few dimensions keep all
    of them in use."""
    n_layers: int = 2
    """Blocks above the codes, which paint."""
    commitment: float = 0.25
    """Weight of the term that keeps the encoder's vectors near their codes (VQ-VAE's beta)."""

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "n_layers")
        yield from at_least(self, 2, "n_codes", "d_code")
        yield from at_least(self, 0, "commitment")


Head = Vocabulary | Labels | Pooled | Contrastive | Codes


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Node):
    """A whole model: which towers, and what they predict.

    >>> from regard import presets
    >>> presets.gpt2().decoder.n_layers
    12
    """

    encoder: Tower | None = None
    """What reads."""
    decoder: Tower | None = None
    """What writes, token by token, over the encoder's output if there is one."""
    text: Stack | None = None
    """A second encoder, for text beside images (CLIP)."""
    head: Head
    """What is predicted."""
    pair_head: Pooled | None = None
    """A second head, over the pooled sentence pair (BERT): model.pair_head(encoded.hidden, encoded.layout)."""
    share_embeddings: bool = False
    """One token table serves encoder and decoder."""

    @property
    def shape(self) -> Literal["encoder", "decoder", "encoder-decoder", "two encoders"]:
        if self.text is not None:
            return "two encoders"
        if self.decoder is not None:
            return "decoder" if self.encoder is None else "encoder-decoder"
        return "encoder"

    @property
    def last(self) -> Tower:
        """The tower under the head."""
        tower = self.decoder or self.encoder
        assert tower is not None, "validate() refuses a model without towers"
        return tower

    def problems(self) -> Iterator[str]:
        encoder, decoder, text, head = self.encoder, self.decoder, self.text, self.head
        if encoder is None and decoder is None:
            yield "encoder and decoder (both missing): a model needs at least one of them"
            return
        if text is not None and (encoder is None or decoder is not None):
            yield "text: a second encoder goes with an encoder and without a decoder"
        if (text is not None) != isinstance(head, Contrastive):
            yield f"head (kind {head.kind!r}): a contrastive head and a text encoder need each other"
        if decoder is not None:
            if not isinstance(decoder.input, Tokens):
                yield f"decoder.input (kind {decoder.input.kind!r}) must be tokens"
            if isinstance(decoder, Stack) and decoder.n_layers == 0:
                yield "decoder.n_layers (0) must be at least 1; only an encoder may be a bare embedding"
            if isinstance(decoder, Stack) and not decoder.causal:
                yield "decoder.causal (False) must be true: a decoder may not see the future"
            if isinstance(decoder, Recurrent) and decoder.bidirectional:
                yield "decoder.bidirectional (True) must be false: a decoder may not see the future"
            if not isinstance(head, Vocabulary | Pooled | Labels):
                yield f"head (kind {head.kind!r}) does not fit a decoder"
        if isinstance(encoder, Recurrent) and encoder.score is not None:
            yield f"encoder.score ({encoder.score!r}) must be left out: an encoder has nothing to attend to"
        if isinstance(decoder, Recurrent):
            if encoder is None and decoder.score is not None:
                yield f"decoder.score ({decoder.score!r}) needs an encoder to attend to"
            if encoder and decoder.score in ("dot", "scaled_dot") and decoder.d_hidden != encoder.d_out:
                yield (
                    f"decoder.d_hidden ({decoder.d_hidden}) must equal the encoder's width ({encoder.d_out})"
                    f" for a {decoder.score} score; or score = 'bilinear'"
                )
        if self.share_embeddings:
            yield from _shared_table_problems(encoder, decoder)
        yield from self._head_problems()

    def _head_problems(self) -> Iterator[str]:
        head, last = self.head, self.last
        if isinstance(head, Vocabulary):
            if not isinstance(last.input, Tokens):
                yield f"head (kind 'vocabulary') needs tokens under it, not {last.input.kind}"
            elif head.transform and isinstance(last, Recurrent):
                yield "head.transform (True) needs a Transformer's activation and norm; set transform = false"
            elif head.tied and last.d_input != self.d_scored:
                yield (
                    f"head.tied (True) needs token vectors as wide ({last.d_input}) as what is scored"
                    f" ({self.d_scored}); set tied = false"
                )
        if isinstance(head, Codes):
            given = last.input
            if not isinstance(given, Patches) or not isinstance(last, Stack):
                yield f"head (kind 'codes') needs a Transformer over patches under it, not {given.kind}"
            elif given.class_token or given.registers:
                yield "head (kind 'codes') has a code for every patch; set class_token = false and registers = 0"
        if isinstance(head, Pooled | Contrastive) and head.pool == "class":
            if isinstance(last.input, Patches) and not last.input.class_token:
                yield "head.pool ('class') needs a class token, which patches without one have not; or pool = 'mean'"
            if isinstance(last.input, Grid):
                yield "head.pool ('class') needs a class token, which a grid has not; or pool = 'mean'"
        if self.shape != "encoder":
            if self.pair_head is not None:
                yield "pair_head: a second, pooled head goes with an encoder alone"
            if isinstance(head, Labels | Pooled) and head.mix:
                yield "head.mix (True) goes with an encoder alone, whose layers it mixes"
        for name, tower in (("decoder", self.decoder), ("text", self.text)):
            if tower is not None and getattr(tower.input, "n_segments", 0):
                yield f"{name}.input.n_segments ({tower.input.n_segments}) must be 0: only an encoder has segments"  # type: ignore[union-attr]

    @property
    def d_scored(self) -> int:
        """Width of the vectors that reach the head."""
        last = self.last
        if isinstance(last, Recurrent):
            # A decoder's readout has the width of its token vectors; a bidirectional language
            # model scores each direction by itself.
            if self.decoder is not None and last.score is not None:
                return last.d_input
            return last.d_state if isinstance(self.head, Vocabulary) else last.d_out
        return last.d_model

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelConfig:
        """From plain values; every unknown key, missing key and wrong type reported at once."""
        return from_dict(cls, data)

    @classmethod
    def from_json(cls, text: str) -> ModelConfig:
        try:
            return cls.from_dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise ConfigError([f"not valid JSON: {error}"]) from None


def _shared_table_problems(encoder: Tower | None, decoder: Tower | None) -> Iterator[str]:
    if encoder is None or decoder is None:
        yield "share_embeddings (True) needs an encoder and a decoder"
    elif not isinstance(encoder.input, Tokens) or not isinstance(decoder.input, Tokens):
        yield "share_embeddings (True) needs tokens on both sides"
    elif encoder.input.vocab_size != decoder.input.vocab_size:
        yield (
            f"share_embeddings (True) needs one vocabulary, not {encoder.input.vocab_size}"
            f" and {decoder.input.vocab_size}"
        )
    elif (encoder.input.scale, encoder.input.n_segments) != (decoder.input.scale, decoder.input.n_segments):
        yield "share_embeddings (True) needs one scale and n_segments on both sides"
    elif encoder.d_input != decoder.d_input:
        yield f"share_embeddings (True) needs one width, not {encoder.d_input} and {decoder.d_input}"
