"""Fine-tuning: what is taken is told, what is frozen stays bit for bit, and a killed run ends where it would have."""

import io
import json
import shutil

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from safetensors.torch import load_file

import foreign
import regard
import toy
from regard.config import InputError
from regard.data.prepare import prepare
from regard.decode.chat import chat_template
from regard.nn import Transformer
from regard.recipe import Recipe, completed
from regard.schema import ConfigError, from_dict
from regard.train import checkpoint, tasks, tune
from regard.train.distributed import World
from regard.train.loop import Trainer, train
from regard.train.run import Run
from regard.train.tune import opened_to_tune
from regard.train.watch import Watch

CPU = World(0, 1, torch.device("cpu"))
COLUMNS = {"number": ["1", "2"], **toy.COLUMNS}


def base(folder, task, model=None):
    """A model to begin with, hardly trained."""
    recipe, data = toy.prepared(folder, task, n=53, model=model, steps=7, valid_every=7, checkpoint_every=7)
    return train(recipe, data.path, folder / "run", device="cpu", watch=Watch(quiet=True)).path


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return base(tmp_path_factory.mktemp("reader"), "fill")


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    return base(tmp_path_factory.mktemp("writer"), "generate", {"preset": "tiny_decoder", "decoder": {"max_len": 97}})


@pytest.fixture(scope="module")
def elmo(tmp_path_factory):
    return base(tmp_path_factory.mktemp("elmo"), "fill", {"preset": "tiny_elmo"})


def ask(folder, task, model=None, data=None, **settings):
    """A recipe for what comes after, which leaves the body to the model that it begins with."""
    about = {
        "task": "classify" if task == "number" else task,
        "labels": "numbers" if task == "number" else "names",
        "train": toy.write(folder, task, 61, 3, "tune"),
        "valid": toy.write(folder, task, 23, 4, "held"),
        "columns": COLUMNS.get(task, []),
        "documents": "line",
        **(data or {}),
    }
    how = {
        "steps": 8, "batch_tokens": 512, "lr": 0.01, "warmup": 0, "schedule": "constant", "valid_every": 4,
        "checkpoint_every": 4, "log_every": 1, **settings,
    }  # fmt: skip
    return from_dict(Recipe, {"data": about, "model": model or {}, "train": how})


def tuned(folder, start, task, watch=None, **options):
    """A run of it, from start to end."""
    recipe, given = ask(folder, task, **options), None if start is None else opened_to_tune(start)
    if given is not None and not (folder / "data").exists():
        prepare(recipe.data, folder / "data", tokenizers=tune.tokenizers(given))
    place = folder / "tuned"
    return train(recipe, folder / "data", place, device="cpu", begin_from=given, watch=watch or Watch(quiet=True))


def trainer(folder, start, task, **options):
    """One that has not made a step."""
    given = opened_to_tune(start)
    recipe = completed(ask(folder, task, **options), given.config)
    data = prepare(recipe.data, folder / "data", tokenizers=tune.tokenizers(given))
    made = Trainer(recipe, data, Run(folder / "run"), CPU, Watch(quiet=True))
    made.begin_from(given)
    return made, given


# ---------------------------------------------------------------------------------------
# What is taken


def test_a_new_head_is_told_and_the_body_is_taken(reader, tmp_path):
    said = Watch()
    said.console = Console(file=io.StringIO(), width=400)
    run = tuned(tmp_path, reader, "classify", steps=1, lr=0.0, watch=said)
    told = run.config()["from"]
    assert told["path"] == str(reader.resolve())
    assert told["training"]["steps"] == 7
    assert told["new"] == ["head.classify.weight", "head.classify.bias"]
    assert set(told["left"]) == {
        "head.bias",
        "head.dense.weight",
        "head.dense.bias",
        "head.norm.weight",
        "head.norm.bias",
    }
    line = next(line for line in said.console.file.getvalue().splitlines() if line.startswith("from "))
    assert (
        "tensors taken; new, drawn at random: head.classify.weight, head.classify.bias; left behind: head.bias" in line
    )
    before, after = load_file(reader / "model.safetensors"), load_file(run.weights)
    body = [name for name in before if name.startswith("encoder.")]
    assert body
    assert all(torch.equal(before[name], after[name]) for name in body)
    assert regard.load(run.path).labels == ("animal", "none")


