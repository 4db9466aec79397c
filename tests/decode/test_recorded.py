"""Beginnings that are recorded and replayed are those that are not. A GPU's recording is a tape of operations here: its
replay does each again, from the same memory to the same memory, and asks nothing of the host."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import regard
from laws.cases import CASES, build, inputs, lengths_of
from laws.test_decoding import END, HOWS, LIMITS, NEVER, AsRecorded, fixed  # noqa: F401
from regard import recipe
from regard.data.tokenizer import Tokenizer
from regard.decode.recorded import Reading, Recorder
from regard.decode.search import Search, search
from regard.nn import Layout

LENGTHS = [[11, 2, 5], [1, 11, 3], [7, 7, 10], [11, 11, 11]]


class Tape(TorchDispatchMode):
    """The operations of a pass, in their order."""

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given, made = ([t for t in tree_leaves(tree) if isinstance(t, Tensor)] for tree in ((args, kwargs), out))
        same = {t.untyped_storage().data_ptr() for t in given} & {t.untyped_storage().data_ptr() for t in made}
        if func._schema.is_mutable:
            self.done.append((func, args, kwargs or {}, []))
        elif made and not same:  # not a view of what is there already
            self.done.append((func, args, kwargs or {}, made))
        return out

    def replay(self):
        for func, args, kwargs, made in self.done:
            out = func(*args, **kwargs)
            for held, new in zip(made, tree_leaves(out) if made else [], strict=True):
                held.copy_(new)


class Taped(AsRecorded):
    """Readings are tapes. Steps are themselves: what a CPU chooses next depends on what the host sees."""

    def __init__(self):
        super().__init__()
        self.replayed = 0

    def record(self, step, device):
        if not isinstance(step.__self__, Reading):
            return step
        tape = Tape()
        with tape:
            step()

        def replay():
            self.replayed += 1
            tape.replay()

        return replay


def sources(model, n=4) -> Iterator[tuple[Tensor, Any]]:
    """Inputs of one shape, each with lengths of its own where they are texts."""
    torch.manual_seed(7)
    for lengths in LENGTHS[:n]:
        first, _ = inputs(model.config)
        yield first, lengths_of(first, torch.tensor(lengths)).lengths


def prompts(model):
    if model.encoder is not None:
        return torch.tensor([[3], [6], [10]]), None
    return torch.randint(3, 100, (3, 4)), torch.tensor([4, 2, 3])


def memory_of(model, recorder, first, lengths):
    if model.encoder is None:
        return None
    return model.encode(first) if first.is_floating_point() else recorder.encode(model, first, lengths)


def same(found, wanted):
    for row, other in zip(found, wanted, strict=True):
        assert [f.ids for f in row] == [f.ids for f in other]
        assert [f.score for f in row] == pytest.approx([f.score for f in other], abs=1e-5)


PASSES = {  # recorded of each
    "tiny_encoder_decoder": 2,
    "pre-norm translator": 2,
    "shared embeddings": 2,
    "bilinear": 2,
    "gru over a transformer": 1,
    "tiny_captioner": 1,
    "tiny_decoder": 1,
    "windows": 1,
    "alibi": 1,
    "tiny_bahdanau": 0,
}


@pytest.mark.parametrize("how", ["greedy", "beam", "drawn", "drawn, not again"])
@pytest.mark.parametrize("name", PASSES)
def test_a_recorded_beginning_changes_nothing(name, how, fixed):  # noqa: F811
    """Whatever is read, and however long it is within its shape: the first time, the recorded, and those after it."""
    model, recorder = build(CASES[name]).requires_grad_(False), Taped()
    options = {"end": END, "limits": LIMITS, "how": HOWS[how], "never": NEVER}
    seen = set()
    for first, lengths in sources(model):
        prompt, real = prompts(model)
        plain = None if model.encoder is None else model.encode(first, lengths)
        wanted = search(model, prompt, real, memory=plain, **options)
        memory = memory_of(model, recorder, first, lengths)
        same(search(model, prompt, real, memory=memory, **options, recorder=recorder), wanted)
        seen.add(str([f.ids for row in wanted for f in row]))
    assert len(seen) > 1, "or nothing was proved"
    assert recorder.replayed == PASSES[name] * (len(LENGTHS) - 1)


@pytest.mark.parametrize("how", ["greedy", "beam", "drawn"])
@pytest.mark.parametrize("name", ["tiny_encoder_decoder", "tiny_captioner", "tiny_decoder"])
def test_who_begins_in_turns_keeps_what_was_read(name, how, fixed):  # noqa: F811
    """All sources are read before any is searched, all searches have begun before any goes on. What somebody was shown
    of a choice stays as it was, too."""
    model, recorder = build(CASES[name]).requires_grad_(False), Taped()
    options = {"end": END, "limits": LIMITS, "how": HOWS[how], "never": NEVER}
    given = list(sources(model)) * 2
    asked = [prompts(model) for _ in given]
    memories = [memory_of(model, recorder, *one) for one in given]
    shown = []
    running = [
        Search(
            model,
            *ask,
            memory=memory,
            **options,
            recorder=recorder,
            watch=lambda choice: shown.append((choice.logprobs, choice.logprobs.clone())),
        )
        for ask, memory in zip(asked, memories, strict=True)
    ]
    assert recorder.replayed
    assert len(shown) == len(given)
    assert all(torch.equal(now, then) for now, then in shown)
    live = list(running)
    while live:
        live = [one for one in live if one.leave()]
        for one in live:
            one.step()
    for one, ask, (first, lengths) in zip(running, asked, given, strict=True):
        plain = None if model.encoder is None else model.encode(first, lengths)
        same(one.state.found, search(model, *ask, memory=plain, **options))


def test_one_recording_serves_every_width_and_limit(fixed):  # noqa: F811
    model, recorder = build(CASES["tiny_encoder_decoder"]).requires_grad_(False), Taped()
    [(first, lengths)] = sources(model, 1)
    prompt, _ = prompts(model)
    for how, limits in (("greedy", 3), ("beam", 5), ("drawn", 21), ("wide beam, plain", 40)):
        memory = recorder.encode(model, first, lengths)
        options = {"end": END, "limits": limits, "how": HOWS[how], "never": NEVER}
        wanted = search(model, prompt, memory=model.encode(first, lengths), **options)
        same(search(model, prompt, memory=memory, **options, recorder=recorder), wanted)
    assert sum(isinstance(one, Reading) for one in recorder.held.values()) == 2


def test_rows_padded_on_the_left(fixed):  # noqa: F811
    """A memory may say where its rows start."""
    model, recorder = build(CASES["tiny_encoder_decoder"]).requires_grad_(False), Taped()
    prompt, _ = prompts(model)
    options = {"end": END, "limits": LIMITS, "how": HOWS["beam"], "never": NEVER}
    for first, lengths in sources(model):
        memory = model.encode(first, Layout(lengths=lengths, starts=first.shape[1] - lengths))
        same(
            search(model, prompt, memory=memory, **options, recorder=recorder),
            search(model, prompt, memory=memory, **options),
        )
    assert recorder.replayed == len(LENGTHS) - 1


@pytest.mark.parametrize("name", ["tiny_encoder_decoder", "tiny_bahdanau", "tiny_captioner", "tiny_decoder"])
def test_where_nothing_is_recorded_nothing_changes(name):
    """Not a bit."""
    model, recorder = build(CASES[name]).requires_grad_(False), Recorder()
    options = {"end": END, "limits": LIMITS, "how": HOWS["beam"], "never": NEVER}
    for first, lengths in sources(model, 2):
        prompt, real = prompts(model)
        with torch.inference_mode():
            plain = None if model.encoder is None else model.encode(first, lengths)
            memory = memory_of(model, recorder, first, lengths)
        assert memory is None or plain is None or torch.equal(memory.hidden, plain.hidden)
        found = search(model, prompt, real, memory=memory, **options, recorder=recorder)
        assert found == search(model, prompt, real, memory=plain, **options)
    assert not recorder.held


TEXTS = ["the red dog", "a cat", "two old birds sleep", "a dog runs. The cat!", "é", "Some more words than those."]


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"temperature": 1.1, "n_best": 2, "seed": 3}])
@pytest.mark.parametrize("preset", ["tiny_encoder_decoder", "tiny_bahdanau"])
def test_texts_are_translated_and_aligned_alike(preset, options, fixed, monkeypatch):  # noqa: F811
    torch.manual_seed(3)
    tokens = Tokenizer.train(TEXTS, recipe.Tokenizer(kind="characters"))
    config = recipe.model_config({"preset": preset}, vocab_size=len(tokens))
    model = regard.Model(regard.Transformer(config).double(), "translate", tokens)
    options = {"align": True, "max_length": 9, **options}
    rows = [TEXTS[i:] + TEXTS[:i] for i in range(4)] + [[text[::-1] for text in TEXTS]]
    with monkeypatch.context() as plain:
        plain.setattr("regard.decode.recorded.fixed_shapes", lambda device: False)
        wanted = [model.translate(texts, **options) for texts in rows]
    model.recorder = recorder = Taped()
    for texts, expected in zip(rows, wanted, strict=True):
        for said, other in zip(model.translate(texts, **options), expected, strict=True):
            assert (said.text, said.tokens, said.alignment) == (other.text, other.tokens, other.alignment)
            assert said.score == pytest.approx(other.score, abs=1e-5)
    assert recorder.replayed == (0 if preset == "tiny_bahdanau" else 2 * (len(rows) - 1))
    assert len({said.text for said in wanted[0]}) > 1


def test_pictures_have_the_same_captions(fixed, monkeypatch):  # noqa: F811
    torch.manual_seed(3)
    tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    config = recipe.model_config({"preset": "tiny_captioner"}, vocab_size=len(tokens))
    model = regard.Model(regard.Transformer(config).double(), "caption", tokens)
    size = config.encoder.input.image_size  # type: ignore[union-attr]
    images = [np.random.default_rng(i).integers(0, 256, (size, size, 3), np.uint8) for i in range(6)]
    pairs = [images[i : i + 2] for i in (0, 2, 4)]
    with monkeypatch.context() as plain:
        plain.setattr("regard.decode.recorded.fixed_shapes", lambda device: False)
        wanted = [model.caption(pair, max_length=7) for pair in pairs]
    model.recorder = recorder = Taped()
    for pair, expected in zip(pairs, wanted, strict=True):
        assert [one.tokens for one in model.caption(pair, max_length=7)] == [one.tokens for one in expected]
    assert recorder.replayed == len(pairs) - 1
