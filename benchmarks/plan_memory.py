"""What ``regard plan`` says beside what a GPU says: memory by kind, its peak, and torch's own count of FLOPs.

    PYTHONPATH=src python benchmarks/plan_memory.py  # a GPU: GPT-2 124M and Transformer-base, two sizes each
    PYTHONPATH=src python benchmarks/plan_memory.py --only gpt-32 --how compiled
    python benchmarks/plan_memory.py                 # a CPU: what autograd keeps, in small

The models train as in train_step.py: bfloat16 autocast, token_loss, fused AdamW. "Between" is what waits from the end
of the forward pass to the beginning of the backward pass: activations, bfloat16 copies of weights, the loss's own
gradients.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from regard.train import plan
from regard.train.compiled import compiled
from train_step import CPU_GPT, CPU_TRANSLATOR, GPU_GPT, GPU_TRANSLATOR, ours_gpt, ours_translator

ON_GPU = {
    "gpt-32": (GPU_GPT, ours_gpt, 2),
    "base-800": (GPU_TRANSLATOR, ours_translator, 3),
    "gpt-8": (replace(GPU_GPT, batch=8), ours_gpt, 2),
    "base-200": (replace(GPU_TRANSLATOR, batch=200), ours_translator, 3),
}
ON_CPU = {
    "gpt": (CPU_GPT, ours_gpt, 2),
    # A CPU's dropout keeps numbers rather than bytes.
    "translator": (replace(CPU_TRANSLATOR, dropout=0.0), ours_translator, 3),
}
HOW = {  # compiled, half
    "compiled": (True, True),
    "eager": (False, True),
    "eager float32": (False, False),
}


def size(tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def measured(work, make, n_inputs: int, device: torch.device, how: str, steps: int = 4) -> tuple[dict, dict]:
    """Train a few steps; what was planned and what was measured, by kind."""
    compile_it, half = HOW[how]
    torch.manual_seed(0)
    model, loss_of = make(work, device)
    loss_fn = compiled(loss_of, device) if compile_it else loss_of
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    between = gradients = 0
    batches = [
        tuple(torch.randint(2, work.vocab, (work.batch, work.length), device=device) for _ in range(n_inputs))
        for _ in range(4)
    ]
    for i in range(steps):
        torch.compiler.cudagraph_mark_step_begin()
        before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        with torch.autocast(device.type, torch.bfloat16, enabled=half), Kept(model, batches[i % 4], device) as kept:
            loss = loss_fn(*batches[i % 4])
        # Once CUDA graphs are recorded, their memory is there all the time: the first step shows it.
        between = max(between, torch.cuda.memory_allocated() - before if device.type == "cuda" else kept.bytes)
        loss.backward()
        gradients = size(p.grad for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    states = size(t for s in optimizer.state.values() for t in s.values() if t.dim())
    found = {"weights": size(model.parameters()), "gradients": gradients, "optimizer": states, "between": between}
    if device.type == "cuda":
        found["peak"] = torch.cuda.max_memory_allocated()
    load = plan.Load(rows=work.batch, length=work.length, half=half, compiled=compile_it)
    wanted = plan.memory(model.config, load)
    copies = wanted.weights - 4 * model.n_parameters()
    n, v, d = work.batch * work.length, work.vocab, work.width
    said = {
        "weights": wanted.weights - copies,
        "gradients": wanted.gradients,
        "optimizer": wanted.optimizer,
        "between": wanted.activations + copies + n * d * load.width + v * d * 4,
        "peak": wanted.peak,
    }
    return said, found


class Kept:
    """On a CPU: the bytes that autograd keeps beside weights and inputs."""

    def __init__(self, model, batch, device: torch.device):
        self.own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), *batch)}
        self.found: dict[int, torch.Tensor] = {}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda t: t)
        self.on = device.type == "cpu"

    def pack(self, tensor):
        if tensor.untyped_storage().data_ptr() not in self.own:
            self.found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    @property
    def bytes(self) -> int:
        return sum(t.untyped_storage().nbytes() for t in self.found.values())

    def __enter__(self):
        if self.on:
            self.hooks.__enter__()
        return self

    def __exit__(self, *error):
        if self.on:
            self.hooks.__exit__(*error)


def counted(work, make, n_inputs: int, device: torch.device, how: str) -> tuple[int, int]:
    """FLOPs of a forward and backward pass by torch's counter, and by plan."""
    half = HOW[how][1]
    model, loss_of = make(work, device)
    batch = tuple(torch.randint(2, work.vocab, (work.batch, work.length), device=device) for _ in range(n_inputs))
    with FlopCounterMode(display=False) as counter:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss = loss_of(*batch)
        loss.backward()
    whole = plan.total(plan.pieces(model.config, plan.Load(rows=work.batch, length=work.length)))
    return counter.get_total_flops(), whole.forward + whole.backward + whole.again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", help="workloads, with commas between them")
    parser.add_argument("--how", help=f"any of {', '.join(HOW)}, with commas between them")
    args = parser.parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.backends.cuda.matmul.allow_tf32 = True
    works = ON_GPU if on_gpu else ON_CPU
    names = args.only.split(",") if args.only else list(works)
    hows = args.how.split(",") if args.how else list(HOW) if on_gpu else ["eager float32"]
    where = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU threads"
    print(f"{where}, torch {torch.__version__}\n")
    for name in names:
        for how in hows:
            gc.collect()
            torch._dynamo.reset()
            if on_gpu:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            said, found = measured(*works[name], device, how)
            table = Table(title=f"{name}, {how}: MB", title_justify="left")
            for column in ("", "planned", "measured", "ratio"):
                table.add_column(column, justify="left" if not column else "right")
            for kind, value in found.items():
                table.add_row(kind, f"{said[kind] / 1e6:,.0f}", f"{value / 1e6:,.0f}", f"{said[kind] / value:.3f}")
            Console(width=100).print(table)
        if on_gpu:  # a CPU's fused attention is not in the counter's book
            counter, planned = counted(*works[name], device, "eager")
            print(f"FLOPs: planned {planned:.4e}, counted {counter:.4e}, ratio {planned / counter:.4f}\n", flush=True)


if __name__ == "__main__":
    main()
