"""Raw files to rows of text: which files, how each is opened, and what a row of it is.

Nothing here knows ids. A row comes with its file and line, so that whoever finds a fault in it can say where. Files are
read as a stream, however long; what is wrong with one is an :class:`InputError`. Lines end where ``\\n`` says so, and
nowhere else. Images have readers of their own beside these (:mod:`regard.data.image_readers`).
"""

from __future__ import annotations

import csv
import glob
import gzip
import importlib
import io
import itertools
import json
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from regard import recipe
from regard.data.tokenizer import cut
from regard.schema import InputError

TABLES = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
COMPRESSED = (".gz", ".xz", ".zst")
PART = 1 << 18  # characters of a document that are handed on together
_BLANKS = re.compile("[ \t]+")


class Row(NamedTuple):
    """What a file says in one place: texts, and a label where there is one.

    For documents ``values`` is a part of the text and whether a document begins with it; for tags, words and tags; for
    images the first is a picture that has not been opened.
    """

    file: Any  # a File, or a folder of images
    line: int
    values: tuple[Any, ...]

    @property
    def labels(self) -> list[str]:
        """The tags of words, or the one label of a text."""
        last = self.values[-1]
        return last if isinstance(last, list) else [last]


class Corpus:
    """The files of a split, to be gone through as often as needed."""

    def __init__(self, data: recipe.Data, files: recipe.Files):
        self.data = data
        if data.images is not None:
            from regard.data.image_readers import Idx, find_albums  # which reads tables as they are read here

            self.albums, self.pairs = find_albums(files.files, told=data.task != "paint"), []
            self.files = [album.file for album in self.albums]
            self.inputs = self.files + [a.labels for a in self.albums if isinstance(a, Idx) and a.labels]
            return
        self.whole, sources, targets = find(files.files), find(files.source), find(files.target)
        if len(sources) != len(targets):
            raise InputError(f"{len(sources)} source files and {len(targets)} target files: give as many of each")
        self.pairs = list(zip(sources, targets, strict=True))
        self.files = self.inputs = self.whole + sources + targets

    def rows(self) -> Iterator[Row]:
        columns, task = self.data.columns, self.data.task
        if self.data.images is not None:
            from regard.data.image_readers import rows_of

            yield from rows_of(self.albums, self.data)
            return
        for source, target in self.pairs:
            yield from _parallel(source, target)
        for file in self.whole:
            if task == "tag":
                found: Iterator[tuple[int, tuple[Any, ...]]] = conll(file, columns)
            elif task in ("generate", "fill"):
                found = _documents(file, self.data)
            else:
                n = len(columns) or (3 if task == "prefer" else 2)
                found = table(file, columns, n, label=task == "classify")
            yield from (Row(file, line, values) for line, values in found)


def find(patterns: Sequence[str]) -> list[File]:
    """The files that paths, globs and folders stand for, in the order of their names.

    >>> find(["nowhere/*.txt"])
    Traceback (most recent call last):
    regard.schema.InputError: nowhere/*.txt: no file matches; paths are relative to where you are
    """
    found: list[File] = []
    for pattern in patterns:
        inside = [file for match in matching(pattern) for file in (_inside(match) if match.is_dir() else [match])]
        if not inside:
            raise no_match(pattern)
        found += map(File, inside)
    return found


def matching(pattern: str) -> list[Path]:
    """The files and folders that a path or a glob stands for, in order."""
    if not pattern:
        return []
    if not os.path.exists(pattern):
        with suppress(RuntimeError):  # ~name, and nobody is called so
            pattern = str(Path(pattern).expanduser())
    return [Path(pattern)] if os.path.exists(pattern) else sorted(map(Path, glob.glob(pattern, recursive=True)))


def no_match(pattern: str) -> InputError:
    return InputError(f"{pattern or repr(pattern)}: no file matches; paths are relative to where you are")


def _inside(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts))


# ---------------------------------------------------------------------------------------
# One file


