"""Which fused kernel trains attention fastest on this GPU: what ``regard.nn.attention`` chooses by.

    python benchmarks/attention_kernels.py

Forward and backward in bfloat16, replayed from a CUDA graph so that the kernel is measured and not its launch: dense
batches by their length, and texts packed into rows, where the choice is between kernels for variable lengths and a
dense mask.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from measure import Row, measure, report
from regard.nn.attention import attend_short, attend_texts, efficient_texts, flash_texts
from regard.nn.masks import Lowered, Texts

WIDTH = 64
FUSED = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # (B, H, T, D) each


def recorded(attend: Attend, rows: int, length: int, heads: int) -> Callable[[], object]:
    """A forward and backward over fresh queries, keys and values, recorded once."""
    shape = (rows, length, heads, WIDTH)
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    direction = torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

    def run():
        out = attend(*(x.transpose(1, 2) for x in inputs))
        return torch.autograd.grad(out, inputs, direction)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def compare(title: str, candidates: dict[str, Attend], rows: int, length: int, heads: int) -> None:
    """A table of candidates; one that this machine's torch refuses is left out with a line that says so."""
    measured: list[Row] = []
    for name, attend in candidates.items():
        try:
            measured.append(
                measure(
                    name,
                    lambda attend=attend: recorded(attend, rows, length, heads),
                    warmup=5,
                    repeats=30,
                    device=torch.device("cuda"),
                )
            )
        except RuntimeError as error:
            print(f"{title}, {name}: left out: {str(error).splitlines()[0]}")
    report(title, measured, work=rows * length, unit="tokens/s")


def dense(kernel: SDPBackend, *, is_causal: bool, mask: Tensor | None = None) -> Attend:
    def attend(q, k, v):
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)

    return attend


def packed(rows: int, length: int, median: int, low: int, high: int) -> list[int]:
    """Lengths of texts as people write them, one after the other; one that crosses the end of a row is cut there."""
    drawn = torch.empty(rows * length).log_normal_(0, 0.55, generator=torch.Generator().manual_seed(1)).mul(median)
    ends = drawn.round().clamp(low, high).long().cumsum(0).tolist()
    ends = sorted({end for end in ends if end < rows * length} | set(range(length, rows * length + 1, length)))
    return [b - a for a, b in itertools.pairwise([0, *ends])]


def as_bounds(lengths: list[int], spare: int) -> Tensor:
    """Where texts begin and end, with so many empty ones after them."""
    ends = list(itertools.accumulate(lengths, initial=0))
    return torch.tensor(ends + ends[-1:] * spare, dtype=torch.int32, device="cuda")


def by_texts(kernel, lengths: list[int], longest: int, spare: int, *, is_causal: bool, across: bool) -> Attend:
    """A kernel for variable lengths (None: our own); ``across``: to texts of other lengths, as a decoder attends."""
    queries = as_bounds(lengths, spare)
    keys = as_bounds(lengths[::-1], spare) if across else queries
    texts = Texts(queries, keys, longest, longest)
    if kernel is None:
        return partial(attend_short, mask=Lowered(is_causal, texts=texts), scale=WIDTH**-0.5)
    return partial(attend_texts, texts=texts, kernel=kernel, is_causal=is_causal, scale=WIDTH**-0.5)


def document_mask(lengths: list[int], rows: int, length: int, *, is_causal: bool) -> Tensor:
    ids = torch.repeat_interleave(torch.tensor(lengths, device="cuda")).view(rows, 1, length, 1)
    same = ids == ids.transpose(2, 3)
    return same.tril() if is_causal else same


def over_texts(rows: int, heads: int, median: int, longest: int, kind: str, length: int = 1024) -> None:
    """Every way to attend within packed texts; bounds with and without room for more texts than there are."""
    is_causal, across = kind == "causal", kind == "cross"
    lengths = packed(rows, length, median, 3, longest)
    candidates = {
        f"{name}, {spare} empty texts": by_texts(kernel, lengths, longest, spare, is_causal=is_causal, across=across)
        for name, kernel in (("efficient", efficient_texts), ("flash", flash_texts), ("short", None))
        for spare in (0, len(lengths) // 2)
    }
    if not across:
        mask = document_mask(lengths, rows, length, is_causal=is_causal)
        candidates["efficient, dense mask"] = dense(SDPBackend.EFFICIENT_ATTENTION, is_causal=False, mask=mask)
        candidates["cuDNN, no documents"] = dense(SDPBackend.CUDNN_ATTENTION, is_causal=is_causal)
        candidates["flash, no documents"] = dense(SDPBackend.FLASH_ATTENTION, is_causal=is_causal)
    title = f"{kind}: {len(lengths)} texts of {sum(lengths) / len(lengths):.0f} tokens, longest {longest}"
    compare(f"{title}, {rows} x {length}, {heads} heads", candidates, rows, length, heads)


def over_lengths() -> None:
    """Dense batches by length."""
    for length in (16, 32, 64, 128, 256, 512, 1024, 2048):
        candidates = {kernel.name: dense(kernel, is_causal=True) for kernel in FUSED}
        candidates["short"] = partial(attend_short, mask=Lowered(is_causal=True), scale=WIDTH**-0.5)
        compare(f"length {length}, causal", candidates, 25_600 // length, length, 8)
    candidates = {kernel.name: dense(kernel, is_causal=False) for kernel in FUSED}
    candidates["short"] = partial(attend_short, mask=Lowered(), scale=WIDTH**-0.5)
    compare("length 32, full or cross", candidates, 800, 32, 8)


def over_packed() -> None:
    """A translator's sentences; longer texts, to see where one kernel overtakes the other; GPT-2's documents."""
    for kind in ("causal", "full", "cross"):
        over_texts(25, 8, 25, 128, kind)
    over_texts(200, 8, 25, 128, "causal", length=128)
    for median, longest in ((12, 64), (25, 256), (50, 256), (100, 512), (200, 1024)):
        over_texts(25, 8, median, longest, "causal")
    over_texts(32, 12, 260, 1024, "causal")


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    over_lengths()
    over_packed()


if __name__ == "__main__":
    main()
