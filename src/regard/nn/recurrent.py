"""The ancestors, behind the interface of the Transformer's towers: same data, same loop, same decoding.

A bidirectional GRU encoder and an attention GRU decoder (Bahdanau 2014) with any score function or with none (Sutskever
2014), a decoder over a CNN grid (Xu 2015), an LSTM language model, and ELMo's two directions (Peters 2018).
Attention here is :class:`~regard.nn.attention.Attention` with every projection the identity.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.config import InputError, Recurrent
from regard.nn.attention import Attended, Attention
from regard.nn.cache import KeyValue, check_batch, check_rows, join_masks, put_rows
from regard.nn.embed import TokenEmbed
from regard.nn.heads import pool
from regard.nn.linear import Linear, linear
from regard.nn.masks import Layout, Lowered, lower_memory
from regard.nn.outputs import Encoded

# cuDNN would like each layer's weights in one piece and copies them together at every call: a few megabytes.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")


class RecurrentCache:
    """A recurrent decoder's whole past: one state a layer, and the memory it attends to."""

    def __init__(self, state: list[Tensor], cells: list[Tensor], cross: KeyValue | None, mask: Lowered, lanes: int):
        self.state, self.cells, self.cross, self.mask, self.lanes = state, cells, cross, mask, lanes
        self.position = torch.zeros(state[0].shape[0], dtype=torch.long, device=state[0].device)
        self.forked = False  # then there is a state for each way in which a row goes on, row by row

    def check(self, batch_size: int, t: int, lengths: Int[Tensor, " B"] | None) -> None:
        check_batch(batch_size, self.position, t, self.lanes if self.forked else None)

    def follow(self, parents: Int[Tensor, "B N"]) -> None:
        """Way n of each row goes on from what was its way parents[n]; the first time, all from the row's state."""
        first = torch.arange(parents.shape[0], device=parents.device)[:, None]
        rows = (first * self.lanes + parents if self.forked else first.expand_as(parents)).flatten()
        self.state = [held.index_select(0, rows) for held in self.state]
        self.cells = [held.index_select(0, rows) for held in self.cells]
        self.forked = True

    def widen(self, max_len: int, lanes: int, *, at_once: bool = True) -> None:
        """Have room for other ways beside the only one there is: a state is as large however much was read."""
        self.lanes = lanes

    def keep(self, rows: Int[Tensor, " N"]) -> None:
        """Go on with some rows only."""
        ways = rows
        if self.forked:
            ways = (rows[:, None] * self.lanes + torch.arange(self.lanes, device=rows.device)).flatten()
        self.state, self.cells = [held[ways] for held in self.state], [held[ways] for held in self.cells]
        self.position = self.position[rows]
        if self.cross is not None:
            self.cross = KeyValue(self.cross.k[rows], self.cross.v[rows])
            bias, alive = (None if m is None else m[rows] for m in (self.mask.bias, self.mask.alive))
            self.mask = self.mask._replace(bias=bias, alive=alive)

    def join(self, other: RecurrentCache, which: Int[Tensor, " N"], places: Int[Tensor, " N"], rows: int) -> None:
        """Put some rows of another cache at places of this one, which has so many rows then."""
        lanes = self.lanes if self.forked else 1
        if self.cross is not None and other.cross is not None:
            memories = (self.cross.k.transpose(1, 2), other.cross.k.transpose(1, 2))
            self.mask = join_masks(self.mask, other.mask, which, places, rows, *memories)
            pairs = zip(self.cross, other.cross, strict=True)
            self.cross = KeyValue(*(put_rows(*pair, which, places, rows) for pair in pairs))
        ways, at = ((r[:, None] * lanes + torch.arange(lanes, device=r.device)).flatten() for r in (which, places))
        self.state, self.cells = (
            [put_rows(*pair, ways, at, rows * lanes) for pair in zip(mine, theirs, strict=True)]
            for mine, theirs in ((self.state, other.state), (self.cells, other.cells))
        )
        self.position = put_rows(self.position, other.position, which, places, rows)

    def move(self, state: list[Tensor], cells: list[Tensor], by: int | Tensor) -> None:
        """Take the new state, in place: a compiled step keeps its addresses. Values are remembered, not gradients."""
        for held, new in zip([*self.state, *self.cells], [*state, *cells], strict=True):
            held.copy_(new.detach())
        self.position += by

    def reorder(self, rows: Int[Tensor, " B"], *, cross: bool = True) -> None:
        """Row i becomes what row rows[i] was; with ``cross=False`` the memory it attends to stays."""
        check_rows(rows, self.position)
        if self.forked:
            raise InputError("the rows of this cache have forked; their ways move with follow")
        held = [*self.state, *self.cells, self.position]
        if cross and self.cross is not None:
            held += [*self.cross, *(m for m in (self.mask.bias, self.mask.alive) if m is not None)]
        for tensor in held:
            tensor.copy_(tensor.index_select(0, rows))


