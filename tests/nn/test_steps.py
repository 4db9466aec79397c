"""A step of decoding over kernels is the model's own: over plain ones here, over those for a GPU where triton is (on a
machine without a GPU: in its interpreter)."""

import copy
import os
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import presets
from regard.config import Positions, Tokens
from regard.decode.search import Decoding, search
from regard.nn import Transformer, cpu_kernels, steps
from regard.nn.masks import Layout, as_added
from regard.nn.norms import LayerNorm, RMSNorm
from regard.nn.packed import pack
from regard.nn.products import ACTIVATIONS

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
# Not with shape annotations checked: that takes triton's functions apart.
READY = (CUDA or os.environ.get("TRITON_INTERPRET") == "1") and bool(os.environ.get("REGARD_PLAIN"))
HAS_KERNELS = find_spec("triton") is not None and READY
needs_kernels = pytest.mark.skipif(not HAS_KERNELS, reason="needs triton, REGARD_PLAIN=1, a GPU or TRITON_INTERPRET=1")
KERNELS = ["plain", *["a CPU's"] * (not CUDA), pytest.param("triton", marks=needs_kernels)]


# -- what the kernels are to do, a line each ------------------------------------------------------


def plain_linear(x, weight, bias=None, *, norm=None, activation=None, residual=None, dtype=None):
    out = F.linear(x if norm is None else norm(x), weight, bias)
    out = out if activation is None else ACTIVATIONS[activation](out)
    return (out if residual is None else out + residual).to(dtype or x.dtype)


def plain_add_norm(x, branch, norm):
    return norm(x if branch is None else x + branch)


def plain_look(q, k, v, *, scale, heads, new=None, position=None, seen=None, bias=None, alive=None):
    b, groups, s, _ = k.shape
    q = q.unflatten(0, (b, -1)).unflatten(2, (heads, -1)).transpose(1, 2)  # (B, H, N, D)
    ways = q.shape[2]
    if new is not None:
        slots = position[:, None] * ways + torch.arange(ways, device=q.device)
        for kept, given in zip((k, v), new, strict=True):
            given = given.unflatten(0, (b, ways)).unflatten(2, (groups, -1)).transpose(1, 2)
            kept.scatter_(2, slots[:, None, :, None].expand_as(given), given)
        bias = (torch.arange(s, device=q.device) <= slots[..., None]) & (True if seen is None else seen)  # (B, N, S)
        bias = bias[:, None]
    out = F.scaled_dot_product_attention(q, k, v, bias, scale=scale, enable_gqa=True)
    out = out if alive is None else out.masked_fill(~alive, 0)
    return out.transpose(1, 2).flatten(2).flatten(0, 1)


def plain_past(cache, slots):
    return {"position": cache.position, "seen": cache.visible(slots, cache.k.shape[3])}


PLAIN = SimpleNamespace(linear=plain_linear, add_norm=plain_add_norm, look=plain_look, past=plain_past)


def kernels_of(name):
    if name == "plain":
        return PLAIN
    if name == "a CPU's":
        return cpu_kernels
    from regard.nn import kernels

    return kernels


# -- the laws -------------------------------------------------------------------------------------

MODELS = {
    "decoder": presets.tiny_decoder(),
    "post-norm": presets.tiny_decoder(norm_order="post", activation="relu", max_len=41),
    "llama": presets.tiny_llama(),
    "interleaved": presets.tiny_llama(positions=Positions(kind="rotary", layout="interleaved"), activation="silu"),
    "encoder-decoder": presets.tiny_encoder_decoder(),
    "pre-norm translator": presets.tiny_encoder_decoder(norm_order="pre", activation="gelu"),
    "captioner": presets.tiny_captioner(),
    "plain dot": presets.tiny_decoder(score="dot", activation="gelu_quick"),
}


