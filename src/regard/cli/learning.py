"""To see how things work, and whether: quickstart, walk, explain, check, presets."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from regard.cli.shared import AsJson, Changes, Device, ModelName, app, aside, given, lines_of, load, show
from regard.config import InputError, ModelConfig


@app.command()
def explain(
    recipe: Annotated[str, typer.Argument(help="A recipe or only its [model], a run directory, or a preset.")],
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Every value of a run, where it came from, and what it does.

    regard explain recipes/shakespeare.toml train.steps=100
    """
    from regard import explain

    show(explain.read(recipe, changes or ()), as_json, width=explain.ENDLESS)


@app.command()
def walk(
    words: Annotated[list[str] | None, typer.Argument(help="What to attend over.", show_default=False)] = None,
    scores: Annotated[str | None, typer.Option(help="Start from one query's scores: 112,96,16,8.")] = None,
    d_key: Annotated[int | None, typer.Option(help="With --scores: the width of the keys.  [default: 64]")] = None,
    model: Annotated[str | None, typer.Option(help="A preset, or a TOML file with a [model] table.")] = None,
    layer: Annotated[str | None, typer.Option(help="0.self, 1.cross, decoder.0.self, 3.  [default: the first]")] = None,
    head: Annotated[int | None, typer.Option(help="Which of the layer's heads.  [default: 0]")] = None,
    target: Annotated[str | None, typer.Option(help="What a decoder writes while it reads the text.")] = None,
    seed: Annotated[int | None, typer.Option(help="Draws the model's parameters.  [default: 0]")] = None,
    as_json: AsJson = False,
) -> None:
    """Attention in six steps, with every number.

    regard walk "I am a student"
    """
    text = None if words is None else " ".join(words)
    of_scores = {"--d-key": d_key}
    of_text = {"--model": model, "--layer": layer, "--head": head, "--target": target, "--seed": seed}
    if text is None and scores is None:
        raise InputError('nothing to walk over; give a text ("I am a student") or --scores 112,96,16,8')
    if text is not None and scores is not None:
        raise InputError("a text and --scores; give one of them")
    stray = [name for name, value in (of_scores if scores is None else of_text).items() if value is not None]
    if stray:
        raise InputError(f"{', '.join(stray)}: goes with {'--scores' if scores is None else 'a text'}")

    from regard.look import walk as walk_text
    from regard.look import walk_scores

    if scores is not None:
        show(walk_scores(_numbers(scores), **given(d_key=d_key)), as_json)
    else:
        assert text is not None
        options = given(target=target, layer=layer, head=head, seed=seed)
        show(walk_text(text, model=None if model is None else _config(model), **options), as_json)


@app.command()
def check(
    model: ModelName,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to check it on.", show_default=False)] = None,
    file: Annotated[str | None, typer.Option(help="The same from a file, a text a line: the first 20.")] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Whether batches, caches, padding and beams change what a model says. They must not.

    regard check runs/en-de --file my-sentences.txt
    """
    if texts and file:
        raise InputError(f"texts and --file ({file}); give one of them")
    from itertools import islice

    from regard.check import TEXTS
    from regard.check import check as hold

    lines = list(islice(lines_of([file]), 20)) if file else texts or TEXTS
    found = hold(load(model, device, "float32"), lines)
    show(found, as_json, width=140)
    if not found.holds:
        raise typer.Exit(1)


@app.command()
def presets(as_json: AsJson = False) -> None:
    """Every model that has a name, its shape and its size."""
    from rich.table import Table

    from regard import presets
    from regard.nn import skeleton

    rows: list[dict[str, Any]] = []
    for name in presets.names():
        config = presets.preset(name)
        n = skeleton(config).n_parameters()  # counted, not stored: GPT-3 would not fit
        rows.append({"name": name, "shape": config.shape, "parameters": n, "about": _about(getattr(presets, name))})
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading, justify in (("name", "left"), ("shape", "left"), ("parameters", "right"), ("about", "left")):
        table.add_column(heading, justify=justify, no_wrap=heading != "about")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(row["name"], row["shape"], f"{row['parameters']:,}", row["about"])
    show(rows if as_json else table, as_json, width=160)  # in a pipe, a line a preset


@app.command()
def quickstart(
    source: Annotated[str, typer.Option("--from", help="The language that is read: en, fr, es ...")] = "en",
    target: Annotated[str, typer.Option("--to", help="The language that is written.")] = "de",
    out: Annotated[str, typer.Option(help="Where data/, runs/ and quickstart.html go.")] = ".",
    seed: Annotated[int, typer.Option(help="Draws the numbers and the weights.")] = 1,
) -> None:
    """Train a translator of number words from nothing, look inside it, and write a page about it.

    regard quickstart --to fr
    """
    from regard.quickstart import quickstart
    from regard.train.loop import Stopped

    try:
        quickstart(source, target, out=out, seed=seed)
    except Stopped as stopped:
        aside(f"{stopped}; regard quickstart begins anew")
        raise typer.Exit(128 + stopped.number) from None


def _numbers(text: str) -> list[float]:
    parts = text.split(",") if "," in text else text.split()
    try:
        return [float(part) for part in parts]
    except ValueError:
        raise InputError(f"--scores ({text!r}) must be numbers with commas between them: 112,96,16,8") from None


def _config(name: str) -> ModelConfig:
    """A model by its preset's name or from a TOML file."""
    from pathlib import Path

    from regard import presets
    from regard.files import shipped

    if name not in presets.names() and (Path(name).is_dir() or name in shipped()):
        raise InputError(
            f"--model ({name}): walk draws its numbers, of a preset; a trained one: regard look {name} TEXT"
        )
    is_file = name.endswith(".toml") or Path(name).is_file()
    return presets.from_toml(name) if is_file and name not in presets.names() else presets.preset(name)


def _about(preset: Any) -> str:
    """The first sentence of a docstring, without its markup."""
    first = (preset.__doc__ or "").strip().splitlines()[0].replace("`", "")
    return re.split(r"(?<=[.]) (?=[A-Z])", first)[0]
