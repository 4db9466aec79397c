"""Training: parts add up to the whole, a killed run ends where it would have ended, and nothing bad passes unseen."""

import json
import math
import stat

import pytest
import torch
from safetensors.torch import load_file

import toy
from regard.config import ConfigError, InputError, RegardError
from regard.data.batches import make_batches
from regard.files import MODE
from regard.recipe import model_config
from regard.train import checkpoint, tasks
from regard.train.distributed import World
from regard.train.loader import Loader
from regard.train.loop import Stopped, Trainer, settled, train
from regard.train.optim import learning_rate
from regard.train.run import Run
from regard.train.tune import opened_to_tune
from regard.train.watch import Watch

CPU = World(0, 1, torch.device("cpu"))


# The attention GRU takes a step a token, and is in no other way different from the other captioner.
TASKS = [pytest.param(task, marks=pytest.mark.slow) if task == "show" else task for task in toy.MODELS]


@pytest.fixture(scope="module", params=TASKS)
def task(request, tmp_path_factory):
    """(recipe, data) of every task."""
    return toy.prepared(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def prepared_pairs(tmp_path_factory):
    return toy.prepared(tmp_path_factory.mktemp("pairs"), "translate")


@pytest.fixture
def pairs(prepared_pairs, monkeypatch):
    """(recipe, data), of which no samples are shown: to write them takes longer than to train. Those of ``task`` are."""
    monkeypatch.setattr(tasks, "samples", lambda *_: iter(()))
    return prepared_pairs


def fit(recipe, data, path, **options):
    return train(recipe, data.path, path, device="cpu", watch=Watch(quiet=True), **options)


def trainer(recipe, data, path, **changes):
    return Trainer(recipe.replace(train=recipe.train.replace(**changes)), data, Run(path), CPU, Watch(quiet=True))


def losses(run, kind="train"):
    return [line["loss"] for line in run.lines() if line["kind"] == kind]


def final(run):
    """The bytes of the last checkpoint's files, by their hash."""
    last = checkpoint.checkpoints(run.path)[-1]
    return {name: told["sha256"] for name, told in checkpoint.read_facts(last)["files"].items()}


# ---------------------------------------------------------------------------------------
# Laws 8 and 9


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_parts_add_up_to_the_whole_batch(task, tmp_path, parts):
    recipe, data = task
    smoothing = 0.0 if data.task == "match" else 0.1
    whole, cut = (trainer(recipe, data, tmp_path, micro_batches=n, smoothing=smoothing) for n in (1, parts))
    for one in (whole, cut):
        one.model.double()
    for step in (1, 2, 3):
        for one, n in ((whole, 1), (cut, parts)):
            loader = Loader(one.batches, step, parts=n, rank=0, world=1, device=torch.device("cpu"))
            update = next(loader)
            loader.stop()
            for batch in one.together(update):
                (one.objective(batch) / update.size.wanted).backward()
        for (name, a), b in zip(whole.model.named_parameters(), cut.model.parameters(), strict=True):
            torch.testing.assert_close(
                a.grad, b.grad, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
            )
        for p in (*whole.model.parameters(), *cut.model.parameters()):
            p.grad = None


def test_the_loss_is_the_mean_over_everything_that_is_wanted(task, tmp_path):
    recipe, data = task
    one = trainer(recipe, data, tmp_path, micro_batches=3)
    loader = Loader(one.batches, 1, parts=3, rank=0, world=1, device=torch.device("cpu"))
    update = next(loader)
    loader.stop()
    together = one.together(update)
    total = sum(tasks.loss(one.model, batch)[0].detach() for batch in together)
    count = sum(int(tasks.loss(one.model, batch)[1]) for batch in together)
    assert count == update.size.wanted
    one.step(update)
    assert float(one.sums[0]) == pytest.approx(float(total), rel=1e-6)
    assert float(one.sums[1]) == count


def test_killed_and_resumed_is_never_killed(task, tmp_path, monkeypatch):
    recipe, data = task
    model = {**recipe.model}
    for tower in ("encoder", "decoder"):
        if tower in model:
            model[tower] = {**model[tower], "dropout": 0.1, "embed_dropout": 0.1}
    recipe = recipe.replace(model=model, train=recipe.train.replace(ema=0.9, average=2, micro_batches=2, log_every=3))
    if data.images is None:
        recipe = recipe.replace(train=recipe.train.replace(word_dropout=0.1))
    straight = fit(recipe, data, tmp_path / "straight")

    with toy.killed_at(10, monkeypatch):
        fit(recipe, data, tmp_path / "broken")
    with Run(tmp_path / "broken").metrics.open("a") as file:
        file.write('{"step": 11, "kind": "train", "loss": 1.0}\n{"step": 12, "ki')  # what a killed process leaves
    broken = fit(None, data, tmp_path / "broken", resume=True)

    fit(None, data, broken.path, resume=True)  # of a run that is done: nothing is done twice
    assert losses(broken) == losses(straight)
    assert losses(broken, "valid") == losses(straight, "valid")
    assert losses(broken, "average") == losses(straight, "average")
    assert final(broken) == final(straight)
    assert broken.weights.read_bytes() == straight.weights.read_bytes()


def test_two_runs_of_one_seed_are_one_run(pairs, tmp_path):
    recipe, data = pairs
    assert losses(fit(recipe, data, tmp_path / "a")) == losses(fit(recipe, data, tmp_path / "b"))
    other = recipe.replace(train=recipe.train.replace(seed=2))
    assert losses(fit(other, data, tmp_path / "c")) != losses(Run(tmp_path / "a"))


def test_a_signal_saves_and_the_resumed_run_is_as_if_there_had_been_none(pairs, tmp_path, monkeypatch):
    recipe, data = pairs
    recipe = recipe.replace(train=recipe.train.replace(average=2, keep=2))
    straight = fit(recipe, data, tmp_path / "straight")
    stepped = Trainer.step

    def interrupted(self, update):
        stepped(self, update)
        if update.step == 7:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "step", interrupted)
    with pytest.raises(Stopped, match="SIGTERM"):
        fit(recipe, data, tmp_path / "broken")
    monkeypatch.setattr(Trainer, "step", stepped)
    at = checkpoint.checkpoints(tmp_path / "broken")
    assert [f.name for f in at] == ["step-000000005", "step-000000007"]
    there = load_file(tmp_path / "broken" / "model.safetensors")  # something to use, before the first validation
    assert all(torch.equal(w, there[name]) for name, w in checkpoint.load(at[-1])[1]["weights"].items())
    broken = fit(None, data, tmp_path / "broken", resume=True)
    assert final(broken) == final(straight)
    assert broken.weights.read_bytes() == straight.weights.read_bytes()
    # The one between is gone: averages are over the regular ones.
    assert [f.name for f in checkpoint.checkpoints(broken.path)] == ["step-000000015", "step-000000020"]


