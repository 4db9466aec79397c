"""The command itself: its address, its signals, its mistakes."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from serve.conftest import until

COMMAND = [sys.executable, "-m", "regard", "serve"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read().decode()


def test_sigterm_lets_what_is_in_hand_finish():
    server = subprocess.Popen(
        [*COMMAND, "en-de", "--port", "0"], env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        url = server.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        texts = ["A dog runs through the deep snow behind the old house, and a man looks at it."] * 151
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, f"{url}/translate", {"texts": texts})
            until(lambda: 'regard_batch_size{model="en-de"} 64' in ask(f"{url}/metrics"))
            server.send_signal(signal.SIGTERM)
            until(lambda: refused(url))
            assert len({one["text"] for one in json.loads(answer.result(60))["answers"]}) == 1
        assert server.wait(30) == 0
        assert server.stderr.read() == ""
    finally:
        server.kill()
        server.communicate()


def refused(url):
    try:
        ask(f"{url}/health")
    except (urllib.error.URLError, ConnectionError):
        return True
    return False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nowhere"], "nowhere: no such directory"),
        (["a/tales", "b/tales"], "models (a/tales, b/tales) must have different names"),
        (["en-de", "--port", "70000"], "--port (70000) must be from 0 to 65535"),
        (["en-de", "--queue", "0"], "queue (0) must be at least 1"),
        (["en-de", "--api-key", "ü"], "--api-key: must be letters and digits"),
    ],
)
def test_mistakes(options, message, capsys, monkeypatch):
    _refused(options, message, capsys, monkeypatch)


def test_a_port_that_is_taken(capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        _refused(["en-de", "--port", port], f"--port ({port}): something else listens there", capsys, monkeypatch)


def _refused(options, message, capsys, monkeypatch):
    from regard.cli import main

    monkeypatch.setattr(sys, "argv", ["regard", "serve", *options])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert message in capsys.readouterr().err
