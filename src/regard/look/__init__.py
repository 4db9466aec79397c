"""A model and an input in, pictures and numbers out: what attention does, to look at.

>>> from regard.look import walk_scores
>>> [round(weight, 2) for weight in walk_scores([102, 99], d_key=3).weights]
[0.85, 0.15]
"""

from regard.look.patches import Rollout, rollout
from regard.look.scores import ScoresWalk, walk_scores
from regard.look.steps import Walk, walk

__all__ = ["Rollout", "ScoresWalk", "Walk", "rollout", "walk", "walk_scores"]
