"""Two processes do what one does, with whole copies of the model and with shards of it; and their checkpoints are one
another's."""

import json
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


# What two processes do in every run of the tests, once and in turn: they take longer to start than to train.
ALWAYS = {
    "translate": [("two-copy", "copy", 0), ("two-shard", "shard", 0), ("2-1", "shard", 5)],
    "match": [("two-copy", "copy", 0)],  # whose pairs are held against those of the other process
}


@pytest.fixture(params=["translate"])
def work(tmp_path_factory, request, made):
    """A folder with the data of a task, and what one process does with it: once, for all tests."""
    if request.param not in made:
        asked = ALWAYS if request.param in ALWAYS else {request.param: [("two-copy", "copy", 0)]}
        made |= {task: begun(tmp_path_factory.mktemp(task), task) for task in asked}
        together(*(job(made[task], *one) for task, jobs in asked.items() for one in jobs))
    return made[request.param]


def begun(folder, task):
    how = {"bleu": 3} if task == "translate" else {"lr": 0.001}  # more would make rounding count
    recipe, _ = toy.prepared(
        folder, task, steps=10, checkpoint_every=5, valid_every=5, micro_batches=2, ema=0.5, **how
    )  # fmt: skip
    (folder / "recipe.json").write_text(recipe.to_json())
    alone(folder, "one")
    return folder


def job(folder, out, how="copy", until=0):
    return str(folder / "recipe.json"), str(folder / "data"), str(folder / out), how, until


def alone(folder, out, until=0):
    processes_main(*job(folder, out, until=until))
    return Run(folder / out)


def together(*jobs):
    """Two processes, and what they do in turn."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *torchrun, str(HERE / "processes.py"), json.dumps(jobs)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


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
        ("match", "copy"),
        *(
            pytest.param(task, "copy", marks=pytest.mark.slow)
            for task in ("images", "caption", "show", "paint", "draw")
        ),
    ],
    indirect=["work"],
)
def test_two_processes_are_one(work, how):
    assert_same(Run(work / "one"), Run(work / f"two-{how}"))


def test_what_two_wrote_one_resumes(work):
    assert_same(Run(work / "one"), alone(work, "2-1"))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["copy", "shard"])
def test_what_one_wrote_two_resume(work, how):
    alone(work, f"1-2-{how}", until=5)
    together(job(work, f"1-2-{how}", how))
    assert_same(Run(work / "one"), Run(work / f"1-2-{how}"))
