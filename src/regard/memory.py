"""What becomes of the memory that a step of training or decoding frees; how much it takes is
:mod:`regard.train.plan`'s."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

# From glibc's malloc.h, and the largest threshold that it takes.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**25


def keep_freed_memory() -> bool:
    """Keep what a step frees for the next one, which takes as much; whether the C library could be told.

    glibc would hand it back to the system, which clears it page by page when it comes again. That is for a process
    that trains or translates on a CPU until it ends: what was once its memory stays its own.

    >>> told = keep_freed_memory()  # before the first step
    """
    mallopt = _of_c("mallopt")
    return mallopt is not None and bool(mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, -1))


def hand_back_freed_memory() -> bool:
    """Hand what has been freed back to the system, where the C library would keep it; whether there was any.

    >>> found = hand_back_freed_memory()  # after a model was loaded, and laid out anew
    """
    trim = _of_c("malloc_trim")
    return trim is not None and bool(trim(0))


def _of_c(name: str) -> Any:
    """A function of glibc's, where there is one."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
