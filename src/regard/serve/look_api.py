"""What is to be seen inside a model: for the page, and for whoever draws pictures of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request

from regard.decode.settings import Decoding
from regard.serve import views
from regard.serve.app import REFUSALS, Hall, Refused, Served
from regard.serve.bodies import Body, LookAttention, LookCaption, LookImage, LookNext, LookTokens, LookTrace, Seen
from regard.serve.jobs_api import decoded

MOST_WAYS = 8  # of a trace


def add(app: FastAPI, hall: Hall) -> None:
    """Put the endpoints into an application."""

    @app.get("/look/models", summary="The models being served: what each is, and where it attends.")
    async def models() -> dict[str, Any]:
        return {"models": [await asyncio.to_thread(_facts, served) for served in hall.served.values()]}

    @app.post("/look/tokens", summary="The tokens of a text as a model reads it.", responses=REFUSALS)
    async def tokens(body: LookTokens) -> Seen:
        served = hall.find(body.model)
        hall.check([body.text])
        return Seen(model=served.name, **await asyncio.to_thread(views.tokens, served.model, body.text))

    @app.post("/look/next", summary="The likeliest tokens after a prompt.", responses=REFUSALS)
    async def next_tokens(request: Request, body: LookNext) -> Seen:
        served = hall.find(body.model)
        served.model.check_task("generate")
        hall.check([body.prompt])
        return await look(request, body, views.next_tokens, body.prompt, **body.options("prompt"))

    @app.post("/look/rollout", summary="What of an image reaches a model's answer.", responses=REFUSALS)
    async def rollout(request: Request, body: LookImage) -> Seen:
        return await look(request, body, views.rolled_out, decoded([body.image])[0].source)

    @app.post("/look/caption", summary="Where a captioner looked to write each word.", responses=REFUSALS)
    async def caption(request: Request, body: LookCaption) -> Seen:
        served = hall.find(body.model)
        served.model.check_task("caption")
        hall.check([body.text or ""])
        return await look(request, body, views.glimpses, decoded([body.image])[0].source, **body.options("image"))

    @app.post("/look/attention", summary="Who looks at whom in one layer.", responses=REFUSALS)
    async def attention(request: Request, body: LookAttention) -> Seen:
        if body.text is None and body.image is None:
            raise Refused(422, "text or image: give what is to be looked at")
        hall.check([body.text or "", body.target or ""])
        image = None if body.image is None else decoded([body.image])[0].source
        return await look(request, body, views.attention, body.text, image=image, **body.options("text", "image"))

    @app.post("/look/trace", summary="What a search does, step by step.", responses=REFUSALS)
    async def trace(request: Request, body: LookTrace) -> Seen:
        given = body.text if body.image is None else decoded([body.image])[0].source
        if given is None:
            raise Refused(422, "text or image: give what the search is to begin with")
        options = body.options("text", "image", "sentence")
        how = Decoding(**options).validate()
        hall.check([body.text or ""], tokens=how.max_length, ways=how.ways)
        if how.ways > MOST_WAYS:
            raise Refused(422, f"a trace of {how.ways} ways is more than one can see; ask for {MOST_WAYS} at most")
        return await look(request, body, views.traced, given, sentence=body.sentence, **options)

    async def look(request: Request, body: Body, what: Callable[..., Any], given: Any, **options: Any) -> Seen:
        served = hall.find(body.model)
        job = views.Looking(what, given, model=served.model, **options)
        [seen] = await hall.work(request, served, lambda: job)
        return Seen(model=served.name, **seen)


def _facts(served: Served) -> dict[str, Any]:
    return {"name": served.name, **served.facts, "chat": served.chat is not None}
