"""The application: models by name, each with its engine; keys, limits, errors, health and metrics.

Every refusal has one shape, the one OpenAI's clients read: ``{"error": {"message": ...}}``. No text of a user's is ever
put into HTML here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard import __version__
from regard.decode.chat import Chat
from regard.model import Model
from regard.schema import InputError, RegardError, suggest
from regard.serve import views
from regard.serve.bodies import Refusal
from regard.serve.engine import Closing, Engine, Full
from regard.serve.jobs import Job
from regard.serve.limits import Limits
from regard.serve.metrics import Metrics

RETRY_AFTER = "1"  # seconds
CODES = {400: "not JSON", 401: "no key", 404: "no such model", 408: "too slow", 413: "too large", 422: "not valid",
         429: "too many wait", 503: "stopping", 504: "took too long"}  # fmt: skip
REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": Refusal, "description": told} for code, told in CODES.items()
}


class Refused(Exception):
    """A request that is answered with a status code and one line."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.code = status, code


def refusal(status: int, message: str, code: str | None = None) -> JSONResponse:
    headers = {"Retry-After": RETRY_AFTER} if status in (429, 503) else {}
    headers |= {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    headers |= {"Connection": "close"} if status == 408 else {}
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = code or CODES.get(status, "error").replace(" ", "_")
    error = {"message": message, "type": kind, "code": code, "param": None}
    return JSONResponse({"error": error}, status, headers)


def _refused_outside(request: Request, error: HTTPException) -> JSONResponse:
    """What starlette and FastAPI refuse by themselves: a path, or a method, that there is not, and what they cannot
    read."""
    if error.status_code not in (404, 405):
        return refusal(error.status_code, str(error.detail))
    said = f"{request.method} {_short(request.url.path)}: {error.detail}; /openapi.json lists what there is"
    return refusal(error.status_code, said, code="no_such_path")


class Served:
    """A model being served."""

    def __init__(self, name: str, model: Model, limits: Limits):
        self.name, self.model, self.engine = name, model, Engine(model, limits)
        self.created = int(time.time())
        self.chat: Chat | None = None
        if model.task == "generate":
            try:
                self.chat = Chat(model)
            except InputError as error:
                self.no_chat = str(error)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What it is, for who looks at it."""
        return views.facts(self.model)


class Hall:
    """What the endpoints share: the models and the limits."""

    def __init__(self, models: Mapping[str, Model], limits: Limits):
        self.limits = limits.validate()
        self.served = {name: Served(name, model, limits) for name, model in models.items()}
        self.metrics = Metrics()
        self.draining = False

    def find(self, name: str | None) -> Served:
        """The model that a request names, or the only one."""
        if name is None and len(self.served) == 1:
            return next(iter(self.served.values()))
        if name is None:
            raise Refused(422, f"model: several are served; name one of {', '.join(self.served)}")
        if name not in self.served:
            raise Refused(404, f"model ({_short(name)}) is not served here; {suggest(name[:99], list(self.served))}")
        return self.served[name]

    def check(self, texts: list[str], *, tokens: int | None = None, ways: int | None = None) -> None:
        """Refuse what is longer than a request may be."""
        n, limits = sum(map(len, texts)), self.limits
        if n > limits.characters:
            raise Refused(422, f"the texts have {n:,} characters, more than {limits.characters:,}; send fewer at once")
        if tokens is not None and tokens > limits.tokens:
            raise Refused(422, f"{tokens:,} tokens are asked for, more than {limits.tokens:,}; ask for fewer")
        if ways is not None and ways > limits.ways:
            raise Refused(422, f"each text is to go on in {ways} ways, more than {limits.ways}; ask for fewer")
        for text in texts:
            if any("\ud800" <= c <= "\udfff" for c in text):
                raise Refused(422, "a text has half of a character in it (a lone surrogate); send valid Unicode")

    async def work(self, request: Request, served: Served, make: Callable[[], Job]) -> Any:
        """Make a job, hand it in, and wait for its answer."""
        return await self.answer(request, await self.begin(served, make))

    async def answer(self, request: Request, job: Job) -> Any:
        """A job's answer, as long as the client waits for it and there is time."""
        gone = asyncio.create_task(left(request))
        try:
            await asyncio.wait({job.answer, gone}, timeout=self.limits.seconds, return_when="FIRST_COMPLETED")
            if job.answer.done():
                return job.answer.result()
            if gone.done():
                raise Refused(499, "the client has gone")
            raise Refused(504, f"no answer within {self.limits.seconds:g} seconds; ask for less, or try again later")
        finally:
            job.cancel()
            gone.cancel()

    async def begin(self, served: Served, make: Callable[[], Job]) -> Job:
        if self.draining:
            raise Closing("the server is stopping; ask another, or try again soon")
        job = await asyncio.to_thread(make)  # it reads the texts, which may be long
        served.engine.submit(job)
        return job


async def left(request: Request) -> None:
    """Returns when a client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def create_app(models: Mapping[str, Model], *, limits: Limits = Limits(), api_key: str | None = None) -> FastAPI:
    """The application that serves models by name.

    >>> from regard import Model, Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_decoder"}, vocab_size=len(tokens))
    >>> app = create_app({"mine": Model(Transformer(config), "generate", tokens)})
    >>> "/v1/completions" in app.openapi()["paths"]
    True
    """
    from regard.serve import jobs_api, look_api, openai, page_api

    hall = Hall(models, limits)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        hall.draining = True
        for served in hall.served.values():
            await asyncio.to_thread(served.engine.close)

    app = FastAPI(
        title="regard",
        version=__version__,
        description="Models of regard: a JSON endpoint for each job, and two as OpenAI's clients expect them.",
        lifespan=life,
        docs_url=None,  # both fetch scripts from elsewhere
        redoc_url=None,
    )
    app.state.hall = hall
    jobs_api.add(app, hall)
    openai.add(app, hall)
    look_api.add(app, hall)
    page_api.add(app)

    @app.get("/health", summary="Whether requests are taken on.", responses={503: REFUSALS[503]})
    async def health() -> dict[str, Any]:
        if hall.draining:
            raise Closing("the server is stopping")
        return {"status": "ok", "models": list(hall.served)}

    @app.get("/metrics", summary="What happened, for Prometheus.", response_class=PlainTextResponse)
    async def metrics() -> str:
        return hall.metrics.text(
            {
                name: {
                    "regard_queue_length": ("gauge", served.engine.waiting),
                    "regard_batch_size": ("gauge", served.engine.working),
                    "regard_tokens_total": ("counter", served.engine.n_written),
                }
                for name, served in hall.served.items()
            }
        )

    app.add_exception_handler(Refused, lambda request, e: refusal(e.status, str(e), e.code))  # type: ignore[attr-defined]
    app.add_exception_handler(Full, lambda request, e: refusal(429, str(e)))
    app.add_exception_handler(Closing, lambda request, e: refusal(503, str(e)))
    app.add_exception_handler(RegardError, lambda request, e: refusal(422, "; ".join(str(e).splitlines())))
    app.add_exception_handler(RequestValidationError, lambda request, e: refusal(422, _problems(e)))  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _refused_outside)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, lambda request, e: refusal(500, "a mistake of the server's; see its log"))
    app.add_middleware(Gate, hall=hall, api_key=api_key)
    return app


class Gate:
    """What every request passes: the key, the size and pace of its body, and the clock."""

    def __init__(self, app: ASGIApp, hall: Hall, api_key: str | None):
        self.app, self.hall, self.key = app, hall, api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begun, status, more = time.perf_counter(), 500, True

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def heard() -> Message:
            nonlocal more
            message = await receive()
            more = message.get("more_body", False)
            return message

        async def lingering(message: Message) -> None:
            """Answer, and hear the rest: a connection that is closed while something comes takes its answer back."""
            if message["type"] == "http.response.body" and more:
                await noted({**message, "more_body": True})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.hall.limits.seconds):
                        while more:
                            await heard()
                message = {"type": "http.response.body"}
            await noted(message)

        try:
            try:
                self._check_key(scope)
                whole = await self._body(scope, heard)
            except Refused as no:
                await refusal(no.status, str(no))(scope, heard, noted if no.status == 408 else lingering)
            else:
                await self.app(scope, whole, noted)
        finally:
            route = scope.get("route")
            self.hall.metrics.count(getattr(route, "path", "other"), status, time.perf_counter() - begun)

    def _check_key(self, scope: Scope) -> None:
        open = scope["path"] in ("/", "/health") or scope["path"].startswith("/page/")  # nothing of a model's
        if self.key is None or open:
            return
        told = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(told, b"Bearer " + self.key.encode()):
            raise Refused(401, "this server wants a key; send the header Authorization: Bearer KEY")

    async def _body(self, scope: Scope, receive: Receive) -> Receive:
        """The whole body, no longer and no slower than it may be; then what else the client says."""
        most, body, more = self.hall.limits.body, bytearray(), True
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if told.isdigit() and int(told) > most:
            raise Refused(413, f"the body has {int(told):,} bytes, more than {most:,}; send less at once")
        try:
            async with asyncio.timeout(self.hall.limits.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(499, "the client has gone")
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > most:
                        raise Refused(413, f"the body has more than {most:,} bytes; send less at once")
        except TimeoutError:
            raise Refused(408, f"the body did not come within {self.hall.limits.seconds:g} seconds") from None
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return replay


def _problems(error: RequestValidationError) -> str:
    """The first thing that is wrong with a body, in one line."""

    def place(one: Any) -> list[int | str]:
        return [*_place(one["loc"][1:], error.body, missing=one["type"] == "missing")]

    # Of a value that may be of several kinds, what is wrong with the kind that it is, before that it is no other kind.
    first = max(error.errors(), key=lambda one: (not one["type"].endswith("_type"), len(place(one))))
    if first["type"] == "model_attributes_type" and first["loc"] == ("body",):
        return "the body must be a JSON object, sent with the header Content-Type: application/json"
    if first["type"] == "json_invalid":
        return f"the body is not JSON from character {first['loc'][-1]} on: {first['ctx']['error']}"
    where = ".".join(map(str, place(first)))
    given = "" if first["type"] == "missing" or not where else f" ({_short(repr(first['input']))})"
    return f"{where or 'the body'}{given}: {first['msg'][:1].lower()}{first['msg'][1:]}"


def _place(parts: Sequence[int | str], body: Any, *, missing: bool) -> Iterator[int | str]:
    """The keys and numbers that lead to a value, without the names that pydantic has for kinds of it."""
    for i, part in enumerate(parts):
        if (isinstance(body, dict) and part in body) or (isinstance(body, list) and isinstance(part, int)):
            body = body[part]  # type: ignore[index]
            yield part
        elif missing and i == len(parts) - 1:
            yield part


def _short(text: str, most: int = 40) -> str:
    plain = text.encode("utf-8", "replace").decode()
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"
