"""What every benchmark here shares: timing, peak memory, and the table that ends a run."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from rich.console import Console
from rich.table import Table


@dataclass
class Row:
    """One candidate's figures."""

    name: str
    seconds: float  # median of one call
    spread: float  # slowest over fastest of the repeats
    peak_bytes: int  # of device memory; 0 on a CPU


def median_time(call: Callable[[], object], *, warmup: int, repeats: int, device: torch.device) -> tuple[float, float]:
    """Median seconds of one call, and slowest over fastest. On a GPU by its own events."""
    for _ in range(warmup):
        call()
    if device.type != "cuda":
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
    else:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        torch.cuda.synchronize()
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        torch.cuda.synchronize()
        times = [a.elapsed_time(b) / 1000 for a, b in pairwise(marks)]
    return statistics.median(times), max(times) / min(times)


def measure(name: str, make: Callable[[], Callable[[], object]], *, warmup: int, repeats: int, device) -> Row:
    """Build a candidate, time it, note its peak memory, and let go of it."""
    gc.collect()
    torch._dynamo.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    call = make()
    seconds, spread = median_time(call, warmup=warmup, repeats=repeats, device=device)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return Row(name, seconds, spread, peak)


def report(title: str, rows: list[Row], *, work: float, unit: str, ours: str = "", beside: str = "") -> None:
    """Print the rate of every row, and the ratio of ours (the slowest, where there are several) to the best peer.

    Rows with ``beside`` in their name are shown without being the peer.
    """
    table = Table(title=title, title_justify="left")
    for column in ("", unit, "ms", "spread", "peak GB"):
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        table.add_row(
            row.name, f"{work / row.seconds:,.0f}", f"{row.seconds * 1000:,.2f}", f"{row.spread:.2f}",
            f"{row.peak_bytes / 1e9:.1f}" if row.peak_bytes else "-",
        )  # fmt: skip
    Console(width=100).print(table)
    mine = [row for row in rows if ours and ours in row.name]
    peers = [row for row in rows if row not in mine and not (beside and beside in row.name)]
    if mine and peers:
        best, slowest = min(peers, key=lambda row: row.seconds), max(mine, key=lambda row: row.seconds)
        print(f"ratio: {slowest.name} / {best.name} = {best.seconds / slowest.seconds:.3f}\n", flush=True)
