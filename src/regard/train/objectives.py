"""Losses, each a (sum, count): whoever adds micro-batches or processes divides once, at the end.

The vocabulary is where a language model's memory goes: 32k positions times 50k tokens are 6.6 GB of float32 scores,
and as many gradients. :func:`token_loss` never holds them. It works through the positions a chunk at a time and, while
a chunk's scores are there, takes the gradient from them at once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.nn.transformer import autocast_dtype

# A GPU's matrix units want rows that are a multiple of this wide; GPT-2 has 50,257 tokens.
ROW_MULTIPLE = {"cuda": 64}
# Scores at a time: what fills a GPU (0.8 GB in bfloat16), and what stays in a CPU's cache.
CHUNK = {"cuda": 2**28 + 2**27, "cpu": 2**21}


def token_loss(
    hidden: Float[Tensor, "*N C"],
    table: Float[Tensor, "V C"],
    targets: Int[Tensor, "*N"],
    *,
    bias: Float[Tensor, " V"] | None = None,
    smoothing: float = 0.0,
    chunk: int | None = None,
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Cross-entropy of ``softmax(hidden @ table.T + bias)``, summed over the targets, and their number.

    A negative target is left out. ``smoothing`` gives that share of the target's weight to all tokens
    alike, as torch's ``label_smoothing`` does. ``chunk`` is the number of positions worked on at a time.

    >>> hidden, table = torch.zeros(1, 3, 2), torch.zeros(5, 2)
    >>> total, count = token_loss(hidden, table, torch.tensor([[1, 4, -1]]))
    >>> round(total.item() / count.item(), 4)  # log 5
    1.6094
    """
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    device = hidden.device.type
    dtype = autocast_dtype(hidden) or hidden.dtype
    if chunk is None:
        chunk = max(1, CHUNK.get(device, CHUNK["cpu"]) // table.shape[0])
    real = targets >= 0
    count = real.sum()
    if _on_cpu(hidden) and count < len(targets):
        # What is left out is not computed. Elsewhere this would wait for the device, or change shapes.
        hidden, targets = hidden[real], targets[real]
    total = _ChunkedLoss.apply(hidden, table, bias, targets, smoothing, chunk, dtype, torch.is_grad_enabled())
    return total, count


def _on_cpu(x: Tensor) -> bool:
    """Whether a CPU works on x, operation by operation."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _softmax_(scores: Float[Tensor, "n V"], real: Bool[Tensor, "n 1"]) -> tuple[Tensor, Float[Tensor, "n V"]]:
    """The logarithm of each row's sum of exponentials, and softmax in place of the scores; zeros where a row is not
    real, of which :func:`token_loss` leaves none on a CPU."""
    if not _on_cpu(scores):
        norm = scores.logsumexp(-1, keepdim=True)
        return norm, scores.sub_(torch.where(real, norm, torch.inf)).exp_()
    # torch's softmax takes each row once, while it is in the cache. The largest score and its share tell the sum.
    largest = scores.amax(-1, keepdim=True)
    torch.softmax(scores, -1, out=scores)
    return largest - scores.amax(-1, keepdim=True).log(), scores


class _ChunkedLoss(torch.autograd.Function):
    """Forward computes the loss and, if anybody will ask, the gradients with it; backward only scales them."""

    @staticmethod
    def forward(ctx, hidden, table, bias, targets, smoothing: float, chunk: int, dtype: torch.dtype, enabled: bool):
        wants_gradient = enabled and any(ctx.needs_input_grad[:3])  # which says nothing of torch.no_grad()
        n_tokens = table.shape[0]
        extra = -n_tokens % ROW_MULTIPLE.get(table.device.type, 1)
        wide = F.pad(table.to(dtype), (0, 0, 0, extra))  # (V + extra, C)
        x = hidden.to(dtype)
        full = torch.promote_types(dtype, torch.float32)
        total = hidden.new_zeros((), dtype=full)
        spread = smoothing / n_tokens
        sum_of_rows = table.sum(0).to(full) if smoothing else None
        d_hidden, d_table, d_bias = [], None, None
        for start in range(0, len(x), chunk):
            rows, wanted = x[start : start + chunk], targets[start : start + chunk, None]
            scores = (rows @ wide.T).to(full)  # (n, V + extra); the cast is fused away when compiled
            if bias is not None:
                scores[:, :n_tokens] += bias
            if extra:
                scores[:, n_tokens:] = -torch.inf
            real, wanted = wanted >= 0, wanted.clamp_min(0)
            at_target = scores.gather(1, wanted)
            norm, change = _softmax_(scores, real) if wants_gradient else (scores.logsumexp(-1, keepdim=True), scores)
            loss = norm - (1 - smoothing) * at_target
            if sum_of_rows is not None:
                sum_of_scores = rows.to(full) @ sum_of_rows[:, None]
                loss = loss - spread * (sum_of_scores if bias is None else sum_of_scores + bias.sum())
            total = total + torch.where(real, loss, 0).sum()
            if wants_gradient:
                # softmax minus the wanted distribution; zero where a target is left out.
                if smoothing:
                    change = change.sub_(spread * real.to(full))
                # The target's entry is put, not added: in bfloat16 a probability near 1 would swallow the difference.
                at_target = torch.where(real, (at_target - norm).exp() - (1 - smoothing) - spread, 0)
                if _on_cpu(change):  # where a scatter in bfloat16 would copy all of it, twice
                    change = change.scatter_(1, wanted, at_target).to(dtype)
                else:
                    change = change.to(dtype).scatter_(1, wanted, at_target.to(dtype))
                if bias is not None:
                    part = change[:, :n_tokens].sum(0, dtype=full)
                    d_bias = part if d_bias is None else d_bias + part
                d_hidden.append(change @ wide)
                if d_table is not None and dtype == full:
                    d_table.addmm_(change.T, rows)
                else:
                    part = (change.T @ rows).to(full)
                    d_table = part if d_table is None else d_table + part
            del scores, change  # before the next are made
        if wants_gradient:
            whole = torch.cat(d_hidden).to(hidden.dtype) if d_hidden else torch.zeros_like(hidden)
            d_table = torch.zeros_like(table) if d_table is None else d_table[:n_tokens].to(table.dtype)
            ctx.save_for_backward(whole, d_table, d_bias)
        return total

    @staticmethod
    def backward(ctx, scale):  # type: ignore[override]
        d_hidden, d_table, d_bias = ctx.saved_tensors
        grads = [None if g is None else g * scale.to(g.dtype) for g in (d_hidden, d_table, d_bias)]
        return *grads, None, None, None, None, None
