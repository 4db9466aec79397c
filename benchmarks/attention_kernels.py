"""Which fused kernel trains attention fastest on this GPU, by length: what ``regard.nn.attention`` chooses by.

    python benchmarks/attention_kernels.py

Forward and backward of a causal layer of 8 heads of 64 in bfloat16, at about 25,600 tokens, replayed from a CUDA graph
so that the kernel is measured and not its launch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from measure import measure, report

TOKENS, HEADS, WIDTH = 25_600, 8, 64


def layer(length: int, kernel: SDPBackend):
    """A recorded forward and backward."""
    shape = (TOKENS // length, length, HEADS, WIDTH)
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    direction = torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

    def run():
        with sdpa_kernel(kernel):
            out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in inputs), is_causal=True)
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


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU")
    device = torch.device("cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    kernels = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
    for length in (16, 32, 64, 128, 256, 512, 1024, 2048):
        rows = [
            measure(kernel.name, lambda k=kernel, n=length: layer(n, k), warmup=5, repeats=30, device=device)
            for kernel in kernels
        ]
        report(f"length {length}", rows, work=TOKENS, unit="tokens/s")


if __name__ == "__main__":
    main()
