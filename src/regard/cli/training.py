"""From raw files to a trained model: prepare, train, plan, compare."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from regard.cli.shared import AsJson, Changes, Device, app, aside, given, show
from regard.config import InputError


@app.command()
def prepare(
    recipe: Annotated[str | None, typer.Argument(help="A recipe: a TOML file.", show_default=False)] = None,
    changes: Changes = None,
    out: Annotated[str | None, typer.Option(help="The data directory to make.  [default: data/RECIPE]")] = None,
    task: Annotated[
        str | None, typer.Option(help="Without a recipe: translate, generate, fill, classify, tag, prefer.")
    ] = None,
    train: Annotated[list[str] | None, typer.Option(help="Files to learn from; may be given again.")] = None,
    valid: Annotated[list[str] | None, typer.Option(help="Files to choose the model on.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="Parallel text: the side that is read.")] = None,
    target: Annotated[list[str] | None, typer.Option(help="Parallel text: the side that is written.")] = None,
    valid_source: Annotated[list[str] | None, typer.Option(help="The same to choose the model on.")] = None,
    valid_target: Annotated[list[str] | None, typer.Option(help="The same to choose the model on.")] = None,
    columns: Annotated[str | None, typer.Option(help="Names of columns, or numbers from 1: en,de.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Tokens to learn.  [default: 8000]")] = None,
    hold_out: Annotated[float | None, typer.Option(help="Share of the training data to hold out: 0.05.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a data directory from raw files: a tokenizer, ids, and what was done.

    regard prepare --task translate --source train.en --target train.de --out data/en-de
    """
    from pathlib import Path

    from regard import recipe as recipes
    from regard.schema import from_dict, merge

    def files(**given: Any) -> dict[str, Any]:
        return {name: value for name, value in given.items() if value}

    options = given(
        task=task,
        train=files(files=train, source=source, target=target) or None,
        valid=files(files=valid, source=valid_source, target=valid_target) or None,
        columns=None if columns is None else columns.split(","),
        tokenizer=None if vocab_size is None else {"vocab_size": vocab_size},
        hold_out=hold_out,
    )
    if recipe is not None and not ("=" in recipe and options):
        if options:
            raise InputError(f"{recipe} and options for {', '.join(options)}: change a recipe with data.KEY=VALUE")
        data = recipes.read(recipe, changes or ()).data
    else:
        if not options:
            raise InputError("nothing to prepare; give a recipe (regard prepare RECIPE.toml), or --task and files")
        if out is None:
            raise InputError("--out: missing; say where the data directory goes: --out data/NAME")
        changed = recipes.parse_changes([*([recipe] if recipe else ()), *(changes or ())])
        if strange := sorted(changed.keys() - {"data"}):
            raise InputError(f"{strange[0]}: is no change of the data; write data.KEY=VALUE: data.max_tokens=200")
        data = from_dict(recipes.Data, merge({"data": options}, changed)["data"])

    from regard.data.prepare import prepare as prepare_data
    from regard.data.summary import Summary, progress_bar

    with progress_bar() as progress:
        made = prepare_data(data, out or f"data/{Path(recipe or '').stem}", progress=progress)
    show(Summary(made), as_json)