@pytest.mark.parametrize("kind", ["writer", "reader", "elmo"])
def test_a_head_of_the_same_kind_goes_on(kind, tmp_path, request):
    """Before the first step the scores are those that the other run ended with."""
    start = request.getfixturevalue(kind)
    task = json.loads((start / "config.json").read_text())["task"]
    data = {"valid": toy.write(tmp_path, task, 31, 2, "same")}  # as the other had it
    run = tuned(tmp_path, start, task, data=data, steps=1, batch_tokens=256)
    assert run.config()["from"]["new"] == run.config()["from"]["left"] == []
    [first, *_] = [line for line in run.lines() if line["kind"] == "valid"]
    [*_, last] = [line for line in Run(start).lines() if line["kind"] == "valid"]
    assert first["step"] == 0
    assert first["loss"] == pytest.approx(last["loss"], rel=1e-5)


def test_a_head_for_other_labels_is_new(tmp_path):
    start = base(tmp_path / "base", "classify")
    same, _ = trainer(tmp_path / "same", start, "classify")
    assert torch.equal(
        same.weights["head.classify.weight"], load_file(start / "model.safetensors")["head.classify.weight"]
    )
    file = toy.write(tmp_path / "other", "classify", 61, 3, "tune")
    text = (tmp_path / "other" / "tune.tsv").read_text().replace("\tnone", "\tnothing")
    (tmp_path / "other" / "else.tsv").write_text(text)
    data = {"train": {"files": file["files"].replace("tune.tsv", "else.tsv")}, "valid": {}}
    given = opened_to_tune(start)
    recipe = completed(ask(tmp_path / "other", "classify", data=data), given.config)
    made = prepare(recipe.data, tmp_path / "other" / "data", tokenizers=tune.tokenizers(given))
    other = Trainer(recipe, made, Run(tmp_path / "run"), CPU, Watch(quiet=True))
    assert other.begin_from(given)["new"] == ["head.classify.weight", "head.classify.bias"]


def test_only_what_changes_is_said(reader, tmp_path):
    model = {"encoder": {"dropout": 0.5}, "head": {"pool": "mean", "dense": True}}
    made, given = trainer(tmp_path, reader, "classify", model=model)
    assert made.config.encoder == given.config.encoder.replace(dropout=0.5)
    assert (made.config.head.pool, made.config.head.dense, made.config.head.n_labels) == ("mean", True, 2)
    # Both heads have a dense layer of one size and name, and they are not the same thing.
    assert not torch.equal(made.weights["head.dense.weight"], given.net.head.dense.weight)


def test_pairs_have_segments_where_the_model_has(reader, tmp_path):
    rows = "".join(
        f"{a}\t{b}\t{'yes' if a[0] == b[0] else 'no'}\n"
        for a, b in zip(toy.sentences(41, 5), toy.sentences(41, 6), strict=True)
    )
    tmp_path.joinpath("pairs.tsv").write_text(rows)
    data = {"train": {"files": str(tmp_path / "pairs.tsv")}, "valid": {}, "hold_out": 0.2, "columns": ["1", "2", "3"]}
    made, given = trainer(tmp_path, reader, "classify", data=data)
    batch = made.batches.part(0)
    assert sorted(set(batch.segments.flatten().tolist())) == [0, 1]
    assert (batch.inputs[:, 0] == given.tokenizer.start).all()


def test_pairs_are_parted_as_the_given_model_parts_them(tmp_path):
    """RoBERTa has a second end between two texts; what is trained is what is read afterwards, and what they read."""
    _, theirs, folder = foreign.made(foreign.CASES["roberta classes"], tmp_path)
    pairs = [(f"{a} {b}", f"{b} or {a}") for a, b in zip("abcdefg", "tuvwxyz", strict=True)]
    tmp_path.joinpath("pairs.tsv").write_text("".join(f"{a}\t{b}\tyes\n{b}\t{a}\tno\n" for a, b in pairs))
    data = {"train": {"files": str(tmp_path / "pairs.tsv")}, "valid": {}, "hold_out": 0.2, "columns": ["1", "2", "3"]}
    made, given = trainer(tmp_path, folder, "classify", data=data)
    batch = made.batches.part(0)
    rows = {tuple(row[:n]) for row, n in zip(batch.inputs.tolist(), batch.layout.lengths.tolist(), strict=True)}
    both = [pair for a, b in pairs for pair in ((a, b), (b, a))]
    assert rows <= {tuple(theirs(a, b).input_ids) for a, b in both}
    assert made.batches.size(0).real == sum(map(len, rows))
    run = tuned(tmp_path, folder, "classify", data=data, steps=1, valid_every=1, checkpoint_every=1)
    assert regard.load(run.path).between == given.between == [theirs.sep_token_id]


