"""Dropout (Srivastava 2014), by itself and on a branch that is added to its residual.

On a CPU torch draws a number for each element, on one core, which takes longer than all norms and sums of a block
together. Here 64 random bits serve four elements. They are of torch's own generator, so that ``torch.manual_seed``
repeats them. On other devices, and where a graph is compiled, this is torch's dropout.
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
    return F.dropout(x, p) if keep is None else x * keep


def add_dropout(x: Float[Tensor, "*N"], branch: Float[Tensor, "*N"], p: float, training: bool) -> Float[Tensor, "*N"]:
    """x plus the branch after dropout: a residual sum, in one pass.

    >>> add_dropout(torch.ones(3), torch.ones(3), 0.0, training=True)
    tensor([2., 2., 2.])
    """
    if not training:
        return x + branch
    keep = _keep(branch, p)
    return x + F.dropout(branch, p) if keep is None else torch.addcmul(x, branch, keep)


def _keep(x: Tensor, p: float) -> Tensor | None:
    """What to multiply x by, zeros and one scale; None where torch's own dropout is the better."""
    n_dropped = round(p * LEVELS)
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not 0 < n_dropped < LEVELS:
        return None
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    numbers = words.view(torch.int16)[: x.numel()].view(x.shape)
    # In 16 bits and in place: four times less to move than in the width of x.
    return numbers.ge_(n_dropped - LEVELS // 2).to(x.dtype).mul_(LEVELS / (LEVELS - n_dropped))
