"""A trained captioner says what it sees: a Transformer over a CNN, and the attention GRU; from Python, the command line,
and with a score card. An image is stored once, however many captions it has."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import regard
import toy
from regard import recipe as recipes
from regard.cli import app
from regard.data.prepare import prepare
from regard.evaluate.captions import evaluate_captions, read_captioned, with_other_images
from regard.schema import ConfigError, InputError
from regard.train.loop import train
from regard.train.watch import Watch

PLAIN = {"crop": 0.0, "flip": 0.0, "randaugment": 0.0, "erase": 0.0}


@pytest.fixture(scope="module", params=["caption", pytest.param("show", marks=pytest.mark.slow)])
def trained(request, tmp_path_factory):
    """A run, and the folder of its images."""
    folder = tmp_path_factory.mktemp(request.param)
    wider = {**toy.MODELS["show"], "decoder": {"d_input": 31, "d_hidden": 53}}  # or it takes long
    how = {"caption": {"steps": 150}, "show": {"steps": 300, "schedule": "cosine", "model": wider}}[request.param]
    recipe, data = toy.prepared(
        folder, request.param, **how, valid_every=150, checkpoint_every=150, batch_images=31, bleu=7, **PLAIN
    )
    run = train(recipe, data.path, folder / "run", device="cpu", watch=Watch(quiet=True))
    return run, folder


@pytest.fixture
def model(trained):
    return regard.load(trained[0].path, device="cpu")


def run_command(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def said_right(path, text):
    return {"above": "light above", "below": "light below", "nowhere": "no light"}[path.parent.name] in text


def test_it_has_learned_to_say_what_it_sees(trained, model):
    photos = sorted((trained[1] / "valid").rglob("*.png"))
    found = model.caption(photos, beam=3)
    assert np.mean([said_right(path, one.text) for path, one in zip(photos, found, strict=True)]) > 0.9
    assert all(one.score < 0 and "".join(one.tokens) for one in found)
    lines = [line for line in trained[0].lines() if line["kind"] == "valid"]
    assert {"loss", "perplexity", "bleu"} <= lines[-1].keys()
    assert lines[-1]["bleu"] > 25


def test_a_batch_says_what_each_image_alone_does(trained, model):
    photos = sorted((trained[1] / "valid").rglob("*.png"))[:5]
    together = model.caption(photos, beam=3, n_best=2)
    for path, one in zip(photos, together, strict=True):
        [alone] = model.caption(path, beam=3, n_best=2)
        assert alone.text == one.text
        assert alone.score == pytest.approx(one.score, abs=1e-4)
        assert [other.text for other in alone.others] == [other.text for other in one.others]
        assert one.score >= one.others[0].score


def test_the_command_line(trained):
    photo = sorted((trained[1] / "valid").rglob("*.png"))[0]
    told = run_command("caption", trained[0].path, photo, photo, "--beam", 2, "--n-best", 2, "--scores")
    assert told.exit_code == 0, told.output
    rows = [line.split("\t") for line in told.stdout.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "2"]
    assert float(rows[0][1]) >= float(rows[1][1])
    plain = json.loads(run_command("caption", trained[0].path, photo, "--beam", 2, "--json").stdout)
    assert (plain["image"], plain["text"]) == (str(photo), rows[0][2])


def test_the_picture_of_where_each_word_looked(trained, tmp_path):
    pytest.importorskip("matplotlib")
    photo, out = sorted((trained[1] / "valid").rglob("*.png"))[0], tmp_path / "words.png"
    told = run_command("caption", trained[0].path, photo, "--map", out)
    assert told.exit_code == 0, told.output
    assert told.stdout == run_command("caption", trained[0].path, photo).stdout
    with Image.open(out) as picture:
        assert picture.width > 400


def test_a_score_card(trained, model):
    file = trained[1] / "valid" / "captions.jsonl"
    examples = read_captioned(model, file)
    assert len(examples) == 10
    assert {len(own) for _, own in examples} == {1, 2, 3}
    card = evaluate_captions(model, examples, beam=2)
    values = {score.name: score.value for score in card.scores}
    assert values["BLEU-1"] >= values["BLEU-2"] >= values["BLEU-4"] > 50
    told = run_command("evaluate", trained[0].path, "--file", file, "--beam", 2, "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["scores"]["BLEU-4"]["score"] == pytest.approx(values["BLEU-4"], abs=1e-3)
    [kept] = json.loads((trained[0].path / "scorecard.json").read_text())["sets"].values()
    assert kept["images"] == 10


def test_with_shuffled_images_it_is_the_picture_that_speaks(trained, model):
    file = trained[1] / "valid" / "captions.jsonl"
    examples = read_captioned(model, file)
    others = with_other_images(examples)
    assert sorted(one.key for one, _ in others) == sorted(one.key for one, _ in examples)
    assert all(a != b for (a, _), (b, _) in zip(others, examples, strict=True))
    assert [own for _, own in others] == [own for _, own in examples]
    true, false = (evaluate_captions(model, examples, shuffled=shuffled, beam=2) for shuffled in (False, True))
    assert false.scores[3].value < 0.75 * true.scores[3].value  # a third are alike
    assert [one.value for one in evaluate_captions(model, others, beam=2).scores] == [s.value for s in false.scores]
    told = run_command("evaluate", trained[0].path, "--file", file, "--beam", 2, "--shuffle-images")
    assert told.exit_code == 0, told.output
    assert "captions.jsonl, images shuffled, 10 images" in told.stdout
    assert "shuffled: each is that of another example (seed 1)" in told.stdout
    cards = json.loads((trained[0].path / "scorecard.json").read_text())["sets"]
    assert cards["captions.jsonl, images shuffled"]["shuffled_images"] == {"seed": 1}
    with pytest.raises(InputError, match="images of 1 example cannot be shuffled"):
        with_other_images(examples[:1])
    assert "goes with --file" in str(run_command("evaluate", "x", "--text", "a", "--shuffle-images").exception)


def test_a_model_that_does_something_else_is_refused(trained, model):
    with pytest.raises(InputError, match="was trained to caption, not to classify"):
        model.classify([next((trained[1] / "valid").rglob("*.png"))])


# ---------------------------------------------------------------------------------------
# Data


def table(folder, rows, name="rows.jsonl"):
    (folder / name).write_text("".join(json.dumps({"image": i, "caption": c}) + "\n" for i, c in rows))
    return recipes.Files(files=(str(folder / name),))


def pictures(folder, *names):
    for i, name in enumerate(names):
        Image.fromarray(np.full((7, 7, 3), 10 * i, np.uint8)).save(folder / name)


def data_of(train, **more):
    tokens, images = recipes.Tokenizer(kind="bytes"), recipes.Images(size=7, max_broken=more.pop("max_broken", 0.01))
    return recipes.Data(task="caption", train=train, images=images, tokenizer=tokens, **more)


def test_an_image_is_stored_once_and_captions_name_it(tmp_path):
    pictures(tmp_path, "a.png", "b.png", "c.png")
    rows = [("b.png", "two"), ("a.png", ["one", "uno"]), ("b.png", "zwei"), ("c.png", "x" * 99)]
    data = prepare(data_of(table(tmp_path, rows), max_tokens=11), tmp_path / "data")
    columns = data.split("train")
    assert columns["of"].tolist() == [0, 1, 1, 0]
    assert columns["image"][:, 0, 0, 0].tolist() == [10, 0]  # c.png has no caption that is short enough
    assert [data.tokenizer.decode(row) for row in columns["text"]] == ["two", "one", "uno", "zwei"]
    assert data.manifest["splits"]["train"]["dropped"]["too long"] == 1


def test_a_broken_image_is_counted_once_and_its_captions_go(tmp_path):
    pictures(tmp_path, "a.png", "b.png")
    (tmp_path / "c.png").write_text("not an image")
    files = table(tmp_path, [("c.png", ["x", "y", "z"]), ("a.png", "one"), ("b.png", "two")])
    with pytest.raises(InputError, match=r"1 of 3 images cannot be read, more than max_broken \(0.01\)"):
        prepare(data_of(files), tmp_path / "data")
    data = prepare(data_of(files, max_broken=0.5), tmp_path / "data")
    assert data.split("train")["of"].tolist() == [0, 1]
    assert data.manifest["splits"]["train"]["dropped"]["broken"] == 3


def test_images_are_held_out_with_all_of_their_captions(tmp_path):
    pictures(tmp_path, "a.png", "b.png", "c.png")
    files = table(tmp_path, [("a.png", ["a1", "a2", "a3"]), ("b.png", "b"), ("c.png", ["c1", "c2"])])
    data = prepare(data_of(files, hold_out=0.34), tmp_path / "data")
    train, valid = data.split("train"), data.split("valid")
    assert (train["of"].tolist(), valid["of"].tolist()) == ([0, 0, 0, 1], [0, 0])
    assert (train["image"][:, 0, 0, 0].tolist(), valid["image"][:, 0, 0, 0].tolist()) == ([0, 10], [20])
    assert [data.tokenizer.decode(row) for row in valid["text"]] == ["c1", "c2"]
    apart = table(tmp_path, [("a.png", "a"), ("b.png", "b"), ("c.png", "c"), ("a.png", "a2")], "apart.jsonl")
    with pytest.raises(InputError, match=r"hold_out \(0.34\): captions of one image lie apart"):
        prepare(data_of(apart, hold_out=0.34), tmp_path / "other")


def test_what_does_not_fit_is_said(tmp_path):
    pictures(tmp_path, "a.png")
    with pytest.raises(InputError, match=r"line 1: names an image that is not there, .*gone.png"):
        prepare(data_of(table(tmp_path, [("gone.png", "x")])), tmp_path / "data")
    with pytest.raises(ConfigError, match="images: missing; caption is over images"):
        recipes.Data(task="caption", train=recipes.Files(files=("a.jsonl",))).validate()
    with pytest.raises(ConfigError, match=r"train.mixup \(0.2\) does not go with task 'caption'"):
        toy.make_recipe(tmp_path / "toy", "caption", mixup=0.2)


def test_the_page_of_prepared_captions(tmp_path):
    recipe = toy.make_recipe(tmp_path, "caption")
    (tmp_path / "recipe.json").write_text(recipe.to_json())
    told = run_command("prepare", tmp_path / "recipe.json", "--out", tmp_path / "data")
    assert told.exit_code == 0, told.output
    assert "images     70     10" in told.stdout
    assert "12 x 12 pixels" in told.stdout
    assert "l i g h t" in told.stdout
