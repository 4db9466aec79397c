"""Images as a model was trained on them: opened, cut, resized, and brought to its mean and deviation, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from regard.config import Grid, InputError, Patches
from regard.data.augment import treated, untouched
from regard.data.images import Picture, read_pixels

if TYPE_CHECKING:
    from regard.model import Model

HOW = ("resample", "squash", "kept")  # what a model of others may tell besides
AT_ONCE = {"cpu": 64, "cuda": 1_024}  # images of one batch


def reads_images(model: Model) -> bool:
    encoder = model.config.encoder
    return encoder is not None and isinstance(encoder.input, Patches | Grid)


def facts(model: Model) -> dict[str, Any]:
    """How a model's images were treated in training. Where nobody tells, pixels are brought to -1 to 1, as the
    published ViTs have them."""
    encoder = model.config.encoder
    if encoder is None or not isinstance(encoder.input, Patches | Grid):
        raise InputError(f"{model.path or 'this model'}: reads no images; give another model")
    halves = [0.5] * encoder.input.channels
    told = {"size": encoder.input.image_size, "channels": encoder.input.channels, "mean": halves, "std": halves}
    return {**told, **(model.images or {})}


@torch.no_grad()
def batches(model: Model, given: Sequence[Any], ways: int = 1) -> Iterator[Float[Tensor, "B C H W"]]:
    """Images (paths, bytes, images of pillow, arrays, pictures) as pixels on the model's device, in their order; fewer
    at once where each is worked on in several ways."""
    if isinstance(given, np.ndarray) and given.ndim == 3 and given.shape[2] in (1, 3):
        raise InputError(f"an array of shape {given.shape} is one image; give a list of them: [image]")
    told, device = facts(model), model.device
    how = untouched(told, device)
    dtype = next(model.net.parameters()).dtype
    n = max(1, AT_ONCE.get(device.type, 64) // ways)
    with ThreadPoolExecutor(cpu_count()) as pool:
        for start in range(0, len(given), n):
            numbers = range(start + 1, len(given) + 1)
            some = list(pool.map(lambda one, number: _read(told, one, number), given[start : start + n], numbers))
            yield treated(torch.from_numpy(np.stack(some)).to(device), how).to(dtype)


def shown(model: Model, one: Any, size: int) -> UInt8[NDArray, "H W 3"]:
    """The part of an image that a model is shown, with ``size`` x ``size`` pixels, to look at."""
    return _read({**facts(model), "size": size, "channels": 3}, one)


def _read(told: Mapping[str, Any], one: Any, number: int = 1) -> UInt8[NDArray, "H W C"]:
    name, source = (
        one if isinstance(one, Picture) else (None if isinstance(one, str | Path) else f"image {number}", one)
    )
    return read_pixels(source, told["size"], told["channels"], name, **{k: told[k] for k in HOW if k in told})
