"""What takes longer: every endpoint against its own description, and memory over thousands of requests."""

import gc
import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from serve.conftest import connect, request, serving

pytestmark = pytest.mark.slow


def test_the_description_says_what_is_so(models):
    """Requests made from the OpenAPI description, valid and not: no answer that it does not tell of, and never a 500."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    with serving(models, seconds=20.0) as client:
        schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{client.port}/openapi.json")
        tried = set()
        for found in schema.get_all_operations():
            operation = found.ok()

            @settings(
                max_examples=61, deadline=None, database=None, derandomize=True,
                phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=operation.as_strategy())
            def one(case):
                if isinstance(case.body, dict):  # any number is a valid model's name, and those served are few
                    case.body["model"] = random.Random(str(case.body)).choice([*models, "nobody"])
                # What is valid by itself may not be together (a beam and a temperature), or not for this model.
                case.call_and_validate(excluded_checks=[positive_data_acceptance])

            one()
            tried.add(operation.path)
        assert {"/translate", "/generate", "/v1/completions", "/v1/chat/completions", "/health"} <= tried
        assert not [key for key in client.hall.metrics.requests if key[1] >= 500]


def test_memory_stays_as_it_is(models):
    """Thousands of tiny requests: what Python holds afterwards is what it held before."""
    with serving({"writer": models["writer"]}) as client, ThreadPoolExecutor(8) as pool:

        def leave(seed):
            stream = {"model": "writer", "prompt": "a", "max_tokens": 31, "seed": seed, "stream": True}
            connect(client, request("/v1/completions", stream)).close()

        def some(n):
            for seed in range(101):
                leave(seed)
            bodies = [{"prompts": "a dog", "max_new_tokens": 1 + i % 3, "seed": i, "stop": ["q"]} for i in range(n)]
            assert {status for status, *_ in pool.map(lambda body: client.ask("/generate", body), bodies)} == {200}

        def held(n):
            some(n)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            some(300)
            before, after = held(300), held(2_000)
        finally:
            tracemalloc.stop()
        assert after - before < 100_000  # 50 bytes a request would be as much
