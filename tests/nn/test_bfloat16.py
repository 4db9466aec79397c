"""bfloat16 on a CPU: attention with a gradient is computed in float32, for torch has no fast kernel for it."""

import pytest
import torch

from regard import Model, Transformer, presets, recipe
from regard.config import Positions
from regard.data.tokenizer import Tokenizer
from regard.nn.attention import attend
from regard.nn.masks import Lowered

B, H, G, T, S, D, E = 2, 6, 3, 5, 7, 11, 13


def masks():
    bias = torch.randn(B, 1, T, S)
    return {"none": Lowered(), "boolean": Lowered(bias=bias > 0), "bias": Lowered(bias=bias.bfloat16())}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", ["none", "boolean", "bias"])
def test_attention_is_that_of_float32(name, autocast):
    mask = masks()[name]
    given = [torch.randn(B, h, n, d).bfloat16() for h, n, d in ((H, T, D), (G, S, D), (G, S, E))]
    half = [x.clone().requires_grad_() for x in given]
    wide = [x.float().requires_grad_() for x in given]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = attend(*half, mask, scale=0.3)
    in_float32 = Lowered(bias=mask.bias.float() if name == "bias" else mask.bias)
    wanted = attend(*wide, in_float32, scale=0.3)
    assert out.dtype == torch.bfloat16
    assert out.equal(wanted.bfloat16())
    gradient = torch.randn_like(out)
    mine = torch.autograd.grad(out, half, gradient)
    theirs = torch.autograd.grad(wanted, wide, gradient.float())
    for a, b in zip(mine, theirs, strict=True):
        assert a.equal(b.bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", [{"beam": 2}, {"temperature": 0}])
@pytest.mark.parametrize(
    "config",
    [
        presets.tiny_decoder(positions=Positions(kind="alibi")),
        presets.tiny_decoder(positions=Positions(kind="alibi"), n_kv_heads=1),
        presets.tiny_lstm(),
    ],
    ids=["alibi", "alibi, shared keys", "lstm"],
)
def test_every_model_writes_in_half_precision(config, how, dtype):
    """Whatever its cache is in."""
    tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    last = config.last.replace(input=config.last.input.replace(vocab_size=len(tokens)))
    torch.manual_seed(1)
    model = Model(Transformer(config.replace(decoder=last)).to(dtype), "generate", tokens)
    for prompt in ("a dog", "a dog that runs after a cat, and so on"):
        [said] = model.generate([prompt], max_new_tokens=5, **how)
        assert said.tokens
