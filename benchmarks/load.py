"""Loading a model for a CPU, and what memory that takes: regard and transformers, each in a process of its own.

    python benchmarks/load.py                # GPT-2 124M and Transformer base at random weights, float32 on disk

"own" is memory that is the process's alone, "mapped" what is a part of the file, read as it is needed, which the system
may drop and read again; "most" is the most of its own while it loads. All as shares of the file, beyond what importing
the library takes, after one answer.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

IDS = torch.tensor([[7, 11, 13]])

# -- candidates: a folder in, with all that is to be imported; a call that loads, and gives one that answers ------


def ours(folder: Path, precision: str, packed: bool = True) -> Callable[[], Callable[[], object]]:
    from regard.model import load

    def call() -> Callable[[], object]:
        model = load(folder / "regard", device="cpu", precision=precision, packed=packed)  # type: ignore[arg-type]
        return lambda: model.logits(*(IDS for _ in range(1 if model.config.shape == "decoder" else 2)))

    return call


def transformers(folder: Path) -> Callable[[], Callable[[], object]]:
    from transformers import GPT2LMHeadModel, MarianMTModel, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    kind, given = (GPT2LMHeadModel, {}) if folder.name == "gpt2" else (MarianMTModel, {"decoder_input_ids": IDS})

    def call() -> Callable[[], object]:
        model = kind.from_pretrained(folder / "hf", dtype=torch.float32).eval()
        return lambda: model(IDS, **given)

    return call


CANDIDATES = {
    "regard float32, unpacked": partial(ours, precision="float32", packed=False),
    "regard float32": partial(ours, precision="float32"),
    "regard bfloat16": partial(ours, precision="bfloat16"),
    "regard int8": partial(ours, precision="int8"),
    "transformers float32": transformers,
}


# -- measuring ------------------------------------------------------------------------------------------------------


def memory(of: str) -> float:
    """What this process has, in MiB."""
    found = re.search(rf"{of}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


def measure(candidate: str, folder: Path) -> None:
    """Load it once, here, and print what it took."""
    call = CANDIDATES[candidate](folder)
    _ = torch.randn(64, 64) @ torch.randn(64, 64)
    own, mapped, most, over = memory("RssAnon"), memory("RssFile"), [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.001):
            most[0] = max(most[0], memory("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    answer = call()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        answer()
    over.set()
    watcher.join()
    took = {"own": memory("RssAnon") - own, "most": most[0] - own, "mapped": memory("RssFile") - mapped}
    print(json.dumps({"seconds": seconds, **took}))


def lay_out(folder: Path) -> None:
    """Models at random weights, for everybody."""
    import translate
    from regard import presets
    from regard.model import Model
    from regard.nn import Transformer

    base = translate.random_model(small=False)
    gpt2 = Model(Transformer(presets.gpt2()), "generate", base.tokenizer)
    for name, model in (("base", base), ("gpt2", gpt2)):
        (folder / name).mkdir()
        translate.lay_out(model, folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        measure(args.one[0], Path(args.one[1]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lay_out(folder)
        for name in ("gpt2", "base"):
            size = (folder / name / "regard" / "model.safetensors").stat().st_size / 2**20
            table = Table(title=f"{name}, {size:,.0f} MiB", title_justify="left")
            for column in ("", "seconds", "own", "most", "mapped"):
                table.add_column(column, justify="left" if not column else "right")
            for candidate in CANDIDATES:
                if candidate.startswith("transformers") and not importlib.util.find_spec("transformers"):
                    continue
                command = [sys.executable, __file__, "--one", candidate, str(folder / name)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found = json.loads(done.stdout.splitlines()[-1])
                shares = (f"{found[kind] / size:.2f}" for kind in ("own", "most", "mapped"))
                table.add_row(candidate, f"{found['seconds']:.2f}", *shares)
            Console(width=110).print(table)


if __name__ == "__main__":
    main()
