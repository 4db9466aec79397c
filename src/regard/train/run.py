"""The run directory: what training hands over, and all that the next step needs.

config.json        the recipe, and the model with every value, vocabulary included
model.safetensors  the weights to use: the best on held-out data so far
tokenizer.json     (and source.tokenizer.json, labels.json where there are any)
painter/           of a model that draws: the run directory of the one that paints
metrics.jsonl      a line for every few steps and every validation
curves.png         the same as a picture
state/             checkpoints, to resume from
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.config import InputError, ModelConfig
from regard.data.readers import Corpus
from regard.data.store import DataDir, sha256
from regard.files import draft_of, write_text
from regard.recipe import Data, Recipe, completed
from regard.schema import from_dict
from regard.train import checkpoint

FORMAT = 1


class Run:
    """A run directory."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    def create(
        self,
        recipe: Recipe,
        model: ModelConfig,
        data: DataDir,
        began_from: dict[str, Any] | None = None,
        chat_template: str | None = None,
    ) -> None:
        """Make the directory, all of it or nothing; one that exists is left alone. ``began_from`` tells of the model
        that the run began with; a ``chat_template`` was its, and stays."""
        if self.path.exists():
            last = checkpoint.checkpoints(self.path)
            if (self.path / "config.json").exists() and last:
                at, steps = int(last[-1].name.partition("-")[2]), self.recipe().train.steps
                way_out = f"go on from step {at} with --resume {self.path}, or choose another --out"
                if at >= steps:
                    way_out = f"it is done ({steps:,} steps); choose another --out, to go on from it --from {self.path}"
            else:
                way_out = "remove it, or choose another --out"
            raise InputError(f"{self.path}: exists already; {way_out}")
        draft = draft_of(self.path)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for file in data.path.glob("*tokenizer*.json"):
            shutil.copyfile(file, draft / file.name)
        if data.n_codes:
            shutil.copytree(data.path / "painter", draft / "painter")
        if data.labels:
            write_text(draft / "labels.json", json.dumps(data.labels, ensure_ascii=False))
        if chat_template is not None:
            write_text(draft / "chat_template.jinja", chat_template)
        (draft / self.metrics.name).touch()
        config = {
            "format": FORMAT,
            "task": "generate" if data.task == "prefer" else data.task,  # what the model can do in the end
            "model": model.to_dict(),
            "recipe": recipe.to_dict(),
            "data": {"path": str(data.path.resolve()), "hash": data_hash(data)},
        }
        if data.images is not None:
            config["images"] = data.manifest["images"]  # a photo is to be treated as these were
        if began_from is not None:
            config["from"] = began_from
        write_text(draft / "config.json", json.dumps(config, indent=2, ensure_ascii=False))
        draft.rename(self.path)

    def config(self) -> dict[str, Any]:
        path = self.path / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); is this a run directory?") from None
        except ValueError as error:
            raise InputError(f"{path}: is not JSON ({error})") from None
        if not isinstance(config, dict) or not {"recipe", "data", "model"} <= config.keys():
            raise InputError(f"{path}: is not of a run of regard; is this a run directory?")
        return config

    def recipe(self) -> Recipe:
        return from_dict(Recipe, self.config()["recipe"])

    def open_data(self, given: str | Path | None = None) -> DataDir:
        """The data that the run began with, there or where it was moved to; other data is refused."""
        told = self.config()["data"]
        path = Path(given or told["path"])
        if given is None and not path.exists():
            raise InputError(f"{path}: the data of {self.path} is not there; say where it is now: --data FOLDER")
        data = DataDir(path)
        if data_hash(data) != told["hash"]:
            raise InputError(f"{data.path}: is not the data this run began with; prepare that anew, or begin a new run")
        return data

    def check_recipe(self, recipe: Recipe) -> None:
        """Refuse to resume with another recipe, and show what is different."""
        then = self.recipe()
        recipe = completed(recipe, ModelConfig.from_dict(self.config()["model"]))
        if recipe.train.packed is None:  # left open, and decided when the run began
            recipe = recipe.replace(train=recipe.train.replace(packed=then.train.packed))
        differences = told_differences(then.to_dict(), recipe.to_dict())
        if differences:
            raise InputError(
                f"{self.path}: began with another recipe ({differences}); resume without a recipe, or begin"
                " a new run with --out"
            )

    def training(self) -> dict[str, Any] | None:
        """How many steps it took and how long, and the same of the run that it began from; None where no line tells."""
        steps = seconds = began = None
        for line in self.lines():
            steps, seconds = line["step"], line.get("seconds", seconds)
        if seconds is None:
            return None
        with contextlib.suppress(InputError):
            began = self.config().get("from")
        return {"steps": steps, "seconds": round(seconds, 1)} | ({"from": began} if began else {})

    def cut_metrics(self, step: int) -> None:
        """Forget what came after a step, a half-written line and what ends a run included."""
        kept = [json.dumps(line) for line in self.lines() if line["step"] <= step and line["kind"] != "average"]
        write_text(self.metrics, "".join(f"{line}\n" for line in kept))

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every line of metrics.jsonl that is whole."""
        if not self.metrics.exists():
            return
        with self.metrics.open(encoding="utf-8", errors="replace") as file:
            for text in file:
                try:
                    line = json.loads(text)
                except ValueError:
                    return
                if not isinstance(line, dict) or not {"step", "kind", "loss"} <= line.keys():
                    return
                yield line

    def note(self, line: dict[str, Any]) -> None:
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def data_hash(data: DataDir) -> str:
    """What tells one data directory from another: its manifest, which has the hash of every file."""
    return sha256(data.path / "manifest.json")


def check_data(data: DataDir, recipe: Recipe, *, files: bool = True, option: str = "--data") -> None:
    """Refuse data that was prepared as another recipe says, or from files that have changed, and show what is
    different. Without ``files`` it may come from other places: it was brought from another machine, say. ``option``
    says where else data goes."""
    elsewhere = "say where the data goes with --data" if option == "--data" else f"choose another {option}"
    then, now = from_dict(Data, data.manifest["data"]).to_dict(), recipe.data.to_dict()
    if not files:
        then, now = ({k: v for k, v in table.items() if k not in ("train", "valid")} for table in (then, now))
    differences = told_differences(then, now)
    if differences:
        raise InputError(f"{data.path}: was prepared otherwise ({differences}); remove it, or {elsewhere}")
    as_it_is = f"train on it as it is with --data {data.path}" if option == "--data" else elsewhere
    changed = data.changed_input() or _unread(data, recipe) if files else None
    if changed:
        raise InputError(
            f"{changed}: is not what {data.path} was prepared from; remove {data.path} to prepare it anew,"
            f" or {as_it_is}"
        )


def _unread(data: DataDir, recipe: Recipe) -> str | None:
    """One of the recipe's files that was not there, or not named, when the data was prepared."""
    if recipe.data.images is not None:
        return None  # they are in folders, of which a manifest has no hashes
    with contextlib.suppress(InputError):  # the raw files may be gone
        corpora = (Corpus(recipe.data, files) for files in (recipe.data.train, recipe.data.valid))
        now = (str(file.path) for corpus in corpora for file in corpus.files)
        return next((name for name in now if name not in data.manifest["inputs"]), None)
    return None


def told_differences(then: dict[str, Any], now: dict[str, Any], words: tuple[str, str] = ("then", "now")) -> str:
    """What is different between two tables, in words; nothing where they are the same.

    >>> told_differences({"train": {"lr": 0.1}}, {"train": {"lr": 0.2}})
    'train.lr: 0.1 then, 0.2 now'
    """
    of_then, of_now = words
    return "; ".join(f"{key}: {_shown(a)} {of_then}, {_shown(b)} {of_now}" for key, a, b in _differences(then, now))


def _differences(then: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(then, dict) and isinstance(now, dict):
        for key in [*then, *(k for k in now if k not in then)]:
            yield from _differences(then.get(key, _NOTHING), now.get(key, _NOTHING), f"{path}.{key}" if path else key)
    elif then != now:
        yield path, then, now


_NOTHING = object()


def _shown(value: Any) -> str:
    return "nothing" if value is _NOTHING else json.dumps(value)
