"""`regard compare`: several recipes on the same data with the same budget, trained once, scored, told and drawn."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import sacrebleu
import torch
from safetensors.torch import load_file

import ready
import toy
from regard import load, presets
from regard import recipe as recipes
from regard.config import ConfigError, InputError, Recurrent
from regard.nn import Transformer
from regard.train import loop
from regard.train.compare import _check_alike, _prepared, compare
from regard.train.comparison import described
from regard.train.run import Run
from regard.train.watch import Watch

STEPS = 7


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with two recipes on the same data and a test set."""
    folder = tmp_path_factory.mktemp("compare")
    for name, model in (("attends", "additive"), ("stacks", None)):
        table = {"preset": "tiny_bahdanau", "score": model} if model else None
        settings = {"steps": STEPS, "valid_every": 3, "checkpoint_every": 3, "log_every": 2, "bleu": 11}
        recipe = toy.make_recipe(folder, "translate", model=table, **settings)
        (folder / f"{name}.json").write_text(recipe.to_json())
    toy.write(folder, "translate", 37, 3, "test")
    return folder


def regard(folder, *arguments):
    return ready.run("compare", *arguments, cwd=folder, env={"COLUMNS": "140"})


def n_parameters(run):
    return sum(weight.numel() for weight in load_file(run.weights).values())


@pytest.fixture(scope="module")
def done(work):
    """What a first call says, and where it wrote."""
    both = "attends.json", "stacks.json"
    said = regard(work, *both, "--test-source", "test.in", "--test-reference", "test.out", "--out", "out")
    assert said.returncode == 0, said.stderr
    return said, work / "out"


# ---------------------------------------------------------------------------------------
# What is written


def test_it_trains_all_and_says_how_they_did(done):
    said, out = done
    for told in ("preparing out/data", "out/attends: a new run", "out/stacks: a new run", "bleu"):
        assert told in said.stderr
    assert "test.in, 37 sentences" in said.stdout
    for name in ("attends", "stacks"):
        row = next(line for line in said.stdout.splitlines() if line.startswith(name))
        assert f"{n_parameters(Run(out / name)):,}" in row
    assert sorted(path.name for path in out.iterdir()) == [
        "attends", "compare.json", "compare.png", "compare.svg", "data", "report.md", "stacks"
    ]  # fmt: skip


def test_the_numbers_are_those_of_the_models(done):
    _, out = done
    found = json.loads((out / "compare.json").read_text())
    sources, references = ((out.parent / f"test.{side}").read_text().splitlines() for side in ("in", "out"))
    assert found["test"]["sentences"] == 37
    assert found["examples"] == {"train": 211, "valid": 31}
    for told in found["models"]:
        model, run = load(out / told["name"], device="cpu"), Run(out / told["name"])
        translations = model.translate(sources, whole=True)
        by_hand = sacrebleu.corpus_bleu([t.text for t in translations], [references]).score
        assert told["scores"]["BLEU"]["score"] == pytest.approx(by_hand, abs=1e-4)
        assert told["parameters"] == n_parameters(run)
        assert sum(bucket["sentences"] for bucket in told["by_length"]) == 37
        assert recipes.from_dict(recipes.Recipe, told["recipe"]) == run.recipe()
        lines = [line for line in run.lines() if line["kind"] == "valid"]
        assert [(p["step"], p["bleu"], p["loss"]) for p in told["curve"]] == [
            (line["step"], line["bleu"], line["loss"]) for line in lines
        ]
        before = [sum(line["took"] for line in lines[:i]) for i in range(len(lines))]
        assert [p["seconds"] for p in told["curve"]] == [
            pytest.approx(line["seconds"] - took, abs=1e-3) for line, took in zip(lines, before, strict=True)
        ]
        assert told["training"]["seconds"] == pytest.approx(told["curve"][-1]["seconds"], abs=0.1)


def test_the_report_says_what_they_are(done):
    _, out = done
    page = (out / "report.md").read_text()
    assert "# 2 models, the same data and budget" in page
    assert "211 pairs to learn from" in page
    assert f"{STEPS} updates of 256 tokens. Every 3 updates the first 11 of 31 held-out sentences" in page
    assert "37 sentences of test.in (beam 4" in page
    assert (
        "- **attends**: encoder: bidirectional GRU, 1 layer of 11; decoder: GRU, 1 layer of 19, additive attention."
        in page
    )
    assert "- **stacks**: encoder: Transformer, " in page
    assert "trained alike but for" not in page  # these two are
    assert "![BLEU over training time, and BLEU by sentence length](compare.png)" in page
    assert "BLEU more than" in page
    for line in page.splitlines():
        if line.startswith(("| attends", "| stacks")):
            assert "nan" not in line


