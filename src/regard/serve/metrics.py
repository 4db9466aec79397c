"""What happened, counted, in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds


class Metrics:
    """Requests by endpoint and status, and how long they took.

    >>> metrics = Metrics()
    >>> metrics.count("/translate", 200, 0.02)
    >>> print(metrics.text({}).splitlines()[2])
    regard_requests_total{endpoint="/translate",status="200"} 1
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.below: Counter[tuple[str, float]] = Counter()
        self.seconds: Counter[str] = Counter()

    def count(self, endpoint: str, status: int, seconds: float) -> None:
        self.requests[endpoint, status] += 1
        self.seconds[endpoint] += seconds  # type: ignore[assignment]
        for bound in BOUNDS:
            self.below[endpoint, bound] += seconds <= bound

    def text(self, models: Mapping[str, Mapping[str, tuple[str, int]]]) -> str:
        """All of it; ``models`` has what is known of each: (kind, number) by name."""
        return "".join(f"{line}\n" for line in self._lines(models))

    def _lines(self, models: Mapping[str, Mapping[str, tuple[str, int]]]) -> Iterator[str]:
        yield from _head("regard_requests_total", "counter", "Requests answered.")
        for (endpoint, status), n in sorted(self.requests.items()):
            yield f'regard_requests_total{{endpoint="{_plain(endpoint)}",status="{status}"}} {n}'
        yield from _head("regard_request_seconds", "histogram", "From a request to its whole answer.")
        for endpoint, total in sorted(self.seconds.items()):
            name, n = _plain(endpoint), sum(n for (one, _), n in self.requests.items() if one == endpoint)
            for bound in BOUNDS:
                yield f'regard_request_seconds_bucket{{endpoint="{name}",le="{bound}"}} {self.below[endpoint, bound]}'
            yield f'regard_request_seconds_bucket{{endpoint="{name}",le="+Inf"}} {n}'
            yield f'regard_request_seconds_sum{{endpoint="{name}"}} {total:.6f}'
            yield f'regard_request_seconds_count{{endpoint="{name}"}} {n}'
        helps = {
            "regard_queue_length": "Requests of which something waits.",
            "regard_batch_size": "Rows that are being written together.",
            "regard_tokens_total": "Tokens written, of all ways.",
        }
        for metric, told in helps.items():
            kinds = {kind for of_model in models.values() for name, (kind, _) in of_model.items() if name == metric}
            for kind in kinds:
                yield from _head(metric, kind, told)
            for model, of_model in models.items():
                if metric in of_model:
                    yield f'{metric}{{model="{_plain(model)}"}} {of_model[metric][1]}'


def _head(name: str, kind: str, told: str) -> Iterator[str]:
    yield f"# HELP {name} {told}"
    yield f"# TYPE {name} {kind}"


def _plain(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
