"""Images a second of the loader: what training reads, changed at random, on the device; beside the usual pipeline,
which opens, crops and flips every image by itself in processes of its own.

    python benchmarks/images.py --size 64 --batch 128
    python benchmarks/images.py --size 224 --batch 1024 --images 4096        # on a GPU

``ours`` is all of it: rows gathered from the memory map, moved to the device as bytes, changed there, ready for a
model. The peers begin with JPEG files, as they do in everybody's training script, and end with the same tensors.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from regard.config import Patches
from regard.data.batches import make_batches
from regard.data.prepare import prepare
from regard.data.store import DataDir
from regard.presets import vit_b16
from regard.recipe import Data, Files, Images, Train
from regard.train.loader import Loader

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
CHANGES = {
    "normalised": {},
    "crop, flip": {"crop": 0.08, "flip": 0.5},
    "and RandAugment": {"crop": 0.08, "flip": 0.5, "randaugment": 9},
    "and mixup, cutmix, erasing": {
        "crop": 0.08, "flip": 0.5, "randaugment": 9, "mixup": 0.8, "cutmix": 1.0, "erase": 0.25,
    },
}  # fmt: skip


def write_images(folder: Path, n: int, size: int) -> list[Path]:
    """Photos of sorts: smooth noise, as JPEG, a third larger than they are needed."""
    draw = np.random.default_rng(1)
    paths = []
    for i in range(n):
        pixels = draw.integers(0, 256, (16, 16, 3), np.uint8)
        path = folder / f"{'dog' if i % 2 else 'cat'}" / f"{i:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((size * 4 // 3, size * 4 // 3), Image.Resampling.BICUBIC).save(path, quality=90)
        paths.append(path)
    return paths


def ours(data: DataDir, train: Train, device: torch.device, compiled: bool) -> Iterator[torch.Tensor]:
    """The loader as training has it."""
    config = vit_b16()
    assert config.encoder is not None
    assert isinstance(config.encoder.input, Patches)
    batches = make_batches(data, "train", train, config)
    loader = Loader(batches, 1, parts=1, rank=0, world=1, device=device)
    ready: Callable = lambda batch: batch.ready(torch.float32).inputs  # noqa: E731
    ready = torch.compile(ready, dynamic=False) if compiled else ready
    try:
        while True:
            yield ready(next(loader).parts[0].to(device))
    finally:
        loader.stop()


class Opened(torch.utils.data.Dataset):
    """Everybody's: each image opened, cropped, flipped and made a tensor."""

    def __init__(self, paths: list[Path], size: int, change: Callable | None):
        self.paths, self.size, self.change = paths, size, change

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> torch.Tensor:
        image = Image.open(io.BytesIO(self.paths[i].read_bytes())).convert("RGB")
        if self.change is not None:
            return self.change(image)
        draw = np.random.default_rng()
        side = np.sqrt(draw.uniform(0.08, 1))
        w, h = side * image.width, side * image.height
        left, top = draw.uniform(0, image.width - w), draw.uniform(0, image.height - h)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=(left, top, left + w, top + h))
        pixels = np.asarray(image, np.float32)[:, :: -1 if draw.random() < 0.5 else 1] / 255
        return torch.from_numpy(((pixels - MEAN) / STD).astype(np.float32).transpose(2, 0, 1).copy())


def peer(paths: list[Path], size: int, batch: int, device: torch.device, change: Callable | None, workers: int):
    options = {"batch_size": batch, "shuffle": True, "drop_last": True, "num_workers": workers}
    loader = torch.utils.data.DataLoader(
        Opened(paths, size, change), pin_memory=device.type == "cuda", persistent_workers=workers > 0, **options
    )
    while True:
        for images in loader:
            yield images.to(device, non_blocking=True)


def torchvisions(size: int) -> Callable | None:
    """torchvision's reference transforms; None where it is not installed."""
    try:
        from torchvision import transforms
    except ImportError:
        return None
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


def rate(batches: Iterator[torch.Tensor], device: torch.device, seconds: float) -> float:
    """Images a second, once it runs."""
    for _ in range(3):
        next(batches)
    if device.type == "cuda":
        torch.cuda.synchronize()
    n, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        n += len(next(batches))
    if device.type == "cuda":
        torch.cuda.synchronize()
    return n / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    device = torch.device(given.device)
    table = Table("", "images/s", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    with tempfile.TemporaryDirectory(prefix="regard-images-") as scratch:
        folder = Path(scratch)
        paths = write_images(folder / "photos", given.images, given.size)
        begun = time.perf_counter()
        files, images = Files(files=(str(folder / "photos"),)), Images(size=given.size)
        data = prepare(Data(task="classify", train=files, images=images), folder / "data")
        table.add_row("prepared: opened, resized, written", f"{given.images / (time.perf_counter() - begun):,.0f}")
        for name, changes in CHANGES.items():
            for compiled in (False, True) if device.type == "cuda" else (False,):
                train = Train(steps=1, batch_images=given.batch, **changes)
                found = rate(ours(data, train, device, compiled), device, given.seconds)
                table.add_row(f"ours, {name}{', compiled' * compiled}", f"{found:,.0f}")
        found = rate(peer(paths, given.size, given.batch, device, None, given.workers), device, given.seconds)
        table.add_row(f"pillow a file, crop, flip, {given.workers} processes", f"{found:,.0f}")
        change = torchvisions(given.size)
        if change is None:
            table.add_row("torchvision", "not installed")
        else:
            found = rate(peer(paths, given.size, given.batch, device, change, given.workers), device, given.seconds)
            table.add_row(f"torchvision, crop, flip, {given.workers} processes", f"{found:,.0f}")
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {os.cpu_count()} cores"
    what = f"{given.images:,} images, {given.size} x {given.size}, batches of {given.batch}"
    print(f"{what}; {where}; torch {torch.__version__}")
    Console().print(table)


if __name__ == "__main__":
    main()
