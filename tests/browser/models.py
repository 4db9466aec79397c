"""A small model of every kind, with room for 2,000 tokens, and a server that shows them: ``python tests/browser/models.py
[MODEL ...]`` serves them, and others by their paths, to look at by hand."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from regard import Model, Transformer, load, presets, recipe
from regard.data.tokenizer import Tokenizer
from toy import sentences

TOKENS = Tokenizer.train([*sentences(97, seed=1), "."], recipe.Tokenizer(kind="characters"))
ROOM = {"max_len": 2_069}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
LABELS = ["animal", '<b>"plant"</b>', "stone"]


def make(
    task: str, table: dict, *, vocab_size: int = len(TOKENS), tokens: Tokenizer | None = TOKENS, **options
) -> Model:
    torch.manual_seed(7)
    sizes = {"n_labels": len(options["labels"])} if "labels" in options else {}
    net = Transformer(recipe.model_config(table, vocab_size=vocab_size, **sizes))
    for parameter in net.parameters():  # sure enough of itself that no two tokens are equally likely
        parameter.data.mul_(1.7)
    return Model(net.requires_grad_(False), task, tokens, **{"longest": 2_063, **options})


def drawer() -> Model:
    """Of codes that a painter of its own paints."""
    torch.manual_seed(5)
    painter = Model(Transformer(presets.tiny_vq_vae()), "paint", None)
    codes = painter.config.head.n_codes
    model = make("draw", {"preset": "tiny_decoder", "decoder": ROOM}, vocab_size=len(TOKENS) + codes, longest=61)
    model.__dict__["painter"] = painter  # elsewhere it lies in the model's folder
    return model


def every_kind() -> dict[str, Model]:
    both = {"encoder": ROOM, "decoder": ROOM}
    return {
        "translator": make("translate", {"preset": "tiny_encoder_decoder", **both}, longest=61),
        "searcher": make("translate", {"preset": "tiny_bahdanau"}, longest=61),
        "writer": make("generate", {"preset": "tiny_decoder", "decoder": ROOM}, chat_template=TEMPLATE),
        "filler": make("fill", {"preset": "tiny_encoder", "encoder": ROOM}),
        "classifier": make(
            "classify", {"preset": "tiny_encoder", "head": {"kind": "pooled"}, "encoder": ROOM}, labels=LABELS
        ),
        "tagger": make("tag", {"preset": "tiny_tagger", "encoder": ROOM}, labels=["B-DOG", "I-DOG", "B-CAT", "O"]),
        "seer": make("classify", {"preset": "tiny_vit"}, labels=LABELS, tokens=None),
        "captioner": make("caption", {"preset": "tiny_captioner", "decoder": ROOM}, longest=31),
        "matcher": make("match", {"preset": "tiny_clip", "text": ROOM}),
        "drawer": drawer(),
    }


if __name__ == "__main__":
    from regard.serve.run import serve

    serve({**{Path(path).name: load(path) for path in sys.argv[1:]}, **every_kind()}, port=8123)
