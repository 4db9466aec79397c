"""A model over images goes on with other labels and another size: its positions are resampled, its colours kept."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import ViTConfig, ViTModel

import regard
import toy
from regard.data.prepare import prepare
from regard.nn.positions import resampled, sinusoid, sinusoid_2d
from regard.recipe import Recipe
from regard.schema import InputError, from_dict
from regard.train.loop import train
from regard.train.watch import Watch


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun")
    recipe, data = toy.prepared(folder, "images", n=53, steps=7, valid_every=7, checkpoint_every=7)
    return train(recipe, data.path, folder / "run", device="cpu", watch=Watch(quiet=True))


def tuned(begun, folder, size=21, model=None, **images):
    """A recipe for other images, its data, and a run of it."""
    toy.images(folder / "train", 41, 5, size)
    (folder / "train" / "nowhere").rename(folder / "train" / "dark")
    data = {"task": "classify", "train": {"files": str(folder / "train")}, "images": {"size": size, **images}}
    settings = {"steps": 5, "batch_images": 11, "valid_every": 5, "checkpoint_every": 2, "log_every": 1, "flip": 0.5}
    recipe = from_dict(Recipe, {"data": data, "model": model or {}, "train": settings})
    prepared = prepare(recipe.data, folder / "data", tokenizers={})
    return recipe, prepared


def go_on(begun, recipe, data, out, **options):
    return train(recipe, data.path, out, begin_from=begun.path, device="cpu", watch=Watch(quiet=True), **options)


def test_other_labels_and_another_size(begun, tmp_path):
    recipe, data = tuned(begun, tmp_path)
    run = go_on(begun, recipe, data, tmp_path / "run")
    config = run.config()
    assert config["model"]["encoder"]["input"]["image_size"] == 21
    assert config["from"]["new"] == ["head.classify.weight", "head.classify.bias"]
    model = regard.load(run.path, device="cpu")
    assert model.labels == ("above", "below", "dark")
    assert model.config.encoder.n_positions == 50
    assert model.classify([next((tmp_path / "train" / "dark").iterdir())])[0].label in model.labels


def test_the_positions_that_it_begins_with_are_resampled(begun, tmp_path):
    recipe, data = tuned(begun, tmp_path)
    recipe = recipe.replace(train=recipe.train.replace(train_last=0, steps=1))
    run = go_on(begun, recipe, data, tmp_path / "run")
    before, after = load_file(begun.weights), load_file(run.weights)
    name = "encoder.positions.weight"
    assert torch.equal(after[name], resampled(before[name], side=7, ahead=1))
    assert torch.equal(after["encoder.embed.project.weight"], before["encoder.embed.project.weight"])


def test_images_are_brought_to_the_mean_that_the_model_knows_also_when_resumed(begun, tmp_path, monkeypatch):
    recipe, data = tuned(begun, tmp_path)
    told = begun.config()["images"]
    assert data.manifest["images"]["mean"] != told["mean"]
    straight = go_on(begun, recipe, data, tmp_path / "straight")
    with toy.killed_at(2, monkeypatch):
        go_on(begun, recipe, data, tmp_path / "run")
    run = train(None, data.path, tmp_path / "run", resume=True, device="cpu", watch=Watch(quiet=True))
    assert run.weights.read_bytes() == straight.weights.read_bytes()
    config = json.loads((run.path / "config.json").read_text())["images"]
    assert (config["mean"], config["std"]) == (told["mean"], told["std"])
    assert config["size"] == 21


def test_another_patch_or_colour_is_another_model(begun, tmp_path):
    recipe, data = tuned(begun, tmp_path, channels=1)
    with pytest.raises(InputError, match=r"has another model \(encoder.input.channels: 3 there, 1 here\)"):
        go_on(begun, recipe, data, tmp_path / "run")


def test_a_model_of_text_is_no_beginning(tmp_path):
    from regard.schema import ConfigError

    other, data = toy.prepared(tmp_path / "text", "classify", n=31, steps=2, valid_every=2)
    run = train(other, data.path, tmp_path / "text" / "run", device="cpu", watch=Watch(quiet=True))
    recipe, prepared = tuned(run, tmp_path)
    with pytest.raises(ConfigError, match=r"data.images: the model reads tokens"):
        go_on(run, recipe, prepared, tmp_path / "run")


# ---------------------------------------------------------------------------------------
# Positions


def keys(x, a=-0.75):
    """Keys' cubic kernel."""
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


@pytest.mark.parametrize("side", [3, 5, 11])
def test_resampling_is_bicubic(side):
    weight = torch.randn(2 + 25, 7, dtype=torch.float64)
    found = resampled(weight, side, ahead=2)
    assert torch.equal(found[:2], weight[:2])
    grid = weight[2:].view(5, 5, 7)
    for i in range(side):
        for j in range(side):
            y, x = ((k + 0.5) * 5 / side - 0.5 for k in (i, j))
            expected = torch.zeros(7, dtype=torch.float64)
            for a in range(int(y // 1) - 1, int(y // 1) + 3):
                for b in range(int(x // 1) - 1, int(x // 1) + 3):
                    expected += keys(y - a) * keys(x - b) * grid[min(max(a, 0), 4), min(max(b, 0), 4)]
            torch.testing.assert_close(found[2 + i * side + j], expected, atol=1e-5, rtol=1e-5)


def test_resampling_is_transformers():
    torch.manual_seed(3)
    config = ViTConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=7, image_size=15, patch_size=3
    )
    theirs = ViTModel(config, add_pooling_layer=False).embeddings
    torch.nn.init.normal_(theirs.position_embeddings)
    expected = theirs.interpolate_pos_encoding(torch.zeros(1, 50, 12), 21, 21)[0]
    torch.testing.assert_close(resampled(theirs.position_embeddings[0].detach(), 7, ahead=1), expected.detach())


def test_the_same_size_changes_nothing():
    weight = torch.randn(1 + 25, 7)
    torch.testing.assert_close(resampled(weight, 5, ahead=1), weight)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_rows_and_columns_have_a_half_each(layout):
    table = sinusoid_2d(5, 14, 100.0, layout, ahead=3)
    line = sinusoid(5, 7, 100.0, layout)
    assert (table[:3] == 0).all()
    for i in range(5):
        for j in range(5):
            assert torch.equal(table[3 + 5 * i + j], torch.cat([line[i], line[j]]))