def check_name(path: Path) -> None:
    """Refuse a name that is no text: it could be written into no manifest.

    >>> check_name(Path("caf\\udce9.txt"))
    Traceback (most recent call last):
    regard.schema.InputError: 'caf\\udce9.txt': the name is not valid UTF-8; rename it
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(f"{str(path)!r}: the name is not valid UTF-8; rename it") from None


class File:
    """A file to read, perhaps compressed. ``done`` says how many of its ``size`` bytes have been read."""

    def __init__(self, path: Path):
        self.path, self.done = path, 0
        check_name(path)
        with self._faults():
            status = path.stat()
        if path.is_dir():
            raise InputError(f"{path}: is a folder; name a file in it")
        if not path.is_file():
            raise InputError(f"{path}: not a file that can be read more than once; write it to disk first")
        self.size = status.st_size
        suffixes = [suffix.lower() for suffix in path.suffixes]
        self.compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSED else ""
        self.suffix = suffixes[-1] if suffixes else ""
        self.format = TABLES.get(self.suffix, "text")

    def lines(self) -> Iterator[tuple[int, str]]:
        """Its lines with their numbers, without line ends."""
        number = 0
        with self.opened() as file:
            for number, line in enumerate(file, 1):
                try:
                    text = line.rstrip(b"\r\n").decode()
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"{self.path}: line {number} is not valid UTF-8 (byte 0x{line[error.start]:02x} after"
                        f" {error.start}); convert the file to UTF-8"
                    ) from None
                yield number, text.removeprefix("\ufeff") if number == 1 else text
        if number == 0:
            raise InputError(f"{self.path}: the file is empty")
        self.done = self.size

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """What goes wrong while reading, as one line that names the file."""
        try:
            yield
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            raise InputError(f"{self.path}: damaged or cut short ({error}); fetch the file again") from None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror or error})") from None

    @contextmanager
    def opened(self) -> Iterator[io.BufferedReader]:
        """The file's bytes, decompressed."""
        self.done = 0
        with self._faults(), _Counted(self) as raw, io.BufferedReader(raw, 1 << 17) as packed:
            plain: dict[str, Callable[[], Any]] = {
                ".gz": lambda: gzip.GzipFile(fileobj=packed),
                ".xz": lambda: lzma.LZMAFile(packed),  # noqa: SIM115  closed by what is around it
                ".zst": lambda: _Zstandard(packed),
                "": lambda: raw,
            }
            with io.BufferedReader(plain[self.compression](), 1 << 20) as file:
                yield file


class _Counted(io.FileIO):
    """An open file that notes how much of it has been read."""

    def __init__(self, file: File):
        super().__init__(file.path)
        self.file = file

    def readinto(self, buffer: Any) -> int:
        n = super().readinto(buffer) or 0
        self.file.done += n
        return n


class _Zstandard(io.RawIOBase):
    """A decompressed stream that notices when the file ends too early, which zstandard's own does not."""

    def __init__(self, packed: Any):
        self.zstandard = optional("zstandard", "zst files")
        self.packed, self.frame, self.ready = packed, None, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.ready:
            chunk = (self.frame.unused_data if self.frame and self.frame.eof else b"") or self.packed.read(1 << 17)
            if not chunk:
                if self.frame and not self.frame.eof:
                    raise EOFError("the last frame has no end")
                return 0
            if self.frame is None or self.frame.eof:
                self.frame = self.zstandard.ZstdDecompressor().decompressobj()
            try:
                self.ready = self.frame.decompress(chunk)
            except self.zstandard.ZstdError as error:
                raise EOFError(str(error)) from None
        n = min(len(buffer), len(self.ready))
        buffer[:n], self.ready = self.ready[:n], self.ready[n:]
        return n


def checked(name: object, number: int, line: str) -> str:
    """A line to be read as text, which has no zero bytes."""
    if "\0" in line:
        raise InputError(
            f"{name}: line {number} has a zero byte, which no text has; UTF-16 is to be converted to UTF-8"
        )
    return line


