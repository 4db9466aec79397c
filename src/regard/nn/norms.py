"""LayerNorm (Ba 2016) and RMSNorm (Zhang 2019): the width that comes in goes out.

Autocast would hand on float32, and the residual stream of a post-norm stack would stay there.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.config import Stack


class LayerNorm(nn.LayerNorm):
    """Zero mean and unit variance, then a learned scale and shift."""

    def forward(self, input: Float[Tensor, "... C"]) -> Float[Tensor, "... C"]:
        return super().forward(input).to(input.dtype)


class RMSNorm(nn.RMSNorm):
    """Unit mean square, then a learned scale."""

    def forward(self, x: Float[Tensor, "... C"]) -> Float[Tensor, "... C"]:
        assert self.weight is not None
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps).to(x.dtype)


def make_norm(config: Stack, d: int | None = None) -> LayerNorm | RMSNorm:
    """The stack's kind of norm, d_model wide unless told otherwise."""
    d = config.d_model if d is None else d
    return RMSNorm(d, config.norm_eps) if config.norm == "rms" else LayerNorm(d, config.norm_eps)
