"""Small models of every task behind a real server, in this process."""

import contextlib
import http.client
import json
import signal
import socket
import threading

import pytest
import torch

pytest.importorskip("fastapi", reason="serve is not installed")
from regard import Model, Transformer, recipe
from regard.data.tokenizer import Tokenizer
from regard.decode.search import Search
from regard.serve.app import create_app
from regard.serve.limits import Limits
from regard.serve.run import Server
from toy import sentences

TOKENS = Tokenizer.train([*sentences(97, seed=1), "."], recipe.Tokenizer(kind="characters"))
LONGER = {"max_len": 97}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


def make(task: str, table: dict, **options) -> Model:
    torch.manual_seed(7)
    sizes = {"n_labels": len(options["labels"])} if "labels" in options else {}
    net = Transformer(recipe.model_config(table, vocab_size=len(TOKENS), **sizes))
    for parameter in net.parameters():  # sure enough of itself that no two tokens are equally likely
        parameter.data.mul_(1.7)
    return Model(net.requires_grad_(False), task, TOKENS, **options)


@pytest.fixture(scope="package")
def models() -> dict[str, Model]:
    both = {"encoder": LONGER, "decoder": LONGER}
    return {
        "translator": make("translate", {"preset": "tiny_encoder_decoder", **both}, longest=61),
        "writer": make("generate", {"preset": "tiny_decoder", "decoder": LONGER}, chat_template=TEMPLATE),
        "filler": make("fill", {"preset": "tiny_encoder", "encoder": LONGER}),
        "classifier": make(
            "classify",
            {"preset": "tiny_encoder", "head": {"kind": "pooled"}, "encoder": LONGER},
            labels=["no", "yes", "so"],
        ),
        "tagger": make("tag", {"preset": "tiny_tagger", "encoder": LONGER}, labels=["B-DOG", "I-DOG", "O"]),
    }


class Client:
    """Asks a server; a connection each time."""

    def __init__(self, port: int):
        self.port = port

    def ask(self, path, body=None, method=None, raw=None, **headers):
        """Status, headers and the answer, which is JSON unless it says otherwise."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            data = raw if raw is not None else None if body is None else json.dumps(body).encode()
            told = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
            connection.request(method or ("GET" if data is None else "POST"), path, data, told)
            response = connection.getresponse()
            text = response.read().decode()
            is_json = response.headers["content-type"] == "application/json"
            return response.status, response.headers, json.loads(text) if is_json else text

    def fine(self, path, body=None):
        status, _, answer = self.ask(path, body)
        assert status == 200, answer
        return answer

    def refused(self, path, body=None, **how):
        status, headers, answer = self.ask(path, body, **how)
        assert "\n" not in answer["error"]["message"]
        return status, answer["error"]["message"], headers


def request(path, body) -> bytes:
    """A request as it is sent."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def connect(client, sent=b"") -> socket.socket:
    """A connection of its own on which something is sent, and nothing read."""
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=30)
    connection.sendall(sent)
    return connection


@contextlib.contextmanager
def serving(models, *, api_key=None, **limits):
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as serve does; a test that called a command has it end a process
    app = create_app(models, limits=Limits(**limits), api_key=api_key)
    server = Server(app)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        threading.Event().wait(0.01)
    client = Client(server.servers[0].sockets[0].getsockname()[1])
    client.hall = app.state.hall
    client.connections = server.server_state.connections
    try:
        yield client
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="package")
def client(models):
    with serving(models) as client:
        yield client


class Gate:
    """Holds every search before its next step, until it is opened."""

    def __init__(self):
        self.open, self.reached = threading.Event(), threading.Event()


@pytest.fixture
def gate(monkeypatch):
    gate, step = Gate(), Search.step

    def held(self):
        gate.reached.set()
        assert gate.open.wait(30)
        step(self)

    monkeypatch.setattr(Search, "step", held)
    yield gate
    gate.open.set()


def until(what, seconds=20.0):
    """Wait until something is so."""
    for _ in range(int(seconds * 100)):
        if what():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never was so")