def test_what_was_made_to_chat_still_is(tmp_path, writer):
    given = tmp_path / "given"
    shutil.copytree(writer, given)
    (given / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    run = tuned(tmp_path, given, "generate", steps=1, valid_every=1, checkpoint_every=1)
    assert chat_template(regard.load(run.path)) == (given / "chat_template.jinja").read_text()
    assert chat_template(regard.load(writer)) is None


# ---------------------------------------------------------------------------------------
# What moves

MODES = {
    "everything": {},
    "head": {"train_last": 0},
    "last layer": {"train_last": 1},
    "rates": {"layer_decay": 0.5},
    "lora": {"lora": 3},
    "lora above": {"lora": 3, "train_last": 1},
}


@pytest.mark.parametrize("mode", MODES)
def test_what_is_frozen_stays_bit_for_bit(mode, reader, tmp_path):
    run = tuned(tmp_path, reader, "classify", **MODES[mode])
    last = load_file(checkpoint.checkpoints(run.path)[-1] / "weights-00000.safetensors")
    before = load_file(reader / "model.safetensors")
    moved = {name for name, value in last.items() if name not in before or not torch.equal(value, before[name])}
    config = regard.load(run.path, packed=False).config
    wanted = {name for name in last if tune.is_trained(name, config, Run(run.path).recipe().train)}
    assert {"head.classify.weight", "head.classify.bias"} <= wanted
    assert moved == wanted
    layers = {name.split(".")[3] for name in moved if ".blocks." in name}
    assert layers == {"head": set(), "last layer": {"1"}, "lora above": {"1"}}.get(mode, {"0", "1"})
    assert any("lora" in name for name in moved) == ("lora" in mode)


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_a_layers_rate_is_the_one_aboves_times_the_decay(decay, reader, tmp_path):
    """Adam's first step is the rate itself, whatever the gradient, so the weights show which rate they had."""
    made, _ = trainer(tmp_path, reader, "classify", layer_decay=decay, clip=0.0, eps=1e-12)
    before = {name: w.detach().clone() for name, w in made.weights.items()}
    made.step(next(made._loader()))
    layers = {
        "head.classify.weight": 0,
        "encoder.stack.blocks.1.mlp.up.weight": 1,
        "encoder.stack.blocks.0.mlp.up.weight": 2,
        "encoder.embed.weight": 3,
    }
    for name, far in layers.items():
        step = float((made.weights[name].detach() - before[name]).abs().max())
        assert step == pytest.approx(0.01 * decay**far, rel=1e-3), name
    assert len(made.optimizer.adam.param_groups) == (2 if decay == 1 else 8)


def test_lora_begins_as_the_model_and_merges_to_itself(writer, tmp_path):
    made, given = trainer(tmp_path, writer, "generate", lora=3, lora_alpha=5.0)
    ids = torch.randint(0, len(given.tokenizer), (2, 11))
    made.model.eval()
    assert torch.equal(made.model(ids), given.net(ids))
    loader = made._loader()
    made.model.train()
    for _ in range(3):
        made.step(next(loader))
    loader.stop()
    made.model.eval()
    said = made.model(ids)
    assert not torch.allclose(said, given.net(ids), atol=1e-3)
    (tmp_path / "run").mkdir()
    made._export(made.weights)
    plain = Transformer(made.config).eval()
    plain.load_state_dict(load_file(made.run.weights))
    torch.testing.assert_close(plain(ids), said, atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------------------------------
# Law 8, for every new mode

RESUMED = {
    **{mode: ("reader", "classify", {"model": {"encoder": {"dropout": 0.1}}, **how}) for mode, how in MODES.items()},
    "numbers": ("reader", "number", {}),
    "tags": ("reader", "tag", {"ema": 0.9}),
    "preferences": ("writer", "prefer", {}),
    "preferences, lora": ("writer", "prefer", {"lora": 2, "micro_batches": 2}),
    "elmo": ("elmo", "fill", {}),
    "elmo's layers mixed": ("elmo", "tag", {"model": {"head": {"mix": True}}, "train_last": 0}),
}


# With adapters there is all that there is without.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in ("preferences", "elmo") else []) for name in RESUMED],
)
@pytest.mark.parametrize("step", [pytest.param(0, marks=pytest.mark.slow), 4])
def test_killed_and_resumed_ends_where_it_would_have(name, step, tmp_path, request, monkeypatch):
    start, task, options = RESUMED[name]
    start = request.getfixturevalue(start)
    straight = tuned(tmp_path, start, task, **options)
    (tmp_path / "tuned").rename(tmp_path / "straight")
    straight = Run(tmp_path / "straight")
    with toy.killed_at(step, monkeypatch):
        tuned(tmp_path, start, task, **options)
    broken = train(None, None, tmp_path / "tuned", resume=True, device="cpu", watch=Watch(quiet=True))
    lines = [[(x["step"], x["kind"], x["loss"]) for x in run.lines()] for run in (straight, broken)]
    assert lines[0] == lines[1]
    assert {kind for _, kind, _ in lines[0]} == {"train", "valid"}
    ends = [checkpoint.read_facts(checkpoint.checkpoints(run.path)[-1])["files"] for run in (straight, broken)]
    assert ends[0] == ends[1]
    assert straight.weights.read_bytes() == broken.weights.read_bytes()


def test_a_run_that_never_had_the_weights_does_not_go_on_without(reader, tmp_path, monkeypatch):
    run = tuned(tmp_path, reader, "tag", steps=1)
    for folder in checkpoint.checkpoints(run.path):
        checkpoint.discard(folder)
    with pytest.raises(InputError, match="was ended before it had the weights of"):
        train(None, None, run.path, resume=True, device="cpu", watch=Watch(quiet=True))


# ---------------------------------------------------------------------------------------
# Numbers


def test_numbers_are_learned(reader, tmp_path):
    run = tuned(tmp_path, reader, "number", steps=40, valid_every=40)
    first, last = [line for line in run.lines() if line["kind"] == "valid"]
    assert last["loss"] < 0.5 * first["loss"]
    assert last["pearson"] > 0.6
    model = regard.load(run.path, device="cpu")
    assert (model.labels, model.config.head.n_labels, model.task) == ((), 1, "classify")


def test_the_correlation_is_pearsons():
    x, y = torch.randn(2, 29, dtype=torch.float64)
    sums = {"loss": 1.0, "count": 29.0, "x": x.sum(), "y": y.sum(), "xx": x @ x, "yy": y @ y, "xy": x @ y}
    found = tasks.scores({name: float(value) for name, value in sums.items()})
    assert found["pearson"] == pytest.approx(float(torch.corrcoef(torch.stack([x, y]))[0, 1]))


# ---------------------------------------------------------------------------------------
# Both ways


def test_each_direction_is_asked_for_its_neighbour(elmo, tmp_path):
    """The loss is that of logits (B, T, 2, V) written out; padding asks for nothing and is not seen."""
    made, _ = trainer(tmp_path, elmo, "fill", row_tokens=13)
    made.model.eval()
    for batches in (made.batches, made.held_out):
        total = 0
        for i in range(len(batches)):
            batch = batches.part(i)
            total += batches.size(i).wanted
            logits = made.model(batch.inputs, layout=batch.layout)
            ahead = F.cross_entropy(
                logits[:, :-1, 0].flatten(0, 1), batch.wanted[:, :-1, 0].flatten(), ignore_index=-1, reduction="sum"
            )
            back = F.cross_entropy(
                logits[:, 1:, 1].flatten(0, 1), batch.wanted[:, 1:, 1].flatten(), ignore_index=-1, reduction="sum"
            )
            found, count = tasks.loss(made.model, batch)
            torch.testing.assert_close(found, ahead + back)
            assert count == batches.size(i).wanted
        real = batch.layout.lengths
        if real is not None:
            last = int(real[-1]) - 1
            assert (batch.wanted[-1, :last, 0] == batch.inputs[-1, 1 : last + 1]).all()
            assert (batch.wanted[-1, last + 1 :] == -1).all()
            assert total == 2 * (batches.total - batches.n_rows)
    assert (batch.wanted[:-1, 1:, 1] == batch.inputs[:-1, :-1]).all()


def test_mixed_layers_are_learned_over_a_frozen_body(elmo, tmp_path):
    run = tuned(tmp_path, elmo, "tag", model={"head": {"mix": True}}, train_last=0)
    before, after = (load_file(path / "model.safetensors") for path in (elmo, run.path))
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("encoder."))
    assert len(set(after["mix.weights"].tolist())) == 2
    assert set(run.config()["from"]["new"]) == {
        "mix.weights",
        "mix.gamma",
        "head.classify.weight",
        "head.classify.bias",
    }


