"""A language model at work: generate, chat."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from regard.cli.shared import (
    AsJson,
    Device,
    Int8,
    LengthPenalty,
    ModelName,
    Precision,
    app,
    aside,
    given,
    lines_of,
    load,
)
from regard.config import InputError

Temperature = Annotated[
    float | None, typer.Option(help="Below 1 careful, above 1 wild, 0 always the likeliest.  [default: 0.8]")
]
TopK = Annotated[int | None, typer.Option(help="Draw from so many of the likeliest tokens.")]
TopP = Annotated[float | None, typer.Option(help="Draw from the likeliest tokens with this share together.")]
MinP = Annotated[
    float | None, typer.Option(help="Draw from tokens with this share of the likeliest one's probability.")
]
RepetitionPenalty = Annotated[float | None, typer.Option(help="Above 1: what was there is less likely to come again.")]
Seed = Annotated[int | None, typer.Option(help="Of the draws.  [default: 0]")]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text; may be given again.")]


@app.command()
def generate(
    model: ModelName,
    prompts: Annotated[list[str] | None, typer.Argument(help='What to go on with; "" is nothing.')] = None,
    file: Annotated[list[str] | None, typer.Option(help="A file of prompts, a line each; - is standard input.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens to write at most.  [default: 100]")] = None,
    n: Annotated[int | None, typer.Option(help="Samples of each prompt.  [default: 1]")] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    seed: Seed = None,
    stop: Stop = None,
    beam: Annotated[
        int | None, typer.Option(help="Search, and not draw: ways that go on at each step; 1 is greedy.")
    ] = None,
    length_penalty: LengthPenalty = None,
    device: Device = None,
    precision: Precision = None,
    int8: Int8 = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a text, drawn or the most likely; on a terminal as it is written.

    regard generate runs/tales "Once upon a time" --temperature 0.7 --stop "The end"
    """
    from regard.decode.settings import to_generate

    if prompts and file:
        raise InputError("prompts and --file; give one of them")
    choice = given(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        beam=beam,
        length_penalty=length_penalty,
    )
    how = to_generate(**given(n=n, stop=stop), **choice)
    options = {**given(stop=stop, max_new_tokens=max_new_tokens), **choice}
    loaded = load(model, device, precision, "generate", int8=int8)

    from regard.data.arrivals import arriving
    from regard.decode.generate import generate as go_on
    from regard.decode.generate import stream

    written = 0
    for group in [prompts] if prompts else arriving(lines_of(file or ["-"])):
        if sys.stdout.isatty() and not as_json and len(group) == how.ways == 1:
            [prompt] = group
            _separate(written)
            print(prompt, end="", flush=True)
            found = [_shown(stream(loaded, prompt, **options))]
            print(flush=True)
            written += 1
        else:
            found = go_on(loaded, group, **given(n=n), **options)
            for said in found:
                if as_json:
                    print(json.dumps(said.to_dict(), ensure_ascii=False), flush=True)
                    continue
                for one in (said, *said.others):
                    _separate(written)
                    print(f"{one.prompt}{one.text}", flush=True)
                    written += 1
        for said in found:
            _warn(said, loaded.context, stop)


@app.command()
def chat(
    model: ModelName,
    system: Annotated[str | None, typer.Option(help="What the model is told before the first turn.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens of an answer at most.  [default: 512]")] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    seed: Seed = None,
    stop: Stop = None,
    device: Device = None,
    precision: Precision = None,
    int8: Int8 = False,
) -> None:
    """Talk with a model that was made for it; in a pipe, a turn a line.

    regard chat SmolLM2-135M-Instruct --system "You answer in rhymes."
    """
    from regard.decode.settings import to_generate

    options = given(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=stop,
    )
    to_generate(**options)
    options |= given(max_new_tokens=max_new_tokens)
    loaded = load(model, device, precision, "generate", int8=int8)

    from regard.decode.chat import Chat

    talk, typed, left_out = Chat(loaded, system=system), sys.stdin.isatty(), 0
    for turn in _turns() if typed else lines_of(["-"]):
        if not turn.strip():
            continue
        try:
            _shown(talk.say(turn, **options))
        except InputError as error:
            if not typed:
                raise
            aside(f"error: {error}")
        except KeyboardInterrupt:  # enough of this answer
            if not typed:
                raise
        print(flush=True)
        if talk.left_out > left_out:
            aside(f"warning: the first {talk.left_out} messages no longer fit and are left out")
            left_out = talk.left_out


def _turns() -> Iterator[str]:
    aside("Ctrl-C breaks an answer off, Ctrl-D ends")
    while True:
        try:
            yield input("> ")
        except EOFError:
            return print()


def _shown(pieces: Any) -> Any:
    """Print a text as it is written; returns what is known of it in the end."""
    while True:
        try:
            print(next(pieces), end="", flush=True)
        except StopIteration as end:
            return end.value


def _separate(written: int) -> None:
    """Texts may have any lines in them."""
    if written:
        print("---")


def _warn(said: Any, context: int | None, stop: list[str] | None) -> None:
    if said.dropped:
        aside(
            f"warning: the prompt does not fit the model's context of {context} tokens: its first {said.dropped} are"
            " left out, and the last are kept"
        )
    everything = (said, *said.others)
    if stop and not any(one.finish == "stop" for one in everything):
        told = ", ".join(map(repr, stop))
        n = max(len(one.tokens) for one in everything)
        aside(f"warning: --stop ({told}) was not met within {n} tokens")
