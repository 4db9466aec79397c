"""scikit-learn's handwritten digits (1,797 of 8 x 8 pixels, 16 greys), written as MNIST's idx files: every sixth is for
testing. Nothing is downloaded.

    python recipes/digits.py            # data/digits-images/train-images-idx3-ubyte ...
    python recipes/digits.py --png      # and each as a picture of its own: data/digits-images/test/7/0123.png
"""

import argparse
from pathlib import Path

import numpy as np


def write_idx(path: Path, values: np.ndarray) -> None:
    """An array of bytes as an idx file."""
    header = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    path.write_bytes(header + values.tobytes())


def main(folder: Path, png: bool) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = (digits.images * 255 / 16).round().astype(np.uint8), digits.target.astype(np.uint8)
    tested = np.arange(len(images)) % 6 == 5
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", ~tested), ("test", tested)):
        write_idx(folder / f"{name}-images-idx3-ubyte", images[part])
        write_idx(folder / f"{name}-labels-idx1-ubyte", labels[part])
        if png:
            from PIL import Image

            for number in np.flatnonzero(part):
                path = folder / name / str(labels[number]) / f"{number:04}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(images[number]).save(path)
    print(f"{folder}: {(~tested).sum():,} digits to learn from, {tested.sum()} to test on")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("data/digits-images"))
    parser.add_argument("--png", action="store_true")
    arguments = parser.parse_args()
    main(arguments.out, arguments.png)
