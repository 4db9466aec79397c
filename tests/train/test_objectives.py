"""The chunked loss equals torch's cross-entropy over all the scores, values and gradients."""

import os
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from regard.train import objectives
from regard.train.objectives import _scored, token_loss, two_pass_loss

N, T, C, V = 3, 7, 11, 13


@pytest.mark.parametrize("chunk", [None, 1, 5, 100])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("filled", [False, True])
def test_equals_cross_entropy(filled, smoothing, biased, chunk, monkeypatch):
    monkeypatch.setattr(objectives, "by_onednn", lambda: (torch.float64,) if filled else ())  # with rows of zeros
    monkeypatch.setattr("regard.nn.linear.MANY", 1)
    hidden, table = torch.randn(N, T, C, dtype=torch.float64), torch.randn(V, C, dtype=torch.float64)
    bias = torch.randn(V, dtype=torch.float64) if biased else None
    targets = torch.randint(-1, V, (N, T))
    parts = [p.requires_grad_() for p in (hidden, table, bias) if p is not None]
    total, count = token_loss(hidden, table, targets, bias=bias, smoothing=smoothing, chunk=chunk)
    wanted = F.cross_entropy(
        F.linear(hidden, table, bias).flatten(0, 1), targets.flatten(), ignore_index=-1, label_smoothing=smoothing, reduction="sum"
    )  # fmt: skip
    torch.testing.assert_close(total, wanted)
    assert count == (targets >= 0).sum()
    for mine, theirs in zip(
        torch.autograd.grad(total * 1.7, parts), torch.autograd.grad(wanted * 1.7, parts), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("chunk", [None, 1, 5, 100])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("multiple", "filled"), [(1, False), (8, False), (1, True)])
