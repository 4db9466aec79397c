"""Windowed attention in blocks: the same as written out over all keys, at a cost that grows with the length."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from regard import presets
from regard.nn import Transformer, masks
from regard.nn.attention import attend
from regard.nn.masks import Layout, Mask, lower, lower_densely, neighbours

B, H, G, D, E = 2, 6, 3, 5, 7


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(masks, "BLOCK", 3)


@st.composite
def windowed(draw):
    t = draw(st.integers(19, 41))
    numbers = lambda low, high: torch.tensor([draw(st.integers(low, high)) for _ in range(B)])  # noqa: E731
    maybe = lambda make: make() if draw(st.booleans()) else None  # noqa: E731
    documents = maybe(lambda: torch.tensor([sorted(draw(st.integers(0, 2)) for _ in range(t)) for _ in range(B)]))
    return t, Mask(
        causal=draw(st.booleans()),
        window=draw(st.integers(1, 3)),
        starts=maybe(lambda: numbers(0, t)),
        ends=maybe(lambda: numbers(0, t)),
        query_documents=documents,
        key_documents=documents,
    )


@settings(max_examples=40, deadline=None)
@given(windowed(), st.booleans(), st.sampled_from([torch.float32, torch.float64]))
def test_blocks_equal_all_keys(given, additive, dtype):
    t, mask = given
    torch.manual_seed(t)
    shapes = (B, H, t, D), (B, G, t, D), (B, G, t, E)
    parameters = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    w = torch.randn(H, D, dtype=dtype, requires_grad=True) if additive else None
    parameters += [] if w is None else [w]
    near = lower(mask, t, t, device=torch.device("cpu"), dtype=dtype)
    dense = lower_densely(mask, t, t, device=torch.device("cpu"), dtype=dtype)
    assert near.near is not None
    assert dense.near is None
    direction = torch.randn(B, H, t, E, dtype=dtype)
    outs = [attend(*parameters[:3], how, scale=0.37, w=w) for how in (near, dense)]  # type: ignore[arg-type]
    grads = [torch.autograd.grad((out * direction).sum(), parameters) for out in outs]
    for mine, theirs in [outs, *zip(*grads, strict=True)]:
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    "change",
    [
        {"window": 0},
        {"window": 9},  # leaves out too little
        {"prefix": torch.tensor([2, 3])},
        {"slots": torch.arange(29).expand(B, -1)},
        {"allowed": torch.ones(29, 29, dtype=torch.bool)},
        {"slopes": torch.ones(H)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_everything_else_goes_another_way(change):
    mask = Mask(causal=True, window=2)
    assert neighbours(mask, 29, 29) is not None
    assert neighbours(mask._replace(**change), 29, 29) is None


def a_model(causal: bool) -> Transformer:
    preset = presets.tiny_decoder if causal else presets.tiny_encoder
    config = preset(windows=(2, 3))
    tower = (config.decoder if causal else config.encoder).replace(max_len=997)  # type: ignore[union-attr]
    torch.manual_seed(5)
    return Transformer(config.replace(**{"decoder" if causal else "encoder": tower})).eval()


def hidden(model: Transformer, ids: torch.Tensor, layout: Layout = Layout()):
    of = model.decode if model.encoder is None else model.encode
    return of(ids, layout=layout).hidden


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
def test_a_model_is_the_same_and_shows_the_same_weights(causal, monkeypatch):
    model, ids = a_model(causal), torch.randint(2, 97, (B, 53), generator=torch.Generator().manual_seed(3))
    layout = Layout(lengths=torch.tensor([53, 31]))

    def run():
        of = model.decode if model.encoder is None else model.encode
        out = of(ids, layout=layout, capture=["1.self"])
        real = torch.arange(53) < layout.lengths[:, None]  # type: ignore[operator,index]
        return out.hidden[real], out.attended["1.self"].weights().transpose(1, 2)[real]

    near = run()
    monkeypatch.setattr(masks, "BLOCK", 1_000)
    for mine, theirs in zip(near, run(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


class Largest(TorchDispatchMode):
    """The largest tensor that anything made."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.numel = max(self.numel, *(x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor)), 0)
        return out


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
def test_cost_grows_with_the_length(causal):
    model = a_model(causal)
    flops, largest = [], []
    for t in (210, 420, 840):
        ids = torch.zeros(1, t, dtype=torch.long)
        with FlopCounterMode(display=False) as counter, Largest() as tensors:
            hidden(model, ids)
        flops.append(counter.get_total_flops())
        largest.append(tensors.numel)
    assert flops[1] == 2 * flops[0]
    assert flops[2] == 4 * flops[0]
    assert largest[2] == 2 * largest[1] == 4 * largest[0]


def test_a_fused_kernel_takes_the_blocks():
    """Of a batch as of one row: no weights are formed."""
    mask = lower(Mask(causal=True, window=3), 41, 41, device=torch.device("cpu"), dtype=torch.float32)
    for rows in (1, B):
        q, k, v = (torch.randn(rows, H, 41, D, requires_grad=True) for _ in range(3))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # it would refuse
            attend(q, k, v, mask, scale=0.37).sum().backward()
