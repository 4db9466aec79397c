"""Products by cuBLASLt are torch's: that a compiled training goes through them wherever it can is shown here over torch's
own, what cuBLASLt makes of them on a GPU."""

import os
import sys

import pytest
import torch

from nn.test_steps import CUDA, DEVICE
from nn.test_variable_lengths import of_dynamo
from regard import presets
from regard.nn import Transformer, cublaslt
from regard.train.objectives import token_loss

needs_gpu = pytest.mark.skipif(not CUDA, reason="needs a GPU")
HALF = [torch.bfloat16, torch.float16]
NEAR = {torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """No shape was there before."""
    monkeypatch.setattr(cublaslt, "_plans", {})


def lying(n, m, how, dtype):
    """A matrix (n, m) row by row, column by column, as a part of a broader one, or one row for all."""
    if how == "one row":
        return torch.randn(1, m, device=DEVICE).to(dtype).expand(n, m)
    if how == "columns":
        return torch.randn(m, n, device=DEVICE).to(dtype).t()
    return torch.randn(n, m + 24 * (how == "part"), device=DEVICE).to(dtype)[:, :m]


@needs_gpu
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("left", ["rows", "columns", "part", "one row"])
@pytest.mark.parametrize("right", ["rows", "columns", "part", "one row"])
def test_products_however_they_lie(left, right, dtype):
    a, b = lying(8 * 13, 8 * 7, left, dtype), lying(8 * 7, 8 * 11, right, dtype)
    bias, wanted = torch.randn(88, device=DEVICE).to(dtype), a.double() @ b.double()
    near = {"atol": NEAR[dtype], "rtol": NEAR[dtype]}
    torch.testing.assert_close(cublaslt.product(a, b, None, dtype).double(), wanted, **near)
    torch.testing.assert_close(cublaslt.product(a, b, bias, dtype).double(), wanted + bias.double(), **near)
    exact = cublaslt.product(a, b, None, torch.float32)
    torch.testing.assert_close(exact, wanted.float(), atol=1e-4, rtol=1e-4)
    total = torch.ones(104, 88, device=DEVICE)
    for _ in range(2):
        cublaslt.add_product(total, a, b)
    torch.testing.assert_close(total, (1 + 2 * wanted).float(), atol=1e-4, rtol=1e-4)
    assert len(cublaslt._plans) == 4
    assert all(plan.best is not None for plan in cublaslt._plans.values())


@needs_gpu
@pytest.mark.parametrize("dtype", HALF)
def test_gelu_within_a_product(dtype):
    x, weight, bias = lying(104, 56, "rows", dtype), lying(88, 56, "rows", dtype), lying(1, 88, "rows", dtype)[0]
    out, kept = cublaslt.linear_gelu(x, weight, bias)
    wanted = x.double() @ weight.double().t() + bias.double()
    near = {"atol": NEAR[dtype], "rtol": NEAR[dtype]}
    torch.testing.assert_close(kept.double(), wanted, **near)
    torch.testing.assert_close(out.double(), torch.nn.functional.gelu(wanted, approximate="tanh"), **near)


@needs_gpu
def test_recorded_before_it_was_tried_out():
    """A shape that first comes while a graph is recorded takes what is proposed first, and is tried out later."""
    a, b = (lying(8 * 17, 8 * 17, "rows", torch.bfloat16) for _ in range(2))
    cublaslt.product(a[:8], b, None, torch.bfloat16)  # which readies the library
    cublaslt._plans.clear()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = cublaslt.product(a, b, None, torch.bfloat16)
    [plan] = cublaslt._plans.values()
    assert plan.best is None
    graph.replay()
    near = {"atol": 0.1, "rtol": NEAR[torch.bfloat16]}
    torch.testing.assert_close(out, a @ b, **near)
    torch.testing.assert_close(cublaslt.product(a, b, None, torch.bfloat16), a @ b, **near)
    assert plan.best is not None


@needs_gpu
def test_what_it_does_not_take_is_torchs(monkeypatch):
    a, b, bias = lying(16, 24, "rows", torch.bfloat16), lying(24, 8, "rows", torch.bfloat16), torch.ones(8).bfloat16()
    for of_bias, wanted in ((None, torch.float64), (bias.to(DEVICE), torch.float32), (None, torch.float16)):
        out = cublaslt.product(a, b, of_bias, wanted)
        exact = a.double() @ b.double() + (0 if of_bias is None else 1)
        assert out.dtype == wanted
        torch.testing.assert_close(out.double(), exact, atol=0.1, rtol=NEAR[torch.bfloat16])
    assert cublaslt.product(a[:0], b, None, torch.bfloat16).shape == (0, 8)
    assert not cublaslt.product(a[:, :0], b[:0], None, torch.float32).any()
    monkeypatch.setattr(cublaslt, "MOST", 0)
    monkeypatch.setattr(cublaslt, "_plans", {})
    torch.testing.assert_close(cublaslt.product(a, b, None, torch.bfloat16), a @ b)
    assert not cublaslt._plans


def test_what_lies_in_pieces_is_laid_out():
    for how in ("rows", "columns", "part"):
        assert cublaslt._lying(x := lying(7, 11, how, torch.float32)) is x
    one_row = lying(7, 11, "one row", torch.float32)
    for x in (one_row, one_row[:1], torch.ones(7, 22)[:, ::2], torch.ones(1, 1).expand(7, 11)):
        assert cublaslt._lying(x).stride() == (11, 1)


def test_operations_are_what_they_say():
    a, b, bias = (torch.randn(n, device=DEVICE).bfloat16() for n in ((16, 24), (24, 8), (8,)))
    tests = "test_schema", "test_faketensor"
    for of_bias, wanted in ((None, torch.bfloat16), (None, torch.float32), (bias, torch.bfloat16)):
        torch.library.opcheck(cublaslt.product, (a, b, of_bias, wanted), test_utils=tests)
    torch.library.opcheck(cublaslt.add_product, (torch.ones(16, 8, device=DEVICE), a, b), test_utils=tests)
    torch.library.opcheck(cublaslt.linear_gelu, (a, b.t().contiguous(), bias), test_utils=tests)


@of_dynamo
@pytest.mark.skipif(not os.environ.get("REGARD_PLAIN"), reason="compiles: tests/test_plain.py runs it")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_compiled_training_multiplies_so(smoothing, monkeypatch):
    """Under autocast: the gradients of the model as it is but for rounding, in the weights' own precision."""
    asked, multiply = [], cublaslt._multiply

    def noted(*operands, **how):
        asked.append(sys._getframe(1).f_code.co_name)
        return multiply(*operands, **how)

    monkeypatch.setattr(cublaslt, "_multiply", noted)
    if not CUDA:
        monkeypatch.setattr("regard.nn.linear.is_compiled", lambda x, dtype=None: torch.compiler.is_compiling())
    config = presets.tiny_encoder_decoder(
        d_model=64, n_heads=4, d_head=16, d_value=16, d_ff=128, activation="gelu_tanh", bias=True, dropout=0.0,
        embed_dropout=0.0, mlp_dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(1)
    model = Transformer(config).to(DEVICE)
    source, target, wanted = (torch.randint(2, 97, (3, n), device=DEVICE) for n in (17, 13, 13))

    def loss():
        with torch.autocast(DEVICE, torch.bfloat16):
            hidden = model.decode(target, model.encode(source)).hidden
            total, count = token_loss(hidden, model.vocabulary_table(), wanted, smoothing=smoothing, chunk=24)
            return total / count

    weights = dict(model.named_parameters())
    run = torch.compile(loss, fullgraph=True, backend="inductor" if CUDA else "aot_eager")
    found, exact = (torch.autograd.grad(call(), list(weights.values())) for call in (run, loss))
    assert set(asked) == {"product", "add_product", *["linear_gelu"] * CUDA}
    for name, mine, its in zip(weights, found, exact, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - its).norm() <= 0.05 * its.norm(), name
