"""What a small translator learns from a large one: its translations (sequence-level distillation, Kim and Rush 2016).

    python recipes/distil.py runs/europarl-en-de data/distil-en-de/0.tsv \\
        ../shared/data/europarl/train.en.xz@0.6 data/everyday-en-de/train.tsv ../shared/data/wikipedia/train.txt.xz

writes each sentence of the files with its translation. Of a table the first column is read, of FILE@SHARE that share of
the sentences; none is taken twice. With --part 1/4 every fourth sentence is translated, from the second on, so that
four processes share a GPU and the processors beside it.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path

import regard
from regard.data.readers import File
from regard.data.sentences import split

LONGEST = 60  # words
AT_ONCE = 16_384  # sentences that are sorted by length together


def sentences(told: str) -> Iterator[tuple[str, int]]:
    """The sentences of a file that are chosen, each with its number: the same in every process."""
    name, _, share = told.partition("@")
    file = File(Path(name))
    for _, line in file.lines():
        for sentence, _ in split(line.partition("\t")[0] if file.suffix == ".tsv" else line):
            number = int.from_bytes(hashlib.blake2b(sentence.encode(), digest_size=8).digest())
            words = len(sentence.split())
            if 1 <= words <= LONGEST and "\t" not in sentence and number < float(share or 1) * 2**64:
                yield sentence, number


def worth_keeping(source: str, translation: regard.Translation) -> bool:
    """Not what went on to its limit, nor what is much shorter or longer than a translation would be."""
    n, m = len(source), len(translation.text)
    return "\t" not in translation.text and n / 3 - 10 < m < 3 * n + 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--part", default="0/1")
    args = parser.parse_args()
    part, parts = map(int, args.part.split("/"))

    seen, mine = set(), []
    for file in args.files:
        for sentence, number in sentences(file):
            if number % parts == part and number not in seen:
                seen.add(number)
                mine.append(sentence)
    model = regard.load(args.model)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    draft, kept = args.out.with_name(f".{args.out.name}"), 0
    with draft.open("w", encoding="utf-8") as out:
        for begin in range(0, len(mine), AT_ONCE):
            some = mine[begin : begin + AT_ONCE]
            for source, translation in zip(some, model.translate(some, whole=True), strict=True):
                if worth_keeping(source, translation):
                    out.write(f"{source}\t{translation.text}\n")
                    kept += 1
            print(f"{args.part}: {begin + len(some):,} of {len(mine):,} sentences, {kept:,} kept", flush=True)
    draft.rename(args.out)


if __name__ == "__main__":
    main()
