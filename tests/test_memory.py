"""Freed memory is kept: a process that was told so is not given cleared pages again. And what torch reads when
it is loaded."""

import os
import platform
import subprocess
import sys

import pytest

SET = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, "1000 None 128"),
        ({"GOMP_SPINCOUNT": "7"}, "7 None 128"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "None ACTIVE 128"),
        ({"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "7"}, "1000 None 7"),
    ],
)
def test_threads_wait_and_kernels_are_kept_as_somebody_tells_or_as_is_best(given, wanted):
    """Beside another process that computes, a batch takes several times as long where threads wait for long."""
    plain = {name: value for name, value in os.environ.items() if name not in SET}
    script = f"import os, regard; print(*(os.environ.get(name) for name in {SET}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={**plain, **given}
    )
    assert done.stdout == f"{wanted}\n"


# In a process of its own, for it cannot be taken back. Five pieces are more than glibc would keep by itself.
SCRIPT = """
import ctypes, resource
from regard.memory import keep_freed_memory

libc, size = ctypes.CDLL(None), 23 * 2**20
libc.malloc.restype = ctypes.c_void_p

def cleared_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size))) for _ in range(5)]
    for piece in pieces:
        ctypes.memset(piece, 1, size)
    for piece in pieces:
        libc.free(piece)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

TOLD
cleared_pages()
print(min(cleared_pages() for _ in range(3)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc is told, and nothing else")
@pytest.mark.parametrize("told", [True, False])
def test_a_step_gets_the_pages_of_the_last(told):
    script = SCRIPT.replace("TOLD", "assert keep_freed_memory()" if told else "")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    pages = 5 * 23 * 2**20 // 4096
    assert int(done.stdout) < pages / 10 if told else int(done.stdout) > pages / 2
