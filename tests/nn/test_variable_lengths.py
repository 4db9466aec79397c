"""Packed texts by their bounds: the same attention as by their documents, on kernels for variable lengths."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

import regard.nn
from laws.cases import CASES, an_input, build, outputs, without_dropout
from regard import presets
from regard.config import InputError
from regard.nn import Layout, Transformer, attend, attention, document_positions
from regard.nn.attention import Attended, Attention, attend_texts, efficient_texts, flash_texts, text_kernel
from regard.nn.masks import Lowered, Texts, cross_mask, lower, self_mask
from regard.train.compiled import compiled

TARGET, SOURCE = [[5, 3, 3], [7, 4]], [[2, 6, 5], [9, 4]]  # lengths of texts, row by row
KINDS = ["causal", "full", "cross"]
CPU = torch.device("cpu")


def packed(rows: list[list[int]], *, empty: int = 2, longest: int | None = None, device: str = "cpu") -> Layout:
    """A layout of rows of texts, with empty ones after the last."""
    documents = torch.stack([torch.repeat_interleave(torch.tensor(row)) for row in rows])
    sizes = torch.tensor([0, *(size for row in rows for size in row), *[0] * empty])
    longest = int(sizes.max()) if longest is None else longest
    bounds = sizes.cumsum(0).int().to(device)
    documents = documents.to(device)
    return Layout(documents=documents, positions=document_positions(documents), bounds=bounds, longest=longest)


def a_mask(kind: str, **how):
    target, source = packed(TARGET, **how), packed(SOURCE, **how)
    return cross_mask(source, target) if kind == "cross" else self_mask(target, causal=kind == "causal")


def heads(kind: str, *, h: int, g: int, d: int, e: int, dtype=torch.float64, device="cpu") -> list[torch.Tensor]:
    t = sum(TARGET[0])
    s = sum(SOURCE[0]) if kind == "cross" else t
    shapes = [(2, h, t, d), (2, g, s, d), (2, g, s, e)]
    return [torch.randn(shape, dtype=torch.float64).to(device, dtype).requires_grad_() for shape in shapes]


def one_by_one(q, k, v, texts, *, is_causal, scale, dropout):
    """What every kernel for variable lengths computes."""
    assert dropout == 0
    outs = []
    for i in range(len(texts.query_bounds) - 1):
        ours, theirs = (slice(*bounds[i : i + 2].tolist()) for bounds in (texts.query_bounds, texts.key_bounds))
        if ours.start < ours.stop:
            q_i, k_i, v_i = (x.transpose(0, 1)[None] for x in (q[ours], k[theirs], v[theirs]))
            outs.append(attend(q_i, k_i, v_i, Lowered(is_causal), scale=scale)[0].transpose(0, 1))
    return torch.cat(outs)


def apart(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """The length of the difference, beside that of what it should be; NaN is not below anything."""
    mine, theirs = mine.detach().double(), theirs.detach().double()
    return float((mine - theirs).norm() / theirs.norm())


def with_gradients(out, inputs, seed=3):
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return [out, *torch.autograd.grad(out, inputs, direction.to(out))]


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_whose_products_go_to_the_short_kernel_as_they_are(kind, rows, monkeypatch):
    """It is the layer as it always is, gradients included; over what the kernel is to do."""
    mask = a_mask(kind)
    t, s = sum(TARGET[0]), sum(SOURCE[0]) if kind == "cross" else sum(TARGET[0])
    dense = Lowered(kind == "causal") if rows else lower(mask, t, s, device=CPU, dtype=torch.float64)
    layer = Attention(24, d_memory=17 if kind == "cross" else None, n_heads=3).double()
    given = [torch.randn(2, t, 24, dtype=torch.float64, requires_grad=True)]
    if kind == "cross":
        given.append(torch.randn(2, s, 17, dtype=torch.float64, requires_grad=True))
    inputs = [*given, *layer.parameters()]
    wanted = with_gradients(layer(*given, mask=dense)[0], inputs)

    came = []

    def plainly(parts, query_bounds, key_bounds, longest_query, longest_key, is_causal, scale):
        monkeypatch.setattr(attention, "_has_short", lambda *_: False)
        came.append([part.shape[1] for part in parts])
        q, k, v = (x for part in parts for x in part.unbind(1))
        texts = Texts(query_bounds, key_bounds, longest_query, longest_key)
        return one_by_one(q, k, v, texts, is_causal=is_causal, scale=scale, dropout=0), None

    monkeypatch.setattr(regard.nn, "text_kernels", SimpleNamespace(attend_short=plainly), raising=False)
    monkeypatch.setattr(attention, "_has_short", lambda *_: True)
    short = Lowered(kind == "causal", texts=None if rows else mask.texts)
    found = with_gradients(layer(*given, mask=short)[0], inputs)
    assert came == [[1, 2] if kind == "cross" else [3]]
    for mine, its in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, its, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_text_by_text_is_what_documents_say(kind):
    inputs = heads(kind, h=6, g=3, d=5, e=7)
    mask = a_mask(kind)
    t, s = inputs[0].shape[2], inputs[1].shape[2]
    by_documents = attend(*inputs, lower(mask, t, s, device=CPU, dtype=torch.float64), scale=0.3)
    by_texts = attend_texts(*inputs, mask.texts, one_by_one, is_causal=mask.causal, scale=0.3)
    for mine, theirs in zip(with_gradients(by_texts, inputs), with_gradients(by_documents, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", ["tiny_decoder", "tiny_encoder", "alibi", "windows", "additive", "bilinear"])
@torch.no_grad()
def test_on_a_cpu_bounds_change_nothing(name):
    config = CASES[name]
    model = build(config)
    target, source = packed(TARGET), packed(SOURCE)
    if config.shape == "encoder-decoder":
        ids = an_input(config.encoder, 2, sum(SOURCE[0])), an_input(config.decoder, 2, sum(TARGET[0]))
        layouts = {"layout": source, "target_layout": target}
    else:
        ids, layouts = (an_input(config.last, 2, sum(TARGET[0])),), {"layout": target}
    without = {name: layout._replace(bounds=None, longest=None) for name, layout in layouts.items()}
    assert torch.equal(outputs(model(*ids, **layouts)), outputs(model(*ids, **without)))


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_bounds_stay_bounds_and_can_be_written_out(kind):
    """Lowering looks at no tensor, so that it can be asked here what it would do there."""
    mask = a_mask(kind)
    q, k, v = heads(kind, h=2, g=2, d=5, e=5)
    t, s = q.shape[2], k.shape[2]
    there = lower(mask, t, s, device=torch.device("cuda"), dtype=torch.float64)
    here = lower(mask, t, s, device=CPU, dtype=torch.float64)
    assert there.texts is mask.texts
    assert there.is_causal == (kind == "causal")
    assert there.bias is None
    assert here.texts is None
    assert torch.equal(there.dense(t, s, device=CPU, dtype=torch.float64).bias, here.bias)
    # Whoever cannot take bounds attends by documents, and the weights are seen by them too.
    assert torch.equal(attend(q, k, v, there, scale=1.0), attend(q, k, v, here, scale=1.0))
    w = torch.randn(2, 5, dtype=torch.float64)
    assert torch.equal(attend(q, k, v, there, scale=1.0, w=w), attend(q, k, v, here, scale=1.0, w=w))
    seen, expected = (Attended(q[:, 0], q, k, v, mask, 1.0).weights([1]) for mask in (there, here))
    assert torch.equal(seen, expected)


@pytest.mark.parametrize("change", ["window", "slopes", "prefix", "allowed", "ends", "starts", "slots"])
def test_what_bounds_cannot_say_is_written_out(change):
    n = sum(TARGET[0])
    values = {
        "window": 3,
        "slopes": torch.tensor([0.5, 0.25]),
        "prefix": torch.tensor([2, 1]),
        "allowed": torch.ones(n, n, dtype=torch.bool),
        "ends": torch.tensor([n, n - 1]),
        "starts": torch.tensor([0, 1]),
        "slots": torch.arange(n)[None],
    }
    mask = a_mask("causal")._replace(**{change: values[change]})
    # A made-up device: what is written out would have to be made there, what is not is never made.
    with pytest.raises((RuntimeError, AssertionError), match=r"CUDA|cuda|device"):
        lower(mask, n, n, device=torch.device("cuda", 77), dtype=torch.float64)


def test_as_many_texts_on_both_sides():
    with pytest.raises(InputError, match="the target has 7 texts, the source 8"):
        cross_mask(packed(SOURCE, empty=3), packed(TARGET))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounds": [0, 5, 8, 11, 18, 22]}, None),
        ({"bounds": [0, 5, 8, 11, 18, 22, 22, 22]}, None),
        ({"longest": 1000}, None),
        ({"longest": None}, "bounds, longest and documents belong together"),
        ({"documents": None}, "bounds, longest and documents belong together"),
        ({"bounds": None}, "bounds, longest and documents belong together"),
        ({"bounds": [0.0, 22.0]}, "bounds of dtype torch.float32 must be int32"),
        ({"bounds": [[0, 22]]}, r"bounds of shape \(1, 2\) must be one row"),
        ({"bounds": [0]}, r"bounds of shape \(1,\) must be one row"),
        ({"bounds": [0, 5, 8, 11, 18, 21]}, "bounds run from 0 to 21; they must cover all 22 tokens, from 0"),
        ({"bounds": [1, 5, 8, 11, 18, 22]}, "bounds run from 1 to 22"),
        ({"bounds": [0, 8, 5, 11, 18, 22]}, "bounds fall"),
        ({"longest": 6}, r"a text of 7 tokens is longer than longest \(6\)"),
        ({"longest": 0}, r"longest \(0\) must be a number of tokens, at least 1"),
        ({"longest": 7.0}, r"longest \(7.0\) must be a number of tokens, at least 1"),
        ({"bounds": [0, 5, 11, 18, 22]}, "bounds and documents disagree at row 0, position 8"),
        ({"bounds": [0, 5, 8, 11, 17, 22]}, "bounds and documents disagree at row 1, position 6"),
    ],
)
def test_bounds_that_do_not_fit(changes, message):
    if changes.get("bounds") is not None:
        given = torch.tensor(changes["bounds"])
        changes = {"bounds": given if given.is_floating_point() else given.int()}
    layout = packed(TARGET)._replace(**changes)
    if message is None:
        layout.check(2, 11)
    else:
        with pytest.raises(InputError, match=message):
            layout.check(2, 11)


def test_wide_bounds_are_refused():
    layout = packed(TARGET)
    with pytest.raises(InputError, match="must be int32"):
        layout._replace(bounds=layout.bounds.long()).check(2, 11)


# Annotations that are checked cannot be compiled (tests/test_plain.py).
plainly = pytest.mark.skipif(not os.environ.get("REGARD_PLAIN"), reason="runs in a process of its own")
# torch's own, when it compiles an autograd function.
of_graphs = pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # torch's own first one
of_dynamo = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.mark.slow
def test_in_a_plain_process():
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "compiled", __file__],
        env={**os.environ, "REGARD_PLAIN": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-8000:]
    assert " passed" in run.stdout


@plainly
@of_dynamo
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", [efficient_texts, flash_texts])
@pytest.mark.parametrize("scale", [8**-0.5, 0.3])
def test_kernels_are_compiled_whole(kind, kernel, scale):
    torch._dynamo.reset()
    texts = a_mask(kind, device="meta", longest=29).texts
    inputs = heads(kind, h=6, g=6, d=8, e=8, dtype=torch.bfloat16, device="meta")

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(q, k, v):
        return attend_texts(q, k, v, texts, kernel, is_causal=kind == "causal", scale=scale)

    out = run(*inputs)
    assert out.shape == inputs[0].shape
    for gradient, given in zip(torch.autograd.grad(out.sum(), inputs), inputs, strict=True):
        assert gradient.shape == given.shape


# On a GPU: benchmarks/attention_kernels.py says how fast, this says how right.
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("longest", [29, 1000])
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (torch.bfloat16, {"h": 6, "g": 6, "d": 64, "e": 64}),
        (torch.bfloat16, {"h": 6, "g": 2, "d": 24, "e": 24}),
        (torch.float16, {"h": 3, "g": 3, "d": 16, "e": 40}),
        (torch.float32, {"h": 3, "g": 3, "d": 16, "e": 16}),
    ],
)
@pytest.mark.parametrize("usual_scale", [True, False])
def test_kernels_compute_what_documents_say(kind, longest, dtype, shape, usual_scale):
    inputs = heads(kind, **shape, dtype=dtype, device="cuda")
    exact = [x.detach().cpu().double().requires_grad_() for x in inputs]
    t, s, scale = inputs[0].shape[2], inputs[1].shape[2], shape["d"] ** -0.5 if usual_scale else 0.3
    expected = attend(*exact, lower(a_mask(kind), t, s, device=CPU, dtype=torch.float64), scale=scale)
    mask = a_mask(kind, longest=longest, device="cuda")
    lowered = lower(mask, t, s, device=inputs[0].device, dtype=dtype)
    assert lowered.texts is not None
    assert text_kernel(*inputs, lowered.texts) is not None
    out = attend(*inputs, lowered, scale=scale)
    near = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-4}[dtype]
    for mine, theirs in zip(with_gradients(out, inputs), with_gradients(expected, exact), strict=True):
        assert apart(mine.cpu(), theirs) < near


@on_gpu
def test_dropout_is_the_same_in_the_backward_pass():
    """The output is linear in the values, so <out, g> = <v, dv> if and only if both passes drop alike."""
    q, k, v = heads("causal", h=6, g=6, d=64, e=64, dtype=torch.bfloat16, device="cuda")
    mask = lower(a_mask("causal", device="cuda"), q.shape[2], q.shape[2], device=q.device, dtype=q.dtype)
    assert text_kernel(q, k, v, mask.texts, 0.5) is flash_texts
    assert text_kernel(q.float(), k.float(), v.float(), mask.texts, 0.5) is None
    out, whole = (attend(q, k, v, mask, scale=0.125, dropout=p) for p in (0.5, 0.0))
    direction = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, v, direction)
    assert apart(out, whole) > 0.1
    forward, backward = ((a.double() * b.double()).sum() for a, b in ((out, direction), (v, gradient)))
    torch.testing.assert_close(forward, backward, atol=2.0, rtol=0.0)


@on_gpu
@plainly
@of_dynamo
@of_graphs
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize(
    ("longest", "dtype", "near"), [(29, None, 1e-4), (29, torch.bfloat16, 0.15), (1000, torch.bfloat16, 0.15)]
)
def test_a_compiled_training_step_is_the_same_with_bounds(longest, dtype, near):
    """Recorded once, replayed over batches with other bounds: losses and gradients as by documents."""
    config = without_dropout(presets.tiny_encoder_decoder(d_model=48, n_heads=3, d_head=16, d_value=16))
    torch.manual_seed(5)
    model = Transformer(config).cuda()

    def step(source, target, of_source, of_target):
        logits = model(source, target, layout=of_source, target_layout=of_target)
        return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())

    counters.clear()
    fast = compiled(step, torch.device("cuda"))
    other, third = ([[1, 9, 1], [2, 9]], [[11, 1, 1], [3, 10]]), ([[4, 7], [11]], [[6, 7], [13]])
    for rows, sources in ((TARGET, SOURCE), other, third):
        target, source = an_input(config.decoder, 2, 11).cuda(), an_input(config.encoder, 2, 13).cuda()
        empty = 7 - sum(len(row) for row in rows)
        layouts = [packed(x, empty=empty, longest=longest, device="cuda") for x in (sources, rows)]
        results = []
        by_documents = [layout._replace(bounds=None, longest=None) for layout in layouts]
        for run, dtype_of_run, given in ((fast, dtype, layouts), (step, None, by_documents)):
            model.zero_grad()
            with torch.autocast("cuda", dtype_of_run, enabled=dtype_of_run is not None):
                loss = run(source, target, *given)
            loss.backward()
            results.append([loss.detach().clone(), *(p.grad.clone() for p in model.parameters())])
        for mine, exact in zip(*results, strict=True):
            assert apart(mine, exact) < near
    assert not counters["graph_break"], "one graph"
    assert not counters["inductor"]["cudagraph_skips"], "recorded"
