"""A norm whose gradients are taken apart is that norm: over plain operations here, over a kernel for a GPU where triton is
(on a machine without a GPU: in its interpreter)."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nn.test_steps import CUDA, DEVICE, DTYPES, needs_kernels
from nn.test_variable_lengths import of_dynamo
from regard.nn import norms
from regard.nn.norms import LayerNorm, RMSNorm

NORMS = {"layer": LayerNorm, "rms": lambda d: RMSNorm(d, 1e-5)}


def plain_sums(gradient, x, mean, rate, shifted):
    """What the kernel is to do."""
    normed = (x - (mean[:, None] if shifted else 0)) * rate[:, None]
    return torch.stack([(gradient * normed).sum(0), gradient.sum(0)])[: 1 + shifted]


@pytest.mark.parametrize("kind", NORMS)
def test_gradients_are_the_norms_own(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "regard.nn.training_kernels", SimpleNamespace(norm_sums=plain_sums))
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # to compare more exactly
    norm = NORMS[kind](11).double()
    for weight in norm.parameters():
        nn.init.normal_(weight)
    x, back = torch.randn(2, 7, 11, dtype=torch.float64, requires_grad=True), torch.randn(2, 7, 11, dtype=torch.float64)
    out, wanted = norms._Normed.apply(x, norm.weight, getattr(norm, "bias", None), norm.eps), norm(x)
    torch.testing.assert_close(out, wanted)
    found, its = (torch.autograd.grad(y, [x, *norm.parameters()], back) for y in (out, wanted))
    torch.testing.assert_close(found, its)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(3, 64), (259, 192), (513, 128)])
def test_sums(rows, width, shifted, dtype):
    from regard.nn.training_kernels import norm_sums

    back, x = (torch.randn(rows, width, device=DEVICE).to(dtype) for _ in range(2))
    mean, rate = torch.randn(2, rows, device=DEVICE)
    found = norm_sums(back, x, mean, rate, shifted)
    wanted = plain_sums(*(y.double() for y in (back, x, mean, rate)), shifted)
    torch.testing.assert_close(found, wanted.float(), atol=2e-4, rtol=1e-4)
    torch.library.opcheck(norm_sums, (back, x, mean, rate, shifted), test_utils=("test_schema", "test_faketensor"))


@needs_kernels
@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@of_dynamo
@pytest.mark.parametrize("kind", NORMS)
def test_in_training(kind):
    """In bfloat16, compiled: the gradients of the norm as it is, but for rounding."""
    norm = NORMS[kind](192).to(DEVICE)
    x, branch, a, b = (torch.randn(3, 67, 192, device=DEVICE, requires_grad=i < 2) for i in range(4))

    def run():
        with torch.autocast("cuda", torch.bfloat16):
            total = x.bfloat16() + branch.bfloat16()
            return (norm(total) * a + total * b).float().sum()

    found, wanted = (torch.autograd.grad(call(), [x, branch, *norm.parameters()]) for call in (torch.compile(run), run))
    for mine, its in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, its, atol=0.02 * its.abs().max().item(), rtol=0.02)