# ---------------------------------------------------------------------------------------
# What is kept


def test_the_run_directory_has_all_that_is_needed(task, tmp_path):
    recipe, data = task
    run = fit(recipe, data, tmp_path / "run")
    config = run.config()
    assert config["task"] == data.task
    packed = data.task in ("generate", "fill")  # what the recipe leaves open is decided
    assert config["recipe"] == recipe.replace(train=recipe.train.replace(packed=packed)).to_dict()
    assert {"config.json", "curves.png", "metrics.jsonl", "model.safetensors"} <= {f.name for f in run.path.iterdir()}
    assert (run.path / "tokenizer.json").exists() == data.has_text
    assert config.get("images") == data.manifest.get("images")
    assert not [f.name for f in run.path.rglob(".*")]
    assert {stat.S_IMODE(f.stat().st_mode) for f in run.path.rglob("*.*") if f.is_file()} == {MODE}
    lines = list(run.lines())
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, 21))
    assert [line["step"] for line in lines if line["kind"] == "valid"] == [10, 20]
    if data.labels:
        assert json.loads((run.path / "labels.json").read_text()) == data.labels


def test_the_best_weights_are_kept_not_the_last(pairs, tmp_path):
    recipe, data = pairs
    # A rate that ruins the model after a good start.
    recipe = recipe.replace(train=recipe.train.replace(schedule="constant", valid_every=5, lr=0.01))
    run = Run(tmp_path / "run")
    one = Trainer(recipe, data, run, CPU, Watch(quiet=True))
    run.create(recipe, one.config, data)
    one.number = 5
    one.validate()
    good = run.weights.read_bytes()
    with torch.no_grad():
        for p in one.model.parameters():
            p.add_(torch.randn_like(p))
    one.number = 10
    one.validate()
    assert one.best["step"] == 5
    assert one.bad_validations == 1
    assert run.weights.read_bytes() == good


