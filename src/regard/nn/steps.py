"""One token more of every way: what ``model.logits(model.decode(ids, cache=cache).hidden)`` gives, by as few kernels as
there can be on a GPU (:mod:`regard.nn.kernels`, whose attention reads as much of the cache as is in use, which the host
need not know) and by as few operations on a CPU (:mod:`regard.nn.cpu_kernels`).

It is for what decoders have in common; :func:`composes` says which models and caches. All others decode as they are.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.nn.attention import Attention
from regard.nn.blocks import Block
from regard.nn.cache import Cache, KeyValue
from regard.nn.heads import VocabularyHead
from regard.nn.linear import Linear
from regard.nn.masks import Layout, Lowered
from regard.nn.packed import Int8, Packed
from regard.nn.positions import Rotation, rotate
from regard.nn.transformer import Tower, Transformer

MOST_QUERIES = 64  # that look at the same keys
LINEAR = (Linear, Packed, Int8)


def fits(model: Transformer, cache: Cache, ids: Int[Tensor, "B N"]) -> bool:
    """Whether a step can be made on a GPU, and recorded."""
    here = ids.is_cuda and ids.device.index == torch.cuda.current_device()  # where triton launches
    if not here or not has_kernels() or cache.k.dtype == torch.float64 or not composes(model, cache, ids):
        return False
    weights = (model.vocabulary_table(), *cast(Tower, model.decoder).parameters())
    return all(weight.dtype == cache.k.dtype and weight.is_contiguous() for weight in weights)


def kernels_for(device: torch.device) -> Any:
    """The module of them."""
    if device.type == "cpu":
        from regard.nn import cpu_kernels as kernels
    else:
        from regard.nn import kernels
    return kernels


@functools.cache
def has_kernels() -> bool:
    """Whether there is a triton, and one that knows what they ask of it."""
    try:
        from regard.nn import kernels  # noqa: F401
    except ImportError:
        return False
    return True


def composes(model: Transformer, cache: Cache, ids: Int[Tensor, "B N"]) -> bool:
    """Whether a model is one that a step knows: then it can be made on a CPU."""
    tower, head = model.decoder, model.head
    if not isinstance(tower, Tower) or not isinstance(head, VocabularyHead) or head.dense is not None:
        return False
    blocks = [cast(Block, block) for block in tower.stack.blocks]
    layers = [layer for block in blocks for layer in (block.self_attn, block.cross_attn) if layer is not None]
    config = tower.config
    return (
        config.causal
        and config.positions.kind != "alibi"
        and not any(tower.stack.windows)
        and all(map(_plain, layers))
        and all(type(layer) in LINEAR for block in blocks for layer in (block.mlp.up, block.mlp.down))
        and ids.shape[1] == cache.lanes
        and (cache.lanes == 1 or cache.seen is not None)
        and ids.shape[1] * config.n_heads // (config.n_kv_heads or config.n_heads) <= MOST_QUERIES
        and not torch.is_autocast_enabled(ids.device.type)
        and not torch.is_grad_enabled()
        and not tower.training  # which has dropout
        and not any(module._forward_hooks or module._forward_pre_hooks for module in tower.modules())
    )


def _plain(layer: Attention) -> bool:
    """Dot products of what linear layers make."""
    parts = (layer.out, layer.qkv if layer.fused else layer.q)
    adorned = (layer.q_norm, layer.score_q, layer.score_w)
    return all(type(part) in LINEAR for part in parts) and all(part is None for part in adorned)


@torch.no_grad()
def step(model: Transformer, cache: Cache, ids: Int[Tensor, "B N"], kernels: Any = None) -> Float[Tensor, "B N V"]:
    """The scores of what follows each way, in float32. The cache goes on by one position."""
    kernels = kernels or kernels_for(ids.device)
    tower = cast(Tower, model.decoder)
    slots = cache.slots(ids.shape[1])
    past = kernels.past(cache, slots)
    x, positions = tower.embedded(ids, Layout(), embed=model._decoder_embed(), cache=cache, slots=slots)
    x = x.flatten(0, 1)  # (B N, C)
    rotation = None if tower.rotary is None else tower.rotary(positions)
    for i, block in enumerate(tower.stack.blocks):
        kept, memory = KeyValue(cache.k[i], cache.v[i]), cache.cross[i] if cache.cross else None
        x = _block(kernels, cast(Block, block), x, kept, rotation, past, memory, cache.memory_mask)
    cache.advance(1)
    return scores(model, x, kernels, norm=tower.stack.norm).unflatten(0, ids.shape)


def scores(
    model: Transformer, x: Float[Tensor, "R C"], kernels: Any = None, norm: nn.Module | None = None
) -> Float[Tensor, "R V"]:
    """A vocabulary's scores in float32, whatever its size: a library's kernel wants a multiple of eight."""
    kernels = kernels or kernels_for(x.device)
    head = cast(VocabularyHead, model.head)
    weights = (model.vocabulary_table(), head.bias) if head.packed is None else (head.packed,)
    return kernels.linear(x, *weights, norm=norm, dtype=torch.float32)


def _block(
    kernels: Any,
    block: Block,
    x: Float[Tensor, "R C"],
    kept: KeyValue,
    rotation: Rotation | None,
    past: dict[str, Any],
    memory: KeyValue | None,
    mask: Lowered,
) -> Float[Tensor, "R C"]:
    layer = block.self_attn
    qkv = _before(kernels, block, x, layer.qkv, block.self_norm)
    q, k, v = qkv.split(layer.widths, dim=1)
    if rotation is not None:
        _turn(q, layer.n_heads, rotation)
        _turn(k, layer.n_kv_heads, rotation)
    out = kernels.look(q, *kept, scale=layer.scale, heads=layer.n_heads, new=(k, v), **past)
    x = _after(kernels, block, x, out, layer.out, block.self_norm)
    if block.cross_attn is not None and block.cross_norm is not None:
        assert memory is not None, "a cache was started with one"
        layer = block.cross_attn
        q = _before(kernels, block, x, layer.q, block.cross_norm)
        out = kernels.look(q, *memory, scale=layer.scale, heads=layer.n_heads, bias=mask.bias, alive=mask.alive)
        x = _after(kernels, block, x, out, layer.out, block.cross_norm)
    mlp = block.mlp
    if mlp.gated:
        gate, hidden = _before(kernels, block, x, mlp.up, block.mlp_norm).chunk(2, dim=1)
        hidden = F.silu(gate) * hidden
    else:
        hidden = _before(kernels, block, x, mlp.up, block.mlp_norm, activation=mlp.activation)
    return _after(kernels, block, x, hidden, mlp.down, block.mlp_norm)


def _before(kernels: Any, block: Block, x: Tensor, layer: nn.Module, norm: nn.Module, **then: Any) -> Tensor:
    """A branch's first layer, after its norm if that comes first."""
    return kernels.linear(x, *_weights(layer), norm=norm if block.pre else None, **then)


def _after(kernels: Any, block: Block, x: Tensor, branch: Tensor, layer: nn.Module, norm: nn.Module) -> Tensor:
    """A branch's last layer, added to what it is a branch of."""
    if block.pre:
        return kernels.linear(branch, *_weights(layer), residual=x)
    return kernels.add_norm(x, kernels.linear(branch, *_weights(layer)), norm)


def _weights(layer: nn.Module) -> tuple[Any, ...]:
    """What a product is with: a weight and a bias, or a packed layer, which has none that could be told."""
    return (layer.weight, layer.bias) if isinstance(layer, Linear) else (layer,)


def _turn(x: Float[Tensor, "R d"], heads: int, by: Rotation) -> None:
    """Rotate heads where they are; every row has its own angle."""
    cos, sin = (angle.flatten(0, 2)[:, None, None] for angle in (by.cos, by.sin))  # (R, 1, 1, D / 2)
    turned = rotate(x.unflatten(1, (heads, -1))[:, :, None], by._replace(cos=cos, sin=sin))
    x.copy_(turned.flatten(1))
