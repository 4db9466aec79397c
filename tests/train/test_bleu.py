"""BLEU while training: what is measured is what `regard translate` would write, and the model is chosen by it."""

import sys

import pytest
import sacrebleu
import torch
from safetensors.torch import load_file

import toy
from regard import load
from regard.config import ConfigError, InputError
from regard.data.prepare import prepare
from regard.schema import from_dict
from regard.train import checkpoint, tasks
from regard.train.loop import _is_better, train
from regard.train.watch import Watch

RECURRENT = {"preset": "tiny_bahdanau"}


@pytest.fixture(scope="module")
def prepared_pairs(tmp_path_factory):
    return toy.prepared(tmp_path_factory.mktemp("pairs"), "translate", bleu=5)


@pytest.fixture
def pairs(prepared_pairs, monkeypatch):
    """(recipe, data), of which no samples are shown: to write them takes longer than to train."""
    monkeypatch.setattr(tasks, "samples", lambda *_: iter(()))
    return prepared_pairs


def fit(recipe, data, path, **options):
    return train(recipe, data.path, path, device="cpu", watch=Watch(quiet=True), **options)


def changed(recipe, **changes):
    return recipe.replace(train=recipe.train.replace(**changes))


def valid(run, kind="valid"):
    return [line for line in run.lines() if line["kind"] == kind]


def said(monkeypatch, *values):
    """BLEU is these numbers, one a validation, and of nothing; the first is the trial before training."""
    left = iter((0.0, *values))
    monkeypatch.setattr(tasks, "translations", lambda *_: [])
    monkeypatch.setattr(tasks, "bleu", lambda *_: next(left))


def test_a_model_that_learns_reaches_a_bleu(tmp_path):
    """Names of colours, each with its other name: so few that a small model knows them all."""
    words = ["red", "blue", "green", "white", "black", "brown", "pink"]
    texts = [" ".join((a, b, c, d)) for a in words for b in words for c in words[:3] for d in words[:2]]
    for name, lines in (("in", texts), ("out", [text.upper() for text in texts])):
        (tmp_path / f"pairs.{name}").write_text("".join(f"{line}\n" for line in lines))
    files = {"source": str(tmp_path / "pairs.in"), "target": str(tmp_path / "pairs.out")}
    tower = {"d_model": 64, "n_layers": 1, "n_heads": 2, "d_ff": 128, "dropout": 0.0, "embed_dropout": 0.0}
    recipe = toy.make_recipe(
        tmp_path, "translate", steps=150, batch_tokens=512, lr=5e-3, bleu=97, valid_every=50, log_every=50,
        model={"preset": "vaswani_base", "encoder": tower, "decoder": tower},
    )  # fmt: skip
    files = {"train": files, "valid": files, "tokenizer": {"vocab_size": 300}}
    recipe = recipe.replace(data=from_dict(type(recipe.data), {"task": "translate", **files}))
    data = prepare(recipe.data, tmp_path / "data")
    run = fit(recipe, data, tmp_path / "run")
    scores = [line["bleu"] for line in valid(run)]
    assert scores[0] < scores[-1]
    assert scores[-1] > 50, scores
    # What was measured is sacreBLEU of what the model that was kept says of the first held-out pairs.
    translations = load(run.path, device="cpu").translate(texts[:97], whole=True, beam=1)
    by_hand = sacrebleu.corpus_bleu([t.text for t in translations], [[text.upper() for text in texts[:97]]])
    assert by_hand.score == pytest.approx(max(scores))


@pytest.mark.slow
@pytest.mark.parametrize("model", [None, RECURRENT], ids=["transformer", "recurrent"])
def test_training_is_the_same_with_it_as_without(tmp_path, model):
    recipe, data = toy.prepared(tmp_path, "translate", model=model, bleu=7)
    with_it = fit(recipe, data, tmp_path / "with")
    without = fit(changed(recipe, bleu=0), data, tmp_path / "without")
    assert [line["loss"] for line in with_it.lines()] == [line["loss"] for line in without.lines()]
    assert all("bleu" in line for line in valid(with_it))
    assert not any("bleu" in line for line in without.lines())


@pytest.mark.slow
def test_it_is_told_and_drawn(pairs, tmp_path, capsys):
    recipe, data = pairs
    train(recipe, data.path, tmp_path / "run", device="cpu", watch=Watch())
    told = capsys.readouterr().err
    assert "  bleu 0.00  best so far" in told
    assert told.splitlines()[-1].endswith("  bleu 0.00")
    assert (tmp_path / "run" / "curves.png").exists()


@pytest.mark.slow
def test_lines_say_when_the_weights_were_reached_and_how_long_it_took(pairs, tmp_path):
    recipe, data = pairs
    run = fit(recipe, data, tmp_path / "run")
    lines = list(run.lines())
    for at, line in enumerate(lines):
        if line["kind"] == "valid":
            assert lines[at - 1]["seconds"] <= line["seconds"]
            later = [x["seconds"] for x in lines[at + 1 :]]
            assert not later or line["seconds"] + line["took"] <= later[0]


# ---------------------------------------------------------------------------------------
# Chosen by it


