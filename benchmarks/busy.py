"""What other work on the machine costs: sentences translated on a CPU while other processes compute, by how long
torch's threads wait for each other actively before they sleep (libgomp's GOMP_SPINCOUNT).

    python benchmarks/busy.py                # two cores: alone, and beside 1 and 3 processes that each want one

300,000 is libgomp's own; 1,000 is what regard sets (regard/__init__.py). Each figure is the median of several batches
in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from statistics import median

SENTENCES = [
    "How much does this cost?",
    "The train to Munich leaves at eight.",
    "My sister bought a new car yesterday.",
] * 13
WAITS = ("300000", "10000", "1000", "0")


def translated(repeats: int) -> float:
    """Seconds for all sentences, in this process."""
    import regard

    model = regard.load("en-de", device="cpu", precision="int8")
    model.translate(SENTENCES)
    took = []
    for _ in range(repeats):
        begun = time.perf_counter()
        model.translate(SENTENCES)
        took.append(time.perf_counter() - begun)
    return median(took)


def beside(others: int, wait: str, repeats: int) -> float:
    """The same in another process, beside others."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
    try:
        environment = {**os.environ, "GOMP_SPINCOUNT": wait}
        command = [sys.executable, __file__, "--here", "--repeats", str(repeats)]
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    finally:
        for process in busy:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        print(translated(args.repeats))
        return
    others = (0, 1, 3)
    print(f"{len(SENTENCES)} sentences, beam 4, int8; seconds beside so many other processes")
    print("GOMP_SPINCOUNT", *(f"{n:>8}" for n in others))
    for wait in WAITS:
        print(f"{wait:>14}", *(f"{beside(n, wait, args.repeats):8.3f}" for n in others), flush=True)


if __name__ == "__main__":
    main()
