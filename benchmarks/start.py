"""How long a training takes to start: `regard train` of a small language model in fresh processes, compiled with an
empty cache, compiled again with what the first left there, and not compiled.

    python benchmarks/start.py                          # the GPU there is, or the CPU
    python benchmarks/start.py --device cpu --steps 40

The text is made here, and prepared before the clock runs; all from the start of the process on, imports included. The
cache is an empty folder of its own (TORCHINDUCTOR_CACHE_DIR), not that of the machine. Every step is logged, which is
how its time is known, and waits for the device. Left to itself the trainer compiles on a GPU where batches have one
shape, as here, and not on a CPU: there it is told to.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

RECIPE = """
[data]
task = "generate"
train = {{ files = "text.txt" }}
[data.tokenizer]
kind = "characters"

[model]
preset = "gpt2"
[model.decoder]
n_layers = 4
d_model = 256
n_heads = 4
d_ff = 1024
max_len = 256

[train]
steps = {steps}
batch_tokens = {tokens}
lr = 1e-3
warmup = 10
log_every = 1
valid_every = {steps}
checkpoint_every = {steps}
"""
WORDS = ["one", "two", "three", "red", "blue", "small", "large", "dog", "cat", "bird", "runs", "sleeps", "under"]


# Other processes, in another folder, find it where this one did: in a plain checkout, too.
CODE = {"PYTHONPATH": str(Path(find_spec("regard").origin).parents[1])}  # type: ignore[union-attr,arg-type]


class Start(NamedTuple):
    """Seconds from the start of a process."""

    first: float  # to the end of the first step
    end: float
    step: float  # that one of the later steps takes


def lay_out(folder: Path, steps: int, tokens: int) -> None:
    """Text, recipe, and the data made from them."""
    draw = random.Random(0)
    lines = (" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) for _ in range(20_000))
    (folder / "text.txt").write_text("".join(f"{line}.\n" for line in lines))
    (folder / "job.toml").write_text(RECIPE.format(steps=steps, tokens=tokens))
    subprocess.run(
        regard("prepare", "job.toml", "--out", "data"),
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **CODE},
    )


def regard(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "regard", *arguments]


def start(folder: Path, name: str, device: str, compiled: bool) -> Start:
    """One training in a process of its own."""
    metrics = folder / name / "metrics.jsonl"
    compile_ = f"train.compile={str(compiled).lower()}"
    command = regard("train", "job.toml", compile_, "--data", "data", "--out", name, "--device", device, "--quiet")
    environment = {**os.environ, **CODE, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=environment)
    first = None
    while process.poll() is None:
        if first is None and metrics.exists() and metrics.stat().st_size:
            first = time.perf_counter() - begin
        time.sleep(0.005)
    end = time.perf_counter() - begin
    if process.returncode or first is None:
        raise SystemExit(f"{name}: exit code {process.returncode}")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    seconds = [line["seconds"] for line in lines if line["kind"] == "train"]
    steps = [b - a for a, b in pairwise(seconds)]
    return Start(first, end, statistics.median(steps[len(steps) // 2 :]))


def earned_back(compiled: Start, plain: Start) -> str:
    """After how many steps a compiled run is where one that is not is."""
    if compiled.step >= plain.step:
        return "never: its steps are no faster"
    return f"after {max(0, round((compiled.first - plain.first) / (plain.step - compiled.step))):,} steps"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, help="left out: 300 on a GPU, 40 on a CPU")
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    steps, tokens = args.steps or (300 if on_gpu else 40), 16_384 if on_gpu else 1_024
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lay_out(folder, steps, tokens)
        # So that none of them is the first to read torch from the disk.
        subprocess.run([sys.executable, "-c", "import torch._dynamo, torch._inductor.compile_fx"], check=True)
        found = {
            "compiled, cache empty": start(folder, "empty", args.device, compiled=True),
            "compiled, cache filled": start(folder, "filled", args.device, compiled=True),
            "not compiled": start(folder, "plain", args.device, compiled=False),
        }
    where = torch.cuda.get_device_name() if on_gpu else "CPU, where only a recipe that says so is compiled"
    title = f"{steps} steps of {tokens:,} tokens, {where}, torch {torch.__version__}"
    table = Table(title=title, title_justify="left")
    for column in ("", "to the first step, s", "to the end, s", "a step, ms"):
        table.add_column(column, justify="right" if column else "left")
    for name, it in found.items():
        table.add_row(name, f"{it.first:.1f}", f"{it.end:.1f}", f"{1000 * it.step:.1f}")
    Console(width=110).print(table)
    plain = found.pop("not compiled")
    for name, it in found.items():
        print(f"{name}: earned back {earned_back(it, plain)}")


if __name__ == "__main__":
    main()
