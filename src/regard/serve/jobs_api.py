"""An endpoint for each job. A model serves those that its task allows; each answer equals the offline one."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request

from regard.data.images import MOST_PIXELS, Picture, claimed
from regard.decode.settings import Decoding, to_generate
from regard.serve import bodies, views
from regard.serve.app import REFUSALS, Hall, Refused
from regard.serve.bodies import Answers, Classify, Embed, Fill, Generate, Tag, Translate, Vectors
from regard.serve.jobs import Generating, Reading, Translating


def add(app: FastAPI, hall: Hall) -> None:
    """Put the endpoints into an application."""

    @app.post("/translate", summary="Texts in another language.", responses=REFUSALS)
    async def translate(request: Request, body: Translate) -> Answers:
        served, texts, options = hall.find(body.model), _several(body.texts), body.options("texts")
        how = Decoding(**{name: value for name, value in options.items() if name != "align"}).validate()
        hall.check(texts, tokens=how.asked_for, ways=how.ways)
        found = await hall.work(request, served, lambda: Translating(served.model, texts, **options))
        return Answers(model=served.name, answers=[one.to_dict() for one in found])

    @app.post("/generate", summary="What follows prompts.", responses=REFUSALS)
    async def generate(request: Request, body: Generate) -> Answers:
        served, texts, options = hall.find(body.model), _several(body.prompts), body.options("prompts")
        options["stop"] = _several(body.stop or [])
        how = to_generate(**{name: value for name, value in options.items() if name != "max_new_tokens"})
        hall.check([*texts, *options["stop"]], tokens=body.max_new_tokens, ways=how.ways)
        found = await hall.work(request, served, lambda: Generating(served.model, texts, **options))
        return Answers(model=served.name, answers=[one.to_dict() for one in found])

    @app.post("/fill", summary="The likeliest tokens for each [MASK].", responses=REFUSALS)
    async def fill(request: Request, body: Fill) -> Answers:
        return await read(request, body.model, "fill", _several(body.texts), top=body.top)

    @app.post("/classify", summary="A label for each text, pair of texts, or image.", responses=REFUSALS)
    async def classify(request: Request, body: Classify) -> Answers:
        if (body.texts is None) == (body.images is None):
            raise Refused(422, "texts and images: give one of them")
        if body.images is not None:
            return await read(request, body.model, "classify", decoded(body.images))
        given = [one if isinstance(one, str) else tuple(one) for one in _several(body.texts)]
        return await read(request, body.model, "classify", given)

    @app.post("/tag", summary="A tag for each word of sentences.", responses=REFUSALS)
    async def tag(request: Request, body: Tag) -> Answers:
        return await read(request, body.model, "tag", _several(body.sentences))

    @app.post("/embed", summary="A vector for each text.", responses=REFUSALS)
    async def embed(request: Request, body: Embed) -> Vectors:
        served, texts = hall.find(body.model), _several(body.texts)
        hall.check(texts)
        options = {"pool": body.pool, "normalise": body.normalise}
        found = await hall.work(request, served, lambda: Reading(texts, served.model.embed, **options))
        return Vectors(model=served.name, vectors=[vector.tolist() for vector in found])

    @app.post("/caption", summary="What images show, in words.", responses=REFUSALS)
    async def caption(request: Request, body: bodies.Caption) -> Answers:
        options = body.options("images")
        how = Decoding(**options).validate()
        hall.check([], tokens=how.asked_for, ways=how.ways)
        return await read(request, body.model, "caption", decoded(body.images), **options)

    @app.post("/match", summary="How well images fit texts.", responses=REFUSALS)
    async def match(request: Request, body: bodies.Match) -> Answers:
        served, texts = hall.find(body.model), _several(body.texts)
        served.model.check_task("match")
        hall.check([*texts, *body.templates])
        look = views.Looking(
            views.matched, *decoded(body.images), model=served.model, texts=texts, templates=body.templates
        )
        return Answers(model=served.name, answers=await hall.work(request, served, lambda: look))

    @app.post("/draw", summary="Images of texts.", responses=REFUSALS)
    async def draw(request: Request, body: bodies.Draw) -> bodies.Drawings:
        served, texts, options = hall.find(body.model), _several(body.texts), body.options("texts")
        served.model.check_task("draw")
        n = body.n or (8 if body.temperature else 1)
        to_generate(**{**options, "n": n if body.temperature else 1})
        hall.check(texts, ways=n)
        look = views.Looking(views.drawn, *texts, model=served.model, **options)
        return bodies.Drawings(model=served.name, answers=await hall.work(request, served, lambda: look))

    async def read(request: Request, name: str | None, job: str, inputs: list[Any], **options: Any) -> Answers:
        served = hall.find(name)
        served.model.check_task(job)
        views.check_kind(served.model, inputs[0])
        hall.check([text for one in inputs if not isinstance(one, Picture) for text in _several(one)])
        found = await hall.work(request, served, lambda: Reading(inputs, getattr(served.model, job), **options))
        return Answers(model=served.name, answers=[one.to_dict() for one in found])


def _several(given: Any) -> list[Any]:
    return [given] if isinstance(given, str) else list(given)


def decoded(images: Sequence[str]) -> list[Picture]:
    """The images that were sent as base64, each with its name; refused where they are many pixels together."""
    try:
        found = [Picture(f"image {i}", base64.b64decode(one, validate=True)) for i, one in enumerate(images, 1)]
    except (binascii.Error, ValueError):
        raise Refused(422, "images: must be files of images as base64") from None
    if (n := sum(claimed(one.source) for one in found)) > MOST_PIXELS:
        raise Refused(
            413, f"images: have {n:,} pixels, and more than {MOST_PIXELS:,} are refused; send fewer, or smaller"
        )
    return found
