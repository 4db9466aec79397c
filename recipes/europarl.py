"""Europarl for the translator: today's spelling throughout, and the debates of the years around the test apart.

    python recipes/europarl.py ../shared/data/europarl data/europarl-en-de

writes near.tsv (the first three tenths, 1999 to 2002), later.tsv (all after them) and turned.tsv (all of them, from
German to English). The debates are in the order of their dates; dev and test are of October and December 2000. Until
the summer of that year German was spelled as before the reform (daß, muß, Prozeß): a word with ß becomes that with ss
where the later half of the corpus writes it so.
"""

import lzma
import re
import sys
from collections import Counter
from pathlib import Path

NEAR = 0.3  # of the debates, those of 1999 to 2002
CLEARLY = 10  # times as often with ss as with ß: the reform changed the word, and "Maße" is not "Masse"
SHARP = re.compile(r"\w*(?:ß|ss)\w*")


def main(folder: str, out: str) -> None:
    english, german = (
        lzma.decompress(Path(folder, f"train.{language}.xz").read_bytes()).decode().rstrip("\n").split("\n")
        for language in ("en", "de")
    )
    today = Counter(word for line in german[len(german) // 2 :] for word in SHARP.findall(line))

    def spelled(word: str) -> str:
        new = word.replace("ß", "ss")
        return new if today[new] > CLEARLY * today[word] else word

    pairs = list(zip(english, (SHARP.sub(lambda m: spelled(m[0]), line) for line in german), strict=True))
    near = round(NEAR * len(pairs))
    parts = {"near": pairs[:near], "later": pairs[near:], "turned": [(de, en) for en, de in pairs]}
    Path(out).mkdir(parents=True, exist_ok=True)
    for name, rows in parts.items():
        Path(out, f"{name}.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
        print(f"{name}: {len(rows):,} pairs")


if __name__ == "__main__":
    main(*sys.argv[1:])