def test_two_passes_equal_their_losses_and_divergences(multiple, filled, smoothing, biased, chunk, monkeypatch):
    monkeypatch.setattr(objectives, "by_onednn", lambda: (torch.float64,) if filled else ())
    monkeypatch.setattr("regard.nn.linear.MANY", 1)
    monkeypatch.setitem(objectives.ROW_MULTIPLE, "cpu", multiple)
    first, second = (torch.randn(N, T, C, dtype=torch.float64) for _ in range(2))
    table = torch.randn(V, C, dtype=torch.float64)
    bias = torch.randn(V, dtype=torch.float64) if biased else None
    targets = torch.randint(-1, V, (N, T))
    parts = [p.requires_grad_() for p in (first, second, table, bias) if p is not None]
    total, count = two_pass_loss(
        [first, second], table, targets, weight=5.0, bias=bias, smoothing=smoothing, chunk=chunk
    )
    scores = [F.linear(x, table, bias).flatten(0, 1)[targets.flatten() >= 0] for x in (first, second)]
    a, b = (x.log_softmax(-1) for x in scores)
    wanted = targets[targets >= 0]
    losses = [F.cross_entropy(x, wanted, label_smoothing=smoothing, reduction="sum") for x in scores]
    apart = F.kl_div(a, b, log_target=True, reduction="sum") + F.kl_div(b, a, log_target=True, reduction="sum")
    reference = (sum(losses) + 5.0 * apart / 2) / 2
    torch.testing.assert_close(total, reference)
    assert count == (targets >= 0).sum()
    for mine, theirs in zip(
        torch.autograd.grad(total * 1.7, parts), torch.autograd.grad(reference * 1.7, parts), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_two_passes_without_targets_are_zero():
    parts = [torch.randn(n, C, requires_grad=True) for n in (T, T, V)]
    total, count = two_pass_loss(parts[:2], parts[2], torch.full((T,), -1), weight=5.0)
    total.backward()
    assert (total.item(), count.item(), *(p.grad.abs().max().item() for p in parts)) == (0.0, 0, 0.0, 0.0, 0.0)


def test_rows_made_wider_for_a_gpu_change_nothing(monkeypatch):
    hidden, table = torch.randn(T, C, dtype=torch.float64), torch.randn(V, C, dtype=torch.float64)
    bias, targets = torch.randn(V, dtype=torch.float64), torch.randint(-1, V, (T,))
    parts = [p.requires_grad_() for p in (hidden, table, bias)]

    def run():
        total, _ = token_loss(hidden, table, targets, bias=bias, smoothing=0.1, chunk=3)
        return total, *torch.autograd.grad(total, parts)

    plain = run()
    monkeypatch.setitem(objectives.ROW_MULTIPLE, "cpu", 8)
    for mine, theirs in zip(run(), plain, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_no_positions_at_all_is_zero():
    hidden, table = torch.randn(0, C, requires_grad=True), torch.randn(V, C, requires_grad=True)
    total, count = token_loss(hidden, table, torch.zeros(0, dtype=torch.long))
    total.backward()
    assert (total.item(), count.item(), table.grad.abs().max().item()) == (0.0, 0, 0.0)


def test_all_targets_left_out_is_zero_and_finite():
    hidden = torch.randn(T, C, requires_grad=True)
    total, count = token_loss(hidden, torch.randn(V, C), torch.full((T,), -1))
    assert (total.item(), count.item()) == (0.0, 0)
    total.backward()
    assert hidden.grad.abs().max() == 0


def test_half_precision_is_close_and_keeps_a_confident_gradient():
    """A probability of nearly 1 must not round its gradient to zero."""
    table = torch.eye(V)
    hidden = (torch.eye(V)[:3] * 9).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        total, _ = token_loss(hidden, table, torch.tensor([0, 1, 2]))
    total.backward()
    exact = torch.autograd.grad(F.cross_entropy(hidden @ table.T, torch.tensor([0, 1, 2]), reduction="sum"), hidden)[0]
    torch.testing.assert_close(
        total, F.cross_entropy(hidden @ table.T, torch.tensor([0, 1, 2]), reduction="sum"), rtol=0.02, atol=0
    )
    torch.testing.assert_close(hidden.grad, exact, rtol=0.02, atol=1e-6)


def test_no_gradient_is_computed_where_none_is_wanted():
    """Weights that could have one have none under no_grad, and its two products of three are not made."""
    hidden, table = torch.randn(T, C, requires_grad=True), torch.randn(V, C, requires_grad=True)
    flops = []
    for context in (torch.no_grad(), torch.enable_grad()):
        with context, FlopCounterMode(display=False) as counter:
            total, _ = token_loss(hidden, table, torch.arange(T) % V)
        flops.append(counter.get_total_flops())
        assert total.requires_grad is (len(flops) == 2)
    assert 3 * flops[0] == flops[1]


@pytest.mark.parametrize("part", [0, 1, 2], ids=["hidden", "table", "bias"])
def test_what_is_frozen_does_not_stop_the_rest(part):
    parts = [torch.randn(T, C, dtype=torch.float64), torch.randn(V, C, dtype=torch.float64), torch.randn(V).double()]
    parts[part].requires_grad_()
    targets = torch.randint(0, V, (T,))
    total, _ = token_loss(parts[0], parts[1], targets, bias=parts[2], chunk=3)
    wanted = F.cross_entropy(F.linear(*parts), targets, reduction="sum")
    (mine,), (theirs,) = torch.autograd.grad(total, parts[part]), torch.autograd.grad(wanted, parts[part])
    torch.testing.assert_close(mine, theirs)


def test_a_vocabulary_larger_than_a_chunk_goes_one_position_at_a_time(monkeypatch):
    monkeypatch.setattr("regard.train.objectives.CHUNK", {"cpu": V - 1})
    hidden, table, targets = torch.randn(T, C), torch.randn(V, C), torch.randint(0, V, (T,))
    torch.testing.assert_close(
        token_loss(hidden, table, targets)[0], F.cross_entropy(hidden @ table.T, targets, reduction="sum")
    )


def test_what_is_left_out_is_not_looked_at():
    """On a CPU: a position without a target may hold anything."""
    hidden, table, targets = torch.randn(T, C), torch.randn(V, C), torch.randint(0, V, (T,))
    targets[2] = targets[5] = -1
    wanted, _ = token_loss(hidden[targets >= 0], table, targets[targets >= 0])
    hidden[targets < 0] = torch.nan
    parts = [p.requires_grad_() for p in (hidden, table)]
    total, count = token_loss(*parts, targets)
    torch.testing.assert_close(total, wanted)
    assert count == T - 2
    of_hidden, of_table = torch.autograd.grad(total, parts)
    assert of_hidden[targets < 0].abs().max() == 0
    assert of_table.isfinite().all()


def test_scores_far_apart_keep_their_loss():
    """The sum of exponentials is that of the largest alone, whether its token is the target or far from it."""
    hidden, table = torch.tensor([[300.0], [300.0]], requires_grad=True), torch.linspace(-1, 1, V)[:, None]
    targets = torch.tensor([V - 1, 0])
    total, _ = token_loss(hidden, table, targets)
    torch.testing.assert_close(total, torch.tensor(600.0))
    (mine,) = torch.autograd.grad(total, hidden)
    torch.testing.assert_close(mine, torch.tensor([[0.0], [2.0]]))


@pytest.mark.skipif(
    find_spec("triton") is None or not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"),
    reason="needs triton, and a GPU or TRITON_INTERPRET=1",
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_kernel_does_what_the_passes_do(dtype, smoothing):
    from regard.train.kernels import cross_entropy

    device = "cuda" if torch.cuda.is_available() else "cpu"
    scores = 3 * torch.randn(7, 9_001 + 3, device=device, dtype=dtype)
    scores[:, 9_001:] = 71  # padding of the table, which nobody is to read
    wanted = torch.tensor([0, 9_000, -1, 4_095, 4_096, 4_097, -100], device=device)
    *expected, change = _scored(scores.double(), None, wanted, 9_001, smoothing, wants_gradient=True)
    found = cross_entropy(scores, wanted, 9_001, smoothing)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine[wanted >= 0].double(), theirs[wanted >= 0], atol=1e-5, rtol=1e-5)
    assert not scores[:, 9_001:].any()
    assert not scores[wanted < 0].any()
    mine, theirs = (x[wanted >= 0, :9_001].double() for x in (scores, change))
    torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=2e-3 if dtype == torch.float16 else 1e-5)
