"""How the cost grows with the work: a picture of what a token takes to write as the text, the beam and the batch grow,
and of what one takes to train as the sequence does.

    python benchmarks/growth.py                       # 2 CPU cores, or the GPU there is: docs/growth.png
    python benchmarks/growth.py --out growth-gpu.png
    python benchmarks/growth.py --windowed            # attention to everything and within a window: docs/windowed.png

GPT-2's shape at half its size for writing and training, Transformer base for beams; random weights. Every panel has the
exponent over its last half: a cost that is the same for every token has 0, one that grows with the length has 1.

Windowed: a layer of GPT-2's, forward and backward over whole texts. Here a cost that is the same for every token has 1,
and one that grows with the length 2.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from measure import Row, measure, measure_in_turns, median_time
from regard import presets
from regard.config import Stack
from regard.decode.recorded import Recorder
from regard.decode.search import Decoding, search
from regard.look.pictures import save
from regard.memory import keep_freed_memory
from regard.nn import Transformer
from regard.nn.packed import pack

SIZES = {  # of what grows: on a CPU, on a GPU
    "tokens written": ([32, 64, 128, 256, 512, 1024], [64, 128, 256, 512, 1024, 2048]),
    "beam": ([1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 16, 32]),
    "rows at once": ([1, 2, 4, 8, 16, 32, 64], [1, 4, 16, 64, 256, 512]),
    "tokens of a sequence": ([64, 128, 256, 512, 1024, 2048], [512, 1024, 2048, 4096, 8192, 16384]),
}
PER = {
    "tokens written": "ms for a token at this place",
    "beam": "ms for a token of a way",
    "rows at once": "ms for a token of a row",
    "tokens of a sequence": "µs of training for a token",
}
WINDOW = 256  # tokens that a query looks back on
LENGTHS = [1024, 2048, 4096, 8192], [1024, 2048, 4096, 8192, 16384, 32768]
ROWS = 1, 4  # texts at once: enough that a GPU, not its host, is what a short one waits for
ATTENTION = {"full": 0, "window": WINDOW}


def writer(device: str, most: int) -> Transformer:
    """Half of GPT-2: 6 layers, d 512."""
    config = presets.gpt2()
    assert config.decoder
    sizes = {"n_layers": 6, "d_model": 512, "n_heads": 8, "d_ff": 2048, "max_len": most}
    return Transformer(config.replace(decoder=config.decoder.replace(**sizes))).eval().to(device)


def written(device: str, sizes: Sequence[int]) -> list[float]:
    """What one token takes at each place of a text: the differences of what whole texts take."""
    go_on = going_on(ready(writer(device, 2 * max(sizes))))
    times = [0.0, *(seconds(lambda n=n: go_on(4, n), device) for n in sizes)]
    return [1000 * (b - a) / (n - m) for a, b, m, n in zip(times, times[1:], [0, *sizes], sizes, strict=False)]


def beams(device: str, sizes: Sequence[int]) -> list[float]:
    """What a token of each way takes, with more and more ways in which 8 sentences go on."""
    torch.manual_seed(0)
    net = ready(Transformer(presets.vaswani_base(vocab_size=16_000)).eval().to(device))
    source, recorder = torch.randint(5, 16_000, (8, 24), device=device), Recorder()

    def call(beam: int) -> object:
        with torch.inference_mode():
            memory = net.encode(source, torch.full((8,), 24, device=device))
        start = torch.full((8, 1), 1, device=device)
        how = Decoding(beam=beam, min_length=25)
        return search(net, start, memory=memory, end=2, limits=24, how=how, recorder=recorder)

    return [1000 * seconds(lambda n=n: call(n), device) / (8 * 24 * n) for n in sizes]


def rows(device: str, sizes: Sequence[int]) -> list[float]:
    """What a token of each row takes, with more and more rows."""
    go_on = going_on(ready(writer(device, 128)))
    return [1000 * seconds(lambda n=n: go_on(n, 64), device) / (64 * n) for n in sizes]


def sequences(device: str, sizes: Sequence[int]) -> list[float]:
    """What training takes for a token, with as many tokens in a step, in fewer and longer sequences."""
    torch.manual_seed(0)
    net = writer(device, max(sizes)).train()
    out = []
    for n in sizes:
        ids = torch.randint(0, 1_000, (max(sizes) // n, n + 1), device=device)

        def step(ids: torch.Tensor = ids) -> None:
            net.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                logits = net(ids[:, :-1])
            torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()).backward()

        out.append(1e6 * seconds(step, device) / max(sizes))
    return out


def ready(net: Transformer) -> Transformer:
    """For decoding, as `regard.load` has it."""
    net.requires_grad_(False)
    if next(net.parameters()).device.type == "cuda":
        return net.bfloat16()
    pack(net)
    return net


def going_on(net: Transformer) -> Callable[[int, int], object]:
    """A call that writes so many rows of so many tokens."""
    device, recorder = next(net.parameters()).device, Recorder()

    def go_on(n: int, tokens: int) -> object:
        how = Decoding(beam=1, min_length=tokens + 1)
        return search(net, torch.full((n, 1), 7, device=device), end=2, limits=tokens, how=how, recorder=recorder)

    return go_on


# -- attention to everything, and within a window ---------------------------------------------------------------------


def layer(window: int, length: int, device: str, threads: int) -> Callable[[], object]:
    """A call that runs one layer of GPT-2's forward and backward, as in training, over few other weights."""
    torch.set_num_threads(threads)
    if device == "cpu":
        keep_freed_memory()
    config, n = presets.gpt2(), ROWS[device == "cuda"]
    assert isinstance(config.decoder, Stack)
    few = config.decoder.input.replace(vocab_size=1_000)
    # Without dropout of weights, for which a CPU has no kernel that does not form them.
    sizes = {"n_layers": 1, "input": few, "max_len": length, "windows": (window,), "attn_dropout": 0.0}
    net = Transformer(config.replace(decoder=config.decoder.replace(**sizes))).to(device)
    ids = torch.randint(0, 1_000, (n, length), device=device)
    direction = torch.randn(n, length, config.decoder.d_model, device=device)

    def step() -> None:
        net.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            hidden = net.decode(ids).hidden
        hidden.backward(direction.to(hidden.dtype))

    return step