@app.command()
def train(
    recipe: Annotated[str | None, typer.Argument(help="A recipe: a TOML file.", show_default=False)] = None,
    changes: Changes = None,
    data: Annotated[
        str | None, typer.Option(help="The prepared data.  [default: data/RECIPE, prepared if missing]")
    ] = None,
    out: Annotated[str | None, typer.Option(help="The run directory to make.  [default: runs/RECIPE]")] = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this run directory, from its last checkpoint.")] = None,
    begin_from: Annotated[
        str | None,
        typer.Option("--from", help="Begin with this model: a run directory, a shipped model, a Hugging Face one."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.  [default: a GPU if there is one]")] = None,
    shard: Annotated[bool, typer.Option("--shard", help="Under torchrun: share the weights out (FSDP2).")] = False,
    verify: Annotated[
        bool, typer.Option("--verify-resume", help="Prove on a few steps that killing and resuming changes nothing.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard's files too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing on the way.")] = False,
) -> None:
    """Train a model, from raw or prepared data to a run directory.

    regard train recipes/shakespeare.toml
    """
    from pathlib import Path

    from regard import recipe as recipes

    if resume is not None and out is not None:
        raise InputError(f"--resume {resume} and --out {out}: a run goes on where it is; give one of them")
    if resume is not None and recipe is not None and "=" in recipe and not os.path.exists(recipe):
        raise InputError(f"{recipe}: a run goes on as it began; begin another from its weights: --from {resume}")
    if begin_from is not None and (resume is not None or verify):
        raise InputError(f"--from {begin_from}: a new run begins there; leave out --resume and --verify-resume")
    if recipe is None and resume is None:
        raise InputError("nothing to train; give a recipe (regard train RECIPE.toml), or --resume RUN")
    given = None if recipe is None else recipes.read(recipe, changes or ())
    if verify and given is None:
        raise InputError("--verify-resume needs a recipe")
    if verify and resume is not None:
        raise InputError("--verify-resume: makes runs of its own; leave out --resume")

    from regard.train.loop import Stopped
    from regard.train.loop import train as train_recipe
    from regard.train.tune import check_beginning, opened_to_tune
    from regard.train.watch import Watch

    place, other = data, None
    if given is not None and resume is None:
        if begin_from is not None:
            other = opened_to_tune(begin_from)
            given = recipes.completed(given, other.config)
        check_beginning(given, begins=other is not None, shard=shard)
        place = _prepared(given, data, Path(recipe or "").stem, other, quiet=quiet)
    if verify:
        assert given is not None
        assert place is not None
        _verify_resume(given, place, [] if device is None else ["--device", device], quiet)
        return
    run = resume or out or f"runs/{Path(recipe or '').stem}"
    watch = Watch(quiet=quiet, tensorboard=tensorboard)
    try:
        how = {"resume": resume is not None, "begin_from": other, "device": device, "shard": shard}
        train_recipe(given, place, run, **how, watch=watch)
    except Stopped as stopped:
        aside(f"{stopped}; everything is saved. To go on: regard train --resume {run}")
        raise typer.Exit(128 + stopped.number) from None


def _prepared(recipe: Any, given: str | None, name: str, model: Any, *, quiet: bool) -> str:
    """The data directory of a recipe, prepared if it is not there, with the tokenizers of the model to begin with, if
    any. Of several processes the first prepares."""
    import time
    from pathlib import Path

    from regard.data.prepare import prepare
    from regard.data.store import DataDir
    from regard.data.summary import progress_bar
    from regard.train.run import check_data
    from regard.train.tune import data_for, tokenizers

    own = None if model is None else tokenizers(model)
    place = given or (f"data/{name}" if model is None else data_for(model, f"data/{name}"))
    if not given and Path(place).exists() and not Path(place, "manifest.json").exists():
        raise InputError(f"{place}: is there, but is no data directory; say where the data goes with --data")
    first = os.environ.get("RANK", "0") == "0"
    while not first and not Path(place).exists():
        time.sleep(0.5)
    if not Path(place).exists() and quiet:
        prepare(recipe.data, Path(place), tokenizers=own)
    elif not Path(place).exists():
        aside(f"preparing {place}")
        with progress_bar() as progress:
            prepare(recipe.data, Path(place), tokenizers=own, progress=progress)
    check_data(DataDir(Path(place)), recipe, files=not given)
    return place


def _verify_resume(recipe: Any, data: str, options: list[str], quiet: bool) -> None:
    from pathlib import Path

    from rich.table import Table

    from regard.train.verify import KILLED_AFTER, verify_resume

    verdict = verify_resume(recipe, Path(data), options, (lambda line: None) if quiet else aside)
    table = Table("step", "straight through", "killed and resumed", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for step, (straight, broken) in enumerate(verdict.losses, start=1):
        killed = "   killed after this step" if step in KILLED_AFTER else ""
        table.add_row(str(step), f"{straight:.9f}", f"{broken:.9f}{killed}")
    show(table, False)
    if verdict.exact:
        print("The losses and the weights at the end are the same, bit for bit.")
    else:
        same = "the same" if verdict.same_weights else "not the same"
        print(
            f"The weights at the end are {same} bytes; a loss differs by up to {verdict.largest_difference:.1e} of it."
        )
        raise typer.Exit(1)


@app.command()
def compare(
    recipes: Annotated[
        list[str],
        typer.Argument(metavar="RECIPE... [KEY=VALUE]...", help="Recipes, and values to change in all of them."),
    ],
    out: Annotated[str, typer.Option(help="The directory for the data, the runs and the report.")],
    test_source: Annotated[str | None, typer.Option(help="What to score on.  [default: the held-out part]")] = None,
    test_reference: Annotated[str | None, typer.Option(help="Its translation, line by line.")] = None,
    device: Device = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing on the way.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train recipes on the same data with the same budget, and score them: a table, a report, a picture.

    regard compare recipes/compare/*.toml --out runs/compare
    """
    if (test_source is None) != (test_reference is None):
        raise InputError("--test-source and --test-reference: give both, or none of them")
    changes = [given for given in recipes if "=" in given and not os.path.exists(given)]
    paths = [given for given in recipes if given not in changes]

    from regard.train.compare import compare as compare_recipes
    from regard.train.loop import Stopped

    test = None if test_source is None or test_reference is None else (test_source, test_reference)
    try:
        compared = compare_recipes(paths, out, changes=changes, test=test, device=device, quiet=quiet)
    except Stopped as stopped:
        aside(f"{stopped}; everything is saved. To go on: the same command again")
        raise typer.Exit(128 + stopped.number) from None
    show(compared, as_json, width=140)


@app.command()
def plan(
    model: Annotated[str, typer.Argument(help="A recipe or only its [model], a run directory, or a preset.")],
    changes: Changes = None,
    gpus: Annotated[int, typer.Option(help="How many share the work.")] = 1,
    gpu_memory: Annotated[float | None, typer.Option(help="GB of each.  [default: 80]")] = None,
    tokens: Annotated[float | None, typer.Option(help="To train on.  [default: the recipe's steps]")] = None,
    flops: Annotated[float | None, typer.Option(help="Each GPU's sustained rate a second.  [default: 400e12]")] = None,
    as_json: AsJson = False,
) -> None:
    """What training takes: parameters, FLOPs, memory, days.

    regard plan gpt3 --gpus 1024 --tokens 300e9
    """
    from regard import explain
    from regard.train.plan import plan as plan_run

    run = explain.read(model, changes or ())
    if run.model is None:
        raise InputError(f"{model}: has the model of train --from; say which that is: model.preset=PRESET")
    steps = run.train is not None and run.given("train.steps")
    options = given(gpu_memory=None if gpu_memory is None else gpu_memory * 1e9, tokens=tokens, flops=flops)
    how = {"gpus": gpus, "steps": steps, "assumed": run.assumed, **options}
    show(plan_run(run.model, run.train, run.data, **how), as_json)
