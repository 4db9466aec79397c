"""Images and texts: caption."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from regard.cli.shared import AsJson, Beam, Device, LengthPenalty, ModelName, Penalty, Precision, app, given, load

Photos = Annotated[list[str], typer.Argument(help="Files of images.", show_default=False)]


@app.command()
def caption(
    model: ModelName,
    images: Photos,
    beam: Beam = None,
    n_best: Annotated[int | None, typer.Option(help="Captions of each image.  [default: 1]")] = None,
    length_penalty: LengthPenalty = None,
    penalty: Penalty = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of the longest.  [default: as trained]")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Print what each was ranked by, before it.")] = False,
    device: Device = None,
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Say in words what images show.

    regard caption MODEL photo.jpg --beam 4
    """
    from regard.decode.settings import Decoding

    options = given(beam=beam, n_best=n_best, length_penalty=length_penalty, penalty=penalty, max_length=max_length)
    Decoding(**options).validate()
    loaded = load(model, device, precision, "caption")
    for number, (image, found) in enumerate(zip(images, loaded.caption(images, **options), strict=True), 1):
        if as_json:
            print(json.dumps({"image": image, **found.to_dict()}, ensure_ascii=False), flush=True)
            continue
        for one in (found, *found.others):
            columns = [str(number)] if found.others else []
            print(*columns, *([f"{one.score:.4f}"] if scores else []), one.text, sep="\t", flush=True)
