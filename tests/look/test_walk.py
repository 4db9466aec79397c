"""The worked example shows the model's own numbers, and the lectures'."""

import dataclasses
import math

import pytest
import torch

import regard
from regard import presets
from regard.config import InputError, Positions
from regard.look import page, walk, walk_scores
from regard.nn import Transformer

CASES = {
    "encoder": (presets.tiny_encoder(), "1.self", 2),
    "dropout": (presets.tiny_encoder(dropout=0.5, attn_dropout=0.5, embed_dropout=0.5), "1.self", 0),
    "causal": (presets.tiny_decoder(), "0.self", 1),
    "window": (presets.tiny_decoder(windows=(0, 2)), "1.self", 0),
    "alibi": (presets.tiny_decoder(positions=Positions(kind="alibi")), "1.self", 2),
    "grouped rotary": (presets.tiny_llama(), "1.self", 5),
    "normed": (presets.tiny_llama(qk_norm=True), "0.self", 0),
    "dot": (presets.tiny_encoder(score="dot"), "0.self", 1),
    "bilinear": (presets.tiny_encoder(score="bilinear"), "0.self", 2),
    "additive": (presets.tiny_encoder(score="additive"), "0.self", 1),
    "source": (presets.tiny_encoder_decoder(), "1.self", 0),
    "target": (presets.tiny_encoder_decoder(), "decoder.1.self", 2),
    "cross": (presets.tiny_encoder_decoder(), "1.cross", 1),
    "text tower": (presets.tiny_clip(), "0.self", 2),
    "recurrent": (presets.tiny_bahdanau(), "0.cross", 0),
    "recurrent bilinear": (presets.tiny_bahdanau(score="bilinear"), "0.cross", 0),
}


def head_of_the_model(model, layer, head, run):
    """What the model itself hands from one head to the output projection, overheard while it runs."""
    *tower, i, kind = layer.split(".")
    module = getattr(model, tower[0] if tower else "encoder" if model.encoder is not None else "decoder")
    attention = module.attn if not hasattr(module, "stack") else getattr(module.stack.blocks[int(i)], f"{kind}_attn")
    heard = []
    handle = attention.out.register_forward_pre_hook(lambda _, inputs: heard.append(inputs[0]))
    result = run()
    handle.remove()
    heads = torch.cat(heard, dim=1)[0].unflatten(-1, (attention.n_heads, -1))  # (T, H, E)
    return result, heads[:, head]


@pytest.mark.parametrize("name", CASES)
def test_every_step_follows_from_the_one_before_and_ends_at_the_models_own_output(name):
    config, layer, head = CASES[name]
    model = Transformer(config).train()
    target = "b c b d a" if layer in ("1.cross", "decoder.1.self", "0.cross") else None
    steps, own = head_of_the_model(
        model,
        {"1.cross": "decoder.1.cross", "0.cross": "decoder.0.cross"}.get(layer, "text.0.self" if model.text else layer),
        head,
        lambda: walk("e f g e h i j", target=target, model=model, layer=layer, head=head),
    )
    additive = config.last.score == "additive"
    seen = steps.scores.isfinite()
    if not additive:
        torch.testing.assert_close((steps.q @ steps.k.T)[seen], steps.scores[seen])
    if name != "alibi":
        torch.testing.assert_close(steps.scores * steps.scale, steps.scaled)
    torch.testing.assert_close(steps.scaled.softmax(dim=-1), steps.weights)
    torch.testing.assert_close(steps.weights @ steps.v, steps.outputs)
    torch.testing.assert_close(steps.outputs, own)
    assert all(module.training for module in model.modules()), "the model is left in the mode it came in"
    assert len(steps.tokens) == len(steps.q)
    assert len(steps.key_tokens) == len(steps.k)
    assert all(len(line) <= 80 for line in str(steps).splitlines())
    assert "6  Weighted sum" in str(steps)


