"""A layer with what stands beside its product is that layer: over plain operations here, over those for a GPU where
triton is (on a machine without a GPU: in its interpreter)."""

import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from nn.test_steps import CUDA, DEVICE, DTYPES, needs_kernels
from nn.test_variable_lengths import of_dynamo
from regard.nn import products
from regard.nn.linear import Linear
from regard.nn.products import ACTIVATIONS, activated, parted

NAMES = [name for name in ACTIVATIONS if name != "swiglu"]


# -- what the kernels are to do, a line or two each ------------------------------------------------


def plain_gradient(kept, gradient, activation):
    x = kept.double()
    share = torch.sigmoid(1.702 * x)
    change = {
        "relu": (x > 0) * gradient,
        "gelu": torch.ops.aten.gelu_backward(gradient.double(), x),
        "gelu_tanh": torch.ops.aten.gelu_backward(gradient.double(), x, approximate="tanh"),
        "gelu_quick": gradient * share * (1 + 1.702 * x * (1 - share)),
        "silu": torch.ops.aten.silu_backward(gradient.double(), x),
    }[activation].to(kept.dtype)
    return change, change.sum(0)


def plain_together(parts):
    return torch.cat(parts, 1), torch.cat(parts, 1).sum(0)


PLAIN = SimpleNamespace(
    linear_relu=lambda x, weight, bias: F.linear(x, weight, bias).relu(),
    activate=lambda x, activation: ACTIVATIONS[activation](x),
    activation_gradient=plain_gradient,
    put_together=plain_together,
)


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setitem(sys.modules, "regard.nn.training_kernels", PLAIN)


# -- the layers ------------------------------------------------------------------------------------


def operands(rows=7, k=3, m=5, dtype=torch.float64):
    return [torch.randn(n, dtype=dtype, requires_grad=True) for n in ((rows, k), (m, k), (m,))]


@pytest.mark.parametrize("name", NAMES)
def test_activated_has_the_gradients_of_the_layer_and_its_activation(name, plain):
    given = operands()
    out = products._Activated.apply(*given, name)
    wanted = ACTIVATIONS[name](F.linear(*given))
    torch.testing.assert_close(out, wanted)
    back = torch.randn_like(out)
    for mine, its in zip(*(torch.autograd.grad(x, given, back) for x in (out, wanted)), strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("widths", [[5, 2], [3, 3, 1]])
def test_parts_have_the_gradients_of_the_whole(widths, plain):
    given = operands(m=7)
    parts, wanted = products._Parted.apply(*given, widths), F.linear(*given).split(widths, 1)
    weights = [torch.randn_like(part) for part in parts]
    for mine, its in zip(parts, wanted, strict=True):
        torch.testing.assert_close(mine, its)
    # A part that nobody uses has no gradient, and the others theirs.
    for n in (1, len(widths)):
        sums = [
            sum((part * weight).sum() for part, weight in zip(of[:n], weights[:n], strict=True))
            for of in (parts, wanted)
        ]
        found, its = (torch.autograd.grad(x, given, retain_graph=True) for x in sums)
        torch.testing.assert_close(found, its)


@pytest.mark.parametrize("name", [None, *NAMES])
def test_elsewhere_a_layer_is_itself(name):
    layer, x = Linear(3, 64), torch.randn(2, 5, 3)
    expected = layer(x) if name is None else ACTIVATIONS[name](layer(x))
    assert torch.equal(activated(layer, x, name), expected)
    assert all(map(torch.equal, parted(layer, x, [32, 32]), layer(x).split(32, -1)))


# -- the kernels -----------------------------------------------------------------------------------


def near(dtype):
    return {"atol": DTYPES[dtype], "rtol": DTYPES[dtype]}


@needs_kernels
@pytest.mark.filterwarnings("ignore:overflow encountered")  # numpy's, of an exponential that may be infinite
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_activations_and_their_gradients(name, dtype):
    from regard.nn import training_kernels as kernels

    rows, width = kernels.ROWS + kernels.TALL + 3, 3 * 64
    x = (3 * torch.randn(rows, width, device=DEVICE)).to(dtype)
    back = torch.randn(rows, width, device=DEVICE).to(dtype)
    exact = x.double().requires_grad_()
    wanted = ACTIVATIONS[name](exact)
    (change,) = torch.autograd.grad(wanted, exact, back.double())
    out = kernels.activate(x, name)
    torch.testing.assert_close(out, wanted.to(dtype), **near(dtype))
    found, total = kernels.activation_gradient(out if name == "relu" else x, back, name)
    torch.testing.assert_close(found, change.to(dtype), **near(dtype))
    torch.testing.assert_close(total, change.sum(0).float(), atol=30 * DTYPES[dtype], rtol=DTYPES[dtype])


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("widths", [(128, 64, 192), (128, 128, 128), (64, 128)])
def test_parts_are_put_together_and_summed_up(widths, dtype):
    from regard.nn import training_kernels as kernels

    rows = 2 * kernels.ROWS - 1
    # The second is a part of something broader, as a head's gradient may be.
    parts = [
        torch.randn(rows, width + (i == 1) * 16, device=DEVICE).to(dtype)[:, :width] for i, width in enumerate(widths)
    ]
    whole, total = kernels.put_together(parts)
    assert torch.equal(whole, torch.cat(parts, 1))
    torch.testing.assert_close(total, torch.cat(parts, 1).double().sum(0).float(), atol=1e-4, rtol=1e-5)


@needs_kernels
@pytest.mark.parametrize("name", NAMES)
def test_operations_are_what_they_say(name):
    from regard.nn import training_kernels as kernels

    x, weight, bias = (x.detach().to(DEVICE) for x in operands(k=64, m=64, dtype=torch.float32))
    tests = "test_schema", "test_faketensor"
    torch.library.opcheck(kernels.linear_relu, (x, weight, bias), test_utils=tests)
    torch.library.opcheck(kernels.activate, (x, name), test_utils=tests)
    torch.library.opcheck(kernels.activation_gradient, (x, x, name), test_utils=tests)
    torch.library.opcheck(kernels.put_together, ([x, x],), test_utils=tests)


@needs_kernels
@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@of_dynamo
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_layers_in_training(name, compile):
    """Under autocast, compiled or not: the layers' own gradients, but for rounding."""
    torch.manual_seed(1)
    layer = Linear(128, 192, device=DEVICE)
    x = torch.randn(3, 67, 128, device=DEVICE, requires_grad=True)

    def run(whole):
        with torch.autocast("cuda", torch.bfloat16):
            a, (b, c) = (
                (activated(layer, x, name), parted(layer, x, [128, 64]))
                if whole
                else (ACTIVATIONS[name](layer(x)), layer(x).split([128, 64], -1))
            )
            return (a * a).float().sum() + (b.float() ** 3).sum() + c.float().sin().sum()

    weights, function = [x, *layer.parameters()], torch.compile(run) if compile else run
    found, wanted = (torch.autograd.grad(call(how), weights) for call, how in ((function, True), (run, False)))
    for mine, its in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, its, atol=0.02 * its.abs().max().item(), rtol=0.02)
