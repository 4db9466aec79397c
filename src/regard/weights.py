"""Weights on disk: safetensors, as they are or as int8 with a scale for each row. Nothing is pickled."""

from __future__ import annotations

from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from regard.files import drafted
from regard.schema import InputError

SCALE = ".scale"


def write_weights(path: Path, weights: dict[str, Tensor], *, int8: bool = False) -> None:
    """Write weights; with ``int8`` matrices become whole numbers, and everything else float16.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "w.safetensors")
    >>> write_weights(path, {"w": torch.tensor([[1.27, -0.5], [0.0, 0.0]])}, int8=True)
    >>> read_weights(path)["w"]
    tensor([[ 1.2700, -0.5000],
            [ 0.0000,  0.0000]])
    """
    stored: dict[str, Tensor] = {}
    for name, weight in weights.items():
        value = weight.detach().cpu()
        if not int8:
            stored[name] = value.contiguous()
        elif value.dim() == 2:
            stored[name], stored[name + SCALE] = quantised(value)
        else:
            stored[name] = value.half().contiguous()
    with drafted(path) as draft:
        safetensors.torch.save_file(stored, draft)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a file, int8 ones as float32."""
    try:
        stored = safetensors.torch.load_file(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: damaged, or no safetensors file ({error})") from None
    scales = {name.removesuffix(SCALE): stored.pop(name) for name in [*stored] if name.endswith(SCALE)}
    if not scales:
        return stored
    return {n: dequantised(w, scales[n]) if n in scales else w.float() for n, w in stored.items()}


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as int8, and the scale of each row: its largest number becomes 127."""
    scale = (weight.float().abs().amax(1) / 127).clamp_min(1e-12)
    return (weight.float() / scale[:, None]).round_().to(torch.int8), scale


def dequantised(weight: Tensor, scale: Tensor) -> Tensor:
    return weight.float() * scale[:, None].float()
