"""What stands beside a layer's product while it is trained on a GPU: activations, and the sums over rows that are the
gradients of biases and norms, each one pass over memory. What passes by anyway is summed up on the way: every program
sums some rows of some columns, and a second kernel adds those sums.

This module needs triton, and is imported by :mod:`regard.nn.products` and :mod:`regard.nn.norms` alone, where there is
a GPU.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.kernels import activated

# By measurement on an H200 (docs/performance.md).
WARPS = 4
BLOCK = 2_048  # elements that a program activates
TALL, WIDE = 16, 128  # rows and columns at once
ROWS = 128  # that a program sums
ADDED = 32  # columns of them that a program adds up
STAGES = 3  # of which two are on their way from memory
WHOLE = {"TALL": 2, "ROWS": 32}  # the same of rows that are held whole


@torch.library.custom_op("regard::linear_relu", mutates_args=())
def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(x weight^T + bias), of which cuBLAS makes one kernel, and a compiler would make two."""
    return torch.ops.aten._addmm_activation(bias, x, weight.t())


@linear_relu.register_fake
def _(x, weight, bias):
    return x.new_empty(x.shape[0], weight.shape[0])


@torch.library.custom_op("regard::activate", mutates_args=())
def activate(x: Tensor, activation: str) -> Tensor:
    """An activation's output."""
    x = x.contiguous()
    out = torch.empty_like(x)
    with torch.cuda.device_of(x):  # where triton launches
        _activate[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), KIND=activation, BLOCK=BLOCK, num_warps=WARPS)
    return out


@activate.register_fake
def _(x, activation):
    return x.new_empty(x.shape)


