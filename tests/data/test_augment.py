"""What is done to images at random is what pillow, or a few lines of numpy, would do to each; and it is drawn as told."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

import toy
from regard.data import augment
from regard.data.augment import CHANGES, COLOURS, IDENTITY, N_DRAWN, Treatment, draw, draw_mixed, treated
from regard.data.batches import make_batches
from regard.recipe import Train, model_config

H = 17
MEAN, STD = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])
PLAIN = Treatment(torch.zeros(3), torch.full((3,), 1 / 255))  # values stay what they are


@pytest.fixture
def images():
    """Seven smooth images, so that a rounded value more or less is no other picture."""
    draw = np.random.default_rng(1).integers(0, 256, (7, 5, 5, 3), np.uint8)
    made = [np.asarray(Image.fromarray(one).resize((H, H), Image.Resampling.BICUBIC)) for one in draw]
    return torch.from_numpy(np.stack(made))


def values(images, how):
    """(N, H, W, C), from 0 to 255."""
    return treated(images, how).permute(0, 2, 3, 1).numpy()


def uniform(n=997, seed=1):
    return np.random.default_rng(seed).random((n, N_DRAWN))


# ---------------------------------------------------------------------------------------
# Normalised, flipped


def test_without_anything_drawn_pixels_are_only_normalised(images):
    expected = (images.permute(0, 3, 1, 2) / 255 - MEAN[:, None, None]) / STD[:, None, None]
    torch.testing.assert_close(treated(images, Treatment(MEAN, STD)), expected, atol=1e-5, rtol=1e-5)


def test_flipped(images):
    flipped = torch.tensor([True, False, True, False, False, True, False])
    found = values(images, PLAIN._replace(flipped=flipped))
    for image, one, turned in zip(images.numpy(), found, flipped, strict=True):
        assert (one == (image[:, ::-1] if turned else image)).all()


def test_as_many_are_flipped_as_are_asked_for():
    made = draw(Train(steps=1, flip=0.25), uniform(), H)
    assert made["flipped"].float().mean() == pytest.approx(0.25, abs=0.03)


# ---------------------------------------------------------------------------------------
# Geometry, as one affine map


def bilinear(image, affine, mean):
    """A pixel at a time."""
    out = np.zeros_like(image, np.float64)
    for i in range(H):
        for j in range(H):
            place = affine @ [(2 * j + 1) / H - 1, (2 * i + 1) / H - 1, 1]
            x, y = ((place + 1) * H - 1) / 2
            for a in (math.floor(y), math.floor(y) + 1):
                for b in (math.floor(x), math.floor(x) + 1):
                    weight = (1 - abs(y - a)) * (1 - abs(x - b))
                    inside = 0 <= a < H and 0 <= b < H
                    out[i, j] += weight * (image[a, b] if inside else mean)
    return out


@pytest.mark.parametrize(
    "options", [{"crop": 0.3}, {"crop": 0.3, "flip": 0.5}, {"randaugment": 9}, {"crop": 0.5, "randaugment": 5}]
)
def test_images_are_sampled_once_bilinearly_with_the_mean_beyond_the_edge(images, options):
    affine = draw(Train(steps=1, **options), uniform(7), H)["affine"]
    found = values(images, Treatment(MEAN, torch.full((3,), 1 / 255), affine=affine)) + 255 * MEAN.numpy()
    for image, one, how in zip(images.numpy(), found, affine.double().numpy(), strict=True):
        np.testing.assert_allclose(one, bilinear(image, how, 255 * MEAN.numpy()), atol=0.02)


def test_a_crop_of_everything_is_the_image(images):
    numbers = uniform(7)
    numbers[:, 1], numbers[:, 2] = 1.0, 0.5  # all of the area, as high as wide
    affine = draw(Train(steps=1, crop=0.3), numbers, H)["affine"]
    np.testing.assert_allclose(values(images, PLAIN._replace(affine=affine)), images.numpy(), atol=0.01)


def test_crops_have_the_area_and_sides_that_were_asked_for():
    affine = draw(Train(steps=1, crop=0.25), uniform(), H)["affine"].numpy()
    w, h = affine[:, 0, 0], affine[:, 1, 1]
    assert (w * h).min() > 0.22  # long sides are cut where they stick out
    assert (w * h).max() > 0.95
    assert (w / h).min() > 0.74
    assert (w / h).max() < 1.34
    for size, centre in ((w, affine[:, 0, 2]), (h, affine[:, 1, 2])):
        assert (np.abs(centre) <= 1 - size + 1e-6).all()


def one_change(change, strength=10.0, up=True):
    """Numbers that draw one change of RandAugment, and nothing after it."""
    numbers = uniform(7)
    numbers[:, 14] = (CHANGES.index(change) + 0.5) / len(CHANGES)
    numbers[:, 15] = 0.5 / len(CHANGES)
    numbers[:, 16] = 0.9 if up else 0.1
    made = draw(Train(steps=1, randaugment=strength), numbers, H)
    return PLAIN._replace(**made)


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize(
    ("change", "matrix"),
    [
        ("rotate", lambda s: (math.cos(s * math.pi / 6), -math.sin(s * math.pi / 6), 0, math.sin(s * math.pi / 6), math.cos(s * math.pi / 6), 0)),
        ("shear x", lambda s: (1, 0.3 * s, 0, 0, 1, 0)),
        ("shear y", lambda s: (1, 0, 0, 0.3 * s, 1, 0)),
        ("translate x", lambda s: (1, 0, 0.45 * s * H, 0, 1, 0)),
        ("translate y", lambda s: (1, 0, 0, 0, 1, 0.45 * s * H)),
    ],
)  # fmt: skip
def test_geometry_is_pillows(images, change, matrix, up):
    found = values(images, one_change(change, up=up))
    a, b, c, d, e, f = matrix(1 if up else -1)
    middle = H / 2
    about = (a, b, c + middle - a * middle - b * middle, d, e, f + middle - d * middle - e * middle)
    for image, one in zip(images.numpy(), found, strict=True):
        theirs = np.asarray(
            Image.fromarray(image).transform((H, H), Image.Transform.AFFINE, about, Image.Resampling.BILINEAR)
        )
        inside = np.asarray(Image.new("L", (H, H), 255).transform((H, H), Image.Transform.AFFINE, about)) == 255
        # At the very edge ours goes over to the mean, and pillow's ends.
        inside[1:-1, 1:-1] &= inside[:-2, 1:-1] & inside[2:, 1:-1] & inside[1:-1, :-2] & inside[1:-1, 2:]
        inside[[0, -1]] = inside[:, [0, -1]] = False
        assert inside.sum() > 50
        assert np.abs(one - theirs)[inside].max() <= 1.5


# ---------------------------------------------------------------------------------------
# Colour


ROUNDED = 1.6  # pillow rounds a blurred image before it goes on, and cuts what is behind the point off at the end
PILLOW = {
    "brightness": lambda image, s: ImageEnhance.Brightness(image).enhance(1 + 0.9 * s),
    "colour": lambda image, s: ImageEnhance.Color(image).enhance(1 + 0.9 * s),
    "contrast": lambda image, s: ImageEnhance.Contrast(image).enhance(1 + 0.9 * s),
    "sharpness": lambda image, s: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * s),
    "posterise": lambda image, s: ImageOps.posterize(image, 8 - round(4 * abs(s))),
    "solarise": lambda image, s: ImageOps.solarize(image, 256 * (1 - abs(s))),
    "autocontrast": lambda image, s: ImageOps.autocontrast(image),
    "equalise": lambda image, s: ImageOps.equalize(image),
}


@pytest.mark.parametrize("strength", [-10, -3, 3, 10])
@pytest.mark.parametrize("change", COLOURS)
def test_colours_are_pillows(images, change, strength):
    found = values(images, one_change(change, abs(strength), strength > 0))
    for image, one in zip(images.numpy(), found, strict=True):
        theirs = np.asarray(PILLOW[change](Image.fromarray(image), strength / 10), np.float64)
        assert np.abs(one - theirs).max() <= ROUNDED, change


def test_each_of_the_changes_is_as_frequent_and_nothing_else_is_done():
    made = draw(Train(steps=1, randaugment=10), uniform(9973), H)
    changed = (made["colours"] != torch.tensor(IDENTITY)).float().mean((0, 1))
    assert changed.numpy() == pytest.approx(1 / len(CHANGES), abs=0.01)


def test_nothing_is_nothing(images):
    np.testing.assert_allclose(values(images, one_change("nothing")), images.numpy(), atol=0.01)


def test_grey_images_have_all_of_it_but_the_colour(images):
    grey = images[..., :1]
    for change in COLOURS:
        how = one_change(change)._replace(mean=torch.zeros(1), std=torch.full((1,), 1 / 255))
        for image, one in zip(grey.numpy()[..., 0], values(grey, how)[..., 0], strict=True):
            theirs = (
                image if change == "colour" else np.asarray(PILLOW[change](Image.fromarray(image), 1.0), np.float64)
            )
            assert np.abs(one - theirs).max() <= ROUNDED, change


# ---------------------------------------------------------------------------------------
# Erased, mixed


def test_a_box_is_erased_to_the_mean(images):
    made = draw(Train(steps=1, erase=1.0), uniform(7), H)
    found = values(images, Treatment(MEAN, torch.full((3,), 1 / 255), **made)) + 255 * MEAN.numpy()
    for image, one, (top, left, bottom, right) in zip(
        images.numpy(), found, made["erased"].int().tolist(), strict=True
    ):
        expected = image.astype(np.float64)
        expected[top:bottom, left:right] = 255 * MEAN.numpy()
        np.testing.assert_allclose(one, expected, atol=1e-3)


def test_boxes_are_of_the_area_and_as_frequent_as_asked_for():
    box = draw(Train(steps=1, erase=0.3), uniform(), 101)["erased"].numpy()
    area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) / 101**2
    assert (area > 0).mean() == pytest.approx(0.3, abs=0.03)
    assert area[area > 0].min() > 0.015
    assert area.max() < 0.35
    assert box.min() >= 0
    assert box.max() <= 101


@pytest.mark.parametrize("options", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}])
def test_mixed_with_another(images, options):
    train, numbers = Train(steps=1, **options), uniform(5)
    shares = np.random.default_rng(2).beta(1, 1, (5, 2))
    made = draw_mixed(train, numbers, shares, H)
    other = torch.tensor([1, 5, 6, 0, 2])  # two of them behind the batch
    found = values(images[:5], PLAIN._replace(**made, others=images[5:], other=other))
    kinds = set()
    for i, (top, left, bottom, right) in enumerate(made["box"].int().tolist()):
        mine, theirs = images[i].numpy().astype(np.float64), images[other[i]].numpy().astype(np.float64)
        cut = made["blend"][i] == 1
        kinds.add("cutmix" if cut else "mixup")
        expected = mine if cut else shares[i, 0] * mine + (1 - shares[i, 0]) * theirs
        if cut:
            expected[top:bottom, left:right] = theirs[top:bottom, left:right]
        np.testing.assert_allclose(found[i], expected, atol=1e-3)
        share = 1 - (bottom - top) * (right - left) / H**2 if cut else shares[i, 0]
        assert made["share"][i] == pytest.approx(share, abs=1e-6)
    assert kinds == set(options)


def test_the_loss_of_mixed_images_is_that_of_both_labels_by_their_shares(tmp_path):
    from regard.nn import Transformer
    from regard.train import tasks

    recipe, data = toy.prepared(tmp_path, "images", n=31, mixup=0.8, cutmix=1.0)
    config = model_config(recipe.model, **data.counts())
    model = Transformer(config)
    batch = make_batches(data, "train", recipe.train, config).part(0)
    total, count = tasks.loss(model, batch, smoothing=0.1)
    logits = model(treated(batch.inputs, batch.treatment))
    told = torch.nn.functional.one_hot(batch.wanted, 3) * batch.treatment.share[:, None]
    told = told + torch.nn.functional.one_hot(batch.treatment.second, 3) * (1 - batch.treatment.share[:, None])
    told = 0.9 * told + 0.1 / 3
    assert count == 13
    torch.testing.assert_close(total, -(told * logits.log_softmax(-1)).sum())


# ---------------------------------------------------------------------------------------
# In batches


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return toy.prepared(tmp_path_factory.mktemp("images"), "images", n=47)


def batches_of(made, split="train", shuffled=True, **train):
    recipe, data = made
    return make_batches(
        data, split, recipe.train.replace(**train), model_config(recipe.model, **data.counts()), shuffled=shuffled
    )


def test_images_travel_as_bytes_with_their_labels(made):
    _, data = made
    batches, columns = batches_of(made), data.split("train")
    for step in range(3):
        rows, batch = batches.rows(step), batches.part(step)
        assert batch.inputs.dtype == torch.uint8
        assert (batch.inputs.numpy() == columns["image"][rows]).all()
        assert (batch.wanted.numpy() == columns["label"][rows]).all()
        assert "treatment.affine" in batch.tensors()


def test_every_batch_is_full_and_no_image_comes_twice_in_an_epoch(made):
    batches = batches_of(made)
    assert len(batches) == 3
    for epoch in range(3):
        rows = np.concatenate([batches.rows(3 * epoch + i) for i in range(3)])
        assert len(set(rows.tolist())) == 39
    held_out = batches_of(made, "valid", shuffled=False)
    assert np.concatenate([held_out.rows(i) for i in range(len(held_out))]).tolist() == list(range(31))


def test_held_out_images_are_only_normalised(made):
    batch = batches_of(made, "valid", shuffled=False).part(0)
    assert [value for value in batch.treatment if value is not None] == [batch.treatment.mean, batch.treatment.std]


@pytest.mark.parametrize("parts", [1, 2, 3, 13])
def test_parts_become_the_same_pixels_as_the_whole(made, parts):
    batches = batches_of(made)
    whole = batches.part(4).ready(torch.float32)
    assert not torch.equal(whole.inputs, treated(batches.part(4).inputs, Treatment(batches.mean, batches.std)))
    for i in range(parts):
        part = batches.part(4, i, parts).ready(torch.float32)
        torch.testing.assert_close(part.inputs, whole.inputs[i::parts], rtol=0, atol=1e-6)
        assert torch.equal(part.second, whole.second[i::parts])
        assert torch.equal(part.share, whole.share[i::parts])


def test_an_image_is_changed_otherwise_in_every_epoch(made):
    batches = batches_of(made, batch_images=47)
    rows, other = batches.rows(0), batches.rows(1)
    where = [int(np.flatnonzero(other == row)[0]) for row in rows]
    one, two = batches.part(0).treatment.affine, batches.part(1).treatment.affine[where]
    assert not (one == two).all((1, 2)).any()


def test_a_batch_larger_than_the_data_is_all_of_it(made):
    batches = batches_of(made, batch_images=211)
    assert len(batches) == 1
    assert batches.size(0).wanted == 47


def test_strengths_of_nothing_change_nothing():
    assert draw(Train(steps=1), uniform(7), H) == {}
    assert not augment.mixes(Train(steps=1))


def test_the_plan_expects_the_batch_that_training_has():
    from regard.data.pictures import BATCH
    from regard.train.plan import BATCH_IMAGES

    assert BATCH == BATCH_IMAGES
