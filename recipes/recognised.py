"""How many drawn images are what was asked for, to a model that classifies: text to image on Fashion-MNIST.

    python recipes/recognised.py runs/fashion-draw runs/fashion-mnist --n 100

draws 100 images of every text that fashion-draw.toml trained on, asks the classifier what is on them, and prints the
share that is recognised as the class that was asked for, of each and of all, and the class most mistaken for it.
"""

from __future__ import annotations

import argparse
from collections import Counter

import regard
from regard.train.run import Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("draws", help="a run of recipes/fashion-draw.toml")
    parser.add_argument("classifies", help="a run of recipes/fashion-mnist.toml, whose labels are in the same order")
    parser.add_argument("--n", type=int, default=100, help="images of each text")
    parser.add_argument("--temperature", type=float, default=0.7, help="1 draws as wildly as the data are")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    draws, classifies = regard.load(args.draws), regard.load(args.classifies)
    texts = Run(args.draws).recipe().data.images.names
    names = Run(args.classifies).recipe().data.images.names
    if len(texts) != len(names):
        parser.error(
            f"{args.draws} has {len(texts)} texts, {args.classifies} {len(names)} labels: not of the same data"
        )
    right = 0
    how = {"n": args.n, "temperature": args.temperature, "top_p": args.top_p, "seed": args.seed}
    for text, name in zip(texts, names, strict=True):
        [drawings] = draws.draw(text, **how)
        images = [one.image.repeat(3, axis=2) if one.image.shape[2] == 1 else one.image for one in drawings]
        said = Counter(found.label for found in classifies.classify(images))
        right += said[name]
        [(other, times)] = (said - Counter({name: said[name]})).most_common(1) or [("", 0)]
        mistaken = f"; {times} are {other}" if times else ""
        print(f"{text}: {100 * said[name] / args.n:.1f} %{mistaken}", flush=True)
    print(f"all: {100 * right / (args.n * len(texts)):.2f} % of {args.n * len(texts):,} are what was asked for")


if __name__ == "__main__":
    main()
