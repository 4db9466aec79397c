"""Layers over longer and longer sequences: what is measured, told and drawn."""

from __future__ import annotations

import json

import pytest
import torch

from regard.look import complexity as module
from regard.look.complexity import LAYERS, Complexity, Cost, Held, complexity


@pytest.fixture(scope="module")
def found():
    return complexity(lengths=[256, 512, 1024])


def test_every_layer_over_every_length(found):
    assert [(cost.layer, cost.length) for cost in found.costs] == [
        (name, n) for n in (256, 512, 1024) for name in LAYERS
    ]
    assert all(cost.seconds > 0 and cost.bytes > 0 for cost in found.costs)
    assert json.loads(json.dumps(found.to_dict()))["theory"]["self-attention"]["operations"] == "n² d"


def test_memory_is_counted_and_none_grows_with_the_square(found):
    """Queries, keys and values from one product, what is attended to, and the output: the weights are never formed."""
    for cost in found.costs:
        if cost.layer == "self-attention":
            assert cost.bytes == 5 * 4 * cost.length * module.D
    for name in LAYERS:
        assert 0.9 < found.grows(name, "bytes") < 1.7  # a window begins with all keys, where there are few


def test_the_exponent():
    costs = tuple(Cost(layer="one", length=n, seconds=7e-9 * n**2, bytes=11 * n) for n in (3, 5, 17, 31, 53))
    made = Complexity(costs=costs)
    assert made.grows("one") == pytest.approx(2)
    assert made.grows("one", "bytes") == pytest.approx(1)


def test_what_is_held_at_once():
    with Held() as held:
        first = torch.zeros(100)
        second = first + 1
        del first
        third = second * 2
        del second
        third.view(4, 25).add_(1)
    assert held.most == 2 * 400
    given = torch.zeros(1_000)
    with Held(given) as held:
        given.mul_(2)
    assert held.most == 0


def test_threads_are_as_before(found):
    before = torch.get_num_threads()
    complexity(lengths=[4])
    assert torch.get_num_threads() == before


def test_as_a_picture(found, tmp_path):
    assert found.save(tmp_path / "c.svg").read_text(encoding="utf-8").count("self-attention") >= 2
    assert found.save(tmp_path / "c.png").stat().st_size > 10_000
