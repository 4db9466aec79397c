"""What is refused, with which code; and that nobody else notices."""

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from serve.conftest import connect, request, serving, until

LONG = {"model": "writer", "prompts": "a", "max_new_tokens": 61, "temperature": 0}


def test_health_metrics_and_description(client):
    assert client.fine("/health")["status"] == "ok"
    client.fine("/tag", {"model": "tagger", "sentences": "a dog"})
    lines = client.fine("/metrics").splitlines()
    assert any(line.startswith('regard_requests_total{endpoint="/tag",status="200"} ') for line in lines)
    assert 'regard_queue_length{model="writer"} 0' in lines
    assert 'regard_batch_size{model="writer"} 0' in lines
    counts = [
        int(line.split()[-1]) for line in lines if line.startswith('regard_request_seconds_bucket{endpoint="/tag"')
    ]
    assert counts == sorted(counts)
    assert counts[-1] > 0
    assert any(line.startswith('regard_tokens_total{model="translator"} ') for line in lines)
    described = client.fine("/openapi.json")
    bodies = described["components"]["schemas"]
    for path in ("/translate", "/generate", "/fill", "/classify", "/tag", "/embed", "/v1/completions"):
        sent = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert bodies[sent.split("/")[-1]]["examples"]
    for path in ("/v1/completions", "/v1/chat/completions"):
        said = described["paths"][path]["post"]["responses"]["200"]["content"]
        assert said.keys() == {"application/json", "text/event-stream"}


NO_CHARACTERS = "".join(map(chr, range(0xFDD0, 0xFDF0)))


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/translate", {"model": "nobody", "texts": "a"}, 404, "model (nobody) is not served here"),
        ("/translate", {"texts": "a"}, 422, "model: several are served; name one of translator, writer"),
        ("/translate", {"model": "translator", "text": "a"}, 422, "texts: field required"),
        ("/translate", {"model": "translator", "texts": []}, 422, "texts ([]): list should have at least 1 item"),
        ("/translate", {"model": "translator", "texts": 5}, 422, "texts (5): input should be a valid string"),
        ("/translate", {"model": "translator", "texts": ["a", 5]}, 422, "texts.1 (5): input should be a valid string"),
        ("/translate", {"model": "translator", "texts": "a", "beam": 17}, 422, "each text is to go on in 17 ways, more than 16; ask for fewer"),
        ("/translate", {"model": "translator", "texts": "a", "beam": 0}, 422, "beam (0): input should be greater than or equal to 1"),
        ("/translate", {"model": "translator", "texts": "a", "beam": 2, "n_best": 3}, 422, "n_best (3) must be at most beam (2)"),
        ("/translate", {"model": "translator", "texts": "a", "seed": 2**31}, 422, "seed (2147483648): input should be less"),
        ("/translate", {"model": "writer", "texts": "a"}, 422, "was trained to generate, not to translate"),
        ("/translate", {"model": "translator", "texts": "a" * 20_001}, 422, "the texts have 20,001 characters, more than 20,000; send fewer at once"),
        ("/generate", {"model": "writer", "prompts": "a", "max_new_tokens": 1_025}, 422, "1,025 tokens are asked for, more than 1,024; ask for fewer"),
        ("/translate", {"model": "translator", "texts": "a", "min_length": 1_025}, 422, "1,025 tokens are asked for, more than 1,024; ask for fewer"),
        ("/generate", {"model": "writer", "prompts": "\ud800"}, 422, ""),
        ("/fill", {"model": "filler", "texts": "a dog"}, 422, "has no [MASK]"),
        ("/fill", {"model": "tagger", "texts": "a [MASK]"}, 422, "was trained to tag, not to fill"),
        ("/classify", {"model": "classifier"}, 422, "texts and images: give one of them"),
        ("/classify", {"model": "classifier", "images": ["§"]}, 422, "images: must be files of images as base64"),
        ("/classify", {"model": "classifier", "texts": [" "]}, 422, "text 1 is empty; give at least one word"),
        ("/v1/completions", {"model": "writer", "prompt": [999]}, 422, "prompt: 999 is not an id of this model"),
        ("/v1/completions", {"model": "writer", "prompt": "a", "stop": ""}, 422, "stop"),
        ("/v1/chat/completions", {"model": "writer", "messages": [{"role": "user", "content": NO_CHARACTERS}]}, 422, "U+FDD0 to U+FDEF"),
        ("/v1/chat/completions", {"model": "translator", "messages": [{"role": "user", "content": "a"}]}, 422, "was trained to translate"),
        ("/nowhere", {}, 404, "POST /nowhere: Not Found; /openapi.json lists what there is"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(client, path, body, status, message):
    got, told, _ = client.refused(path, body)
    assert got == status
    assert message in told


@pytest.mark.parametrize(
    ("raw", "status"),
    [(b"", 422), (b"{", 422), (b"[" * 100_000, 400), (b"\xff\xfe", 422), (b'{"texts": NaN}', 422), (b"7", 422)],
)
def test_what_is_no_json_is_refused(client, raw, status):
    got, told, _ = client.refused("/translate", raw=raw, method="POST")
    assert got == status
    assert "/openapi.json" not in told, "there is such a path"
    assert raw != b"{" or told.startswith("the body is not JSON from character 1 on: ")
    assert client.fine("/health")


def test_one_bad_text_among_others_hurts_only_its_own_request(client, models):
    """They are read together; the one that is wrong is told so, and the others have their answers."""
    bodies = [{"model": "classifier", "texts": [t]} for t in ("a dog", " ", "a cat", "", "two")]
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda body: client.ask("/classify", body), bodies))
    assert [status for status, *_ in answers] == [200, 422, 200, 422, 200]


