"""torch.compile(fullgraph=True) takes every shape's training forward and its cached decode step."""

import pytest
import torch

from laws.cases import CASES, DECODERS, B, T, build, inputs, lengths_of, outputs, without_dropout
from regard.nn import Transformer, dropout


@pytest.mark.parametrize("name", CASES)
def test_training_forward(name):
    torch._dynamo.reset()
    config = CASES[name]
    model = Transformer(without_dropout(config)).double().train()
    first, second = inputs(config)
    layout = lengths_of(first, torch.tensor([first.shape[1], 3, 1]))

    def run(first, second):
        return outputs(model(first, second, layout=layout))

    out = torch.compile(run, fullgraph=True, backend="aot_eager")(first, second)
    wanted = run(first, second)
    torch.testing.assert_close(out, wanted)
    for mine, theirs in zip(
        torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True),
        torch.autograd.grad(wanted.square().sum(), list(model.parameters()), allow_unused=True),
        strict=True,
    ):
        if theirs is not None:
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_one_compiled_step_serves_every_position(name):
    torch._dynamo.reset()
    model = build(CASES[name])
    first, second = inputs(model.config)
    ids = first if second is None else second
    memory = None if second is None else model.encode(first)
    whole = model.decode(ids, memory).hidden
    cache = model.start(memory, batch_size=None if memory else B, max_len=T)
    step = torch.compile(lambda token: model.decode(token, cache=cache).hidden, fullgraph=True, backend="aot_eager")
    out = [step(ids[:, :1].clone())]
    with torch.compiler.set_stance("fail_on_recompile"):
        out += [step(ids[:, t : t + 1].clone()) for t in range(1, T)]
    torch.testing.assert_close(torch.cat(out, dim=1), whole)


@torch.no_grad()
def test_capture_is_an_output_of_the_graph():
    torch._dynamo.reset()
    model = build(CASES["tiny_encoder_decoder"])
    first, second = inputs(model.config)

    def run(source, target):
        return model.decode(target, model.encode(source), capture=["1.cross"]).attended["1.cross"]

    seen = torch.compile(run, fullgraph=True, backend="aot_eager")(first, second)
    torch.testing.assert_close(seen.weights(), run(first, second).weights())


def test_hashed_dropout_has_one_mask_for_output_and_gradient(monkeypatch):
    """As in a graph for a GPU. Whether the gradient hashes again is the compiler's choice."""
    torch._dynamo.reset()
    monkeypatch.setattr(dropout, "_hashes", lambda *_: True)
    x, branch = (torch.randn(31, 37, requires_grad=True) for _ in range(2))

    def sum_of(x, branch):
        return dropout.add_dropout(x, branch, 0.3, training=True)

    out = torch.compile(sum_of, fullgraph=True, backend="aot_eager_decomp_partition")(x, branch)
    of_x, of_branch = torch.autograd.grad(out.sum(), (x, branch))
    assert of_x.equal(torch.ones_like(x))
    torch.testing.assert_close(out, x + branch * of_branch)
    assert 0.2 < (of_branch == 0).double().mean() < 0.4


@torch.no_grad()
def test_inductor_itself():
    """The other tests stop before code is generated, which takes long; one goes all the way."""
    torch._dynamo.reset()
    model = build(CASES["tiny_llama"])
    ids, _ = inputs(model.config)
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(ids), model(ids))
