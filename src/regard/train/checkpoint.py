"""What a run can be resumed from: safetensors and one JSON file that names them with their hashes. Nothing is pickled.

A checkpoint is a folder ``state/step-N``. It is written under another name and renamed when all of it is on the disk,
so that whatever ends the process, what is there is whole. It holds whole tensors, however many processes wrote it, and
so resumes on any number.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from regard.config import InputError
from regard.data.store import sha256
from regard.files import draft_of, flush, told

LARGEST_FILE = 2 * 2**30  # bytes; what is held beside the model while a file is written


def save(run: Path, step: int, tensors: Iterable[tuple[str, str, Tensor]], facts: dict[str, Any]) -> Path:
    """Write the checkpoint of a step: ``tensors`` are (file, name, value), in the order of their files."""
    folder = _folder(run, step)
    with told(folder):
        return _save(folder, tensors, facts)


def _save(folder: Path, tensors: Iterable[tuple[str, str, Tensor]], facts: dict[str, Any]) -> Path:
    draft = draft_of(folder)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    files: dict[str, Any] = {}
    for number, (name, group) in enumerate(_groups(tensors)):
        path = draft / f"{name}-{number:05}.safetensors"
        safetensors.torch.save_file(group, path)
        flush(path)
        files[path.name] = {"sha256": sha256(path), "bytes": path.stat().st_size}
    (draft / "state.json").write_text(json.dumps({**facts, "files": files}, indent=2), encoding="utf-8")
    flush(draft / "state.json")
    if folder.exists():
        discard(folder)
    draft.rename(folder)
    flush(folder.parent)
    return folder


def _groups(tensors: Iterable[tuple[str, str, Tensor]]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Tensors file by file, a file cut where it grows too large."""
    name, group, held = "", {}, 0
    for file, key, value in tensors:
        if group and (file != name or held > LARGEST_FILE):
            yield name, group
            group, held = {}, 0
        name, group[key] = file, value.detach().cpu().contiguous()
        held += group[key].nbytes
    if group:
        yield name, group


def load(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """A checkpoint's facts, and its tensors as ``[file][name]``; every tensor is checked against its file's hash."""
    facts = read_facts(folder)
    tensors: dict[str, dict[str, Tensor]] = {}
    for name, known in facts["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != known["bytes"] or sha256(path) != known["sha256"]:
            raise _altered(path, folder)
        kind = name.rpartition("-")[0]
        tensors.setdefault(kind, {}).update(safetensors.torch.load_file(path))
    return facts, tensors


def read_facts(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise _altered(folder / "state.json", folder) from None
    if (
        not isinstance(facts, dict)
        or not facts.get("files")
        or facts.get("step") != int(folder.name.rpartition("-")[2])
    ):
        raise _altered(folder / "state.json", folder)
    return facts


def _altered(path: Path, folder: Path) -> InputError:
    earlier = [f.name for f in checkpoints(folder.parents[1]) if f.name < folder.name]
    way_out = f"{earlier[-1]} before it is there" if earlier else "there is none before it"
    return InputError(f"{path}: missing, cut short or altered since it was written; remove {folder} ({way_out})")


def checkpoints(run: Path) -> list[Path]:
    """A run's checkpoints, oldest first; what else lies there is somebody's own."""
    return sorted(folder for folder in (run / "state").glob("step-*") if folder.name.removeprefix("step-").isdecimal())


def clean(run: Path, keep: int) -> None:
    """Remove what a killed process left, and all but the last checkpoints. One that an interruption made, between the
    regular ones, is only kept while it is the newest: averages are over regular ones."""
    for leftover in (run / "state").glob(".*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folders = checkpoints(run)
    regular = [f for f in folders if read_facts(f).get("regular", True)]
    for folder in folders[:-1]:
        if folder not in regular[-keep:]:
            discard(folder)


def discard(folder: Path) -> None:
    """Remove a folder; at no moment is a part of it to be seen under its name."""
    hidden = folder.with_name(f".old-{folder.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _folder(run: Path, step: int) -> Path:
    return run / "state" / f"step-{step:09}"
