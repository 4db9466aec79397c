"""Kill a training process without warning, again and again, and let it go on: run by test_killed.py in a process of its own.

Children are forked from a parent that has imported everything, so that a life takes a fraction of a second. They are killed
at random moments, some of them while a checkpoint is being written.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # which an optimizer would import, in every child again: two seconds of a life

import toy
from regard.data.store import DataDir
from regard.train import checkpoint, tasks
from regard.train.loop import train
from regard.train.run import Run
from regard.train.watch import Watch


def life(recipe, data: DataDir, path: Path) -> int:
    """A process that trains, or goes on training."""
    child = os.fork()
    if child == 0:
        resume = path.exists()
        try:
            train(None if resume else recipe, data.path, path, resume=resume, device="cpu", watch=Watch(quiet=True))
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    return child


def main(folder: Path, kills: int) -> None:
    recipe, data = toy.prepared(folder, "translate", steps=40, checkpoint_every=2, valid_every=8, ema=0.9, average=2)
    model = {**recipe.model, "encoder": {**recipe.model["encoder"], "dropout": 0.1}}
    recipe = recipe.replace(model=model)
    straight = Run(folder / "straight")
    began = time.monotonic()
    assert os.waitpid(life(recipe, data, straight.path), 0)[1] == 0
    whole = time.monotonic() - began
    draw, broken, writing, resumed = random.Random(20170612), Run(folder / "broken"), 0, set()
    for _ in range(kills):
        begun = _newest(broken)
        resumed.add(begun)
        child, ended = life(recipe, data, broken.path), None
        until = begun + draw.choice([0, 2, 2, 4])  # so many steps further, at least
        while ended is None and _newest(broken) < until:
            ended = _reap(child)
        if draw.random() < 0.5:  # in the middle of a checkpoint
            while ended is None and not list((broken.path / "state").glob(".partial.step-*")):
                ended = _reap(child)
        else:
            time.sleep(draw.uniform(0, 0.1) * whole)
        if ended is None:
            os.kill(child, signal.SIGKILL)
            writing += bool(list((broken.path / "state").glob(".*")))
            ended = os.waitpid(child, 0)[1]
        assert ended in (0, signal.SIGKILL), ended
    assert os.waitpid(life(recipe, data, broken.path), 0)[1] == 0

    lines = [[(x["step"], x["kind"], x["loss"]) for x in run.lines()] for run in (straight, broken)]
    assert lines[0] == lines[1]
    ends = [checkpoint.checkpoints(run.path)[-1] for run in (straight, broken)]
    facts = [checkpoint.read_facts(end)["files"] for end in ends]
    assert facts[0] == facts[1]
    assert straight.weights.read_bytes() == broken.weights.read_bytes()
    assert not list(broken.path.rglob(".*"))
    print(f"killed {kills} times, {writing} of them while a checkpoint was written, resumed from {len(resumed)} steps")


def _newest(run: Run) -> int:
    """The step of the newest checkpoint."""
    folders = checkpoint.checkpoints(run.path)
    return int(folders[-1].name.partition("-")[2]) if folders else 0


def _reap(child: int) -> int | None:
    """How a child ended; None while it lives."""
    time.sleep(0.002)
    done, status = os.waitpid(child, os.WNOHANG)
    return status if done else None


if __name__ == "__main__":
    tasks.samples = lambda *_: iter(())  # to write them takes longer than to train
    torch.set_num_threads(1)  # a forked child must not wait for its parent's threads
    main(Path(sys.argv[1]), int(sys.argv[2]))
