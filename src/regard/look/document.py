"""One HTML file that needs nothing else: its styles, its scripts, and the numbers that they draw.

A page is made of text, all of it escaped by whoever writes it, and of *views*: an element with numbers in it, which a
script of assets/ fills when the page is opened. The policy in its head lets nothing be fetched from anywhere.
"""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from jaxtyping import UInt8
from numpy.typing import NDArray

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

# What a script does with the element of a view, and the numbers that were in it.
STARTS = {
    "attention": "showAttention(root, told)",
    "stepper": "stepper(root, told, { image: root.dataset.image, tree: root.nextElementSibling, alone })",
}


@cache
def asset(name: str) -> str:
    """The text of a file that comes with the package."""
    return files("regard.look").joinpath("assets", name).read_text(encoding="utf-8")


def document(title: str, body: str, *, views: Iterable[str] = (), style: str = "") -> str:
    """A page, and what the kinds of views need that are in its body.

    >>> page = document("Steps < leaps", view("stepper", {"steps": []}), views=["stepper"])
    >>> page.count("<title>Steps &lt; leaps</title>"), page.count("<script")
    (1, 2)
    """
    views = list(views)
    styles = "".join(asset(f"{name}.css") for name in ("page", *views))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title>
<style>
{styles}{style}</style>
</head>
<body>
{body}
{_script(views) if views else ""}</body>
</html>
"""


def _script(views: Iterable[str]) -> str:
    starts = ", ".join(f"{name}: (root, told) => {STARTS[name]}" for name in views)
    return f"""<script type="module">
{"".join(asset(f"{name}.js") for name in views)}
const views = document.querySelectorAll("[data-shows]"), alone = views.length === 1;
const start = {{ {starts} }};
for (const root of views) start[root.dataset.shows](root, JSON.parse(root.firstElementChild.textContent));
</script>
"""


def view(name: str, told: Any, **more: str) -> str:
    """The element of a view, with its numbers; ``more`` is said in attributes (``data-image`` for ``image``)."""
    # Inside a script element only "<" could end it.
    numbers = json.dumps(told, ensure_ascii=False).replace("<", "\\u003c")
    data = "".join(f' data-{key}="{html.escape(value)}"' for key, value in more.items())
    return (
        f'<div data-shows="{name}"{data}><script type="application/json">{numbers}</script>'
        "<noscript>This is drawn with JavaScript, which is off.</noscript></div>"
    )


def image_address(image: UInt8[NDArray, "H W 3"]) -> str:
    """An image as an address that needs no other file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, format="jpeg", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
