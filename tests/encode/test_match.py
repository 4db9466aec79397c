"""Two encoders learn which text belongs to which image; zero-shot labels, retrieval, and a score card."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from typer.testing import CliRunner

import regard
import toy
from regard.cli import app
from regard.evaluate.captions import read_captioned
from regard.evaluate.retrieval import evaluate_matches, ranks
from regard.schema import ConfigError, InputError
from regard.train import tasks
from regard.train.distributed import World
from regard.train.loop import Trainer, train
from regard.train.run import Run
from regard.train.watch import Watch

PLAIN = {"crop": 0.0, "flip": 0.0, "randaugment": 0.0, "erase": 0.0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, and the folder of its images."""
    folder = tmp_path_factory.mktemp("match")
    recipe, data = toy.prepared(
        folder, "match", steps=150, valid_every=75, checkpoint_every=150, batch_images=7, lr=0.003, **PLAIN
    )
    run = train(recipe, data.path, folder / "run", device="cpu", watch=Watch(quiet=True))
    return run, folder


@pytest.fixture(scope="module")
def model(trained):
    return regard.load(trained[0].path, device="cpu")


@pytest.fixture
def photos(trained):
    return sorted((trained[1] / "valid").rglob("*.png"))


def run_command(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


LABELS = {"above": "light above", "below": "light below", "nowhere": "no light"}


def test_it_has_learned_to_tell_without_labels(trained, model, photos):
    found = model.match(photos, list(LABELS.values()), ["a {}", "the {}"])
    assert found.probabilities.sum(1) == pytest.approx(1, abs=1e-5)
    said = [list(LABELS)[i] for i in found.cosines.argmax(1)]
    assert np.mean([one == path.parent.name for one, path in zip(said, photos, strict=True)]) > 0.8
    lines = [line for line in trained[0].lines() if line["kind"] == "valid"]
    assert lines[-1]["image_to_text_r10"] >= lines[-1]["image_to_text_r1"]
    assert lines[-1]["text_to_image_r10"] == 1.0  # of ten images


def test_vectors_are_what_the_network_says(model, photos):
    texts = ["a light above", "some no light"]
    images, words = model.embed(photos[:3]), model.embed(texts)
    assert np.linalg.norm(images, axis=1) == pytest.approx(1, abs=1e-5)
    found = model.match(photos[:3], texts)
    np.testing.assert_allclose(found.cosines, images @ words.T, atol=1e-6)
    same = model.embed([np.asarray(Image.open(path)) for path in photos[:3]])
    np.testing.assert_allclose(same, images, atol=1e-6)
    scale = model.net.head.log_scale.exp().item()
    shares = torch.tensor(scale * found.cosines).softmax(-1).numpy()
    np.testing.assert_allclose(found.probabilities, shares, atol=1e-5)


def test_the_loss_is_the_papers(tmp_path):
    recipe, data = toy.prepared(tmp_path, "match", n=53, **PLAIN)
    one = Trainer(recipe, data, Run(tmp_path / "run"), World(0, 1, torch.device("cpu")), Watch(quiet=True))
    batch = one.batches.part(0)
    assert len(set(one.batches.rows(0).tolist())) == 13  # no image is there twice
    ready = batch.ready(torch.float32)
    with torch.no_grad():
        pair = one.model(ready.inputs, ready.target, target_layout=ready.target_layout)
    right = torch.arange(13)
    expected = (F.cross_entropy(pair.logits, right) + F.cross_entropy(pair.logits.T, right)) / 2
    with torch.no_grad():
        total, count = tasks.loss(one.model, batch)
    assert (float(total) / 13, int(count)) == (pytest.approx(float(expected), rel=1e-5), 13)


def test_the_temperature_stays_within_the_papers_bound_and_can_come_back(tmp_path):
    recipe, data = toy.prepared(tmp_path, "match", n=53, **PLAIN)
    one = Trainer(recipe, data, Run(tmp_path / "run"), World(0, 1, torch.device("cpu")), Watch(quiet=True))
    with torch.no_grad():
        one.model.head.log_scale.fill_(9.0)
    loader = one._loader()
    for _ in range(2):
        one.step(next(loader))
        assert one.model.head.log_scale.exp() < 100
    loader.stop()
    assert one.model.head.log_scale.grad != 0


def test_every_epoch_draws_another_text(tmp_path):
    recipe, data = toy.prepared(tmp_path, "match", n=53)
    one = Trainer(recipe, data, Run(tmp_path / "run"), World(0, 1, torch.device("cpu")), Watch(quiet=True)).batches
    first, second = one.chosen(0), one.chosen(1)
    of = one.columns["of"]
    assert of[first].tolist() == of[second].tolist() == list(range(one.n))
    assert (first != second).any()


def test_ranks_are_those_of_a_sorted_list():
    draw = torch.Generator().manual_seed(3)
    images, texts = (F.normalize(torch.randn(n, 5, generator=draw), dim=-1) for n in (11, 29))
    of = torch.arange(29) % 11
    to_text, to_image = ranks(images, texts, of)
    near = images @ texts.T
    for i in range(11):
        order = of[near[i].argsort(descending=True)].tolist()
        assert to_text[i] == order.index(i)
    for j in range(29):
        assert to_image[j] == near[:, j].argsort(descending=True).tolist().index(int(of[j]))


def test_the_command_line_and_a_score_card(trained, model, photos, monkeypatch):
    told = run_command("match", trained[0].path, photos[0], "--labels", ",".join(LABELS.values()), "--template", "a {}")
    assert told.exit_code == 0, told.output
    [label, share] = told.stdout.strip().split("\t")
    found = model.match(photos[0], list(LABELS.values()), ["a {}"])
    assert label == list(LABELS.values())[found.cosines[0].argmax()]
    assert float(share) == pytest.approx(found.probabilities.max(), abs=1e-4)
    plain = json.loads(run_command("match", trained[0].path, photos[0], "--text", "a light above", "--json").stdout)
    assert plain["probabilities"] == {"a light above": 1.0}

    file = trained[1] / "valid" / "captions.jsonl"
    examples, told = read_captioned(model, file), []
    monkeypatch.setattr("regard.evaluate.retrieval.EMBEDDED", 11)
    card = evaluate_matches(model, examples, progress=lambda *seen: told.append(seen))
    n, m = len(examples), sum(len(own) for _, own in examples)
    done = [*range(11, n, 11), n, *range(n + 11, n + m, 11), n + m]
    assert told == [(i, n + m, "images" if i <= n else "texts") for i in done]
    values = {score.name: score.value for score in card.scores}
    monkeypatch.undo()  # all at once
    assert values == {score.name: score.value for score in evaluate_matches(model, examples).scores}
    assert values["text to image R@10"] == 100
    assert 0 < values["image to text R@1"] <= values["image to text R@5"]
    told = run_command("evaluate", trained[0].path, "--file", file)
    assert told.exit_code == 0, told.output
    assert "text to image R@5" in told.stdout


def test_what_does_not_fit_is_said(trained, model, photos, tmp_path):
    with pytest.raises(InputError, match=r"must have \{\} in it once"):
        model.match(photos, ["dog"], ["a dog"])
    with pytest.raises(InputError, match="was trained to match, not to caption"):
        model.caption(photos)
    with pytest.raises(ConfigError, match=r"train.smoothing \(0.1\) does not go with task 'match'"):
        toy.make_recipe(tmp_path, "match", smoothing=0.1)
    with pytest.raises(ConfigError, match="which needs two encoders with a contrastive head"):
        toy.make_recipe(tmp_path, "match", model={"preset": "tiny_vit"})
    recipe, data = toy.prepared(tmp_path / "shards", "match", n=31)
    with pytest.raises(InputError, match="--shard: not for match"):
        Trainer(recipe, data, Run(tmp_path), World(0, 1, torch.device("cpu"), shard=True), Watch(quiet=True))
    told = run_command("match", trained[0].path, photos[0])
    assert "--labels or --text: give what the images may show" in str(told.exception)
