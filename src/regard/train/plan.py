"""What training a model takes, worked out from its configuration alone: parameters, FLOPs, memory, days.

Nothing is built and nothing imports torch, so that GPT-3 answers as fast as a toy. A model is walked through piece by
piece (:func:`pieces`); each :class:`Piece` says what it has (parameters), does (matrix products, forward and backward)
and keeps (bytes that wait for the backward pass). Everything else is sums over pieces.

FLOPs are those of matrix products and convolutions, a multiplication and an addition counted as two; that is what
torch's own counter counts, and tests hold the two together. Memory is that of a GPU with fused attention; its formulas
are what autograd and torch.compile's partitioner keep, and ``benchmarks/plan_memory.py`` holds them against a GPU.
Numbers that are only estimated: what recurrent towers and convolutions keep, and what sharding gathers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from regard import config as c
from regard.config import MOST_LAYERS, InputError, ModelConfig
from regard.recipe import Data, Train

# What token_loss works on at a time on a GPU: regard.train.objectives has the same number, and a test holds them equal.
SCORES_AT_A_TIME = 2**28 + 2**27 + 2**24
USABLE = 0.9  # of a GPU's memory: the rest is the driver's, the libraries' and what lies between tensors
GPU_MEMORY = 80e9  # bytes: an A100 or H100
SUSTAINED = 400e12  # FLOPs a second: 40 % of what an H100 can do in bfloat16, a good figure for large models
BATCH_IMAGES = 128  # regard.data.pictures has the same number, and a test holds them equal
TEXT = 32  # tokens of a text where the length is the data's: a sentence
PETAFLOP_DAY = 1e15 * 86_400
PARTS = (
    "embedding", "projections", "attention scores", "feed-forward", "recurrent", "norms", "vocabulary", "head"
)  # fmt: skip


# ---------------------------------------------------------------------------------------
# What there is to count


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
# The pieces. B rows, n = B x T positions; other letters as everywhere (CONTRIBUTING.md).


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


# ---------------------------------------------------------------------------------------
# Memory


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, by kind. They are not all there at once: see :attr:`peak`."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    loss: float
    accumulates: bool = False

    @property
    def peak(self) -> float:
        """The most at a time. It is reached in the loss, when every activation waits; gradients come only as
        activations go, unless those of an earlier part of the batch are still there."""
        here = self.activations + self.loss
        there = here + self.gradients if self.accumulates else max(here, self.gradients)
        return self.weights + self.optimizer + there


def memory(
    config: ModelConfig,
    load: Load,
    *,
    devices: int = 1,
    averaged: bool = False,
    accumulates: bool = False,
    passes: int = 1,
    trained: int | None = None,
) -> Memory:
    """What training keeps on a device: float32 weights and gradients, AdamW's two numbers a weight (and one more for a
    moving average), what the pieces keep, and the loss. Gradients and AdamW's numbers are of the weights that are
    ``trained``, all unless told.

    Over several devices the first three are sharded (FSDP). What a block needs is then gathered, two blocks at a time,
    in the precision of the products, beside what is in no block: an estimate.

    >>> from regard import presets
    >>> round(memory(presets.gpt2(), Load(rows=8, length=1024)).peak / 1e9, 1)
    5.3
    """
    whole = total(pieces(config, load))
    n = whole.parameters
    moving = n if trained is None else trained
    if devices == 1:
        # Autocast's copies of the weights wait for the backward pass too.
        weights = 4 * n + (2 * whole.copied if load.half else 0)
    else:
        blocks = [
            (t.n_layers, block_parameters(config, t)) for t in towers(config) if isinstance(t, c.Stack) and t.n_layers
        ]
        outside = n - sum(layers * size for layers, size in blocks)
        weights = 4 * n / devices + load.width * (outside + 2 * max((size for _, size in blocks), default=0))
    return Memory(
        weights=weights,
        # Parts of a batch that add up do so before they are shared out.
        gradients=4 * moving / (1 if accumulates else devices),
        optimizer=(8 * moving + 4 * averaged * n) / devices,
        activations=passes * whole.kept,
        loss=loss_memory(config, load, passes),
        accumulates=accumulates,
    )


def trained_parameters(config: ModelConfig, train: Train) -> int | None:
    """How many weights move where a recipe trains the last layers, or LoRA beside them, and the head; None where all
    do. What is outside the blocks and the head (a final norm) is left out: an estimate.

    >>> from regard import presets
    >>> trained_parameters(presets.gpt2(), Train(steps=1, lora=8))
    1179648
    """
    if not train.lora and train.train_last is None:
        return None
    load = Load(rows=1, length=1)
    head = sum(p.parameters for p in pieces(config, load) if p.part in ("head", "vocabulary"))
    if train.lora and isinstance(config.head, c.Vocabulary):
        head = 0
    left, moving = MOST_LAYERS if train.train_last is None else train.train_last, head
    for tower in (config.decoder, config.encoder):  # from the top down
        if tower is None:
            continue
        n = min(left, tower.n_layers)
        left -= n
        if isinstance(tower, c.Stack):
            moving += n * (
                lora_parameters(config, tower, train.lora) if train.lora else block_parameters(config, tower)
            )
        else:
            whole = total(p for p in pieces(config, load) if p.part == "recurrent").parameters
            moving += whole * n // tower.n_layers
    return moving


def lora_parameters(config: ModelConfig, tower: c.Stack, rank: int) -> int:
    """Of LoRA beside one block: ``rank`` times what goes into and what comes out of each of its matrices."""
    d, (key, value) = tower.d_model, tower.head_widths
    h, g = tower.n_heads, tower.n_kv_heads or tower.n_heads
    q, kv, up = h * key, g * (key + value), tower.d_ff * (2 if tower.activation == "swiglu" else 1)
    widths = [d + q + kv, h * value + d, d + up, tower.d_ff + d]
    if tower is config.decoder and config.encoder is not None:
        widths += [d + q, config.encoder.d_out + kv, h * value + d]
    return rank * sum(widths)


def loss_memory(config: ModelConfig, load: Load, passes: int = 1) -> float:
    """What the loss, or else the first block on the way back, holds on top of everything that is kept."""
    last = config.last
    n, w = load.rows * positions_of(last, load), load.width
    d, f = (last.d_model, last.d_ff) if isinstance(last, c.Stack) else (last.d_out, 0)
    # Of the last feed-forward: the gradients of its inside, before and after the activation, and of what goes through.
    way_back = n * (2 * f + 2 * d) * w
    if not isinstance(config.head, c.Vocabulary):
        return way_back
    assert isinstance(last.input, c.Tokens)
    v, d = -(-last.input.vocab_size // 64) * 64, config.d_scored  # a GPU wants rows that are a multiple of 64 wide
    asked = round(n * load.scored) * (2 if last.d_out == 2 * d else 1)
    if passes > 1:
        # R-Drop holds all scores of both passes: as products, in float32, and as two logarithms of shares.
        return max(way_back, passes * asked * v * (w + 12))
    most = max(1, SCORES_AT_A_TIME // last.input.vocab_size)
    pieces = max(1, -(-asked // most))
    at_once = min(most, -(-asked // (64 * pieces)) * 64)
    if load.half and not config.head.bias:
        in_chunk = at_once * v * w  # a chunk's scores, whose place their gradient takes
    elif load.compiled:
        in_chunk = at_once * v * 2 * w  # both
    else:
        # Scores in float32 and, for their sum, as much again; or what the chunk before has left (in bfloat16 scores and
        # gradient, in float32 both are one) while the next is made.
        following, left, made = max(0, min(at_once, asked - at_once)), (6 if load.half else 4), (6 if load.half else 8)
        in_chunk = v * max(8 * at_once, left * at_once + made * following)
    gradients = asked * d * w + v * d * 4  # of the vectors and of the table, taken at once
    return gradients + max(way_back, in_chunk + asked * d * w + v * d * w)


def towers(config: ModelConfig) -> list[c.Tower]:
    return [tower for tower in (config.encoder, config.decoder, config.text) if tower is not None]


def block_parameters(config: ModelConfig, tower: c.Stack) -> int:
    """Of one block."""
    d_memory = config.encoder.d_out if tower is config.decoder and config.encoder is not None else None
    return total(block(tower, Load(rows=1, length=1), 1, 1, d_memory)).parameters


# ---------------------------------------------------------------------------------------
# The plan


@dataclass(frozen=True)
class Site:
    """One GPU, or one of several that share the weights out, by the precision of its products."""

    gpus: int
    rows: int
    memory: dict[str, Memory]
    most_tokens: dict[str, int]  # the largest micro-batch that fits


@dataclass(frozen=True)
class Plan:
    """What training takes: a page for people (rich prints it) or plain values (``to_dict``)."""

    config: ModelConfig
    load: Load  # a micro-batch on one GPU
    row_tokens: int  # positions of a row, on the longer side: what FLOPs and batches are counted in
    passes: int  # of each micro-batch: R-Drop has two
    parts: tuple[Piece, ...]
    sites: tuple[Site, ...]
    gpu_memory: float
    tokens: float | None
    flops: float  # a second and GPU
    images: bool = False  # whether a row is an image, and its tokens are positions in it

    @property
    def whole(self) -> Piece:
        return total(self.parts)

    def per_token(self, flops: float) -> float:
        """A micro-batch's FLOPs by its tokens."""
        return self.passes * flops / (self.load.rows * self.row_tokens)

    @property
    def budget(self) -> float | None:
        """FLOPs of the whole training; what fused attention forms again is not among them, as is the custom."""
        return None if self.tokens is None else self.tokens * self.per_token(self.whole.training)

    @property
    def rule_of_thumb(self) -> float | None:
        """FLOPs by the GPT-3 paper's rule, six a parameter and token, which leaves attention's scores out. It holds
        where every parameter meets every token."""
        over_tokens = all(isinstance(tower.input, c.Tokens) for tower in towers(self.config))
        return 6 * self.whole.parameters * self.tokens if self.tokens and over_tokens else None

    def days(self, gpus: int) -> float | None:
        """At the sustained rate, if nothing is lost between GPUs."""
        return None if self.budget is None else self.budget / (self.flops * gpus * 86_400)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON.

        >>> from regard import presets
        >>> plan(presets.gpt2(), tokens=300e9).to_dict()["parts"]["vocabulary"]["forward"]
        77194752.0
        """
        return {
            "shape": self.config.shape,
            "parameters": self.whole.parameters,
            "row_tokens": self.row_tokens,
            "parts": {
                piece.part: {
                    "parameters": piece.parameters,
                    "forward": self.per_token(piece.forward),
                    "training": self.per_token(piece.training),
                }
                for piece in (*self.parts, self.whole)
            },
            "formed_again": self.per_token(self.whole.again),
            "memory": [
                {
                    "gpus": site.gpus,
                    "rows": site.rows,
                    **{
                        precision: {**asdict(kinds), "peak": kinds.peak, "most_tokens": site.most_tokens[precision]}
                        for precision, kinds in site.memory.items()
                    },
                }
                for site in self.sites
            ],
            "gpu_memory": self.gpu_memory,
            "usable": USABLE,
            "tokens": self.tokens,
            **({"images": self.tokens and self.tokens / self.row_tokens} if self.images else {}),
            "flops": self.budget,
            "flops_by_rule_of_thumb": self.rule_of_thumb,
            "flops_per_second": self.flops,
            "days": [{"gpus": site.gpus, "days": self.days(site.gpus)} for site in self.sites],
        }

    def __rich__(self) -> Group:
        return Group(*_page(self))


def plan(
    config: ModelConfig,
    train: Train | None = None,
    data: Data | None = None,
    *,
    gpus: int = 1,
    gpu_memory: float = GPU_MEMORY,
    tokens: float | None = None,
    steps: bool = False,
    flops: float = SUSTAINED,
) -> Plan:
    """What it takes to train a model as a recipe says, on one GPU and on several that share the weights out (FSDP).
    For how many ``tokens``, or with ``steps`` for as many updates as the recipe says.

    >>> from regard import presets
    >>> gpt3 = plan(presets.gpt3(), tokens=300e9)
    >>> round(gpt3.rule_of_thumb / PETAFLOP_DAY)  # the paper's Table D.1 has 3,640
    3638
    """
    for name, value in (("gpus", gpus), ("gpu_memory", gpu_memory), ("tokens", tokens), ("flops", flops)):
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{name} ({value:g}) must be above 0")
    train = train or Train(steps=1)
    length = _length(config, train, data)
    row_tokens = max(positions_of(tower, Load(rows=1, length=length)) for tower in towers(config))
    images = data is not None and data.images is not None
    streams = data is None or data.task in ("generate", "fill") or images
    budget = (train.batch_images or BATCH_IMAGES) * row_tokens if images else train.batch_tokens
    load = Load(
        rows=_rows(train, budget, row_tokens, 1),
        length=length,
        compiled=train.compile is not False,
        padded=not streams and not train.packed,
        scored=train.mask_share if data is not None and data.task == "fill" else 1.0,
    )
    passes = 2 if train.r_drop else 1
    how = {
        "averaged": train.ema > 0,
        "accumulates": train.micro_batches > 1,
        "passes": passes,
        "trained": trained_parameters(config, train),
    }

    def site(n: int) -> Site:
        rows, kinds, most = _rows(train, budget, row_tokens, n), {}, {}
        for precision, half in (("float32", False), ("bfloat16", True)):
            here = replace(load, rows=rows, half=half)
            kinds[precision] = memory(config, here, devices=n, **how)
            most[precision] = row_tokens * _most_rows(config, here, USABLE * gpu_memory, devices=n, **how)
        return Site(gpus=n, rows=rows, memory=kinds, most_tokens=most)

    every = list(pieces(config, load))
    return Plan(
        config=config,
        load=load,
        row_tokens=row_tokens,
        passes=passes,
        parts=tuple(p for p in (total(every, part) for part in PARTS) if p.parameters or p.forward),
        sites=tuple(site(n) for n in dict.fromkeys((1, gpus))),
        gpu_memory=gpu_memory,
        tokens=budget * float(train.steps) if tokens is None and steps else tokens,
        flops=flops,
        images=images,
    )


def _length(config: ModelConfig, train: Train, data: Data | None) -> int:
    """Tokens that attend to each other: a packed row's, or a text's."""
    limit = min([t.max_len for t in towers(config) if isinstance(t, c.Stack) and t.max_len], default=None)
    if data is not None and data.task == "draw":  # a text and as many codes as a painter has, which only the data knows
        length = limit or data.max_tokens
    elif data is not None and data.task not in ("generate", "fill"):
        length = min(TEXT, data.max_tokens)
    else:
        length = train.row_tokens or (TEXT if config.shape == "encoder-decoder" else limit or 256)
    return length if limit is None else min(length, limit)


def _rows(train: Train, budget: int, row_tokens: int, gpus: int) -> int:
    """Of a micro-batch on one GPU; a recipe's batch is all GPUs' together."""
    return max(1, budget // (train.micro_batches * gpus * row_tokens))


def _most_rows(config: ModelConfig, load: Load, limit: float, **how: Any) -> int:
    """The most rows whose peak is within the limit; 0 where not even one is."""

    def fits(rows: int) -> bool:
        return memory(config, replace(load, rows=rows), **how).peak <= limit

    most, step = 0, 1
    while fits(most + step):
        most, step = most + step, 2 * step
    while step := step // 2:
        most += step * fits(most + step)
    return most


# ---------------------------------------------------------------------------------------
# The page


def _page(plan: Plan) -> Iterator[RenderableType]:
    layers = " + ".join(str(tower.n_layers) for tower in towers(plan.config))
    yield Text(f"{plan.config.shape}, {layers} layers, {plan.whole.parameters:,} parameters", style="bold")

    yield Text(f"\nFLOPs a token ({_token(plan)}), rows of {plan.row_tokens:,}", style="bold")
    table = _table("", "parameters", "forward", "training")
    for piece in (*plan.parts, plan.whole):
        flops = [_scaled(plan.per_token(n)) if n else "-" for n in (piece.forward, piece.training)]
        table.add_row(piece.part, f"{piece.parameters:,}" if piece.parameters else "-", *flops)
    yield table
    if plan.whole.again:
        again = _scaled(plan.per_token(plan.whole.again))
        yield Text(f"Fused attention forms its scores again on the way back: {again}, not counted.", style="dim")

    yield Text("\nMemory" if plan.load.compiled else "\nMemory, not compiled", style="bold")
    columns = [(site, precision) for site in plan.sites for precision in site.memory]
    table = _table("", *(f"{site.gpus:,} GPU{'s, each' if site.gpus > 1 else ''}" for site, _ in columns))
    table.add_row("products in", *(precision for _, precision in columns))
    unit, each = ("images", plan.row_tokens) if plan.images else ("tokens", 1)
    table.add_row(unit, *(f"{site.rows:,} x {plan.row_tokens:,}" for site, _ in columns))
    for kind in ("weights", "gradients", "optimizer", "activations", "loss", "peak"):
        table.add_row(kind, *(_gigabytes(getattr(site.memory[p], kind)) for site, p in columns))
    most = (site.most_tokens[p] // each for site, p in columns)
    table.add_row(f"most {unit}", *(f"{n:,}" if n else "none" for n in most))
    yield table
    accumulates = next(iter(plan.sites[0].memory.values())).accumulates
    peak = "The peak is the sum." if accumulates else "Gradients come as activations go: the peak is below the sum."
    yield Text(f"{peak}\nMost {unit}: what fits into {USABLE:.0%} of {_gigabytes(plan.gpu_memory)}.", style="dim")
    if len(plan.sites) > 1:
        yield Text("Weights that are shared out, with the two blocks that are gathered: an estimate.", style="dim")
    if not all(isinstance(tower, c.Stack) and not isinstance(tower.input, c.Grid) for tower in towers(plan.config)):
        yield Text("Activations of recurrent layers and convolutions: an estimate.", style="dim")

    if plan.tokens is None or plan.budget is None:
        yield Text("\nTime: say for how many tokens (--tokens 300e9).")
        return
    rate = f"{_scaled(plan.flops)}FLOP/s a GPU (assumed; --flops)"
    yield Text(f"\nTime for {plan.tokens / each:,.0f} {unit}, {rate}", style="bold")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_row("FLOPs", _work(plan.budget))
    if plan.rule_of_thumb is not None:
        table.add_row("by 6 x parameters x tokens", _work(plan.rule_of_thumb))
    for site in plan.sites:
        table.add_row(f"{site.gpus:,} GPU{'s' if site.gpus > 1 else ''}", _days(plan.days(site.gpus) or 0))
    yield table


def _token(plan: Plan) -> str:
    """What counts as one."""
    if len(towers(plan.config)) == 1:
        return "one position"
    if all(isinstance(tower.input, c.Tokens) for tower in towers(plan.config)):
        return "one read, one written"
    return "one position of the longer side"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, justify="right" if table.columns else "left", no_wrap=True)
    return table


def _scaled(number: float) -> str:
    """Three digits and a unit.

    >>> _scaled(1_234_567), _scaled(99_960_000_000)
    ('1.23 M', '100 G')
    """
    power = 0
    while number >= 999.5 and power < 7:
        number, power = number / 1000, power + 1
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:,.{decimals}f} {' kMGTPEZ'[power].strip()}"


def _gigabytes(number: float) -> str:
    return f"{number / 1e9:,.{2 if number < 99.995e9 else 0}f} GB"


def _work(flops: float) -> str:
    days = flops / PETAFLOP_DAY
    return f"{flops:.3g} = {f'{days:,.0f}' if days >= 100 else f'{days:.3g}'} petaflop/s-days"


def _days(days: float) -> str:
    for size, unit in ((1, "days"), (24, "hours"), (24 * 60, "minutes")):
        if days * size >= 1.95:
            return f"{days * size:,.1f} {unit}"
    return f"{days * 86_400:,.1f} seconds"
