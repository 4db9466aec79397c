"""Twenty kills at random moments, and the weights are bit for bit those of the run that was never killed."""

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_killed_at_twenty_random_moments(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, HERE / "killed.py", tmp_path, "20"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told = re.fullmatch(r"killed 20 times, (\d+) .* written, resumed from (\d+) steps\n", done.stdout)
    assert told, done.stdout
    assert int(told[1]) >= 3
    assert int(told[2]) >= 8
