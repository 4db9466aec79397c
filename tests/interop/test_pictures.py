"""A picture becomes for an imported model what its makers' own image processor makes of it, up to resampling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
from typer.testing import CliRunner

import foreign
import regard
from regard import Model, Transformer, presets
from regard.cli import app
from regard.encode import images
from regard.interop.directory import export
from regard.interop.pictures import of_timm
from regard.schema import InputError

PIXELS = {**foreign.SIZES, "image_size": 21, "patch_size": 3, "num_channels": 3}
SQUARE = {"height": 21, "width": 21}
MEAN, STD = [0.3, 0.5, 0.7], [0.2, 0.3, 0.4]
OWN = {"image_mean": MEAN, "image_std": STD}
LEVEL = 1 / 255 / min(STD)  # one step of a pixel, where the deviation makes it largest


def photo(width: int = 97, height: int = 61) -> Image.Image:
    """Soft colours and sharp edges, so that a shift, a flip or another filter shows."""
    y, x = np.mgrid[:height, :width]
    waves = [128 + 90 * np.sin(x / a + y / b) for a, b in ((11, 17), (7, -13), (-19, 5))]
    pixels = np.stack(waves, -1)
    pixels[height // 3 : height // 2, width // 5 : width // 2] = (250, 40, 10)
    return Image.fromarray(pixels.round().astype(np.uint8))


def vit() -> Any:
    return foreign.model("ViTForImageClassification", **PIXELS, **foreign.NAMES)


def deit() -> Any:
    return foreign.model("DeiTForImageClassification", **PIXELS, **foreign.NAMES)


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "vit": (vit, ViTImageProcessorPil, {"size": SQUARE}),
    "vit, its own": (vit, ViTImageProcessorPil, {"size": SQUARE, **OWN, "resample": 3}),
    "vit, nearest": (vit, ViTImageProcessorPil, {"size": SQUARE, **OWN, "resample": 0}),
    "vit, no mean": (vit, ViTImageProcessorPil, {"size": SQUARE, "do_normalize": False}),
    "vit, from -1": (
        vit,
        ViTImageProcessorPil,
        {"size": SQUARE, "rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3},
    ),
    "deit": (deit, DeiTImageProcessorPil, {"size": {"height": 25, "width": 25}, "crop_size": SQUARE}),
    "by the short side": (vit, CLIPImageProcessorPil, {"size": {"shortest_edge": 25}, "crop_size": SQUARE, **OWN}),
}


@pytest.mark.parametrize(("model", "processor", "how"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("size", [(97, 61), (61, 97), (21, 21), (13, 17)])
def test_as_their_processor_has_it(model: Any, processor: Any, how: dict[str, Any], size: Any, tmp_path: Path):
    theirs, picture = processor(**how), photo(*size)
    theirs.save_pretrained(tmp_path)
    loaded = regard.load(foreign.save(tmp_path, model()), device="cpu")
    [found] = images.batches(loaded, [picture])
    wanted = theirs(picture, return_tensors="pt")["pixel_values"]
    assert wanted.std() > 0.1
    # Cut after resizing, their long side is rounded to whole pixels first: a part of a pixel's shift.
    exact = "shortest_edge" not in how["size"] or size[0] == size[1]
    off = (found - wanted).abs()
    assert off.max() < 1.5 * LEVEL if exact else off.mean() < 0.05 * wanted.std()
    # Which is far less than the other ways are apart.
    other = loaded.images
    loaded.images = None
    [plain] = images.batches(loaded, [picture])
    loaded.images = other
    assert (plain - wanted).abs().mean() > 3 * off.mean() or size == (21, 21)


def test_clip_with_a_tokenizer_beside_it(tmp_path: Path):
    tokenizer = foreign.byte_level()
    text = {**foreign.SIZES, **foreign.POSITIONS, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    theirs = foreign.model("CLIPModel", text_config=text, vision_config=PIXELS, projection_dim=17)
    foreign.save(tmp_path, theirs, tokenizer)
    processor = CLIPImageProcessorPil(size={"shortest_edge": 21}, crop_size=SQUARE)
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"image_processor": json.loads(processor.to_json_string())})
    )
    loaded = regard.load(tmp_path, device="cpu")
    [found] = images.batches(loaded, [photo(61, 61)])
    assert (found - processor(photo(61, 61), return_tensors="pt")["pixel_values"]).abs().max() < 1.5 / 255 / 0.26
    assert loaded.images is not None
    assert loaded.images["mean"] == pytest.approx([0.48145466, 0.4578275, 0.40821073])


def test_files_of_old(tmp_path: Path):
    """A size was one number: of a square for ViT and DeiT, of the short side for CLIP."""
    foreign.save(tmp_path, deit())
    old = {"size": 25, "crop_size": 21, "do_center_crop": True, "resample": 3, "feature_extractor_type": "DeiT"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(old))
    told = regard.load(tmp_path).images
    assert told is not None
    assert (told["squash"], told["kept"], told["mean"]) == (True, 21 / 25, [0.5] * 3)


def test_an_answer_is_theirs(tmp_path: Path):
    theirs, processor = vit(), ViTImageProcessorPil(size=SQUARE, **OWN)
    foreign.save(tmp_path, theirs)
    processor.save_pretrained(tmp_path)
    photo().save(tmp_path / "photo.png")
    with torch.no_grad():
        wanted = theirs(**processor(photo(), return_tensors="pt")).logits[0].softmax(-1)
    done = CliRunner().invoke(
        app, ["classify", str(tmp_path), str(tmp_path / "photo.png"), "--json", "--device", "cpu"]
    )
    said = json.loads(done.stdout)
    assert said["image"].endswith("photo.png")
    assert [*said["probabilities"].values()] == pytest.approx(wanted.tolist(), abs=0.02)


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"size": 23}, "images become 23 x 23, and the model reads 21 x 21"),
        ({"size": 21, "do_resize": False}, "do_resize (False) is not supported; only True is"),
        ({"size": {"shortest_edge": 21}}, "size ({'shortest_edge': 21}) without do_center_crop is not supported"),
        ({"size": {"height": 21, "width": 23}}, "size ({'height': 21, 'width': 23}) is not supported; only squares"),
        ({"size": 21, "do_center_crop": True, "crop_size": 23}, "crop_size (23) must be at most size (21)"),
        ({"size": 21, "image_mean": [0.5, 0.5]}, "image_mean has 2 numbers, and the model reads 3 channels"),
        ({"size": "large"}, "is not what an image processor saves"),
    ],
)
def test_what_is_refused(told: dict[str, Any], problem: str, tmp_path: Path):
    foreign.save(tmp_path, vit())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    with pytest.raises(InputError) as error:
        regard.load(tmp_path)
    assert f"preprocessor_config.json: {problem}" in str(error.value)


def test_timm_tells_it_in_its_own_words():
    image: Any = presets.vit_b16().encoder.input  # type: ignore[union-attr]
    told = of_timm({"mean": MEAN, "std": STD, "interpolation": "bilinear", "crop_pct": 0.9}, image)
    assert told is not None
    assert (told["size"], told["resample"], told["squash"], told["kept"]) == (224, "bilinear", False, 224 / 248)
    with pytest.raises(InputError, match=r"^crop_mode \('border'\) is not supported; known: center, squash$"):
        of_timm({"mean": MEAN, "std": STD, "crop_mode": "border"}, image)


def test_what_we_export_treats_a_picture_as_we_do(tmp_path: Path):
    config = presets.tiny_vit(d_model=21, n_heads=3, d_value=7)
    told = {"size": config.encoder.input.image_size, "channels": 3, "mean": MEAN, "std": STD}  # type: ignore[union-attr]
    net = Transformer(config)
    labels = [f"label {i}" for i in range(config.head.n_labels)]  # type: ignore[union-attr]
    model = Model(net, "classify", None, labels=labels, images=told)
    out = export(model, "hf", tmp_path / "out")
    [ours] = images.batches(model, [photo(61, 61)])
    theirs = CLIPImageProcessorPil.from_pretrained(out)(photo(61, 61), return_tensors="pt")["pixel_values"]
    assert (ours - theirs).abs().max() < 1.5 * LEVEL
    assert torch.equal(
        next(images.batches(regard.load(out, device="cpu"), [photo()])), next(images.batches(model, [photo()]))
    )
    assert transformers.ViTForImageClassification.from_pretrained(out).config.num_labels == len(labels)
