"""Attention rollout equals the paper's formula, written out in loops; the picture shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import regard
import toy
from regard import Model, Transformer, presets
from regard.cli import app
from regard.config import Grid, ModelConfig, Pooled
from regard.encode import images
from regard.look import rollout
from regard.schema import InputError
from regard.train.loop import train
from regard.train.watch import Watch

RANDOM = np.random.default_rng(7)
PHOTO = RANDOM.integers(0, 256, (31, 43, 3), dtype=np.uint8)


def vit(pool: str, registers: int = 0) -> Model:
    config = presets.tiny_vit()
    encoder: Any = config.encoder
    image = encoder.input.replace(class_token=pool == "class", registers=registers)
    return made(config.replace(encoder=encoder.replace(input=image, n_layers=3), head=Pooled(n_labels=2, pool=pool)))


def made(config: ModelConfig) -> Model:
    torch.manual_seed(5)
    net = Transformer(config)
    for parameter in net.parameters():  # so large that attention is far from even
        torch.nn.init.normal_(parameter, std=0.7)
    return Model(net, "classify", None, labels=["no", "yes"])


def written_out(layers: list[np.ndarray], pool: str) -> list[float]:
    """Of each position the share in what is pooled, in plain loops: (layers, heads, queries, keys) in."""
    n = layers[0].shape[-1]
    flow = [[float(i == j) for j in range(n)] for i in range(n)]
    for layer in layers:
        step = [[0.0] * n for _ in range(n)]
        for i in range(n):
            for j in range(n):
                step[i][j] = sum(float(head[i][j]) for head in layer) / len(layer) + float(i == j)
            total = sum(step[i])
            for j in range(n):
                step[i][j] /= total
        flow = [[sum(step[i][k] * flow[k][j] for k in range(n)) for j in range(n)] for i in range(n)]
    if pool == "class":
        return flow[0]
    return [sum(flow[i][j] for i in range(n)) / n for j in range(n)]


@pytest.mark.parametrize(("pool", "registers"), [("class", 0), ("class", 2), ("mean", 0)])
def test_rollout_is_the_formula(pool: str, registers: int):
    model = vit(pool, registers)
    encoder: Any = model.config.encoder
    [pixels] = images.batches(model, [PHOTO])
    layers = model.net.attention_layers()["encoder"]
    with torch.no_grad():
        attended = model.net.encode(pixels, capture=layers).attended
    weights = [attended[name].weights()[0].numpy() for name in layers]
    assert max(w.std() for w in weights) > 0.05  # not even, which every order of the layers would give alike
    wanted = np.array(written_out(weights, pool))
    n_learned = len(wanted) - encoder.input.side**2
    assert n_learned == (pool == "class") + registers
    found = rollout(model, PHOTO).weights
    assert found.flatten() == pytest.approx(wanted[n_learned:], abs=1e-6)
    assert wanted.sum() == pytest.approx(1)


def test_a_grid_below_a_transformer_is_looked_at_as_well():
    config = vit("mean").config
    encoder: Any = config.encoder
    model = made(config.replace(encoder=encoder.replace(input=Grid(image_size=12, widths=(5, 7)))))
    assert rollout(model, PHOTO).weights.shape == (3, 3)


def test_what_has_no_attention_is_refused():
    config = vit("mean").config
    encoder: Any = config.encoder
    with pytest.raises(InputError, match=r"^this model: has no attention under a head that reads one vector; give a"):
        rollout(made(config.replace(encoder=encoder.replace(n_layers=0))), PHOTO)
    with pytest.raises(InputError, match=r"^this model: reads no images"):
        rollout(Model(Transformer(presets.tiny_encoder()), "embed", None), PHOTO)


def test_the_picture_is_redder_where_more_was_read(tmp_path: Path):
    seen = rollout(vit("class"), np.full((31, 43, 3), 255, np.uint8))
    drawn = np.asarray(Image.open(seen.save(tmp_path / "map.png")))
    assert drawn.shape == seen.picture.shape
    assert min(drawn.shape[:2]) >= 448
    side = len(drawn) // len(seen.weights)
    green = drawn[side // 2 :: side, side // 2 :: side, 1]  # one pixel a patch
    assert green.argmin() == seen.weights.argmax()
    assert green.argmax() == seen.weights.argmin()
    assert seen.save(tmp_path / "map.svg").read_text().count('id="photo-0"') == 1
    with pytest.raises(InputError, match=r"map\.jpg: a picture is \.png, \.svg or \.html"):
        seen.save(tmp_path / "map.jpg")


def test_from_the_command_line(tmp_path: Path):
    recipe, data = toy.prepared(tmp_path, "images", steps=1)
    run = train(recipe, data.path, tmp_path / "run", device="cpu", watch=Watch(quiet=True)).path
    photos, out = sorted((tmp_path / "valid").rglob("*.png")), tmp_path / "map.png"
    done = CliRunner().invoke(app, ["classify", str(run), str(photos[0]), "--map", str(out), "--device", "cpu"])
    assert done.exit_code == 0
    assert (np.asarray(Image.open(out)) == rollout(regard.load(run, device="cpu"), photos[0]).drawn()).all()
    several = CliRunner().invoke(app, ["classify", str(run), *map(str, photos[:2]), "--map", str(out)])
    assert several.exit_code != 0