def started(config, lanes, rows=3):
    """A model, a cache over prompts of different lengths, and the ids that come next."""
    model = Transformer(config).eval().requires_grad_(False).to(DEVICE)
    memory = None
    if isinstance(getattr(config.encoder, "input", None), Tokens):
        source = torch.randint(0, 101, (rows, 11), device=DEVICE)
        memory = model.encode(source, Layout(lengths=torch.tensor([11, 0, 5], device=DEVICE)[:rows]))
    elif config.encoder is not None:
        memory = model.encode(torch.randn(rows, 3, 12, 12, device=DEVICE))
    cache = model.start(memory, batch_size=rows, max_len=17, lanes=lanes)
    lengths = torch.tensor([5, 2, 7], device=DEVICE)[:rows]
    model.decode(torch.randint(0, 101, (rows, 7), device=DEVICE), layout=lengths, cache=cache)
    cache.follow(torch.zeros(rows, lanes, dtype=torch.long, device=DEVICE))
    return model, cache, torch.randint(0, 101, (rows, lanes), device=DEVICE)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_a_step_is_what_the_model_decodes(name, lanes, kernels):
    model, cache, ids = started(MODELS[name], lanes)
    twin = copy.deepcopy(cache)
    assert steps.composes(model, cache, ids)
    for parents in ([0, 2, 1], [1, 1, 2], [2, 0, 0], [0, 1, 2]):
        expected = model.logits(model.decode(ids, cache=twin).hidden)
        found = steps.step(model, cache, ids, kernels_of(kernels))
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(cache.k[:, :, :, :-1], twin.k[:, :, :, :-1], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(cache.v[:, :, :, :-1], twin.v[:, :, :, :-1], atol=1e-5, rtol=1e-4)
        assert torch.equal(cache.position, twin.position)
        chosen = torch.tensor(parents[:lanes], device=DEVICE).clamp_max(lanes - 1).expand(3, -1)
        cache.follow(chosen)
        twin.follow(chosen)
        ids = expected.argmax(-1)


@torch.inference_mode()
def test_one_row_alone():
    for name in MODELS:
        model, cache, ids = started(MODELS[name], 1, rows=1)
        twin = copy.deepcopy(cache)
        for kernels in ["plain", *["a CPU's"] * (not CUDA), *["triton"] * HAS_KERNELS]:
            here = copy.deepcopy(cache)
            found = steps.step(model, here, ids, kernels_of(kernels))
            expected = model.logits(model.decode(ids, cache=copy.deepcopy(twin)).hidden)
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.skipif(CUDA, reason="layers are packed for a CPU")
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("rows", [1, 3])  # one alone has a kernel of its own
@pytest.mark.parametrize("name", ["decoder", "llama", "encoder-decoder"])
@torch.inference_mode()
def test_packed_layers_take_part(name, rows, int8):
    """In whole numbers a last digit that is another can become another whole number: seldom, so most scores tell."""
    model, cache, ids = started(MODELS[name], 1, rows=rows)
    pack(model, int8=int8)
    assert steps.composes(model, cache, ids)
    for _ in range(3):
        expected = model.logits(model.decode(ids, cache=copy.deepcopy(cache)).hidden)
        found = steps.step(model, cache, ids)
        torch.testing.assert_close(found, expected, atol=1e-2 if int8 else 2e-5, rtol=1e-4)
        assert not int8 or (found - expected).abs().median() < 1e-4
        ids = expected.argmax(-1)


@pytest.mark.skipif(CUDA, reason="on a GPU weights and cache are alike")
@torch.inference_mode()
def test_a_cache_may_be_more_exact_than_the_model():
    model = Transformer(MODELS["encoder-decoder"]).eval().requires_grad_(False).bfloat16()
    cache = model.start(model.encode(torch.randint(0, 101, (3, 11))), max_len=17, dtype=torch.float32)
    model.decode(torch.randint(0, 101, (3, 5)), cache=cache)
    ids, twin = torch.randint(0, 101, (3, 1)), copy.deepcopy(cache)
    expected = model.logits(model.decode(ids, cache=twin).hidden).float()
    assert steps.composes(model, cache, ids)
    torch.testing.assert_close(steps.step(model, cache, ids), expected, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(cache.k, twin.k, atol=2e-2, rtol=2e-2)


@torch.inference_mode()
def test_a_search_on_a_cpu_makes_such_steps(monkeypatch):
    made = []
    monkeypatch.setattr(steps, "step", lambda *given, step=steps.step: made.append(1) or step(*given))
    model = Transformer(MODELS["llama"]).eval()
    search(model, torch.tensor([[5, 6], [7, 8]]), end=2, limits=5, how=Decoding(beam=3), never=[2])
    assert len(made) == 4  # the first token is the prompt's


UNFIT = {
    "alibi": presets.tiny_decoder(positions=Positions(kind="alibi")),
    "window": presets.tiny_decoder(windows=(3, 0)),
    "additive": presets.tiny_decoder(score="additive"),
    "bilinear": presets.tiny_decoder(score="bilinear"),
    "normed queries": presets.tiny_decoder(qk_norm=True),
}


@pytest.mark.parametrize("name", UNFIT)
@torch.inference_mode()
def test_what_does_not_fit_is_not_taken(name):
    assert not steps.composes(*started(UNFIT[name], 1))


@torch.inference_mode()
def test_a_model_that_trains_has_its_dropout():
    model, cache, ids = started(MODELS["decoder"], 1)
    assert not steps.composes(model.train(), cache, ids)


@torch.inference_mode()
def test_a_model_that_somebody_listens_to_runs_as_it_is():
    model, cache, ids = started(MODELS["decoder"], 1)
    hook = model.attention("decoder.0.self").out.register_forward_pre_hook(lambda module, given: None)
    assert not steps.composes(model, cache, ids)
    hook.remove()
    assert steps.composes(model, cache, ids)


DTYPES = {torch.float32: 1e-5, torch.float16: 2e-3, **({torch.bfloat16: 2e-2} if CUDA else {})}  # not interpreted


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 19, 67])
@torch.inference_mode()
def test_products(rows, dtype):
    linear = kernels_of("triton").linear
    layer = nn.Linear(128, 83, device=DEVICE, dtype=dtype)
    x, residual = (torch.randn(rows, n, device=DEVICE, dtype=dtype) for n in (128, 83))
    norms = LayerNorm(128).to(DEVICE, dtype), RMSNorm(128, 1e-6).to(DEVICE, dtype)
    for norm in norms:
        nn.init.normal_(norm.weight)
    nn.init.normal_(norms[0].bias)
    asked = [{"activation": name} for name in ("relu", "gelu", "gelu_tanh", "gelu_quick", "silu")]
    asked += [{"norm": norm} for norm in norms]
    asked += [{}, {"residual": residual}, {"dtype": torch.float32}, {"norm": norms[0], "residual": residual}]
    for how in asked:
        for bias in (layer.bias, None):
            found = linear(x, layer.weight, bias, **how)
            wide = {name: x.double() if isinstance(x, Tensor) else x for name, x in how.items()}
            wide["norm"] = copy.deepcopy(how["norm"]).double() if "norm" in how else None
            wide["dtype"] = torch.float64
            expected = plain_linear(x.double(), layer.weight.double(), None if bias is None else bias.double(), **wide)
            assert found.dtype == how.get("dtype", dtype)
            torch.testing.assert_close(found.double(), expected, atol=8 * DTYPES[dtype], rtol=4 * DTYPES[dtype])


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [23, 64])
@torch.inference_mode()
def test_looking(width, dtype):
    b, groups, shared, ways, slots = 3, 2, 3, 5, 5 * 41 + 1
    heads = groups * shared
    k, v = (torch.randn(b, groups, slots, n, device=DEVICE, dtype=dtype) for n in (width, 19))
    qkv = torch.randn(b * ways, heads * width + groups * (width + 19), device=DEVICE, dtype=dtype)
    q, *new = qkv.split([heads * width, groups * width, groups * 19], dim=1)
    position = torch.tensor([40, 0, 17], device=DEVICE)
    seen = torch.rand(b, ways, slots, device=DEVICE) < 0.5
    for way in range(ways):  # of the newest, each its own
        for row in range(b):
            at = int(position[row]) * ways
            seen[row, way, at : at + ways] = torch.arange(ways, device=DEVICE) == way
    how = {"scale": 0.3, "heads": heads, "position": position, "seen": seen}
    kept = [(k.clone(), v.clone()), (k.double(), v.double())]
    found = kernels_of("triton").look(q, *kept[0], new=tuple(new), **how)
    expected = plain_look(q.double(), *kept[1], new=tuple(x.double() for x in new), **how)
    torch.testing.assert_close(found.double(), expected, atol=4 * DTYPES[dtype], rtol=DTYPES[dtype])
    for mine, theirs in zip(*kept, strict=True):
        assert torch.equal(mine.double(), theirs)
    bias = torch.rand(b, 1, 1, slots, device=DEVICE) < 0.3
    bias[..., 0] = True
    alive = torch.tensor([True, False, True], device=DEVICE)[:, None, None, None]
    added = as_added(bias, dtype)
    for mask in ({}, {"bias": bias}, {"bias": bias[:1]}, {"bias": added}, {"bias": bias, "alive": alive}):
        found = kernels_of("triton").look(q, k, v, scale=0.3, heads=heads, **mask)
        wide = {name: x.double() if x is added else x for name, x in mask.items()}
        expected = plain_look(q.double(), k.double(), v.double(), scale=0.3, heads=heads, **wide)
        torch.testing.assert_close(found.double(), expected, atol=4 * DTYPES[dtype], rtol=DTYPES[dtype])
