"""A trained model says what is in a photo, whatever it comes as; from Python, the command line, and with a score card."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import regard
import toy
from regard.cli import app
from regard.data.augment import Treatment, treated
from regard.evaluate import evaluate_labels, read_examples
from regard.schema import InputError
from regard.train.loop import train
from regard.train.watch import Watch


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, and the folders of images that it learned from and was chosen on."""
    folder = tmp_path_factory.mktemp("images")
    plain = {"crop": 0.0, "flip": 0.0, "randaugment": 0.0, "mixup": 0.0, "cutmix": 0.0, "erase": 0.0}
    recipe, data = toy.prepared(folder, "images", steps=60, valid_every=20, checkpoint_every=60, **plain)
    run = train(recipe, data.path, folder / "run", device="cpu", watch=Watch(quiet=True))
    return run.path, folder


@pytest.fixture(scope="module")
def model(trained):
    return regard.load(trained[0], device="cpu")


@pytest.fixture
def photos(trained):
    return sorted((trained[1] / "valid").rglob("*.png"))


def run_command(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_it_has_learned_and_says_so(model, photos):
    found = model.classify([str(path) for path in photos])
    right = [one.label == path.parent.name for one, path in zip(found, photos, strict=True)]
    assert np.mean(right) > 0.9
    assert sum(found[0].probabilities.values()) == pytest.approx(1)
    assert list(found[0].probabilities) == ["above", "below", "nowhere"]


def test_a_photo_is_treated_as_the_training_images_were(model, trained, photos):
    config = json.loads((trained[0] / "config.json").read_text())["images"]
    assert (config["size"], config["channels"]) == (15, 3)
    pixels = torch.from_numpy(np.asarray(Image.open(photos[0])).copy())[None]
    logits = model.logits(treated(pixels, Treatment(*(torch.tensor(config[name]) for name in ("mean", "std")))))
    [found] = model.classify([photos[0]])
    assert list(found.probabilities.values()) == pytest.approx(logits[0].softmax(-1).tolist(), abs=1e-6)


def test_whatever_a_photo_comes_as(model, photos):
    path = photos[0]
    given = [str(path), path, path.read_bytes(), Image.open(path), np.asarray(Image.open(path))]
    found = model.classify(given)
    for one in (*found, *model.classify(str(path))):
        assert one.probabilities == pytest.approx(found[0].probabilities, abs=1e-6)


def test_a_batch_does_not_change_an_answer(model, photos):
    many = model.classify([*photos] * 5)  # more than one batch
    for one, path in zip(many, photos, strict=False):
        assert one.probability == pytest.approx(model.classify([path])[0].probability, abs=1e-5)


def test_another_size_and_shape_is_cut_and_resized(model, photos):
    large = Image.open(photos[0]).resize((120, 120), Image.Resampling.NEAREST)
    wide = Image.new("RGB", (200, 120), "white")
    wide.paste(large, (40, 0))
    one, other = model.classify([photos[0], wide])
    assert one.label == other.label


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["nowhere.jpg"], "nowhere.jpg: no such image"),
        ([b"a dog"], "image 1: is not an image, or of a kind that pillow cannot read"),
        ([3], "image 1 (int) must be a path, bytes, an image of pillow or an array"),
        (np.zeros((5, 5, 3), np.uint8), "an array of shape (5, 5, 3) is one image; give a list of them: [image]"),
    ],
)
def test_what_is_no_image_is_refused(model, given, message):
    with pytest.raises(InputError) as error:
        model.classify(given)
    assert str(error.value) == message


def test_what_reads_images_does_not_read_text(model):
    for job in (model.fill, model.tag, model.translate):
        with pytest.raises(InputError, match="was trained to classify"):
            job(["a dog"])
    with pytest.raises(InputError, match="reads"):
        model.embed(["a dog"])


# ---------------------------------------------------------------------------------------
# The command line


def test_classify(trained, photos):
    done = run_command("classify", trained[0], photos[0], photos[-1], "--device", "cpu")
    assert done.exit_code == 0
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [photos[0].parent.name, photos[-1].parent.name]


def test_classify_as_json(trained, photos, tmp_path):
    (tmp_path / "list.txt").write_text(f"{photos[0]}\n")
    done = run_command("classify", trained[0], "--file", tmp_path / "list.txt", "--json", "--device", "cpu")
    told = json.loads(done.stdout)
    assert told["image"] == str(photos[0])
    assert told["label"] == photos[0].parent.name


def test_classify_what_is_none(trained, tmp_path):
    (tmp_path / "notes.txt").write_text("not an image")
    done = run_command("classify", trained[0], tmp_path / "notes.txt", "--device", "cpu")
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == f"{tmp_path}/notes.txt: is not an image, or of a kind that pillow cannot read"


def test_evaluate_a_folder(trained, model):
    run, folder = trained
    done = run_command("evaluate", run, "--file", folder / "valid", "--json", "--device", "cpu")
    assert done.exit_code == 0, done.exception
    card = json.loads(done.stdout)
    assert card["images"] == 31
    assert (
        card["scores"]["accuracy"]["low"] <= card["scores"]["accuracy"]["score"] <= card["scores"]["accuracy"]["high"]
    )
    assert json.loads((run / "scorecard.json").read_text())["sets"]["valid"]["scores"] == card["scores"]
    right = [model.classify([path])[0].label == path.parent.name for path in sorted((folder / "valid").rglob("*.png"))]
    assert card["scores"]["accuracy"]["score"] == pytest.approx(100 * np.mean(right), abs=1e-3)


def test_two_models_on_the_same_images(trained):
    run, folder = trained
    done = run_command("evaluate", run, run, "--file", folder / "valid", "--json", "--device", "cpu")
    assert json.loads(done.stdout)["differences"]["accuracy"]["difference"] == 0


def test_a_card_knows_its_images(model, trained, tmp_path):
    examples = read_examples(model, trained[1] / "valid")
    one, other = evaluate_labels(model, examples), evaluate_labels(model, examples[1:])
    assert one.data["images"] != other.data["images"]


def test_a_label_that_the_model_does_not_know(model, trained, photos, tmp_path):
    file = tmp_path / "list.tsv"
    file.write_text(f"{photos[0]}\tabove\n{photos[1]}\tbelow\n{photos[2]}\tsideways\n")
    with pytest.raises(InputError) as error:
        read_examples(model, file)
    assert str(error.value) == (
        f"{file}: line 3: label 'sideways' is not one that the model was trained on; known: above, below, nowhere"
    )
