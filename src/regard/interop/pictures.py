"""How a picture becomes what a model reads, in others' words and in ours: Hugging Face's ``preprocessor_config.json``,
timm's ``pretrained_cfg``.

Ours are the facts of :mod:`regard.encode.images`: the size and channels, the mean and deviation of pixels from 0 to 1,
pillow's filter that resizes (``resample``), whether the picture is squashed to a square or the middle of it cut out
(``squash``), and how much of each side is kept in the end (``kept``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.config import InputError, ModelConfig, Patches
from regard.schema import read_json

FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # by pillow's numbers

HALVES = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
SQUARE = {"height": 224, "width": 224}
# What their processors do where a file is silent, by family.
DEFAULTS: dict[str, dict[str, Any]] = {
    "vit": {**HALVES, "resample": 2, "size": SQUARE},
    "deit": {**HALVES, "resample": 3, "size": 256, "do_center_crop": True, "crop_size": SQUARE},
    "clip": {
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "resample": 3,
        "size": {"shortest_edge": 224},
        "do_center_crop": True,
        "crop_size": SQUARE,
    },
}


def read(folder: Path, hf: Mapping[str, Any], config: ModelConfig) -> dict[str, Any] | None:
    """How the makers of a directory's model treated their images; None of a model over text, or if nobody tells."""
    image = getattr(config.encoder, "input", None)
    if not isinstance(image, Patches):
        return None
    if hf["model_type"] == "timm":
        try:
            return of_timm(hf.get("pretrained_cfg") or {}, image)
        except InputError as error:
            raise InputError(f"{folder / 'config.json'}: {error}") from None
    alone, together = folder / "preprocessor_config.json", folder / "processor_config.json"
    if alone.exists():
        file, told = alone, read_json(alone)
    elif together.exists():  # beside a tokenizer's
        file, told = together, read_json(together).get("image_processor")
    else:
        return None
    try:
        return of_hf({**DEFAULTS[hf["model_type"]], **dict(told or {})}, image, hf["model_type"] == "clip")
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"{file}: is not what an image processor saves") from None


def of_hf(told: Mapping[str, Any], image: Patches, by_short_side: bool = False) -> dict[str, Any]:
    """From their processor's settings; a size that is one number is a short side's (CLIP) or a square's.

    >>> image = Patches(image_size=224, patch_size=16)
    >>> made = of_hf({**DEFAULTS["deit"], "rescale_factor": 1 / 255}, image)
    >>> made["resample"], made["squash"], made["kept"], made["mean"]
    ('bicubic', True, 0.875, [0.5, 0.5, 0.5])
    """
    if not told.get("do_resize", True):
        raise InputError("do_resize (False) is not supported; only True is")
    resized, squash = _resized(told["size"], by_short_side)
    size = _side(told["crop_size"]) if told.get("do_center_crop") else resized
    if size > resized:
        raise InputError(f"crop_size ({size}) must be at most size ({resized})")
    if not squash and not told.get("do_center_crop"):
        raise InputError(f"size ({told['size']}) without do_center_crop is not supported: images are square here")
    if size != image.image_size:
        raise InputError(f"images become {size} x {size}, and the model reads {image.image_size} x {image.image_size}")
    mean, std = ([*told["image_mean"]], [*told["image_std"]]) if told.get("do_normalize", True) else ([0.0], [1.0])
    # They take the mean off what they have scaled; ours are of pixels from 0 to 1.
    scale = 255 * told.get("rescale_factor", 1 / 255) if told.get("do_rescale", True) else 255
    return {
        "size": size,
        "channels": image.channels,
        "mean": _each([value / scale for value in mean], image.channels, "image_mean"),
        "std": _each([value / scale for value in std], image.channels, "image_std"),
        "resample": FILTERS[int(told["resample"])],
        "squash": squash,
        "kept": size / resized,
    }


def to_hf(told: Mapping[str, Any]) -> dict[str, Any]:
    """The ``preprocessor_config.json`` of a model of ours, in the words of CLIP's processor, which has all of them.

    >>> to_hf({"size": 8, "channels": 3, "mean": [0.3] * 3, "std": [0.4] * 3})["size"]
    {'shortest_edge': 8}
    """
    size = told["size"]
    resized = round(size / told.get("kept", 1.0))
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": told["channels"] == 3,
        "do_resize": True,
        "size": {"height": resized, "width": resized} if told.get("squash") else {"shortest_edge": resized},
        "resample": FILTERS.index(told.get("resample", "bicubic")),
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(told["mean"]),
        "image_std": list(told["std"]),
    }


def of_timm(told: Mapping[str, Any], image: Patches) -> dict[str, Any] | None:
    """From their ``pretrained_cfg``; without a mean it says nothing of pictures."""
    if "mean" not in told:
        return None
    mode = told.get("crop_mode", "center")
    if mode not in ("center", "squash"):
        raise InputError(f"crop_mode ({mode!r}) is not supported; known: center, squash")
    name = told.get("interpolation", "bicubic")
    if name not in FILTERS:
        raise InputError(f"interpolation ({name!r}) is not supported; known: {', '.join(FILTERS)}")
    size = image.image_size

    def each(values: Sequence[float]) -> list[float]:
        """A model with other channels than the published one has the mean of theirs, as timm does it for grey."""
        same = len(values) == image.channels
        return [*values] if same else [sum(values) / len(values)] * image.channels

    return {
        "size": size,
        "channels": image.channels,
        "mean": each(told["mean"]),
        "std": each(told["std"]),
        "resample": name,
        "squash": mode == "squash",
        "kept": size / math.floor(size / told.get("crop_pct", 0.875)),
    }


def _resized(size: Any, by_short_side: bool) -> tuple[int, bool]:
    """How long a side is made, and whether both are."""
    if isinstance(size, int):
        return size, not by_short_side
    if "shortest_edge" in size:
        return int(size["shortest_edge"]), False
    return _side(size), True


def _side(size: Any) -> int:
    sides = {size} if isinstance(size, int) else {int(size["height"]), int(size["width"])}
    if len(sides) > 1:
        raise InputError(f"size ({size}) is not supported; only squares are")
    return sides.pop()


def _each(values: list[float], channels: int, name: str) -> list[float]:
    values = values * channels if len(values) == 1 else values
    if len(values) != channels:
        raise InputError(f"{name} has {len(values)} numbers, and the model reads {channels} channels")
    return values
