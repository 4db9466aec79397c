"""What the annotation checks of tests/conftest.py would get in the way of, run in a process without them.

Checking wrappers cannot be compiled, and they refuse a wrong shape before our own message can.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "name", [pytest.param("plain/compiled.py", marks=pytest.mark.slow), "plain/errors.py", "nn/test_cublaslt.py"]
)
def test_in_a_plain_process(name):
    path = Path(__file__).parent / name
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--show-capture=no", path],
        env={**os.environ, "REGARD_PLAIN": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-8000:]
    assert " passed" in run.stdout
