"""A label for a text from a language model that was never trained to give one: it reads a few examples and the text,
and the label that it finds likeliest next is the answer (in-context learning, Brown et al. 2020).

The prompt is a template, filled in for each example and, up to the label, for the text. A label's score is the
logarithm of the probability of all its tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.config import InputError, Vocabulary
from regard.encode import rows
from regard.encode.labels import Classification, named

if TYPE_CHECKING:
    from regard.model import Model

TEMPLATE = "Text: {text}\nLabel: {label}\n\n"
Example = tuple[str, str]
"""A text and its label."""


def classify_with_prompt(
    model: Model,
    texts: Sequence[str],
    labels: Sequence[str] = (),
    examples: Sequence[Example] = (),
    shots: int = 0,
    *,
    template: str = TEMPLATE,
    seed: int = 0,
) -> list[Classification]:
    """The label that a language model finds likeliest after each text, told by so many examples.

    The labels are those that are named, or else those of the examples. ``seed`` picks the examples, as many of each
    label as can be; with more shots come the same ones and others.

    >>> from regard import Model, Transformer, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_decoder", "decoder": {"max_len": 97}}, vocab_size=len(tokens))
    >>> model = Model(Transformer(config), "generate", tokens)
    >>> examples = [("I like it.", "good"), ("I hate it.", "bad")]
    >>> [found] = classify_with_prompt(model, ["It is fine."], examples=examples, shots=2, template="{text} {label}\\n")
    >>> sorted(found.probabilities)
    ['bad', 'good']
    """
    model.check_task("generate")
    if not isinstance(model.config.head, Vocabulary):
        raise InputError(f"{model.path or 'this model'}: has no scores for tokens; give a language model")
    labels = list(dict.fromkeys(labels)) or sorted({label for _, label in examples})
    if len(labels) < 2:
        raise InputError(f"labels ({', '.join(labels) or 'none'}): a choice needs at least two; name them")
    rows.check_texts(texts)
    rows.check_texts(labels, "label")
    for text, label in examples:
        if label not in labels:
            raise InputError(f"example {text!r}: its label {label!r} is none of {', '.join(labels)}")
    before, between, after = parse(template)
    shown = "".join(f"{before}{text}{between}{label}{after}" for text, label in pick(examples, shots, seed))
    asked = [f"{shown}{before}{text}{between}" for text in texts]
    start, _ = rows.marks(model)

    # Every prompt with every label. What all labels of a text share needs no score; and where they differ in their last
    # token only, the model reads the same for each of them.
    encode = model.tokenizer.encode_batch
    wholes = iter(encode([ask + label for ask in asked for label in labels]))
    ends: list[list[tuple[tuple[int, ...], int]]] = []  # of each text and label: its ids, and where the label begins
    for ask in encode([ask.rstrip() for ask in asked]):
        of_text = [next(wholes) for _ in labels]
        shared = len(start) + _shared([ask, *of_text])
        ends.append([((*start, *ids), max(1, shared)) for ids in of_text])
    prompts = list(dict.fromkeys(ids[:-1] for of_text in ends for ids, _ in of_text))
    _check_room(model, max(map(len, prompts), default=0), shots)

    logprobs = dict.fromkeys((end for of_text in ends for end in of_text), 0.0)
    asking: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {prompt: [] for prompt in prompts}
    for end in logprobs:
        asking[end[0][:-1]].append(end)
    for batch in rows.read(model, [rows.Row(list(prompt), [0] * len(prompt)) for prompt in prompts]):
        for i, row in enumerate(batch.rows):
            for ids, begin in asking[prompts[row]]:
                logprobs[ids, begin] = _logprob(model, batch.hidden[i, begin - 1 : len(ids) - 1], ids[begin:])
    return [
        named(labels, torch.tensor([logprobs[end] for end in of_text], dtype=torch.float64).softmax(0).tolist())
        for of_text in ends
    ]


@torch.no_grad()
def _logprob(model: Model, hidden: Tensor, ids: Sequence[int]) -> float:
    """The logarithm of the probability of ids, each after a vector."""
    logprobs = model.net.logits(hidden[None])[0].float().log_softmax(-1)
    return float(logprobs.gather(1, torch.tensor(ids, device=hidden.device)[:, None]).sum())


def pick(examples: Sequence[Example], shots: int, seed: int = 0) -> list[Example]:
    """So many of the examples, drawn at random, one of each label in turn for as long as there are.

    >>> drawn = pick([("a", "no"), ("b", "no"), ("c", "yes"), ("d", "no")], 2, seed=1)
    >>> sorted(label for _, label in drawn)
    ['no', 'yes']
    """
    if not isinstance(shots, int) or not 0 <= shots <= len(examples):
        raise InputError(f"shots ({shots}) must be from 0 to {len(examples)}, the examples there are")
    draw = random.Random(seed)
    by_label: dict[str, list[Example]] = {}
    for example in draw.sample(list(examples), len(examples)):
        by_label.setdefault(example[1], []).append(example)
    found: list[Example] = []
    while len(found) < shots:
        left = [of_label for of_label in by_label.values() if of_label]
        found += [of_label.pop() for of_label in draw.sample(left, len(left))]
    return found[:shots]


def _shared(texts: Sequence[Sequence[int]]) -> int:
    """How many ids all of them begin with."""
    return sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, zip(*texts, strict=False)))


def parse(template: str) -> tuple[str, str, str]:
    """What stands before the text in a template, between it and the label, and after.

    >>> parse("{text} is {label}.")
    ('', ' is ', '.')
    """
    if template.count("{text}") != 1 or template.count("{label}") != 1:
        raise InputError(f"template ({template!r}) must have one {{text}} and, after it, one {{label}}")
    before, _, rest = template.partition("{text}")
    between, found, after = rest.partition("{label}")
    if not found or not between:
        raise InputError(f"template ({template!r}) must have {{label}} after {{text}}, and something between them")
    return before, between, after


def _check_room(model: Model, longest: int, shots: int) -> None:
    limit = rows.room(model, 0)
    if limit is not None and longest > limit:
        raise InputError(
            f"the longest prompt has {longest:,} tokens, more than the {limit:,} of this model; "
            + (f"give fewer shots than {shots}, or shorter texts" if shots else "shorten the texts")
        )
