"""The page at /: a few files as they lie in page/, with headers that let it fetch nothing from elsewhere.

They hold nothing of a model's and need no key; what the page shows it asks of the other endpoints, as any client does.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

from fastapi import FastAPI, Request, Response

from regard.serve.app import Refused

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
SHARED = ("stepper.js", "stepper.css")
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # kept, and asked about each time: a 304 is cheap, and a new version is seen at once
}


class Asset:
    """A file of the page, and what tells it from another version of itself."""

    def __init__(self, name: str, data: bytes):
        self.data, self.type = data, TYPES[name[name.rindex(".") :]]
        self.tag = f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'

    def answer(self, request: Request) -> Response:
        headers = {**HEADERS, "ETag": self.tag}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if self.tag in known:
            return Response(status_code=304, headers=headers)
        return Response(self.data, media_type=self.type, headers=headers)


def assets() -> dict[str, Asset]:
    """The files of the page by their names: its own, and those that it shares with a report of its kind."""
    found = [file for file in (files("regard.serve") / "page").iterdir() if file.name.endswith(tuple(TYPES))]
    found += [files("regard.look") / "assets" / name for name in SHARED]
    return {file.name: Asset(file.name, file.read_bytes()) for file in found}


def add(app: FastAPI) -> None:
    """Put the page into an application."""
    known = assets()

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        return known["index.html"].answer(request)

    @app.api_route("/page/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def asset(request: Request, name: str) -> Response:
        if name not in known:
            raise Refused(404, "the page has no such file", code="no_such_path")
        return known[name].answer(request)
