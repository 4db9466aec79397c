"""Tensors in, tensors out: the Transformer and its ancestors, with no files, no tokenizers and no loss.

>>> import torch
>>> from regard import presets
>>> from regard.nn import Transformer
>>> Transformer(presets.tiny_decoder())(torch.tensor([[1, 2, 3]])).shape
torch.Size([1, 3, 101])
"""

from regard.nn.attention import Attended, Attention, attend, score
from regard.nn.blocks import MLP, Block, Stack
from regard.nn.cache import Cache, KeyValue
from regard.nn.heads import Pair, pool
from regard.nn.masks import Layout, Lowered, Mask, allowed, document_positions, lower
from regard.nn.outputs import Decoded, Encoded
from regard.nn.positions import alibi_slopes, rotate, sinusoid
from regard.nn.recurrent import RecurrentCache, RecurrentTower
from regard.nn.transformer import Tower, Transformer, skeleton

__all__ = [
    "MLP",
    "Attended",
    "Attention",
    "Block",
    "Cache",
    "Decoded",
    "Encoded",
    "KeyValue",
    "Layout",
    "Lowered",
    "Mask",
    "Pair",
    "RecurrentCache",
    "RecurrentTower",
    "Stack",
    "Tower",
    "Transformer",
    "alibi_slopes",
    "allowed",
    "attend",
    "document_positions",
    "lower",
    "pool",
    "rotate",
    "score",
    "sinusoid",
    "skeleton",
]
