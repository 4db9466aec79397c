"""regard: one Transformer, every shape, and what it attends to.

>>> import regard
>>> model = regard.Transformer(regard.presets.tiny_decoder())
>>> model.config.shape
'decoder'
>>> regard.walk("I am a student").tokens
('I', 'am', 'a', 'student')

Rooms and names are opened when they are first asked for, so that ``import regard`` does not wait for torch.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard import config, data, decode, encode, evaluate, interop, look, nn, presets, recipe, train
    from regard.config import ModelConfig, RegardError
    from regard.look import walk, walk_scores
    from regard.model import Model, load
    from regard.nn import Transformer

# Torch's threads wait for each other actively, for milliseconds before they sleep: beside another process that computes
# one waits for another that has no processor, and all takes several times as long. A three-hundredth of that is as fast
# on a quiet machine (docs/performance.md). It is read when torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# oneDNN keeps half a megabyte for each of the last 1,024 shapes that it met, and texts have many: between those, memory
# is never free in one piece. To make one anew takes a tenth of a millisecond.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")

__version__ = "0.1.0"  # a test holds it against pyproject.toml

_ROOMS = ("config", "data", "decode", "encode", "evaluate", "interop", "look", "nn", "presets", "recipe", "train")
_NAMES = {
    "Model": "regard.model",
    "ModelConfig": "regard.config",
    "RegardError": "regard.config",
    "Transformer": "regard.nn",
    "load": "regard.model",
    "walk": "regard.look",
    "walk_scores": "regard.look",
}

__all__ = [
    "Model",
    "ModelConfig",
    "RegardError",
    "Transformer",
    "__version__",
    "config",
    "data",
    "decode",
    "encode",
    "evaluate",
    "interop",
    "load",
    "look",
    "nn",
    "presets",
    "recipe",
    "train",
    "walk",
    "walk_scores",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"regard.{name}")
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
