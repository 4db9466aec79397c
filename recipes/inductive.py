"""What a ViT has to learn that a CNN is born with: both, of the same size, over the number of labelled images.

    python recipes/inductive.py runs/inductive vit cnn turned-vit turned-cnn

trains each on 100, 300, 1,000, 3,000, 10,000 and all 60,000 labelled images of Fashion-MNIST, by its recipe
(inductive-vit.toml, inductive-cnn.toml: as many parameters, the same steps, batches and learning rate; fewer steps
where there are fewer images), small sets three times with other images each, as many of every label, and scores it on
the 10,000 held-out images when it is done. "turned" ones are pre-trained first, without any label: all 60,000 images
are shown in four orientations, and the model learns which (Gidaris et al. 2018). So no label is seen that the size of
the set does not count, and no image that is held out.

NAME.json in the folder has the figures of each and inductive.png is the picture of all that are there: so they may also
be trained one by one, or side by side. What was pre-trained stays in the folder, and is used again. On a CPU, to try:

    python recipes/inductive.py runs/try vit cnn --sizes 50 100 --most 500 --times 1 --set train.steps=20
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from digits import write_idx
from sizes import MANY, SIZES, Figures, blank, keep, over_sizes, read_figures

from regard import recipe as recipes
from regard.data.image_readers import read_idx
from regard.data.prepare import prepare
from regard.data.readers import File
from regard.evaluate.shots import COLOURS, MARKS
from regard.files import write_text
from regard.model import Model
from regard.nn import skeleton
from regard.train.loop import train
from regard.train.tune import opened_to_tune
from regard.train.watch import Watch

NAMES = {
    "vit": "ViT",
    "cnn": "CNN",
    "turned-vit": "ViT, pre-trained without labels",
    "turned-cnn": "CNN, pre-trained without labels",
}
# A colour for each kind; dashes for what was pre-trained.
LOOKS = {
    "vit": {"color": COLOURS[0], "linestyle": "-", "marker": MARKS[0]},
    "cnn": {"color": COLOURS[5], "linestyle": "-", "marker": MARKS[1]},
    "turned-vit": {"color": COLOURS[0], "linestyle": "--", "marker": MARKS[0]},
    "turned-cnn": {"color": COLOURS[5], "linestyle": "--", "marker": MARKS[1]},
}
FEWEST_STEPS = 500


class Images(NamedTuple):
    pixels: np.ndarray  # (N, 28, 28)
    labels: np.ndarray

    def write(self, folder: Path, name: str) -> recipes.Files:
        write_idx(folder / f"{name}-images-idx3-ubyte", self.pixels)
        write_idx(folder / f"{name}-labels-idx1-ubyte", self.labels)
        return recipes.Files(files=(str(folder / f"{name}-images-idx3-ubyte"),))

    def drawn(self, n: int, seed: int) -> Images:
        """So many of them, as many of every label as of any other, or nearly."""
        order = np.random.default_rng(seed).permutation(len(self.labels))
        own = self.labels[order]
        place = np.zeros(len(own), int)  # among those of its label
        for label in np.unique(own):
            place[own == label] = np.arange((own == label).sum())
        chosen = order[np.argsort(place, kind="stable")[:n]]
        return Images(self.pixels[chosen], self.labels[chosen])

    def turned(self) -> Images:
        """Each in four orientations, which are the labels."""
        every = [np.rot90(self.pixels, turns, axes=(1, 2)) for turns in range(4)]
        return Images(np.concatenate(every), np.repeat(np.arange(4, dtype=np.uint8), len(self.pixels)))


def images(files: recipes.Files, most: int) -> Images:
    path = Path(files.files[0])
    both = path, path.with_name(path.name.replace("images-idx3", "labels-idx1"))
    return Images(*(read_idx(File(file))[: most or None] for file in both))


def shortened(train: recipes.Train, share: float) -> recipes.Train:
    """A recipe's training for a share of its data: fewer steps, but more epochs."""
    steps = min(train.steps, max(FEWEST_STEPS, round(train.steps * share**0.5)))
    return train.replace(
        steps=steps, warmup=round(train.warmup * steps / train.steps), valid_every=steps, checkpoint_every=steps
    )


