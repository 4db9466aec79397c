"""More pairs to learn from, that a translator makes of those it has (data diversification, Nguyen et al. 2020): each
source with its translation, and each target behind its own.

    python recipes/diversify.py runs/both-ways data/both-ways data/diverse

The model was trained in both directions, on the pairs of one and as many turned around (recipes/europarl.py writes
turned.tsv): the first half of the first data directory is translated, and turned. The second one has those pairs and
what was made of them, three times as many, or as many as there are after --seconds. With --beam a text is translated in
so many ways, and the one is taken that has the most in common with what stands in its place (sequence-level
interpolation, Kim and Rush 2016). --processes share a GPU, which each would leave idle now and then; each holds up to
30 GB of it (greedily), and five ran out of an H200's memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import shutil
import time
from pathlib import Path

import numpy as np

from regard.data.store import DataDir, Ragged, sha256

ROWS = 65_536  # that a process sorts by length together
BUDGET = 131_072  # tokens read at once, times the ways that each text goes on in
OTHER = {"source": "target", "target": "source"}


def made(run: str, data: str, out: str, part: int, parts: int, until: float, beam: int) -> None:
    """One process's share: every so many texts of both columns, translated, ids for ids."""
    import regard
    from regard.decode import recorded
    from regard.decode.search import search
    from regard.decode.settings import Decoding
    from regard.decode.translate import Unit, asked, batches, encode

    model, columns = regard.load(run), halved(DataDir(data))
    longest = 1 + max(int(rows.lengths.max()) for rows in columns.values())  # and the end
    fixed = recorded.fixed_shapes(model.device)
    mine = range(part, len(columns["source"]), parts)
    numbers: dict[str, list[int]] = {name: [] for name in columns}
    ids: dict[str, list[list[int]]] = {name: [] for name in columns}
    for begin in range(0, len(mine), ROWS):
        if time.time() > until:
            break
        for name, rows in columns.items():
            units = [Unit("", rows[number].tolist()) for number in mine[begin : begin + ROWS]]
            for unit, number in zip(units, mine[begin:], strict=False):
                unit.request = number
            for batch in batches([unit for unit in units if unit.ids], BUDGET // beam, fixed=fixed):
                if time.time() > until:
                    break
                how = Decoding(beam=beam, n_best=beam, max_length=min(len(batch[0].ids) * 3 // 2 + 8, longest))
                answers = search(model.net, **asked(model, batch, encode(model, batch), [how] * len(batch)))
                for unit, found in zip(batch, answers, strict=False):
                    wanted = columns[OTHER[name]][unit.request].tolist()
                    kept = [one.ids for one in found if one.ended and worth_keeping(len(unit.ids), len(one.ids))]
                    if kept:
                        numbers[name].append(unit.request)
                        ids[name].append(nearest(kept, wanted))
        print(f"{part + 1}/{parts}: {min(begin + ROWS, len(mine)):,} of {len(mine):,}", flush=True)
    for name in columns:
        ends = np.cumsum([len(text) for text in ids[name]], dtype=int)
        flat = np.fromiter(itertools.chain.from_iterable(ids[name]), columns[name].ids.dtype)
        np.savez(Path(out) / f"{name}.{part}.npz", numbers=np.array(numbers[name], int), ids=flat, ends=ends)


def halved(data: DataDir) -> dict[str, Ragged]:
    """The pairs of one direction."""
    return {name: Ragged(rows.ids, rows.ends[: len(rows) // 2]) for name, rows in data.split("train").items()}


def nearest(found: list[list[int]], wanted: list[int]) -> list[int]:
    """The one that has most in common with what is wanted: of both's runs of one to four tokens the largest share.

    >>> nearest([[1, 2, 9], [3, 1, 2]], [1, 2, 3])
    [3, 1, 2]
    """
    if len(found) == 1:
        return found[0]
    runs = runs_of(wanted)

    def shared(ids: list[int]) -> float:
        mine = runs_of(ids)
        return len(mine & runs) / max(1, len(mine) + len(runs))

    return max(found, key=shared)


def runs_of(ids: list[int]) -> set[tuple[int, ...]]:
    return {tuple(ids[i : i + n]) for n in range(1, 5) for i in range(len(ids) - n + 1)}


def worth_keeping(n: int, m: int) -> bool:
    """Not what is much shorter or longer than a translation would be."""
    return n / 2 - 4 < m < 2 * n + 4


def chosen(rows: Ragged, numbers: np.ndarray) -> Ragged:
    """Some of the rows, one after the other."""
    lengths = rows.lengths[numbers]
    ends = np.cumsum(lengths)
    places = np.repeat(rows.ends[numbers] - ends, lengths) + np.arange(lengths.sum())
    return Ragged(rows.ids[places], ends)


def written(data: DataDir, out: Path, processes: int) -> None:
    """The new data directory: the pairs, then what was made of their sources and of their targets."""
    columns = halved(data)
    parts = {name: [Ragged(rows.ids[: rows.ends[-1]], rows.ends)] for name, rows in columns.items()}
    for read, wrote in OTHER.items():
        for process in range(processes):
            with np.load(out / f"{read}.{process}.npz") as new:
                parts[read].append(chosen(columns[read], new["numbers"]))
                parts[wrote].append(Ragged(new["ids"], new["ends"]))
            (out / f"{read}.{process}.npz").unlink()
    manifest = json.loads((data.path / "manifest.json").read_text(encoding="utf-8"))
    described = manifest["splits"]["train"]
    for name, found in parts.items():
        before = np.cumsum([0] + [len(rows.ids) for rows in found])
        with (out / f"train.{name}.bin").open("wb") as file:
            for rows in found:
                file.write(rows.ids.tobytes())
        ends = np.concatenate([rows.ends + n for rows, n in zip(found, before, strict=False)])
        ends.astype("<i8").tofile(out / f"train.{name}.ends.bin")
        described["examples"] = len(ends)
        described["columns"][name] |= {
            "tokens": int(ends[-1]),
            "longest": int(max(rows.lengths.max(initial=0) for rows in found)),
        }
    for name in manifest["files"]:
        if not name.startswith("train."):
            shutil.copy(data.path / name, out / name)
        manifest["files"][name] = {"bytes": (out / name).stat().st_size, "sha256": sha256(out / name)}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    print(f"{out}: {described['examples']:,} pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--beam", type=int, default=1, help="ways to choose from; 1: greedily")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    args = parser.parse_args()
    if args.beam < 1:
        parser.error(f"--beam ({args.beam}) must be at least 1")
    args.out.mkdir(parents=True)
    until = time.time() + args.seconds
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        told = [
            (args.run, args.data, str(args.out), part, args.processes, until, args.beam)
            for part in range(args.processes)
        ]
        pool.starmap(made, told)
    written(DataDir(args.data), args.out, args.processes)


if __name__ == "__main__":
    main()
