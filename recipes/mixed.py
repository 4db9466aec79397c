"""The mean of two models' weights: what a fine-tuned one has learned, with more of what it knew (Wortsman et al. 2022).

    python recipes/mixed.py runs/distil-en-de runs/en-de 0.8 runs/en-de-mixed

is a run directory like the second one, with 0.8 of its weights and 0.2 of those of the first, from which it began.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from regard.weights import read_weights, write_weights


def main(first: str, second: str, share: str, out: str) -> None:
    before, after = (read_weights(Path(run, "model.safetensors")) for run in (first, second))
    Path(out).mkdir(parents=True)
    for file in Path(second).glob("*.json*"):
        shutil.copy(file, out)
    write_weights(
        Path(out, "model.safetensors"), {n: before[n].float().lerp(w.float(), float(share)) for n, w in after.items()}
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
