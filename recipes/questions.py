"""Pairs of answers from Shakespeare, of which the one that asks is the better one.

    python recipes/questions.py ../shared/data/shakespeare/input.txt data/questions

A prompt is a speaker's name, the two answers are first lines of speeches: the chosen one is what that speaker said
there, and ends with a question mark; the rejected one is anybody's, as long, that ends otherwise. Writes train.jsonl
and valid.jsonl, the latter from the last tenth of the plays.
"""

import json
import random
import sys
from pathlib import Path


def speeches(text: str) -> list[tuple[str, str]]:
    """The speakers, and the first line of what each says."""
    blocks = (block.strip().split("\n") for block in text.split("\n\n"))
    return [(block[0], block[1]) for block in blocks if len(block) > 1 and block[0].endswith(":")]


def pairs(some: list[tuple[str, str]], draw: random.Random) -> list[dict[str, str]]:
    asked = [(speaker, line) for speaker, line in some if line.endswith("?")]
    others = [line for _, line in some if not line.endswith("?")]
    found = []
    for speaker, line in asked:
        said = draw.choice([other for other in others if abs(len(other) - len(line)) <= 2])
        found.append({"prompt": f"{speaker}\n", "chosen": f"{line}\n", "rejected": f"{said}\n"})
    return found


def main(source: str, folder: str) -> None:
    found, draw = speeches(Path(source).read_text(encoding="utf-8")), random.Random(1)
    cut = len(found) * 9 // 10
    Path(folder).mkdir(parents=True, exist_ok=True)
    for split, some in (("train", found[:cut]), ("valid", found[cut:])):
        rows = pairs(some, draw)
        Path(folder, f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        print(f"{split}: {len(rows):,} pairs")


if __name__ == "__main__":
    main(*sys.argv[1:])
