"""Texts to images, from a painter's codes to a drawing on disk."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import regard
import toy
from regard import recipe
from regard.cli import app
from regard.config import ConfigError, InputError
from regard.data.batches import make_batches
from regard.data.prepare import prepare
from regard.schema import from_dict
from regard.train.loop import train
from regard.train.watch import Watch

TEXTS = ["above", "below", "nowhere"]
CODES = 19


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("draw")
    plan, data = toy.prepared(folder, "draw", steps=80, valid_every=80, lr=0.005, batch_images=32)
    run = train(plan, data.path, folder / "run", device="cpu", watch=Watch(quiet=True))
    shutil.rmtree(folder / "painter")  # a run works alone
    return regard.load(run.path), data, plan, list(run.lines())


def test_codes_are_the_painters_and_travel_along(made):
    model, data, _, _ = made
    columns = data.split("train")
    painter = regard.load(data.path / "painter")
    assert np.array_equal(columns["codes"][:7], painter.codes(list(columns["image"][:7])))
    assert data.n_codes == CODES
    assert model.config.decoder.input.vocab_size == len(data.tokenizer) + CODES
    assert model.painter.task == "paint"


def test_a_row_is_a_text_of_one_length_and_the_codes(made):
    model, data, plan, _ = made
    batches = make_batches(data, "valid", plan.train, model.config, shuffled=False)
    batch, tokens, columns = batches.part(0), data.tokenizer, data.split("valid")
    codes = columns["codes"][columns["of"][batches.rows(0)]].astype(int) + len(tokens)
    n = len(codes)
    assert batch.inputs.shape == (n, 11 + 25)
    assert batch.at is not None
    for row, i in enumerate(batches.rows(0)):
        text = columns["text"][i].tolist()
        padding = [tokens.pad] * (11 - len(text))
        assert batch.inputs[row].tolist() == [tokens.start, *text, *padding, *codes[row][:-1]]
    assert np.array_equal(batch.wanted.numpy().reshape(n, 25), codes)
    # What is asked at a place is what comes in at the next one.
    following = np.roll(batch.inputs.numpy(), -1).flatten()[batch.at.numpy()].reshape(n, 25)
    assert np.array_equal(following[:, :-1], codes[:, :-1])
    assert batches.size(0).wanted == n * 25


def test_several_texts_of_an_image_have_its_codes(made, tmp_path):
    """They lie there once, as the image does."""
    _, _, plan, _ = made
    names = ["c.png", "a.png", "b.png"]
    for i, name in enumerate(names):
        Image.fromarray(np.full((15, 15, 3), 90 * i, np.uint8)).save(tmp_path / name)
    rows = [
        {"image": name, "text": said} for name, said in zip(names, (["one"], ["two", "both"], ["three"]), strict=True)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    images = plan.data.images.replace(tokenizer=str(made[1].path / "painter"))
    files = {"train": recipe.Files(files=(str(tmp_path / "rows.jsonl"),)), "valid": recipe.Files()}
    data = prepare(plan.data.replace(images=images, **files), tmp_path / "data")
    columns = data.split("train")
    assert (len(columns["text"]), len(columns["codes"]), columns["of"].tolist()) == (4, 3, [0, 1, 1, 2])
    batch = make_batches(data, "train", plan.train, made[0].config, shuffled=False).part(0)
    codes = batch.wanted.numpy().reshape(4, 25) - len(data.tokenizer)
    assert np.array_equal(codes, columns["codes"][[0, 1, 1, 2]])
    assert not np.array_equal(codes[0], codes[2])


def test_it_learns(made):
    *_, lines = made
    [last] = [line for line in lines if line["kind"] == "valid"]
    assert last["loss"] < lines[0]["loss"]
    assert 0 <= last["accuracy"] <= 1


def test_a_drawing_belongs_to_its_text_and_seed(made):
    model, *_ = made
    together = model.draw(TEXTS, n=3, seed=5)
    assert [len(drawings) for drawings in together] == [3, 3, 3]
    for text, drawings in zip(TEXTS, together, strict=True):
        [alone] = model.draw(text, n=2, seed=5)
        assert [one.codes for one in alone] == [one.codes for one in drawings[:2]]
        assert {one.text for one in drawings} == {text}
    one = together[0][0]
    assert one.image.shape == (15, 15, 3)
    assert one.image.dtype == np.uint8
    assert np.array_equal(one.image, model.painter.paint([one.codes])[0])
    assert one.score < 0
    assert model.draw(TEXTS, n=3, seed=6)[0][0].codes != one.codes
    [[likeliest]] = model.draw(TEXTS[0], temperature=0)
    assert model.draw(TEXTS, n=2, top_k=1)[0][0].codes == likeliest.codes


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("", {}, "is empty"),
        ("above and below and nowhere", {}, "this model reads 11"),
        ("above", {"n": 0}, r"n \(0\)"),
        ("above", {"n": 2, "temperature": 0}, r"n \(2\): at temperature 0 there is one image"),
        ("above", {"top_p": 2.0}, "top_p"),
    ],
)
def test_what_cannot_be_drawn_is_told(made, text, options, says):
    with pytest.raises((InputError, ConfigError), match=says):
        made[0].draw(text, **options)


def test_other_models_draw_nothing():
    model = regard.Model(regard.Transformer(regard.presets.tiny_vq_vae()), "paint", None)
    with pytest.raises(InputError, match="trained to paint, not to draw"):
        model.draw("a dog")


def test_the_command_writes_a_grid(made, tmp_path, monkeypatch):
    path, out = str(made[0].path), tmp_path / "a.png"
    done = CliRunner().invoke(app, ["draw", path, "above", "below", "--n", "3", "-o", str(out), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    grid = np.asarray(Image.open(out))
    assert grid.shape == (15 + 2 + 15, 3 * 15 + 2 * 2, 3)
    [drawings, _] = made[0].draw(["above", "below"], n=3)
    assert np.array_equal(grid[:15, 17:32], drawings[1].image)
    monkeypatch.setattr("regard.cli.pictures.load", lambda *_: pytest.fail("it is refused before anything is loaded"))
    done = CliRunner().invoke(app, ["draw", path, "above", "-o", str(tmp_path / "a.what"), "--device", "cpu"])
    assert "a.what: .what is no kind of image; name it like drawing.png" in str(done.exception)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("match")
    plan, data = toy.prepared(folder, "match", n=61, steps=7, valid_every=7)
    return train(plan, data.path, folder / "run", device="cpu", watch=Watch(quiet=True)).path


def test_reranked_drawings_come_by_their_cosines(made, clip, tmp_path):
    model, judge = made[0], regard.load(clip, device="cpu")
    plain, ranked = (model.draw(["above", "below"], n=7, seed=5, rerank=rerank) for rerank in (None, judge))
    changed = 0
    for text, before, after in zip(["above", "below"], plain, ranked, strict=True):
        near = judge.match([one.image for one in before], [text]).cosines[:, 0]
        assert [one.codes for one in after] == [before[i].codes for i in np.argsort(-near)]
        assert [one.cosine for one in after] == pytest.approx(sorted(near, reverse=True), abs=1e-6)
        changed += [one.codes for one in after] != [one.codes for one in before]
    assert changed, "or any order would do"

    out = tmp_path / "ranked.png"
    options = ["--n", "7", "--seed", "5", "--rerank", str(clip), "-o", str(out), "--device", "cpu"]
    done = CliRunner().invoke(app, ["draw", str(model.path), "above", "below", *options])
    assert done.exit_code == 0, done.output
    grid = np.asarray(Image.open(out))
    assert all(np.array_equal(grid[17:, 17 * i : 17 * i + 15], one.image) for i, one in enumerate(ranked[1]))

    done = CliRunner().invoke(app, ["draw", str(model.path), "above", "-o", str(out), "--rerank", str(model.path)])
    assert "was trained to draw, not to match" in str(done.exception)
    with pytest.raises(InputError, match="trained to draw, not to match"):
        model.draw("above", rerank=model)


def test_what_does_not_go_with_drawing_is_refused(made, tmp_path):
    plan = made[2].to_dict()
    images = plan["data"]["images"]
    for changes, says in (
        ({"data": {**plan["data"], "images": {**images, "tokenizer": None}}}, "images.tokenizer: missing"),
        ({"data": {**plan["data"], "images": None}}, "images: missing"),
        ({"train": {**plan["train"], "flip": 0.5}}, "train.flip .0.5. does not go with task 'draw'"),
        ({"data": {**plan["data"], "task": "classify"}}, "goes with task 'draw'"),
    ):
        with pytest.raises(ConfigError, match=says):
            from_dict(recipe.Recipe, {**plan, **changes})
    asked = from_dict(recipe.Data, {**plan["data"], "images": {**images, "tokenizer": "nowhere"}})
    with pytest.raises(InputError, match="nowhere: no such directory"):
        prepare(asked, tmp_path / "data")
    painter = str(made[1].path / "painter")
    asked = from_dict(recipe.Data, {**plan["data"], "images": {**images, "size": 9, "tokenizer": painter}})
    with pytest.raises(InputError, match="paints 15 x 15, 3 channels"):
        prepare(asked, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_model_must_have_room_for_all_codes(made):
    model, data, plan, _ = made
    small = model.config.replace(decoder=model.config.decoder.replace(max_len=31))
    with pytest.raises(InputError, match="must be at least 37"):
        make_batches(data, "train", plan.train, small)
    assert json.loads((data.path / "manifest.json").read_text())["painter"]["n_codes"] == CODES
