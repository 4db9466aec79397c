"""Training a ViT-B/16 on images of 224 x 224: regard's trainer and torchvision's vit_b_16 under torch.compile, in
images a second, one after the other in one process.

    python benchmarks/vit.py                      # a GPU: compiled, bfloat16, batches of 256
    python benchmarks/vit.py --small              # a CPU: a small ViT, eager, float32

Ours is :meth:`regard.train.loop.Trainer.step` as `regard train` runs it: bytes from the memory map through the loader,
moved and brought to their mean and deviation, forward, loss, backward, clipping, the check that all is finite, AdamW
and the books. The peer's pixels lie ready on the device, and it does forward, loss, backward and AdamW (fused); its
loss is compiled together with its model. The row marked "graphs" gives it our compile settings too, CUDA graphs among
them. Without torchvision the peer is the same ViT written out over torch's nn.TransformerEncoder.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from measure import measure, report
from regard.data.store import FORMAT, DataDir
from regard.recipe import Data, Files, Images, Recipe, Train
from regard.train.distributed import World
from regard.train.loader import Loader
from regard.train.loop import Trainer
from regard.train.run import Run
from regard.train.watch import Watch
from train_step import step_of


@dataclass(frozen=True)
class Work:
    """Sizes of one workload."""

    batch: int
    image: int
    patch: int
    layers: int
    width: int
    heads: int
    labels: int


VIT_B16 = Work(batch=256, image=224, patch=16, layers=12, width=768, heads=12, labels=1000)
SMALL = Work(batch=32, image=32, patch=4, layers=4, width=128, heads=4, labels=10)


# -- ours --------------------------------------------------------------------------------


def random_images(folder: Path, work: Work) -> DataDir:
    """A data directory as `regard prepare` makes them, of four batches of noise; written here, for pillow may not be
    where this runs."""
    n, random = 4 * work.batch, np.random.default_rng(1)
    random.integers(0, 256, (n, work.image, work.image, 3), np.uint8).tofile(folder / "train.image.bin")
    random.integers(0, work.labels, n, np.int32).tofile(folder / "train.label.bin")
    shape = [work.image, work.image, 3]
    data = Data(task="classify", train=Files(files=("noise",)), images=Images(size=work.image))
    manifest = {
        "format": FORMAT,
        "task": "classify",
        "data": data.to_dict(),
        "splits": {
            "train": {
                "examples": n,
                "columns": {"image": {"dtype": "uint8", "shape": shape}, "label": {"dtype": "int32"}},
            }
        },
        "labels": [str(i) for i in range(work.labels)],
        "tokenizers": {},
        "images": {"size": work.image, "channels": 3, "mean": [0.5] * 3, "std": [0.25] * 3},
        "files": {},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return DataDir(folder)


def ours(work: Work, device: torch.device, compile: bool, folder: Path, data: DataDir) -> Callable[[], None]:
    """One update of `regard train`, batch included."""
    encoder = {
        "d_model": work.width, "n_layers": work.layers, "n_heads": work.heads, "d_ff": 4 * work.width,
        "dropout": 0.0, "mlp_dropout": 0.0, "embed_dropout": 0.0, "input": {"patch_size": work.patch},
    }  # fmt: skip
    recipe = Recipe(
        data=Data(task="classify", train=Files(files=("noise",)), images=Images(size=work.image)),
        model={"preset": "vit_b16", "encoder": encoder},
        train=Train(steps=10**6, batch_images=work.batch, compile=compile),
    )
    trainer = Trainer(recipe, data, Run(folder / "run"), World(0, 1, device), Watch(quiet=True))
    loader = Loader(trainer.batches, 1, parts=1, rank=0, world=1, device=device)
    return lambda: trainer.step(next(loader))


# -- peers -------------------------------------------------------------------------------


def torchvision_vit(work: Work) -> nn.Module:
    """torchvision's class of vit_b_16, which has these sizes."""
    from torchvision.models import VisionTransformer

    return VisionTransformer(
        work.image, work.patch, work.layers, work.heads, work.width, 4 * work.width, num_classes=work.labels
    )


class PlainViT(nn.Module):
    """The same ViT over torch's own encoder."""

    def __init__(self, work: Work):
        super().__init__()
        self.project = nn.Conv2d(3, work.width, work.patch, work.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, work.width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (work.image // work.patch) ** 2, work.width))
        layer = nn.TransformerEncoderLayer(
            work.width, work.heads, 4 * work.width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, work.layers, nn.LayerNorm(work.width), enable_nested_tensor=False)
        self.head = nn.Linear(work.width, work.labels)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.project(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.encoder(x)[:, 0])


def peer(make: Callable[[Work], nn.Module], work: Work, device: torch.device, how: str) -> Callable[[], object]:
    """A peer's update; its batches are on the device already."""
    torch.manual_seed(0)
    model = make(work).to(device).train()
    shape = work.batch, 3, work.image, work.image
    batches = [
        (torch.randn(shape, device=device), torch.randint(work.labels, (work.batch,), device=device)) for _ in range(4)
    ]
    return step_of(lambda pixels, wanted: F.cross_entropy(model(pixels), wanted), model, batches, device, how)


def peers() -> dict[str, Callable[[Work], nn.Module]]:
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:  # the latter: one that was built for another torch
        print(f"torchvision cannot be imported ({error}): the peer is a plain ViT over nn.TransformerEncoder\n")
        return {"nn.TransformerEncoder": PlainViT}
    return {f"torchvision {torchvision.__version__}": torchvision_vit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=cuda)
    parser.add_argument("--small", action="store_true", default=not cuda)
    parser.add_argument("--batch", type=int, help="images  [default: 256, small 32]")
    parser.add_argument("--warmup", type=int, default=10 if cuda else 2)
    parser.add_argument("--repeats", type=int, default=30 if cuda else 5)
    args = parser.parse_args()
    device, work = torch.device(args.device), SMALL if args.small else VIT_B16
    work = Work(**{**vars(work), "batch": args.batch or work.batch})
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    how = f"{'compiled' if args.compile else 'eager'}, {'bfloat16' if device.type == 'cuda' else 'float32'}"
    print(f"{where}, torch {torch.__version__}, {how}\n")
    timed = partial(measure, warmup=args.warmup, repeats=args.repeats, device=device)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        mine = partial(ours, work, device, args.compile, folder, random_images(folder, work))
        rows = [timed("regard", mine)]
        for name, make in peers().items():
            rows.append(timed(name, partial(peer, make, work, device, "plain" if args.compile else "eager")))
            if args.compile and device.type == "cuda":
                rows.append(timed(f"{name}, graphs", partial(peer, make, work, device, "ours")))
        # Ours stands first and last: a GPU slows as it warms, and the slower of the two is what counts.
        rows.append(timed("regard, again", mine))
    size = f"{work.layers} layers, width {work.width}, patches of {work.patch}"
    title = f"ViT training ({size}), {work.batch} images of {work.image} x {work.image}"
    report(title, rows, work=work.batch, unit="images/s", ours="regard", beside="graphs")


if __name__ == "__main__":
    main()