class Cell(nn.Module):
    """One GRU or LSTM layer, the LSTM with an output projection if ``d_project`` is given.

    torch's own modules cannot be compiled; the functions below them can, so this holds the weights and calls those.
    """

    def __init__(self, kind: str, d_in: int, d_hidden: int, d_project: int | None = None):
        super().__init__()
        gates, d_state = (3 if kind == "gru" else 4) * d_hidden, d_project or d_hidden
        self.kind, self.d_hidden = kind, d_hidden
        self.weight_x = nn.Parameter(torch.empty(gates, d_in))
        self.weight_h = nn.Parameter(torch.empty(gates, d_state))
        self.bias_x = nn.Parameter(torch.empty(gates))
        self.bias_h = nn.Parameter(torch.empty(gates))
        self.project = nn.Parameter(torch.empty(d_project, d_hidden)) if d_project else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in self.parameters():
            nn.init.uniform_(weight, -(self.d_hidden**-0.5), self.d_hidden**-0.5)

    def step(
        self, x: Float[Tensor, "B E"], state: Float[Tensor, "B D"], cell: Float[Tensor, "B N"] | None
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B N"] | None]:
        """One token on: the new state and, for an LSTM, the new cell."""
        if cell is None:
            return torch.gru_cell(x, state, self.weight_x, self.weight_h, self.bias_x, self.bias_h), None
        gates = linear(x, self.weight_x, self.bias_x) + linear(state, self.weight_h, self.bias_h)
        take, keep, new, show = gates.chunk(4, dim=-1)
        cell = keep.sigmoid() * cell + take.sigmoid() * new.tanh()
        state = show.sigmoid() * cell.tanh()
        return (state if self.project is None else linear(state, self.project)), cell

    def forward(self, x: Float[Tensor, "B T E"], state: Float[Tensor, "B D"]) -> Float[Tensor, "B T D"]:
        """A whole sequence, in one fused call where torch has one.

        Those are told that they train even when they don't: it only means that cuDNN can be asked for gradients.
        """
        weights: list[Tensor] = [self.weight_x, self.weight_h, self.bias_x, self.bias_h]
        if self.kind == "gru":
            return torch.gru(x, state[None], weights, True, 1, 0.0, True, False, True)[0]
        cell = x.new_zeros(x.shape[0], self.d_hidden)
        if self.project is None:
            if _lacks_bfloat16(x):  # a CPU whose oneDNN would fail
                with torch.autocast("cpu", enabled=False):
                    x, state, cell, *weights = (part.float() for part in (x, state, cell, *weights))
                    given = (x, (state[None], cell[None]), weights)
                    return torch.lstm(*given, True, 1, 0.0, True, False, True)[0].bfloat16()
            return torch.lstm(x, (state[None], cell[None]), weights, True, 1, 0.0, True, False, True)[0]
        outs = []
        for t in range(x.shape[1]):
            state, cell = self.step(x[:, t], state, cell)
            outs.append(state)
        return torch.stack(outs, dim=1)


def _lacks_bfloat16(x: Tensor) -> bool:
    """Whether x is to be computed with in bfloat16, on a CPU that cannot."""
    half = x.device.type == "cpu" and (x.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu"))
    return half and not torch.compiler.is_compiling() and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


class RecurrentTower(nn.Module):
    """Tokens under a GRU or LSTM; as a decoder, over a memory of width ``d_memory``."""

    def __init__(self, config: Recurrent, d_memory: int | None = None, *, own_embed: bool = True):
        super().__init__()
        self.config = config
        self.embed = TokenEmbed(config.input, config.d_input) if own_embed else None
        self.attn = self.readout = self.bridge = None
        d_in = config.d_input
        if d_memory is not None:
            self.bridge = Linear(d_memory, config.n_layers * config.d_state)
        if d_memory is not None and config.score is not None:
            self.attn = Attention(
                config.d_hidden,
                d_memory=d_memory,
                score=config.score,
                d_attention=config.d_attention,
                identity=("q", "k", "v", "out"),
            )
            self.readout = Linear(config.d_hidden + d_memory + d_in, d_in)
            d_in += d_memory
        self.forwards = self._direction(d_in)
        self.backwards = self._direction(d_in) if config.bidirectional else None

    def _direction(self, d_in: int) -> nn.ModuleList:
        config = self.config
        widths = [d_in, *[config.d_state] * (config.n_layers - 1)]
        return nn.ModuleList(Cell(config.cell, d, config.d_hidden, config.d_project) for d in widths)

    def attention_layers(self) -> list[str]:
        return [] if self.attn is None else ["0.cross"]

    def check(self, ids: Tensor, layout: Layout) -> None:
        layout.check(*ids.shape)
        if ids.shape[1] == 0:
            raise InputError("ids have no positions: a recurrent model needs at least one token")
        for name in ("documents", "prefix", "positions", "allowed"):
            if getattr(layout, name) is not None:
                raise InputError(f"{name}: not for recurrent models; give lengths and starts")

    def start(
        self, batch_size: int, max_len: int, memory: Encoded | None, dtype: torch.dtype, lanes: int = 1
    ) -> RecurrentCache:
        """The state before the first token. A state has no length: ``max_len`` is for Transformers."""
        config = self.config
        device = next(self.parameters()).device
        dtype = next((w.dtype for w in self.parameters() if w.is_floating_point()), dtype)  # cells multiply by them
        state = torch.zeros(config.n_layers, batch_size, config.d_state, dtype=dtype, device=device)
        cells = torch.zeros(config.n_layers, batch_size, config.d_hidden, dtype=dtype, device=device)
        cross, mask = None, Lowered()
        if self.bridge is not None and memory is not None:
            hidden, layout = memory.hidden, memory.layout
            thought = pool(hidden, "mean", layout) if memory.summary is None else memory.summary
            state = torch.tanh(self.bridge(thought)).unflatten(-1, (config.n_layers, -1)).transpose(0, 1)
            if self.attn is not None:
                # Copies: a reorder moves them in place, and an identity projection hands out the memory itself.
                cross = KeyValue(*(t.clone() for t in self.attn.remember(hidden)))
                mask = lower_memory(layout, hidden)
        return RecurrentCache(
            [state[i].contiguous() for i in range(config.n_layers)],
            list(cells.unbind()) if config.cell == "lstm" else [],
            cross,
            mask,
            lanes,
        )

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        layout: Layout,
        *,
        embed: TokenEmbed | None = None,
        segments: Tensor | None = None,
        cache: RecurrentCache | None = None,
        memory: Encoded | None = None,
        capture: Collection[str] = (),
        collect: list[Tensor] | None = None,
        stop: bool = False,  # for stacks: here the one attention runs to the end
    ) -> tuple[Float[Tensor, "B T C"], dict[str, Attended]]:
        table = self.embed if embed is None else embed
        assert table is not None, "a tower without a table of its own is given one"
        x = F.dropout(table(ids, segments), self.config.embed_dropout, self.training)
        if cache is not None and cache.forked:
            out, state, cells, _ = self._step(x.flatten(0, 1), cache.state, cache.cells, cache, False)
            cache.move(state, cells, 1)
            return out.unflatten(0, ids.shape), {}
        if cache is not None:
            out, state, cells, attended = self._steps(x, cache, layout.lengths, capture)
            cache.move(state, cells, x.shape[1] if layout.lengths is None else layout.lengths)
            return out, attended
        if memory is not None:
            # Teacher forcing is decoding with the targets as inputs.
            cache = self.start(ids.shape[0], ids.shape[1], memory, x.dtype)
            if self.attn is not None:
                order, back = _real_first(layout, x)
                out, _, _, attended = self._steps(_take(x, order), cache, None, capture)
                return _take(out, back), {
                    name: a._replace(x=_take(a.x, back), q=_take(a.q.transpose(1, 2), back).transpose(1, 2))
                    for name, a in attended.items()
                }
        layers = self._run(self.forwards, x, layout, cache=cache)
        if self.backwards is not None:
            other = self._run(self.backwards, x, layout, reverse=True)
            layers = [torch.cat(pair, dim=-1) for pair in zip(layers, other, strict=True)]
        if collect is not None:
            collect.extend(layers)
        return layers[-1], {}

    def summary(self, hidden: Float[Tensor, "B S C"], layout: Layout) -> Float[Tensor, "B C"]:
        """The thought vector: where each direction ended."""
        if self.backwards is None:
            return pool(hidden, "end", layout)
        ahead, back = hidden.chunk(2, dim=-1)
        return torch.cat([pool(ahead, "end", layout), pool(back, "class", layout)], dim=-1)

    def _run(
        self,
        direction: nn.ModuleList,
        x: Float[Tensor, "B T E"],
        layout: Layout,
        *,
        reverse: bool = False,
        cache: RecurrentCache | None = None,
    ) -> list[Float[Tensor, "B T C"]]:
        """All layers of one direction over whole sequences, each in one fused call; padding is stepped around."""
        order, back = _real_first(layout, x, reverse)
        x = _take(x, order)
        outs = []
        for i, cell in enumerate(direction):
            state = x.new_zeros(x.shape[0], self.config.d_state) if cache is None else cache.state[i]
            out = cell(x, state.to(x.dtype))
            x = self._between(i, x, out)
            outs.append(_take(x, back))
        return outs

    def _between(self, i: int, x: Tensor, out: Tensor) -> Tensor:
        out = out + x if self.config.residual and i > 0 else out
        return F.dropout(out, self.config.dropout, self.training)

    def _steps(
        self,
        x: Float[Tensor, "B T E"],
        cache: RecurrentCache,
        lengths: Int[Tensor, " B"] | None,
        capture: Collection[str],
    ) -> tuple[Float[Tensor, "B T C"], list[Tensor], list[Tensor], dict[str, Attended]]:
        """Token by token from the cached state; a row stops moving where its real tokens end."""
        outs, asked, attended = [], [], None
        state, cells = list(cache.state), list(cache.cells)
        for t in range(x.shape[1]):
            out, new_state, new_cells, attended = self._step(x[:, t], state, cells, cache, bool(capture))
            if attended is not None:
                asked.append(attended)
            if lengths is not None:
                moves = (t < lengths)[:, None]
                new_state = [torch.where(moves, new, old) for new, old in zip(new_state, state, strict=True)]
                new_cells = [torch.where(moves, new, old) for new, old in zip(new_cells, cells, strict=True)]
            state, cells = new_state, new_cells
            outs.append(out)
        names = {}
        if attended is not None:
            x, q = torch.cat([a.x for a in asked], dim=1), torch.cat([a.q for a in asked], dim=2)
            names = {"0.cross": attended._replace(x=x, q=q)}
        return torch.stack(outs, dim=1), state, cells, names

    def _step(
        self, x: Float[Tensor, "B E"], state: list[Tensor], cells: list[Tensor], cache: RecurrentCache, capture: bool
    ) -> tuple[Tensor, list[Tensor], list[Tensor], Attended | None]:
        if self.attn is not None and self.readout is not None:
            # s_i = f(s_{i-1}, y_{i-1}, c_i): the previous state asks, then moves on with the answer.
            # The ways in which a row goes on ask the same memory, as a row of queries.
            asks = state[0].unflatten(0, (-1, cache.lanes if cache.forked else 1))
            context, attended = self.attn(asks, cache.cross, mask=cache.mask, capture=capture)
            context = context.flatten(0, 1)
            moved, _ = cast(Cell, self.forwards[0]).step(torch.cat([x, context], dim=-1), state[0], None)
            out = F.dropout(moved, self.config.dropout, self.training)
            return torch.tanh(self.readout(torch.cat([out, context, x], dim=-1))), [moved], [], attended
        new_state, new_cells = [], []
        for i, layer in enumerate(self.forwards):
            moved, cell = cast(Cell, layer).step(x, state[i], cells[i] if cells else None)
            new_state.append(moved)
            new_cells += [] if cell is None else [cell]
            x = self._between(i, x, moved)
        return x, new_state, new_cells, None


def _real_first(layout: Layout, x: Tensor, reverse: bool = False) -> tuple[Tensor | None, Tensor | None]:
    """Indices that bring each row's real tokens to the front, in order or reversed, and those that bring them back."""
    t = x.shape[1]
    slots = torch.arange(t, device=x.device)[None]
    if layout.lengths is None and layout.starts is None:
        return (slots.flip(1), slots.flip(1)) if reverse else (None, None)
    start, end = layout.span(t)
    first = torch.zeros_like(end) if start is None else start
    if reverse:
        mirrored = ((end - 1)[:, None] - slots).clamp(0, t - 1)  # its own inverse where tokens are real
        return mirrored, mirrored
    if start is None:
        return None, None
    return (slots + first[:, None]).clamp(0, t - 1), (slots - first[:, None]).clamp(0, t - 1)


def _take(x: Tensor, order: Tensor | None) -> Tensor:
    """The positions of x, (B, T, ...), in another order, (B, T) or (1, T)."""
    if order is None:
        return x
    index = order.reshape(*order.shape, *[1] * (x.dim() - 2)).expand(x.shape[0], -1, *x.shape[2:])
    return x.gather(1, index)
