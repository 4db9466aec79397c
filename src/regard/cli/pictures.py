"""Images and texts: caption, match, draw."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from regard.cli.shared import AsJson, Beam, Device, LengthPenalty, ModelName, Penalty, Precision, app, given, load
from regard.config import InputError
from regard.files import check_folder

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
    map: Annotated[
        str | None,
        typer.Option(help="A picture to draw (.png, .svg, .html): where in the image each word of its caption looked."),
    ] = None,
    device: Device = None,
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Say in words what images show.

    regard caption MODEL photo.jpg --beam 4 --map words.png
    """
    from regard.decode.settings import Decoding

    options = given(beam=beam, n_best=n_best, length_penalty=length_penalty, penalty=penalty, max_length=max_length)
    Decoding(**options).validate()
    if map is not None and len(images) > 1:
        raise InputError(f"--map ({map}): goes with one image, not {len(images)}; caption the others without it")
    if map is not None:
        check_folder(map)
    loaded = load(model, device, precision, "caption")
    for number, (image, found) in enumerate(zip(images, loaded.caption(images, **options), strict=True), 1):
        if as_json:
            print(json.dumps({"image": image, **found.to_dict()}, ensure_ascii=False), flush=True)
        for one in () if as_json else (found, *found.others):
            columns = [str(number)] if found.others else []
            print(*columns, *([f"{one.score:.4f}"] if scores else []), one.text, sep="\t", flush=True)
        if map is not None:
            from regard.look.caption import map_caption

            map_caption(loaded, image, found.text).save(map)


@app.command()
def match(
    model: ModelName,
    images: Photos,
    labels: Annotated[str | None, typer.Option(help="What they may show, with commas between: dog,cat.")] = None,
    text: Annotated[list[str] | None, typer.Option(help="A text that may fit them; may be given again.")] = None,
    template: Annotated[
        list[str] | None, typer.Option(help="What a label stands in, as {}; may be given again.  [default: {}]")
    ] = None,
    device: Device = None,
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Say which of some labels or texts fits each image, without training for them.

    regard match MODEL photo.jpg --labels dog,cat --template "a photo of a {}"
    """
    texts = [*(text or ()), *(label.strip() for label in (labels or "").split(",") if label.strip())]
    if not texts:
        raise InputError("--labels or --text: give what the images may show: --labels dog,cat")
    loaded = load(model, device, precision)
    found = loaded.match(images, texts, template or ["{}"])
    for image, shares, cosines in zip(images, found.probabilities.tolist(), found.cosines.tolist(), strict=True):
        if as_json:
            fits = {
                "probabilities": dict(zip(texts, shares, strict=True)),
                "cosines": dict(zip(texts, cosines, strict=True)),
            }
            print(json.dumps({"image": image, **fits}, ensure_ascii=False), flush=True)
            continue
        best = max(range(len(texts)), key=shares.__getitem__)
        print(texts[best], f"{shares[best]:.4f}", *([image] if len(images) > 1 else []), sep="\t", flush=True)


@app.command()
def draw(
    model: ModelName,
    texts: Annotated[list[str], typer.Argument(help="What to draw; several texts are several rows.")],
    out: Annotated[str, typer.Option("--out", "-o", help="The file to write, a grid of all images.")],
    n: Annotated[
        int | None, typer.Option(help="Images of each text.  [default: 8; at temperature 0 the one there is]")
    ] = None,
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
    from regard.decode.draw import kind_of, save

    kind_of(out)  # before anything is drawn
    judge = None if rerank is None else load(rerank, device, precision, "match")
    loaded = load(model, device, precision, "draw")
    options = given(n=n, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, rerank=judge)
    drawn = loaded.draw(texts, **options)
    save(out, drawn)
    n = len(drawn[0])
    print(f"{out}: {n} of each of {len(texts)} texts" if len(texts) > 1 else f"{out}: {n} images")