@pytest.mark.slow
def test_the_best_by_bleu_is_kept_even_if_the_loss_prefers_another(pairs, tmp_path, monkeypatch):
    recipe, data = pairs
    said(monkeypatch, 3.0, 7.0, 5.0, 7.0)
    recipe = changed(recipe, valid_every=5, checkpoint_every=5, keep=4, schedule="constant")
    run = fit(recipe, data, tmp_path / "run")
    losses = [line["loss"] for line in valid(run)]
    assert [line["bleu"] for line in valid(run)] == [3.0, 7.0, 5.0, 7.0]
    assert losses == sorted(losses, reverse=True)  # by which the last would be kept ...
    assert checkpoint.read_facts(checkpoint.checkpoints(run.path)[-1])["best"]["step"] == 20  # ... at an equal BLEU

    said(monkeypatch, 3.0, 7.0, 5.0, 6.0)
    run = fit(recipe, data, tmp_path / "other")
    best = checkpoint.read_facts(checkpoint.checkpoints(run.path)[-1])["best"]
    assert (best["step"], best["bleu"]) == (10, 7.0)
    at_ten = checkpoint.load(checkpoint.checkpoints(run.path)[1])[1]["weights"]
    kept = load_file(run.weights)
    assert all(torch.equal(value, kept[name]) for name, value in at_ten.items())


def test_what_is_better():
    first = {"step": 1, "loss": 2.0, "bleu": 7.0}
    assert _is_better({"loss": 3.0, "bleu": 7.1}, first, "bleu")
    assert not _is_better({"loss": 1.0, "bleu": 6.9}, first, "bleu")
    assert _is_better({"loss": 1.0, "bleu": 7.0}, first, "bleu")  # of equals the one with less loss
    assert not _is_better({"loss": 2.0, "bleu": 7.0}, first, "bleu")
    assert not _is_better({"loss": float("nan"), "bleu": 9.0}, first, "bleu")
    assert _is_better({"loss": 3.0, "accuracy": 0.8}, {"step": 1, "loss": 2.0, "accuracy": 0.7}, "accuracy")
    assert not _is_better({"loss": 3.0, "accuracy": 0.8}, {"step": 1, "loss": 2.0, "accuracy": 0.7})
    assert _is_better({"loss": 1.0}, {"step": 1, "loss": 2.0})
    assert not _is_better({"loss": 2.0}, {"step": 1, "loss": 1.0})


@pytest.mark.slow
def test_patience_counts_by_it(pairs, tmp_path, monkeypatch):
    recipe, data = pairs
    said(monkeypatch, 3.0, 2.0, 1.0, 9.0)
    run = fit(changed(recipe, patience=2, valid_every=2), data, tmp_path / "run")
    assert [line["step"] for line in valid(run)] == [2, 4, 6]
    losses = [line["loss"] for line in valid(run)]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize(("of_average", "kept"), [(9.0, True), (4.0, False)])
def test_the_average_of_checkpoints_is_kept_by_it(pairs, tmp_path, monkeypatch, of_average, kept):
    recipe, data = pairs
    said(monkeypatch, 3.0, 5.0, of_average)
    run = fit(changed(recipe, average=2, keep=2), data, tmp_path / "run")
    assert valid(run, "average")[0]["bleu"] == of_average
    weights = [checkpoint.load(folder)[1]["weights"] for folder in checkpoint.checkpoints(run.path)]
    mean = {name: ((weights[0][name].double() + weights[1][name].double()) / 2).float() for name in weights[0]}
    expected = mean if kept else weights[1]
    found = load_file(run.weights)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


# ---------------------------------------------------------------------------------------
# Law 8


@pytest.mark.slow
def test_killed_and_resumed_is_never_killed(tmp_path, monkeypatch):
    towers = {name: {"max_len": 97, "dropout": 0.1, "embed_dropout": 0.1} for name in ("encoder", "decoder")}
    recipe, data = toy.prepared(
        tmp_path, "translate", model={"preset": "tiny_encoder_decoder", **towers}, bleu=5, steps=12, valid_every=3,
        checkpoint_every=4, ema=0.9, average=2,
    )  # fmt: skip
    straight = fit(recipe, data, tmp_path / "straight")
    with toy.killed_at(8, monkeypatch):
        fit(recipe, data, tmp_path / "broken")
    broken = fit(None, data, tmp_path / "broken", resume=True)

    def told(run):
        timed = ("seconds", "took", "tokens_per_second", "waited")
        return [{key: value for key, value in line.items() if key not in timed} for line in run.lines()]

    def last(run):
        facts = checkpoint.read_facts(checkpoint.checkpoints(run.path)[-1])
        return facts["files"], facts["best"], facts["bad_validations"]

    assert told(broken) == told(straight)
    assert last(broken) == last(straight)
    assert broken.weights.read_bytes() == straight.weights.read_bytes()


# ---------------------------------------------------------------------------------------
# Refused at once


@pytest.mark.parametrize("task", sorted(set(toy.MODELS) - {"translate", "caption", "show"}))
def test_other_tasks_have_none(tmp_path, task):
    with pytest.raises(ConfigError) as caught:
        toy.make_recipe(tmp_path, task, bleu=5)
    named = toy.TASKS.get(task, task)
    assert str(caught.value) == f"train.bleu (5): only translations and captions have a BLEU; for {named} leave it out"


def test_a_negative_number_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"bleu \(-1\) must be at least 0"):
        toy.make_recipe(tmp_path, "translate", bleu=-1)


def test_without_held_out_pairs_there_is_nothing_to_translate(pairs, tmp_path):
    recipe, _ = pairs
    recipe = recipe.replace(data=recipe.data.replace(valid=type(recipe.data.valid)()))
    data = prepare(recipe.data, tmp_path / "data")
    with pytest.raises(InputError, match=r"train.bleu \(5\) needs held-out pairs; give data.valid or data.hold_out"):
        fit(recipe, data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_sacrebleu_nothing_begins(pairs, tmp_path, monkeypatch):
    recipe, data = pairs
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(InputError, match="sacrebleu; install it: pip install sacrebleu"):
        fit(recipe, data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    fit(changed(recipe, bleu=0), data, tmp_path / "run")
