"""What a run can be resumed from: safetensors and one JSON file that names them with their hashes. Nothing is pickled.

A checkpoint is a folder ``state/step-N``. It is written under another name and renamed when all of it is on the disk,
so that whatever ends the process, what is there is whole. It holds whole tensors, however many processes wrote it, and
so resumes on any number.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from regard.config import InputError, RegardError
from regard.data.store import sha256

LARGEST_FILE = 2 * 2**30  # bytes; what is held beside the model while a file is written


def save(run: Path, step: int, tensors: Iterable[tuple[str, str, Tensor]], facts: dict[str, Any]) -> Path:
    """Write the checkpoint of a step: ``tensors`` are (file, name, value), in the order of their files."""
    folder = _folder(run, step)
    with _told(folder):
        return _save(folder, tensors, facts)


def _save(folder: Path, tensors: Iterable[tuple[str, str, Tensor]], facts: dict[str, Any]) -> Path:
    draft = folder.with_name(f".{folder.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    files: dict[str, Any] = {}
    for number, (name, group) in enumerate(_groups(tensors)):
        path = draft / f"{name}-{number:05}.safetensors"
        safetensors.torch.save_file(group, path)
        _flush(path)
        files[path.name] = {"sha256": sha256(path), "bytes": path.stat().st_size}
    (draft / "state.json").write_text(json.dumps({**facts, "files": files}, indent=2), encoding="utf-8")
    _flush(draft / "state.json")
    if folder.exists():
        discard(folder)
    draft.rename(folder)
    _flush(folder.parent)
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
    for name, told in facts["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != told["bytes"] or sha256(path) != told["sha256"]:
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
    """A run's checkpoints, oldest first."""
    return sorted((run / "state").glob("step-*"))


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


def write_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """A safetensors file that is there whole or not at all."""
    with drafted(path) as draft:
        safetensors.torch.save_file({n: w.detach().cpu().contiguous() for n, w in weights.items()}, draft)


def write_text(path: Path, text: str) -> None:
    """A text file that is there whole or not at all."""
    with drafted(path) as draft:
        draft.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """Another name to write a file under; it gets its own when all of it is on the disk."""
    draft = path.with_name(f".{path.name}")
    with _told(path):
        yield draft
        _flush(draft)
        draft.rename(path)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """What goes wrong while writing, in one line; a half-written draft is removed."""
    try:
        yield
    except (OSError, safetensors.SafetensorError) as error:
        draft = path.with_name(f".{path.name}")
        shutil.rmtree(draft, ignore_errors=True)
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise RegardError(
            f"{path}: cannot be written ({reason}); what was there before is intact: make room and resume"
        ) from None


def _folder(run: Path, step: int) -> Path:
    return run / "state" / f"step-{step:09}"


def _flush(path: Path) -> None:
    """Wait until the disk has it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
