"""Feed-forward, the block of attention and feed-forward, and the stack of blocks.

Post-norm (Vaswani 2017) norms the sum, ``norm(x + f(x))``; pre-norm (Xiong 2020) the input of each branch,
``x + f(norm(x))``, and the stack's end. One block serves encoder and decoder: cross-attention is there if there is a
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.config import Stack as StackConfig
from regard.nn.attention import Attended, Attention
from regard.nn.cache import Cache, KeyValue
from regard.nn.dropout import add_dropout, dropout
from regard.nn.linear import Linear
from regard.nn.masks import Lowered, Mask, lower, side_by_side
from regard.nn.norms import LayerNorm, RMSNorm, make_norm, normed_beside
from regard.nn.positions import Rotation
from regard.nn.products import activated


class MLP(nn.Module):
    """Two layers applied to each position by itself; with SwiGLU the first has a gate beside it."""

    def __init__(self, config: StackConfig):
        super().__init__()
        self.gated = config.activation == "swiglu"
        self.up = Linear(config.d_model, config.d_ff * (2 if self.gated else 1), config.bias)
        self.down = Linear(config.d_ff, config.d_model, config.bias)
        self.activation: str | None = config.activation  # None: what multiplies applies it, too (nn.packed)
        self.dropout = config.mlp_dropout

    def forward(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        if self.gated:
            gate, hidden = self.up(x).chunk(2, dim=-1)
            hidden = F.silu(gate) * hidden
        else:
            hidden = activated(self.up, x, self.activation)
        return self.down(dropout(hidden, self.dropout, self.training))


class Block(nn.Module):
    """Self-attention, cross-attention if there is a memory, and the MLP, each with its residual and norm."""

    def __init__(self, config: StackConfig, d_memory: int | None = None):
        super().__init__()
        d_head, d_value = config.head_widths
        attention = partial(
            Attention,
            config.d_model,
            n_heads=config.n_heads,
            n_kv_heads=config.n_kv_heads,
            d_head=d_head,
            d_value=d_value,
            score=config.score,
            bias=config.bias,
            qk_norm=config.qk_norm,
            norm_eps=config.norm_eps,
            dropout=config.attn_dropout,
        )
        self.pre = config.norm_order == "pre"
        self.dropout = config.dropout
        self.self_attn = attention()
        self.self_norm = make_norm(config)
        self.cross_attn = None if d_memory is None else attention(d_memory=d_memory)
        self.cross_norm = None if d_memory is None else make_norm(config)
        self.mlp = MLP(config)
        self.mlp_norm = make_norm(config)

    def forward(
        self,
        x: Float[Tensor, "B T C"],
        *,
        mask: Lowered,
        rotation: Rotation | None = None,
        store: Callable[[KeyValue], KeyValue] | None = None,
        memory: Float[Tensor, "B S M"] | KeyValue | None = None,
        memory_mask: Lowered = Lowered(),
        capture_self: bool = False,
        capture_cross: bool = False,
    ) -> tuple[Float[Tensor, "B T C"], Attended | None, Attended | None]:
        x, given = self._before(self.self_norm, x)
        out, attended_self = self.self_attn(given, mask=mask, rotation=rotation, store=store, capture=capture_self)
        x = self._after(self.self_norm, x, out)
        attended_cross = None
        if self.cross_attn is not None and self.cross_norm is not None:
            x, given = self._before(self.cross_norm, x)
            out, attended_cross = self.cross_attn(given, memory, mask=memory_mask, capture=capture_cross)
            x = self._after(self.cross_norm, x, out)
        x, given = self._before(self.mlp_norm, x)
        x = self._after(self.mlp_norm, x, self.mlp(given))
        return x, attended_self, attended_cross

    def remember(self, memory: Float[Tensor, "B S M"], dtype: torch.dtype) -> KeyValue:
        """The memory's keys and values for this block's cross-attention, computed once."""
        assert self.cross_attn is not None, "only a block over a memory is asked"
        kv = self.cross_attn.remember(memory)
        return KeyValue(*(part.to(dtype).contiguous() for part in kv))

    def _before(self, norm: LayerNorm | RMSNorm, x: Tensor) -> tuple[Tensor, Tensor]:
        """The residual, and what the branch is given."""
        return normed_beside(norm, x) if self.pre else (x, x)

    def _after(self, norm: nn.Module, x: Tensor, branch: Tensor) -> Tensor:
        x = add_dropout(x, branch, self.dropout, self.training)
        return x if self.pre else norm(x)


class Stack(nn.Module):
    """Blocks one above the other. Masks are lowered here, once for each different window."""

    def __init__(self, config: StackConfig, d_memory: int | None = None):
        super().__init__()
        self.blocks = nn.ModuleList(Block(config, d_memory) for _ in range(config.n_layers))
        final = config.norm_order == "pre" if config.final_norm is None else config.final_norm
        self.norm = make_norm(config) if final and config.n_layers else None
        windows = config.windows or (0,)
        self.windows = [windows[i % len(windows)] for i in range(config.n_layers)]

    def forward(
        self,
        x: Float[Tensor, "B T C"],
        *,
        mask: Mask,
        rotation: Rotation | None = None,
        cache: Cache | None = None,
        memory: Float[Tensor, "B S M"] | None = None,
        memory_mask: Mask | Lowered = Mask(),
        capture: Collection[str] = (),
        collect: list[Tensor] | None = None,
        stop: bool = False,
    ) -> tuple[Float[Tensor, "B T C"], dict[str, Attended]]:
        """Run the blocks. ``capture`` names layers ("0.self", "5.cross"); ``collect`` takes every layer's output; with
        ``stop`` no block runs above the last that is captured, and what comes out is that one's."""
        t = x.shape[1]
        as_kernel_wants = partial(lower, t=t, device=x.device, dtype=x.dtype)
        span = t if cache is None else cache.span(t)
        place = None if cache is None or mask.slots is None else cache.place(mask.slots)
        lowered = {
            window: as_kernel_wants(side_by_side(mask._replace(window=window), place, span), s=span)
            for window in set(self.windows)
        }
        cross = [memory] * len(self.blocks) if cache is None else cache.cross or [None] * len(self.blocks)
        lowered_memory = memory_mask if isinstance(memory_mask, Lowered) else Lowered()
        if cross and cross[0] is not None and isinstance(memory_mask, Mask):
            lowered_memory = as_kernel_wants(memory_mask, s=_length(cross[0]))
        attended: dict[str, Attended] = {}
        for i, block in enumerate(self.blocks):
            x, of_self, of_cross = block(
                x,
                mask=lowered[self.windows[i]],
                rotation=rotation,
                store=None if cache is None else partial(cache.write, i, slots=mask.slots, place=place, span=span),
                memory=cross[i],
                memory_mask=lowered_memory,
                capture_self=f"{i}.self" in capture,
                capture_cross=f"{i}.cross" in capture,
            )
            if of_self is not None:
                attended[f"{i}.self"] = of_self
            if of_cross is not None:
                attended[f"{i}.cross"] = of_cross
            if collect is not None:
                collect.append(x)
            if stop and len(attended) == len(capture):
                return x, attended
        return x if self.norm is None else self.norm(x), attended


def _length(memory: Tensor | KeyValue) -> int:
    return memory.k.shape[2] if isinstance(memory, KeyValue) else memory.shape[1]
