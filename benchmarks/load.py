"""Loading a model for a CPU, and what memory that takes: regard and transformers, each in a process of its own.

    python benchmarks/load.py                # GPT-2 124M and Transformer base at random weights, float32 on disk

"own" is memory that is the process's alone, "mapped" what is a part of the file, read as it is needed, which the system
may drop and read again; "most" is the most of its own while it loads. All as shares of the file, beyond what importing
the library takes, after one answer.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

CANDIDATES = ("regard float32, unpacked", "regard float32", "regard bfloat16", "regard int8", "transformers float32")


def memory(of: str) -> float:
    """What this process has, in MiB."""
    found = re.search(rf"{of}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


def measure(candidate: str, folder: Path) -> None:
    """Load it once, here, and print what it took."""
    library, precision, *rest = candidate.replace(",", "").split()
    ids = torch.tensor([[7, 11, 13]])
    import transformers

    import regard  # all of both, for everybody
    import regard.model

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kinds = {"gpt2": transformers.AutoModelForCausalLM, "base": transformers.AutoModelForSeq2SeqLM}
    _ = torch.randn(64, 64) @ torch.randn(64, 64)
    own, mapped, most, over = memory("RssAnon"), memory("RssFile"), [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.001):
            most[0] = max(most[0], memory("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    if library == "regard":
        model = regard.load(folder / "regard", device="cpu", precision=precision, packed=not rest)  # type: ignore
        loaded = time.perf_counter() - start
        model.logits(*(ids for _ in range(1 if model.config.shape == "decoder" else 2)))
    else:
        model = kinds[folder.name].from_pretrained(folder / "hf", dtype=torch.float32).eval()
        loaded = time.perf_counter() - start
        with torch.no_grad():
            model(ids) if folder.name == "gpt2" else model(ids, decoder_input_ids=ids)
    over.set()
    watcher.join()
    took = {"own": memory("RssAnon") - own, "most": most[0] - own, "mapped": memory("RssFile") - mapped}
    print(json.dumps({"seconds": loaded, **took}))


def lay_out(folder: Path) -> None:
    """Models at random weights, for both."""
    from regard import presets
    from regard.interop import to_hf
    from regard.nn import Transformer
    from regard.weights import write_weights
    from translate import lay_out as lay_out_base
    from translate import random_model

    (folder / "base").mkdir()
    base = random_model(small=False)
    lay_out_base(base, folder / "base")
    (folder / "gpt2" / "regard").mkdir(parents=True)
    (folder / "gpt2" / "hf").mkdir()
    net = Transformer(presets.gpt2())
    facts = {"task": "generate", "model": net.config.to_dict(), "recipe": {"data": {}}}
    (folder / "gpt2" / "regard" / "config.json").write_text(json.dumps(facts))
    base.tokenizer.save(folder / "gpt2" / "regard" / "tokenizer.json")
    write_weights(folder / "gpt2" / "regard" / "model.safetensors", net.state_dict())
    config, state = to_hf(net)
    (folder / "gpt2" / "hf" / "config.json").write_text(json.dumps(config))
    write_weights(folder / "gpt2" / "hf" / "model.safetensors", {n: w.contiguous() for n, w in state.items()})


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
                command = [sys.executable, __file__, "--one", candidate, str(folder / name)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found = json.loads(done.stdout.splitlines()[-1])
                shares = (f"{found[kind] / size:.2f}" for kind in ("own", "most", "mapped"))
                table.add_row(candidate, f"{found['seconds']:.2f}", *shares)
            Console(width=110).print(table)


if __name__ == "__main__":
    main()