def optional(module: str, what: str) -> Any:
    """A module of the extra ``files``."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise InputError(f"{what} need {package}; install it: pip install 'regard[files]'") from None


# ---------------------------------------------------------------------------------------
# Rows of each kind of file


def _parallel(source: File, target: File) -> Iterator[Row]:
    """Line by line from two files."""
    one, other = source.lines(), target.lines()
    line = 0
    for first, second in itertools.zip_longest(one, other):
        if first is None or second is None:
            longer = line + 1 + sum(1 for _ in (one if second is None else other))
            counts = (longer, line) if second is None else (line, longer)
            raise InputError(
                f"{source.path} has {counts[0]:,} lines and {target.path} {counts[1]:,}: both need as many,"
                " a sentence and its translation on the same line"
            )
        line = first[0]
        yield Row(source, line, (first[1], second[1]))


def _documents(file: File, data: recipe.Data) -> Iterator[tuple[int, tuple[str, bool]]]:
    """Texts of any length, in parts."""
    if file.format != "text":
        for line, (text,) in table(file, data.columns, 1, label=False):
            yield line, (text, True)
    elif data.documents == "line":
        for line, text in file.lines():
            yield line, (text, True)
    else:
        gathered: list[str] = []  # lines of the document that have not been handed on
        begins, size, enough, line = True, 0, PART, 0
        for line, text in file.lines():
            if data.documents == "paragraph" and not text.strip():
                if gathered:
                    yield line, ("\n".join(gathered), begins)
                gathered, begins, size, enough = [], True, 0, PART
                continue
            gathered.append(text)
            size += len(text)
            if size > enough:
                *parts, rest = cut("\n".join(gathered), PART)
                for part in parts:
                    yield line, (part, begins)
                    begins = False
                gathered, size, enough = [rest], len(rest), len(rest) + PART
        if gathered:
            yield line, ("\n".join(gathered), begins)


def conll(
    file: File, columns: tuple[str, ...], *, tagged: bool = True
) -> Iterator[tuple[int, tuple[list[str], list[str]]]]:
    """A word a line, a blank line after each sentence. Not ``tagged``, there need be nothing but words."""
    if file.format not in ("text", "tsv"):
        raise InputError(f"{file.path}: tags are read from conll files: a word and its tag a line, blank between")
    if any(not column.isdigit() for column in columns):
        raise InputError(f"columns ({', '.join(columns)}): conll files have no header; give numbers, from 1")
    word, tag = (int(column) - 1 for column in columns) if columns else (0, -1)
    least = 1 + (max(word, tag, 1) if tagged else word)
    words: list[str] = []
    tags: list[str] = []
    begin, tabs = 0, file.format == "tsv"
    for line, text in itertools.chain(file.lines(), [(0, "")]):
        cells = (text.split("\t") if tabs else _BLANKS.split(text.strip(" \t"))) if text.strip() else []
        if cells and cells[0] != "-DOCSTART-":
            if len(cells) < least:
                raise InputError(f"{file.path}: line {line} has {_columns(cells)}, and column {least} is needed")
            begin = begin if words else line
            words.append(cells[word])
            tags += [cells[tag]] if tagged else []
        elif words:
            yield begin, (words, tags)
            words, tags = [], []


def table(
    file: File, columns: tuple[str, ...], n: int, *, label: bool, lists: bool = False
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Some columns of a table; a blank line is a row of empty texts. With ``lists`` the last value of JSON may be
    several texts, which then are so many values."""
    if file.format == "text":
        raise InputError(
            f"{file.path}: the extension {file.suffix or '(none)'!r} does not say how columns are told apart;"
            f" known: {', '.join(TABLES)}, and {', '.join(COMPRESSED)} after them"
        )
    if file.format == "jsonl":
        yield from _jsonl(file, columns, n, label=label, lists=lists)
        return
    if file.format == "parquet":
        for line, values, schema in parquet_rows(file, columns, n):
            _refuse_more(f"{file.path}: row {line}", schema.names, n, label and not columns and not lists)
            yield line, _texts(f"{file.path}: row {line}", (columns or schema.names)[: len(values)], values, label)
        return
    read = (_csv if file.format == "csv" else _tsv)(file)
    if all(column.isdigit() for column in columns):
        wanted = [int(column) - 1 for column in columns] or list(range(n))
    else:
        _, header = next(read)
        wanted = [header.index(column) for column in _present(str(file.path), columns, header)]
    least = 1 + max(wanted)
    for line, cells in read:
        if not "".join(cells).strip():
            yield line, ("",) * len(wanted)
            continue
        _refuse_more(f"{file.path}: line {line}", cells, n, label and not columns and not lists)
        if len(cells) >= least:
            yield line, tuple([cells[i] for i in wanted])
        else:
            raise InputError(f"{file.path}: line {line} has {_columns(cells)}, and column {least} is needed")


def _tsv(file: File) -> Iterator[tuple[int, list[str]]]:
    """Quotes mean nothing: what stands between two tabs is a cell."""
    return ((line, text.split("\t")) for line, text in file.lines())


