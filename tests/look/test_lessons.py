"""Positions, masks, patch filters, merges and curves are the model's own; and the commands that show them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import regard
import toy
from regard import Model, Transformer, presets, recipe
from regard.cli import app
from regard.config import Positions
from regard.data.tokenizer import Tokenizer
from regard.look.curves import curves
from regard.look.filters import filters
from regard.look.lessons import masks, positions
from regard.look.merges import merges
from regard.look.page import as_text
from regard.schema import InputError
from regard.train.loop import train
from regard.train.run import Run
from regard.train.watch import Watch

pytest.importorskip("matplotlib")


def test_sinusoids_are_the_formula_of_the_paper():
    small, large = positions().tables
    assert (small.values.shape, large.values.shape) == ((10, 64), (50, 128))
    for t, i in ((0, 0), (3, 5), (9, 62), (7, 63)):
        angle = t / 10_000 ** (2 * (i // 2) / 64)
        assert small.values[t, i] == pytest.approx(math.cos(angle) if i % 2 else math.sin(angle), abs=1e-6)
    np.testing.assert_allclose(np.diagonal(large.similarity()), 1, atol=1e-6)


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_positions_of_a_model_are_those_that_it_adds(kind):
    model = Model(Transformer(presets.tiny_decoder(positions=Positions(kind=kind))), "generate", None)
    [table] = positions(model).tables
    n, d = table.values.shape
    assert table.name == f"decoder, {kind}, {n} x {d}"
    own = model.net.decoder.positions(torch.arange(n)[None])[0, :, :d]
    np.testing.assert_array_equal(table.values, own.detach().numpy())
    with pytest.raises(InputError, match="has no vectors of positions to look at"):
        positions(Model(Transformer(presets.tiny_decoder(positions=Positions(kind="alibi"))), "generate", None))


def test_masks_say_who_may_look():
    tables = masks().tables
    for t in range(8):
        for s in range(8):
            assert tables["causal"][t, s] == (s <= t)
            assert tables["window (of 2)"][t, s] == (abs(t - s) <= 2)
            assert tables["causal window (of 2)"][t, s] == (0 <= t - s <= 2)
            assert tables["prefix (of 3)"][t, s] == (s <= t or s < 3)
            assert tables["padding (6 are real)"][t, s] == (s < 6)
            assert tables["packed (3 texts)"][t, s] == ("00011222"[t] == "00011222"[s])
    lines = str(masks()).splitlines()
    assert lines[1].split()[:8] == list("██████··")
    assert len(lines) == 19


def test_filters_are_principal_components():
    torch.manual_seed(5)
    model = Model(Transformer(presets.tiny_vit()), "classify", None)
    with torch.no_grad():
        weight = model.net.encoder.embed.project.weight
        pattern = torch.randn(weight.shape[1])
        weight += 50 * torch.randn(len(weight), 1) * pattern  # most filters are this one, more or less
    found = filters(model, 5)
    size = found.components.shape[1]
    first = found.components[0].transpose(2, 0, 1).flatten()
    assert abs(first @ (pattern / pattern.norm()).numpy()) > 0.999
    assert found.shares[0] > 0.99
    assert found.components.shape == (5, size, size, 3)
    flat = found.components.reshape(5, -1)
    np.testing.assert_allclose(flat @ flat.T, np.eye(5), atol=1e-9)
    with pytest.raises(InputError, match="has no patch embedding to look at"):
        filters(Model(Transformer(presets.tiny_decoder()), "generate", None))


def test_merges_lead_from_letters_to_the_tokens():
    text = "the lower the newer the lowest the newest"
    tokens = Tokenizer.train([text] * 7, recipe.Tokenizer(vocab_size=285))
    found = merges(tokens, "lowest newer")
    assert [piece.name for piece in found.pieces] == [tokens.token(id) for id in tokens.encode("lowest newer")]
    order = json.loads(tokens.to_json())["model"]["merges"]
    for piece in found.pieces:
        for step in piece.steps():
            assert "".join(part.name for part in step.parts) == step.name
            assert "".join(order[step.number]).replace(" ", "▁") == step.name
            assert all(part.number is None or part.number < step.number for part in step.parts)
    assert any(list(piece.steps()) for piece in found.pieces)
    bytes_only = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    with pytest.raises(InputError, match=r"this tokenizer \(BPE\) does not merge"):
        merges(bytes_only, "dog")
    with pytest.raises(InputError, match="is empty; give a word"):
        merges(tokens, "")


@pytest.mark.parametrize("word", ["<script>alert(1)</script>", "\"quoted'", "שלום", "日本", "$x_1$"])
def test_merges_of_anything_are_drawn(tmp_path, word):
    tokens = Tokenizer.train([word, "dog dog"] * 7, recipe.Tokenizer(vocab_size=256 + 4 + len({*word, *" dog"}) + 3))
    text = merges(tokens, word).save(tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "<script" not in text
    merges(tokens, word).save(tmp_path / "a.png")
    assert word in str(merges(tokens, word))
    with pytest.raises(InputError, match=r"letters is too long for one picture"):
        merges(tokens, word * 61).save(tmp_path / "a.png")


def test_curves_of_a_run(tmp_path):
    lines = [
        {"kind": "train", "step": 1, "loss": 3.0, "lr": 0.1},
        {"kind": "valid", "step": 2, "loss": 2.5},
        {"kind": "train", "step": 2, "loss": 2.0, "lr": 0.1},
        {"kind": "valid", "step": 4, "loss": 2.75},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found = curves(tmp_path)
    assert str(found).splitlines() == [
        f"{tmp_path.name}: 4 steps",
        "loss in training 3.000 to 2.000, lowest 2.000 at step 2",
        "loss held out 2.500 to 2.750, lowest 2.500 at step 2",
    ]
    for name in ("a.png", "a.svg"):
        assert found.save(tmp_path / name).stat().st_size > 5_000
    assert not (tmp_path / "curves.png").exists()
    with pytest.raises(InputError, match=r"metrics\.jsonl: has nothing to draw"):
        curves(tmp_path / "nowhere")


# -- commands -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of a translator, of a ViT and of a CLIP, hardly trained."""
    found = {}
    for task in ("translate", "images", "match"):
        folder = tmp_path_factory.mktemp(task)
        made, data = toy.prepared(folder, task, n=31, steps=1, valid_every=1)
        found[task] = train(made, data.path, folder / "run", device="cpu", watch=Watch(quiet=True)).path
    return found


