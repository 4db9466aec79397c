"""A model that only runs, on a CPU: packed weights and the step's own kernels say what the plain ones say."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F

from regard.config import ModelConfig, Stack, Tokens, Vocabulary
from regard.nn import Transformer
from regard.nn import packed as packed_layers
from regard.nn.attention import FEW_TRAINED, WIDE, attend, attend_few, sum_rows
from regard.nn.masks import Lowered
from regard.nn.packed import APPLIED, Int8, Packed, multiplies_int8, pack, packs
from regard.nn.products import ACTIVATIONS
from regard.weights import dequantised, quantised

PRECISIONS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def packable(dtype: torch.dtype) -> torch.dtype:
    if not packs(torch.empty(2, 3, dtype=dtype)):
        pytest.skip(f"this machine packs no {dtype}")
    return dtype


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("then", APPLIED)
@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
def test_any_number_of_rows(dtype, then, keep):
    """Few rows are multiplied as more of them: what comes out is theirs, in their shape."""
    weight, bias = torch.randn(13, 7, dtype=packable(dtype)), torch.randn(13, dtype=dtype)
    layer = Packed(weight, bias, then, keep=keep)
    for shape in [(), (1,), (1, 1), (2, 1), (1, 3), (5,), (2, 3), (11,), (0,)]:
        x = torch.randn(*shape, 7, dtype=dtype)
        wanted = ACTIVATIONS[then](F.linear(x.float(), weight.float(), bias.float()))
        found = layer(x)
        assert (found.shape, found.dtype) == (wanted.shape, dtype)
        torch.testing.assert_close(found.float(), wanted, atol=PRECISIONS[dtype], rtol=PRECISIONS[dtype])


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "gelu_quick", "silu", "swiglu"])
def test_a_packed_model_is_the_same_model(activation):
    packable(torch.float32)
    tower = Stack(
        input=Tokens(vocab_size=89), d_model=21, n_layers=2, n_heads=3, d_ff=29, max_len=11, activation=activation,
        causal=True,
    )  # fmt: skip
    config = ModelConfig(decoder=tower, head=Vocabulary(tied=True, bias=True))
    model = Transformer(config).eval().requires_grad_(False)
    for ids in (torch.randint(0, 89, (1, 1)), torch.randint(0, 89, (3, 5))):
        wanted = model(ids)
        packed = Transformer(config).eval().requires_grad_(False)
        packed.load_state_dict(model.state_dict())
        pack(packed)
        assert not any(isinstance(layer, torch.nn.Linear) for layer in packed.modules())
        torch.testing.assert_close(packed(ids), wanted, atol=1e-5, rtol=1e-5)


whole_numbers = pytest.mark.skipif(not multiplies_int8(), reason="this machine or this torch has no such product")


@whole_numbers
@pytest.mark.parametrize("broad", [False, True])
@pytest.mark.parametrize("bias", [True, False])
def test_int8_is_the_product_of_whole_numbers(bias, broad, monkeypatch):
    """Written out: each row that comes in by its largest number, the weight's rows by theirs; sums are exact."""
    monkeypatch.setattr(packed_layers, "BROAD", 1 if broad else 10**9)
    torch.manual_seed(3)
    plain = torch.nn.Linear(67, 13, bias=bias).requires_grad_(False)
    layer = Int8(plain.weight, plain.bias)
    numbers, scale = quantised(plain.weight)
    for shape in [(1,), (1, 1), (2, 3), (11,), (0,)]:
        x = torch.randn(*shape, 67) * torch.rand(*shape, 1) * 9
        largest = x.abs().amax(-1, keepdim=True)
        rounded = (x * (layer.most / largest)).round()
        wanted = (rounded.double() @ numbers.double().T) * scale * (largest / layer.most)
        wanted = wanted if plain.bias is None else wanted + plain.bias
        found = layer(x)
        assert (found.shape, found.dtype) == (wanted.shape, torch.float32)
        torch.testing.assert_close(found, wanted.float(), atol=1e-5, rtol=1e-5)
        assert ((found - plain(x)).abs() <= 0.03 * (1 + largest)).all()
    assert torch.equal(
        layer(torch.zeros(2, 67)), torch.zeros(2, 13) if layer.bias is None else layer.bias.expand(2, 13)
    )


@whole_numbers
@pytest.mark.parametrize("broad", [False, True])
def test_int8_rows_do_not_see_each_other(broad, monkeypatch):
    monkeypatch.setattr(packed_layers, "BROAD", 1 if broad else 10**9)
    layer = Int8(torch.randn(53, 37), torch.randn(53))
    x = torch.randn(41, 37) * torch.logspace(-3, 3, 41)[:, None]
    together = layer(x)
    for rows in (1, 2, 7, 41):
        assert torch.equal(torch.cat([layer(part) for part in x.split(rows)]), together)


def test_what_was_stored_as_int8_is_the_same_int8_again():
    numbers, scale = quantised(torch.randn(31, 17) * torch.rand(31, 1))
    again, scales = quantised(dequantised(numbers, scale))
    assert torch.equal(again, numbers)
    torch.testing.assert_close(scales, scale)