def test_a_run_begins_from_another_ones_weights(pairs, tmp_path):
    """Its first step is that of weights put there by hand; its config.json says whose they are."""
    recipe, data = pairs
    recipe = recipe.replace(train=recipe.train.replace(steps=3, ema=0.9))
    first = fit(recipe, data, tmp_path / "first")
    begun = trainer(recipe, data, tmp_path / "begun")
    begun.begin_from(opened_to_tune(first.path))
    for name, weight in load_file(first.weights).items():
        assert torch.equal(begun.weights[name], weight)
        assert torch.equal(begun.average[name], weight)
    by_hand = trainer(recipe, data, tmp_path / "by hand")
    by_hand.put(load_file(first.weights))
    by_hand.step(next(by_hand._loader()))
    told = losses(fit(recipe, data, tmp_path / "second", begin_from=first.path))[0]
    assert told == pytest.approx(float(by_hand.sums[0] / by_hand.sums[1]))
    began = Run(tmp_path / "second").config()["from"]
    assert began["path"] == str(first.path)
    assert began["training"]["steps"] == 3


def test_another_model_is_no_beginning(pairs, tmp_path):
    recipe, data = pairs
    first = fit(recipe.replace(train=recipe.train.replace(steps=2)), data, tmp_path / "first")
    wider = recipe.replace(model={**recipe.model, "encoder": {"max_len": 97, "d_ff": 23}})
    with pytest.raises(InputError, match=r"has another model \(encoder\.d_ff: \d+ there, 23 here\)"):
        fit(wider, data, tmp_path / "second", begin_from=first.path)
    assert not (tmp_path / "second").exists()
    own = first.path / "tokenizer.json"
    own.write_text(own.read_text().replace('"b"', '"?"').replace('"u"', '"b"').replace('"?"', '"u"'))
    with pytest.raises(InputError, match=r"is not the vocabulary of"):
        fit(recipe, data, tmp_path / "second", begin_from=first.path)
    with pytest.raises(InputError, match=r"nowhere: no such directory"):
        fit(recipe, data, tmp_path / "second", begin_from=tmp_path / "nowhere")


def test_patience_ends_a_run(pairs, tmp_path):
    recipe, data = pairs
    run = fit(recipe.replace(train=recipe.train.replace(lr=0.0, patience=2, valid_every=2)), data, tmp_path / "run")
    assert [line["step"] for line in run.lines() if line["kind"] == "valid"] == [2, 4, 6]


def test_the_moving_average_is_the_formula(pairs, tmp_path):
    recipe, data = pairs
    one = trainer(recipe, data, tmp_path, ema=0.75)
    by_hand = {n: w.detach().double().clone() for n, w in one.weights.items()}
    loader = Loader(one.batches, 1, parts=1, rank=0, world=1, device=torch.device("cpu"))
    for _ in range(3):
        one.step(next(loader))
        by_hand = {n: 0.75 * a + 0.25 * one.weights[n].double() for n, a in by_hand.items()}
    loader.stop()
    for name, value in one.average.items():
        torch.testing.assert_close(value.double(), by_hand[name], rtol=1e-5, atol=1e-7)


