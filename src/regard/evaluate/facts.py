"""What a score card says beside the scores: which texts, which model, which versions, which machine. And how the texts
are read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from regard import __version__
from regard.data.readers import COMPRESSED, File, checked
from regard.data.store import sha256
from regard.files import called
from regard.model import Model
from regard.schema import InputError

# ---------------------------------------------------------------------------------------
# Texts


def read_texts(source: str | Path, references: Iterable[str | Path]) -> tuple[list[str], list[list[str]]]:
    """The lines of a source file and of those of each reference, as many in all; gz, xz and zst are unpacked.

    >>> read_texts("nowhere.en", ["nowhere.de"])
    Traceback (most recent call last):
    regard.schema.InputError: nowhere.en: cannot be read (No such file or directory)
    """
    sources, targets = _lines(source), []
    for reference in references:
        lines = _lines(reference)
        if len(lines) != len(sources):
            raise InputError(
                f"{source} has {len(sources):,} lines and {reference} {len(lines):,}: both need as many, a sentence"
                " and its translation on the same line"
            )
        targets.append(lines)
    return sources, targets


def _lines(path: str | Path) -> list[str]:
    return [checked(path, number, line) for number, line in File(Path(path)).lines()]


def set_name(source: str | Path) -> str:
    """What a test set is called in a score card: its source file's name, as it is when unpacked.

    >>> set_name("data/test_2016_flickr.en.gz")
    'test_2016_flickr.en'
    """
    path = Path(source)
    return path.stem if path.suffix.lower() in COMPRESSED else path.name


def text_hash(lines: Sequence[str]) -> str:
    """The sha256 of lines: that of a plain file of them, each ended by a line feed.

    >>> text_hash(["a dog"])[:16]  # printf 'a dog\\n' | sha256sum
    'c7929c8af32293b3'
    """
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


# ---------------------------------------------------------------------------------------
# The model, and what it ran on


def of_model(model: Model) -> dict[str, Any]:
    """Where a model is (by its name, if it comes with regard), its size and precision, and its weights' hash."""
    told = {"path": "a model", "parameters": model.n_parameters, "precision": model.precision}
    if model.path is None:
        return told
    weights = model.path / "model.safetensors"
    return {**told, "path": called(model.path)} | ({"sha256": sha256(weights)} if weights.exists() else {})


def versions() -> dict[str, str]:
    """What the numbers were computed with.

    >>> list(versions())
    ['regard', 'python', 'torch', 'sacrebleu', 'sacremoses']
    """
    found = {"regard": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for name in ("sacrebleu", "sacremoses"):
        with contextlib.suppress(metadata.PackageNotFoundError):  # who scores labels needs neither
            found[name] = metadata.version(name)
    return found


def hardware(device: torch.device) -> str:
    """The GPU's name, or the CPU's and how many cores of it there are for us.

    >>> hardware(torch.device("cpu")).rstrip("s").endswith("core")
    True
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):  # where there is such a file, it says more
        told = (line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines())
        name = next((value.strip() for key, _, value in told if key.strip() == "model name"), name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} core{'s' * (cores != 1)}"
