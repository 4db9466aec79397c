"""A model walked through piece by piece: each says what it has (parameters), does (matrix products, forward and back)
and keeps (bytes that wait for the backward pass). What a training takes is sums over them (:mod:`regard.train.plan`).

Nothing is built and nothing imports torch. FLOPs are those of matrix products and convolutions, a multiplication and an
addition counted as two; that is what torch's own counter counts, and tests hold the two together. What is kept is what
autograd and torch.compile's partitioner keep on a GPU with fused attention. Only estimated: what recurrent towers and
convolutions keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from regard import config as c
from regard.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one device works on at a time, and how."""

    rows: int
    """Examples."""
    length: int
    """Tokens of each, on each side that has tokens."""
    half: bool = True
    """Products in bfloat16 (autocast), and with them the residual stream."""
    compiled: bool = True
    """With torch.compile."""
    padded: bool = False
    """Rows have lengths, as they do unless they are packed."""
    scored: float = 1.0
    """Share of the positions that the vocabulary is scored at: masked tokens are few."""

    @property
    def width(self) -> int:
        """Bytes of a number in a product."""
        return 2 if self.half else 4


class Piece(NamedTuple):
    """What one part of a model has, does and keeps, over the whole load."""

    part: str
    parameters: int = 0
    forward: int = 0
    """FLOPs."""
    backward: int = 0
    """FLOPs."""
    again: int = 0
    """FLOPs of scores that fused attention forms once more on its way back, rather than keep them."""
    kept: int = 0
    """Bytes that wait for the backward pass."""
    copied: int = 0
    """Weights that autocast copies to bfloat16."""

    @property
    def training(self) -> int:
        """FLOPs forward and backward."""
        return self.forward + self.backward

    def times(self, n: int) -> Piece:
        return Piece(self.part, *(n * number for number in self[1:]))


def total(pieces: Iterable[Piece], part: str | None = None) -> Piece:
    """The sum of all pieces, or of those of one part.

    >>> total([Piece("a", 2, 3), Piece("b", 5, 7)]).parameters
    7
    """
    chosen = [piece for piece in pieces if part in (None, piece.part)]
    columns = zip(*(piece[1:] for piece in [Piece(""), *chosen]), strict=True)
    return Piece(part or "together", *map(sum, columns))


# ---------------------------------------------------------------------------------------
# B rows, n = B x T positions; other letters as everywhere (CONTRIBUTING.md).


def linear(
    load: Load,
    part: str,
    n: int,
    d_in: int,
    d_out: int,
    bias: bool = True,
    *,
    keeps_input: bool = True,
    lowest: bool = False,
) -> Piece:
    """``x @ W + b`` at n positions. The gradient of W needs x; that of x needs W, unless x is what the user gave."""
    product = 2 * n * d_in * d_out
    return Piece(
        part,
        parameters=d_in * d_out + bias * d_out,
        forward=product,
        backward=product if lowest else 2 * product,
        kept=n * d_in * load.width * keeps_input,
        copied=d_in * d_out,
    )


def norm(tower: c.Stack, load: Load, n: int) -> Piece:
    """A norm keeps what comes in, and a mean and a deviation a position. What goes out, the next product keeps."""
    # Uncompiled, autocast norms in float32, and it is that copy of the input which is kept.
    width = load.width if load.compiled else 4
    per_position = tower.d_model * width + 8
    return Piece("norms", parameters=tower.d_model * (2 if tower.norm == "layer" else 1), kept=n * per_position)


def dropped(load: Load, n: int, d: int, share: float) -> Piece:
    """Dropout keeps which numbers it let through, a byte each."""
    return Piece("dropout", kept=n * d if share else 0)