def test_the_average_of_checkpoints_is_their_mean(pairs, tmp_path):
    recipe, data = pairs
    recipe = recipe.replace(train=recipe.train.replace(average=3, keep=3, lr=0.03))
    run = fit(recipe, data, tmp_path / "run")
    parts = [checkpoint.load(folder)[1]["weights"] for folder in checkpoint.checkpoints(run.path)]
    assert len(parts) == 3
    mean = {name: sum(p[name].double() for p in parts) / 3 for name in parts[0]}
    averaged, best = losses(run, "average")[0], min(losses(run, "valid"))
    kept = load_file(run.weights)
    if averaged < best:
        for name, value in kept.items():
            torch.testing.assert_close(value.double(), mean[name], rtol=1e-6, atol=1e-8)
    one = trainer(recipe, data, tmp_path)
    one.put(mean)
    assert one.score()["loss"] == pytest.approx(averaged, rel=1e-6)


# ---------------------------------------------------------------------------------------
# What goes wrong


def spoil(monkeypatch, steps):
    """Some updates' losses become NaN."""
    plain, state = Trainer.step, {"step": 0}
    forward = tasks.Objective.forward

    def step(self, update):
        state["step"] = update.step
        plain(self, update)

    def spoiled(self, batch, tallied=False):
        loss = forward(self, batch, tallied)
        return loss * math.nan if state["step"] in steps and not tallied else loss

    monkeypatch.setattr(Trainer, "step", step)
    monkeypatch.setattr(tasks.Objective, "forward", spoiled)


def test_a_loss_that_is_not_finite_moves_nothing_and_is_counted(pairs, tmp_path, monkeypatch):
    recipe, data = pairs
    one = trainer(recipe, data, tmp_path)
    loader = Loader(one.batches, 1, parts=1, rank=0, world=1, device=torch.device("cpu"))
    one.step(next(loader))
    spoil(monkeypatch, {2})
    before = {n: w.detach().clone() for n, w in one.weights.items()}
    steps = [float(s) for what, _, s in one.optimizer.state() if what == "step"]
    one.step(next(loader))
    loader.stop()
    for name, weight in one.weights.items():
        assert torch.equal(weight, before[name]), name
    assert [float(s) for what, _, s in one.optimizer.state() if what == "step"] == steps
    assert one.sums[2:].tolist() == [1.0, 1.0, 1.0]


def test_skipped_updates_are_told(pairs, tmp_path, monkeypatch):
    recipe, data = pairs
    spoil(monkeypatch, {3, 4, 9})
    run = fit(recipe, data, tmp_path / "run")
    skipped = {line["step"] for line in run.lines() if line["kind"] == "train" and line["skipped"]}
    assert skipped == {3, 4, 9}
    assert all(line["loss"] is None or math.isfinite(line["loss"]) for line in run.lines())


def test_the_bar_has_a_loss_from_the_first_step_and_never_forgets_what_was_skipped(pairs, tmp_path, monkeypatch):
    recipe, data = pairs
    spoil(monkeypatch, {3})
    told = []
    monkeypatch.setattr(Watch, "show", lambda watch, line, skipped: told.append((line["step"], line["loss"], skipped)))
    recipe = recipe.replace(train=recipe.train.replace(log_every=5))
    fit(recipe, data, tmp_path / "run")
    shown = {step: (loss, skipped) for step, loss, skipped in told}
    assert {1, 2, 3, 4, 6, 7} <= shown.keys()
    assert all(math.isfinite(loss) for loss, _ in shown.values())
    assert [shown[step][1] for step in (1, 2, 3, 4, 6, 7)] == [0, 0, 1, 1, 1, 1]


