"""Several recipes on the same data with the same budget, trained and scored: ``regard compare``.

What they share is checked before anything runs: the ``[data]`` table, the number and size of the updates, and how often
and on what the best weights are chosen. Each has a run directory of its own, so that what is done is not done again and
what was stopped goes on. What comes of it is told and drawn in :mod:`regard.train.comparison`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from regard import recipe as recipes
from regard.config import ConfigError, InputError, ModelConfig
from regard.data.prepare import prepare
from regard.data.store import DataDir
from regard.data.summary import progress_bar
from regard.decode.watch import answering
from regard.evaluate import TranslationCard, evaluate, read_texts, set_name
from regard.evaluate.scores import check_packages
from regard.model import load
from regard.recipe import Recipe
from regard.train.comparison import Comparison, Point, Result
from regard.train.loop import train
from regard.train.run import Run, check_data, told_differences
from regard.train.watch import Watch

BUDGET = ("steps", "batch_tokens", "valid_every", "bleu")
BLEU = 500  # held-out sentences that are translated while training, where the recipes ask for none


def compare(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    changes: Sequence[str] = (),
    test: tuple[str, str] | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> Comparison:
    """Train each recipe into ``out/NAME``, score it, and write what came of it into ``out``.

    ``changes`` (``train.steps=100``) are for all of them. ``test`` are a source file and its reference; without them
    the held-out part of the data is what is scored.

    >>> compare(["one.toml"], "runs/compare")
    Traceback (most recent call last):
    regard.schema.InputError: one.toml: nothing to compare with; give at least two
    """
    given = {path: _read(path, changes) for path in _checked(paths)}
    given = {path: recipe.replace(train=_translating(recipe.train)) for path, recipe in given.items()}
    _check_alike(given)
    check_packages()
    _check_picture()
    texts = None if test is None else read_texts(test[0], [test[1]])  # what is wrong with them shows now
    out, watch = Path(out), Watch(quiet=quiet)
    data = _prepared(out / "data", next(iter(given.values())), watch)
    runs = [_trained(recipe, data, Run(out / path.stem), watch, device) for path, recipe in given.items()]
    sources, references = texts or _held_out(data)
    name = "valid" if test is None else set_name(test[0])
    results = []
    for run in runs:
        with nullcontext() if quiet else answering(str(run.path)) as progress:
            card = evaluate(load(run.path, device=device), sources, references, name=name, progress=progress)
        results.append(_result(run, card))
    examples = {split: facts["examples"] for split, facts in data.manifest["splits"].items()}
    compared = Comparison(results=tuple(results), examples=examples)
    compared.save(out)
    return compared


# ---------------------------------------------------------------------------------------
# What must be alike


def _read(path: Path, changes: Sequence[str]) -> Recipe:
    """A recipe; of several, it is said which has a mistake."""
    try:
        return recipes.read(path, changes)
    except ConfigError as error:
        told = (problem if problem.startswith(str(path)) else f"{path}: {problem}" for problem in error.problems)
        raise ConfigError(told) from None


def _checked(paths: Sequence[str | Path]) -> list[Path]:
    """Recipes that can have a run directory each."""
    named: dict[str, Path] = {}
    for path in map(Path, paths):
        if path.stem == "data":
            raise InputError(f"{path}: its run would be where the data is; rename the recipe")
        if path.stem in named:
            raise InputError(f"{named[path.stem]} and {path}: both would be called {path.stem}; rename one of them")
        named[path.stem] = path
    if len(named) < 2:
        raise InputError(f"{', '.join(map(str, paths)) or 'no recipe'}: nothing to compare with; give at least two")
    return list(named.values())


def _translating(settings: recipes.Train) -> recipes.Train:
    return settings if settings.bleu else settings.replace(bleu=BLEU)


def _check_alike(given: dict[Path, Recipe]) -> None:
    """Refuse recipes of other data or another budget than the first one's, and show what is different."""
    (first, one), *others = given.items()
    for path, recipe in given.items():
        if recipe.data.task != "translate":
            raise InputError(f"{path}: is of task {recipe.data.task!r}; only translations are compared")
    for path, other in others:
        words = f"in {first}", f"in {path}"
        differences = told_differences({"data": one.data.to_dict()}, {"data": other.data.to_dict()}, words)
        if differences:
            raise InputError(f"not the same data ({differences}); give recipes with the same [data]")
        mine, theirs = ({f"train.{name}": getattr(of.train, name) for name in BUDGET} for of in (one, other))
        differences = told_differences(mine, theirs, words)
        if differences:
            raise InputError(f"not the same budget ({differences}); change it for all of them with KEY=VALUE")


def _check_picture() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError("compare draws a picture; what draws it is missing: pip install 'regard[plots]'") from None


# ---------------------------------------------------------------------------------------
# What is done


def _prepared(place: Path, recipe: Recipe, watch: Watch) -> DataDir:
    """The data of all recipes, prepared if it is not there."""
    if not place.exists():
        watch.say(f"preparing {place}")
        with nullcontext(lambda *_: None) if watch.quiet else progress_bar() as progress:
            prepare(recipe.data, place, progress=progress)
    data = DataDir(place)
    check_data(data, recipe, option="--out")
    return data


def _trained(recipe: Recipe, data: DataDir, run: Run, watch: Watch, device: str | None) -> Run:
    """The run of a recipe, trained to its end."""
    if run.path.exists():
        run.check_recipe(recipe)
    if run.path.exists() and _is_done(run, recipe):
        run.open_data(data.path)
        watch.say(f"{run.path}: is trained")
        return run
    return train(recipe, data.path, run.path, resume=run.path.exists(), device=device, watch=watch)


def _is_done(run: Run, recipe: Recipe) -> bool:
    """Whether the last thing that a run does is there. One that ran out of patience is resumed, and ends at once."""
    last = "average" if recipe.train.average else "valid"
    return any(line["kind"] == last and line["step"] == recipe.train.steps for line in run.lines())


def _held_out(data: DataDir) -> tuple[list[str], list[list[str]]]:
    columns = data.split("valid")
    source, target = (
        [data.tokenizer_of(name).decode(columns[name][i]) for i in range(len(columns[name]))]
        for name in ("source", "target")
    )
    return source, [target]


def _result(run: Run, card: TranslationCard) -> Result:
    return Result(
        name=run.path.name,
        recipe=run.recipe(),
        model=ModelConfig.from_dict(run.config()["model"]),
        curve=tuple(_curve(run)),
        tokens_per_second=_rate(run),
        card=card,
    )


def _rate(run: Run) -> float:
    """Tokens a second over all steps, which have as many each."""
    steps, seconds = 0, 0.0
    for line in run.lines():
        if line["kind"] == "train":
            seconds += (line["step"] - steps) / line["tokens_per_second"]
            steps = line["step"]
    return steps / seconds


def _curve(run: Run) -> Iterator[Point]:
    """The validations of a run. The clock runs on while they are made, which is no training: that is taken off."""
    validating = 0.0
    for line in run.lines():
        if line["kind"] == "valid":
            seconds = line["seconds"] - validating
            yield Point(step=line["step"], seconds=round(seconds, 3), bleu=line["bleu"], loss=line["loss"])
            validating += line["took"]