def test_the_picture_is_one(done):
    _, out = done
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(out / "compare.svg").getroot().tag.endswith("svg")


# ---------------------------------------------------------------------------------------
# Again


@pytest.mark.slow
def test_a_second_call_trains_nothing_and_draws_the_same(done, monkeypatch):
    _, out = done
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    monkeypatch.setattr(loop.Trainer, "step", lambda *_: pytest.fail("trained again"))
    monkeypatch.chdir(out.parent)
    both = "attends.json", "stacks.json"
    compare(both, "out", test=("test.in", "test.out"), device="cpu", quiet=True)
    timed = {out / "compare.json", out / "report.md"}  # decoding takes another time
    assert {path: path.read_bytes() for path in before if path not in timed} == {
        path: content for path, content in before.items() if path not in timed
    }


@pytest.mark.slow
def test_what_was_stopped_goes_on_and_ends_where_it_would_have(done, work, monkeypatch):
    _, out = done
    stepped, trained = loop.Trainer.step, []

    def stopped(self, update):
        stepped(self, update)
        trained.append((self.run.path.name, update.step))
        if len(trained) == STEPS + 5:
            raise loop.Stopped(15)

    monkeypatch.setattr(loop.Trainer, "step", stopped)
    monkeypatch.chdir(work)
    options = {"device": "cpu", "quiet": True, "changes": ["train.lr=0.01"]}  # as it is
    with pytest.raises(loop.Stopped):
        compare(["attends.json", "stacks.json"], "broken", **options)
    assert not (work / "broken" / "report.md").exists()
    compare(["attends.json", "stacks.json"], "broken", **options)
    # The first is done, the second goes on from its checkpoint.
    assert trained[STEPS + 5 :] == [("stacks", step) for step in range(4, STEPS + 1)]
    for name in ("attends", "stacks"):
        # Not bit for bit: the others were trained in a process of their own, whose kernels may round otherwise.
        losses, wanted = (
            [line["loss"] for line in Run(place / name).lines() if line["kind"] == "valid"]
            for place in (work / "broken", out)
        )
        assert losses == pytest.approx(wanted, rel=1e-3)
    told = json.loads((work / "broken" / "compare.json").read_text())
    assert (told["test"]["name"], told["test"]["sentences"]) == ("valid", 31)


# ---------------------------------------------------------------------------------------
# What is refused


def write(work, name, change):
    table = json.loads((work / "stacks.json").read_text())
    change(table)
    (work / name).write_text(json.dumps(table))
    return name


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda t: t["data"].update(max_tokens=99),
            "not the same data (data.max_tokens: 256 in attends.json, 99 in other.json); give recipes with the same [data]",
        ),
        (
            lambda t: t["train"].update(steps=8, batch_tokens=251),
            "not the same budget (train.steps: 7 in attends.json, 8 in other.json; train.batch_tokens: 256 in attends.json, 251 in other.json); change it for all of them with KEY=VALUE",
        ),
        (lambda t: t["train"].update(bleu=12), "train.bleu: 11 in attends.json, 12 in other.json"),
        (lambda t: t["train"].update(valid_every=4), "train.valid_every: 3 in attends.json, 4 in other.json"),
    ],
)
def test_other_data_or_another_budget(work, change, says, monkeypatch):
    monkeypatch.chdir(work)
    with pytest.raises(InputError) as caught:
        compare(["attends.json", write(work, "other.json", change)], "never")
    assert says in str(caught.value)
    assert not (work / "never").exists()


def test_data_that_was_prepared_from_other_files_is_refused(work, tmp_path, monkeypatch):
    monkeypatch.chdir(work)
    recipe = recipes.read("attends.json")
    toy.write(tmp_path, "translate", 37, 5, "train")
    files = recipe.data.train.replace(source=(str(tmp_path / "train.in"),), target=(str(tmp_path / "train.out"),))
    recipe = recipe.replace(data=recipe.data.replace(train=files))
    quiet = Watch(quiet=True)
    _prepared(tmp_path / "data", recipe, quiet)
    with (tmp_path / "train.in").open("a") as file:
        file.write("a dog\n")
    with pytest.raises(InputError, match=r"train.in: is not what .* was prepared from; .* or choose another --out"):
        _prepared(tmp_path / "data", recipe, quiet)


