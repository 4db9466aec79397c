"""One server with a model of every kind and one browser for all tests of the page; each test has a page of its own, and
fails if anything was said in the console, thrown, or asked of another host."""

import io
import json
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from regard import load
from regard.model import SHIPPED

CHROMIUM = shutil.which("chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
DOCS = os.environ.get("REGARD_SHOTS") == "docs"  # then the pictures of README.md are made anew
BEGIN = """
for (const label of location.protocol === "http:" ? ["Text", "Text with [MASK]", "Sentence", "Lines", "What is to be drawn"] : []) {
  const key = `text ${%s} ${label}`;
  sessionStorage.setItem(key, sessionStorage.getItem(key) ?? (label.includes("MASK") ? "[MASK]" : "a"));
}
"""
SHOTS = Path(__file__).parent / "shots"  # which git ignores


@pytest.fixture(scope="package")
def server():
    pytest.importorskip("fastapi", reason="serve is not installed")
    from browser.models import every_kind
    from serve.conftest import serving

    shipped = {"en-de": load("en-de")} if (SHIPPED / "en-de").is_dir() else {}
    with serving({**every_kind(), **shipped}) as client:
        yield client


@pytest.fixture(scope="package")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(server, browser):
    """A function that opens the page: ``visit("writer", width=360, dark=True)``."""
    contexts, trouble = [], []

    def visit(where="", *, client=server, width=1_180, height=900, dark=False, refusals=False, example=False):
        home = f"http://127.0.0.1:{client.port}/"
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        context.set_default_timeout(20_000)
        page = context.new_page()
        if not example:  # what is there before anything is typed is short
            page.add_init_script(BEGIN % json.dumps(where.split("/")[0]))

        def said(message):
            refused = message.text.startswith("Failed to load resource") and refusals
            if message.type in ("error", "warning") and not refused:
                trouble.append(f"console: {message.text}")

        page.on("console", said)
        page.on("pageerror", lambda error: trouble.append(f"thrown: {error}"))
        page.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: request.url.startswith((home, "data:", "blob:")) or trouble.append(f"asked {request.url}"),
        )
        page.goto(f"{home}#{where}")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not trouble


def shot(page, name):
    """Leave a picture of a whole page."""
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


def of_docs(what, name):
    """A picture for README.md, of what is to be seen of a page or of a part of it; where they are to be made anew."""
    if DOCS:
        picture = Image.open(io.BytesIO(what.screenshot())).convert("RGB").quantize(256, kmeans=1)
        picture.save(Path(__file__).parents[2] / "docs" / f"{name}.png", optimize=True)
