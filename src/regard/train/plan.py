"""What training a model takes, worked out from its configuration alone: parameters, FLOPs, memory, days.

Nothing is built and nothing imports torch: GPT-3 answers as fast as a toy. It is sums over the pieces of a model
(:mod:`regard.train.pieces`). Memory is that of a GPU with fused attention, and ``benchmarks/plan_memory.py`` holds it
against one. What sharding gathers is only estimated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from regard import config as c
from regard.config import InputError, ModelConfig
from regard.recipe import Data, Train
from regard.train.pieces import Load, Piece, block, head_pieces, pieces, positions_of, total

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
    by_muon: int = 0,
) -> Memory:
    """What training keeps on a device: float32 weights and gradients, AdamW's two numbers a weight, or Muon's one (and
    one more for a moving average), what the pieces keep, and the loss. Gradients and those numbers are of the weights
    that are ``trained``, all unless told, ``by_muon`` some of them.

    Over several devices the first three are sharded (FSDP). What a block needs is then gathered, two blocks at a time,
    in the precision of the products, beside what is in no block: an estimate.

    >>> from regard import presets
    >>> round(memory(presets.gpt2(), Load(rows=8, length=1024)).peak / 1e9, 1)
    6.2
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
        optimizer=(8 * moving - 4 * by_muon + 4 * averaged * n) / devices,
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
    frozen = train.lora and isinstance(config.head, c.Vocabulary)
    moving = 0 if frozen else total(head_pieces(config, load)).parameters
    for tower, n in trained_layers(config, train):
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
    return rank * sum(comes + goes for comes, goes in block_matrices(config, tower))


def muon_parameters(config: ModelConfig, train: Train) -> int:
    """How many weights are moved by Muon: the matrices of the blocks that are trained.

    >>> from regard import presets
    >>> muon_parameters(presets.gpt2(), Train(steps=1, optimizer="muon"))
    84934656
    """
    if train.optimizer != "muon":
        return 0
    moving = 0
    for tower, n in trained_layers(config, train):
        if isinstance(tower, c.Stack):
            painted = config.head.n_layers if isinstance(config.head, c.Codes) else 0  # by as many blocks of the kind
            moving += (n + painted) * sum(a * b for a, b in block_matrices(config, tower))
    return moving


def trained_layers(config: ModelConfig, train: Train) -> Iterator[tuple[c.Tower, int]]:
    """Each tower with how many of its last layers are trained. An encoder's are below its decoder's; two encoders stand
    beside each other.

    >>> from regard import presets
    >>> [n for _, n in trained_layers(presets.clip_b32(), Train(steps=1, train_last=2))]
    [2, 2]
    """
    for tower in (config.decoder, config.encoder, config.text):
        if tower is not None:
            above = config.decoder.n_layers if tower is config.encoder and config.decoder is not None else 0
            last = tower.n_layers if train.train_last is None else train.train_last - above
            yield tower, min(max(last, 0), tower.n_layers)


def block_matrices(config: ModelConfig, tower: c.Stack) -> list[tuple[int, int]]:
    """The widths of what goes into each matrix of a block, and of what comes out."""
    d, (key, value) = tower.d_model, tower.head_widths
    h, g = tower.n_heads, tower.n_kv_heads or tower.n_heads
    q, kv, up = h * key, g * (key + value), tower.d_ff * (2 if tower.activation == "swiglu" else 1)
    found = [(d, q + kv), (h * value, d), (d, up), (tower.d_ff, d)]
    if tower is config.decoder and config.encoder is not None:
        found += [(d, q), (config.encoder.d_out, kv), (h * value, d)]
    return found


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
    most = max(1, SCORES_AT_A_TIME // last.input.vocab_size)
    pieces = max(1, -(-asked // most))
    at_once = min(most, -(-asked // (64 * pieces)) * 64)
    if passes > 1:
        # R-Drop has a chunk's scores of both passes and their gradients; not compiled, some ten tables in float32.
        in_chunk = at_once * v * (2 * passes * w if load.compiled else 40)
    elif load.half and not config.head.bias and not load.compiled:
        in_chunk = at_once * v * w  # a chunk's scores, whose place their gradient takes
    elif load.compiled:
        in_chunk = at_once * v * 2 * w  # both; where one takes the other's place, as much is held by something else
    else:
        # Scores in float32 and, for their sum, as much again; or what the chunk before has left (in bfloat16 scores and
        # gradient, in float32 both are one) while the next is made.
        following, left, made = max(0, min(at_once, asked - at_once)), (6 if load.half else 4), (6 if load.half else 8)
        in_chunk = v * max(8 * at_once, left * at_once + made * following)
    gradients = passes * asked * d * w + v * d * 4  # of the vectors and of the table, taken at once
    return gradients + max(way_back, in_chunk + passes * asked * d * w + v * d * w)


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
    assumed: tuple[str, ...] = ()  # of the model, for only the data says

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
            "assumed": list(self.assumed),
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
    assumed: tuple[str, ...] = (),
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
        "by_muon": muon_parameters(config, train),
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
        assumed=assumed,
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
    if plan.assumed:
        yield Text(f"Assumed, for only the data says: {' and '.join(plan.assumed)}.", style="dim")

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
    told = _megabytes if max(site.memory[p].peak for site, p in columns) < 1e9 else _gigabytes
    for kind in ("weights", "gradients", "optimizer", "activations", "loss", "peak"):
        table.add_row(kind, *(told(getattr(site.memory[p], kind)) for site, p in columns))
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


def _megabytes(number: float) -> str:
    return f"{number / 1e6:,.1f} MB"


def _work(flops: float) -> str:
    days = flops / PETAFLOP_DAY
    return f"{flops:.3g} = {f'{days:,.0f}' if days >= 100 else f'{days:.3g}'} petaflop/s-days"


def _days(days: float) -> str:
    for size, unit in ((1, "days"), (24, "hours"), (24 * 60, "minutes")):
        if days * size >= 1.95:
            return f"{days * size:,.1f} {unit}"
    return f"{days * 86_400:,.1f} seconds" if days * 86_400 >= 0.95 else "less than a second"