def test_too_many_in_a_row_end_the_run_and_leave_the_batch(pairs, tmp_path, monkeypatch):
    recipe, data = pairs
    spoil(monkeypatch, set(range(8, 21)))
    recipe = recipe.replace(train=recipe.train.replace(max_skipped=3))
    with pytest.raises(RegardError, match="not finite 3 times in a row") as caught:
        fit(recipe, data, tmp_path / "run")
    path = tmp_path / "run" / "not-finite-step-10-of-process-0.safetensors"
    assert str(path) in str(caught.value)
    saved = load_file(path)
    batch = make_batches(data, "train", recipe.train, trainer(recipe, data, tmp_path).config).part(9)
    assert torch.equal(saved["0.inputs"], batch.inputs)
    assert torch.equal(saved["0.wanted"], batch.wanted)


def test_out_of_memory_halves_the_parts_and_changes_no_loss(pairs, tmp_path, monkeypatch):
    recipe, data = pairs
    straight = fit(recipe, data, tmp_path / "straight")
    forward = tasks.Objective.forward
    said = []

    def small(self, batch, tallied=False):
        if not tallied and len(batch.inputs) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, batch, tallied)

    monkeypatch.setattr(tasks.Objective, "forward", small)
    monkeypatch.setattr(Watch, "say", lambda self, text: said.append(text))
    cramped = fit(recipe, data, tmp_path / "cramped")
    assert losses(cramped) == pytest.approx(losses(straight), rel=1e-5)
    assert any("out of memory: the same batch in 2 parts" in text for text in said)

    monkeypatch.setattr(tasks.Objective, "forward", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no")))
    with pytest.raises(
        RegardError, match=r"out of memory at step 1 in .* parts; begin a new run with more train.micro_batches"
    ):
        fit(recipe, data, tmp_path / "none")


def test_a_run_directory_that_exists_is_left_alone(pairs, tmp_path):
    recipe, data = pairs
    run = fit(recipe, data, tmp_path / "run")
    before = run.weights.read_bytes()
    with pytest.raises(InputError, match=r"exists already; it is done \(20 steps\); .* go on from it --from .*run$"):
        fit(recipe, data, run.path)
    config = run.path / "config.json"
    longer = json.loads(config.read_text())
    longer["recipe"]["train"]["steps"] = 21
    config.write_text(json.dumps(longer))
    with pytest.raises(
        InputError, match=r"exists already; go on from step 20 with --resume .*, or choose another --out"
    ):
        fit(recipe, data, run.path)
    assert run.weights.read_bytes() == before
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match="exists already; remove it, or choose another --out"):
        fit(recipe, data, tmp_path / "other")


def test_another_recipe_or_other_data_does_not_resume(pairs, tmp_path):
    recipe, data = pairs
    run = fit(recipe, data, tmp_path / "run")
    changed = recipe.replace(train=recipe.train.replace(lr=0.5), model={"preset": "tiny_bahdanau"})
    with pytest.raises(
        InputError,
        match=r'model.preset: "tiny_encoder_decoder" then, "tiny_bahdanau" now.*train.lr: 0.01 then, 0.5 now',
    ):
        fit(changed, data, run.path, resume=True)
    _, other = toy.prepared(tmp_path / "other", "translate", n=101)
    with pytest.raises(InputError, match="is not the data this run began with"):
        fit(None, other, run.path, resume=True)
    with pytest.raises(InputError, match=r"config.json: cannot be read .*; is this a run directory\?"):
        fit(None, data, tmp_path / "nowhere", resume=True)


def test_an_altered_checkpoint_is_refused_by_name(pairs, tmp_path):
    recipe, data = pairs
    run = fit(recipe, data, tmp_path / "run")
    older, newest = checkpoint.checkpoints(run.path)
    file = next(newest.glob("weights-*"))
    whole = file.read_bytes()
    for broken in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        file.write_bytes(broken)
        with pytest.raises(
            InputError,
            match=r"weights-00000.safetensors: missing, cut short or altered .*step-000000015 before it is there",
        ):
            fit(None, data, run.path, resume=True)
    file.unlink()
    with pytest.raises(InputError, match="missing, cut short or altered"):
        fit(None, data, run.path, resume=True)
    (newest / "state.json").write_text("{")
    with pytest.raises(InputError, match=r"state.json: missing, cut short or altered"):
        fit(None, data, run.path, resume=True)
    # The way out that the error names: the one before it.
    checkpoint.discard(newest)
    assert older.exists()
    resumed = fit(None, data, run.path, resume=True)
    assert losses(resumed)[-1] == losses(run)[-1]


