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
    """Ids in, vectors out. ``scale`` multiplies by the square root of the width (Vaswani);
    ``n_segments`` adds BERT's segment vectors."""

    kind: Literal["tokens"] = "tokens"
    vocab_size: int
    scale: bool = False
    n_segments: int = 0

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "vocab_size")
        yield from at_least(self, 0, "n_segments")


@dataclass(frozen=True, kw_only=True)
class Patches(Node):
    """Square pixels in, one vector a patch out (Dosovitskiy), after a class token if wanted."""

    kind: Literal["patches"] = "patches"
    image_size: int
    patch_size: int
    channels: int = 3
    class_token: bool = True
    bias: bool = True

    @property
    def n_positions(self) -> int:
        return (self.image_size // self.patch_size) ** 2 + self.class_token

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "image_size", "patch_size", "channels")
        yield from must_divide("image_size", self.image_size, "patch_size", self.patch_size)


@dataclass(frozen=True, kw_only=True)
class Grid(Node):
    """Square pixels in, the feature grid of a small CNN out (Xu): each stage halves the image."""

    kind: Literal["grid"] = "grid"
    image_size: int
    channels: int = 3
    widths: tuple[int, ...] = (64, 128, 256, 512)

    @property
    def n_positions(self) -> int:
        return (self.image_size // 2 ** len(self.widths)) ** 2

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "image_size", "channels")
        if not self.widths or min(self.widths) < 1:
            yield f"widths ({list(self.widths)}) must name at least one stage, each at least 1 wide"
        yield from must_divide("image_size", self.image_size, "2 ** the number of stages", 2 ** len(self.widths))


@dataclass(frozen=True, kw_only=True)
class Vector(Node):
    """One vector in, ``n_slots`` vectors out, for a decoder to attend to (vec2seq).
    Over a single slot the softmax would be constant and the scores would never learn."""

    kind: Literal["vector"] = "vector"
    d_vector: int
    n_slots: int = 4

    @property
    def n_positions(self) -> int:
        return self.n_slots

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "d_vector")
        yield from at_least(self, 2, "n_slots")


@dataclass(frozen=True, kw_only=True)
class Positions(Node):
    """How order enters: added or concatenated to the input (sinusoidal, learned), or inside
    attention (rotary turns queries and keys, alibi lowers the scores of far keys), or not at all."""

    kind: Literal["sinusoidal", "learned", "rotary", "alibi", "none"] = "none"
    base: float = 10000.0
    layout: Literal["interleaved", "half"] = "interleaved"
    join: Literal["add", "concat"] = "add"
    d_position: int | None = None

    def problems(self) -> Iterator[str]:
        if self.base <= 1:
            yield f"base ({self.base}) must be above 1; the paper has 10000"
        if self.join == "concat" and self.d_position is None:
            yield "d_position (None) must say how wide the concatenated positions are"
        if self.join == "concat" and self.kind not in ("sinusoidal", "learned"):
            yield f"join ('concat') does not fit {self.kind} positions; only sinusoidal and learned can be"
        yield from at_least(self, 1, "d_position")


Input = Tokens | Patches | Grid | Vector


@dataclass(frozen=True, kw_only=True)
class Stack(Node):
    """A tower with a Transformer: an input, positions, and ``n_layers`` blocks.

    ``d_head`` defaults to d_model / n_heads, ``d_value`` to d_head, ``n_kv_heads`` to n_heads.
    ``windows`` gives each layer its radius, cycled over the layers, 0 for dense: GPT-3 alternates
    ``(0, 128)``. ``final_norm`` defaults to what the order of the norms needs. ``init_std`` None
    is Xavier's uniform (Vaswani); a number is a normal, with the residual projections of a pre-norm
    stack divided by sqrt(2 n_layers) (GPT-2).
    """

    is_default: ClassVar[bool] = True
    kind: Literal["transformer"] = "transformer"
    input: Input
    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    max_len: int | None = None
    positions: Positions = Positions()
    n_kv_heads: int | None = None
    d_head: int | None = None
    d_value: int | None = None
    causal: bool = False
    windows: tuple[int, ...] = ()
    score: Score = "scaled_dot"
    qk_norm: bool = False
    bias: bool = True
    activation: Activation = "relu"
    norm: Literal["layer", "rms"] = "layer"
    norm_eps: float = 1e-5
    norm_order: Literal["pre", "post"] = "post"
    embed_norm: bool = False
    final_norm: bool | None = None
    dropout: float = 0.0
    attn_dropout: float = 0.0
    mlp_dropout: float = 0.0
    embed_dropout: float = 0.0
    init_std: float | None = None

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
        if self.positions.kind == "rotary":
            if self.n_heads > 0 and self.head_widths[0] % 2:
                yield f"d_head ({self.head_widths[0]}) must be even for rotary positions"
            if self.score not in ("dot", "scaled_dot"):
                yield f"score ({self.score!r}) must be 'dot' or 'scaled_dot' for rotary positions"


