"""Models behind HTTP: serve."""

from __future__ import annotations

from typing import Annotated

import typer

from regard.cli.shared import Device, Int8, Precision, app, given, load
from regard.config import InputError


@app.command()
def serve(
    models: Annotated[
        list[str],
        typer.Argument(help="Run directories, models that come with regard (en-de), or others', one or several."),
    ],
    port: Annotated[int, typer.Option(help="0 is any that is free.")] = 8000,
    host: Annotated[str, typer.Option(help="0.0.0.0 lets everybody in who can reach this machine.")] = "127.0.0.1",
    api_key: Annotated[
        str | None, typer.Option(envvar="REGARD_API_KEY", help="What clients must send: Authorization: Bearer KEY.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Rows to write at once.  [default: 64]")] = None,
    queue: Annotated[int | None, typer.Option(help="Requests that may wait.  [default: 256]")] = None,
    max_body: Annotated[int | None, typer.Option(help="Bytes of a request.  [default: 1 MiB]")] = None,
    max_length: Annotated[int | None, typer.Option(help="Characters of a request.  [default: 20,000]")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds to an answer.  [default: 60]")] = None,
    device: Device = None,
    precision: Precision = None,
    int8: Int8 = False,
) -> None:
    """Serve models over HTTP, each for what it was trained to do; requests are worked on together.

    regard serve en-de --port 8000
    """
    from pathlib import Path

    from regard.serve.limits import Limits

    limits = Limits(**given(batch=batch, queue=queue, body=max_body, characters=max_length, seconds=timeout)).validate()
    names = [Path(name).resolve().name for name in models]
    if len({*names}) < len(names):
        raise InputError(f"models ({', '.join(models)}) must have different names: rename a directory")
    if not 0 <= port < 65_536:
        raise InputError(f"--port ({port}) must be from 0 to 65535")
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key != ""):
        raise InputError("--api-key: must be letters and digits that fit in a header, at least one")
    if port and not _is_free(host, port):
        raise InputError(f"--port ({port}): something else listens there; choose another, or 0 for any that is free")
    try:
        from regard.serve.run import serve as run
    except ModuleNotFoundError as error:
        raise InputError(f"serve needs {error.name}: pip install 'regard[serve]'") from None
    run(
        {name: load(model, device, precision, int8=int8) for name, model in zip(names, models, strict=True)},
        host=host, port=port, limits=limits, api_key=api_key,
    )  # fmt: skip


def _is_free(host: str, port: int) -> bool:
    """Whether one could listen there; an address that cannot be had is the server's to tell."""
    import errno
    import socket

    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return True
    except OSError as error:
        return error.errno != errno.EADDRINUSE