# ---------------------------------------------------------------------------------------
# Schedules


def rates(steps=100, **settings):
    settings = recipe_train(steps=steps, lr=2.0, warmup=10, **settings)
    return [learning_rate(settings, step) for step in range(1, steps + 1)]


def recipe_train(**settings):
    from regard.recipe import Train

    return Train(**settings)


@pytest.mark.parametrize("schedule", ["noam", "cosine", "wsd", "constant"])
def test_every_schedule_warms_up_in_a_line_to_its_peak(schedule):
    assert rates(schedule=schedule)[:10] == pytest.approx([0.2 * i for i in range(1, 11)])
    assert max(rates(schedule=schedule)) == 2.0


def test_noam_is_the_papers():
    by_paper = [min(step**-0.5, step * 10**-1.5) for step in range(1, 101)]
    assert rates(schedule="noam") == pytest.approx([2.0 * r / by_paper[9] for r in by_paper])


def test_cosine_ends_at_its_floor_and_wsd_stays_until_its_end():
    cosine = rates(schedule="cosine", final_lr=0.1)
    assert cosine[-1] == pytest.approx(0.2)
    assert cosine[54] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    wsd = rates(schedule="wsd", cooldown=0.2)
    assert wsd[10:80] == [2.0] * 70
    assert wsd[89] == pytest.approx(1.0)
    assert wsd[-1] == 0.0
    assert rates(schedule="constant")[10:] == [2.0] * 90


def test_matrices_decay_and_vectors_do_not(pairs, tmp_path):
    recipe, data = pairs
    one = trainer(recipe, data, tmp_path, weight_decay=0.5, lr=0.0)
    groups = one.optimizer.adam.param_groups
    assert all(w.dim() >= 2 for w in groups[0]["params"])
    assert all(w.dim() < 2 for w in groups[1]["params"])
    assert (groups[0]["weight_decay"], groups[1]["weight_decay"]) == (0.5, 0.0)
    assert sum(len(g["params"]) for g in groups) == len(list(one.model.parameters()))


def test_clipping_is_torchs(pairs, tmp_path):
    """The fused update's scale is the same as clipping first and updating then."""
    recipe, data = pairs
    one = trainer(recipe, data, tmp_path, clip=0.01, warmup=0, schedule="constant")
    two = trainer(recipe, data, tmp_path, clip=0.01)
    loader = Loader(one.batches, 1, parts=1, rank=0, world=1, device=torch.device("cpu"))
    update = next(loader)
    loader.stop()
    one.step(update)
    (two.objective(update.parts[0]) / update.size.wanted).backward()
    norm = torch.nn.utils.clip_grad_norm_(two.model.parameters(), 0.01)
    assert norm > 0.01
    train = one.train
    adam = torch.optim.AdamW(two.model.parameters(), lr=train.lr, betas=train.betas, eps=train.eps, weight_decay=0.0)
    adam.step()
    for (name, a), b in zip(one.model.named_parameters(), two.model.parameters(), strict=True):
        significant = b.grad.abs() > 1e-7  # Adam blows what is only rounding up to the size of lr
        torch.testing.assert_close(
            a[significant], b[significant], rtol=1e-4, atol=1e-5, msg=lambda t, n=name: f"{n}: {t}"
        )


