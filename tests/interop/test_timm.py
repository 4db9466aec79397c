"""Law 10 with timm's ViTs: their logits and ours, through a directory as they save it.

timm imports torchvision, of which the registries have no build for a CPU's torch, so it is no dependency: where it is
not there, or cannot be imported, the tests against it are skipped, and those of the names and refusals still run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import regard
from regard import presets
from regard.config import ConfigError, ModelConfig, Pooled
from regard.interop import config_from_hf, to_hf
from regard.nn import Transformer
from regard.schema import InputError

SIZES = {"embed_dim": 21, "depth": 2, "num_heads": 3, "mlp_ratio": 29.5 / 21, "img_size": 15, "patch_size": 3}
SIZES |= {"in_chans": 2, "num_classes": 5}
WAYS: dict[str, dict[str, Any]] = {
    "class token": {},
    "mean": {"class_token": False, "global_pool": "avg", "fc_norm": False},
    "no head": {"num_classes": 0},
}


@pytest.fixture
def timm() -> Any:
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # the latter: a torchvision for another torch
        pytest.skip(f"timm cannot be imported ({error})")
    return timm


@pytest.mark.parametrize("more", WAYS.values(), ids=WAYS.keys())
@torch.no_grad()
def test_logits_are_timms(more: dict[str, Any], timm: Any, tmp_path: Path):
    args = {**SIZES, **more}
    theirs = timm.create_model("vit_tiny_patch16_224", **args).eval()
    for parameter in theirs.parameters():  # theirs start with biases of zero, which would hide a lost one
        torch.nn.init.normal_(parameter, std=0.3)
    timm.models.save_for_hf(theirs, tmp_path, model_args=args, safe_serialization=True)
    model = regard.load(tmp_path, packed=False, device="cpu")
    assert model.task == ("classify" if args["num_classes"] else "embed")
    pixels = torch.randn(3, 2, 15, 15)
    wanted = theirs(pixels)
    assert wanted.std() > 0.1
    assert (model.logits(pixels) - wanted).abs().max() < 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("pool", ["class", "mean"])
@torch.no_grad()
def test_there_and_back_under_their_names(pool: Any, tmp_path: Path):
    config = ours(pool)
    net = Transformer(config).eval()
    facts, state = to_hf(net, "timm")
    assert state["blocks.1.attn.qkv.weight"].shape == (63, 21)
    assert ("cls_token" in state) == (pool == "class")
    del facts["model_type"]  # theirs have none
    names = ["ant", "bee", "cat", "dog", "eel"]
    (tmp_path / "config.json").write_text(json.dumps({**facts, "label_names": names}))
    save_file(state, tmp_path / "model.safetensors")
    model = regard.load(tmp_path, packed=False, device="cpu")
    assert model.labels == tuple(names)
    pixels = torch.randn(3, 2, 15, 15)
    assert torch.equal(model.logits(pixels), net(pixels))


def ours(pool: Any) -> ModelConfig:
    config = presets.tiny_vit(d_model=21, n_heads=3, d_value=7)
    encoder = config.encoder
    image = encoder.input.replace(class_token=pool == "class", image_size=15, patch_size=3, channels=2)  # type: ignore[union-attr]
    return config.replace(
        encoder=encoder.replace(input=image, norm_eps=1e-6),
        head=Pooled(n_labels=5, pool=pool),  # type: ignore[union-attr]
    )


def test_a_name_tells_the_sizes():
    large = config_from_hf({"model_type": "timm", "architecture": "deit_small_patch16_384"}).encoder
    assert (large.d_model, large.n_layers, large.n_heads, large.d_ff) == (384, 12, 6, 1536)  # type: ignore[union-attr]
    assert (large.input.image_size, large.input.patch_size) == (384, 16)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"architecture": "resnet50"}, "architecture ('resnet50') is not supported"),
        ({"model_args": {"init_values": 0.1}}, "model_args.init_values (0.1) is not supported"),
        ({"model_args": {"global_pool": "map"}}, "global_pool ('map') is not supported; known: token, avg"),
        ({"global_pool": "avg"}, "class_token (True) is not supported; only False is"),
        ({"global_pool": "avg", "model_args": {"class_token": False}}, "model_args.fc_norm (None) is not supported"),
    ],
)
def test_others_are_refused(given: dict[str, Any], told: str, tmp_path: Path):
    facts = {"architecture": "vit_tiny_patch16_224", **given}
    with pytest.raises(ConfigError) as error:
        config_from_hf({"model_type": "timm", **facts})
    assert str(error.value).startswith(told)
    (tmp_path / "config.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match=r"config\.json: "):
        regard.load(tmp_path)