def attention(tower: c.Stack, load: Load, t: int, s: int, d_memory: int | None = None) -> Iterator[Piece]:
    """Projections, scores and weighted sum; over a memory where there is one."""
    n, m, w = load.rows * t, load.rows * s, load.width
    h, g = tower.n_heads, tower.n_kv_heads or tower.n_heads
    d, e = tower.head_widths
    q, k, v = h * d, g * d, g * e
    if d_memory is None:
        yield linear(load, "projections", n, tower.d_model, q + k + v, tower.bias)
    else:
        yield linear(load, "projections", n, tower.d_model, q, tower.bias)
        # The memory is one tensor for all layers: kept once, by the tower.
        yield linear(load, "projections", m, d_memory, k + v, tower.bias, keeps_input=False)
    # A row that might be all padding has its output set to zero: a second copy of it, which the product below keeps.
    # Not where order alone decides: what stands behind a row's end is in no token's past.
    by_order = tower.causal and d_memory is None and tower.positions.kind != "alibi" and not any(tower.windows)
    blanked = load.padded and not by_order
    yield linear(load, "projections", n, h * e, tower.d_model, tower.bias, keeps_input=blanked)
    yield from scores(load, t, s, h, g, d, d, e, tower.score, d)
    prepared = tower.qk_norm or tower.score in ("bilinear", "additive")
    if prepared or (tower.positions.kind == "rotary" and d_memory is None and not load.compiled):
        # Queries and keys before and after: the values keep the one product alive that all three come from.
        yield Piece("projections", kept=(n * q + m * k) * w)
    if tower.qk_norm:
        yield Piece("norms", parameters=2 * d, kept=(n * h + m * g) * 4)


def scores(
    load: Load, t: int, s: int, h: int, g: int, d: int, d_key: int, e: int, score: str, a: int
) -> Iterator[Piece]:
    """Every query against every key, and the weighted sum of the values, e wide. Causal or not, windowed
    or not: all pairs are counted, as in published figures that count attention at all."""
    n, m, w = load.rows * t, load.rows * s, load.width
    pairs = load.rows * h * t * s
    # Queries, keys, values and output, and a float32 for the sum of each row's weights.
    kept = (n * h * (d + e) + m * g * (d_key + e)) * w + n * h * 4
    if score == "additive":
        # A hidden vector a pair, and the weights: nothing is fused. Uncompiled, in float32 and again for the product.
        hidden = w if load.compiled else 4 + w * load.half
        yield prepared(load, n, h, d, a)
        yield prepared(load, m, g, d_key, a)
        product = 2 * pairs * (a + e)
        yield Piece("attention scores", h * a, product, 2 * product, kept=kept + pairs * (hidden * a + 4 + w))
        return
    if score == "bilinear":
        yield prepared(load, n, h, d, d_key)
    product = 2 * pairs * (d_key + e)
    yield Piece("attention scores", forward=product, backward=2 * product, again=2 * pairs * d_key, kept=kept)


def prepared(load: Load, n: int, heads: int, d_in: int, d_out: int) -> Piece:
    """Each head's own product before bilinear and additive scores."""
    return linear(load, "attention scores", n * heads, d_in, d_out, bias=False, keeps_input=False)._replace(
        parameters=heads * d_in * d_out, copied=heads * d_in * d_out
    )


def feed_forward(tower: c.Stack, load: Load, n: int) -> Iterator[Piece]:
    f, w = tower.d_ff, load.width
    gated = tower.activation == "swiglu"
    yield linear(load, "feed-forward", n, tower.d_model, f * (2 if gated else 1), tower.bias)
    yield linear(load, "feed-forward", n, f, tower.d_model, tower.bias)
    # The way back through the activation needs what came in. ReLU only needs its sign, which its output shows: autograd
    # and the kernel for half precision take that from the output, the compiler keeps a byte beside it.
    match tower.activation:
        case "relu":
            kept = n * f if load.compiled and not load.half else 0
        case "swiglu":
            kept = n * f * w * (2 if load.compiled else 3)
        case "gelu_quick":
            kept = n * f * w * (1 if load.compiled else 2)
        case _:
            kept = n * f * w
    yield Piece("feed-forward", kept=kept)
    yield dropped(load, n, f, tower.mlp_dropout)


def block(tower: c.Stack, load: Load, t: int, s: int | None, d_memory: int | None) -> Iterator[Piece]:
    """Self-attention, cross-attention over s positions of a memory, feed-forward; norm and dropout with each."""
    n = load.rows * t
    yield from attention(tower, load, t, t)
    if d_memory is not None and s is not None:
        yield from attention(tower, load, t, s, d_memory)
    yield from feed_forward(tower, load, n)
    branches = 2 if d_memory is None else 3
    yield norm(tower, load, n).times(branches)
    yield dropped(load, n, tower.d_model, tower.dropout).times(branches)


