"""Shape annotations run here: every call into regard checks the jaxtyping strings of its signature.

Not where REGARD_PLAIN is set: tests/test_plain.py says why.
"""

import os
import sys

import pytest
from jaxtyping import install_import_hook

if not os.environ.get("REGARD_PLAIN"):
    assert "regard.nn" not in sys.modules, "the hook must come before the package"
    install_import_hook("regard.nn", "beartype.beartype")

import torch

torch.set_num_threads(1)  # two workers share two cores


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(20170612)
