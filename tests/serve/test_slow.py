"""Clients that keep a server waiting, or go away in the middle: they are not waited for, and nobody else notices."""

import contextlib
import gc
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from serve.conftest import connect, request, serving, until

ASK = {"prompts": "a", "max_new_tokens": 7, "temperature": 0}
HEAD = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 997\r\n\r\n"


@pytest.fixture(scope="module")
def hasty(models):
    """A server that waits for nobody longer than a moment."""
    with serving({"writer": models["writer"]}, seconds=2.0, connections=211) as client:
        yield client


@pytest.fixture
def fine(hasty, models):
    """Whether others are answered."""
    [wanted] = models["writer"].generate("a", max_new_tokens=7, temperature=0)
    return lambda: hasty.fine("/generate", ASK)["answers"][0]["text"] == wanted.text


def end_of(connection: socket.socket) -> bytes:
    """All that still comes on a connection, until the other side ends it."""
    came = b""
    with contextlib.suppress(ConnectionError):
        while some := connection.recv(65_536):
            came += some
    return came


def drip(connection: socket.socket, text: bytes) -> None:
    """Send a text a byte at a time, over and over, for as long as it is taken."""
    with contextlib.suppress(OSError):
        while True:
            for byte in text:
                connection.sendall(bytes([byte]))
                threading.Event().wait(0.02)


def test_a_request_that_comes_a_byte_at_a_time_is_not_waited_for(hasty, fine):
    """Its first line, its head, its body, what is left of one that is too large, the second on a connection."""
    slow = [
        (b"", b"GET /health HTTP/1.1 ", b""),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n", b"X-And-So-On: x\r\n", b""),
        (HEAD, b" ", b"HTTP/1.1 408 "),
        (HEAD.replace(b"Content-Length: 997", b"Transfer-Encoding: chunked"), b"1\r\n \r\n", b"HTTP/1.1 408 "),
        (HEAD.replace(b"997", b"9999999"), b" ", b"HTTP/1.1 413 "),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /health HTTP/1.1 ", b"HTTP/1.1 200 "),
    ]
    with ThreadPoolExecutor(len(slow)) as pool, contextlib.ExitStack() as after:
        held = [after.enter_context(connect(hasty, first)) for first, *_ in slow]
        for connection, (_, then, _) in zip(held, slow, strict=True):
            pool.submit(drip, connection, then)
        assert fine()
        for connection, (*_, answer) in zip(held, slow, strict=True):
            assert end_of(connection)[: len(answer) or None] == answer
    assert fine()


def test_five_hundred_that_say_nothing(hasty, fine):
    """More than a server waits for: the longest are closed at once, the others in time."""
    with contextlib.ExitStack() as after:
        silent = [after.enter_context(connect(hasty)) for _ in range(500)]
        assert fine()
        until(lambda: len(hasty.connections) <= 211)
        assert fine()
        assert {end_of(connection) for connection in silent} == {b""}


def test_one_that_never_reads_its_answers(hasty, fine):
    """It asks for one after another; what has gone out is dropped in the end, with its connection."""
    many = request(
        "/v1/completions", {"model": "writer", "prompt": ["a"] * 16, "n": 4, "max_tokens": 31, "stream": True}
    )
    asks = many, b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    held = [socket.socket() for _ in asks]
    for connection, ask in zip(held, asks, strict=True):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", hasty.port))
        connection.sendall(ask * 211)
    ports = {connection.getsockname()[1] for connection in held}

    def open_ones():
        return ports & {one.client[1] for one in list(hasty.connections)}

    until(lambda: open_ones() == ports)
    assert fine()
    until(lambda: not open_ones())
    until(lambda: hasty.hall.served["writer"].engine.working == 0)
    assert fine()
    for connection in held:
        connection.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /gen",
        HEAD,
        HEAD + b'{"prompts": "a"}',  # whole by itself, and not what was promised
        request("/generate", ASK),
        request("/v1/completions", {"model": "writer", "prompt": "a", "max_tokens": 61, "stream": True}),
        b"\x16\x03\x01nonsense\r\n\r\n",
        HEAD.replace(b"997", b"-7"),
        HEAD.replace(b"997", b"9" * 5_000),
        b"GET /health HTTP/1.1\r\nX: " + b"x" * 70_000,
    ],
)
def test_one_that_goes_away(hasty, fine, sent, caplog):
    for reset in (False, True):
        connection = connect(hasty, sent)
        if reset:  # at once, without a word of farewell
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    assert fine()
    until(lambda: not hasty.connections)
    assert not [key for key in hasty.hall.metrics.requests if key[1] >= 500]
    gc.collect()
    assert "Task" not in caplog.text, "none is left behind"


def test_a_body_in_many_pieces_is_put_together(models):
    """And is answered, for it came in time."""
    with serving({"writer": models["writer"]}) as client:
        connection = connect(client)
        for byte in request("/generate", ASK).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"):
            connection.sendall(bytes([byte]))
        assert end_of(connection).startswith(b"HTTP/1.1 200 ")
        connection.close()
