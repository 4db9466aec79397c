"""A model and references in, a score card out.

scores.py       what a score is; BLEU and chrF      labels.py     accuracy, F1, Matthews, entity F1, Spearman
loss.py         loss and perplexity of references   shots.py      accuracy over the examples in a prompt
scorecard.py    the card, and two of them compared  facts.py      texts, hashes, versions, hardware
translation.py  the card of a translator            labelled.py   the card of a model that classifies or tags

>>> from regard.evaluate import bleu, difference
>>> references = [["a dog runs over the field", "two cats sleep on the mat"]]
>>> one = bleu(["a dog runs in the field", "two cats sleep there"], references)
>>> other = bleu(["a dog runs over a field", "two cats sleep on the mat"], references)
>>> f"{one.value:.1f} and {other.value:.1f}: {difference(one, other).difference:+.1f}"
'31.1 and 77.8: +46.7'
"""

from regard.evaluate.facts import read_texts, set_name
from regard.evaluate.labelled import LabelCard, TagCard, evaluate_labels, read_examples
from regard.evaluate.loss import Likelihood, likelihood
from regard.evaluate.scorecard import Comparison, Scorecard, compare, read_cards
from regard.evaluate.scores import Bucket, Difference, Score, bleu, chrf, difference, moses_bleu
from regard.evaluate.translation import TranslationCard, evaluate

__all__ = [
    "Bucket",
    "Comparison",
    "Difference",
    "LabelCard",
    "Likelihood",
    "Score",
    "Scorecard",
    "TagCard",
    "TranslationCard",
    "bleu",
    "chrf",
    "compare",
    "difference",
    "evaluate",
    "evaluate_labels",
    "likelihood",
    "moses_bleu",
    "read_cards",
    "read_examples",
    "read_texts",
    "set_name",
]
