"""A model and references in, a score card out.

scores.py     BLEU, chrF and their intervals, of lists of strings    loss.py    loss and perplexity of references
scorecard.py  the card of a model, and two of them compared          facts.py   texts, hashes, versions, hardware

>>> from regard.evaluate import bleu, difference
>>> references = [["a dog runs over the field", "two cats sleep on the mat"]]
>>> one = bleu(["a dog runs in the field", "two cats sleep there"], references)
>>> other = bleu(["a dog runs over a field", "two cats sleep on the mat"], references)
>>> f"{one.value:.1f} and {other.value:.1f}: {difference(one, other).difference:+.1f}"
'31.1 and 77.8: +46.7'
"""

from regard.evaluate.facts import read_texts, set_name
from regard.evaluate.loss import Likelihood, likelihood
from regard.evaluate.scorecard import Comparison, Scorecard, compare, evaluate, read_cards
from regard.evaluate.scores import Bucket, Difference, Score, bleu, chrf, difference, moses_bleu

__all__ = [
    "Bucket",
    "Comparison",
    "Difference",
    "Likelihood",
    "Score",
    "Scorecard",
    "bleu",
    "chrf",
    "compare",
    "difference",
    "evaluate",
    "likelihood",
    "moses_bleu",
    "read_cards",
    "read_texts",
    "set_name",
]
