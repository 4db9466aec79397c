"""LoRA (Hu et al. 2022): a matrix stays as it is, and beside it two narrow ones are trained, whose product is added.

``y = W x + (alpha / rank) B A x``. B begins as zeros, so that at first nothing is changed. A layer keeps its name and
its weights' names; ``lora_a`` and ``lora_b`` come beside them, and :func:`merged` makes one matrix of the three. Layers
that project to queries, keys and values at once have one pair for all three.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.nn.blocks import Block
from regard.nn.linear import Linear, linear

A, B = "lora_a", "lora_b"


class LoRALinear(Linear):
    """A linear layer with two narrow matrices beside its own, which is the given layer's."""

    def __init__(self, layer: Linear, rank: int, alpha: float):
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.scale = layer.in_features, layer.out_features, alpha / rank
        self.weight, self.bias = layer.weight, layer.bias
        like = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        self.lora_a = nn.Parameter(torch.empty(rank, layer.in_features, **like))
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, rank, **like))
        nn.init.normal_(self.lora_a, std=layer.in_features**-0.5)

    def forward(self, input: Float[Tensor, "... N"]) -> Float[Tensor, "... M"]:
        beside = linear(linear(input, self.lora_a), self.lora_b)
        return linear(input, self.weight, self.bias) + self.scale * beside


def add_lora(blocks: Iterable[nn.Module], rank: int, alpha: float) -> None:
    """Give every projection of some blocks, attention's and the feed-forward's, a LoRA beside it.

    >>> from regard import presets
    >>> from regard.nn import Transformer
    >>> model = Transformer(presets.tiny_decoder())
    >>> add_lora(model.decoder.stack.blocks, rank=2, alpha=4.0)
    >>> [name for name, _ in model.named_parameters() if "lora" in name][:2]
    ['decoder.stack.blocks.0.self_attn.qkv.lora_a', 'decoder.stack.blocks.0.self_attn.qkv.lora_b']
    """
    for block in blocks:
        assert isinstance(block, Block)
        for part in [*block.modules()]:
            for name, layer in part.named_children():
                if type(layer) is Linear:
                    setattr(part, name, LoRALinear(layer, rank, alpha))


def merged(weights: dict[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """Weights with what LoRA adds added, under the names of a model that has none.

    >>> w, a, b = torch.ones(3, 2), torch.ones(1, 2), torch.ones(3, 1)
    >>> merged({"up.weight": w, "up.lora_a": a, "up.lora_b": b}, alpha=1.0)["up.weight"][0]
    tensor([2., 2.])
    """
    whole = {name: w for name, w in weights.items() if not is_lora(name)}
    for name, a in weights.items():
        layer, _, kind = name.rpartition(".")
        if kind == A:
            b, weight = weights[f"{layer}.{B}"], f"{layer}.weight"
            whole[weight] = whole[weight] + (alpha / len(a)) * (b.float() @ a.float()).to(b.dtype)
    return whole


def is_lora(name: str) -> bool:
    """Whether a weight of this name is LoRA's.

    >>> is_lora("decoder.stack.blocks.0.mlp.up.lora_a")
    True
    """
    return name.rpartition(".")[2] in (A, B)
