"""To see what attention does: look."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.shared import AsJson, Device, Precision, app, aside, load, show
from regard.config import InputError, suggest

VIEWS = ("grid", "heatmap", "lines", "rollout")  # of attention
SEARCHES = ("tree", "steps")  # of how an answer was written


@app.command()
def look(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="A model: a run directory, a name (en-de), a Hugging Face directory. Or a lesson: scaling,"
            " complexity, positions [MODEL], masks, patches MODEL, merges MODEL WORD, curves RUN.",
        ),
    ],
    given: Annotated[
        list[str] | None, typer.Argument(metavar="[INPUT]...", help="A text, two texts, or the file of an image.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="What is written after it, or matched with it.  [default: the model's own]")
    ] = None,
    layer: Annotated[str | None, typer.Option(help="A layer: decoder.1.cross, or a part of a name: 3.")] = None,
    head: Annotated[int | None, typer.Option(help="A head of that layer.")] = None,
    view: Annotated[
        str | None,
        typer.Option(
            "--as", help="A picture of attention: grid, heatmap, lines, rollout; or how it was written: tree, steps."
        ),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Ways that go on at each step, with --as tree or steps.")] = None,
    ablate: Annotated[bool, typer.Option("--ablate", help="How much the loss changes without each head.")] = False,
    out: Annotated[str | None, typer.Option("--out", "-o", help="Write it: .html for all of it, .png or .svg.")] = None,
    device: Device = None,
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """What a model attends to, and what the lectures say about attention.

    regard look en-de "A dog runs." -o report.html

    regard look en-de "A dog runs." --layer decoder.1.cross --head 3 -o head.png

    regard look en-de "A dog runs." --as tree
    """
    if out is not None and not out.endswith((".html", ".png", ".svg")):
        raise InputError(f"--out ({out}) must be a .html, .png or .svg file")
    if view not in (None, *VIEWS, *SEARCHES):
        raise InputError(f"--as ({view}) must be {', '.join([*VIEWS, *SEARCHES[:-1]])} or {SEARCHES[-1]}")
    if view in VIEWS and out is None:
        raise InputError(f"--as ({view}): is drawn; name a file: -o {view}.png")
    if beam is not None and view not in SEARCHES:
        raise InputError(f"--beam ({beam}): goes with --as tree or --as steps")
    options = {"--target": target, "--layer": layer, "--head": head, "--as": view, "--ablate": ablate or None}
    if what not in LESSONS and view in SEARCHES:
        _refuse({**options, "--as": None}, f"goes with attention, not with --as {view}")
        _search(what, given, view, beam, out, device, precision, as_json)
        return
    if what not in LESSONS:
        if head is not None and out is None:
            raise InputError(f"--head ({head}): is drawn; name a file: -o head.png")
        show(_model(what, given, target, layer, head, view, out, ablate, device, precision), as_json, width=100)
        return
    _refuse(options, f"goes with a model and an input, not with {what}")
    found = LESSONS[what](given or [])
    if out is not None:
        found.save(out)
    show(found, as_json, width=100)
    if out is not None:
        _written(out)


def _refuse(options: dict[str, Any], rule: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} ({value}): {rule}")


def _opened(what: str, given: list[str] | None, device: str | None, precision: str | None) -> tuple[Any, Any]:
    """The model, and what it is to look at."""
    if not Path(what).exists() and (near := suggest(what, LESSONS)).startswith("did you mean"):
        raise InputError(f"look ({what}) is neither a model nor a lesson; {near}")
    if not given:
        raise InputError(f"{what}: what shall it look at? give a text, or the file of an image")
    model = load(what, device, precision)
    is_file = model.config.text is not None and len(given) == 1 and Path(given[0]).is_file()
    return model, Path(given[0]) if is_file else given[0] if len(given) == 1 else tuple(given)


def _search(what, given, view, beam, out, device, precision, as_json) -> None:
    """How an answer was written: in a file, or as text where none is named."""
    model, reads = _opened(what, given, device, precision)
    seen = model.trace(reads, **({} if beam is None else {"beam": beam}))
    if out is not None:
        seen.save(out)
    if out is not None and not as_json:
        print(out)
    else:
        show(seen.tree() if view == "tree" and not as_json else seen, as_json, width=120)


def _model(what, given, target, layer, head, view, out, ablate, device, precision) -> Any:
    """What a model attends to; drawn where a file is named."""
    model, reads = _opened(what, given, device, precision)
    if ablate:
        if out is not None:
            raise InputError(f"--ablate: is a table; leave out --out ({out})")
        return model.ablate_each(reads, target, layers=layer)
    # A report has all layers; a rollout as well; of anything else no more is computed than is drawn.
    whole = view == "rollout" or (view is None and out is not None and out.endswith(".html"))
    seen = model.attention(reads, target, layers=None if whole else layer)
    if out is None:
        return seen
    if view == "rollout":
        (seen.over_image() if seen.pool and seen.image is not None else seen.rollout()).save(out)
    elif view in ("heatmap", "lines"):
        seen.one(layer).head(head).save(out, lines=view == "lines")
    else:
        seen.save(out, layer, None if view == "grid" else head)
    _written(out)
    return seen


def _written(out: str) -> None:
    aside(f"{out}: written")


# ---------------------------------------------------------------------------------------
# Lessons


def _scaling(given: list[str]) -> Any:
    from regard.look.scaling import scaling

    _takes("scaling", given)
    return scaling()


def _complexity(given: list[str]) -> Any:
    from regard.look.complexity import complexity

    _takes("complexity", given)
    return complexity()


def _positions(given: list[str]) -> Any:
    from regard.look.lessons import positions

    _takes("positions", given, "MODEL", least=0)
    return positions(load(given[0], None, None) if given else None)


def _masks(given: list[str]) -> Any:
    from regard.look.lessons import masks

    _takes("masks", given)
    return masks()


def _patches(given: list[str]) -> Any:
    from regard.look.filters import filters
    from regard.model import load as loaded

    _takes("patches", given, "MODEL")
    return filters(loaded(given[0], device="cpu", precision="float32", packed=False))


def _merges(given: list[str]) -> Any:
    from regard.data.tokenizer import Tokenizer
    from regard.look.merges import merges

    _takes("merges", given, "MODEL", "WORD")
    path = Path(given[0])
    tokenizer = Tokenizer.load(path) if path.suffix == ".json" else load(given[0], None, None).source_tokenizer
    return merges(tokenizer, given[1])


def _curves(given: list[str]) -> Any:
    from regard.look.curves import curves

    _takes("curves", given, "RUN")
    return curves(given[0])


def _takes(lesson: str, given: list[str], *names: str, least: int | None = None) -> None:
    if not (len(names) if least is None else least) <= len(given) <= len(names):
        usage = " ".join([lesson, *(f"[{name}]" if least == 0 else name for name in names)])
        raise InputError(f"regard look {usage}: takes {len(names) or 'nothing'}, not {len(given)} ({' '.join(given)})")


LESSONS: dict[str, Callable[[list[str]], Any]] = {
    "scaling": _scaling,
    "complexity": _complexity,
    "positions": _positions,
    "masks": _masks,
    "patches": _patches,
    "merges": _merges,
    "curves": _curves,
}
