"""Untrained models over a small vocabulary of subwords, in double precision: what is read from them can be computed by
hand."""

import toy
from laws.cases import build
from regard import Model, recipe
from regard.data.tokenizer import Tokenizer

TEXTS = toy.sentences(211, 3)
TOKENS = Tokenizer.train(TEXTS, recipe.Tokenizer(vocab_size=331))
HEADS = {"classify": {"kind": "pooled"}, "tag": {"kind": "labels"}}
LABELS = {"classify": ("bad", "fine", "good"), "tag": ("B-DOG", "B-TOWN", "I-DOG", "I-TOWN", "O")}


def config(preset, n_labels=0, head=None, tokens=TOKENS, **changes):
    table = {"preset": preset, **({"head": head} if head else {}), **changes}
    return recipe.model_config(table, vocab_size=len(tokens), n_labels=n_labels)


def fills(preset="tiny_encoder", tokens=TOKENS, **changes):
    return Model(build(config(preset, tokens=tokens, **changes)), "fill", tokens)


def labels(task, tokens=TOKENS, names=None, longest=256, n_labels=None, **changes):
    names = LABELS[task] if names is None else names
    size = len(names) if n_labels is None else n_labels
    shape = config("tiny_encoder", size, HEADS[task], tokens, **changes)
    return Model(build(shape), task, tokens, labels=names, longest=longest)


def speaks(preset="tiny_decoder", tokens=TOKENS, **changes):
    changes = changes or {"decoder": {"max_len": 97}}
    return Model(build(config(preset, tokens=tokens, **changes)), "generate", tokens)