def windowed(device: str, threads: int) -> dict[str, list[Row]]:
    """Each sort of attention at each length. On a CPU the memory is a whole process's, torch included."""
    makes = {
        f"{name} {n}": partial(layer, window, n, device, threads)
        for name, window in ATTENTION.items()
        for n in LENGTHS[device == "cuda"]
    }
    if device == "cuda":
        measured = [measure(*item, warmup=3, repeats=10, device=torch.device(device)) for item in makes.items()]
    else:
        measured = measure_in_turns(makes, warmup=1, repeats=3)
    return {name: [row for row in measured if row.name.startswith(name)] for name in ATTENTION}


def print_windowed(found: dict[str, list[Row]], lengths: Sequence[int], where: str) -> None:
    table = Table(title=f"one layer forward and backward, {where}", title_justify="left")
    for column in ("tokens", "full, ms", f"window {WINDOW}, ms", "ratio", "full, GB", f"window {WINDOW}, GB"):
        table.add_column(column, justify="right")
    for n, full, near in zip(lengths, found["full"], found["window"], strict=True):
        times, memory = (full.seconds, near.seconds), (full.peak_bytes, near.peak_bytes)
        ms, gb = (f"{1000 * t:,.2f}" for t in times), (f"{b / 1e9:.2f}" for b in memory)
        table.add_row(f"{n:,}", *ms, f"{times[0] / times[1]:.2f}", *gb)
    Console(width=110).print(table)
    for name, rows in found.items():
        print(f"exponent, {name}: {exponent(lengths, [row.seconds for row in rows]):.2f}")


