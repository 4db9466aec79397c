"""One process of several: run by test_distributed.py under torchrun, or alone."""

import json
import sys
from pathlib import Path

import torch

from regard import recipe as recipes
from regard.train.distributed import World
from regard.train.loop import Stopped, Trainer, train
from regard.train.watch import Watch


def main(recipe: str, data: str, out: str, how: str, until: int) -> None:
    """Train to the end; or to a step, save there and stop."""
    resume, plain = Path(out).exists(), Trainer._asked_to_stop
    Trainer._asked_to_stop = lambda self: self.number == until or plain(self)
    try:
        train(
            None if resume else recipes.read(recipe), data, out, resume=resume, device="cpu", shard=how == "shard",
            watch=Watch(quiet=True),
        )  # fmt: skip
    except Stopped:
        assert until
    finally:
        Trainer._asked_to_stop = plain


if __name__ == "__main__":
    torch.set_num_threads(1)
    leave, World.leave = World.leave, lambda self: None  # they meet once, for one training after the other
    for job in json.loads(sys.argv[1]):
        main(*job)
    leave(World.join("cpu"))
