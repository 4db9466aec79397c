"""Shape annotations run here: calls into regard check the jaxtyping strings of their signatures.

Not where REGARD_PLAIN is set: tests/test_plain.py says why.
"""

import os
import shutil
import sys

import pytest

import shapes

if not os.environ.get("REGARD_PLAIN"):
    assert "regard.nn" not in sys.modules, "the hook must come before the package"
    shapes.install()

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers share two cores, and so does what they start
import torch

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    shapes.begin_anew()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(20170612)


@pytest.fixture(scope="module")
def browser():
    """A real one, which asks nobody for anything."""
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if (path := shutil.which("chromium")) is None:
        pytest.skip("chromium is not installed")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    with sync.sync_playwright() as play:
        yield (opened := play.chromium.launch(executable_path=path, args=flags))
        opened.close()
