"""A model and an input in, pictures and numbers out: what attention does, to look at.

>>> from regard.look import walk_scores
>>> [round(weight, 2) for weight in walk_scores([102, 99], d_key=3).weights]
[0.85, 0.15]

A trained model is looked into by its own methods, ``model.attention(...)``, ``model.trace(...)`` and
``model.ablate(...)``; what they give, and what goes beyond them, is here. It is opened when it is first asked for: the
worked example does not wait for torch.

>>> from regard.look import Alignment, Attention, Trace, align
>>> [thing.__module__ for thing in (Attention, Trace, align)]
['regard.look.attention', 'regard.look.trace', 'regard.look.alignment']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.look.scores import ScoresWalk, walk_scores
from regard.look.steps import Walk, walk

if TYPE_CHECKING:
    from regard.look.ablation import Ablation, HeadTable, ablate, ablate_each, without
    from regard.look.alignment import Alignment, align
    from regard.look.attention import Attention
    from regard.look.patches import Rollout, rollout
    from regard.look.trace import Trace

_NAMES = {
    "Ablation": "ablation",
    "Alignment": "alignment",
    "Attention": "attention",
    "HeadTable": "ablation",
    "Rollout": "patches",
    "Trace": "trace",
    "ablate": "ablation",
    "ablate_each": "ablation",
    "align": "alignment",
    "rollout": "patches",
    "without": "ablation",
}

__all__ = [
    "Ablation",
    "Alignment",
    "Attention",
    "HeadTable",
    "Rollout",
    "ScoresWalk",
    "Trace",
    "Walk",
    "ablate",
    "ablate_each",
    "align",
    "rollout",
    "walk",
    "walk_scores",
    "without",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(f"regard.look.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'regard.look' has no attribute {name!r}")
