"""Text to text: translate, export."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from regard.cli.shared import (
    AsJson,
    Beam,
    Device,
    Int8,
    LengthPenalty,
    ModelName,
    Penalty,
    Precision,
    app,
    check_no_files,
    given,
    lines_of,
    load,
)
from regard.config import InputError


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
    int8: Int8 = False,
    as_json: AsJson = False,
) -> None:
    """Translate texts, files, or standard input as it comes.

    regard translate en-de "A dog runs through the snow."
    """
    from regard.decode.settings import Decoding

    if texts and file:
        raise InputError("texts and --file; give one of them")
    options = given(
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
    check_no_files(texts)
    lines = texts if texts else lines_of(file or ["-"])
    loaded = load(model, device, precision, "translate", int8=int8)

    from regard.decode.translate import stream

    for number, (source, found) in enumerate(stream(loaded, lines, align=align, **options), start=1):
        if as_json:
            print(json.dumps({"source": source, **found.to_dict()}, ensure_ascii=False), flush=True)
            continue
        for one in (found, *found.others):
            columns = [str(number)] if n_best and n_best > 1 else []
            columns += [f"{one.score:.4f}"] if scores else []
            columns.append(one.text)
            columns += [" ".join(f"{i}-{j}" for i, j in one.alignment or ())] if align else []
            print("\t".join(columns), flush=True)


@app.command()
def export(
    model: ModelName,
    to: Annotated[
        str | None, typer.Option(help="hf (transformers), ctranslate2, or int8 (regard, a quarter of the size).")
    ] = None,
    out: Annotated[str | None, typer.Option(help="The directory to make.")] = None,
) -> None:
    """Write a model as a directory that others load, or a smaller one, tokenizer and all.

    regard export en-de --to ctranslate2 --out en-de-ct2
    """
    if to is None or out is None:
        raise InputError("--to and --out: say as what (hf, ctranslate2, int8) and where")

    from regard import model as models
    from regard.interop.directory import export as write

    print(write(models.load(model, device="cpu", precision="float32", packed=False), to, out))
