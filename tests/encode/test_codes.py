"""A model that paints, from a folder of images without labels to codes and back."""

import numpy as np
import pytest
from PIL import Image

import regard
import toy
from regard import recipe
from regard.config import ConfigError, InputError
from regard.data.prepare import prepare
from regard.recipe import Data, Files, Images
from regard.schema import from_dict
from regard.train.loop import train
from regard.train.watch import Watch


@pytest.fixture(scope="module")
def painter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paint")
    plan, data = toy.prepared(folder, "paint", steps=60, crop=0.0, randaugment=0.0, erase=0.0, flip=0.0, valid_every=60)
    run = train(plan, data.path, folder / "run", device="cpu", watch=Watch(quiet=True))
    return regard.load(run.path), data, list(run.lines())


def test_validation_tells_the_error_and_the_use_of_codes(painter):
    _, _, lines = painter
    [last] = [line for line in lines if line["kind"] == "valid"]
    assert last["psnr"] > 10
    assert 1 <= last["codes"] <= 19
    assert lines[0]["loss"] > last["loss"]


def test_images_become_codes_and_images_again(painter):
    model, data, lines = painter
    images = data.split("valid")["image"]
    ids = model.codes(list(images))
    assert ids.shape == (31, 25)
    assert 0 <= ids.min() <= ids.max() < 19
    painted = model.paint(ids)
    assert painted.shape == images.shape
    assert painted.dtype == np.uint8
    error = ((painted.astype(float) - images) / 255) ** 2
    [last] = [line for line in lines if line["kind"] == "valid"]
    # What validation says, up to whole numbers and the ends of their range.
    assert -10 * np.log10(error.mean()) == pytest.approx(last["psnr"], abs=0.1)
    assert np.array_equal(model.codes(images[:3]), ids[:3])


def test_paths_and_arrays_have_the_same_codes(painter, tmp_path):
    model, data, _ = painter
    image = data.split("valid")["image"][2]
    Image.fromarray(image).save(tmp_path / "a.png")
    assert np.array_equal(model.codes(str(tmp_path / "a.png")), model.codes([image]))
    assert model.codes([]).shape == (0, 25)
    assert model.paint(np.zeros((0, 25), int)).shape == (0, 15, 15, 3)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([[1] * 24], r"shape \(1, 24\)"),
        ([[0.5] * 25], "whole numbers"),
        ([[19] * 25], "from 0 to 18"),
        ([[-1] * 25], "to 18"),
    ],
)
def test_codes_that_are_none_are_refused(painter, given, says):
    with pytest.raises(InputError, match=says):
        painter[0].paint(given)


def test_images_may_lie_anywhere_in_a_folder_or_a_table(tmp_path):
    folder = toy.images(tmp_path / "images", 7, 3)
    loose = folder / "loose.png"
    Image.new("RGB", (5, 5), "red").save(loose)
    rows = ["images/loose.png", "images/above/0000.png"]
    (tmp_path / "list.tsv").write_text("".join(f"{row}\n" for row in rows))
    (tmp_path / "a-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + b"\0\0\0\x02" * 3 + bytes(8))
    for i, (files, n) in enumerate((("images", 8), ("list.tsv", 2), ("a-images-idx3-ubyte", 2))):
        asked = Data(task="paint", train=Files(files=(str(tmp_path / files),)), images=Images(size=6))
        made = prepare(asked, tmp_path / f"data{i}")
        assert made.split("train")["image"].shape == (n, 6, 6, 3)
        assert list(made.split("train")) == ["image"]
        assert made.labels == []


def test_what_does_not_go_with_painting_is_refused(tmp_path):
    plan = toy.make_recipe(tmp_path, "paint").to_dict()
    for changes, says in (
        ({"train": {**plan["train"], "mixup": 0.2}}, "train.mixup"),
        ({"train": {**plan["train"], "smoothing": 0.1}}, "train.smoothing"),
        ({"data": {**plan["data"], "images": None}}, "images: missing"),
        ({"model": {"preset": "tiny_vit"}}, "needs encoder with a codes head"),
    ):
        with pytest.raises(ConfigError, match=says):
            from_dict(recipe.Recipe, {**plan, **changes})


def test_other_models_neither_code_nor_paint():
    model = regard.Model(regard.Transformer(regard.presets.tiny_vit()), "classify", None)
    with pytest.raises(InputError, match="trained to classify, not to paint"):
        model.codes([np.zeros((15, 15, 3), np.uint8)])
