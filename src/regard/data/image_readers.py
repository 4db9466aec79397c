"""Raw files to rows of images: folders, tables of paths, Parquet with bytes, MNIST's idx files.

Beside :mod:`regard.data.readers`, and read by the same :class:`~regard.data.readers.Corpus`. A row's first value is a
:class:`~regard.data.images.Picture`, not opened yet; whatever else it says follows, as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from regard import recipe
from regard.data import readers
from regard.data.images import SUFFIXES, Picture
from regard.schema import InputError

Values = tuple[int, tuple[Any, ...]]
"""A line, and what it says: a picture and a text."""


class Album(Protocol):
    """What images are in: a folder, a table, or an idx file. ``file`` is what errors and rows name."""

    file: Any  # a File or a Folder

    def rows(self, columns: tuple[str, ...]) -> Iterator[Values]: ...


def rows_of(albums: Sequence[Album], data: recipe.Data) -> Iterator[readers.Row]:
    """The rows of all of them, labels by their names."""
    assert data.images is not None
    names = data.images.names
    for album in albums:
        for line, (picture, *label) in album.rows(data.columns):
            told = [named(one, names, f"{album.file.path}: line {line}") for one in label]
            yield readers.Row(album.file, line, (picture, *told))


def find_albums(patterns: Sequence[str], *, told: bool = True) -> list[Album]:
    """What paths and globs stand for, in the order of their names. Unless something is ``told`` of each image, they are
    wanted alone."""
    found: list[Album] = []
    for pattern in patterns:
        if not (matches := readers.matching(pattern)):
            raise readers.no_match(pattern)
        found += (_album(match, told) for match in matches)
    return found


def _album(path: Path, told: bool) -> Album:
    if path.is_dir():
        return Classes(Folder(path)) if told else Loose(Folder(path))
    file = readers.File(path)
    if "idx" in path.name and "images" in path.name:
        return Idx(file, told)
    if file.format == "text":
        raise InputError(
            f"{path}: is no folder, table or idx file of images; known: folders with a folder for each label,"
            f" {', '.join(readers.TABLES)}, and MNIST's train-images-idx3-ubyte"
        )
    return Listed(file, told)


def named(label: str, names: Sequence[str], place: str) -> str:
    """A label that is a number, by its name; where there are no names, as it is.

    >>> named("1", ["cat", "dog"], "line 1"), named("1", [], "line 1")
    ('dog', '1')
    """
    if not names:
        return label
    if not label.isdecimal() or int(label) >= len(names):
        raise InputError(f"{place}: label {label!r} must be a number below {len(names)}: so many names are there")
    return names[int(label)]


# ---------------------------------------------------------------------------------------
# A folder with a folder for each label


class Folder:
    """A folder where a file is expected: what is in it counts as its size as it is come upon."""

    format, size, done = "folder", 0, 0

    def __init__(self, path: Path):
        self.path = path
        readers.check_name(path)


class Classes:
    """Images in folders that are named as their labels. Files that are not called like images are passed over."""

    def __init__(self, folder: Folder):
        self.file = folder
        path = folder.path
        self.labels = sorted(sub for sub in path.iterdir() if sub.is_dir() and not sub.name.startswith("."))
        stray = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
        if stray:
            raise InputError(f"{stray[0]}: lies in no folder of a label; put it into {path}/LABEL/")
        if not self.labels:
            raise InputError(f"{path}: has no folders; images lie in a folder for each label: {path}/dog/1.jpg")

    def rows(self, columns: tuple[str, ...]) -> Iterator[Values]:
        """Every label's images spread evenly over all, so that the last share of them has as much of each."""
        found: list[tuple[float, str, Path]] = []
        for folder in self.labels:
            paths = [path for path in sorted(folder.rglob("*")) if _is_image(path, folder)]
            if not paths:
                raise InputError(
                    f"{folder}: has no images; remove the folder, or put some there ({', '.join(SUFFIXES)})"
                )
            found += [((i + 0.5) / len(paths), folder.name, path) for i, path in enumerate(paths)]
        for number, (_, label, path) in enumerate(sorted(found), 1):
            yield number, (Picture(str(path), path), label)


class Loose:
    """Images anywhere in a folder, of which nothing is told."""

    def __init__(self, folder: Folder):
        self.file = folder

    def rows(self, columns: tuple[str, ...]) -> Iterator[Values]:
        folder = self.file.path
        paths = [path for path in sorted(folder.rglob("*")) if _is_image(path, folder)]
        if not paths:
            raise InputError(f"{folder}: has no images ({', '.join(SUFFIXES)}); is this the right folder?")
        yield from ((number, (Picture(str(path), path),)) for number, path in enumerate(paths, 1))