@torch.library.custom_op("regard::activation_gradient", mutates_args=())
def activation_gradient(kept: Tensor, gradient: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The gradient of what went into an activation, and the sum of its rows; ``kept`` is what went in or, of ReLU, what
    came out."""
    kept, gradient = kept.contiguous(), gradient.contiguous()
    rows, width = kept.shape
    out, sums, tiles = torch.empty_like(kept), _sums(kept, width), _tiles(width)
    with torch.cuda.device_of(kept):
        _activation_gradient[_programs(sums, tiles)](
            kept, gradient, out, sums, rows, width, KIND=activation, **tiles
        )  # fmt: skip
    return out, _added_up(sums)[0]


@activation_gradient.register_fake
def _(kept, gradient, activation):
    return kept.new_empty(kept.shape), kept.new_empty(kept.shape[1], dtype=torch.float32)


@torch.library.custom_op("regard::put_together", mutates_args=())
def put_together(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Two or three parts (N, w) side by side, and the sum of the rows."""
    parts = [part if part.stride(1) == 1 else part.contiguous() for part in parts]
    first, second, third = *parts, *(3 - len(parts)) * parts[-1:]
    begins = first.shape[1], first.shape[1] + second.shape[1]
    rows, width = first.shape[0], sum(part.shape[1] for part in parts)
    out, sums, tiles = first.new_empty(rows, width), _sums(first, width), _tiles(*(part.shape[1] for part in parts))
    with torch.cuda.device_of(first):
        _put_together[_programs(sums, tiles)](
            first, second, third, *(part.stride(0) for part in (first, second, third)), *begins,
            out, sums, rows, width, **tiles,
        )  # fmt: skip
    return out, _added_up(sums)[0]


@put_together.register_fake
def _(parts):
    width = sum(part.shape[1] for part in parts)
    return parts[0].new_empty(parts[0].shape[0], width), parts[0].new_empty(width, dtype=torch.float32)


@torch.library.custom_op("regard::norm_sums", mutates_args=())
def norm_sums(gradient: Tensor, x: Tensor, mean: Tensor, rate: Tensor, shifted: bool) -> Tensor:
    """The gradients of a norm's scale and, where there is one, shift (1 | 2, C), of the gradient of its output (N, C)
    and of what it was given, whose rows have these means and 1 / deviations."""
    gradient, x = gradient.contiguous(), x.contiguous()
    rows, width = x.shape
    sums, tiles = _sums(x, width, 1 + shifted), _tiles(width)
    with torch.cuda.device_of(x):
        _norm_sums[_programs(sums, tiles)](gradient, x, mean, rate, sums, rows, width, SHIFT=shifted, **tiles)
    return _added_up(sums)


@norm_sums.register_fake
def _(gradient, x, mean, rate, shifted):
    return x.new_empty(1 + shifted, x.shape[1], dtype=torch.float32)


@torch.library.custom_op("regard::norm_gradient", mutates_args=())
def norm_gradient(
    gradient: Tensor, x: Tensor, mean: Tensor, rate: Tensor, scale: Tensor, beside: Tensor, shifted: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of what was given to a norm (..., C), plus one that goes past the norm, and what norm_sums gives, in
    one pass."""
    width, out = x.shape[-1], torch.empty(x.shape, device=x.device, dtype=x.dtype)
    gradient, x, beside = (rows.reshape(-1, width).contiguous() for rows in (gradient, x, beside))
    sums = _sums(x, width, 1 + shifted, WHOLE["ROWS"])
    with torch.cuda.device_of(x):
        _norm_gradient[(sums.shape[1],)](
            gradient, x, mean.contiguous(), rate.contiguous(), scale, beside, out, sums, len(x), width,
            SHIFT=shifted, WIDE=triton.next_power_of_2(width), STAGES=STAGES, num_warps=WARPS, **WHOLE,
        )  # fmt: skip
    return out, _added_up(sums)


@norm_gradient.register_fake
def _(gradient, x, mean, rate, scale, beside, shifted):
    return x.new_empty(x.shape), x.new_empty(1 + shifted, x.shape[-1], dtype=torch.float32)


def _sums(x: Tensor, width: int, m: int = 1, rows: int = ROWS) -> Tensor:
    """Room for what each program, of so many rows, sums of m things (m, programs, width)."""
    return torch.empty(m, triton.cdiv(x.shape[0], rows), width, device=x.device, dtype=torch.float32)


def _tiles(*widths: int) -> dict[str, int]:
    """What a program takes at once, of whatever has parts of these widths."""
    wide = WIDE if not any(width % WIDE for width in widths) else WIDE // 2
    return {"TALL": TALL, "WIDE": wide, "ROWS": ROWS, "STAGES": STAGES, "num_warps": WARPS}


def _programs(sums: Tensor, tiles: dict[str, int]) -> tuple[int, int]:
    return sums.shape[2] // tiles["WIDE"], sums.shape[1]


def _added_up(sums: Tensor) -> Tensor:
    """The sums of all programs' sums (m, width)."""
    m, parts, width = sums.shape
    out = sums.new_empty(m, width)
    with torch.cuda.device_of(sums):
        _add_up[(triton.cdiv(width, ADDED), m)](sums, out, parts, width, TALL=32, WIDE=ADDED, num_warps=WARPS)
    return out


# ---------------------------------------------------------------------------------------
# The kernels


@triton.jit
def _below(x):
    """The share of a normal distribution that is below x, to 1e-7 (Abramowitz and Stegun 7.1.26), and exp(-x^2 / 2): a
    third of the arithmetic of erf, for which a pass over memory would have to wait."""
    bell = tl.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + 0.23164190 * tl.abs(x))
    sum_of_powers = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    tail = sum_of_powers * bell
    return tl.where(x > 0, 1.0 - tail, tail), bell


@triton.jit
def _activate(x, out, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    some = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    if KIND == "gelu":
        below, _ = _below(some)
        some *= below
    else:
        some = activated(some, KIND)
    tl.store(out + at, some.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def _slope(x, KIND: tl.constexpr):
    """An activation's derivative."""
    if KIND == "relu":
        slope = tl.where(x > 0, 1.0, 0.0)
    elif KIND == "gelu":
        below, bell = _below(x)
        slope = below + x * 0.3989422804014327 * bell
    else:  # x sigmoid(f(x))
        if KIND == "gelu_tanh":
            share = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
            steep = 1.5957691216057308 + 0.2140644488178604 * x * x
        elif KIND == "gelu_quick":
            share, steep = tl.sigmoid(1.702 * x), 1.702
        else:
            share, steep = tl.sigmoid(x), 1.0
        slope = share * (1.0 + x * steep * (1.0 - share))
    return slope


@triton.jit
def _activation_gradient(
    kept, gradient, out, sums, rows, width,
    KIND: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    row = tl.program_id(1) * ROWS + tl.arange(0, TALL)
    total = tl.zeros([TALL, WIDE], tl.float32)
    for _ in tl.range(0, ROWS, TALL, num_stages=STAGES):
        at, there = row[:, None].to(tl.int64) * width + column[None, :], (row < rows)[:, None]
        back = tl.load(gradient + at, mask=there, other=0.0).to(tl.float32)
        change = back * _slope(tl.load(kept + at, mask=there, other=0.0).to(tl.float32), KIND)
        tl.store(out + at, change.to(out.dtype.element_ty), mask=there)
        total += change
        row += TALL
    tl.store(sums + tl.program_id(1).to(tl.int64) * width + column, tl.sum(total, 0))


@triton.jit
def _put_together(
    first, second, third, first_row, second_row, third_row, second_begin, third_begin, out, sums, rows, width,
    TALL: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    begin = tl.program_id(0) * WIDE
    is_second, is_third = begin >= second_begin, begin >= third_begin
    part = tl.where(is_third, third, tl.where(is_second, second, first))
    its_row = tl.where(is_third, third_row, tl.where(is_second, second_row, first_row))
    its_begin = tl.where(is_third, third_begin, tl.where(is_second, second_begin, 0))
    column = begin + tl.arange(0, WIDE)
    row = tl.program_id(1) * ROWS + tl.arange(0, TALL)
    total = tl.zeros([TALL, WIDE], tl.float32)
    for _ in tl.range(0, ROWS, TALL, num_stages=STAGES):
        at, there = row[:, None].to(tl.int64), (row < rows)[:, None]
        some = tl.load(part + at * its_row + (column - its_begin)[None, :], mask=there, other=0.0)
        tl.store(out + at * width + column[None, :], some, mask=there)
        total += some.to(tl.float32)
        row += TALL
    tl.store(sums + tl.program_id(1).to(tl.int64) * width + column, tl.sum(total, 0))


@triton.jit
def _norm_sums(
    gradient, x, means, rates, sums, rows, width,
    SHIFT: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    row = tl.program_id(1) * ROWS + tl.arange(0, TALL)
    of_scale, of_shift = tl.zeros([TALL, WIDE], tl.float32), tl.zeros([TALL, WIDE], tl.float32)
    for _ in tl.range(0, ROWS, TALL, num_stages=STAGES):
        at, there = row[:, None].to(tl.int64) * width + column[None, :], (row < rows)[:, None]
        back = tl.load(gradient + at, mask=there, other=0.0).to(tl.float32)
        some = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        rate = tl.load(rates + row, mask=row < rows, other=0.0)[:, None]
        if SHIFT:
            some -= tl.load(means + row, mask=row < rows, other=0.0)[:, None]
            of_shift += back
        of_scale += back * some * rate
        row += TALL
    place = sums + tl.program_id(1).to(tl.int64) * width + column
    tl.store(place, tl.sum(of_scale, 0))
    if SHIFT:
        tl.store(place + tl.num_programs(1) * width, tl.sum(of_shift, 0))


@triton.jit
def _norm_gradient(
    gradient, x, means, rates, scale, beside, out, sums, rows, width,
    SHIFT: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, WIDE)
    inside = column < width
    row = tl.program_id(0) * ROWS + tl.arange(0, TALL)
    weight = tl.load(scale + column, mask=inside, other=0.0).to(tl.float32)
    of_scale, of_shift = tl.zeros([TALL, WIDE], tl.float32), tl.zeros([TALL, WIDE], tl.float32)
    for _ in tl.range(0, ROWS, TALL, num_stages=STAGES):
        there = (row < rows)[:, None] & inside[None, :]
        at = row[:, None].to(tl.int64) * width + column[None, :]
        back = tl.load(gradient + at, mask=there, other=0.0).to(tl.float32)
        some = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        past = tl.load(beside + at, mask=there, other=0.0).to(tl.float32)
        rate = tl.load(rates + row, mask=row < rows, other=0.0)[:, None]
        if SHIFT:
            some -= tl.load(means + row, mask=row < rows, other=0.0)[:, None]
            of_shift += back
        normed = tl.where(inside[None, :], some * rate, 0.0)
        of_scale += back * normed
        back *= weight[None, :]
        change = back - normed * (tl.sum(back * normed, 1) / width)[:, None]
        if SHIFT:
            change -= (tl.sum(back, 1) / width)[:, None]
        tl.store(out + at, (change * rate + past).to(out.dtype.element_ty), mask=there)
        row += TALL
    place = sums + tl.program_id(0).to(tl.int64) * width + column
    tl.store(place, tl.sum(of_scale, 0), mask=inside)
    if SHIFT:
        tl.store(place + tl.num_programs(0) * width, tl.sum(of_shift, 0), mask=inside)


@triton.jit
def _add_up(sums, out, parts, width, TALL: tl.constexpr, WIDE: tl.constexpr):
    column, which = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.program_id(1)
    inside = (column < width)[None, :]
    total = tl.zeros([TALL, WIDE], tl.float32)
    for part in range(0, parts, TALL):
        at = part + tl.arange(0, TALL)
        place = (which * parts + at)[:, None] * width + column[None, :]
        total += tl.load(sums + place, mask=(at < parts)[:, None] & inside, other=0.0)
    tl.store(out + which * width + column, tl.sum(total, 0).to(out.dtype.element_ty), mask=column < width)
