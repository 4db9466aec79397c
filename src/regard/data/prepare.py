"""Raw files to a data directory: check everything, learn a tokenizer, write ids and pixels.

The files are gone through three times, as a stream each: to find what is wrong with them and count their characters and
labels, before anything is worked out; to learn a tokenizer, from an even sample where there is much; and to encode.
Images are opened in the last of these, on all cores; those that cannot be read are counted and named. Nothing appears
under the directory's name before all of it is there.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard import __version__, recipe
from regard.data.images import Picture, read_pixels
from regard.data.readers import Corpus, Row
from regard.data.store import FORMAT, Column, DataDir, sha256
from regard.data.tokenizer import SPECIAL, Characters, Packer, Tokenizer
from regard.files import alone, draft_of
from regard.schema import InputError, suggest

BATCH = 1 << 20  # characters that are worked on together
AN_IMAGE = 1 << 12  # as many characters as one image counts
NAMED = 5  # images that cannot be read, of those that an error or the manifest names

Progress = Callable[[str, int, int, str], None]
"""Told now and then what is being done, how many bytes of the files are read and of how many (0: none are), and a
figure to watch."""


def prepare(
    data: recipe.Data,
    out: str | Path,
    *,
    tokenizers: Mapping[str, Tokenizer] | None = None,
    progress: Progress = lambda *_: None,
) -> DataDir:
    """Write a data directory from raw files, whole or not at all, and open it. ``tokenizers``, by the names of their
    files, are those of a model that is to go on with the data; none is learned then.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "dog.txt").write_text("A dog runs.")
    >>> files, tokenizer = recipe.Files(files=(f"{folder}/*.txt",)), recipe.Tokenizer(kind="bytes")
    >>> prepared = prepare(recipe.Data(task="generate", train=files, tokenizer=tokenizer), folder / "data")
    >>> prepared.tokenizer.decode(prepared.split("train")["text"][0])
    'A dog runs.'
    """
    out = Path(out)
    if out.exists():
        raise InputError(f"{out}: exists already; remove it, or choose another --out")
    data.validate()
    corpora = {"train": Corpus(data, data.train)}
    if not data.valid.empty:
        corpora["valid"] = Corpus(data, data.valid)

    survey = Survey(data)
    for split, corpus in corpora.items():
        survey.go_through(split, corpus, progress)
    tokenizers, facts = _tokenizers(data, corpora["train"], survey, progress, tokenizers)
    with alone(out):
        _write(data, out, corpora, survey, tokenizers, facts, progress)
    return DataDir(out)


def _write(
    data: recipe.Data,
    out: Path,
    corpora: Mapping[str, Corpus],
    survey: Survey,
    tokenizers: Mapping[str, Tokenizer],
    facts: dict[str, Any],
    progress: Progress,
) -> None:
    """All files of the directory, under another name until they are whole."""
    labels = sorted(survey.labels)
    partial = draft_of(out)
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    partial.mkdir(parents=True)
    try:
        for file, tokenizer in tokenizers.items():
            tokenizer.save(partial / file)
        packers = {file: Packer(tokenizer) for file, tokenizer in tokenizers.items()}
        splits: dict[str, Any] = {}
        for split, corpus in corpora.items():
            n_images = len(survey.pictures.get(split, ())) or survey.n_rows[split]
            writer = Writer(data, partial, split, packers, labels, n_images)
            for batch in _batches(data, corpus, f"encoding {split}", progress, writer.note):
                writer.add(batch)
            if split == "train":
                for file, packer in packers.items():
                    facts[file]["tokens_per_word"] = round(packer.tokens / max(packer.words, 1), 3)
            splits |= writer.finish()
        seen = {} if data.images is None else {"images": _colours(partial / "train.image.bin", data.images)}
        if data.images is not None and data.images.tokenizer is not None:
            seen["painter"] = _coded(partial, splits, data.images, data.images.tokenizer, progress)
        given = [Path(data.tokenizer.file)] if data.tokenizer.file else []
        manifest = {
            "format": FORMAT,
            "regard": __version__,
            "task": data.task,
            "data": data.to_dict(),
            "splits": splits,
            "labels": labels,
            "tokenizers": facts,
            **seen,
            "inputs": _hashes([*(file.path for corpus in corpora.values() for file in corpus.inputs), *given]),
            "files": {Path(name).name: of for name, of in _hashes(sorted(partial.iterdir())).items()},
        }
        (partial / "manifest.json").write_text(json.dumps(manifest, indent=2, ensure_ascii=False), encoding="utf-8")
        os.rename(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _hashes(paths: list[Path]) -> dict[str, dict[str, Any]]:
    """Of files; of the images in a folder, the pixels' hash must do."""
    files = [path for path in paths if path.is_file()]
    return {str(path): {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files}


def _colours(path: Path, images: recipe.Images) -> dict[str, Any]:
    """How all images are to be treated: their size, and the mean and deviation of each colour (of 1), from a count of
    every value."""
    pixels = np.memmap(path, np.uint8, "r").reshape(-1, images.channels)
    counts = np.zeros((images.channels, 256), np.int64)
    for start in range(0, len(pixels), 1 << 22):
        some = pixels[start : start + (1 << 22)]
        counts += np.stack([np.bincount(some[:, i], minlength=256) for i in range(images.channels)])
    shares, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = shares @ values
    deviation = np.sqrt(np.maximum(shares @ values**2 - mean**2, 0))
    # Of images that are all of one colour there is no deviation, and nothing to divide by.
    return {
        "size": images.size,
        "channels": images.channels,
        "mean": [round(float(m), 6) for m in mean],
        "std": [round(float(d), 6) or 1.0 for d in deviation],
    }


def _coded(
    folder: Path, splits: dict[str, Any], images: recipe.Images, painter: str, progress: Progress
) -> dict[str, Any]:
    """A column of codes beside the images of every split, and the model that they are the codes of, as a run directory
    of its own; what the manifest says of it."""
    from regard.model import load  # a house above this one: what is prepared here is what that one thinks of images

    model = load(painter, precision="float32")
    model.check_task("paint")
    told = model.images or {}
    if (told.get("size"), told.get("channels")) != (images.size, images.channels):
        raise InputError(
            f"images ({images.size} x {images.size}, {images.channels} channels): {painter} paints {told.get('size')} x"
            f" {told.get('size')}, {told.get('channels')} channels; say the same"
        )
    n_codes = model.config.head.n_codes  # type: ignore[union-attr]
    for split, facts in splits.items():
        shape = facts["columns"]["image"]["shape"]
        pixels = np.memmap(folder / f"{split}.image.bin", np.uint8, "r").reshape(-1, *shape)
        column = Column(folder, split, "codes", np.dtype("u2" if n_codes <= 2**16 else "i4"), ragged=False)
        for start in range(0, len(pixels), 1_024):
            progress(f"coding {split}", 0, 0, f"{start:,} of {len(pixels):,} images")
            codes = model.codes(list(pixels[start : start + 1_024]))
            column.shape = codes.shape[1:]
            column.add([row.tobytes() for row in codes.astype(column.dtype)])
        facts["columns"]["codes"] = column.close()
    own = folder / "painter"
    own.mkdir()
    assert model.path is not None
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(model.path / name, own / name)
    return {"from": painter, "n_codes": n_codes, "sha256": sha256(own / "model.safetensors")}


# ---------------------------------------------------------------------------------------
# What a task has


def text_columns(data: recipe.Data) -> tuple[str, ...]:
    """The columns that hold text.

    >>> text_columns(recipe.Data(task="translate", train=recipe.Files(files=("a.tsv",))))
    ('source', 'target')
    """
    if data.images is not None:
        return ("text",) if data.task in recipe.CAPTIONED else ()
    if data.task == "translate":
        return "source", "target"
    if data.task == "prefer":
        return "prompt", "chosen", "rejected"
    return ("text", "second") if data.task == "classify" and len(data.columns) == 3 else ("text",)


def tokenizer_files(data: recipe.Data) -> dict[str, str]:
    """Which file has the tokenizer of each column of text."""
    own = data.task == "translate" and not data.tokenizer.shared and data.tokenizer.file is None
    return {c: "source.tokenizer.json" if own and c == "source" else "tokenizer.json" for c in text_columns(data)}


def label_column(data: recipe.Data) -> str | None:
    return {"classify": "label", "tag": "tag"}.get(data.task)


class Batch(NamedTuple):
    """Rows that have text in every column, and the texts of each column."""

    rows: list[Row]
    texts: dict[str, list[str]]
    n_empty: int


def _batches(
    data: recipe.Data, corpus: Corpus, stage: str, progress: Progress, note: Callable[[], str] = str
) -> Iterator[Batch]:
    names = text_columns(data)
    total = sum(file.size for file in corpus.files)
    rows: list[Row] = []
    texts: list[tuple[str, ...]] = []
    size = n_empty = 0
    for row in corpus.rows():
        texts_at = slice(1, 1 + len(names)) if data.images is not None else slice(len(names))  # after the image
        values = (" ".join(row.values[0]),) if data.task == "tag" else row.values[texts_at]
        if all(map(str.strip, values)):
            rows.append(row)
            texts.append(values)
            size += sum(map(len, values)) + (AN_IMAGE if data.images is not None else 0)
        else:
            n_empty += 1
        if size > BATCH:
            progress(stage, sum(file.done for file in corpus.files), total, note())
            yield Batch(rows, dict(zip(names, map(list, zip(*texts, strict=True)), strict=True)), n_empty)
            rows, texts, size, n_empty = [], [], 0, 0
    columns = zip(*texts, strict=True) if texts else [[]] * len(names)
    yield Batch(rows, dict(zip(names, map(list, columns), strict=True)), n_empty)
    progress(stage, total, total, note())


# ---------------------------------------------------------------------------------------
# First: what is there, and what is wrong with it


class Survey:
    """The characters and labels of the training data; what is wrong in it, or in the validation data, is raised."""

    def __init__(self, data: recipe.Data):
        self.data = data
        self.characters = {file: Characters(data.tokenizer) for file in tokenizer_files(data).values()}
        self.labels: Counter[str] = Counter()
        self.heads: dict[Path, Row] = {}  # the first row of each file
        self.n_rows: Counter[str] = Counter()  # of each split
        self.pictures: dict[str, set[str]] = {}  # of each split with captions, which may be several an image

    def go_through(self, split: str, corpus: Corpus, progress: Progress) -> None:
        for batch in _batches(
            self.data, corpus, f"checking {split}", progress, lambda: f"{self.n_rows.total():,} rows"
        ):
            self.n_rows[split] += len(batch.rows)
            if split == "train":
                for column, file in tokenizer_files(self.data).items():
                    self.characters[file].add(batch.texts[column])
            if label_column(self.data):
                for row in batch.rows:
                    self._label(row, split)
            if self.data.task in recipe.CAPTIONED:
                self.pictures.setdefault(split, set()).update(row.values[0].key for row in batch.rows)
        if split == "train" and self.data.task == "classify" and not self.data.columns:
            self._refuse_header()

    def _label(self, row: Row, split: str) -> None:
        for i, label in enumerate(row.labels):
            place = f"{row.file.path}: line {row.line + i}"
            if not label.strip():
                raise InputError(f"{place}: the label is missing")
            if self.data.labels == "numbers":
                _number(label, place)
            elif split == "train":
                self.heads.setdefault(row.file.path, row)
                self.labels[label] += 1
            elif label not in self.labels:
                raise InputError(f"{place}: label {label!r} is not in the training data; {suggest(label, self.labels)}")

    def _refuse_header(self) -> None:
        """A label that only first lines have, where all others recur, is the name of a column."""
        heads = Counter(row.labels[0] for row in self.heads.values() if row.file.format in ("csv", "tsv"))
        rare = [label for label, n in self.labels.items() if n in (1, heads[label])]
        if len(rare) == 1 < len(self.labels) and rare[0] in heads:
            row = next(row for row in self.heads.values() if row.labels == rare)
            raise InputError(
                f"{row.file.path}: line {row.line} looks like a header: label {rare[0]!r} is nowhere else; say"
                f' columns = {json.dumps(row.values, ensure_ascii=False)}, or columns = ["1", "2"] if it is none'
            )


def _number(label: str, place: str) -> float:
    """A label as a number."""
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        header = "; if it is a header, name the columns" if place.endswith("line 1") else ""
        raise InputError(f"{place}: label {label!r} is not a number, and labels = 'numbers' says they are{header}")
    return value


# ---------------------------------------------------------------------------------------
# Second: the tokenizer, or one a side


def _tokenizers(
    data: recipe.Data, corpus: Corpus, survey: Survey, progress: Progress, given: Mapping[str, Tokenizer] | None
) -> tuple[dict[str, Tokenizer], dict[str, dict[str, Any]]]:
    """The tokenizers by their files' names, and what the manifest says of each."""
    tokenizers: dict[str, Tokenizer] = {}
    facts: dict[str, dict[str, Any]] = {}
    origin: dict[str, Any]
    for file, characters in survey.characters.items():
        if given is not None:
            tokenizer, origin = given[file], {"from": "the model that training begins with"}
        elif data.tokenizer.file is not None:
            tokenizer = Tokenizer.load(data.tokenizer.file)
            origin = {"from": data.tokenizer.file, **_hashes([Path(data.tokenizer.file)]).popitem()[1]}
        else:
            columns = [column for column, its in tokenizer_files(data).items() if its == file]
            texts = _sample(data, corpus, columns, characters.sample, progress)
            tokenizer = Tokenizer.train(texts, data.tokenizer, characters)
            origin = {"characters": characters.total, "learned_from": f"1 text in {characters.sample}"}
        special = {role: getattr(tokenizer, role) for role in SPECIAL}
        tokenizers[file], facts[file] = tokenizer, {**origin, "vocab_size": len(tokenizer), "special": special}
    return tokenizers, facts


def _sample(data: recipe.Data, corpus: Corpus, columns: list[str], every: int, progress: Progress) -> Iterator[str]:
    stage = f"learning {' and '.join(columns)} tokens"
    batches = _batches(data, corpus, stage, progress)
    yield from itertools.islice((t for batch in batches for name in columns for t in batch.texts[name]), 0, None, every)
    progress(stage, 0, 0, "merging")


# ---------------------------------------------------------------------------------------
# Third: ids


class Writer:
    """The columns of one split, on their way through the filters to disk."""

    def __init__(
        self, data: recipe.Data, folder: Path, split: str, packers: dict[str, Packer], labels: list[str], n_images: int
    ):
        self.data, self.split, self.n_images = data, split, n_images
        self.labels = {label: i for i, label in enumerate(labels)}
        self.packers = {column: packers[file] for column, file in tokenizer_files(data).items()}
        self.columns = {name: Column(folder, split, name, packer.dtype) for name, packer in self.packers.items()}
        if data.images is not None:
            shape = (data.images.size, data.images.size, data.images.channels)
            self.columns["image"] = Column(folder, split, "image", np.dtype("u1"), ragged=False, shape=shape)
        if data.task in recipe.CAPTIONED:  # the number of each text's image
            self.columns["of"] = Column(folder, split, "of", np.dtype("i4"), ragged=False)
        if data.task == "classify":
            number = np.dtype("f4" if data.labels == "numbers" else "i4")
            self.columns["label"] = Column(folder, split, "label", number, ragged=False)
        if data.task == "tag":
            self.columns["tag"] = Column(folder, split, "tag", np.dtype("i2" if len(labels) < 2**15 else "i4"))
        self.dropped: Counter[str] = Counter()
        self.broken: list[str] = []  # what is wrong with the first images that cannot be read
        self.n_broken = 0
        self.places: dict[str, int] = {}  # of images with captions: which of them each is; -1 cannot be read
        self.n_read = 0

    def note(self) -> str:
        """How far it is."""
        if self.data.images is not None:
            done = len(self.places) if self.data.task in recipe.CAPTIONED else self.n_read
            return f"{done:,} of {self.n_images:,} images"
        return f"{sum(self.columns[name].size for name in self.packers):,} tokens"

    def add(self, batch: Batch) -> None:
        self.n_read += batch.n_empty
        self.dropped["empty"] += batch.n_empty
        if self.data.task in ("generate", "fill"):
            begins = [row.values[1] for row in batch.rows]
            self.n_read += sum(begins)
            self.columns["text"].add(self.packers["text"](batch.texts["text"], begins), begins)
            return
        self.n_read += len(batch.rows)
        if self.data.task == "tag":
            packed = self._tagged(batch.rows)
        elif self.data.task == "prefer":
            packed = self._answered(batch.texts)
        else:
            packed = {name: packer(batch.texts[name]) for name, packer in self.packers.items()}
        if self.data.task in recipe.CAPTIONED:
            self._captioned(batch.rows, packed["text"])
            return
        if self.data.images is not None:
            packed["image"] = self._pixels([row.values[0] for row in batch.rows], self.data.images)
        if self.data.task == "classify":
            packed["label"] = [np.array(self._label(row), self.columns["label"].dtype).tobytes() for row in batch.rows]
        keep = self._filter(packed)
        for name, rows in packed.items():
            self.columns[name].add([row for row, kept in zip(rows, keep, strict=True) if kept])

    def _captioned(self, rows: list[Row], texts: list[bytes]) -> None:
        """Captions, and each of their images once, in the order in which they come."""
        fits = self._filter({"text": texts})
        found = [(row.values[0], text) for row, text, kept in zip(rows, texts, fits, strict=True) if kept]
        assert self.data.images is not None
        new = {picture.key: picture for picture, _ in found if picture.key not in self.places}
        pixels = self._pixels(list(new.values()), self.data.images)
        self.dropped["broken"] += 0
        for key, read in zip(new, pixels, strict=True):
            self.places[key] = len(self.columns["image"].ends) if read else -1
            self.columns["image"].add([read] if read else [])
        of = np.array([self.places[picture.key] for picture, _ in found], np.int32)
        self.dropped["broken"] += int((of < 0).sum())
        self.columns["text"].add([text for (_, text), place in zip(found, of, strict=True) if place >= 0])
        self.columns["of"].add([place.tobytes() for place in of.astype(self.columns["of"].dtype) if place >= 0])

    def _pixels(self, pictures: list[Picture], how: recipe.Images) -> list[bytes]:
        """Every image opened, cut and resized, on all cores; nothing for one that cannot be read."""

        def read(picture: Picture) -> bytes | InputError:
            try:
                return read_pixels(picture.source, how.size, how.channels, picture.name).tobytes()
            except InputError as error:
                return error

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = list(pool.map(read, pictures))
        errors = [str(error) for error in found if isinstance(error, InputError)]
        n = self.n_broken = self.n_broken + len(errors)
        self.broken += errors[: NAMED - len(self.broken)]
        if n > how.max_broken * self.n_images:
            raise InputError(
                f"{self.split}: {n:,} of {self.n_images:,} images cannot be read, more than max_broken"
                f" ({how.max_broken:g}) of them: {'; '.join(self.broken)}"
            )
        return [b"" if isinstance(one, InputError) else one for one in found]

    def _label(self, row: Row) -> float:
        label = row.labels[0]
        return float(label) if self.data.labels == "numbers" else self.labels[label]

    def _answered(self, texts: dict[str, list[str]]) -> dict[str, list[bytes]]:
        """Prompts, and answers that go on from them: prompt and answer are one text, with what spaces the two have."""
        prompt = self.packers["prompt"]
        ids = {"prompt": prompt(texts["prompt"])}
        for name in ("chosen", "rejected"):
            packer = self.packers[name]
            ids[name] = [packer.pack(row) for row in packer.tokenizer.encode_parts(texts[name])]
        return ids

    def _tagged(self, rows: list[Row]) -> dict[str, list[bytes]]:
        """The ids of each row's words, and the tag of each word: at its first id, with -1 at the others."""
        packer, column = self.packers["text"], self.columns["tag"]
        packed: dict[str, list[bytes]] = {"text": [], "tag": []}
        for row in rows:
            words = packer.words_of(row.values[0])
            if not all(words):
                words = []  # nothing is left of a word, in a tokenizer from elsewhere: as if the row were empty
            tags = [[self.labels[tag], *[-1] * (len(word) - 1)] for word, tag in zip(words, row.labels, strict=False)]
            packed["text"].append(np.array([id for word in words for id in word], packer.dtype).tobytes())
            packed["tag"].append(np.array([tag for word in tags for tag in word], column.dtype).tobytes())
        return packed

    def _filter(self, packed: dict[str, list[bytes]]) -> list[bool]:
        """Which rows stay, by the lengths of their texts; each that goes is counted once."""
        if "image" in packed:
            keep = [bool(pixels) for pixels in packed["image"]]
            self.dropped["broken"] += len(keep) - sum(keep)
            return keep
        n = np.array([[len(row) // self.packers[name].dtype.itemsize for row in packed[name]] for name in self.packers])
        longest, shortest = n.sum(axis=0) if self.data.task == "classify" else n.max(axis=0), n.min(axis=0)
        if self.data.task == "prefer":
            longest = n[0] + n[1:].max(axis=0)
        filters = {"empty": shortest == 0, "too long": longest > self.data.max_tokens}
        if self.data.task == "prefer":
            filters["alike"] = np.array([a == b for a, b in zip(packed["chosen"], packed["rejected"], strict=True)])
        if self.data.max_ratio is not None and self.data.task == "translate":
            filters["ratio"] = longest > shortest * self.data.max_ratio
        keep = np.ones(n.shape[1], bool)
        for reason, bad in filters.items():
            self.dropped[reason] += int((keep & bad).sum())
            keep &= ~bad
        return keep.tolist()

    def finish(self) -> dict[str, Any]:
        """Close the files; what the manifest says of this split, and of the one that is held out of it."""
        first, *_ = self.columns.values()
        n = len(first.ends)
        if n == 0:
            why = {
                "empty": "empty",
                "too long": f"longer than max_tokens ({self.data.max_tokens})",
                "ratio": f"beyond max_ratio ({self.data.max_ratio})",
                "alike": "with the same answer twice",
                "broken": "that cannot be read",
            }
            reasons = [f"{count:,} {why[reason]}" for reason, count in self.dropped.items() if count]
            raise InputError(f"{self.split}: no example is left of {self.n_read:,}: {', '.join(reasons) or 'no rows'}")
        parts = {self.split: self.columns}
        if self.data.hold_out:
            parts["valid"] = self._hold_out(n)
        facts: dict[str, Any] = {
            split: {
                "examples": len(columns[first.name].ends),
                "columns": {name: column.close() for name, column in columns.items()},
            }
            for split, columns in parts.items()
        }
        facts[self.split] |= {"read": self.n_read, "dropped": dict(self.dropped)}
        if self.broken:
            facts[self.split]["broken"] = self.broken
        return facts

    def _hold_out(self, n: int) -> dict[str, Column]:
        """The last share: of the tokens where texts are one long stream, else of the examples."""
        share = self.data.hold_out
        if self.data.task in ("generate", "fill"):
            column = self.columns["text"]
            at = column.size - round(share * column.size)
            row = int(np.searchsorted(column.ends, at, side="right"))
            if 0 < at < column.size:
                return {"text": column.split_off("valid", row, at)}
            raise InputError(f"hold_out ({share}) of {column.size:,} tokens leaves none on one side")
        if self.data.task in recipe.CAPTIONED:
            return self._hold_out_images(n)
        row = n - round(share * n)
        if not 0 < row < n:
            raise InputError(f"hold_out ({share}) of {n:,} examples leaves none on one side")
        held = {c.name: c.split_off("valid", row, c.ends[row - 1]) for c in self.columns.values()}
        name = label_column(self.data)
        if name is not None:
            known, there = self.columns[name].unique(), held[name].unique()
            missing = [label for label, i in self.labels.items() if i in there - known]
            if missing:
                raise InputError(
                    f"hold_out ({share}): label {missing[0]!r} is held out whole; shuffle the file, or give valid files"
                )
        return held

    def _hold_out_images(self, n: int) -> dict[str, Column]:
        """The last share of the images, with all of their captions."""
        share, of = self.data.hold_out, np.fromfile(self.columns["of"].path, self.columns["of"].dtype)
        n_images = len(self.columns["image"].ends)
        cut = n_images - round(share * n_images)
        if not 0 < cut < n_images:
            raise InputError(f"hold_out ({share}) of {n_images:,} images leaves none on one side")
        row = int((of < cut).sum())
        if (of[:row] >= cut).any():
            raise InputError(
                f"hold_out ({share}): captions of one image lie apart; sort the file by image, or give valid files"
            )
        rows = {"text": row, "of": row, "image": cut}
        held = {
            name: column.split_off("valid", rows[name], column.ends[rows[name] - 1])
            for name, column in self.columns.items()
        }
        (of[row:] - cut).astype(of.dtype).tofile(held["of"].path)
        return held
