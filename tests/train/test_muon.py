"""Muon: as torch's own moves each matrix, of which some stand in one weight; and as safe as AdamW."""

import dataclasses

import pytest
import torch
from torch import nn

import toy
from regard import presets
from regard.config import ConfigError, InputError
from regard.nn import Transformer
from regard.recipe import Train
from regard.train import checkpoint
from regard.train.distributed import World
from regard.train.loop import Trainer, train
from regard.train.muon import Muon, matrices, orthogonal
from regard.train.optim import Optimizer
from regard.train.pieces import Load
from regard.train.plan import memory, muon_parameters, trained_parameters
from regard.train.run import Run
from regard.train.tune import is_trained
from regard.train.watch import Watch

TINY = [name for name in presets.names() if name.startswith("tiny_")]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return toy.prepared(tmp_path_factory.mktemp("pairs"), "translate")


def trainer(recipe, data, path, *, shard=False, **changes):
    world = World(0, 1, torch.device("cpu"), shard=shard)
    changed = recipe.replace(train=recipe.train.replace(optimizer="muon", **changes))
    return Trainer(changed, data, Run(path), world, Watch(quiet=True))


# ---------------------------------------------------------------------------------------
# What it does


@pytest.mark.parametrize("shape", [(7, 7), (5, 13), (13, 5)])
def test_orthogonal_keeps_directions_and_brings_lengths_to_one(shape):
    m = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    u, s, v = torch.linalg.svd(m, full_matrices=False)
    said = u.mT @ orthogonal(m) @ v.mT
    lengths = said.diagonal(dim1=1, dim2=2)
    off = said - torch.diag_embed(lengths)
    assert off.abs().max() < 1e-9
    big = s > 0.05 * s[:, :1]  # the polynomial takes longer for tiny ones
    assert ((lengths > 0.6) & (lengths < 1.25))[big].all()
    assert (s[big] / s[big].mean() - 1).abs().max() > 0.5  # they were far apart