def test_what_a_recipe_leaves_open_about_batches_is_decided_once(pairs, tmp_path):
    recipe, data = pairs
    config = trainer(recipe, data, tmp_path).config
    ancestor = model_config({"preset": "tiny_bahdanau"}, vocab_size=len(data.tokenizer))
    for device, model, packed in (("cpu", config, False), ("cuda", config, True), ("cuda", ancestor, False)):
        assert settled(recipe, model, torch.device(device)).train.packed is packed
    chosen = recipe.replace(train=recipe.train.replace(packed=False))
    assert settled(chosen, config, torch.device("cuda")) == chosen
    # A run that was packed goes on packed, wherever; and its own recipe is no other.
    run = fit(recipe.replace(train=recipe.train.replace(packed=True, row_tokens=127)), data, tmp_path / "run")
    checkpoint.discard(checkpoint.checkpoints(run.path)[-1])
    before = losses(run)
    left_open = recipe.replace(train=recipe.train.replace(row_tokens=127))
    assert losses(fit(left_open, data, run.path, resume=True)) == before


# ---------------------------------------------------------------------------------------
# What a mutant would break


def test_an_update_has_its_own_steps_rate(pairs, tmp_path):
    recipe, data = pairs
    one = trainer(recipe, data, tmp_path)
    loader = Loader(one.batches, 1, parts=1, rank=0, world=1, device=torch.device("cpu"))
    for step in (1, 2, 3):
        one.step(next(loader))
        assert {g["lr"] for g in one.optimizer.adam.param_groups} == {learning_rate(one.train, step)}
    loader.stop()


def test_validation_is_of_the_moving_average_without_smoothing(pairs, tmp_path):
    recipe, data = pairs
    recipe = recipe.replace(train=recipe.train.replace(ema=0.9, smoothing=0.3, steps=10))
    run = fit(recipe, data, tmp_path / "run")
    plain = trainer(recipe, data, tmp_path, smoothing=0.0, ema=0.0)
    average = checkpoint.load(checkpoint.checkpoints(run.path)[-1])[1]["ema"]
    plain.put(average)
    assert plain.score()["loss"] == pytest.approx(losses(run, "valid")[-1], rel=1e-6)
    kept = load_file(run.weights)
    assert all(torch.equal(kept[name], average[name]) for name in kept)


def test_a_run_in_a_row_of_bad_updates_is_forgotten_after_a_good_one(pairs, tmp_path, monkeypatch):
    recipe, data = pairs
    spoil(monkeypatch, {2, 3, 5, 6, 8, 9})
    run = fit(recipe.replace(train=recipe.train.replace(max_skipped=3)), data, tmp_path / "run")
    assert len(losses(run)) == 20


