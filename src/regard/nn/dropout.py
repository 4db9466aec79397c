"""Dropout (Srivastava 2014), by itself and on a branch that is added to its residual.

On a CPU torch draws a number for each element, on one core, which takes longer than all norms and sums of a block
together. Here 64 random bits serve four elements. They are of torch's own generator, so that ``torch.manual_seed``
repeats them.

In a graph compiled for a GPU dropout is a part of the sum and norm around it, which would wait for memory alone were it
not for the random numbers: Philox takes some hundred operations for each. There two numbers of torch's generator and an
element's place are hashed, which takes a dozen. Elsewhere this is torch's dropout.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

LEVELS = 2**16  # of 16 bits: the probability is rounded to one of so many


def dropout(x: Float[Tensor, "*N"], p: float, training: bool) -> Float[Tensor, "*N"]:
    """Zero each element with probability p and scale the others, so that the expectation stays; x if not training.

    >>> dropout(torch.ones(5), 0.9, training=False)
    tensor([1., 1., 1., 1., 1.])
    >>> sorted({round(x, 2) for x in dropout(torch.ones(99), 0.5, training=True).tolist()})
    [0.0, 2.0]
    """
    if not training:
        return x
    keep = _keep(x, p)
    if keep is not None:
        return x * keep
    return hashed_dropout(x, p) if _hashes(x, p) else F.dropout(x, p)


def add_dropout(x: Float[Tensor, "*N"], branch: Float[Tensor, "*N"], p: float, training: bool) -> Float[Tensor, "*N"]:
    """x plus the branch after dropout: a residual sum, in one pass.

    >>> add_dropout(torch.ones(3), torch.ones(3), 0.0, training=True)
    tensor([2., 2., 2.])
    """
    keep = _keep(branch, p) if training else None
    return x + dropout(branch, p, training) if keep is None else torch.addcmul(x, branch, keep)


def _keep(x: Tensor, p: float) -> Tensor | None:
    """What to multiply x by on a CPU, zeros and one scale; None elsewhere, and where nothing or all is dropped."""
    n_dropped = round(p * LEVELS)
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not 0 < n_dropped < LEVELS:
        return None
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    numbers = words.view(torch.int16)[: x.numel()].view(x.shape)
    # In 16 bits and in place: four times less to move than in the width of x.
    return numbers.ge_(n_dropped - LEVELS // 2).to(x.dtype).mul_(LEVELS / (LEVELS - n_dropped))


def _hashes(x: Tensor, p: float) -> bool:
    """Whether a graph for a GPU is compiled, and every element of x has a place in 32 bits."""
    return x.is_cuda and torch.compiler.is_compiling() and 0 < p < 1 and x.numel() < 2**31


def hashed_dropout(x: Float[Tensor, "*N"], p: float) -> Float[Tensor, "*N"]:
    """Dropout by a hash of each element's place (after lowbias32, Wellons 2018) and two random words: other masks for
    other words, not the same one elsewhere.

    >>> sorted({round(x, 2) for x in hashed_dropout(torch.ones(99), 0.5).tolist()})
    [0.0, 2.0]
    """
    first, second = torch.randint(-(2**31), 2**31, (2,), device=x.device).to(torch.int32)
    bits = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape) ^ first
    bits = (bits ^ (bits >> 16 & 0xFFFF)) * 0x7FEB352D + second
    bits = (bits ^ (bits >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)
    bits = bits ^ (bits >> 16 & 0xFFFF)
    return torch.where(bits >= round(p * 2**32) - 2**31, x * (1 / (1 - p)), 0.0)
