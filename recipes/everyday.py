"""Split the Anki sentences by their English side: a sentence that is held out is held out with all its translations.

    python recipes/everyday.py ../shared/data/anki/eng-deu.tsv.xz data/everyday-en-de

writes train.tsv, valid.tsv and test.tsv into the folder: about 500 English sentences each in the last two, chosen by a
hash of the letters and digits alone, so that "Stop!" and "Stop." stay together.
"""

import hashlib
import lzma
import sys
from pathlib import Path

SHARE = 250  # of so many sentences, one is held out to choose the model on and one to test it


def split_of(english: str) -> str:
    letters = "".join(c for c in english.casefold() if c.isalnum())
    return {0: "valid", 1: "test"}.get(int(hashlib.sha256(letters.encode()).hexdigest(), 16) % SHARE, "train")


def main(source: str, folder: str) -> None:
    rows: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    with lzma.open(source, "rt", encoding="utf-8") as lines:
        for line in lines:
            pair = line.rstrip("\n").split("\t")[:2]
            rows[split_of(pair[0])].append("\t".join(pair) + "\n")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for split, pairs in rows.items():
        Path(folder, f"{split}.tsv").write_text("".join(pairs), encoding="utf-8")
        print(f"{split}: {len(pairs):,} pairs")


if __name__ == "__main__":
    main(*sys.argv[1:])
