"""Every recipe parses, says what it claims, and overfits ten examples."""

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ready
import toy
from regard import load
from regard import recipe as recipes
from regard.data.prepare import prepare
from regard.data.store import DataDir
from regard.schema import merge
from regard.train import tune
from regard.train.loop import train
from regard.train.tune import opened_to_tune
from regard.train.watch import Watch
from regard.weights import read_weights

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))
# One of each kind always; `make test-all` runs them all.
ALWAYS = (
    "conll2003-minilm", "digits", "fashion-draw", "flickr8k-caption", "multi30k-en-de", "prefer-questions", "sst-2",
)  # fmt: skip
SMALL = {"d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 128, "n_kv_heads": None}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_parses_and_says_what_it_claims(path):
    data = recipes.read(path).data
    for files in (data.train, data.valid):  # what it prepares goes to data/NAME: nothing that it reads can be there
        assert not any(f.startswith(f"data/{path.stem}/") for f in (*files.files, *files.source, *files.target))
    header = re.match(r"(#.*\n)+", path.read_text())[0]
    assert f"regard train recipes/{path.name}" in header
    for part in ("Data", "Hardware", "Duration", "Score"):
        assert re.search(rf"^# {part}: +\S", header, re.MULTILINE), part


def test_the_digits_need_nothing_but_the_two_commands_of_their_header(tmp_path):
    script, recipe = (RECIPES[0].parent / name for name in ("digits.py", "digits.toml"))
    subprocess.run([sys.executable, script], cwd=tmp_path, check=True, capture_output=True)
    changes = ["train.steps=2", "train.valid_every=2", "--device", "cpu"]
    done = ready.run("train", recipe, *changes, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "digits" / "model.safetensors").exists()


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem in ALWAYS else pytest.mark.slow) for path in RECIPES],
    ids=lambda path: path.stem,
)
def test_overfits_ten_examples(path, tmp_path):
    """The recipe's own model (made small where it is large) and way of training, on ten examples made here."""
    recipe = recipes.read(path)
    task = "images" if recipe.data.images is not None and recipe.data.task == "classify" else recipe.data.task
    images = recipe.data.images and recipe.data.images.replace(names=(), size=min(recipe.data.images.size, 32))
    if images is not None and images.tokenizer is not None:
        images = images.replace(size=15, channels=3, tokenizer=str(toy.painter(tmp_path / "painter")))
    data = recipe.data.replace(
        images=images,
        train=recipes.Files(**{k: (v,) for k, v in toy.write(tmp_path, task, 10, 1, "train").items()}),
        valid=recipes.Files(),
        hold_out=0.0,
        columns=tuple(toy.COLUMNS.get(task, ())),
        tokenizer=recipe.data.tokenizer.replace(kind="characters"),
    )
    # Those that always run have learned theirs by then.
    steps = 120 if path.stem in ALWAYS else 600 if task in ("generate", "fill") else 300
    settings = recipe.train.replace(
        steps=steps, warmup=20, lr=3e-3, batch_tokens=1024, smoothing=0.0, weight_decay=0.0, word_dropout=0.0, bpe_dropout=0.0, r_drop=0.0, bleu=0,
        log_every=steps // 10, valid_every=steps, checkpoint_every=steps, compile=False, precision="float32",
        row_tokens=64 if task in ("generate", "fill") else 256 if recipe.train.packed else None,
    )  # fmt: skip
    if recipe.data.images is not None:  # as they are
        settings = settings.replace(
            **dict.fromkeys(("crop", "flip", "randaugment", "mixup", "cutmix", "erase", "ema"), 0.0)
        )
    if recipe.needs_model:
        begin = _a_model_to_begin_with(tmp_path / "base", task)
        recipe = recipes.completed(recipe, begin.config)
        tokenizers = tune.tokenizers(begin)
    else:
        begin = tokenizers = None
    counts = {"vocab_size": 300, "n_labels": 2, "images": data.images}
    config = begin.config if begin else recipes.model_config(recipe.model, **counts)
    small = {}
    for name in ("encoder", "decoder", "text"):
        tower = getattr(config, name)
        if begin is None and tower is not None and getattr(tower, "d_model", 0):
            dropout = {"dropout": 0.0, "attn_dropout": 0.0, "mlp_dropout": 0.0, "embed_dropout": 0.0}
            small[name] = {**dropout, **(SMALL if tower.d_model > SMALL["d_model"] else {})}
        elif begin is None and getattr(tower, "d_attention", None):  # the attention GRU
            small[name] = {"dropout": 0.0, "d_input": 64, "d_hidden": 64, "d_attention": 64}
    recipe = recipe.replace(data=data, model=merge(recipe.model, small), train=settings)
    prepared = prepare(recipe.data, tmp_path / "data", tokenizers=tokenizers)
    run = train(recipe, prepared.path, tmp_path / "run", device="cpu", begin_from=begin, watch=Watch(quiet=True))
    losses = [line["loss"] for line in run.lines() if line["kind"] == "train"]
    # Other letters are masked in every step, and not all of them can be told; how often each occurs alone gives 0.7.
    # A code never says all of a patch.
    share = {"fill": 0.4, "paint": 0.2}.get(recipe.data.task, 0.1)
    assert losses[-1] < share * losses[0], losses


