"""A linear layer by oneDNN is torch's, whatever the rows, and so are products; few shapes are ever seen."""

import pytest
import torch
import torch.nn.functional as F

from regard.nn import linear as module
from regard.nn.linear import ROWS, ZEN_5, Linear, add_product, amd_family, filled_up, linear, product
from regard.nn.lora import LoRALinear

pytestmark = pytest.mark.skipif(not module.has_onednn(torch.float32), reason="this torch has no oneDNN")
SHAPES = [(1, 7, 5), (131, 11, 13), (ROWS, 13, 11), (2 * ROWS + 1, 3, 17)]


@pytest.fixture
def seen(monkeypatch):
    """Everything goes to oneDNN; the rows that it is given."""
    rows, multiply = [], module._onednn
    monkeypatch.setattr(module, "FEWEST", 1)
    monkeypatch.setattr(module, "MANY", 1)
    monkeypatch.setattr(module, "by_onednn", lambda: (torch.float32, torch.bfloat16))
    monkeypatch.setattr(module, "_onednn", lambda x, *args: (rows.append(len(x)), multiply(x, *args))[1])
    return rows


def close(mine, exact, **near):
    torch.testing.assert_close(mine, exact.to(mine.dtype), **(near or {"atol": 1e-4, "rtol": 1e-4}))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("n", "k", "m"), SHAPES)
def test_a_layer_is_torchs_and_so_are_its_gradients(n, k, m, bias, seen):
    layer, x = Linear(k, m, bias), torch.randn(n, k, 2).mT.requires_grad_()  # not as rows lie
    exact, its = torch.nn.Linear(k, m, bias).double(), x.detach().double().requires_grad_()
    exact.load_state_dict({name: value.double() for name, value in layer.state_dict().items()})
    direction = torch.randn(n, 2, m)
    out, wanted = layer(x), exact(its)
    assert out.shape == (n, 2, m)
    assert seen, "by oneDNN"
    close(out, wanted)
    found = torch.autograd.grad((out * direction).sum(), [x, *layer.parameters()])
    expected = torch.autograd.grad((wanted * direction).sum(), [its, *exact.parameters()])
    for mine, theirs in zip(found, expected, strict=True):
        close(mine, theirs)
    spread = torch.autograd.grad(layer(x).sum(), layer.weight)[0]  # one number for all: no memory of its own
    close(spread, its.sum((0, 1)).expand(m, k))


@pytest.mark.parametrize(("n", "k", "m"), [*SHAPES, (13, 131, 7), (7, 131, 13)])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_products_however_they_lie(n, k, m, left, right, seen):
    a, b = (
        (torch.randn(k, n).t() if left else torch.randn(n, k)),
        (torch.randn(m, k).t() if right else torch.randn(k, m)),
    )
    wanted = a.double() @ b.double()
    close(product(a, b), wanted)
    close(product(a.expand(2, n, k)[1], b[:, :]), wanted)
    total = torch.ones(n, m)
    add_product(total, a, b)
    close(total, wanted + 1)
    assert len(seen) == 3
    more_exact = torch.ones(n, m, dtype=torch.float64)
    add_product(more_exact, a, b)
    close(more_exact, wanted + 1, atol=1e-4, rtol=1e-4)
    close(product(a[:, :1].expand(n, k), b), a[:, :1].double() * b.double().sum(0))
    close(product(a, b[:1].expand(k, m)), a.double().sum(1, keepdim=True) * b[:1].double())


def test_a_gradient_of_a_gradient_is_refused(seen):
    """A product by oneDNN has none, and would be silent about it."""
    layer, x = Linear(3, 5), torch.randn(7, 3, requires_grad=True)
    (once,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        once.square().sum().backward()


def test_elsewhere_products_are_torchs():
    a, b = torch.randn(7, 5), torch.randn(5, 3)
    place = torch.empty(7, 3)
    assert product(a, b, out=place) is place
    assert torch.equal(place, a @ b)
    assert torch.equal(linear(a, b.t()), F.linear(a, b.t()))


def test_processors_are_told_apart():
    assert amd_family("processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n") == ZEN_5
    assert amd_family("AMD64 Family 25 Model 97 Stepping 2, AuthenticAMD") == 25
    assert amd_family("vendor_id\t: GenuineIntel\ncpu family\t: 6\n") == 0
    assert amd_family("") == 0


def test_shapes_are_few(seen):
    """A batch of any size is one of few to oneDNN, forward and backward."""
    layer = Linear(3, 5)
    for n in range(1, 3 * ROWS, 7):
        layer(torch.randn(n, 3, requires_grad=True)).sum().backward()
    forward_and_x, of_weight = {ROWS, 2 * ROWS, 3 * ROWS}, {3, 5}
    assert set(seen) <= forward_and_x | of_weight
    assert len(filled_up(torch.ones(ROWS, 2))) == ROWS


def test_few_rows_stay_few(seen, monkeypatch):
    """A hundred rows of zeros would cost more than the five before them."""
    monkeypatch.setattr(module, "MANY", 4 * ROWS)
    layer = Linear(3, 7)
    for n in (5, 4 * ROWS - 1, 4 * ROWS + 1):
        layer(torch.randn(n, 3))
    assert seen == [5, 4 * ROWS - 1, 5 * ROWS]


@pytest.mark.parametrize("frozen", [False, True])
def test_only_what_is_trained_has_a_gradient(frozen, seen):
    layer = Linear(3, 5).requires_grad_(not frozen)
    x = torch.randn(7, 3, requires_grad=frozen)
    layer(x).sum().backward()
    assert (layer.weight.grad is None) == (layer.bias.grad is None) == frozen
    assert (x.grad is None) != frozen
    assert len(seen) == 2


def test_an_adapter_goes_the_same_way(seen):
    layer = LoRALinear(Linear(11, 13), rank=2, alpha=4.0)
    torch.nn.init.normal_(layer.lora_b)
    x = torch.randn(131, 11)
    whole = layer.weight.double() + 2 * layer.lora_b.double() @ layer.lora_a.double()
    close(layer(x), x.double() @ whole.t() + layer.bias.double())
    assert len(seen) == 3


@pytest.mark.skipif(not module.has_onednn(torch.bfloat16), reason="this processor has no bfloat16")
def test_autocast_is_heeded(seen):
    layer, x = Linear(67, 71), torch.randn(131, 67, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out, wanted = layer(x), F.linear(x, layer.weight, layer.bias)
    assert out.dtype == torch.bfloat16
    assert not seen, "torch gives bfloat16 to oneDNN by itself"
    close(out, wanted, atol=1e-2, rtol=1e-2)
    direction = torch.randn(131, 71)
    found, expected = (torch.autograd.grad((y * direction).sum(), [x, *layer.parameters()]) for y in (out, wanted))
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - theirs).norm() < 0.01 * theirs.norm()
