"""To see what attention does: look."""

from __future__ import annotations

from typing import Annotated

import typer

from regard.cli.shared import AsJson, app, show
from regard.config import InputError, suggest


@app.command()
def look(
    what: Annotated[str, typer.Argument(help="scaling: what dividing by the square root of the width buys.")],
    out: Annotated[str | None, typer.Option(help="Draw it: a .png or .svg file.")] = None,
    as_json: AsJson = False,
) -> None:
    """What the lectures say about attention, measured here.

    regard look scaling --out scaling.png
    """
    if what != "scaling":
        raise InputError(f"look ({what}) is not known; {suggest(what, ['scaling'])}")
    if out is not None and not out.lower().endswith((".png", ".svg")):
        raise InputError(f"--out ({out}) must be a .png or .svg file")
    from regard.look.scaling import scaling

    found = scaling()
    if out is not None:
        found.draw(out)
    show(found, as_json, width=100)
