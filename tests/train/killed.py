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

import toy
from regard.data.store import DataDir
from regard.train import checkpoint
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
    recipe, data = toy.prepared(folder, "translate", steps=24, checkpoint_every=2, valid_every=8, ema=0.9, average=2)
    model = {**recipe.model, "encoder": {**recipe.model["encoder"], "dropout": 0.1}}
    recipe = recipe.replace(model=model)
    straight = Run(folder / "straight")
    began = time.monotonic()
    assert os.waitpid(life(recipe, data, straight.path), 0)[1] == 0
    whole = time.monotonic() - began
    draw, broken, writing = random.Random(20170612), Run(folder / "broken"), 0
    for _ in range(kills):
        child = life(recipe, data, broken.path)
        time.sleep(draw.uniform(0.1, 0.4) * whole)
        if draw.random() < 0.5:  # in the middle of a checkpoint
            until = time.monotonic() + whole
            while not list((broken.path / "state").glob(".step-*")) and time.monotonic() < until:
                if os.waitpid(child, os.WNOHANG)[0]:
                    break
        os.kill(child, signal.SIGKILL) if _alive(child) else None
        writing += bool(list((broken.path / "state").glob(".*")))
        _, status = os.waitpid(child, 0) if _alive(child) else (0, 0)
        assert status in (0, signal.SIGKILL), status
    assert os.waitpid(life(recipe, data, broken.path), 0)[1] == 0

    lines = [[(x["step"], x["kind"], x["loss"]) for x in run.lines()] for run in (straight, broken)]
    assert lines[0] == lines[1]
    ends = [checkpoint.checkpoints(run.path)[-1] for run in (straight, broken)]
    facts = [checkpoint.read_facts(end)["files"] for end in ends]
    assert facts[0] == facts[1]
    assert straight.weights.read_bytes() == broken.weights.read_bytes()
    assert not list(broken.path.rglob(".*"))
    print(f"killed {kills} times, {writing} of them while a checkpoint was written")


def _alive(child: int) -> bool:
    try:
        os.kill(child, 0)
        return True
    except ProcessLookupError:
        return False


if __name__ == "__main__":
    torch.set_num_threads(1)  # a forked child must not wait for its parent's threads
    main(Path(sys.argv[1]), int(sys.argv[2]))
