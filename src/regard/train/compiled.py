"""torch.compile with the settings that measured best here (benchmarks/train_step.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# By measurement (docs/performance.md).
CHOSEN = {
    # Fusing a norm's row sums with its column sums saves a pass on paper; a translator's kernels took 32.0 ms a step
    # with it and 29.3 without.
    "triton.mix_order_reduction": False,
    "combo_kernels": True,  # small kernels in one
}


def compiled(
    step: Callable[..., Any], device: torch.device, *, graphs: bool = True, dynamic: bool | None = None
) -> Callable[..., Any]:
    """A compiled function. On a GPU its launches are recorded once and replayed (CUDA graphs), so that the host
    is never what a step waits for; a new input shape records anew. ``dynamic`` makes one that takes all shapes.

    >>> callable(compiled(torch.sin, torch.device("cpu")))  # it is compiled when it is called
    True
    """
    options: dict[str, Any] = {}
    if device.type == "cuda":
        options["triton.cudagraphs"] = graphs
        known = torch._inductor.list_options()
        options |= {name: value for name, value in CHOSEN.items() if name in known}
    return torch.compile(step, options=options, dynamic=dynamic)
