"""The data directory: what ``prepare`` writes and training reads.

Ids lie in plain files, little-endian, one row after another, with the ends of the rows in a file beside them; they are
mapped into memory and never read as a whole. Images are there as pixels, a byte each, all of one size.
``manifest.json`` says what is there, what it was made from, and the hashes of both.

    manifest.json  tokenizer.json  [source.tokenizer.json]
    train.source.bin  train.source.ends.bin  train.target.bin ...  valid.source.bin ...
    train.image.bin  train.label.bin ...  [train.codes.bin  painter/]
"""

from __future__ import annotations

import hashlib
import json
import shutil
from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.tokenizer import Tokenizer
from regard.recipe import Images
from regard.schema import InputError, from_dict

FORMAT = 1  # of the directory; another one is refused


class Ragged:
    """Rows of different lengths, all in one array: row ``i`` ends before ``ends[i]`` and begins where the last ended.

    >>> rows = Ragged(np.array([5, 6, 7]), np.array([1, 3]))
    >>> len(rows), rows[1].tolist(), rows.lengths.tolist()
    (2, [6, 7], [1, 2])
    """

    def __init__(self, ids: np.ndarray, ends: np.ndarray):
        self.ids, self.ends = ids, ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> np.ndarray:
        i = range(len(self))[i]  # counts from the end, and refuses what is not there
        return self.ids[self.ends[i - 1] if i else 0 : self.ends[i]]

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)


class DataDir:
    """A data directory, opened. Its files have the sizes that the manifest says; :meth:`verify` also checks the hashes.

    >>> DataDir("nowhere")
    Traceback (most recent call last):
    regard.schema.InputError: nowhere: not a data directory (no manifest.json); make one: regard prepare RECIPE
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            self.manifest: dict[str, Any] = json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))
            version = self.manifest["format"]
        except OSError:
            raise InputError(
                f"{path}: not a data directory (no manifest.json); make one: regard prepare RECIPE"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{self.path / 'manifest.json'}: damaged; {_AGAIN}") from None
        if version != FORMAT:
            raise InputError(f"{path}: format {version}, and this regard reads {FORMAT}; {_AGAIN}")
        for name, expected in self.manifest["files"].items():
            file = self.path / name
            size = file.stat().st_size if file.is_file() else None
            if size != expected["bytes"]:
                found = "missing" if size is None else f"{size:,} bytes"
                raise InputError(f"{file}: {found}, and the manifest says {expected['bytes']:,} bytes; {_AGAIN}")

    def changed_input(self) -> str | None:
        """One of the files that it was made from, if it is not what it was; those that are gone are not missed."""
        made = (self.path / "manifest.json").stat().st_mtime
        for name, then in self.manifest["inputs"].items():
            if not Path(name).is_file():
                continue
            now = Path(name).stat()
            touched = max(now.st_mtime, now.st_ctime) > made  # what is as it was lain down is not read again
            if now.st_size != then["bytes"] or (touched and sha256(Path(name)) != then["sha256"]):
                return name
        return None

    @property
    def task(self) -> str:
        return self.manifest["task"]

    @property
    def labels(self) -> list[str]:
        """The names of the labels, by their ids: of texts for classify, of words for tag."""
        return self.manifest["labels"]

    @property
    def n_labels(self) -> int:
        """What a head over labels is to say: a score for each of them, or the one number."""
        return 1 if self.has_numbers else len(self.labels)

    @property
    def has_numbers(self) -> bool:
        """Whether the labels of texts are numbers, and have no names."""
        return self.manifest["data"].get("labels") == "numbers"

    @property
    def images(self) -> Images | None:
        """How images became pixels; None where there are none."""
        table = self.manifest["data"].get("images")
        return None if table is None else from_dict(Images, table)

    def treat_as(self, told: Mapping[str, Any] | None) -> None:
        """From here on images are brought to another mean and deviation: those of a model that goes on with them."""
        if told is not None and self.images is not None:
            self.manifest["images"] = {**self.manifest["images"], "mean": told["mean"], "std": told["std"]}

    @property
    def n_codes(self) -> int:
        """How many codes images have, which come after the tokens of text; 0 where they have none."""
        return self.manifest.get("painter", {}).get("n_codes", 0)

    @property
    def has_text(self) -> bool:
        return bool(self.manifest["tokenizers"])

    def counts(self) -> dict[str, Any]:
        """What :func:`regard.recipe.model_config` asks of the data."""
        sizes = (len(self.tokenizer), len(self.source_tokenizer)) if self.has_text else (0, 0)
        if self.n_codes:
            sizes = (sizes[0] + self.n_codes,) * 2
        named = dict(zip(("vocab_size", "source_vocab_size"), sizes, strict=True))
        return {**named, "n_labels": self.n_labels, "images": self.images}

    @property
    def splits(self) -> list[str]:
        return list(self.manifest["splits"])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Of the text that is written, or the only one."""
        return Tokenizer.load(self.path / "tokenizer.json")

    @cached_property
    def source_tokenizer(self) -> Tokenizer:
        """Of the text that is read: the same object where there is one for both."""
        own = self.path / "source.tokenizer.json"
        return Tokenizer.load(own) if own.name in self.manifest["files"] else self.tokenizer

    def tokenizer_of(self, column: str) -> Tokenizer:
        return self.source_tokenizer if column == "source" else self.tokenizer

    def split(self, name: str) -> dict[str, Any]:
        """The columns of a split, mapped into memory: texts and tags are :class:`Ragged`, a label a row is an array,
        and so are images (N, H, W, C)."""
        if name not in self.splits:
            raise InputError(f"{self.path}: no split {name!r}; there are {', '.join(self.splits)}")
        columns: dict[str, Any] = {}
        for column, facts in self.manifest["splits"][name]["columns"].items():
            values = _map(self.path / f"{name}.{column}.bin", facts["dtype"]).reshape(-1, *facts.get("shape", ()))
            ragged = "tokens" in facts
            columns[column] = (
                Ragged(values, _map(self.path / f"{name}.{column}.ends.bin", "int64")) if ragged else values
            )
        return columns

    def verify(self) -> None:
        """Check the hash of every file; a changed one is an error that names it."""
        for name, expected in self.manifest["files"].items():
            if sha256(self.path / name) != expected["sha256"]:
                raise InputError(f"{self.path / name}: altered since it was prepared (its hash differs); {_AGAIN}")