def test_it_is_torchs_matrix_by_matrix(monkeypatch):
    """Three matrices in one weight and one alone, against torch.optim.Muon of the four; the polynomial is ours there,
    which is not in bfloat16 on a CPU."""
    import torch.optim._muon as theirs

    monkeypatch.setattr(theirs, "_zeropower_via_newtonschulz", lambda g, _c, steps, _e: orthogonal(g[None], steps)[0])
    draw = torch.Generator().manual_seed(2)
    together = {"qkv": torch.randn(17, 7, generator=draw), "out": torch.randn(7, 5, generator=draw)}
    rows = {"qkv": (7, 7, 3), "out": (7,)}
    alone = [nn.Parameter(part.clone()) for name in together for part in together[name].split(rows[name])]
    train = Train(steps=1, weight_decay=0.3, optimizer="muon")
    ours = Muon(together, rows, train, dict.fromkeys(together, 1.0))
    other = torch.optim.Muon(alone, lr=0.05, weight_decay=0.3, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        for weight in together.values():
            weight.grad = torch.randn(weight.shape, generator=draw)
        gradients = [part for name in together for part in together[name].grad.split(rows[name])]
        for weight, gradient in zip(alone, gradients, strict=True):
            weight.grad = gradient.clone()
        ours.update(0.05, None, torch.tensor(True))
        other.step()
    moved = [part for name in together for part in together[name].split(rows[name])]
    for a, b in zip(moved, alone, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-5, atol=1e-6)


def test_theirs_in_bfloat16_is_near_ours():
    import torch.optim._muon as theirs

    m = torch.randn(11, 23, generator=torch.Generator().manual_seed(3))
    told = theirs._zeropower_via_newtonschulz(m, (3.4445, -4.7750, 2.0315), 5, 1e-7)
    assert torch.dist(told.float(), orthogonal(m[None])[0]) < 0.02 * m.shape[0] ** 0.5


@pytest.mark.parametrize("preset", TINY)
def test_every_matrix_of_a_block_is_found_once_and_nothing_else_is(preset):
    model = Transformer(presets.preset(preset))
    found, weights = matrices(model), dict(model.named_parameters())
    for name, rows in found.items():
        assert sum(rows) == len(weights[name]), name
        assert weights[name].dim() == 2
    within = {name for name, w in weights.items() if ".blocks." in name and w.dim() == 2 and "score" not in name}
    assert found.keys() == within


def test_queries_keys_and_values_move_by_themselves():
    """The gradient of one does not change how the other two move."""
    model = Transformer(presets.tiny_decoder())
    name = "decoder.stack.blocks.0.self_attn.qkv.weight"
    rows = matrices(model)[name]
    moves = []
    for loud in (1.0, 1000.0):
        weight = torch.zeros(sum(rows), 23)
        gradient = torch.randn(weight.shape, generator=torch.Generator().manual_seed(4))
        gradient[: rows[0]] *= loud
        weight.grad = gradient
        Muon({name: weight}, {name: rows}, Train(steps=1), {name: 1.0}).update(0.1, None, torch.tensor(True))
        moves.append(weight)
    torch.testing.assert_close(moves[0][rows[0] :], moves[1][rows[0] :], rtol=0, atol=0)


def test_a_matrix_moves_as_far_as_adamw_would_move_it():
    """Whatever its shape: the root of the mean square of a move is a fifth of the rate, as Adam's mostly is."""
    for shape in ((31, 31), (31, 127), (127, 31)):
        weight = torch.zeros(shape)
        weight.grad = torch.randn(shape, generator=torch.Generator().manual_seed(5))
        Muon({"w": weight}, {"w": (shape[0],)}, Train(steps=1), {"w": 1.0}).update(1.0, None, torch.tensor(True))
        assert 0.14 < weight.square().mean().sqrt() < 0.24


# ---------------------------------------------------------------------------------------
# Within a run


def test_a_share_of_the_rate_and_clipping_reach_it():
    draws = {name: torch.randn(7, 5) for name in "ab"}

    def moved(shares, clip=0.0, norm=1.0):
        weights = {name: nn.Parameter(torch.zeros(7, 5)) for name in (*draws, "vector")}
        for name, weight in weights.items():
            weight.grad = draws.get(name, weight.detach()).clone()
        one = Optimizer(weights, Train(steps=1, clip=clip), {**shares, "vector": 1.0}, dict.fromkeys(draws, (7,)))
        one.update(0.1, torch.tensor(norm), torch.tensor(True))
        return {name: weight.detach() for name, weight in weights.items()}, one.muon.momenta()

    whole, _ = moved({"a": 1.0, "b": 1.0})
    shared, momenta = moved({"a": 1.0, "b": 0.5})
    torch.testing.assert_close(shared["a"], whole["a"])
    torch.testing.assert_close(shared["b"], 0.5 * whole["b"])
    _, clipped = moved({"a": 1.0, "b": 1.0}, clip=2.0, norm=8.0)
    torch.testing.assert_close(clipped["a"], momenta["a"] / 4)


def test_killed_and_resumed_is_never_killed(pairs, tmp_path, monkeypatch):
    recipe, data = pairs
    recipe = recipe.replace(train=recipe.train.replace(optimizer="muon", weight_decay=0.1))
    straight = train(recipe, data.path, tmp_path / "straight", device="cpu", watch=Watch(quiet=True))
    with toy.killed_at(10, monkeypatch):
        train(recipe, data.path, tmp_path / "broken", device="cpu", watch=Watch(quiet=True))
    broken = train(None, data.path, tmp_path / "broken", resume=True, device="cpu", watch=Watch(quiet=True))
    ends = [checkpoint.read_facts(checkpoint.checkpoints(run.path)[-1])["files"] for run in (straight, broken)]
    assert ends[0] == ends[1]
    optimizer = checkpoint.load(checkpoint.checkpoints(broken.path)[-1])[1]["optimizer"]
    assert {name.partition(".")[0] for name in optimizer} == {"momentum", "step", "exp_avg", "exp_avg_sq"}


def test_an_update_that_is_not_finite_changes_nothing(pairs, tmp_path):
    recipe, data = pairs
    one = trainer(recipe, data, tmp_path)
    loader = one._loader()
    one.step(next(loader))
    before = {name: w.detach().clone() for name, w in one.weights.items()}
    momenta = {name: m.clone() for name, m in one.optimizer.muon.momenta().items()}
    for weight in one.weights.values():
        weight.grad = torch.full_like(weight, float("nan"))
    one.optimizer.update(0.1, torch.tensor(float("nan")), torch.tensor(False))
    loader.stop()
    assert momenta.keys() == matrices(one.model).keys()
    assert all(torch.equal(w, before[name]) for name, w in one.weights.items())
    assert all(torch.equal(m, momenta[name]) for name, m in one.optimizer.muon.momenta().items())


def test_parts_add_up_for_it_too(pairs, tmp_path):
    recipe, data = pairs
    whole, cut = (trainer(recipe, data, tmp_path, micro_batches=n, clip=0.1) for n in (1, 3))
    for one in (whole, cut):
        loader = one._loader()
        one.step(next(loader))
        one.step(next(loader))
        loader.stop()
    for name in matrices(whole.model):
        torch.testing.assert_close(whole.weights[name], cut.weights[name], rtol=1e-3, atol=1e-4)


def test_what_it_cannot_do_is_refused(pairs, tmp_path):
    recipe, data = pairs
    with pytest.raises(InputError, match=r"--shard: not with train.optimizer \('muon'\)"):
        trainer(recipe, data, tmp_path, shard=True)
    with pytest.raises(ConfigError, match=r"lora \(4\): goes with"):
        Train(steps=1, lora=4, optimizer="muon").validate()
    gru = recipe.replace(model={"preset": "tiny_bahdanau"}, train=recipe.train.replace(optimizer="muon"))
    with pytest.raises(ConfigError, match="only a Transformer has matrices that it moves"):
        gru.validate()


@pytest.mark.parametrize("preset", TINY)
def test_plan_counts_its_weights(preset):
    config = presets.preset(preset)
    model, train = Transformer(config), Train(steps=1, optimizer="muon")
    found = muon_parameters(config, train)
    assert found == sum(dict(model.named_parameters())[name].numel() for name in matrices(model))
    here = Load(rows=2, length=3)
    saved = memory(config, here).optimizer - memory(config, here, by_muon=found).optimizer
    assert saved == 4 * found
    for n in range(5):
        last, weights = dataclasses.replace(train, train_last=n), dict(model.named_parameters())
        moved = sum(weights[name].numel() for name in matrices(model) if is_trained(name, config, last))
        assert muon_parameters(config, last) == moved <= (trained_parameters(config, last) or 0)
