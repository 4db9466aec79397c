"""Training images changed at random, so that no epoch shows the same; and pixels as a model reads them.

What is done to each image is drawn on the CPU and travels with the batch as a few numbers (:class:`Treatment`, made by
:func:`draw`); it is done on the device, to all images of a batch at once (:func:`treated`), also to held-out images and
to a user's photo, which have nothing drawn. Numbers are drawn for a place (step, image), so that parts of a batch,
other processes and a resumed run see the same.

Changes of geometry (crop, flip, and RandAugment's) become one affine map, so that an image is resampled once; what lies
beyond its edge is the mean colour. RandAugment's changes of colour follow, then erasing, then mixing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from regard.recipe import Train

SLOTS = 2  # of RandAugment: changes of one image
N_DRAWN = 14 + 2 * SLOTS  # numbers for one image
IDENTITY = (1.0, 1.0, 1.0, 1.0, 1.0, 256.0, 0.0, 0.0)  # colours that change nothing, in the order of _coloured
GEOMETRY = ("rotate", "shear x", "shear y", "translate x", "translate y")
COLOURS = ("brightness", "colour", "contrast", "sharpness", "posterise", "solarise", "autocontrast", "equalise")
CHANGES = ("nothing", *GEOMETRY, *COLOURS)


class Treatment(NamedTuple):
    """What is done to the images of a batch. There are B of them, and behind those the ones that they are mixed with,
    unless they are in the batch themselves: N together."""

    mean: Float[Tensor, " C"]
    std: Float[Tensor, " C"]
    affine: Float[Tensor, "N 2 3"] | None = None  # from a place in the result to one in the image, both from -1 to 1
    flipped: Bool[Tensor, " N"] | None = None  # where nothing else is done to the geometry
    colours: Float[Tensor, "N slots 8"] | None = None
    erased: Float[Tensor, "N 4"] | None = None  # top, left, bottom, right, in pixels
    others: UInt8[Tensor, "M H W C"] | None = None  # images to mix with
    other: Int[Tensor, " B"] | None = None  # which of N each is mixed with
    blend: Float[Tensor, " B"] | None = None  # how much of an image is its own, outside of the box
    box: Float[Tensor, "B 4"] | None = None  # which is all the other's
    second: Int[Tensor, " B"] | None = None  # the other's label
    share: Float[Tensor, " B"] | None = None  # of the label that is its own


def untouched(told: Mapping[str, Any], device: torch.device) -> Treatment:
    """Nothing but the mean and deviation that a data directory or a model tells: for images that are not learned from.

    >>> untouched({"mean": [0.5], "std": [0.25]}, torch.device("cpu")).std
    tensor([0.2500])
    """
    return Treatment(*(torch.tensor(told[name], device=device) for name in ("mean", "std")))


# ---------------------------------------------------------------------------------------
# What is drawn


def mixes(train: Train) -> bool:
    return bool(train.mixup or train.cutmix)


def draw(train: Train, numbers: NDArray[np.float64], size: int) -> dict[str, Tensor]:
    """What is done to each of N images by itself, from N_DRAWN shares of each.

    >>> made = draw(Train(steps=1, flip=0.5), np.random.default_rng(1).random((7, N_DRAWN)), size=28)
    >>> list(made), made["flipped"].shape
    (['flipped'], torch.Size([7]))
    """
    made: dict[str, Tensor] = {}
    flipped = numbers[:, 0] < train.flip
    if train.crop or train.randaugment:
        affine = _cropped(train.crop, numbers[:, 1:5]) if train.crop else np.tile(np.eye(3), (len(numbers), 1, 1))
        affine[:, :, 0] *= np.where(flipped, -1, 1)[:, None]  # the first of the two that the result goes through
        if train.randaugment:
            kinds = (numbers[:, 14 : 14 + SLOTS] * len(CHANGES)).astype(int)
            signed = _strengths(numbers[:, 14 + SLOTS :], train.randaugment)
            for slot in range(SLOTS):
                affine = affine @ _moved(kinds[:, slot], signed[:, slot])
            made["colours"] = _tensor(_colours(kinds, signed))
        made["affine"] = _tensor(affine[:, :2])
    elif train.flip:
        made["flipped"] = torch.from_numpy(flipped)
    if train.erase:
        area, ratio = (
            0.02 + numbers[:, 6] * (1 / 3 - 0.02),
            np.exp(_between(numbers[:, 7], math.log(0.3), math.log(3.3))),
        )
        box = _box(np.sqrt(area * ratio), np.sqrt(area / ratio), numbers[:, 8], numbers[:, 9], size)
        made["erased"] = _tensor(np.where((numbers[:, 5] < train.erase)[:, None], box, 0))
    return made


def draw_mixed(train: Train, numbers: NDArray[np.float64], shares: NDArray[np.float64], size: int) -> dict[str, Tensor]:
    """How each of B images is mixed with another; ``shares`` are drawn from mixup's and from cutmix's distribution,
    (B, 2)."""
    cut = numbers[:, 10] < (0.5 if train.mixup and train.cutmix else float(bool(train.cutmix)))
    side = np.sqrt(1 - shares[:, 1])
    # The box may stick out, as in the paper: then what is left of it counts.
    y, x = numbers[:, 11] * size, numbers[:, 12] * size
    ends = np.stack([y - side * size / 2, x - side * size / 2, y + side * size / 2, x + side * size / 2], 1)
    box = np.where(cut[:, None], ends.round().clip(0, size), 0)
    area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) / size**2
    blend = np.where(cut, 1.0, shares[:, 0])
    return {"blend": _tensor(blend), "box": _tensor(box), "share": _tensor(np.where(cut, 1 - area, blend))}


def _tensor(values: NDArray) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _between(share: NDArray, low: float, high: float) -> NDArray:
    return low + share * (high - low)


def _box(height: NDArray, width: NDArray, y: NDArray, x: NDArray, size: int) -> NDArray:
    """Boxes of these shares of the sides, anywhere inside."""
    h, w = ((v.clip(0, 1) * size).round().clip(1, size) for v in (height, width))
    top, left = np.floor(y * (size - h + 1)), np.floor(x * (size - w + 1))
    return np.stack([top, left, top + h, left + w], axis=1)


def _cropped(least: float, numbers: NDArray) -> NDArray:
    """Maps from the result to the part of the image that is cut out."""
    area = _between(numbers[:, 0], least, 1)
    ratio = np.exp(_between(numbers[:, 1], math.log(3 / 4), math.log(4 / 3)))
    w, h = np.sqrt(area * ratio).clip(0, 1), np.sqrt(area / ratio).clip(0, 1)
    maps = np.zeros((len(numbers), 3, 3))
    maps[:, 0, 0], maps[:, 1, 1], maps[:, 2, 2] = w, h, 1
    maps[:, 0, 2], maps[:, 1, 2] = (1 - w) * (2 * numbers[:, 2] - 1), (1 - h) * (2 * numbers[:, 3] - 1)
    return maps


def _strengths(numbers: NDArray, strength: float) -> NDArray:
    """In either direction, as the paper has it: one strength for all."""
    return np.where(numbers < 0.5, -1, 1) * strength / 10


def _moved(kinds: NDArray, signed: NDArray) -> NDArray:
    """Maps of RandAugment's geometry; others stay in place. Translations are up to 0.45 of the side, turns up to 30
    degrees, shears up to 0.3."""
    maps = np.tile(np.eye(3), (len(kinds), 1, 1))
    for kind, change in enumerate(CHANGES):
        rows, by = kinds == kind, signed[kinds == kind]
        if change == "rotate":
            angle = np.radians(30 * by)
            maps[rows, 0, 0] = maps[rows, 1, 1] = np.cos(angle)
            maps[rows, 0, 1], maps[rows, 1, 0] = -np.sin(angle), np.sin(angle)
        elif change == "shear x":
            maps[rows, 0, 1] = 0.3 * by
        elif change == "shear y":
            maps[rows, 1, 0] = 0.3 * by
        elif change == "translate x":
            maps[rows, 0, 2] = 2 * 0.45 * by
        elif change == "translate y":
            maps[rows, 1, 2] = 2 * 0.45 * by
    return maps


def _colours(kinds: NDArray, signed: NDArray) -> NDArray:
    """The numbers of every change of colour, (N, slots, 8): those of the one that was drawn, and for the others what
    changes nothing."""
    by = np.abs(signed)
    drawn = np.stack(
        [*[1 + 0.9 * signed] * 4, 2 ** np.round(4 * by), 256 * (1 - by), np.ones_like(by), np.ones_like(by)], -1
    )
    first = CHANGES.index(COLOURS[0])
    chosen = kinds[..., None] - first == np.arange(len(COLOURS))
    return np.where(chosen, drawn, np.array(IDENTITY))


# ---------------------------------------------------------------------------------------
# What is done with it


def treated(images: UInt8[Tensor, "B H W C"], how: Treatment) -> Float[Tensor, "B C H W"]:
    """Images as a model reads them, after all that was drawn for them.

    >>> treated(torch.full((1, 2, 2, 1), 51, dtype=torch.uint8), Treatment(torch.tensor([0.1]), torch.tensor([0.5])))
    tensor([[[[0.2000, 0.2000],
              [0.2000, 0.2000]]]])
    """
    with torch.autocast(images.device.type, enabled=False):
        every = images if how.others is None else torch.cat([images, how.others])
        x = every.permute(0, 3, 1, 2).float()
        mean = 255 * how.mean[:, None, None]
        if how.flipped is not None:
            x = torch.where(how.flipped[:, None, None, None], x.flip(-1), x)
        if how.affine is not None:
            x = _sampled(x - mean, how.affine) + mean
        if how.colours is not None:
            for slot in range(SLOTS):
                x = _coloured(x, how.colours[:, slot])
        if how.erased is not None:
            x = torch.where(_inside(how.erased, x), mean, x)
        if how.other is not None:
            assert how.blend is not None
            assert how.box is not None
            own = x[: len(images)]
            weight = torch.where(_inside(how.box, own), 0, how.blend[:, None, None, None])
            x = weight * own + (1 - weight) * x[how.other]
        return (x - mean) / (255 * how.std[:, None, None])


def _inside(box: Float[Tensor, "N 4"], x: Tensor) -> Bool[Tensor, "N 1 H W"]:
    rows, cols = (torch.arange(n, device=x.device) for n in x.shape[2:])
    top, left, bottom, right = box[:, :, None, None].unbind(1)
    inside = (rows[:, None] >= top) & (rows[:, None] < bottom) & (cols >= left) & (cols < right)
    return inside[:, None]


def _sampled(x: Float[Tensor, "N C H W"], affine: Float[Tensor, "N 2 3"]) -> Float[Tensor, "N C H W"]:
    """Bilinear, with zeros beyond the edge. Written out: a product of matrices would round by the size of the batch."""
    y, x_ = ((2 * torch.arange(n, device=x.device) + 1) / n - 1 for n in x.shape[2:])
    m = affine[:, :, :, None, None]  # (N, 2, 3, 1, 1)
    grid = m[:, :, 0] * x_ + m[:, :, 1] * y[:, None] + m[:, :, 2]  # (N, 2, H, W)
    return F.grid_sample(x, grid.permute(0, 2, 3, 1), mode="bilinear", padding_mode="zeros", align_corners=False)


def _coloured(x: Float[Tensor, "N C H W"], numbers: Float[Tensor, "N 8"]) -> Float[Tensor, "N C H W"]:
    """RandAugment's changes of colour, as pillow has them; at most one of them is other than nothing for an image. On a
    CPU only the images that have a change go through it; on a GPU all do, which has to ask nothing."""
    for change, number, nothing in zip(_CHANGES_OF_COLOUR, numbers.unbind(1), IDENTITY, strict=True):
        chosen, number = number != nothing, number[:, None, None, None]
        if x.device.type == "cpu":
            rows = chosen.nonzero()[:, 0]
            x = x.index_copy(0, rows, change(x[rows], number[rows])) if len(rows) else x
        else:
            x = torch.where(chosen[:, None, None, None], change(x, number), x)
    return x


def _bright(x: Float[Tensor, "N C H W"], by: Tensor) -> Float[Tensor, "N C H W"]:
    return (x * by).clamp(0, 255)


def _vivid(x: Float[Tensor, "N C H W"], by: Tensor) -> Float[Tensor, "N C H W"]:
    grey = _grey(x)
    return (grey + (x - grey) * by).clamp(0, 255)


def _contrasted(x: Float[Tensor, "N C H W"], by: Tensor) -> Float[Tensor, "N C H W"]:
    middle = (_grey(x).mean((1, 2, 3), keepdim=True) + 0.5).floor()
    return (middle + (x - middle) * by).clamp(0, 255)


def _posterised(x: Float[Tensor, "N C H W"], step: Tensor) -> Float[Tensor, "N C H W"]:
    return (x.round() / step).floor() * step


def _solarised(x: Float[Tensor, "N C H W"], threshold: Tensor) -> Float[Tensor, "N C H W"]:
    return torch.where(x >= threshold, 255 - x, x)


def _stretched(x: Float[Tensor, "N C H W"], _: Tensor) -> Float[Tensor, "N C H W"]:
    """Every colour from its lowest value at 0 to its highest at 255."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) * (255 / (high - low).clamp_min(1e-6)), x)