def said(*arguments) -> str:
    done = CliRunner().invoke(app, ["look", *map(str, arguments)])
    assert done.exit_code == 0, done.output or done.exception
    return done.stdout


def test_look_at_a_translator(runs, tmp_path):
    run = runs["translate"]
    model = regard.load(run, device="cpu")
    told = said(run, "red dog", "--target", "DOG RED", "--device", "cpu")
    assert told.startswith("written: DOG RED\n")
    assert "18 heads in 6 layers" in told
    plain = json.loads(said(run, "red dog", "--target", "DOG RED", "--layer", "1.cross", "--json", "--device", "cpu"))
    [layer] = plain["layers"]
    own = model.attention("red dog", "DOG RED")["decoder.1.cross"]
    assert layer["name"] == "decoder.1.cross"
    assert layer["columns"] == list(own.columns)
    np.testing.assert_allclose(layer["weights"], own.weights, atol=1e-6)
    for name, options in {
        "a.html": ("--layer", "decoder.1.cross", "--head", "2"),
        "grid.png": (),
        "layer.svg": ("--layer", "encoder.1.self"),
        "head.svg": ("--layer", "1.cross", "--head", "0"),
        "lines.svg": ("--layer", "1.cross", "--head", "0", "--as", "lines"),
        "mean.svg": ("--layer", "1.cross", "--as", "heatmap"),
        "rollout.svg": ("--as", "rollout"),
        "lines.html": ("--layer", "1.cross", "--head", "0", "--as", "lines"),
    }.items():
        said(run, "red dog", "-o", tmp_path / name, *options, "--device", "cpu")
        assert (tmp_path / name).stat().st_size > 5_000
    assert "decoder.1.cross, head 0" in (tmp_path / "lines.svg").read_text(encoding="utf-8")
    assert "mean of its heads" in (tmp_path / "mean.svg").read_text(encoding="utf-8")
    assert "decoder, rollout" in (tmp_path / "rollout.svg").read_text(encoding="utf-8")
    table = json.loads(said(run, "red dog", "--ablate", "--layer", "cross", "--json", "--device", "cpu"))
    assert list(table["changes"]) == ["decoder.0.cross", "decoder.1.cross"]


