"""The server process: an address, and signals. After SIGTERM or Ctrl-C nothing new is taken on; what is begun ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Mapping

import uvicorn

from regard.model import Model
from regard.serve.app import create_app
from regard.serve.limits import Limits


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn's own way ends with the signal, not with 0."""

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
    app = create_app(models, limits=limits, api_key=api_key)
    settings = uvicorn.Config(
        app, host=host, port=port, log_level="warning", access_log=False, lifespan="on", server_header=False, ws="none",
        timeout_graceful_shutdown=int(limits.seconds) + 1,
    )  # fmt: skip
    server = _Server(settings)

    async def run() -> None:
        def drain() -> None:
            app.state.hall.draining = True
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, drain)
        await server.serve()

    asyncio.run(run())
    if not server.started:
        sys.exit(1)