@dataclass(frozen=True, kw_only=True)
class Recurrent(Node):
    """A tower with a GRU or LSTM: Bahdanau's, Xu's, ELMo's.

    As a decoder over a memory it attends with ``score`` from its previous state to the raw memory
    (context attention); with score None it only starts from the memory's summary, the thought vector.
    ``d_project`` is the LSTM's output projection, ``residual`` adds a layer's input to its
    output from the second on, as in ELMo.
    """

    kind: Literal["recurrent"] = "recurrent"
    input: Tokens
    d_input: int
    d_hidden: int
    n_layers: int = 1
    cell: Literal["gru", "lstm"] = "gru"
    bidirectional: bool = False
    d_project: int | None = None
    residual: bool = False
    score: Score | None = None
    d_attention: int | None = None
    dropout: float = 0.0
    embed_dropout: float = 0.0

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
    """A score for every token at every position. ``transform`` is BERT's dense layer, activation and
    norm before it; a bidirectional language model scores each direction (logits (B, T, 2, V))."""

    kind: Literal["vocabulary"] = "vocabulary"
    tied: bool = True
    bias: bool = False
    transform: bool = False


@dataclass(frozen=True, kw_only=True)
class Labels(Node):
    """A label for every position. ``mix`` learns a weighted sum of all layers first (ELMo)."""

    kind: Literal["labels"] = "labels"
    n_labels: int
    dropout: float = 0.0
    mix: bool = False

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "n_labels")
        yield from fractions(self, "dropout")


@dataclass(frozen=True, kw_only=True)
class Pooled(Node):
    """One label for the whole sequence, from the class token, the end token or the mean.

    ``dense`` puts BERT's tanh layer before it; with no labels the pooled vector itself comes out.
    """

    kind: Literal["pooled"] = "pooled"
    n_labels: int = 0
    pool: Literal["class", "end", "mean"] = "class"
    dense: bool = False
    dropout: float = 0.0
    mix: bool = False

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 0, "n_labels")
        yield from fractions(self, "dropout")


@dataclass(frozen=True, kw_only=True)
class Contrastive(Node):
    """Two pooled vectors in one space, unit length, compared at a learned temperature (CLIP)."""

    kind: Literal["contrastive"] = "contrastive"
    d_embed: int
    pool: Literal["class", "end", "mean"] = "class"
    text_pool: Literal["class", "end", "mean"] = "end"
    temperature: float = 0.07

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "d_embed")
        if self.temperature <= 0:
            yield f"temperature ({self.temperature}) must be above 0; CLIP starts at 0.07"


Head = Vocabulary | Labels | Pooled | Contrastive


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Node):
    """A whole model: which towers, and what they predict.

    ``share_embeddings`` makes one token table serve encoder and decoder; ``pair_head`` is BERT's
    second head, over the pooled sentence pair: ``model.pair_head(encoded.hidden, encoded.layout)``.

    >>> from regard import presets
    >>> presets.gpt2().decoder.n_layers
    12
    """

    encoder: Tower | None = None
    decoder: Tower | None = None
    text: Stack | None = None
    head: Head
    pair_head: Pooled | None = None
    share_embeddings: bool = False

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