def test_a_body_that_is_too_large(models):
    with serving({"writer": models["writer"]}, body=101) as client:
        assert client.refused("/generate", {"prompts": "a" * 101})[0] == 413
        assert client.refused("/generate", {"prompts": "a" * 9_999_999}, Connection="close")[0] == 413
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=10)  # without saying how large
        connection.request("POST", "/generate", iter([b"x" * 60, b"x" * 60]), {"Content-Type": "application/json"})
        assert connection.getresponse().status == 413
        connection.close()
        assert client.fine("/generate", {"prompts": "a", "max_new_tokens": 2})


def test_a_key(models):
    with serving({"writer": models["writer"]}, api_key="sesame-17") as client:
        body = {"prompts": "a", "max_new_tokens": 2}
        for told in ({}, {"Authorization": "Bearer sesame-1"}, {"Authorization": "sesame-17"}):
            status, message, headers = client.refused("/generate", body, **told)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert "Authorization: Bearer KEY" in message
        assert client.refused("/generate", {"prompts": "a" * 9_999_999}, Connection="close")[0] == 401
        assert client.ask("/generate", body, Authorization="Bearer sesame-17")[0] == 200
        assert client.ask("/metrics")[0] == 401
        assert client.ask("/health")[0] == 200


def test_a_full_queue_a_timeout_and_a_server_that_stops(models, gate):
    with serving({"writer": models["writer"]}, batch=1, queue=2, seconds=2.0) as client, ThreadPoolExecutor(4) as pool:
        engine = client.hall.served["writer"].engine
        first = pool.submit(client.ask, "/generate", LONG)
        assert gate.reached.wait(20)
        others = [pool.submit(client.ask, "/generate", LONG) for _ in range(2)]
        until(lambda: engine.waiting == 2)
        status, message, headers = client.refused("/generate", LONG)
        assert (status, headers["Retry-After"]) == (429, "1")
        assert message == "2 requests wait, and no more than 2 may; try again soon"
        assert "regard_queue_length" in client.fine("/metrics")
        status, _, answer = first.result(20)
        assert status == 504
        assert answer["error"]["message"].startswith("no answer within 2 seconds; ask for less")
        assert {one.result(20)[0] for one in others} == {504}
        gate.open.set()
        until(lambda: engine.working == engine.waiting == 0)
        client.hall.draining = True
        status, _, headers = client.refused("/generate", LONG)
        assert (status, headers["Retry-After"]) == (503, "1")
        assert client.ask("/health")[0] == 503


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", LONG),
        ("/v1/completions", {"model": "writer", "prompt": "a", "max_tokens": 61, "temperature": 0, "stream": True}),
    ],
)
def test_a_client_that_goes_away_frees_its_row(models, gate, path, body):
    with serving({"writer": models["writer"]}, batch=1) as client, ThreadPoolExecutor(1) as pool:
        engine = client.hall.served["writer"].engine
        gone = connect(client, request(path, body))
        assert gate.reached.wait(20)
        other = pool.submit(client.ask, "/generate", {**LONG, "max_new_tokens": 3})
        until(lambda: engine.waiting == 1)  # the only place is taken
        [(_, rows)] = engine.running.values()
        [row] = rows.values()
        gone.close()
        until(lambda: row.job.cancelled)
        gate.open.set()
        assert other.result(20)[0] == 200
        assert engine.n_written < 61  # what nobody waited for was not written to its end


def test_a_long_text_does_not_make_others_wait_for_all_of_it(models, gate):
    """Rows are taken from each request in turn."""
    with serving({"translator": models["translator"]}, batch=2) as client, ThreadPoolExecutor(2) as pool:
        long = pool.submit(client.ask, "/translate", {"texts": ["a dog runs."] * 17, "max_length": 5})
        assert gate.reached.wait(20)
        short = pool.submit(client.ask, "/translate", {"texts": "a cat.", "max_length": 5})
        until(lambda: client.hall.served["translator"].engine.waiting == 2)
        gate.open.set()
        assert short.result(20)[0] == 200
        assert not long.done()
        assert long.result(20)[0] == 200


def test_a_mistake_of_ours_is_told_to_those_in_hand_and_no_one_else(models, monkeypatch):
    with serving({"writer": models["writer"]}) as client:
        with monkeypatch.context() as broken:
            broken.setattr("regard.decode.search.Search.step", lambda self: 1 / 0)
            status, message, _ = client.refused("/generate", LONG)
            assert (status, message) == (500, "a mistake of the server's; see its log")
        assert client.ask("/generate", LONG)[0] == 200
        assert threading.active_count() < 99
