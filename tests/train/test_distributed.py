"""Two processes do what one does, with whole copies of the model and with shards of it; and their checkpoints are one
another's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

import toy
from regard.train.run import Run
from train.processes import main as processes_main

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def made():
    return {}


@pytest.fixture(params=["translate"])
def work(tmp_path_factory, request, made):
    """Data of a task, and what one process does with it: once, for all tests."""
    if request.param not in made:
        folder = tmp_path_factory.mktemp("processes")
        how = {"bleu": 3} if request.param == "translate" else {"lr": 0.001}  # more would make rounding count
        recipe, data = toy.prepared(
            folder, request.param, steps=10, checkpoint_every=5, valid_every=5, micro_batches=2, ema=0.5, **how
        )
        (folder / "recipe.json").write_text(recipe.to_json())
        run(folder, data, "one", 1)
        made[request.param] = folder, data
    return made[request.param]


def run(folder, data, out, processes, how="copy", until=0):
    if processes == 1:
        processes_main(folder / "recipe.json", data.path, folder / out, how, until)
        return Run(folder / out)
    arguments = [HERE / "processes.py", folder / "recipe.json", data.path, folder / out, how, str(until)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *torchrun, *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return Run(folder / out)


def losses(run):
    return [(line["step"], line["kind"], line["loss"]) for line in run.lines()]


def assert_same(one, other):
    assert [x[:2] for x in losses(one)] == [x[:2] for x in losses(other)]
    assert [x[2] for x in losses(other)] == pytest.approx([x[2] for x in losses(one)], rel=1e-6)
    mine, theirs = load_file(one.weights), load_file(other.weights)
    assert {n: w.shape for n, w in mine.items()} == {n: w.shape for n, w in theirs.items()}


@pytest.mark.parametrize(
    ("work", "how"),
    [
        ("translate", "copy"),
        ("translate", "shard"),
        ("match", "copy"),  # whose pairs are held against those of the other process
        *(
            pytest.param(task, "copy", marks=pytest.mark.slow)
            for task in ("images", "caption", "show", "paint", "draw")
        ),
    ],
    indirect=["work"],
)
def test_two_processes_are_one(work, how):
    folder, data = work
    assert_same(Run(folder / "one"), run(folder, data, f"two-{how}", 2, how))


def test_what_two_wrote_one_resumes(work):
    folder, data = work
    run(folder, data, "2-1", 2, "shard", until=5)
    assert_same(Run(folder / "one"), run(folder, data, "2-1", 1))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["copy", "shard"])
def test_what_one_wrote_two_resume(work, how):
    folder, data = work
    run(folder, data, f"1-2-{how}", 1, until=5)
    assert_same(Run(folder / "one"), run(folder, data, f"1-2-{how}", 2, how))