def test_it_is_said_which_recipe_has_a_mistake(work, monkeypatch):
    monkeypatch.chdir(work)
    wrong = write(work, "wrong.json", lambda t: t["train"].update(lr=-1.0))
    with pytest.raises(ConfigError, match=r"^wrong.json: train: lr \(-1.0\) must be at least 0"):
        compare(["attends.json", wrong], "never")


def test_changes_are_for_all(work, monkeypatch):
    """An unequal budget made equal goes on, as far as the next mistake."""
    monkeypatch.chdir(work)
    other = write(work, "other.json", lambda t: t["train"].update(steps=8))
    with pytest.raises(InputError, match=r"nowhere.in: cannot be read"):
        compare(["attends.json", other], "never", changes=["train.steps=5"], test=("nowhere.in", "test.out"))
    assert not (work / "never").exists()


def test_an_empty_test_set_is_found_before_training(work, monkeypatch):
    monkeypatch.chdir(work)
    for side in ("in", "out"):
        (work / f"empty.{side}").touch()
    with pytest.raises(InputError, match=r"empty.in: the file is empty"):
        compare(["attends.json", "stacks.json"], "never", test=("empty.in", "empty.out"))
    assert not (work / "never").exists()


@pytest.mark.slow
def test_recipes_that_ask_for_no_bleu_are_given_one(work, monkeypatch):
    monkeypatch.chdir(work)
    names = [write(work, name, lambda t: t["train"].update(bleu=0, steps=1)) for name in ("one.json", "two.json")]
    found = compare(names, "asked", device="cpu", quiet=True)
    assert [result.recipe.train.bleu for result in found.results] == [500, 500]
    assert all(len(result.curve) == 1 for result in found.results)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["attends.json"], "attends.json: nothing to compare with; give at least two"),
        (["attends.json", "stacks.json", "train.stepz=3"], "train.stepz: unknown key"),
        (["attends.json", "stacks.json", "--test-source", "test.in"], "--test-source and --test-reference: give both"),
        (["attends.json", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["attends.json", "./attends.json"], "attends.json and attends.json: both would be called attends; rename one"),
    ],
)
def test_mistakes_on_the_command_line(work, arguments, says):
    done = regard(work, *arguments, "--out", "never")
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line
    assert not (work / "never").exists()


def test_other_tasks_are_not_translations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text(toy.make_recipe(tmp_path, "tag").to_json())
    with pytest.raises(InputError, match=r"train.bleu|only translations are compared"):
        compare(["one.json", "two.json"], "never")


def test_a_recipe_that_was_changed_since(done, work, monkeypatch):
    monkeypatch.chdir(work)
    with pytest.raises(InputError, match=r"out/attends: began with another recipe \(train.lr: 0.01 then, 0.5 now\)"):
        compare(["attends.json", "stacks.json"], "out", changes=["train.lr=0.5"], quiet=True)


# ---------------------------------------------------------------------------------------
# What they are


RECIPES = sorted((Path(__file__).parents[2] / "recipes" / "compare").glob("*.toml"))


def test_the_recipes_that_come_with_regard_can_be_compared():
    assert [path.stem for path in RECIPES] == [
        "bahdanau", "bilinear", "dot", "gru", "transformer-post", "transformer-pre"
    ]  # fmt: skip
    given = {path: recipes.read(path) for path in RECIPES}
    _check_alike(given)
    assert all(recipe.train.bleu for recipe in given.values())
    models = {path.stem: recipes.model_config(recipe.model, vocab_size=8_000) for path, recipe in given.items()}
    assert [models[name].decoder.score for name in ("gru", "bahdanau", "dot", "bilinear")] == [
        None, "additive", "dot", "bilinear"
    ]  # fmt: skip
    with torch.device("meta"):
        sizes = [Transformer(model).n_parameters() for model in models.values()]
    assert max(sizes) < 1.1 * min(sizes), dict(zip(models, sizes, strict=True))


def test_what_a_model_is_in_a_line():
    plain = presets.tiny_bahdanau(score=None)
    assert isinstance(plain.decoder, Recurrent)
    assert described(plain).endswith("decoder: GRU, 1 layer of 19, no attention")
    stack = described(presets.vaswani_base())
    assert stack.startswith("encoder: Transformer, 6 layers of 512, 8 heads, feed-forward 2048, post-norm; decoder: ")
