"""Images as codes, and codes as images: the two ways through a model that paints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from regard.config import InputError
from regard.data.images import Source
from regard.encode.images import AT_ONCE, batches, facts
from regard.nn.codes import CodesHead

if TYPE_CHECKING:
    from regard.model import Model


@torch.inference_mode()
def codes(model: Model, images: Sequence[Source]) -> NDArray[np.int64]:
    """The code of every patch of images, (N, P).

    >>> from regard import Model, Transformer, presets
    >>> model = Model(Transformer(presets.tiny_vq_vae()), "paint", None)
    >>> codes(model, np.zeros((2, 15, 15, 3), np.uint8)).shape
    (2, 25)
    """
    head = _head(model)
    found = [head.coded(model.net.encode(pixels).hidden).ids.cpu().numpy() for pixels in batches(model, images)]
    return np.concatenate(found) if found else np.zeros((0, head.patches.n_positions), np.int64)


@torch.inference_mode()
def paint(model: Model, codes: NDArray[np.integer] | Sequence[Sequence[int]]) -> NDArray[np.uint8]:
    """The images of codes, (N, H, W, C).

    >>> from regard import Model, Transformer, presets
    >>> model = Model(Transformer(presets.tiny_vq_vae()), "paint", None)
    >>> paint(model, [[7] * 25]).shape
    (1, 15, 15, 3)
    """
    head, told, device = _head(model), facts(model), model.device
    n, size = head.config.n_codes, head.patches.n_positions
    ids = np.asarray(codes)
    if ids.ndim != 2 or ids.shape[1] != size or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"codes of shape {ids.shape} and type {ids.dtype} must be whole numbers, (N, {size})")
    if ids.size and not 0 <= ids.min() <= ids.max() < n:
        raise InputError(f"codes ({ids.min()} to {ids.max()}) must be from 0 to {n - 1}: there are {n} of them")
    mean, std = (torch.tensor(told[name], device=device)[:, None, None] for name in ("mean", "std"))
    images = [np.zeros((0, told["size"], told["size"], told["channels"]), np.uint8)]
    at_once = AT_ONCE.get(device.type, 64)
    for start in range(0, len(ids), at_once):
        some = torch.from_numpy(ids[start : start + at_once].astype(np.int64)).to(device)
        pixels = (head.paint_ids(some).float() * std + mean).clamp(0, 1) * 255
        images.append(pixels.round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy())
    return np.concatenate(images)


def _head(model: Model) -> CodesHead:
    model.check_task("paint")
    assert isinstance(model.net.head, CodesHead)
    return model.net.head