def test_small_example_shows_every_number():
    steps = walk("I am a student")
    assert steps.tokens == ("I", "am", "a", "student")
    shapes = {name: tuple(getattr(steps, name).shape) for name in ("inputs", "q", "k", "v", "scores", "outputs")}
    assert shapes == {"inputs": (4, 4), "q": (4, 3), "k": (4, 3), "v": (4, 3), "scores": (4, 4), "outputs": (4, 3)}
    assert steps.scale == pytest.approx(1 / math.sqrt(3))
    text = str(steps)
    for matrix in (steps.inputs, steps.q, steps.k, steps.v, steps.scores, steps.scaled, steps.weights, steps.outputs):
        assert all(f"{value:.3f}" in text for value in matrix.flatten().tolist())
    assert "more rows" not in text
    assert "\x1b" not in text


def test_seed_draws_the_model_and_nothing_else():
    before = torch.get_rng_state()
    first, same, other = walk("a b c"), walk("a b c", seed=0), walk("a b c", seed=1)
    assert torch.equal(first.weights, same.weights)
    assert not torch.equal(first.weights, other.weights)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_word_that_comes_again_has_the_same_id():
    model = Transformer(presets.tiny_encoder(positions=Positions()))
    steps = walk("so it goes so", model=model)
    assert torch.equal(steps.inputs[0], steps.inputs[3])
    assert torch.equal(walk([0, 1, 2, 0], model=model).weights, steps.weights)
    assert torch.equal(walk(torch.tensor([0, 1, 2, 0]), model=model, tokens="wxyz").weights, steps.weights)


def test_names_of_tokens():
    assert walk([5, 7]).tokens == ("5", "7")
    assert walk([5, 7], tokens=["five", "seven"]).tokens == ("five", "seven")
    assert walk(torch.randn(1, 3, 15, 15), model=presets.tiny_vit()).tokens[:2] == ("1", "2")
    strange = str(walk(["[bold]", "\x1b[31m", "a\nb", "日本語日本語日本語"]))
    assert "[bold]" in strange
    assert "\x1b" not in strange


def test_masked_places_are_dashes():
    steps = walk("a b c", model=presets.tiny_decoder())
    assert steps.to_dict()["scores"][0][1:] == [None, None]
    assert steps.to_dict()["weights"][0] == [1.0, 0.0, 0.0]
    first_row = next(line for line in str(steps).split("3  Scores")[1].splitlines() if line.startswith("   a "))
    assert first_row.split()[2:] == ["-", "-"]


def test_long_inputs_say_what_is_left_out():
    text = str(walk(" ".join(f"w{i}" for i in range(31)), model=presets.tiny_decoder()))
    assert "... and 23 more rows, 21 more columns" in text  # the inputs, 29 wide
    assert "... and 23 more rows, 23 more columns" in text  # the scores
    assert len(text.splitlines()) < 120


def test_printing_costs_nothing_for_what_is_left_out(monkeypatch):
    short, written = walk("a b c d e f g h i j k l"), []
    number = page.Matrix.number
    monkeypatch.setattr(page.Matrix, "number", lambda *at: written.append(at) or number(*at))

    def count(n: int) -> int:
        written.clear()
        steps = dataclasses.replace(
            short,
            tokens=("w",) * n,
            key_tokens=("w",) * n,
            **{name: torch.randn(n, 4) for name in ("inputs", "q", "k", "v", "outputs")},
            **{name: torch.randn(n, n) for name in ("scores", "scaled")},
            weights=torch.randn(n, n).softmax(-1),
        )
        assert f"... and {n - 8} more rows, {n - 8} more columns" in str(steps)
        return len(written)

    assert 0 < count(503) == count(53)


