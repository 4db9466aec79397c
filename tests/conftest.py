"""Shape annotations run here: every call into regard checks the jaxtyping strings of its signature.

Not where REGARD_PLAIN is set: tests/test_plain.py says why.
"""

import os
import shutil
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
