"""The front door: one sub-command a job, each a thin call into a room behind it.

Results go to standard output, as text for people or with ``--json`` for programs; a user's mistake is one line on
standard error and exit code 2. Nothing heavy is imported before a command needs it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from regard.config import InputError, ModelConfig, RegardError

app = typer.Typer(
    name="regard",
    help="One Transformer, every shape: train it on your own text, and see what it attends to.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def main() -> None:
    """Run the command line: what ``regard`` and ``python -m regard`` call."""
    if hasattr(signal, "SIGPIPE"):
        # A reader that has seen enough (`| head -1`) ends us quietly, as it ends every other program.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without √ gets a ? for it
    try:
        app()
        sys.stdout.flush()  # a full disk shows here, not after the last handler
    except RegardError as error:
        for problem in str(error).splitlines():
            print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"error: {error.strerror or error}", file=sys.stderr)
        os._exit(1)  # the interpreter would try to flush once more, and complain


def _version(wanted: bool) -> None:
    if wanted:
        from regard import __version__

        print(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def _regard(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


# ---------------------------------------------------------------------------------------
# The jobs


Changes = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to change for this run: train.steps=100.")
]


@app.command()
def prepare(
    recipe: Annotated[str | None, typer.Argument(help="A recipe: a TOML file.", show_default=False)] = None,
    changes: Changes = None,
    out: Annotated[str | None, typer.Option(help="The data directory to make.  [default: data/RECIPE]")] = None,
    task: Annotated[
        str | None, typer.Option(help="Without a recipe: translate, generate, fill, classify, tag.")
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

    options = _given(
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
        data = from_dict(recipes.Data, merge({"data": options}, changed)["data"])

    from regard.data.prepare import prepare as prepare_data
    from regard.data.summary import Summary, progress_bar

    with progress_bar() as progress:
        made = prepare_data(data, out or f"data/{Path(recipe or '').stem}", progress=progress)
    _show(Summary(made), as_json)


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
        str | None, typer.Option("--from", help="Begin with the weights of this run directory, of the same model.")
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
    if begin_from is not None and (resume is not None or verify):
        raise InputError(f"--from {begin_from}: a new run begins there; leave out --resume and --verify-resume")
    if recipe is None and resume is None:
        raise InputError("nothing to train; give a recipe (regard train RECIPE.toml), or --resume RUN")
    given = None if recipe is None else recipes.read(recipe, changes or ())
    if verify and given is None:
        raise InputError("--verify-resume needs a recipe")

    from regard.train.loop import Stopped
    from regard.train.loop import train as train_recipe
    from regard.train.watch import Watch

    place = data
    if given is not None and resume is None:
        place = _prepared(given, data, Path(recipe or "").stem, quiet=quiet)
    if verify:
        assert given is not None
        assert place is not None
        _verify_resume(given, place, [] if device is None else ["--device", device])
        return
    run = resume or out or f"runs/{Path(recipe or '').stem}"
    watch = Watch(quiet=quiet, tensorboard=tensorboard)
    try:
        how = {"resume": resume is not None, "begin_from": begin_from, "device": device, "shard": shard}
        train_recipe(given, place, run, **how, watch=watch)
    except Stopped as stopped:
        print(f"{stopped}; everything is saved. To go on: regard train --resume {run}", file=sys.stderr)
        raise typer.Exit(128 + stopped.number) from None


def _prepared(recipe: Any, given: str | None, name: str, *, quiet: bool) -> str:
    """The data directory of a recipe, prepared if it is not there. Of several processes the first prepares."""
    place = given or f"data/{name}"
    import time
    from pathlib import Path

    from regard.data.prepare import prepare
    from regard.data.store import DataDir
    from regard.data.summary import progress_bar
    from regard.train.run import check_data

    first = os.environ.get("RANK", "0") == "0"
    while not first and not Path(place).exists():
        time.sleep(0.5)
    if not Path(place).exists() and quiet:
        prepare(recipe.data, Path(place))
    elif not Path(place).exists():
        print(f"preparing {place}", file=sys.stderr)
        with progress_bar() as progress:
            prepare(recipe.data, Path(place), progress=progress)
    check_data(DataDir(Path(place)), recipe, files=not given)
    return place


def _verify_resume(recipe: Any, data: str, options: list[str]) -> None:
    from pathlib import Path

    from rich.table import Table

    from regard.train.verify import KILLED_AFTER, verify_resume

    verdict = verify_resume(recipe, Path(data), options)
    table = Table("step", "straight through", "killed and resumed", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for step, (straight, broken) in enumerate(verdict.losses, start=1):
        killed = "   killed after this step" if step in KILLED_AFTER else ""
        table.add_row(str(step), f"{straight:.9f}", f"{broken:.9f}{killed}")
    _show(table, False)
    if verdict.exact:
        print("The losses and the weights at the end are the same, bit for bit.")
    else:
        same = "the same" if verdict.same_weights else "not the same"
        print(
            f"The weights at the end are {same} bytes; a loss differs by up to {verdict.largest_difference:.1e} of it."
        )
        raise typer.Exit(1)


ModelName = Annotated[
    str, typer.Argument(help="A run directory, or the name of a model that comes with regard: en-de.")
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.  [default: a GPU if there is one]")]
Precision = Annotated[str | None, typer.Option(help="float32, bfloat16, float16.  [default: bfloat16 on a GPU]")]
Beam = Annotated[int | None, typer.Option(help="Ways that go on at each step; 1 is greedy.  [default: 4]")]
LengthPenalty = Annotated[float | None, typer.Option(help="How much long ones are favoured.  [default: 0.6]")]
Penalty = Annotated[str | None, typer.Option(help="gnmt or plain: what the length penalty means.  [default: gnmt]")]


@app.command()
def translate(
    model: ModelName,
    texts: Annotated[list[str] | None, typer.Argument(help="What to translate.", show_default=False)] = None,
    file: Annotated[
        list[str] | None, typer.Option(help="A file to translate, line by line; - is standard input.")
    ] = None,
    beam: Beam = None,
    n_best: Annotated[int | None, typer.Option(help="Translations of each text.  [default: 1]")] = None,
    length_penalty: LengthPenalty = None,
    penalty: Penalty = None,
    min_length: Annotated[int | None, typer.Option(help="Tokens of the shortest translation.")] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of the longest.  [default: 2 x the source + 16]")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Draw at random: below 1 careful, above 1 wild.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from so many of the likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest tokens with this share together.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the draws.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Print what each was ranked by, before it.")] = False,
    align: Annotated[
        bool, typer.Option("--align", help="Print which words belong together, after it: 0-0 1-2.")
    ] = False,
    device: Device = None,
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Translate texts, files, or standard input as it comes.

    regard translate en-de "A dog runs through the snow."
    """
    from regard.decode.settings import Decoding

    if texts and file:
        raise InputError("texts and --file; give one of them")
    options = _given(
        beam=beam,
        n_best=n_best,
        length_penalty=length_penalty,
        penalty=penalty,
        min_length=min_length,
        max_length=max_length,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    Decoding(**options).validate()
    lines = texts if texts else _lines(file or ["-"])
    loaded = _load(model, device, precision, "translate")

    from regard.decode.translate import stream

    for number, (source, found) in enumerate(stream(loaded, lines, align=align, **options), start=1):
        if as_json:
            print(json.dumps({"source": source, **found.to_dict()}, ensure_ascii=False), flush=True)
            continue
        for one in (found, *found.others):
            columns = [str(number)] if found.others else []
            columns += [f"{one.score:.4f}"] if scores else []
            columns.append(one.text)
            columns += [" ".join(f"{i}-{j}" for i, j in one.alignment or ())] if align else []
            print("\t".join(columns), flush=True)


def _lines(files: list[str]) -> Iterator[str]:
    """The lines of files, one after another; of standard input as they come."""
    from pathlib import Path

    from regard.data.readers import File

    for name in files:
        if name != "-":
            yield from (line for _, line in File(Path(name)).lines())
            continue
        if sys.stdin.isatty():
            print("a text a line; Ctrl-D ends", file=sys.stderr)
        for number, line in enumerate(sys.stdin.buffer, start=1):
            try:
                yield line.decode().rstrip("\r\n")
            except UnicodeDecodeError:
                raise InputError(f"standard input: line {number} is not valid UTF-8; convert it to UTF-8") from None


def _load(name: str, device: str | None, precision: str | None, task: str) -> Any:
    """A model for a task, or the reason why not."""
    if device not in (None, "cpu", "cuda"):
        raise InputError(f"--device ({device}) must be cpu or cuda")
    if precision not in (None, "float32", "bfloat16", "float16"):
        raise InputError(f"--precision ({precision}) must be float32, bfloat16 or float16")
    import torch

    from regard.memory import keep_freed_memory
    from regard.model import load

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device (cuda): there is no GPU here; leave it out")
    model = load(name, device=device, precision=precision)  # type: ignore[arg-type]
    model.check_task(task)
    if model.device.type == "cpu":
        keep_freed_memory()
    return model


@app.command()
def evaluate(
    model: ModelName,
    other: Annotated[str | None, typer.Argument(help="Another model, to compare with.", show_default=False)] = None,
    source: Annotated[str | None, typer.Option(help="The texts to translate, a line each.")] = None,
    reference: Annotated[list[str] | None, typer.Option(help="Their translations; may be given again.")] = None,
    language: Annotated[str, typer.Option(help="That is written: for the tokenizer of the papers' BLEU.")] = "en",
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    penalty: Penalty = None,
    device: Device = None,
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Score translations: BLEU and chrF with intervals and signatures, by length; loss. Keeps a score card.

    regard evaluate runs/en-de --source test.en --reference test.de --language de
    """
    if source is None or not reference:
        raise InputError("--source and --reference: give both, a file each, line by line")

    from regard.decode.watch import translating
    from regard.evaluate import compare, read_texts, set_name
    from regard.evaluate import evaluate as score

    sources, references = read_texts(source, reference)
    options = _given(beam=beam, length_penalty=length_penalty, penalty=penalty)
    models = [_load(name, device, precision, "translate") for name in (model, other) if name is not None]
    cards = []
    for each in models:
        with translating(str(each.path)) as progress:
            settings = {"name": set_name(source), "language": language, "progress": progress, **options}
            cards.append(score(each, sources, references, **settings))
    _show(compare(*cards) if other is not None else cards[0], as_json, width=140)
    for each, card in zip(models, cards, strict=True):
        card.save(each.path)


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
        print(f"{stopped}; everything is saved. To go on: the same command again", file=sys.stderr)
        raise typer.Exit(128 + stopped.number) from None
    _show(compared, as_json, width=140)


@app.command()
def export(
    model: ModelName,
    to: Annotated[str | None, typer.Option(help="hf (transformers) or ctranslate2.")] = None,
    out: Annotated[str | None, typer.Option(help="The directory to make.")] = None,
) -> None:
    """Write a translator as a directory that others load.

    regard export en-de --to ctranslate2 --out en-de-ct2
    """
    if to is None or out is None:
        raise InputError("--to and --out: say for whom (hf, ctranslate2) and where")

    from regard.interop.directory import export as write
    from regard.model import load

    print(write(load(model, device="cpu", precision="float32", packed=False), to, out))


@app.command()
def plan(
    model: Annotated[str, typer.Argument(help="A recipe, a TOML file with only a [model], or a preset.")],
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
    if tokens is None and run.train is not None and run.given("train.steps"):
        tokens = float(run.train.steps * run.train.batch_tokens)
    options = _given(gpu_memory=None if gpu_memory is None else gpu_memory * 1e9, tokens=tokens, flops=flops)
    _show(plan_run(run.model, run.train, run.data, gpus=gpus, **options), as_json)


@app.command()
def explain(
    recipe: Annotated[str, typer.Argument(help="A recipe, a TOML file with only a [model], or a preset.")],
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Every value of a run, where it came from, and what it does.

    regard explain recipes/shakespeare.toml train.steps=100
    """
    from regard import explain

    _show(explain.read(recipe, changes or ()), as_json, width=400)  # in a pipe, a line a value


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
        _show(walk_scores(_numbers(scores), **_given(d_key=d_key)), as_json)
    else:
        assert text is not None
        options = _given(target=target, layer=layer, head=head, seed=seed)
        _show(walk_text(text, model=None if model is None else _config(model), **options), as_json)


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
    _show(rows if as_json else table, as_json, width=160)  # in a pipe, a line a preset


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
        print(f"{stopped}; regard quickstart begins anew", file=sys.stderr)
        raise typer.Exit(128 + stopped.number) from None


# ---------------------------------------------------------------------------------------
# What they share


def _show(page: Any, as_json: bool, width: int = 80) -> None:
    """A result on standard output: JSON alone, tables in colour for a terminal, plain text for a pipe."""
    import io

    from rich.console import Console

    console = Console(highlight=False)
    if as_json:
        print(json.dumps(page if isinstance(page, list) else page.to_dict(), ensure_ascii=False))
    elif console.is_terminal:
        console.print(page)
    else:  # as look.page.as_text has it, whose house does not open without torch
        plain = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, highlight=False)
        plain.print(page)
        print("\n".join(line.rstrip() for line in plain.file.getvalue().splitlines()))  # type: ignore[attr-defined]


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given; for the others, the room behind the door has its own defaults."""
    return {name: value for name, value in options.items() if value is not None}


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

    is_file = name.endswith(".toml") or Path(name).is_file()
    return presets.from_toml(name) if is_file and name not in presets.names() else presets.preset(name)


def _about(preset: Any) -> str:
    """The first sentence of a docstring, without its markup."""
    first = (preset.__doc__ or "").strip().splitlines()[0].replace("`", "")
    return re.split(r"(?<=[.]) (?=[A-Z])", first)[0]
