"""/v1/models, /v1/completions and /v1/chat/completions, in the shape that OpenAI's clients expect.

What is left out has regard's own default, temperature and seed included: a prompt that is sent twice has one answer. A
stream is server-sent events, a piece of text each, and ``[DONE]`` in the end.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from regard.decode import chat as chats
from regard.decode import generate as generation
from regard.decode.settings import to_generate
from regard.model import Model
from regard.serve.app import REFUSALS, Hall, Refused, Served, left
from regard.serve.bodies import ChatCompletion, Completion, OpenAI
from regard.serve.jobs import Generating, Piece

# What would change an answer if it were served; what is not here and not known changes nothing.
NOT_SERVED = (
    "audio", "best_of", "echo", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
    "modalities", "presence_penalty", "response_format", "suffix", "tool_choice", "tools", "top_logprobs",
)  # fmt: skip
NOTHING = (None, False, 0, "", [], {})
SAYS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer whole; with stream, its pieces as server-sent events.",
        "content": {"application/json": {}, "text/event-stream": {}},
    },
    **REFUSALS,
}


def add(app: FastAPI, hall: Hall) -> None:
    """Put the endpoints into an application."""

    @app.get("/v1/models", summary="The models being served.")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_about(served) for served in hall.served.values()]}

    @app.get("/v1/models/{name:path}", summary="One of them.", responses={404: REFUSALS[404]})
    async def model(name: str) -> dict[str, Any]:
        return _about(hall.find(name))

    @app.post("/v1/completions", summary="What follows a prompt.", responses=SAYS)
    async def completions(request: Request, body: Completion) -> Any:
        served = _check(hall, body)
        prompts = _prompts(body.prompt)
        _check_ids(served.model, prompts)
        tokens = generation.MAX_NEW_TOKENS if body.max_tokens is None else body.max_tokens
        return await _answer(hall, request, served, served.model, body, prompts, tokens, chat=False)

    @app.post("/v1/chat/completions", summary="The answer in a conversation.", responses=SAYS)
    async def chat_completions(request: Request, body: ChatCompletion) -> Any:
        served = _check(hall, body)
        served.model.check_task("generate")
        if served.chat is None:
            raise Refused(422, served.no_chat)
        talk, messages = served.chat, [message.turn() for message in body.messages]
        hall.check([message["content"] for message in messages])
        tokens = body.max_completion_tokens or body.max_tokens or min(chats.MAX_NEW_TOKENS, hall.limits.tokens)
        ids, _ = await asyncio.to_thread(talk.fitting, messages, tokens)
        return await _answer(hall, request, served, talk.model, body, [ids], tokens, chat=True)


def _about(served: Served) -> dict[str, Any]:
    return {"id": served.name, "object": "model", "created": served.created, "owned_by": "regard"}


def _check(hall: Hall, body: OpenAI) -> Served:
    for name, value in (body.model_extra or {}).items():
        if name in NOT_SERVED and value not in NOTHING:
            raise Refused(422, f"{name}: is not served here; leave it out")
    return hall.find(body.model)


def _prompts(given: Any) -> list[generation.Prompt]:
    return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)


def _check_ids(model: Model, prompts: Sequence[generation.Prompt]) -> None:
    known = len(model.tokenizer) if model.has_tokenizer else 0
    for prompt in prompts:
        for id in () if isinstance(prompt, str) else prompt:
            if not 0 <= id < known:
                raise Refused(422, f"prompt: {id} is not an id of this model, which has {known:,}")


async def _answer(
    hall: Hall,
    request: Request,
    served: Served,
    model: Model,
    body: OpenAI,
    prompts: list[generation.Prompt],
    tokens: int,
    *,
    chat: bool,
) -> Any:
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    options = {"stop": stop, **body.options()}
    how = to_generate(**options)
    hall.check([*(p for p in prompts if isinstance(p, str)), *stop], tokens=tokens, ways=how.ways)
    if sum(len(p) for p in prompts if not isinstance(p, str)) > hall.limits.characters:
        raise Refused(422, f"the prompts have more than {hall.limits.characters:,} tokens; send fewer at once")
    form = _Form(served.name, how.n_best, chat)
    events: asyncio.Queue[Piece] = asyncio.Queue()
    if body.stream:
        options["show"] = events.put_nowait
    job = await hall.begin(served, lambda: Generating(model, prompts, max_new_tokens=tokens, **options))
    assert isinstance(job, Generating)
    if body.stream:
        usage = bool((body.stream_options or {}).get("include_usage"))
        return StreamingResponse(_stream(hall, request, job, events, form, usage), media_type="text/event-stream")
    found = await hall.answer(request, job)
    return JSONResponse(form.whole(job, found))


async def _stream(
    hall: Hall, request: Request, job: Generating, events: asyncio.Queue[Piece], form: _Form, usage: bool
) -> AsyncIterator[str]:
    """A piece of text an event, as it is written."""
    sent = [[0] * form.n for _ in job.given]
    deadline, gone = time.monotonic() + hall.limits.seconds, asyncio.create_task(left(request))
    wanted: asyncio.Future[Piece] | None = None
    try:
        for i in range(len(job.given) * form.n if form.chat else 0):
            yield form.event(i, "", first=True)
        while not job.answer.done() or not events.empty():
            wanted = asyncio.ensure_future(events.get())
            await asyncio.wait(
                {wanted, job.answer, gone}, timeout=deadline - time.monotonic(), return_when="FIRST_COMPLETED"
            )
            if wanted.done():
                piece = wanted.result()
                sent[piece.prompt][piece.sample] += len(piece.text)
                yield form.event(piece.prompt * form.n + piece.sample, piece.text)
                continue
            wanted.cancel()
            if gone.done():
                return
            if not job.answer.done():
                yield form.error(f"no whole answer within {hall.limits.seconds:g} seconds")
                return
        if (problem := job.answer.exception()) is not None:
            yield form.error(str(problem))
            return
        found = job.answer.result()
        for prompt, one in enumerate(found):
            for sample, said in enumerate((one, *one.others)):
                i, rest = prompt * form.n + sample, said.text[sent[prompt][sample] :]
                if rest:
                    yield form.event(i, rest)
                yield form.event(i, "", finish=_finish(said))
        if usage:
            yield form.said(choices=[], usage=_usage(job, found))
        yield "data: [DONE]\n\n"
    finally:
        job.cancel()
        gone.cancel()
        if wanted is not None:
            wanted.cancel()


class _Form:
    """How an answer is written down, whole or in events."""

    def __init__(self, model: str, n: int, chat: bool):
        self.n, self.chat = n, chat
        self.kind = "chat.completion" if chat else "text_completion"
        self.head = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}", "created": int(time.time())}
        self.head["model"] = model

    def whole(self, job: Generating, found: list[generation.Generation]) -> dict[str, Any]:
        choices = []
        for said in (said for one in found for said in (one, *one.others)):
            text = {"message": {"role": "assistant", "content": said.text}} if self.chat else {"text": said.text}
            choices.append({"index": len(choices), **text, "logprobs": None, "finish_reason": _finish(said)})
        return {**self.head, "object": self.kind, "choices": choices, "usage": _usage(job, found)}

    def event(self, index: int, text: str, *, first: bool = False, finish: str | None = None) -> str:
        said: dict[str, Any] = {"text": text}
        if self.chat:
            said = {"delta": {"role": "assistant", "content": ""} if first else {"content": text} if text else {}}
        return self.said(choices=[{"index": index, **said, "logprobs": None, "finish_reason": finish}])

    def said(self, **what: Any) -> str:
        kind = "chat.completion.chunk" if self.chat else self.kind
        return f"data: {json.dumps({**self.head, 'object': kind, **what}, ensure_ascii=False)}\n\n"

    def error(self, message: str) -> str:
        return f"data: {json.dumps({'error': {'message': message, 'type': 'server_error', 'code': None}})}\n\n"


def _finish(said: generation.Generation) -> str:
    return "length" if said.finish == "length" else "stop"


def _usage(job: Generating, found: list[generation.Generation]) -> dict[str, int]:
    read = sum(len(one.ids) for one in job.given)
    wrote = sum(len(said.tokens) for one in found for said in (one, *one.others))
    return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