# ---------------------------------------------------------------------------------------
# Mistakes

MISTAKES = {
    "no model": ("classify", {}, None, "model (no preset and no input): name a preset, or a model to begin with: --from MODEL"),
    "nothing to freeze": ("fill", {"model": {"preset": "tiny_encoder"}, "train_last": 0}, None, "train.train_last (0): needs a model to begin with"),
    "nothing beside": ("fill", {"model": {"preset": "tiny_encoder"}, "lora": 2}, None, "train.lora (2): needs a model to begin with"),
    "nothing to be held to": ("prefer", {"model": {"preset": "tiny_decoder"}}, None, "task 'prefer' needs a model to begin with"),
    "too many layers": ("classify", {"train_last": 3}, "reader", "train_last (3) must be at most 2, the layers there are"),
    "no head of its own": ("generate", {"train_last": 0}, "writer", "train_last (0): this model's vocabulary head has no weights of its own"),
    "another shape": ("classify", {}, "writer", "model (decoder, head pooled) does not fit task 'classify', which needs encoder"),
    "another body": ("classify", {"model": {"encoder": {"n_layers": 3}}}, "reader", "has another model (encoder.n_layers: 2 there, 3 here)"),
    "another preset": ("fill", {"model": {"preset": "tiny_elmo"}}, "reader", "has another model (encoder.kind"),
    "lora of no layer": ("classify", {"lora": 2, "train_last": 0}, "reader", "train: lora (2): train_last (0) trains no layer"),
    "lora beside an LSTM": ("tag", {"lora": 2}, "elmo", "train.lora (2): only a Transformer has matrices to put it beside"),
    "decay above 1": ("classify", {"layer_decay": 1.5}, "reader", "train: layer_decay (1.5) must be at most 1"),
    "no decay at all": ("classify", {"layer_decay": 0.0}, "reader", "train: layer_decay (0.0) must be above 0"),
    "beta": ("prefer", {"beta": -1.0}, "writer", "train: beta (-1.0) must be above 0"),
    "hidden words": ("prefer", {"word_dropout": 0.1}, "writer", "train.word_dropout (0.1) does not go with task 'prefer'"),
    "smoothed numbers": ("number", {"smoothing": 0.1}, "reader", "train.smoothing (0.1) does not go with labels that are numbers"),
    "numbered tags": ("tag", {"data": {"labels": "numbers"}}, "reader", "labels ('numbers'): goes with task 'classify', not 'tag'"),
    "names as numbers": ("classify", {"data": {"labels": "numbers"}}, "reader", "is not a number, and labels = 'numbers' says they are; if it is a header"),
    "two columns": ("prefer", {"data": {"columns": ["1", "2"]}}, "writer", "columns (1, 2): prefer needs 3, not 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, tmp_path, request):
    task, options, start, message = MISTAKES[name]
    begin = None if start is None else request.getfixturevalue(start)
    with pytest.raises((InputError, ConfigError)) as raised:
        tuned(tmp_path, begin, task, **options)
    assert message in str(raised.value)
    assert not (tmp_path / "tuned").exists()


def test_data_in_other_tokens_is_refused(reader, tmp_path):
    recipe = ask(tmp_path, "classify")
    prepare(recipe.data.replace(tokenizer=recipe.data.tokenizer.replace(kind="bytes")), tmp_path / "data")
    with pytest.raises(InputError, match=r"tokenizer\.json: is not the vocabulary of"):
        tuned(tmp_path, reader, "classify")
    assert tune.data_for(opened_to_tune(reader), str(tmp_path / "data")) == f"{tmp_path / 'data'}-for-run"
