"""The model: embed, encoder?, decoder?, head. Which of them are there decides what it is.

    encode(inputs)              -> Encoded     BERT, ViT, the source side of a translator
    decode(ids, memory, cache)  -> Decoded     GPT; with a memory, the target side
    forward(...)                -> logits      what a loss is computed from

Inputs are tensors and a :class:`~regard.nn.masks.Layout` that says where the real tokens are. Decoding step by step is
``start`` and then ``decode`` with the cache it returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import config as c
from regard.config import ConfigError, InputError, ModelConfig, suggest
from regard.nn.attention import Attended, Attention
from regard.nn.blocks import Block, Stack
from regard.nn.cache import Cache
from regard.nn.codes import CodesHead
from regard.nn.dropout import dropout
from regard.nn.embed import PatchEmbed, TokenEmbed, make_embed
from regard.nn.heads import ContrastiveHead, LabelsHead, Mix, Pair, PooledHead, VocabularyHead
from regard.nn.linear import autocast_dtype
from regard.nn.masks import Layout, Lowered, Mask, as_layout, cross_mask, lower_memory, self_mask
from regard.nn.norms import make_norm
from regard.nn.outputs import Decoded, Encoded
from regard.nn.positions import Alibi, Learned, Rotary, joined_positions
from regard.nn.recurrent import RecurrentCache, RecurrentTower


class Tower(nn.Module):
    """An input, its positions, and a stack of blocks."""

    def __init__(self, config: c.Stack, d_memory: int | None = None, *, own_embed: bool = True):
        super().__init__()
        self.config = config
        d_head, _ = config.head_widths
        self.embed = make_embed(config.input, config.d_input) if own_embed else None
        side = getattr(config.input, "side", None)
        self.positions = joined_positions(config.positions, config.n_positions, config.d_model, side)
        self.rotary = None
        if config.positions.kind == "rotary":
            self.rotary = Rotary(config.n_positions, d_head, config.positions.base, config.positions.layout)
        self.alibi = Alibi(config.n_heads) if config.positions.kind == "alibi" else None
        self.embed_norm = make_norm(config) if config.embed_norm else None
        self.stack = Stack(config, d_memory)
        self.has_memory = d_memory is not None

    def attention_layers(self) -> list[str]:
        kinds = ("self", "cross") if self.has_memory else ("self",)
        return [f"{i}.{kind}" for i in range(self.config.n_layers) for kind in kinds]

    def check(self, inputs: Tensor, layout: Layout) -> None:
        """Refuse, before anything runs, what would fail or go silently wrong inside."""
        t = inputs.shape[1] if isinstance(self.config.input, c.Tokens) else self.config.n_positions
        limit = self.config.position_limit
        layout.check(inputs.shape[0], t, limit, self.config.n_heads)
        if limit is not None and layout.positions is None and t > limit:
            raise InputError(
                f"{t} tokens are more than the {limit} positions of this model; shorten the input or raise max_len"
            )

    def start(self, batch_size: int, max_len: int, memory: Encoded | None, dtype: torch.dtype, lanes: int) -> Cache:
        """An empty cache of max_len tokens a row and lane, with the memory's keys and values already in it."""
        config = self.config
        check_room(config, max_len)
        d_head, d_value = config.head_widths
        cross, mask = [], Lowered()
        if memory is not None:
            if memory.layout.documents is not None:
                raise InputError("documents: a cache remembers one text a row; decode packed texts without one")
            cross = [cast(Block, block).remember(memory.hidden, dtype) for block in self.stack.blocks]
            layout = Layout(lengths=memory.layout.lengths, starts=memory.layout.starts)
            mask = lower_memory(layout, memory.hidden)
        return Cache(
            config.n_layers,
            batch_size,
            max_len,
            lanes=lanes,
            n_heads=config.n_kv_heads or config.n_heads,
            d_head=d_head,
            d_value=d_value,
            device=next(self.parameters()).device,
            dtype=dtype,
            cross=cross,
            memory_mask=mask,
        )

    def embedded(
        self,
        inputs: Tensor,
        layout: Layout,
        *,
        embed: Callable[..., Tensor] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
        cache: Cache | None = None,
        slots: Int[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T C"], Int[Tensor, "rows T"]]:
        """What the stack reads: inputs as vectors with their positions, and these. ``slots`` are theirs in a cache."""
        config = self.config
        table = self.embed if embed is None else embed
        assert table is not None, "a tower without a table of its own is given one"
        x = table(inputs, segments)
        if layout.positions is not None and layout.documents is None and config.positions.kind == "alibi":
            raise InputError("positions: ALiBi counts how far tokens stand apart as they are; leave them out")
        if cache is None or slots is None or layout.positions is not None:
            positions = layout.position_ids(x.shape[1], x.device)
        else:
            positions = slots // cache.lanes if cache.lanes > 1 else slots
            if x.shape[1] > 1:  # what fills up a row may stand behind the last of them
                positions = positions.clamp_max(cache.max_len - 1)
        if self.positions is not None:
            where = self.positions(positions).to(x.dtype)
            if config.positions.join == "add":
                x = x + where
            else:
                x = torch.cat([x, where.expand(x.shape[0], -1, -1)], dim=-1)
        x = x if self.embed_norm is None else self.embed_norm(x)
        x = dropout(x, config.embed_dropout, self.training)
        if autocast_dtype(x) == torch.bfloat16:
            # The residual stream is carried in bfloat16: half the traffic between the products. float16 could overflow.
            x = x.to(torch.bfloat16)
        return x, positions

    def forward(
        self,
        inputs: Tensor,
        layout: Layout,
        *,
        embed: Callable[..., Tensor] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
        cache: Cache | None = None,
        memory: Encoded | None = None,
        capture: Collection[str] = (),
        collect: list[Tensor] | None = None,
        stop: bool = False,
    ) -> tuple[Float[Tensor, "B T C"], dict[str, Attended]]:
        """The stack over embedded inputs. ``embed`` is another tower's table where the two share one, or
        whatever else makes vectors of what is given."""
        config = self.config
        slots = None if cache is None else cache.slots(inputs.shape[1])
        x, positions = self.embedded(inputs, layout, embed=embed, segments=segments, cache=cache, slots=slots)
        if collect is not None:
            collect.append(x)
        slopes = None if self.alibi is None else self.alibi.slopes
        if cache is not None:
            # The cache knows what is real; beside that only a prefix counts.
            assert slots is not None
            seen = cache.visible(slots, cache.span(x.shape[1]))
            places = {"slots": slots, "lanes": cache.lanes, "seen": seen}
            mask = self_mask(Layout(prefix=layout.prefix), causal=config.causal, slopes=slopes, **places)
            memory_mask = cache.memory_mask
        else:
            mask = self_mask(layout, causal=config.causal, slopes=slopes)
            memory_mask = Mask() if memory is None else cross_mask(memory.layout, layout)
        out = self.stack(
            x,
            mask=mask,
            rotation=None if self.rotary is None else self.rotary(positions),
            cache=cache,
            memory=None if memory is None else memory.hidden,
            memory_mask=memory_mask,
            capture=capture,
            collect=collect,
            stop=stop,
        )
        if cache is not None:
            by = x.shape[1] if layout.lengths is None else layout.lengths
            cache.advance(by if cache.seen is None else 1)
        return out


def make_tower(config: c.Tower, d_memory: int | None = None, *, own_embed: bool = True) -> Tower | RecurrentTower:
    if isinstance(config, c.Recurrent):
        return RecurrentTower(config, d_memory, own_embed=own_embed)
    return Tower(config, d_memory, own_embed=own_embed)


def check_room(decoder: c.Stack | c.Recurrent | None, max_len: int) -> None:
    """Refuse more tokens than a decoder has positions for."""
    limit = getattr(decoder, "position_limit", None)
    if limit is not None and max_len > limit:
        raise InputError(f"a cache of {max_len} tokens is more than the {limit} positions of this model")


class Transformer(nn.Module):
    """One model, every shape: what its configuration says.

    >>> from regard import presets
    >>> model = Transformer(presets.tiny_encoder_decoder()).eval()
    >>> source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 2]])
    >>> model(source, target).shape
    torch.Size([1, 2, 101])

    Step by step, with a cache:

    >>> cache = model.start(model.encode(source), max_len=5)
    >>> model.logits(model.decode(target, cache=cache).hidden).shape
    torch.Size([1, 2, 101])
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        if not isinstance(config, ModelConfig):
            hint = "; a preset's is presets.preset(NAME)" if isinstance(config, str) or callable(config) else ""
            raise ConfigError([f"config ({type(config).__name__}) must be a ModelConfig{hint}"])
        self.config = config.validate()
        encoder, decoder, text, head = config.encoder, config.decoder, config.text, config.head
        self.encoder = None if encoder is None else make_tower(encoder)
        self.decoder = None
        if decoder is not None:
            d_memory = None if encoder is None else encoder.d_out
            self.decoder = make_tower(decoder, d_memory, own_embed=not config.share_embeddings)
        self.text = None if text is None else make_tower(text)
        last = config.last
        self.mix = None
        match head:
            case c.Vocabulary():
                assert isinstance(last.input, c.Tokens)
                self.head = VocabularyHead(head, config.d_scored, last.input.vocab_size, last)
            case c.Contrastive():
                assert encoder is not None
                assert text is not None
                self.head = ContrastiveHead(head, encoder.d_out, text.d_out)
            case c.Labels():
                self.head = LabelsHead(head, config.d_scored)
            case c.Pooled():
                self.head = PooledHead(head, config.d_scored)
            case c.Codes():
                assert isinstance(last, c.Stack)
                self.head = CodesHead(head, last, Tower(last.replace(n_layers=head.n_layers), own_embed=False))
        if getattr(head, "mix", False):
            # A Transformer's input counts as a layer; a recurrent one's has another width.
            self.mix = Mix(last.n_layers + isinstance(last, c.Stack))
        self.pair_head = None if config.pair_head is None else PooledHead(config.pair_head, last.d_out)
        self.reset()

    # -- running -----------------------------------------------------------------------

    def encode(
        self,
        inputs: Tensor,
        layout: Layout | Tensor | None = None,
        *,
        segments: Int[Tensor, "B T"] | None = None,
        capture: Collection[str] = (),
        stop: bool = False,
    ) -> Encoded:
        """Run the encoder over ids, pixels or vectors. ``layout`` may be just the lengths.

        ``capture`` names attention layers, as :meth:`attention_layers` lists them; what they attended with comes back
        in ``attended``, and its ``weights()`` are computed when asked for. With ``stop`` no layer runs above the last
        of them: the vectors that come back are then its own.
        """
        if self.encoder is None:
            raise InputError("this model has no encoder; call decode")
        return self._encode(self.encoder, inputs, as_layout(layout), segments, capture, stop)

    def encode_text(
        self,
        ids: Int[Tensor, "B T"],
        layout: Layout | Tensor | None = None,
        *,
        capture: Collection[str] = (),
        stop: bool = False,
    ) -> Encoded:
        """Run the second encoder of a two-encoder model."""
        if self.text is None:
            raise InputError("this model has no text encoder beside its first")
        return self._encode(self.text, ids, as_layout(layout), None, capture, stop)

    def _encode(self, tower: Tower | RecurrentTower, inputs, layout: Layout, segments, capture, stop: bool) -> Encoded:
        _check(tower, tower.embed, inputs, layout, segments, capture)
        collect = [] if self.mix is not None else None
        hidden, attended = tower(inputs, layout, segments=segments, capture=capture, collect=collect, stop=stop)
        summary = tower.summary(hidden, layout) if isinstance(tower, RecurrentTower) else None
        return Encoded(hidden, layout, summary, attended, tuple(collect or ()))

    def decode(
        self,
        ids: Int[Tensor, "B T"],
        memory: Encoded | None = None,
        *,
        layout: Layout | Tensor | None = None,
        cache: Cache | RecurrentCache | None = None,
        capture: Collection[str] = (),
        stop: bool = False,
    ) -> Decoded:
        """Run the decoder over ids, after a memory if the model has an encoder, or from where a cache stands."""
        decoder, layout = self.decoder, as_layout(layout)
        if decoder is None:
            raise InputError("this model has no decoder; call encode")
        if self.encoder is not None and (memory is None) == (cache is None):
            raise InputError("this decoder attends to an encoder's output: give the memory, or a cache started with it")
        embed = self._decoder_embed()
        forked = isinstance(cache, Cache) and cache.seen is not None  # then a row's ids are its ways, at one position
        _check(decoder, embed, ids, layout, None, capture, positions=1 if forked else None)
        if memory is not None:
            _check_memory(self, memory, ids.shape[0])
        if cache is not None and not torch.compiler.is_compiling():
            if isinstance(cache, RecurrentCache) != isinstance(decoder, RecurrentTower):
                raise InputError(f"cache ({type(cache).__name__}) is another model's; start one with this model")
            cache.check(ids.shape[0], ids.shape[1], layout.lengths)
            for name in ("starts", "documents", "allowed"):
                if getattr(layout, name) is not None:
                    raise InputError(f"{name}: not with a cache, whose rows are filled from the left; give lengths")
        hidden, attended = decoder(ids, layout, embed=embed, cache=cache, memory=memory, capture=capture, stop=stop)
        return Decoded(hidden, attended)

    @torch.no_grad()
    def start(
        self,
        memory: Encoded | None = None,
        *,
        batch_size: int | None = None,
        max_len: int,
        lanes: int = 1,
        dtype: torch.dtype | None = None,
    ) -> Cache | RecurrentCache:
        """A cache to decode from: its rows are the memory's, or ``batch_size`` of them; in the model's own dtype, or
        in that of autocast, or as told. In ``lanes`` ways each row can go on at once, after ``cache.follow``."""
        if self.decoder is None:
            raise InputError("this model has no decoder, and so no cache")
        if memory is None and (self.encoder is not None or batch_size is None):
            raise InputError("start needs the encoder's memory, or for a decoder alone a batch_size")
        if memory is not None:
            _check_memory(self, memory, batch_size)
        rows = batch_size if memory is None else memory.hidden.shape[0]
        if not isinstance(rows, int) or rows < 1 or not isinstance(max_len, int) or max_len < 1:
            raise InputError(f"a cache of {rows} rows and {max_len} tokens must have at least one of each")
        table = self._decoder_embed().weight
        if not isinstance(lanes, int) or lanes < 1:
            raise InputError(f"lanes ({lanes!r}) must be at least 1")
        return self.decoder.start(rows, max_len, memory, dtype or autocast_dtype(table) or table.dtype, lanes)

    def logits(self, hidden: Float[Tensor, "B T C"], layout: Layout | Tensor | None = None) -> Tensor:
        """The head over a tower's output: (B, T, V), (B, T, L), (B, L), or (B, T, 2, V) for a bidirectional
        language model, whose directions are scored apart; of a head of codes, the image painted from them."""
        if isinstance(self.head, VocabularyHead):
            if hidden.shape[-1] not in (self.config.d_scored, self.config.last.d_out):
                raise InputError(f"hidden is {hidden.shape[-1]} wide; this head scores {self.config.d_scored}")
            if hidden.shape[-1] != self.config.d_scored:
                hidden = hidden.unflatten(-1, (2, -1))  # (B, T, 2, C)
            return self.head(hidden, self.vocabulary_table())
        if isinstance(self.head, ContrastiveHead):
            raise InputError("two encoders have no logits of one input; call the model with both")
        return self.head(hidden, as_layout(layout))

    def forward(
        self,
        inputs: Tensor,
        target: Int[Tensor, "B T"] | None = None,
        *,
        layout: Layout | Tensor | None = None,
        target_layout: Layout | Tensor | None = None,
        segments: Int[Tensor, "B T"] | None = None,
    ) -> Tensor | Pair:
        """Logits of the shape's own kind: ``model(ids)``, ``model(source, target)``, ``model(pixels)``; two encoders
        give a :class:`~regard.nn.heads.Pair`."""
        if target is not None and self.config.shape in ("decoder", "encoder"):
            raise InputError(f"a model of shape {self.config.shape} takes one input, not two")
        match self.config.shape:
            case "decoder":
                return self.logits(self.decode(inputs, layout=layout).hidden, layout)
            case "encoder":
                encoded = self.encode(inputs, layout, segments=segments)
                hidden = encoded.hidden if self.mix is None else self.mix(encoded.layers)
                return self.logits(hidden, layout)
        if target is None:
            raise InputError(f"a model of shape {self.config.shape} takes two inputs; the second is missing")
        first = self.encode(inputs, layout, segments=segments)
        if self.config.shape == "encoder-decoder":
            return self.logits(self.decode(target, first, layout=target_layout).hidden, target_layout)
        text = self.encode_text(target, target_layout)
        assert isinstance(self.head, ContrastiveHead)
        return self.head(first.hidden, text.hidden, first.layout, text.layout)

    @torch.no_grad()
    def attended(
        self,
        inputs: Tensor | None,
        target: Int[Tensor, "B T"] | None = None,
        *,
        layers: Collection[str],
        segments: Int[Tensor, "B T"] | None = None,
    ) -> dict[str, Attended]:
        """What attention layers attended with, by their names with the tower in front. No layer runs above the last
        that is asked for, and no head; of two encoders, one whose layers are not asked for needs no input.

        >>> from regard import presets
        >>> model = Transformer(presets.tiny_encoder_decoder()).eval()
        >>> source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 2]])
        >>> model.attended(source, target, layers=["decoder.0.cross"])["decoder.0.cross"].weights().shape
        torch.Size([1, 3, 2, 3])
        """
        wanted: dict[str, list[str]] = {tower: [] for tower in self.attention_layers()}
        for layer in layers:
            tower, _, name = layer.partition(".")
            if tower not in wanted:
                raise InputError(f"layer ({layer!r}) is of no tower of this model; it has {', '.join(wanted)}")
            wanted[tower].append(name)
        found: dict[str, dict[str, Attended]] = {}
        memory = None
        if self.encoder is not None and (wanted["encoder"] or wanted.get("decoder")):
            assert inputs is not None, "an encoder reads something"
            over = bool(wanted.get("decoder"))  # which reads all that the encoder makes
            memory = self.encode(inputs, segments=segments, capture=wanted["encoder"], stop=not over)
            found["encoder"] = memory.attended
        if wanted.get("decoder"):
            ids = inputs if self.encoder is None else target
            assert ids is not None, "a decoder reads something"
            found["decoder"] = self.decode(ids, memory, capture=wanted["decoder"], stop=True).attended
        if wanted.get("text"):
            assert target is not None, "a text encoder reads a text"
            found["text"] = self.encode_text(target, capture=wanted["text"], stop=True).attended
        return {f"{tower}.{name}": one for tower, of in found.items() for name, one in of.items()}

    # -- parts -------------------------------------------------------------------------

    def attention_layers(self) -> dict[str, list[str]]:
        """The names ``capture`` knows, tower by tower.

        >>> from regard import presets
        >>> Transformer(presets.tiny_encoder_decoder()).attention_layers()["decoder"]
        ['0.self', '0.cross', '1.self', '1.cross']
        """
        towers = {"encoder": self.encoder, "decoder": self.decoder, "text": self.text}
        return {name: tower.attention_layers() for name, tower in towers.items() if tower is not None}

    def attention(self, layer: str) -> Attention:
        """The attention of a name, its tower in front: "decoder.0.cross"."""
        tower, _, name = layer.partition(".")
        known = self.attention_layers()
        if name not in known.get(tower, ()):
            names = [f"{tower}.{name}" for tower, of in known.items() for name in of]
            raise InputError(f"layer ({layer!r}) is no attention layer of this model; {suggest(layer, names)}")
        module = getattr(self, tower)
        if isinstance(module, RecurrentTower):
            assert module.attn is not None, "or it would not be named"
            return module.attn
        number, kind = name.split(".")
        return getattr(module.stack.blocks[int(number)], f"{kind}_attn")

    def vocabulary_table(self) -> Float[Tensor, "V C"]:
        """The matrix that scores the vocabulary: the head's own, or the token table it is tied to."""
        if not isinstance(self.head, VocabularyHead):
            raise InputError(f"this model has no vocabulary head, but one of kind {self.config.head.kind!r}")
        if self.head.weight is not None:
            return self.head.weight
        embed = self._decoder_embed() if self.decoder is not None else self.encoder.embed  # type: ignore[union-attr]
        assert isinstance(embed, TokenEmbed)
        return embed.weight

    def _decoder_embed(self) -> TokenEmbed:
        assert self.decoder is not None
        owner = self.encoder if self.config.share_embeddings else self.decoder
        embed = owner.embed  # type: ignore[union-attr]
        assert isinstance(embed, TokenEmbed)
        return embed

    def n_parameters(self) -> int:
        """Parameters, a shared one counted once."""
        return sum(p.numel() for p in self.parameters())

    @torch.no_grad()
    def reset(self) -> None:
        """Draw every weight anew, as the configuration says, and compute every fixed table: a model built on the
        meta device and given memory (``to_empty``) is then as good as a new one."""
        if all(p.is_meta for p in self.parameters()):
            return  # there is no memory to draw into, and torch would load its compiler for it, which takes seconds
        last = self.config.last
        parts = [
            (self.encoder, self.config.encoder),
            (self.decoder, self.config.decoder),
            (self.text, self.config.text),
        ]
        for part, config in [*parts, (self.head, last), (self.pair_head, last), (self.mix, last)]:
            if part is not None and config is not None:
                _reset(part, config)