def embedding(given: c.Input, load: Load, d: int) -> Iterator[Piece]:
    """From ids, pixels or a vector to vectors that are d wide."""
    match given:
        case c.Tokens():
            yield Piece("embedding", parameters=(given.vocab_size + given.n_segments) * d)
        case c.Patches():
            patches = (given.image_size // given.patch_size) ** 2
            pixels = given.channels * given.patch_size**2
            yield linear(load, "embedding", load.rows * patches, pixels, d, given.bias, lowest=True)
            yield Piece("embedding", parameters=d * (given.class_token + given.registers))
        case c.Grid():
            side, width = given.image_size, given.channels
            for i, wider in enumerate(given.widths):
                side //= 2
                n = load.rows * side**2
                for j in range(given.depth):
                    yield linear(load, "embedding", n, 9 * width, wider, keeps_input=False, lowest=i == j == 0)
                    # A convolution's output before and after its norm and ReLU.
                    yield Piece("embedding", parameters=2 * wider, kept=2 * n * wider * load.width)
                    width = wider
            yield linear(load, "embedding", load.rows * side**2, width, d)
        case c.Vector():
            yield linear(load, "embedding", load.rows, given.d_vector, given.n_slots * d, lowest=True)


def positions_of(tower: c.Tower, load: Load) -> int:
    """Positions of one row."""
    return load.length if isinstance(tower.input, c.Tokens) else tower.input.n_positions


def stack(tower: c.Stack, load: Load, memory: c.Tower | None, *, own_table: bool = True) -> Iterator[Piece]:
    """A Transformer's tower, from its input to its last norm."""
    t = positions_of(tower, load)
    n = load.rows * t
    if own_table:
        yield from embedding(tower.input, load, tower.d_input)
    if tower.positions.kind == "learned":
        joined = tower.positions.d_position if tower.positions.join == "concat" else tower.d_model
        yield Piece("embedding", parameters=tower.n_positions * (joined or 0))
    if tower.embed_norm:
        # Before the residual stream becomes bfloat16.
        yield norm(tower, replace(load, half=False), n)
    yield dropped(load, n, tower.d_model, tower.embed_dropout)
    if tower.positions.kind == "alibi" and tower.n_layers:
        # The penalties: one tensor for all layers, and for all rows where they have no lengths.
        yield Piece("attention scores", kept=(load.rows if load.padded else 1) * tower.n_heads * t * t * load.width)
    s, d_memory = (None, None) if memory is None else (positions_of(memory, load), memory.d_out)
    for piece in block(tower, load, t, s, d_memory):
        yield piece.times(tower.n_layers)
    if s is not None and d_memory is not None and tower.n_layers:
        yield Piece("projections", kept=load.rows * s * d_memory * load.width)
    ends_normed = tower.norm_order == "pre" if tower.final_norm is None else tower.final_norm
    if ends_normed and tower.n_layers:
        yield norm(tower, load, n)


def recurrent(tower: c.Recurrent, load: Load, memory: c.Tower | None, *, own_table: bool = True) -> Iterator[Piece]:
    """A GRU's or LSTM's tower. What it keeps is an estimate: gates, state and cell of every step."""
    t = positions_of(tower, load)
    n, w = load.rows * t, load.width
    if own_table:
        yield from embedding(tower.input, load, tower.d_input)
    d_in = tower.d_input
    if memory is not None:
        yield linear(load, "recurrent", load.rows, memory.d_out, tower.n_layers * tower.d_state)
    if memory is not None and tower.score is not None:
        s, d = positions_of(memory, load), memory.d_out
        yield from scores(load, t, s, 1, 1, tower.d_hidden, d, d, tower.score, tower.d_attention or tower.d_hidden)
        yield linear(load, "recurrent", n, tower.d_hidden + d + d_in, d_in)
        d_in += d
    gates = (3 if tower.cell == "gru" else 4) * tower.d_hidden
    for i in range(tower.n_layers):
        layer = [
            linear(load, "recurrent", n, tower.d_state if i else d_in, gates),
            linear(load, "recurrent", n, tower.d_state, gates),
            Piece("recurrent", kept=n * (gates + 2 * tower.d_hidden) * w),
        ]
        if tower.d_project:
            layer.append(linear(load, "recurrent", n, tower.d_hidden, tower.d_project, bias=False))
        yield from (piece.times(2 if tower.bidirectional else 1) for piece in layer)


def tower_pieces(
    tower: c.Tower, load: Load, memory: c.Tower | None = None, *, own_table: bool = True
) -> Iterator[Piece]:
    if isinstance(tower, c.Recurrent):
        return recurrent(tower, load, memory, own_table=own_table)
    return stack(tower, load, memory, own_table=own_table)


def head_pieces(config: ModelConfig, load: Load) -> Iterator[Piece]:
    head, last, d = config.head, config.last, config.d_scored
    n = load.rows * positions_of(last, load)
    match head:
        case c.Vocabulary():
            assert isinstance(last.input, c.Tokens)
            v = last.input.vocab_size
            # A bidirectional language model is asked in both directions.
            asked = round(n * load.scored) * (2 if last.d_out == 2 * d else 1)
            if head.transform:
                assert isinstance(last, c.Stack)
                yield linear(load, "vocabulary", asked, d, d)
                yield norm(last, load, asked)._replace(part="vocabulary")
                yield Piece("vocabulary", kept=asked * d * load.width)
            product = 2 * asked * d * v
            yield Piece("vocabulary", (not head.tied) * v * d + head.bias * v, product, 2 * product)
        case c.Labels():
            yield linear(load, "head", n, d, head.n_labels)
        case c.Pooled():
            yield from pooled(head, load, d)
        case c.Contrastive():
            assert config.encoder is not None
            assert config.text is not None
            for tower in (config.encoder, config.text):
                yield linear(load, "head", load.rows, tower.d_out, head.d_embed, bias=False)
            product = 2 * load.rows**2 * head.d_embed
            yield Piece("head", 1, product, 2 * product)
        case c.Codes():
            yield from coded(head, last, load, n)
    if isinstance(head, c.Labels | c.Pooled) and head.mix:
        yield Piece("head", parameters=last.n_layers + isinstance(last, c.Stack) + 1)
    if config.pair_head is not None:
        yield from pooled(config.pair_head, load, last.d_out)


def coded(head: c.Codes, tower: c.Tower, load: Load, n: int) -> Iterator[Piece]:
    """Patches to codes, and the painter above them. Distances are in float32; they move codes, and no patch."""
    assert isinstance(tower, c.Stack)
    assert isinstance(tower.input, c.Patches)
    full = replace(load, half=False)
    yield linear(full, "head", n, tower.d_model, head.d_code)
    product = 2 * n * head.d_code * head.n_codes
    yield Piece("head", head.n_codes * head.d_code, product, product, kept=n * (head.n_codes + 2 * head.d_code) * 4)
    yield linear(load, "head", n, head.d_code, tower.d_input)
    yield from stack(tower.replace(n_layers=head.n_layers), load, None, own_table=False)
    yield linear(load, "head", n, tower.d_model, tower.input.channels * tower.input.patch_size**2)


def pooled(head: c.Pooled, load: Load, d: int) -> Iterator[Piece]:
    if head.dense:
        yield linear(load, "head", load.rows, d, d)
    if head.n_labels:
        yield linear(load, "head", load.rows, d, head.n_labels)


def pieces(config: ModelConfig, load: Load) -> Iterator[Piece]:
    """The whole model, tower by tower.

    >>> from regard import presets
    >>> total(pieces(presets.gpt2(), Load(rows=1, length=1024))).parameters
    124439808
    """
    if config.encoder is not None:
        yield from tower_pieces(config.encoder, load)
    if config.decoder is not None:
        yield from tower_pieces(config.decoder, load, config.encoder, own_table=not config.share_embeddings)
    if config.text is not None:
        yield from tower_pieces(config.text, load)
    yield from head_pieces(config, load)