@pytest.mark.slow
def test_look_at_how_something_was_written(runs, tmp_path):
    run = runs["translate"]
    seen = regard.load(run, device="cpu").trace("red dog", beam=3)
    given = (run, "red dog", "--beam", "3", "--device", "cpu")
    assert said(*given, "--as", "steps") == f"{seen}\n"
    assert said(*given, "--as", "tree") == f"{as_text(seen.tree(), width=120)}\n"
    for view in ("tree", "steps"):
        assert json.loads(said(*given, "--as", view, "--json")) == json.loads(json.dumps(seen.to_dict()))
        for ending, begins in (("svg", b"<svg "), ("png", b"\x89PNG"), ("html", b"<!doctype html>")):
            path = tmp_path / f"{view}.{ending}"
            assert said(*given, "--as", view, "-o", path) == f"{path}\n"
            assert path.read_bytes().startswith(begins)
    [photo, *_] = sorted((runs["images"].parent / "valid").rglob("*.png"))
    done = CliRunner().invoke(app, ["look", str(runs["images"]), str(photo), "--as", "tree"])
    assert "was trained to classify, not to translate or generate or caption" in str(done.exception)


def test_look_at_images(runs, tmp_path):
    run = runs["images"]
    [photo, *_] = sorted((run.parent / "valid").rglob("*.png"))
    said(run, photo, "-o", tmp_path / "a.html")
    assert "[CLS]" in (tmp_path / "a.html").read_text(encoding="utf-8")
    said(run, photo, "--as", "rollout", "-o", tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert "principal components of 3 x 3 pixels" in said("patches", run, "-o", tmp_path / "patches.png")
    assert (tmp_path / "patches.png").stat().st_size > 5_000
    both = said(runs["match"], photo, "--target", "a light", "--json")
    alone = said(runs["match"], photo, "--json")
    assert {layer["name"].split(".")[0] for layer in json.loads(both)["layers"]} == {"encoder", "text"}
    assert {layer["name"].split(".")[0] for layer in json.loads(alone)["layers"]} == {"encoder"}


def test_lessons_from_the_command_line(runs, tmp_path):
    for lesson, told in {
        ("masks",): "packed (3 texts)",
        ("positions",): "sinusoidal, 50 x 128",
        ("positions", runs["images"]): "encoder, learned",
        ("merges", "en-de", "lowest"): "merge",
        ("curves", runs["translate"]): "loss in training",
    }.items():
        assert told in said(*lesson, "-o", tmp_path / "a.png")
        assert (tmp_path / "a.png").stat().st_size > 5_000
        (tmp_path / "a.png").unlink()
        json.loads(said(*lesson, "--json"))
        said(*lesson, "-o", tmp_path / "a.html")
        assert "<svg" in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert Run(runs["translate"]).metrics.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mask"], "look (mask) is neither a model nor a lesson; did you mean masks?"),
        (["en-de"], "en-de: what shall it look at? give a text, or the file of an image"),
        (["en-de", "a", "-o", "a.pdf"], "--out (a.pdf) must be a .html, .png or .svg file"),
        (
            ["en-de", "a", "--as", "trees", "-o", "a.png"],
            "--as (trees) must be grid, heatmap, lines, rollout, tree or steps",
        ),
        (["en-de", "a", "--as", "tree", "--head", "3"], "--head (3): goes with attention, not with --as tree"),
        (["en-de", "a", "--as", "steps", "--ablate"], "--ablate (True): goes with attention, not with --as steps"),
        (["en-de", "a", "--beam", "3"], "--beam (3): goes with --as tree or --as steps"),
        (["en-de", "a", "b", "--as", "tree"], "text (tuple) must be one text"),
        (["masks", "--as", "tree"], "--as (tree): goes with a model and an input, not with masks"),
        (["en-de", "a", "--as", "lines"], "--as (lines): is drawn; name a file: -o lines.png"),
        (["en-de", "a", "--head", "1"], "--head (1): is drawn; name a file: -o head.png"),
        (["en-de", "a", "--ablate", "-o", "a.png"], "--ablate: is a table; leave out --out (a.png)"),
        (["masks", "a"], "regard look masks: takes nothing, not 1 (a)"),
        (["merges", "en-de"], "regard look merges MODEL WORD: takes 2, not 1 (en-de)"),
        (["masks", "--head", "3"], "--head (3): goes with a model and an input, not with masks"),
        (
            ["masks", "-o", "nowhere/a.png"],
            "nowhere/a.png: cannot be written: there is no folder nowhere; make it first",
        ),
        (["masks", "-o", "a.jpg"], "--out (a.jpg) must be a .html, .png or .svg file"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, message):
    assert str(CliRunner().invoke(app, ["look", *arguments]).exception) == message