def skeleton(config: ModelConfig) -> Transformer:
    """A model without memory for its weights: to be counted, compared with, or given some.

    >>> from regard import presets
    >>> skeleton(presets.gpt3()).n_parameters()
    174604259328
    """
    with torch.device("meta"):
        return Transformer(config)


def _check(
    tower, embed, inputs: Tensor, layout: Layout, segments, capture: Collection[str], positions: int | None = None
) -> None:
    """Everything that can be refused before tensors run. Skipped inside a compiled graph, whose caller has checked."""
    if torch.compiler.is_compiling():
        return
    if not isinstance(inputs, Tensor):
        raise InputError(f"input ({type(inputs).__name__}) must be a tensor: ids, pixels or vectors, a row each")
    if isinstance(capture, str):
        raise InputError(f"capture ({capture!r}) must be a list of layers: [{capture!r}]")
    embed.check(inputs, segments)
    tower.check(inputs if positions is None else inputs[:, :positions], layout)
    known = tower.attention_layers()
    for name in capture:
        if name not in known:
            raise InputError(f"capture ({name!r}) is no attention layer of this tower; {suggest(name, known)}")


def _check_memory(model: Transformer, memory: Encoded, rows: int | None) -> None:
    """A memory is what encode returns, a row for each row of ids."""
    if not isinstance(memory, Encoded):
        raise InputError(f"memory ({type(memory).__name__}) must be what encode returns")
    if model.encoder is None:
        raise InputError("memory: this decoder has no encoder, and so attends to none")
    if rows not in (None, memory.hidden.shape[0]):
        raise InputError(f"the memory has {memory.hidden.shape[0]} rows, the decoder {rows}; they must be as many")


def _reset(part: nn.Module, config: c.Tower) -> None:
    """Draw a tower's or a head's weights, each once: as its configuration says, or as its module does by itself."""
    std = config.init_std if isinstance(config, c.Stack) else None
    for module in part.modules():
        if isinstance(module, nn.Linear) and not isinstance(part, RecurrentTower):
            _reset_linear(module, std)
        elif isinstance(module, TokenEmbed | PatchEmbed | Learned | VocabularyHead):
            module.reset_parameters(std)
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()  # type: ignore[operator]
    for tower in part.modules():
        if isinstance(tower, Tower) and std is not None and tower.config.norm_order == "pre":
            for block in tower.stack.blocks:
                for branch in (block.self_attn, block.cross_attn):
                    if branch is not None:
                        branch.out.weight /= math.sqrt(2 * tower.config.n_layers)  # type: ignore[union-attr]
                block.mlp.down.weight /= math.sqrt(2 * tower.config.n_layers)  # type: ignore[union-attr]


def _reset_linear(layer: nn.Linear, std: float | None) -> None:
    if std is None:
        nn.init.xavier_uniform_(layer.weight)
    else:
        nn.init.normal_(layer.weight, std=std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
