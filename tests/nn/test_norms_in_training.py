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
from regard.nn.norms import LayerNorm, RMSNorm, normed_beside

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


def plain_gradient(gradient, x, mean, rate, scale, beside, shifted):
    """What the kernel of a norm and what goes past it is to do."""
    normed = (x - mean if shifted else x) * rate
    back = gradient * scale
    change = back - normed * (back * normed).mean(-1, keepdim=True) - shifted * back.mean(-1, keepdim=True)
    rows, stats = (gradient.flatten(0, -2), x.flatten(0, -2)), (mean.flatten(), rate.flatten())
    return change * rate + beside, plain_sums(*rows, *stats, shifted)


@pytest.mark.parametrize("kind", NORMS)
def test_what_goes_past_a_norm_has_its_gradient_too(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "regard.nn.training_kernels", SimpleNamespace(norm_gradient=plain_gradient))
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    norm = NORMS[kind](11).double()
    for weight in norm.parameters():
        nn.init.normal_(weight)
    x, back, past = (torch.randn(2, 7, 11, dtype=torch.float64, requires_grad=i == 0) for i in range(3))
    same, out = norms._Beside.apply(x, norm.weight, getattr(norm, "bias", None), norm.eps)
    torch.testing.assert_close((same, out), (x, norm(x)))
    assert [torch.equal(a, b) for a, b in zip(normed_beside(norm, x), (x, norm(x)), strict=True)] == [True, True]
    weights = [x, *norm.parameters()]
    found, its = (torch.autograd.grad(y, weights, (back, past)) for y in ((out, same), (norm(x), x * 1.0)))
    torch.testing.assert_close(found, its)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(3, 64), (259, 192), (67, 320), (17, 768)])
def test_gradient_and_sums(rows, width, shifted, dtype):
    from regard.nn.training_kernels import norm_gradient

    back, x, past = (torch.randn(rows, 2, width, device=DEVICE).to(dtype) for _ in range(3))
    scale, exact = torch.randn(width, device=DEVICE), x.double()
    mean = exact.mean(-1, keepdim=True)
    rate = (exact - mean if shifted else exact).square().mean(-1, keepdim=True).rsqrt()
    stats = mean.float(), rate.float(), scale
    found, sums = norm_gradient(back, x, *stats, past, shifted)
    wanted, its = plain_gradient(*(y.double() for y in (back, x, mean, rate, scale, past)), shifted)
    torch.testing.assert_close(found, wanted.to(dtype), atol=2 * DTYPES[dtype], rtol=DTYPES[dtype])
    torch.testing.assert_close(sums, its.float(), atol=2e-4, rtol=1e-4)
    tests = "test_schema", "test_faketensor"
    torch.library.opcheck(norm_gradient, (back, x, *stats, past, shifted), test_utils=tests)


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
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("kind", NORMS)
def test_in_training(kind, past):
    """In bfloat16, compiled: the gradients of the norm as it is, but for rounding."""
    norm = NORMS[kind](192).to(DEVICE)
    x, branch, a, b = (torch.randn(3, 67, 192, device=DEVICE, requires_grad=i < 2) for i in range(4))

    def run():
        with torch.autocast("cuda", torch.bfloat16):
            total = x.bfloat16() + branch.bfloat16()
            total, normed = normed_beside(norm, total) if past else (total, norm(total))
            return (normed * a + total * b).float().sum()

    found, wanted = (torch.autograd.grad(call(), [x, branch, *norm.parameters()]) for call in (torch.compile(run), run))
    for mine, its in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, its, atol=0.02 * its.abs().max().item(), rtol=0.02)