def test_where_a_run_stands_is_resumed(pairs, tmp_path):
    recipe, data = pairs
    recipe = recipe.replace(train=recipe.train.replace(steps=5))
    run = fit(recipe, data, tmp_path / "run")
    folder = checkpoint.checkpoints(run.path)[-1]
    facts = checkpoint.read_facts(folder)
    facts |= {"parts": 4, "bad_validations": 3, "best": {"step": 2, "loss": 0.5}, "sums": [1.0, 2.0, 3.0, 4.0, 5.0]}
    (folder / "state.json").write_text(json.dumps(facts))
    one = trainer(recipe, data, run.path)
    one.resume()
    assert (one.number, one.parts, one.bad_validations, one.best) == (5, 4, 3, {"step": 2, "loss": 0.5})
    assert one.sums.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    facts["step"] = 4  # not what the folder says
    (folder / "state.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match=r"state.json: missing, cut short or altered"):
        one.resume()


def test_a_validation_without_a_number_is_never_the_best(pairs, tmp_path, monkeypatch):
    recipe, data = pairs
    found = iter([math.nan, 2.0, math.nan, 3.0])
    monkeypatch.setattr(Trainer, "score", lambda self: {"loss": next(found)})
    recipe = recipe.replace(train=recipe.train.replace(valid_every=5))
    run = fit(recipe, data, tmp_path / "run")
    best = checkpoint.read_facts(checkpoint.checkpoints(run.path)[-1])["best"]
    assert (best["step"], best["loss"]) == (10, 2.0)
    monkeypatch.setattr(Trainer, "score", lambda self: {"loss": math.nan})
    assert fit(recipe, data, tmp_path / "none").weights.exists()


def test_patience_before_the_first_checkpoint_saves_and_averages_nothing(pairs, tmp_path):
    recipe, data = pairs
    settings = recipe.train.replace(lr=0.0, patience=1, valid_every=2, checkpoint_every=10, average=2)
    run = fit(recipe.replace(train=settings), data, tmp_path / "run")
    assert [f.name for f in checkpoint.checkpoints(run.path)] == ["step-000000004"]
    assert losses(run, "average") == []


def test_a_pair_weighs_as_much_as_its_rows_tokens(tmp_path):
    model = {"preset": "tiny_encoder", "encoder": {"max_len": 97}, "pair_head": {"n_labels": 2}}
    recipe, data = toy.prepared(tmp_path, "fill", model=model)
    one = trainer(recipe, data, tmp_path)
    batch = one.batches.part(0)
    tokens, count = tasks.loss(one.model, batch._replace(pair=None))
    both, same = tasks.loss(one.model, batch)
    encoded = one.model.encode(batch.inputs, batch.layout, segments=batch.segments)
    pairs = torch.nn.functional.cross_entropy(
        one.model.pair_head(encoded.hidden, encoded.layout), batch.pair, reduction="none"
    )
    asked = torch.zeros(len(pairs))
    for at, wanted in zip(batch.at.tolist(), batch.wanted.tolist(), strict=True):
        asked[at // batch.inputs.shape[1]] += wanted >= 0
    assert len(asked.unique()) > 1
    assert both.item() == pytest.approx((tokens + (pairs * asked).sum()).item(), rel=1e-5)
    assert count == same


@pytest.mark.parametrize(("name", "tower"), [("translate", "decoder"), ("classify", "encoder")])
def test_r_drop_is_the_papers(name, tower, tmp_path):
    """Without dropout both passes agree and nothing is added; with it, twice the weight is twice the distance. Of a
    vocabulary's scores, and of labels'."""
    recipe, data = toy.prepared(tmp_path, name)
    one = trainer(recipe, data, tmp_path)
    batch = one.batches.part(0)
    plain = tasks.loss(one.model, batch, 0.1)[0].item()
    assert tasks.r_drop_loss(one.model, batch, 0.1, 5.0)[0].item() == pytest.approx(plain, rel=1e-5)
    dropped = {**recipe.model, tower: {**recipe.model[tower], "dropout": 0.3}}
    two = trainer(recipe.replace(model=dropped), data, tmp_path)

    def value(weight):
        torch.manual_seed(3)
        return tasks.r_drop_loss(two.model, batch, 0.1, weight)[0].item()

    assert value(1.0) > value(0.0)
    assert value(2.0) - value(0.0) == pytest.approx(2 * (value(1.0) - value(0.0)), rel=1e-3)


@pytest.mark.parametrize(
    ("task", "model", "changes", "message"),
    [
        (
            "fill",
            {"preset": "tiny_elmo", "encoder": {"bidirectional": False}},
            {},
            r"bidirectional \(false\) must be true for task 'fill'",
        ),
        ("fill", {"preset": "tiny_encoder", "pair_head": {"n_labels": 2}}, {"r_drop": 1.0}, "without r_drop"),
        (
            "classify",
            {"preset": "tiny_encoder", "head": {"kind": "pooled"}, "pair_head": {"n_labels": 2}},
            {},
            "goes with task 'fill'",
        ),
        ("translate", {"preset": "gpt2"}, {}, "does not fit task 'translate', which needs encoder-decoder"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(tmp_path, task, model, changes, message):
    with pytest.raises(ConfigError, match=message):
        toy.make_recipe(tmp_path, task, model=model, **changes)
