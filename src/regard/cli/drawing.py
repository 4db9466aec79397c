"""Images from texts: draw."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from regard.cli.shared import Device, ModelName, Precision, app, given, load
from regard.config import InputError


@app.command()
def draw(
    model: ModelName,
    texts: Annotated[list[str], typer.Argument(help="What to draw; several texts are several rows.")],
    out: Annotated[str, typer.Option("--out", "-o", help="The file to write, a grid of all images.")],
    n: Annotated[int, typer.Option(help="Images of each text.")] = 8,
    temperature: Annotated[float | None, typer.Option(help="Below 1 careful, above 1 wild.  [default: 1]")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from so many of the likeliest codes.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest codes with this share together.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the draws.  [default: 0]")] = None,
    rerank: Annotated[str | None, typer.Option(help="A CLIP model: the images that fit best come first.")] = None,
    device: Device = None,
    precision: Precision = None,
) -> None:
    """Draw images of texts.

    regard draw runs/fashion-draw "a photo of an ankle boot" --n 8 -o boots.png
    """
    judge = None if rerank is None else load(rerank, device, precision)
    if judge is not None and not hasattr(judge, "match"):
        raise InputError(f"--rerank ({rerank}): models of this regard cannot match images and texts; leave it out")
    loaded = load(model, device, precision, "draw")
    options = given(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)

    from PIL import Image

    from regard.decode.draw import grid

    found = loaded.draw(texts, n=n, **options)
    if judge is not None:
        found = [_ranked(judge, drawings) for drawings in found]
    whole = grid([[one.image for one in drawings] for drawings in found])
    try:
        Image.fromarray(whole[..., 0] if whole.shape[2] == 1 else whole).save(out)
    except ValueError as error:
        raise InputError(f"--out ({out}): {error}; name it like drawing.png") from None
    print(f"{out}: {n} of each of {len(texts)} texts" if len(texts) > 1 else f"{out}: {n} images")


def _ranked(judge: Any, drawings: list[Any]) -> list[Any]:
    """The drawings of one text, those that a CLIP model finds nearest to it first."""
    import numpy as np

    near = np.asarray(judge.match([one.image for one in drawings], [drawings[0].text])).reshape(len(drawings))
    return [drawings[i] for i in np.argsort(-near, kind="stable")]