def _csv(file: File) -> Iterator[tuple[int, list[str]]]:
    """Cells in quotes may hold commas and line ends."""
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader((f"{text}\n" for _, text in file.lines()), strict=True)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"{file.path}: line {reader.line_num} is not valid CSV ({error})") from None
        yield reader.line_num, cells


def _jsonl(
    file: File, columns: tuple[str, ...], n: int, *, label: bool, lists: bool
) -> Iterator[tuple[int, tuple[str, ...]]]:
    for line, text in file.lines():
        if not text.strip():
            yield line, ("",) * n
            continue
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"{file.path}: line {line} is not JSON ({error})") from None
        if not isinstance(value, dict):
            raise InputError(f"{file.path}: line {line} is not an object: {{...}} with a key for each column")
        _refuse_more(f"{file.path}: line {line}", list(value), n, label and not columns and not lists)
        columns = columns or _first(file, list(value), n)
        place = f"{file.path}: line {line}"
        values, names = [value[key] for key in _present(place, columns, value)], columns
        if lists and isinstance(values[-1], list):
            names = (*columns, *columns[-1:] * (len(values[-1]) - 1))
            values = [*values[:-1], *values[-1]]
            names = names[: len(values)]
        yield line, _texts(place, names, values, label)


def parquet_rows(
    file: File, columns: tuple[str, ...], n: int, at_once: int = 4_096
) -> Iterator[tuple[int, tuple[Any, ...], Any]]:
    """Some columns of a Parquet file, their values as they are, and its schema."""
    parquet, arrow = optional("pyarrow.parquet", "parquet files"), optional("pyarrow", "parquet files")
    if file.compression:
        raise InputError(f"{file.path}: parquet is compressed inside; unpack the {file.compression} around it")
    line = 0
    try:
        with file._faults(), parquet.ParquetFile(file.path) as table:
            schema = table.schema_arrow
            wanted = _present(str(file.path), columns or _first(file, schema.names, n), schema.names)
            for batch in table.iter_batches(columns=list(dict.fromkeys(wanted)), batch_size=at_once):
                for values in zip(*(batch.column(name).to_pylist() for name in wanted), strict=True):
                    line += 1
                    yield line, values, schema
                file.done = file.size * line // max(table.metadata.num_rows, 1)
    except arrow.ArrowException as error:
        raise InputError(f"{file.path}: not a parquet file, or cut short ({str(error).splitlines()[0]})") from None
    if line == 0:
        raise InputError(f"{file.path}: the file is empty")


def _texts(place: str, names: Sequence[str], values: Iterable[Any], label: bool) -> tuple[str, ...]:
    """Values as texts; a label may also be a number, or true and false."""
    texts: list[str] = []
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        if value is None:
            value = ""
        elif isinstance(value, int | float) and label and i == len(names) - 1:
            value = json.dumps(value)
        if not isinstance(value, str):
            raise InputError(f"{place}: column {name!r} ({json.dumps(value, default=str)}) must be text")
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise InputError(f"{place}: column {name!r} has half of a surrogate pair, which is no character")
        texts.append(value)
    return tuple(texts)


def _present(place: str, columns: Sequence[str], there: Any) -> Sequence[str]:
    for column in columns:
        if column not in there:
            raise InputError(f"{place}: no column {column!r}; there are {', '.join(there)}")
    return columns


def _first(file: File, names: Sequence[str], n: int) -> tuple[str, ...]:
    if len(names) < n:
        raise InputError(f"{file.path}: {_columns(names)} ({', '.join(names)}), and {n} are needed")
    return tuple(names[:n])


def _refuse_more(place: str, cells: Sequence[str], n: int, asked: bool) -> None:
    """Of more columns than are needed, nobody knows which is the label."""
    if asked and len(cells) > n:
        first = ", ".join(cell if len(cell) <= 20 else f"{cell[:19]}…" for cell in cells)
        raise InputError(
            f"{place} has {_columns(cells)} ({first}), and a text and its label are {n}; say which: columns ="
            ' ["NAME", "NAME"] of a header, or their places ["1", "2"]; on the command line --columns 1,2'
        )


def _columns(cells: Sequence[str]) -> str:
    return f"{len(cells)} column{'s' if len(cells) > 1 else ''}"
