"""What it takes to see: GPT-2 124M over 1,024 tokens, after loading.

    python benchmarks/look.py

The bars (issue 7), on two CPU cores: the picture of one head in under 2 seconds, whichever layer it is in, for the
model runs no further than that; a report with the whole grid of 12 x 12 heads in under 10 seconds and 5 MB. Weights are
random: what they are changes nothing here.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from regard import Model, Transformer, presets
from regard.memory import keep_freed_memory
from regard.nn.packed import pack

LENGTH = 1024
TIMES = 3


def main() -> None:
    keep_freed_memory()
    torch.manual_seed(0)
    net = Transformer(presets.gpt2()).requires_grad_(False)
    pack(net)
    model = Model(net, "generate", None)
    ids = torch.randint(0, 50_257, (LENGTH,))
    print(f"{torch.get_num_threads()} CPU threads, torch {torch.__version__}: GPT-2 124M, {LENGTH:,} tokens\n")
    folder = Path(tempfile.mkdtemp())
    _timed("picture of a head of the first layer", lambda: _head(model, ids, folder / "first.png", 0))
    _timed("picture of a head of the last layer", lambda: _head(model, ids, folder / "last.png", 11))
    _timed("grid of 12 x 12 heads as a picture", lambda: model.attention(ids).save(folder / "grid.png"))
    _timed("report with the grid, a head in full", lambda: model.attention(ids).save(folder / "all.html"))
    _timed("rollout", lambda: model.attention(ids).rollout())
    print(f"\nthe report has {(folder / 'all.html').stat().st_size / 1e6:.2f} MB")
    print(f"memory at the most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def _head(model: Model, ids: torch.Tensor, path: Path, layer: int) -> Path:
    return model.attention(ids, layers=layer).save(path, layer, head=3)


def _timed(what: str, call: Callable[[], object]) -> None:
    """The first time, with all that is imported then, and the best of some more."""
    seconds = []
    for _ in range(1 + TIMES):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    print(f"{what:40} first {seconds[0]:6.2f} s   then {min(seconds[1:]):6.2f} s")


if __name__ == "__main__":
    main()
