"""The annotation checks of tests/conftest.py are on, in every test, for the first calls of each function."""

import pytest
import torch
from jaxtyping import TypeCheckError

import shapes
from regard.nn.positions import Learned


@pytest.mark.parametrize("time", ["once", "again"])
def test_first_calls_are_checked_in_every_test(time):
    positions, right, wrong = Learned(7, 3), torch.ones(2, 5, dtype=torch.int64), torch.ones(5, dtype=torch.int64)
    for _ in range(shapes.CALLS - 1):
        positions(right)
    with pytest.raises(TypeCheckError):
        positions(wrong)
    assert positions(wrong).shape == (5, 3)  # one more than are checked
