"""Products of matrices by cuBLASLt, as a compiled training has them on a GPU.

torch leaves it to a rule of thumb which of cuBLAS's kernels multiplies. Here those that cuBLASLt proposes for a shape
are tried out when it first comes, and the fastest has it from then on. And cuBLASLt does what torch does not ask of it:
the gradient of a weight comes in float32, or is added to what is there, and GELU is a part of the product, which also
keeps what went into it.

cuBLASLt comes with every torch for CUDA, and is called through ctypes: launches like any other, which are recorded in
CUDA graphs. What it does not take, and shapes beyond the first few dozens, are torch's own.
"""

# Annotations are no strings here: torch reads them off the operations.
import ctypes
import math
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

PROPOSED = 16  # kernels that cuBLASLt is asked for; it has had 8 at most
ONCE_MORE = 4  # of them, the fastest, are timed again
MUCH = 0.98  # of the first one's time, that another must stay below: small differences are chance
MOST = 64  # shapes; a training has some twenty, but one whose batches have all kinds of lengths would never end
WORKSPACE = 32 * 2**20  # bytes, as torch gives it on a Hopper
AMPERE = (8, 0)  # the first with bfloat16
HOPPER = (9, 0)  # where GELU inside the product is known to pay
IS_THERE = sys.platform == "linux" and torch.version.cuda is not None  # told without a look at the machine

# Of cublasLt.h
TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
COMPUTE_32F, FLOAT32 = 68, 0
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, AUX_POINTER, AUX_LD, BIAS_TYPE = 3, 4, 7, 8, 11, 12, 26
PLAIN, BIAS, GELU_AUX_BIAS = 1, 4, 164
MOST_WORKSPACE, ALIGNMENTS = 1, (5, 6, 7, 8)  # of a, b, c and d