@pytest.mark.parametrize("int8", [False, pytest.param(True, marks=whole_numbers)])
def test_a_layer_goes_when_it_is_packed(int8, monkeypatch):
    """Memory for two of the whole model is never needed."""
    tower = Stack(input=Tokens(vocab_size=89), d_model=24, n_layers=5, n_heads=2, d_ff=48, max_len=11, causal=True)
    model = Transformer(ModelConfig(decoder=tower, head=Vocabulary(tied=True))).eval().requires_grad_(False)
    plain = weakref.WeakSet(layer for layer in model.modules() if isinstance(layer, torch.nn.Linear))
    kind, before = (Int8 if int8 else Packed), []
    make = kind.__init__
    monkeypatch.setattr(
        kind, "__init__", lambda *args, **options: (before.append(len(plain)), make(*args, **options))[1]
    )
    n = len(plain)
    pack(model, int8=int8)
    assert n > 10
    assert all(left <= n - done + 1 for done, left in enumerate(before)), before
    assert not plain


@whole_numbers
@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_an_int8_model_is_nearly_the_same_model(activation):
    tower = Stack(
        input=Tokens(vocab_size=89), d_model=128, n_layers=2, n_heads=4, d_ff=256, max_len=11, activation=activation,
        causal=True, norm_order="pre",
    )  # fmt: skip
    torch.manual_seed(5)
    model = Transformer(ModelConfig(decoder=tower, head=Vocabulary(tied=True))).eval().requires_grad_(False)
    ids = torch.randint(0, 89, (3, 5))
    wanted = model(ids)
    pack(model, int8=True)
    assert not any(isinstance(layer, torch.nn.Linear) for layer in model.modules())
    off = 0.03 if torch.cpu._is_vnni_supported() else 0.06  # without, what comes in has a bit less
    assert (model(ids) - wanted).std() < off * wanted.std()


@pytest.mark.parametrize("keys", [1, 7, WIDE, WIDE + 1, 131])
@pytest.mark.parametrize(("heads", "groups", "queries"), [(3, 3, 1), (3, 3, 5), (6, 2, 1), (6, 2, 5)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_few_queries_are_attended_for_as_many_are(keys, heads, groups, queries, masked, monkeypatch):
    monkeypatch.setattr("regard.nn.attention.FEW_TRAINED", 0)
    torch.manual_seed(keys)
    q, k, v = (torch.randn(2, n, t, 11) for n, t in ((heads, queries), (groups, keys), (groups, keys)))
    bias = torch.rand(2, 1, queries, keys) < 0.7
    bias[..., 0] = True
    mask = Lowered(bias=bias) if masked else Lowered()
    with torch.enable_grad():  # by the fused kernel
        wanted = attend(q, k, v, mask, scale=0.3)
    torch.testing.assert_close(attend_few(q, k, v, mask, scale=0.3), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["full", "causal", "masked", "dead rows"])
@pytest.mark.parametrize("length", [FEW_TRAINED - 1, FEW_TRAINED + 5])
def test_gradients_on_either_side_of_few(length, kind, groups):
    draw = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(3, 6 // n, length, 7, generator=draw, requires_grad=True) for n in (1, groups, groups))
    seen = torch.rand(3, 1, length, length, generator=draw) < 0.7
    seen[..., 0] = True
    alive = torch.ones(3, 1, length, 1, dtype=torch.bool)
    alive[1, :, 2] = kind != "dead rows"
    mask = {
        "full": Lowered(),
        "causal": Lowered(is_causal=True),
        "masked": Lowered(bias=seen),
        "dead rows": Lowered(bias=seen, alive=alive),
    }[kind]
    if kind == "causal":
        seen = torch.ones(length, length, dtype=torch.bool).tril()
    scores = (q.double() * 0.3) @ k.double().repeat_interleave(groups, 1).transpose(2, 3)
    scores = scores if kind == "full" else scores.masked_fill(~seen, -torch.inf)
    wanted = (scores.softmax(-1) @ v.double().repeat_interleave(groups, 1)).masked_fill(~alive, 0)
    out, back = attend(q, k, v, mask, scale=0.3), torch.randn(wanted.shape, generator=draw)
    torch.testing.assert_close(out, wanted.float(), atol=1e-5, rtol=1e-5)
    found = torch.autograd.grad(out, (q, k, v), back)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, (q, k, v), back.double()), atol=1e-5, rtol=1e-4)


def test_sum_rows_wherever_they_lie():
    held = torch.randn(5, 3, 11, 7)
    views = {
        "a cache's first slots": held[:, :, :4].flatten(0, 1),
        "all of it": held.flatten(0, 1),
        "turned": held.flatten(0, 1).transpose(1, 2),
        "one for all": held[:1, 0].expand(13, -1, -1),
    }
    for name, rows in views.items():
        weights = torch.rand(len(rows), 3, rows.shape[1])
        wanted = torch.einsum("nts,nse->nte", weights, rows)
        torch.testing.assert_close(sum_rows(weights, rows), wanted, msg=lambda m, name=name: f"{name}: {m}")