def _a_model_to_begin_with(folder, task):
    """For a recipe that says what comes after: one that was trained for a few steps on plain text."""
    recipe, data = toy.prepared(folder, {"prefer": "generate", "translate": task}.get(task, "fill"), n=53, steps=10)
    return opened_to_tune(train(recipe, data.path, folder / "run", device="cpu", watch=Watch(quiet=True)).path)


def test_what_a_translator_of_both_directions_makes_of_its_pairs(tmp_path):
    """recipes/diversify.py: the pairs, each source with its translation, each target behind its own."""
    pairs = [(text, toy.backwards(text)) for text in toy.sentences(11, 1, most=4)]
    rows = [*pairs, *((b, a) for a, b in pairs)]
    (tmp_path / "both.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    made = toy.make_recipe(tmp_path, "translate", steps=240, batch_tokens=512, lr=0.01, warmup=20, checkpoint_every=240)
    wide = {name: {"d_model": 64, "n_heads": 4, "d_ff": 128, "dropout": 0.0} for name in ("encoder", "decoder")}
    data = made.data.replace(train=recipes.Files(files=("both.tsv",)), valid=recipes.Files())
    made = made.replace(data=data, model=merge(made.model, wide), train=made.train.replace(valid_every=240))
    with contextlib.chdir(tmp_path):
        both = prepare(made.data, tmp_path / "both")
        train(made, both.path, "run", device="cpu", watch=Watch(quiet=True))
    script = RECIPES[0].parent / "diversify.py"
    for out, more in (("greedy", []), ("nearest", ["--beam", "3"])):
        done = subprocess.run(
            [sys.executable, script, "run", "both", out, *more], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found = DataDir(tmp_path / out).split("train")
        texts = [
            tuple(both.tokenizer.decode(found[side][i].tolist()) for side in ("source", "target"))
            for i in range(len(found["source"]))
        ]
        assert f"{len(texts):,} pairs" in done.stdout
        assert texts[:11] == pairs
        # It has learned them by heart, and makes them once more.
        new = texts[11:]
        assert len(new) > 11
        assert set(new) <= set(pairs)


def test_a_translation_nearest_to_what_is_wanted(monkeypatch):
    monkeypatch.syspath_prepend(RECIPES[0].parent)
    from diversify import nearest

    wanted = [3, 5, 7, 11, 13]
    assert nearest([[5, 3, 11, 7, 13], [3, 5, 7, 2, 13], [3, 5, 7]], wanted) == [3, 5, 7]  # of few runs most are shared
    assert nearest([[3, 5, 7, 11, 13, 2, 2, 2], [3, 5, 7, 11]], wanted) == [3, 5, 7, 11]
    assert nearest([wanted, wanted[:4]], wanted) == wanted
    assert nearest([[], [2]], wanted) == []


def test_the_mean_of_two_models(tmp_path):
    for name, seed in (("first", 1), ("second", 2)):
        made, data = toy.prepared(tmp_path / name, "translate", n=31, steps=2, seed=seed)
        train(made, data.path, tmp_path / name / "run", device="cpu", watch=Watch(quiet=True))
    first, second = tmp_path / "first" / "run", tmp_path / "second" / "run"
    subprocess.run(
        [sys.executable, RECIPES[0].parent / "mixed.py", first, second, "0.8", tmp_path / "mixed"], check=True
    )
    before, after, mixed = (read_weights(run / "model.safetensors") for run in (first, second, tmp_path / "mixed"))
    for name, weight in mixed.items():
        torch.testing.assert_close(weight, 0.2 * before[name] + 0.8 * after[name])
    assert load(tmp_path / "mixed", device="cpu").translate(["a dog"])