def _grey(x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N 1 H W"]:
    return x if x.shape[1] == 1 else (0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]).round()


def _sharpened(x: Float[Tensor, "N C H W"], by: Tensor) -> Float[Tensor, "N C H W"]:
    """Between a blurred image and itself, or beyond itself; the edge stays."""
    inner = x[:, :, 1:-1, 1:-1]
    blurred = F.pad((9 * F.avg_pool2d(x, 3, 1) + 4 * inner) / 13 - inner, (1, 1, 1, 1)) + x
    return (blurred + (x - blurred) * by).clamp(0, 255)


def _equalised(x: Float[Tensor, "N C H W"], _: Tensor) -> Float[Tensor, "N C H W"]:
    """Every colour's values spread so that each is as frequent."""
    values = x.round().long().flatten(2)
    counts = torch.zeros(*values.shape[:2], 256, device=x.device).scatter_add_(2, values, torch.ones_like(x).flatten(2))
    step = ((values.shape[2] - counts.gather(2, values.amax(2, keepdim=True))) / 255).floor()
    before = counts.cumsum(2) - counts
    table = ((before + (step / 2).floor()) / step.clamp_min(1)).floor().clamp(0, 255)
    return torch.where(step[..., None] > 0, table.gather(2, values).view_as(x), x)


_CHANGES_OF_COLOUR = (_bright, _vivid, _contrasted, _sharpened, _posterised, _solarised, _stretched, _equalised)
