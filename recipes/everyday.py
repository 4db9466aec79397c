"""Split the Anki sentences by their English side: a sentence that is held out is held out with all its translations.

    python recipes/everyday.py ../shared/data/anki/eng-deu.tsv.xz data/everyday-en-de

writes train.tsv, valid.tsv and test.tsv into the folder: about 500 English sentences each in the last two, chosen by a
hash of the letters and digits alone, so that "Stop!" and "Stop." stay together. casual.tsv has some of the training
sentences once more, as people type them: small letters, no mark at the end.
"""

import hashlib
import lzma
import sys
from pathlib import Path

SHARE = 250  # of so many sentences, one is held out to choose the model on and one to test it
CASUAL = 15  # of so many that are learned from, one is there as it is typed, too


def split_of(number: int) -> str:
    return {0: "valid", 1: "test"}.get(number % SHARE, "train")


def number_of(english: str) -> int:
    letters = "".join(c for c in english.casefold() if c.isalnum())
    return int(hashlib.sha256(letters.encode()).hexdigest(), 16)


def typed(english: str) -> str:
    return english.lower().rstrip(".?!")


def main(source: str, folder: str) -> None:
    rows: dict[str, list[str]] = {"train": [], "valid": [], "test": [], "casual": []}
    with lzma.open(source, "rt", encoding="utf-8") as lines:
        for line in lines:
            english, german = line.rstrip("\n").split("\t")[:2]
            number = number_of(english)
            split = split_of(number)
            rows[split].append(f"{english}\t{german}\n")
            if split == "train" and number // SHARE % CASUAL == 0:
                rows["casual"].append(f"{typed(english)}\t{german}\n")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for split, pairs in rows.items():
        Path(folder, f"{split}.tsv").write_text("".join(pairs), encoding="utf-8")
        print(f"{split}: {len(pairs):,} pairs")


if __name__ == "__main__":
    main(*sys.argv[1:])
