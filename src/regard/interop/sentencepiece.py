"""SentencePiece files (Kudo 2018), as Marian's translators come with them: pieces and their scores, and how text is
normalised before. The file is read here, a few fields of a protocol buffer; the ``tokenizers`` library does the rest.

An OPUS-MT directory has ``source.spm`` and ``target.spm``, which cut text into pieces, and one ``vocab.json``, which
numbers the pieces of both (or ``target_vocab.json`` beside it, where the sides have numbers of their own).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from regard.schema import InputError

NORMAL, UNKNOWN, CONTROL, BY_USER, UNUSED, BYTE = range(1, 7)
UNIGRAM = 1
NEVER = -1e6  # the score of a character that this side does not have: only better than an unknown one
FOREIGN = "\0"  # before a longer piece that it does not have: in no text


@dataclass(frozen=True)
class Pieces:
    """What a SentencePiece file holds, as far as text is cut by it."""

    scores: dict[str, float]
    by_user: tuple[str, ...]  # pieces that are never cut
    charsmap: bytes  # how characters are normalised
    prefix: bool  # whether a space goes before the text
    collapse: bool  # whether several spaces are one, and none at the ends


def read_pieces(file: Path) -> Pieces:
    """The pieces of a .spm file.

    >>> read_pieces(Path("nowhere.spm"))
    Traceback (most recent call last):
    regard.schema.InputError: nowhere.spm: cannot be read (No such file or directory)
    """
    try:
        whole = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    try:
        return _pieces(file, whole)
    except InputError:
        raise
    except (ValueError, IndexError, struct.error, TypeError, AttributeError):
        raise InputError(f"{file}: is no SentencePiece model; give the file that came with the model") from None


def _pieces(file: Path, whole: bytes) -> Pieces:
    scores, by_user, kind = dict[str, float](), list[str](), UNIGRAM
    normaliser: dict[int, int | bytes] = {}
    for number, value in _fields(whole):
        if number == 1:  # a piece
            of = dict(_fields(value))
            name, sort = of[1].decode(), of.get(3, NORMAL)
            if sort in (NORMAL, BY_USER):
                scores[name] = struct.unpack("<f", of[2])[0] if 2 in of else 0.0
            if sort == BY_USER:
                by_user.append(name)
        elif number == 2:  # how it was trained
            kind = dict(_fields(value)).get(3, UNIGRAM)
        elif number == 3:
            normaliser = dict(_fields(value))
    if not scores:
        raise ValueError("no pieces")
    if kind != UNIGRAM:
        raise InputError(f"{file}: model type {kind} is not supported; 1, unigram, is")
    charsmap = normaliser.get(2, b"")
    assert isinstance(charsmap, bytes)
    return Pieces(scores, tuple(by_user), charsmap, bool(normaliser.get(3, 1)), bool(normaliser.get(4, 1)))


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol buffer's message: numbers as numbers, all else as bytes."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = number()
        match tag & 7:
            case 0:
                yield tag >> 3, number()
                continue
            case 1:
                size = 8
            case 2:
                size = number()
            case 5:
                size = 4
            case _:
                raise ValueError(f"wire type {tag & 7}")
        if at + size > len(message):
            raise ValueError("cut short")
        yield tag >> 3, message[at : at + size]
        at += size


def unigram(pieces: Pieces, ids: Mapping[str, int], unknown: str = "<unk>", end: str = "</s>") -> tokenizers.Tokenizer:
    """A tokenizer that cuts text by its pieces and numbers them by ``ids``, which may have those of another language,
    too; an end goes behind the text. The ids are Marian's, but that of several characters in a row that this side does
    not have, those that the other has are kept, where Marian has one unknown for all.

    >>> pieces = Pieces({"▁a": -1.0, "▁": -2.0, "a": -2.0, "b": -2.5}, (), b"", prefix=True, collapse=True)
    >>> mine = unigram(pieces, {"</s>": 0, "<unk>": 1, "b": 2, "▁a": 3, "a": 4, "▁": 5, "▁ab": 6})
    >>> mine.encode("a  ab").tokens
    ['▁a', '▁a', 'b', '</s>']
    """
    names = sorted(ids, key=ids.__getitem__)
    if [ids[name] for name in names] != list(range(len(names))):
        raise InputError("vocab.json does not number its pieces from 0 on without a gap")
    for name in (unknown, end):
        if name not in ids:
            raise InputError(f"vocab.json has no {name}")
    # ">>fra<<" before a text says what language it is to be translated into.
    whole = [name for name in names if name in pieces.by_user or (name.startswith(">>") and name.endswith("<<"))]
    known = pieces.scores.keys() | {unknown, end, "<pad>", *whole}
    table = [
        (name if name in known or len(name) == 1 else FOREIGN + name, pieces.scores.get(name, NEVER)) for name in names
    ]
    inner = tokenizers.Tokenizer(models.Unigram(table, unk_id=ids[unknown]))
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(pieces.charsmap)] if pieces.charsmap else []
    if pieces.collapse:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    inner.normalizer = normalizers.Sequence(steps)
    scheme = "always" if pieces.prefix else "never"
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    inner.decoder = decoders.Sequence([decoders.Replace(FOREIGN, ""), decoders.Metaspace(prepend_scheme=scheme)])
    inner.add_tokens([AddedToken(name, normalized=False, rstrip=name.startswith(">>")) for name in whole])
    inner.add_special_tokens([name for name in (end, unknown, "<pad>") if name in ids])
    inner.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, ids[end])])
    return inner
