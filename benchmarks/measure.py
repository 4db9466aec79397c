"""What every benchmark here shares: timing, peak memory, and the table that ends a run."""

from __future__ import annotations

import gc
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table


@dataclass
class Row:
    """One candidate's figures."""

    name: str
    seconds: float  # median of one call
    spread: float  # slowest over fastest of the repeats
    peak_bytes: int  # of a GPU's memory, or of a process; 0 where it was not taken


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


def measure_in_turns(makes: dict[str, Callable[[], Callable[[], object]]], *, warmup: int, repeats: int) -> list[Row]:
    """A CPU's way: candidates are called in turn, so that whatever else it is busy with slows all of them alike, and
    each in a process of its own, for what one frees decides what it costs the next to allocate."""
    spawn = multiprocessing.get_context("spawn")
    workers = {}
    for name, make in makes.items():
        here, there = spawn.Pipe()
        spawn.Process(target=_answer, args=(make, there), daemon=True).start()
        workers[name] = here
    for name, worker in list(workers.items()):
        if missing := worker.recv():
            print(f"{name}: left out ({missing})")
            del workers[name]
    answers: dict[str, list[tuple[float, int]]] = {name: [] for name in workers}
    for _ in range(warmup + repeats):
        for name, worker in workers.items():
            worker.send(True)
            answers[name].append(worker.recv())
    rows = []
    for name, given in answers.items():
        times = [seconds for seconds, _ in given[warmup:]]
        rows.append(Row(name, statistics.median(times), max(times) / min(times), given[-1][1]))
        workers[name].send(False)
    return rows


def _answer(make: Callable[[], Callable[[], object]], asked: Connection) -> None:
    """Build a candidate, then time one call whenever asked: seconds, and the largest memory so far."""
    try:
        call = make()
    except ImportError as error:
        asked.send(str(error))
        return
    asked.send("")
    while asked.recv():
        begin = time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
        asked.send((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def in_turns(makes: dict[str, Callable[[], Callable[[], object]]], warmup: int, repeats: int) -> list[Row]:
    """A GPU's way: all in one process, called in turn."""
    calls, times = {}, {}
    for name, make in makes.items():
        try:
            calls[name], times[name] = make(), []
        except ImportError as error:
            print(f"{name}: left out ({error})")
    for _ in range(warmup + repeats):
        for name, call in calls.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            torch.cuda.synchronize()
            times[name].append(time.perf_counter() - begin)
    taken = {name: all_[warmup:] for name, all_ in times.items()}
    return [Row(name, statistics.median(t), max(t) / min(t), 0) for name, t in taken.items()]


def kept(make: Callable[[], Callable[[], object]], path: Path) -> Callable[[], object]:
    """A candidate whose answer is left in a file, for the others to be held against."""
    call = make()
    path.write_text(json.dumps(call()))
    return call


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
