"""`regard train --from` as its user meets it."""

import signal
import sys

import pytest

import regard
import toy
from regard import cli, explain
from regard.train.loop import train
from regard.train.run import Run
from regard.train.watch import Watch

from .test_tune import ask


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with a trained reader, and a recipe that leaves the model to it."""
    folder = tmp_path_factory.mktemp("cli")
    recipe, data = toy.prepared(folder / "base", "fill", n=53, steps=3)
    train(recipe, data.path, folder / "reader", device="cpu", watch=Watch(quiet=True))
    (folder / "kinds.json").write_text(ask(folder, "classify", steps=4).to_json())
    (folder / "tags.json").write_text(ask(folder, "tag", steps=4).to_json())
    return folder


@pytest.fixture
def run(work, monkeypatch, capsys):
    """A command in the folder: its exit code and what it said."""

    def command(*arguments):
        monkeypatch.chdir(work)
        monkeypatch.setattr(sys, "argv", ["regard", *arguments])
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, capsys.readouterr().err

    return command


def test_from_raw_files_with_the_models_own_tokens(work, run):
    code, said = run("train", "kinds.json", "--from", "reader", "--device", "cpu")
    assert code == 0, said
    for told in (
        "preparing data/kinds",
        "from reader: ",
        "new, drawn at random: head.classify.weight",
        "step 0  held out",
    ):
        assert told in said
    mine, others = (regard.load(work / name, device="cpu") for name in ("runs/kinds", "reader"))
    assert mine.tokenizer.same_as(others.tokenizer)
    assert mine.config.encoder == others.config.encoder
    # The recipe as it was written, without a model, is the one that the run began with.
    code, said = run("train", "kinds.json", "--resume", "runs/kinds", "--device", "cpu")
    assert code == 0, said
    code, said = run("train", "kinds.json", "--resume", "runs/kinds", "train.lr=0.5", "--device", "cpu")
    assert code == 2
    assert "began with another recipe (train.lr: 0.01 then, 0.5 now)" in said


def test_data_in_other_tokens_stays_and_new_is_made_beside_it(work, run):
    code, said = run("prepare", "tags.json", "data.tokenizer.kind=bytes")
    assert code == 0, said
    code, said = run(
        "train", "tags.json", "data.tokenizer.kind=bytes", "--from", "reader", "--device", "cpu", "--quiet"
    )
    assert (code, said) == (0, "")
    assert (work / "data" / "tags-for-reader").is_dir()
    assert Run(work / "runs" / "tags").open_data().path.name == "tags-for-reader"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kinds.json"], "model (no preset and no input): name a preset, or a model to begin with: --from MODEL"),
        (["kinds.json", "--from", "nowhere"], "nowhere: no such directory"),
        (["kinds.json", "--from", "kinds.json"], "kinds.json: is a file; a model is a directory"),
        (["kinds.json", "--from", "reader", "train.train_last=5"], "train_last (5) must be at most 2"),
        (["kinds.json", "--from", "reader", "model.encoder.d_ff=5"], "reader: has another model (encoder.d_ff: 31 there, 5 here)"),
        (["kinds.json", "--from", "reader", "data.task=generate", "data.columns=[]"], "does not fit task 'generate'"),
    ],
)  # fmt: skip
def test_mistakes(work, run, arguments, message):
    code, said = run("train", *arguments, "--out", "runs/wrong", "--device", "cpu")
    assert code == 2
    [line] = [line for line in said.splitlines() if line.startswith("error: ")]
    assert message in line
    assert not (work / "runs" / "wrong").exists()


def test_a_recipe_without_a_model_is_explained(run, work):
    (work / "tune.toml").write_text(
        '[data]\ntask = "tag"\ntrain = { files = "a.conll" }\n[train]\nsteps = 3\nlora = 2\n'
    )
    told = {value.key: value for value in explain.read(str(work / "tune.toml")).values}
    assert (told["train.lora"].value, told["train.lora"].source) == (2, "recipe line 6")
    assert "LoRA" in told["train.lora"].about
    assert not any(key.startswith("model.") for key in told)
    code, said = run("plan", "tune.toml")
    assert code == 2
    assert "tune.toml: has the model of train --from; say which that is" in said
