"""The server process: an address, signals, and clients that keep it waiting. After SIGTERM or Ctrl-C nothing new is
taken on; what is begun ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import uvicorn
from fastapi import FastAPI

from regard.model import Model
from regard.serve.app import Hall, create_app
from regard.serve.limits import Limits


class Server(uvicorn.Server):
    """uvicorn's, with two differences. Signals are left to us: its own way ends with the signal, not with 0. And no
    client is waited for without end; it closes a connection by itself only where nothing at all comes after an answer.
    """

    def __init__(self, app: FastAPI, *, host: str = "127.0.0.1", port: int = 0):
        self.hall: Hall = app.state.hall
        self.limits = self.hall.limits
        self.awaited: dict[tuple[Any, ...], float] = {}  # what clients are to do, and since when
        settings = uvicorn.Config(
            app, host=host, port=port, log_level="warning", access_log=False, lifespan="on", server_header=False,
            http="h11", ws="none", timeout_graceful_shutdown=int(self.limits.seconds) + 1,
        )  # fmt: skip
        super().__init__(settings)

    @contextlib.contextmanager
    def capture_signals(self):
        yield

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets=sockets)
        for server in self.servers:
            for socket in server.sockets:
                host, port, *_ = socket.getsockname()
                host = f"[{host}]" if ":" in host else host
                print(f"http://{host}:{port}", flush=True)
        if sys.stderr.isatty():
            print(f"serving {', '.join(self.hall.served)}; Ctrl-C stops, after what is begun", file=sys.stderr)

    def drain(self) -> None:
        """Take on nothing new, and end when all is done."""
        self.hall.draining = self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        self._close_late()
        return await super().on_tick(counter)

    def _close_late(self) -> None:
        """Close connections whose clients take too long; and where too many are waited for, the longest."""
        now = time.monotonic()
        awaited = filter(None, map(_awaited, self.server_state.connections))
        self.awaited = {what: self.awaited.get(what, now) for what in awaited}
        too_many = len(self.awaited) - self.limits.connections
        for i, (what, since) in enumerate(sorted(self.awaited.items(), key=lambda item: item[1])):
            if (i < too_many and since < now) or now - since > self.limits.seconds:
                what[0].transport.abort()  # to close it would wait until all is read


def _awaited(connection: Any) -> tuple[Any, ...] | None:
    """What a client is to do next, equal as long as it is the same: ask, send the rest of its body, read the answer.
    None where it waits for us."""
    request, unread = connection.cycle, connection.transport.get_write_buffer_size() > 0
    if request is None:
        return connection, unread
    if unread or request.more_body or request.response_complete:
        return connection, request, request.more_body, request.response_complete, unread
    return None


def serve(
    models: Mapping[str, Model],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits = Limits(),
    api_key: str | None = None,
) -> None:
    """Serve models by name until a signal comes. Prints the address when it is ready."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a client that goes away is no reason to end
    server = Server(create_app(models, limits=limits, api_key=api_key), host=host, port=port)

    async def run() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.drain)
        await server.serve()

    asyncio.run(run())
    if not server.started:
        sys.exit(1)