def _is_image(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return path.suffix.lower() in SUFFIXES and not hidden and path.is_file()


# ---------------------------------------------------------------------------------------
# A table


class Listed:
    """A table with a column of images and one of labels or captions. Paths are relative to the table; Parquet may have
    the images themselves, as bytes or as Hugging Face's {bytes, path}. JSON may list several captions of an image."""

    def __init__(self, file: readers.File, told: bool):
        self.file, self.n = file, 2 if told else 1

    def rows(self, columns: tuple[str, ...]) -> Iterator[Values]:
        read = self._parquet if self.file.format == "parquet" else self._paths
        for line, image, texts in read(columns):
            picture = self._picture(image, line)
            if self.n == 1:
                yield line, (picture,)
            for text in texts:
                yield line, (picture, text)

    def _paths(self, columns: tuple[str, ...]) -> Iterator[tuple[int, Any, list[str]]]:
        for line, (path, *texts) in readers.table(self.file, columns, self.n, label=self.n > 1, lists=True):
            if path.strip():
                yield line, path, texts

    def _parquet(self, columns: tuple[str, ...]) -> Iterator[tuple[int, Any, list[str]]]:
        names: Callable[[Any], Any] = str
        for line, (image, *rest), schema in readers.parquet_rows(self.file, columns, self.n, at_once=64):
            if not rest:
                yield line, image, []
                continue
            [text] = rest
            if line == 1:
                names = _label_names(schema, columns)
            for value in text if isinstance(text, list) else [text]:
                if value is None or isinstance(value, dict | bytes):
                    raise InputError(f"{self.file.path}: row {line}: label {value!r} must be text or a number")
            yield line, image, [names(value) for value in (text if isinstance(text, list) else [text])]

    def _picture(self, image: Any, line: int) -> Picture:
        place = f"{self.file.path}: {'row' if self.file.format == 'parquet' else 'line'} {line}"
        if isinstance(image, dict):  # Hugging Face's
            image = image.get("bytes") or image.get("path")
        if isinstance(image, bytes):
            return Picture(place, image)
        if not isinstance(image, str) or not image:
            raise InputError(f"{place}: must be the path or the bytes of an image, not {image!r}")
        path = self.file.path.parent / image
        if not path.is_file():
            header = "; is this a header? name the columns" if line == 1 else ""
            raise InputError(f"{place}: names an image that is not there, {path}{header}")
        return Picture(str(path), path)


def _label_names(schema: Any, columns: Sequence[str]) -> Callable[[Any], str]:
    """How a label of a Parquet file is told: by its name, where Hugging Face's datasets left the names of numbers."""
    column = columns[1] if columns else schema.names[1]
    told = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    names = told.get("info", {}).get("features", {}).get(column, {})
    names = names.get("names") if isinstance(names, dict) else None
    if not names:
        return lambda value: value if isinstance(value, str) else json.dumps(value)
    return lambda value: names[value] if isinstance(value, int) and 0 <= value < len(names) else str(value)


# ---------------------------------------------------------------------------------------
# MNIST's files


class Idx:
    """Images in one file, their labels in another that is called alike: train-images-idx3-ubyte and
    train-labels-idx1-ubyte, gz or not."""

    def __init__(self, file: readers.File, told: bool):
        self.file, self.labels = file, None
        if not told:
            return
        name = file.path.name.replace("images", "labels").replace("idx3", "idx1").replace("idx4", "idx1")
        path = file.path.with_name(name)
        other = path.with_suffix("") if path.suffix == ".gz" else path.with_name(f"{name}.gz")
        if not path.exists() and not other.exists():
            raise InputError(f"{path}: no such file; the labels of {file.path} belong there")
        self.labels = readers.File(path if path.exists() else other)

    def rows(self, columns: tuple[str, ...]) -> Iterator[Values]:
        images = read_idx(self.file)
        labels = None if self.labels is None else read_idx(self.labels)
        if labels is None or self.labels is None:
            if images.ndim not in (3, 4):
                raise InputError(f"{self.file.path}: has {images.ndim} dimensions, and images need 3 or 4")
            for number, image in enumerate(images, 1):
                yield number, (Picture(f"{self.file.path}: image {number}", image),)
            return
        if images.ndim not in (3, 4) or labels.ndim != 1:
            raise InputError(
                f"{self.file.path} and {self.labels.path}: have {images.ndim} and {labels.ndim} dimensions, and images"
                " need 3 or 4, labels 1"
            )
        if len(images) != len(labels):
            raise InputError(
                f"{self.file.path} has {len(images):,} images and {self.labels.path} {len(labels):,} labels: both need"
                " as many"
            )
        for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True), 1):
            yield number, (Picture(f"{self.file.path}: image {number}", image), str(label))


def read_idx(file: readers.File) -> np.ndarray:
    """The array of bytes in an idx file: two zeros, 8 for bytes, the number of dimensions, each of them in four bytes
    (big-endian), and then the values."""
    with file.opened() as opened:
        data = opened.read()
    if len(data) < 4 or data[:2] != b"\0\0":
        raise InputError(f"{file.path}: is no idx file, which begins with two zeros")
    kind, begin = data[2], 4 + 4 * data[3]
    if kind != 8:
        raise InputError(f"{file.path}: idx files of bytes are read (kind 8), not of kind {kind}")
    shape = np.frombuffer(data[4:begin], ">u4").tolist() if len(data) >= begin else [0]
    if len(data) != begin + math.prod(shape):
        n = max(0, len(data) - begin)
        raise InputError(f"{file.path}: has {n:,} values, and its header says {math.prod(shape):,}; fetch it again")
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)
