"""Small data that tests prepare and train on: made here, learnable, of every task."""

import contextlib
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard import recipe
from regard.data.prepare import prepare
from regard.data.store import DataDir
from regard.schema import from_dict
from regard.train.loop import Trainer, train
from regard.train.watch import Watch

# Real text, for tests that skip where it is not.
SHARED = Path(os.environ.get("REGARD_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))

WORDS = [
    "red",
    "blue",
    "green",
    "small",
    "large",
    "dog",
    "cat",
    "bird",
    "runs",
    "sleeps",
    "jumps",
    "near",
    "under",
    "over",
    "the",
    "a",
    "two",
    "old",
]


def sentences(n: int, seed: int, most: int = 9) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, most))) for _ in range(n)]


def backwards(text: str) -> str:
    return " ".join(reversed(text.upper().split()))


def write(folder: Path, task: str, n: int, seed: int, name: str) -> dict:
    """Raw files of a task; returns what a recipe says of them."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = sentences(n, seed)
    if task == "translate":
        source, target = folder / f"{name}.in", folder / f"{name}.out"
        source.write_text("".join(f"{t}\n" for t in texts), encoding="utf-8")
        target.write_text("".join(f"{backwards(t)}\n" for t in texts), encoding="utf-8")
        return {"source": str(source), "target": str(target)}
    if task in ("images", "paint", "draw"):
        return {"files": str(images(folder / name, n, seed))}
    if task in CAPTIONED:
        return {"files": str(captions(folder / name, n, seed))}
    if task in ("generate", "fill"):
        file = folder / f"{name}.txt"
        file.write_text("".join(f"{t}\n" for t in texts), encoding="utf-8")
    elif task == "prefer":  # an answer that names the dog is better than one that names the cat
        file = folder / f"{name}.tsv"
        rows = (f"{t}\t the {'old' if len(t) % 2 else 'red'} dog\t the small cat\n" for t in texts)
        file.write_text("".join(rows), encoding="utf-8")
    elif task == "number":  # how many words there are
        file = folder / f"{name}.tsv"
        file.write_text("".join(f"{t}\t{len(t.split()) / 2 - 2}\n" for t in texts), encoding="utf-8")
    elif task == "classify":
        file = folder / f"{name}.tsv"
        file.write_text("".join(f"{t}\t{'animal' if 'dog' in t else 'none'}\n" for t in texts), encoding="utf-8")
    else:
        file = folder / f"{name}.conll"
        blocks = ("".join(f"{w} {'B' if w in 'dog cat bird' else 'O'}\n" for w in t.split()) for t in texts)
        file.write_text("\n".join(blocks), encoding="utf-8")
    return {"files": str(file)}


def images(folder: Path, n: int, seed: int, size: int = 15) -> Path:
    """A folder of images that are bright above, below or nowhere, in a folder each."""
    draw = np.random.default_rng(seed)
    for i in range(n):
        label = ("above", "below", "nowhere")[i % 3]
        pixels = draw.integers(0, 128, (size, size, 3), np.uint8)
        half = {"above": slice(0, size // 2), "below": slice(size // 2, size), "nowhere": slice(0, 0)}[label]
        pixels[half] += 100
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / label / f"{i:04}.png", compress_level=0)
    return folder


def captions(folder: Path, n: int, seed: int, size: int = 15) -> Path:
    """A table of images with one to three captions each, that say where they are bright."""
    images(folder, n // 3, seed, size)
    draw, rows = random.Random(seed), []
    for path in sorted(folder.glob("*/*.png"), key=lambda path: path.name):
        light = {"above": "light above", "below": "light below", "nowhere": "no light"}[path.parent.name]
        said = [f"{word} {light}." for word in draw.sample(["a", "the", "some", "there is"], draw.randint(1, 3))]
        rows.append(json.dumps({"image": str(path.relative_to(folder)), "caption": said}))
    (folder / "captions.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder / "captions.jsonl"


def painter(folder: Path) -> Path:
    """A run of a model that paints, hardly trained."""
    made, data = prepared(folder, "paint", n=31, steps=3, valid_every=3)
    return train(made, data.path, folder / "run", device="cpu", watch=Watch(quiet=True)).path


TASKS = {"images": "classify", "show": "caption"}  # as a recipe calls them; "show" has a CNN and a GRU
CAPTIONED = ("caption", "show", "match")
SIZES = {"images": 15, "caption": 12, "show": 12, "match": 15, "paint": 15, "draw": 15}
COLUMNS = {"classify": ["1", "2"], "tag": ["1", "2"], "prefer": ["1", "2", "3"]}
MODELS = {
    "translate": {"preset": "tiny_encoder_decoder"},
    "generate": {"preset": "tiny_decoder"},
    "fill": {"preset": "tiny_encoder"},
    "classify": {"preset": "tiny_encoder", "head": {"kind": "pooled"}},
    "tag": {"preset": "tiny_tagger"},
    "images": {"preset": "tiny_vit"},
    "caption": {"preset": "tiny_captioner", "decoder": {"max_len": 97}},
    "show": {"preset": "tiny_show_attend_tell"},
    "match": {"preset": "tiny_clip", "text": {"max_len": 97}},
    "paint": {"preset": "tiny_vq_vae"},
    "draw": {"preset": "tiny_decoder"},
}


def make_recipe(folder: Path, task: str, *, n: int = 211, model: dict | None = None, **options) -> recipe.Recipe:
    """A recipe on raw files that are written first."""
    over_images: dict[str, Any] = {"images": {"size": SIZES[task]}} if task in SIZES else {}
    if task == "draw":
        over_images = {"images": {"size": 15, "tokenizer": str(painter(folder / "painter"))}, "max_tokens": 11}
    data = {
        "task": TASKS.get(task, task),
        **over_images,
        "train": write(folder, task, n, 1, "train"),
        "valid": write(folder, task, 31, 2, "valid"),
        "columns": COLUMNS.get(task, []),
        "documents": "line",
        "tokenizer": {"kind": "characters"},
    }
    settings = {
        "steps": 20, "batch_tokens": 256, "lr": 0.01, "warmup": 5, "valid_every": 10, "checkpoint_every": 5,
        "log_every": 1, **_changed(task), **options,
    }  # fmt: skip
    longer = {
        name: {"max_len": 97} for name in ("encoder", "decoder") if task == "translate" or name in _TOWER.get(task, "")
    }
    if task in ("images", "paint"):
        longer = {"encoder": {}}
    table = {"data": data, "model": model or {**MODELS[task], **longer}, "train": settings}
    return from_dict(recipe.Recipe, table)


# Everything that can be done to images: whatever is true of batches, parts and resumed runs is true with it.
CHANGED = {
    "batch_images": 13, "crop": 0.5, "flip": 0.5, "randaugment": 5, "mixup": 0.2, "cutmix": 1.0, "erase": 0.25,
}  # fmt: skip
_TOWER = {
    "translate": "",
    "generate": "decoder",
    "fill": "encoder",
    "classify": "encoder",
    "tag": "encoder",
}


def _changed(task: str) -> dict[str, Any]:
    """As much of that as goes with a task."""
    if task not in SIZES:
        return {}
    left_out = {"images": (), "draw": set(CHANGED) - {"batch_images"}}.get(task, ("mixup", "cutmix"))
    return {name: value for name, value in CHANGED.items() if name not in left_out}


@contextlib.contextmanager
def killed_at(step: int, monkeypatch):
    """Within, a run ends as if it were killed right after its checkpoint of a step."""
    saved = Trainer.save

    def die(self, *, regular):
        saved(self, regular=regular)
        if self.number == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", die)
        with pytest.raises(KeyboardInterrupt):
            yield


def prepared(folder: Path, task: str, **options) -> tuple[recipe.Recipe, DataDir]:
    """A recipe and its data directory."""
    made = make_recipe(folder, task, **options)
    return made, prepare(made.data, folder / "data")