_AGAIN = "prepare the data again"


def _map(path: Path, dtype: str) -> np.ndarray:
    return np.memmap(path, dtype=little(dtype), mode="r")


def little(dtype: np.dtype | str) -> np.dtype:
    """A type of number, little-endian: the machine's own nearly everywhere."""
    return np.dtype("<" + np.dtype(dtype).str[1:])


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---------------------------------------------------------------------------------------
# Writing


class Column:
    """One column of a split, on its way to disk: rows of ids, or (not ragged) a number a row, or as many as ``shape``
    says."""

    def __init__(
        self,
        folder: Path,
        split: str,
        name: str,
        dtype: np.dtype,
        *,
        ragged: bool = True,
        shape: tuple[int, ...] = (),
    ):
        self.folder, self.name, self.dtype, self.ragged, self.shape = folder, name, little(dtype), ragged, shape
        self.path = folder / f"{split}.{name}.bin"
        self.path.touch()
        self.ends = array("q")  # 8 bytes a row are all that stays in memory
        self.size = 0

    def add(self, rows: Sequence[bytes], begins: Sequence[bool] | None = None) -> None:
        """Write rows of packed ids; those that do not begin one are added to the row before."""
        for i, row in enumerate(rows):
            self.size += len(row) // self.dtype.itemsize
            if begins is None or begins[i]:
                self.ends.append(self.size)
            else:
                self.ends[-1] = self.size
        with self.path.open("ab") as file:  # nothing stays open, whatever happens in between
            file.write(b"".join(rows))

    def split_off(self, split: str, row: int, at: int) -> Column:
        """The last ids, from number ``at`` on, as the same column of another split; ``row`` is where they begin."""
        rest = Column(self.folder, split, self.name, self.dtype, ragged=self.ragged, shape=self.shape)
        rest.ends = array("q", [end - at for end in self.ends[row:]])
        rest.size = self.size - at
        with self.path.open("r+b") as file, rest.path.open("wb") as rest_file:
            file.seek(at * self.dtype.itemsize)
            shutil.copyfileobj(file, rest_file)
            file.truncate(at * self.dtype.itemsize)
        before = self.ends[row - 1] if row else 0
        self.ends = self.ends[:row]
        if before < at:  # the cut goes through a row
            self.ends.append(at)
        self.size = at
        return rest

    def unique(self) -> set[int]:
        """The numbers that occur."""
        return set(np.unique(np.fromfile(self.path, self.dtype)).tolist())

    def close(self) -> dict[str, Any]:
        """Write the ends of the rows; what the manifest says of the column."""
        facts: dict[str, Any] = {"dtype": self.dtype.name} | ({"shape": list(self.shape)} if self.shape else {})
        if self.ragged:
            ends = np.array(self.ends, "<i8")
            ends.tofile(self.path.with_suffix(".ends.bin"))
            facts |= {"tokens": self.size, "longest": int(np.diff(ends, prepend=0).max(initial=0))}
        return facts