@torch.library.custom_op("regard::product", mutates_args=())
def product(a: Tensor, b: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """a b in that precision; in their own plus a bias, if there is one."""
    wide = dtype == torch.float32 and bias is None
    out = a.new_empty(a.shape[0], b.shape[1], dtype=dtype if wide else a.dtype)
    if not _multiply(a, b, out, epilogue=PLAIN if bias is None else BIAS, bias=bias):
        out = torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    return out.to(dtype)


@product.register_fake
def _(a, b, bias, dtype):
    return a.new_empty(a.shape[0], b.shape[1], dtype=dtype)


@torch.library.custom_op("regard::add_product", mutates_args=("total",))
def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, where the total may be the more exact."""
    if not _multiply(a, b, total, add=True):
        total += torch.mm(a, b)


@add_product.register_fake
def _(total, a, b):
    return None


@torch.library.custom_op("regard::linear_gelu", mutates_args=())
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """gelu(x weight^T + bias), the approximation by tanh, and what went into it."""
    out, kept = (x.new_empty(len(x), len(weight)) for _ in range(2))
    pays = x.is_cuda and torch.cuda.get_device_capability(x.device) == HOPPER
    if not pays or not _multiply(x, weight.t(), out, epilogue=GELU_AUX_BIAS, bias=bias, kept=kept):
        kept = product(x, weight.t(), bias, x.dtype)
        out = torch.nn.functional.gelu(kept, approximate="tanh")
    return out, kept


@linear_gelu.register_fake
def _(x, weight, bias):
    return tuple(x.new_empty(x.shape[0], weight.shape[0]) for _ in range(2))


def _takes(a: Tensor) -> bool:
    return a.is_cuda and _library() is not None and torch.cuda.get_device_capability(a.device) >= AMPERE


@cache
def _library() -> Any:
    """The one that torch has loaded; None where it has none."""
    try:
        return ctypes.CDLL(f"libcublasLt.so.{(torch.version.cuda or '').partition('.')[0]}")
    except OSError:
        return None


@cache
def _handle(device: int) -> c_void_p:
    handle = c_void_p()
    with torch.cuda.device(device):
        _asked("Create", byref(handle))
    return handle


def _asked(name: str, *arguments: Any) -> None:
    status = getattr(_library(), f"cublasLt{name}")(*arguments)
    if status:
        raise RuntimeError(f"cublasLt{name}: status {status}")


class _Proposal(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = [
        ("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int), ("waves", c_float),
        ("reserved", c_int * 4),
    ]  # fmt: skip


@dataclass
class _Plan:
    """A product of one shape: as cuBLASLt is told of it, its proposals (none: it does not take it), and which of them
    was the fastest, once they are tried out."""

    description: c_void_p
    layouts: list[c_void_p]
    proposals: list[_Proposal]
    best: int | None = None


_plans: dict[Any, _Plan] = {}
_lock = threading.Lock()  # a plan holds the addresses of the product that it is used for


def _multiply(
    a: Tensor, b: Tensor, out: Tensor, *, epilogue: int = PLAIN, bias: Tensor | None = None, kept: Tensor | None = None,
    add: bool = False,
) -> bool:  # fmt: skip
    """out = a b, or out += a b; whether cuBLASLt has done it."""
    if not _takes(a) or not out.numel() or not a.shape[1]:
        return False
    a, b, device = _lying(a), _lying(b), a.device
    key = (device, epilogue, add, *((x.dtype, x.shape, x.stride(), _alignment(x)) for x in (a, b, out)))
    with _lock, torch.cuda.device(device):
        if key not in _plans and len(_plans) < MOST:
            _plans[key] = _planned(a, b, out, epilogue, bias, kept)
        plan = _plans.get(key)
        if plan is None or not plan.proposals:
            return False
        for what, x in ((BIAS_POINTER, bias), (AUX_POINTER, kept)):
            if x is not None:
                _put(plan.description, what, c_void_p(x.data_ptr()))
        space, stream = a.new_empty(WORKSPACE, dtype=torch.uint8), torch.cuda.current_stream(device).cuda_stream
        one, other = c_float(1.0), c_float(float(add))
        of_b, of_a, of_out = plan.layouts

        def launch(proposal: int, into: Tensor) -> None:
            place = c_void_p(into.data_ptr())
            _asked(
                "Matmul", _handle(device.index), plan.description, byref(one), c_void_p(b.data_ptr()), of_b,
                c_void_p(a.data_ptr()), of_a, byref(other), place, of_out, place, of_out,
                byref(plan.proposals[proposal].algorithm), c_void_p(space.data_ptr()), c_size_t(WORKSPACE),
                c_void_p(stream),
            )  # fmt: skip

        if plan.best is None and not torch.cuda.is_current_stream_capturing():
            scratch = torch.empty_like(out) if add else out
            plan.best = _fastest(lambda proposal: launch(proposal, scratch), len(plan.proposals))
        launch(plan.best or 0, out)
    return True


def _planned(a: Tensor, b: Tensor, out: Tensor, epilogue: int, bias: Tensor | None, kept: Tensor | None) -> _Plan:
    """cuBLASLt thinks in columns, and is asked for the transpose: b' a'."""
    description, preference = c_void_p(), c_void_p()
    _asked("MatmulDescCreate", byref(description), c_int(COMPUTE_32F), c_int(FLOAT32))
    (of_b, turn_b), (of_a, turn_a), (of_out, _) = map(_layout, (b, a, out))
    _put(description, TRANSA, c_int32(turn_b))
    _put(description, TRANSB, c_int32(turn_a))
    _put(description, EPILOGUE, c_uint32(epilogue))
    if bias is not None:
        _put(description, BIAS_TYPE, c_int32(TYPES[bias.dtype]))
        _put(description, BIAS_POINTER, c_void_p(bias.data_ptr()))
    if kept is not None:
        _put(description, AUX_LD, c_int64(kept.stride(0)))
        _put(description, AUX_POINTER, c_void_p(kept.data_ptr()))
    _asked("MatmulPreferenceCreate", byref(preference))
    wanted = {MOST_WORKSPACE: c_size_t(WORKSPACE)}
    wanted |= {what: c_uint32(_alignment(x)) for what, x in zip(ALIGNMENTS, (b, a, out, out), strict=True)}
    for what, value in wanted.items():
        _asked("MatmulPreferenceSetAttribute", preference, c_int(what), byref(value), c_size_t(ctypes.sizeof(value)))
    found, n = (_Proposal * PROPOSED)(), c_int()
    with suppress(RuntimeError):  # what it does not take has no proposals
        _asked(
            "MatmulAlgoGetHeuristic", _handle(a.device.index), description, of_b, of_a, of_out, of_out, preference,
            c_int(PROPOSED), found, byref(n),
        )  # fmt: skip
    _asked("MatmulPreferenceDestroy", preference)
    return _Plan(description, [of_b, of_a, of_out], list(found)[: n.value])


def _lying(x: Tensor) -> Tensor:
    """As it is, if its rows or its columns lie apart from each other, each in one piece."""
    apart, within = x.stride()
    in_rows, in_columns = within == 1 and apart >= x.shape[1], apart == 1 and within >= x.shape[0]
    return x if in_rows or in_columns else x.clone(memory_format=torch.contiguous_format)


def _layout(x: Tensor) -> tuple[c_void_p, bool]:
    """A matrix of rows, which are columns there, and whether its transpose is what lies in memory."""
    turned = x.stride(1) != 1 or x.stride(0) < x.shape[1]
    x, layout = x.t() if turned else x, c_void_p()
    shape = c_uint64(x.shape[1]), c_uint64(x.shape[0]), c_int64(x.stride(0))
    _asked("MatrixLayoutCreate", byref(layout), c_int(TYPES[x.dtype]), *shape)
    return layout, turned


def _put(description: c_void_p, what: int, value: Any) -> None:
    _asked("MatmulDescSetAttribute", description, c_int(what), byref(value), c_size_t(ctypes.sizeof(value)))


def _alignment(x: Tensor) -> int:
    return min(256, x.data_ptr() & -x.data_ptr())


def _fastest(launch: Callable[[int], None], n: int) -> int:
    """Which of n proposals takes the least time; the first, unless another is clearly faster."""

    def seconds(proposal: int, times: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        try:
            launch(proposal)
            begin.record()
            for _ in range(times):
                launch(proposal)
        except RuntimeError:  # proposed, but not for this machine
            return math.inf
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / times

    at_first = {proposal: seconds(proposal, 2) for proposal in range(n)}
    best = sorted(at_first, key=lambda proposal: at_first[proposal])[:ONCE_MORE]
    again = {proposal: min(seconds(proposal, 8), seconds(proposal, 8)) for proposal in {0, *best}}
    fastest = min(again, key=lambda proposal: again[proposal])
    return fastest if again[fastest] < MUCH * again[0] else 0
