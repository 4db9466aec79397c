"""Twenty kills at random moments, and the weights are bit for bit those of the run that was never killed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("times", [7, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments(times, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, HERE / "killed.py", tmp_path, str(times)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told = re.fullmatch(rf"killed {times} times, (\d+) .* written, resumed from (\d+) steps\n", done.stdout)
    assert told, done.stdout
    assert int(told[1]) >= 3 * times // 20
    assert int(told[2]) >= 8 * times // 20