def drawn_windowed(found: dict[str, list[Row]], lengths: Sequence[int], where: str):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 3.4), layout="constrained")
    both = {"ms for one layer, forward and backward": "seconds", "peak memory, GB": "peak_bytes"}
    for place, (title, figures) in zip(figure.subplots(1, 2), both.items(), strict=True):
        for (name, rows), colour in zip(found.items(), ("#d55e00", "#0072b2"), strict=True):
            values = [getattr(row, figures) * (1000 if figures == "seconds" else 1e-9) for row in rows]
            label = f"window of {WINDOW}" if name == "window" else "full attention"
            label += f", exponent {exponent(lengths, values):.2f}" if figures == "seconds" else ""
            place.plot(lengths, values, "o-", color=colour, label=label)
        places = [n for n in lengths if 8 * n >= lengths[-1]]  # of shorter ones the names would touch
        place.set_xticks(places, [f"{n:,}" for n in places], fontsize=8)
        place.set_xlim(0, 1.05 * lengths[-1])
        place.set_ylim(0)
        place.set_xlabel("tokens of a text")
        place.set_title(title, fontsize=10)
        place.spines[["top", "right"]].set_visible(False)
        place.legend(frameon=False)
    figure.suptitle(where, fontsize=10)
    return figure


# -- measuring --------------------------------------------------------------------------------------------------------


def seconds(call: Callable[[], object], device: str) -> float:
    once = 0.0
    for _ in range(2 if device == "cuda" else 1):  # warm up: a GPU's first search runs and records, its second the rest
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        once = time.perf_counter() - begin
    repeats = max(3 if device == "cuda" else 1, min(9, int(2 / once)))
    return median_time(call, warmup=0, repeats=repeats, device=torch.device(device))[0]


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Of the last half: what the cost is multiplied with when the size is doubled, as a power of two."""
    half = len(sizes) // 2
    return math.log(costs[-1] / costs[half]) / math.log(sizes[-1] / sizes[half])


def drawn(found: dict[str, tuple[Sequence[int], list[float]]], where: str):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(found), 3.1), layout="constrained")
    for place, (what, (sizes, costs)) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        place.plot(sizes, costs, "o-", color="#0072b2")
        place.set_xscale("log", base=2)
        place.set_xticks(sizes, [f"{n:,}" for n in sizes], fontsize=8)
        place.minorticks_off()
        place.set_ylim(0, 1.15 * max(costs))
        place.set_xlabel(what)
        place.set_title(f"{PER[what]}\nexponent {exponent(sizes, costs):.2f}", fontsize=10)
        place.spines[["top", "right"]].set_visible(False)
    figure.suptitle(where, fontsize=10)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=2, help="on a CPU")
    parser.add_argument("--windowed", action="store_true", help="attention to everything beside that within a window")
    parser.add_argument("--out", help="the picture; left out: docs/growth.png, docs/windowed.png")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    on_gpu = args.device == "cuda"
    where = torch.cuda.get_device_name() if on_gpu else f"{args.threads} CPU threads"
    where = f"{where}, torch {torch.__version__}, {'bfloat16' if on_gpu else 'float32'}"
    if args.windowed:
        both, lengths = windowed(args.device, args.threads), LENGTHS[on_gpu]
        where = f"{where}, {'a text' if ROWS[on_gpu] == 1 else f'{ROWS[on_gpu]} texts'} at once"
        print_windowed(both, lengths, where)
        save(args.out or "docs/windowed.png", drawn_windowed, both, lengths, where)
        return
    if not on_gpu:
        keep_freed_memory()
    found = {}
    for what, measured in zip(SIZES, (written, beams, rows, sequences), strict=True):
        sizes = SIZES[what][on_gpu]
        found[what] = (sizes, measured(args.device, sizes))
        table = Table(title=f"{what}: {PER[what]}", title_justify="left")
        for size in sizes:
            table.add_column(f"{size:,}", justify="right")
        table.add_row(*(f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}" for cost in found[what][1]))
        Console(width=110).print(table)
        print(f"exponent: {exponent(*found[what]):.2f}\n", flush=True)
    save(args.out or "docs/growth.png", drawn, found, where)


if __name__ == "__main__":
    main()