def test_walk_is_the_function():
    import regard.look.steps as module

    assert regard.walk is regard.look.walk is module.walk
    assert callable(module.walk)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": " "}, "text (' ') is empty; give at least one word"),
        ({"text": []}, "text ([]) is empty; give at least one word"),
        ({"text": [1, "a"]}, "text must be a text, a list of words, a list of ids or a tensor, not a mixture"),
        ({"text": torch.ones(2, 3, dtype=torch.int64)}, "text of shape (2, 3) must be one row with something in it"),
        ({"text": "a", "head": 1}, "head (1) is not in layer 0.self; its only head is 0"),
        ({"text": "a", "head": -1}, "head (-1) is not in layer 0.self; its only head is 0"),
        ({"text": "a", "layer": 7}, "layer ('7') is not in this model; it has encoder 0.self"),
        ({"text": "a", "seed": -1}, "seed (-1) must be a whole number from 0 up, below 2**63"),
        ({"text": "a b", "tokens": ["a"]}, "tokens (1 names) must name each of the 2 positions"),
        (
            {"text": "a", "target": "b"},
            "target: only a decoder that reads an encoder has one; this layer is the encoder's",
        ),
        (
            {"text": "w " * 41, "model": presets.tiny_decoder()},
            "41 tokens are more than the 37 positions of this model; shorten the input or raise max_len",
        ),
        (
            {"text": "a", "model": presets.tiny_encoder_decoder(), "layer": "2.cross"},
            "layer ('2.cross') is not in this model; it has encoder 0.self to 1.self, decoder 0.self to 1.cross",
        ),
        (
            {"text": "a", "model": presets.tiny_encoder_decoder(), "layer": "0.cross"},
            "target: this decoder writes a target while it reads the text; give both",
        ),
        (
            {"text": "a", "model": presets.tiny_vit()},
            "text: the encoder of this model reads images, not words; give its tensor from Python",
        ),
        ({"text": "a", "model": presets.tiny_lstm()}, "this model has no attention layers to walk through"),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    with pytest.raises(InputError) as error:
        walk(arguments.pop("text"), **arguments)
    assert str(error.value) == message


def test_a_model_too_large_for_the_machine_is_refused_before_it_is_drawn():
    with pytest.raises(InputError, match=r"174,604,259,328 parameters need 650 GiB, this machine has \d+"):
        walk("a", model=presets.gpt3())


# ---------------------------------------------------------------------------------------
# From a blackboard


@pytest.mark.parametrize(
    ("scores", "d_key", "weights"),
    [
        ([102, 99], 3, [0.85, 0.15]),
        ([112, 96, 16, 8], 64, [0.88, 0.12, 0.00, 0.00]),
        ([92, 124, 22, 8], 64, [0.02, 0.98, 0.00, 0.00]),
    ],
)
def test_the_lectures_scores(scores, d_key, weights):
    steps = walk_scores(scores, d_key=d_key)
    assert [round(weight, 2) for weight in steps.weights] == weights
    exact = (torch.tensor(scores, dtype=torch.float64) / math.sqrt(d_key)).softmax(-1)
    assert steps.weights == pytest.approx(exact.tolist(), abs=1e-12)


def test_scores_print_true_values():
    assert str(walk_scores([102, 99], d_key=3)).splitlines()[3].split()[:4] == ["1", "102", "58.8897", "0.8497"]


def test_scores_far_apart_do_not_overflow():
    assert walk_scores([1e308, -1e308], d_key=1).weights == (1.0, 0.0)


@pytest.mark.parametrize(
    ("scores", "d_key", "message"),
    [
        ([], 5, "scores are empty; give at least one number"),
        ([1, math.nan], 5, "scores (nan) must be finite numbers"),
        ([1, math.inf], 5, "scores (inf) must be finite numbers"),
        ([1, "2"], 5, "scores ('2') must be finite numbers"),
        ([1, None], 5, "scores (None) must be finite numbers"),
        ([1, 2], 0, "d_key (0) must be a whole number of at least 1"),
        ([1, 2], 2.5, "d_key (2.5) must be a whole number of at least 1"),
    ],
)
def test_scores_that_are_none(scores, d_key, message):
    with pytest.raises(InputError) as error:
        walk_scores(scores, d_key=d_key)
    assert str(error.value) == message
    assert isinstance(error.value, regard.RegardError)
