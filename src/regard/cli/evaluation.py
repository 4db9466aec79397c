"""How good a model is: evaluate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from regard.cli.reading import labelled, prompter
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
    aside,
    given,
    load,
    show,
)
from regard.config import InputError
from regard.files import is_shipped


@app.command()
def evaluate(
    model: ModelName,
    other: Annotated[str | None, typer.Argument(help="Another model, to compare with.", show_default=False)] = None,
    source: Annotated[str | None, typer.Option(help="Of a translator: the texts to translate, a line each.")] = None,
    reference: Annotated[list[str] | None, typer.Option(help="Their translations; may be given again.")] = None,
    language: Annotated[str, typer.Option(help="That is written: for the tokenizer of the papers' BLEU.")] = "en",
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    penalty: Penalty = None,
    file: Annotated[
        str | None,
        typer.Option(help="Of a model that classifies, tags, captions or matches: a file with labels or captions."),
    ] = None,
    shuffle_images: Annotated[
        bool, typer.Option("--shuffle-images", help="Of a captioner: give each the image of another, as a check.")
    ] = False,
    columns: Annotated[str | None, typer.Option(help="Its columns, by name or number.  [default: as trained]")] = None,
    shots: Annotated[
        str | None, typer.Option(help="With --file and a language model: examples it is shown, or several numbers.")
    ] = None,
    examples: Annotated[str | None, typer.Option(help="For --shots: a labelled file to take them from.")] = None,
    labels: Annotated[str | None, typer.Option(help="For --shots: the labels.  [default: the examples']")] = None,
    template: Annotated[str | None, typer.Option(help="For --shots: a text and its label, {text} and {label}.")] = None,
    seed: Annotated[int | None, typer.Option(help="For --shots: picks the examples.")] = None,
    picture: Annotated[str | None, typer.Option(help="For several --shots: a picture to draw.")] = None,
    text: Annotated[str | None, typer.Option(help="Of a language model: a text to find the perplexity of.")] = None,
    device: Device = None,
    precision: Precision = None,
    int8: Int8 = False,
    as_json: AsJson = False,
) -> None:
    """Score a model on a test set, with intervals; or two, and whether they differ. Keeps a score card.

    regard evaluate runs/en-de --source test.en --reference test.de --language de
    """
    chosen = given(source=source or (reference and ""), file=file, text=text)
    if len(chosen) != 1:
        raise InputError("give what to score on: --source and --reference, or --file, or --text")
    if shuffle_images and (file is None or shots is not None):
        raise InputError("--shuffle-images: goes with --file and a model that captions")
    prompted = given(examples=examples, labels=labels, template=template, seed=seed)
    if shots is None and (prompted or picture):
        wrong = [*prompted, *given(picture=picture)]
        raise InputError(f"{', '.join(f'--{name}' for name in wrong)}: goes with --shots")

    def models(*tasks: str) -> list[Any]:
        return [load(name, device, precision, *tasks, int8=int8) for name in (model, other) if name is not None]

    if text is not None:
        if other is not None:
            raise InputError("--text: takes one model; evaluate each by itself")
        page, cards = _compared(_of_text(models, text))
    elif file is not None and shots is not None:
        page, cards = _of_shots(models, file, columns, shots, picture, prompted)
    elif file is not None:
        options = given(beam=beam, length_penalty=length_penalty, penalty=penalty)
        page, cards = _compared(_of_file(models, file, columns, shuffle_images, options))
    else:
        options = given(beam=beam, length_penalty=length_penalty, penalty=penalty)
        page, cards = _compared(_of_translations(models, source, reference, language, options))
    show(page, as_json, width=140)

    from regard.evaluate.scorecard import entry, read_cards

    for each, card in cards:
        folder = each.path if each.path.is_dir() else each.path.parent
        if not is_shipped(folder):  # whose card is what it was shipped with
            path = card.save(folder)
            name = entry(card, read_cards(folder)["sets"])
            aside(f"score card: {path}" + (f", as {name!r}: it has other texts of that name" * (name != card.name)))
    if picture is not None:
        page.draw(picture)


Models = Callable[..., list[Any]]
Cards = list[tuple[Any, Any]]
"""Models, each with its score card."""


def _of_translations(models: Models, source: Any, reference: Any, language: str, options: dict[str, Any]) -> Cards:
    if not source or not reference:
        raise InputError("--source and --reference: give both, a file each, line by line")

    from regard.decode.watch import answering
    from regard.evaluate import evaluate, read_texts, set_name

    sources, references = read_texts(source, reference)
    cards: Cards = []
    for each in models("translate"):
        with answering(str(each.path)) as progress:
            settings = {"name": set_name(source), "language": language, "progress": progress, **options}
            cards.append((each, evaluate(each, sources, references, **settings)))
    return cards


def _of_file(models: Models, file: str, columns: str | None, shuffled: bool, options: dict[str, Any]) -> Cards:
    """Labels of a labelled file; captions, or which belongs to which, of one that has images and texts."""
    from regard.decode.watch import answering
    from regard.evaluate import evaluate_labels, read_examples, set_name
    from regard.evaluate.captions import evaluate_captions, read_captioned
    from regard.evaluate.retrieval import evaluate_matches

    named = columns.split(",") if columns else ()
    cards: Cards = []
    for each in models(*(["caption"] if shuffled else ["classify", "tag", "caption", "match"])):
        read, score, how = read_examples, evaluate_labels, {}
        if each.task == "caption":
            read, score, how = read_captioned, evaluate_captions, {"shuffled": shuffled, **options}
        elif each.task == "match":
            read, score = read_captioned, evaluate_matches
        examples: Any = read(each, file, named)
        with answering(str(each.path)) as progress:
            cards.append((each, score(each, examples, name=set_name(file), progress=progress, **how)))
    return cards


def _of_shots(
    models: Models, file: str, columns: str | None, shots: str, picture: str | None, prompted: dict[str, Any]
) -> tuple[Any, Cards]:
    """A card for one number of examples; for several, how the accuracy changes with them."""
    try:
        numbers = [int(number) for number in shots.split(",")]
    except ValueError:
        raise InputError(f"--shots ({shots}) must be a number, or several with commas: 0,1,2,4,8") from None
    if len(numbers) == 1 and picture is not None:
        raise InputError("--picture: goes with several --shots: 0,1,2,4,8")

    from regard.decode.watch import answering
    from regard.encode.shots import pick
    from regard.evaluate import evaluate_labels, set_name
    from regard.evaluate.shots import accuracy_over_shots, check_picture

    test = labelled(file, columns)
    shown = labelled(prompted["examples"], columns) if "examples" in prompted else []
    prompted.setdefault("labels", sorted({label for _, label in (*test, *shown)}))
    name = set_name(file)
    for number in numbers:
        pick(shown, number)  # as many as there are; said now, not after the others are scored
    if picture is not None:
        check_picture(picture)
    if len(numbers) > 1:
        asked = {str(each.path): prompter(each, 0, columns=columns, **prompted) for each in models("generate")}
        with answering(name) as progress:
            found = accuracy_over_shots(asked, test, numbers, name=name, progress=progress)
        return found, []
    cards: Cards = []
    for each in models("generate"):
        ask = prompter(each, numbers[0], columns=columns, **prompted)
        with answering(str(each.path)) as progress:
            how = {"name": f"{name}, {numbers[0]} shots", "classify": ask, "progress": progress}
            cards.append((each, evaluate_labels(each, test, **how)))
    return _compared(cards)


def _of_text(models: Models, file: str) -> Cards:
    from pathlib import Path

    from regard.data.readers import File
    from regard.decode.watch import answering
    from regard.evaluate import set_name
    from regard.evaluate.language import evaluate_text

    text = "\n".join(line for _, line in File(Path(file)).lines())
    cards: Cards = []
    for each in models("generate"):
        with answering(str(each.path)) as progress:
            cards.append((each, evaluate_text(each, text, name=set_name(file), progress=progress)))
    return cards


def _compared(cards: Cards) -> tuple[Any, Cards]:
    from regard.evaluate import compare

    (_, first), *others = cards
    return compare(first, others[0][1]) if others else first, cards
