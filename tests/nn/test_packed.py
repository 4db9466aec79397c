"""A model that only runs, on a CPU: packed weights and the step's own kernels say what the plain ones say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from regard.config import ModelConfig, Stack, Tokens, Vocabulary
from regard.nn import Transformer
from regard.nn.attention import sum_rows
from regard.nn.packed import APPLIED, Packed, pack, packs

PRECISIONS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def packable(dtype: torch.dtype) -> torch.dtype:
    if not packs(torch.empty(2, 3, dtype=dtype)):
        pytest.skip(f"this machine packs no {dtype}")
    return dtype


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("then", APPLIED.values())
@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
def test_any_number_of_rows(dtype, then, keep):
    """Few rows are multiplied as more of them: what comes out is theirs, in their shape."""
    weight, bias = torch.randn(13, 7, dtype=packable(dtype)), torch.randn(13, dtype=dtype)
    [activation] = [function for function, name in APPLIED.items() if name == then]
    layer = Packed(weight, bias, then, keep=keep)
    for shape in [(), (1,), (1, 1), (2, 1), (1, 3), (5,), (2, 3), (11,), (0,)]:
        x = torch.randn(*shape, 7, dtype=dtype)
        wanted = activation(F.linear(x.float(), weight.float(), bias.float()))
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
        assert not any(type(layer) is torch.nn.Linear for layer in packed.modules())
        torch.testing.assert_close(packed(ids), wanted, atol=1e-5, rtol=1e-5)


def test_sum_rows_wherever_they_lie():
    held = torch.randn(5, 3, 11, 7)
    views = {
        "a cache's first slots": held[:, :, :4].flatten(0, 1),
        "all of it": held.flatten(0, 1),
        "turned": held.flatten(0, 1).transpose(1, 2),
        "one for all": held[:1, 0].expand(13, -1, -1),
    }
    for name, rows in views.items():
        weights = torch.rand(rows.shape[:2])
        wanted = (weights[:, :, None] * rows).sum(1)
        torch.testing.assert_close(sum_rows(weights, rows), wanted, msg=lambda m, name=name: f"{name}: {m}")