def trained(recipe: recipes.Recipe, learned: Images, held_out: Images, run: Path, given: Model | None = None) -> float:
    """Train a recipe's model on these images; returns how many of the others it labels right, in per cent."""
    with tempfile.TemporaryDirectory() as folder:
        files = {"train": learned.write(Path(folder), "train"), "valid": held_out.write(Path(folder), "valid")}
        whole = recipe.replace(data=recipe.data.replace(**files))
        prepared = prepare(whole.data, Path(folder, "data"))
        done = train(whole, prepared.path, run, begin_from=given, watch=Watch(quiet=True))
        return 100 * [line["accuracy"] for line in done.lines() if line["kind"] == "valid"][-1]


def pretrained(recipe: recipes.Recipe, learned: Images, held_out: Images, run: Path) -> Model:
    """A model that tells how an image is turned. Flips are left out: they make a left turn a right one."""
    if not (run / "model.safetensors").exists():
        told = recipe.data.images
        assert told is not None
        how = recipe.train.replace(flip=0.0, valid_every=recipe.train.steps, checkpoint_every=recipe.train.steps)
        names = ("upright", "left", "upside down", "right")
        recipe = recipe.replace(data=recipe.data.replace(images=told.replace(names=names)), train=how)
        print(f"{run}: {trained(recipe, learned.turned(), held_out.turned(), run):.1f} % of turns told", flush=True)
    return opened_to_tune(run)


def figures(name: str, args: argparse.Namespace) -> Figures:
    """The accuracies for each number of labelled images."""
    kind = name.removeprefix("turned-")
    recipe = recipes.read(Path(__file__).parent / f"inductive-{kind}.toml", args.set)
    learned, held_out = (images(files, args.most) for files in (recipe.data.train, recipe.data.valid))
    config = recipes.model_config(recipe.model, vocab_size=0, n_labels=10, images=recipe.data.images)
    print(f"{NAMES[name]}: {skeleton(config).n_parameters():,} parameters", flush=True)
    given = pretrained(recipe, learned, held_out, args.folder / name) if name != kind else None
    found: Figures = {}
    for size in args.sizes:
        n = size or len(learned.labels)
        how = shortened(recipe.train, n / len(learned.labels))
        values = found[str(n)] = []
        for seed in range(1, 1 + (args.times if n <= MANY else 1)):
            again = recipe.replace(train=how.replace(seed=seed))
            with tempfile.TemporaryDirectory() as run:
                values.append(trained(again, learned.drawn(n, seed), held_out, Path(run, "run"), given))
        print(f"{NAMES[name]}, {n:,}: {', '.join(f'{value:.1f}' for value in values)}", flush=True)
    return found


def draw(found: dict[str, Figures], path: Path) -> None:
    """Accuracy over the number of labelled images, a line for each, from its worst run to its best."""
    figure, axes = blank()
    over_sizes(axes, found, LOOKS, NAMES, shade=0.12)
    axes.set_xlabel("labelled images")
    axes.set_ylabel("accuracy on held-out Fashion-MNIST, %")
    axes.legend(frameon=False, loc="lower right")
    keep(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the figures and the picture")
    parser.add_argument(
        "names", nargs="*", choices=[[], *NAMES], help="vit, cnn, turned-vit, turned-cnn; none: only draw"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="labelled images; 0 is all")
    parser.add_argument("--times", type=int, default=3, help="sets of each small size")
    parser.add_argument("--most", type=int, default=0, help="to try it: as if there were only so many images")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes to the recipes")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        write_text(args.folder / f"{name}.json", json.dumps(figures(name, args), indent=2) + "\n")
    if found := read_figures(args.folder, NAMES):
        draw(found, args.folder / "inductive.png")


if __name__ == "__main__":
    main()
