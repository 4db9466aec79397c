"""Flickr8k (Hodosh et al. 2013; research use), 8,091 photos with five captions each, unpacked as tables of paths and
captions: 6,000 images to learn from, 1,000 to choose on and 1,000 to test on, as the authors split them.

    python recipes/flickr8k.py          # data/flickr8k/train.jsonl, valid.jsonl, test.jsonl and images/
"""

import argparse
import json
import tarfile
from collections import defaultdict
from pathlib import Path

LISTS = {"train": "trainImages", "valid": "devImages", "test": "testImages"}


def main(archive: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    captions = defaultdict(list)
    for line in (folder / "text" / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines():
        name, _, text = line.partition("\t")
        captions[name.partition("#")[0]].append(text.strip())
    for split, listed in LISTS.items():
        names = (folder / "text" / f"Flickr_8k.{listed}.txt").read_text(encoding="utf-8").split()
        rows = [{"image": f"images/{name}", "caption": captions[name]} for name in names]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{folder / split}.jsonl: {len(rows):,} images, {sum(len(row['caption']) for row in rows):,} captions")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--archive", type=Path, default=Path("../shared/data/flickr8k/flickr8k-112px.tar"))
    parser.add_argument("--out", type=Path, default=Path("data/flickr8k/raw"))
    arguments = parser.parse_args()
    main(arguments.archive, arguments.out)
