"""Losses, each a (sum, count): whoever adds micro-batches or processes divides once, at the end.

The vocabulary is where a language model's memory goes: 32k positions times 50k tokens are 6.6 GB of float32 scores,
and as many gradients. :func:`token_loss` never holds them. It works through the positions a chunk at a time and, while
a chunk's scores are there, takes the gradient from them at once. :func:`two_pass_loss` does so for R-Drop, whose two
passes are scored side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.nn.linear import HALF, ROWS, add_product, autocast_dtype, by_onednn, filled_up, product
from regard.nn.products import HAS_TRITON

# A GPU's matrix units want rows that are a multiple of this wide; GPT-2 has 50,257 tokens.
ROW_MULTIPLE = {"cuda": 64}
# Scores at a time: what fills a GPU (0.8 GB in bfloat16), and what stays in a CPU's cache.
CHUNK = {"cuda": 2**28 + 2**27 + 2**24, "cpu": 2**22}


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
    (hidden,), targets, count = _asked([hidden], targets)
    how = _chunks(hidden, table, chunk), autocast_dtype(hidden) or hidden.dtype, torch.is_grad_enabled()
    return _ChunkedLoss.apply(hidden, table, bias, targets, smoothing, *how), count


def two_pass_loss(
    passes: Sequence[Float[Tensor, "*N C"]],
    table: Float[Tensor, "V C"],
    targets: Int[Tensor, "*N"],
    *,
    weight: float,
    bias: Float[Tensor, " V"] | None = None,
    smoothing: float = 0.0,
    chunk: int | None = None,
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """R-Drop (Liang et al. 2021): the mean of two passes' :func:`token_loss`, and ``weight`` times a quarter of how far
    apart they are, KL(first, second) + KL(second, first), summed over the targets; and their number.

    >>> hidden, table = torch.ones(3, 2), torch.randn(5, 2)
    >>> same, _ = two_pass_loss([hidden, hidden], table, torch.tensor([1, 4, -1]), weight=5.0)
    >>> torch.allclose(same, token_loss(hidden, table, torch.tensor([1, 4, -1]))[0])
    True
    """
    passes, targets, count = _asked(passes, targets)
    how = _chunks(passes[0], table, chunk), autocast_dtype(passes[0]) or passes[0].dtype, torch.is_grad_enabled()
    return _TwoPassLoss.apply(*passes, table, bias, targets, smoothing, weight, *how), count


def _asked(passes: Sequence[Tensor], targets: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """Vectors and targets a row each, and how many targets count. What is left out is not computed on a CPU, but for
    the rows that keep shapes few; elsewhere leaving it out would wait for the device, or change shapes."""
    rows, targets = [hidden.flatten(0, -2) for hidden in passes], targets.flatten()
    real = targets >= 0
    count = real.sum()
    if _on_cpu(targets) and count < len(targets):
        rows, targets = [hidden[real] for hidden in rows], targets[real]
    if _on_cpu(targets) and (autocast_dtype(rows[0]) or rows[0].dtype) in by_onednn():
        rows, targets = [filled_up(hidden) for hidden in rows], filled_up(targets, -1)
    return rows, targets, count


def _chunks(hidden: Tensor, table: Tensor, chunk: int | None) -> int:
    """How many positions are worked on at a time."""
    device = hidden.device.type
    if chunk is None:
        chunk = max(1, CHUNK.get(device, CHUNK["cpu"]) // table.shape[0])
    return _even(len(hidden), chunk, ROW_MULTIPLE.get(device, 1 if len(hidden) % ROWS else ROWS))


def _even(n: int, chunk: int, multiple: int) -> int:
    """Chunks of like size, whole multiples of what a device takes at once: none is a small rest.

    >>> _even(32_768, 9_000, 64)
    8192
    """
    pieces = max(1, -(-n // chunk))
    return min(chunk, max(1, -(-n // (pieces * multiple))) * multiple)


def _on_cpu(x: Tensor) -> bool:
    """Whether a CPU works on x, operation by operation."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _softmax_(scores: Float[Tensor, "n V"], real: Bool[Tensor, "n 1"]) -> tuple[Tensor, Float[Tensor, "n V"]]:
    """The logarithm of each row's sum of exponentials, and softmax in place of the scores; zeros where a row is not
    real, of which :func:`token_loss` leaves few on a CPU."""
    if not _on_cpu(scores):
        norm = scores.logsumexp(-1, keepdim=True)
        return norm, scores.sub_(torch.where(real, norm, torch.inf)).exp_()
    # torch's softmax takes each row once, while it is in the cache. The largest score and its share tell the sum.
    largest = scores.amax(-1, keepdim=True)
    torch.softmax(scores, -1, out=scores)
    norm = largest - scores.amax(-1, keepdim=True).log()
    return norm, scores if real.all() else scores.mul_(real)


def _scored(
    scores: Float[Tensor, "n W"],
    bias: Float[Tensor, " V"] | None,
    wanted: Int[Tensor, " n"],
    n_tokens: int,
    smoothing: float,
    wants_gradient: bool,
) -> tuple[Float[Tensor, "n 1"], Float[Tensor, "n 1"], Float[Tensor, "n W"]]:
    """The logarithm of each row's sum of exponentials, the score of its target, and the loss's gradient where somebody
    wants it. Takes the scores over."""
    dtype, full = scores.dtype, torch.promote_types(scores.dtype, torch.float32)
    scores = scores.to(full)  # fused away when compiled
    if bias is not None:
        scores[:, :n_tokens] += bias
    if scores.shape[1] > n_tokens:
        scores[:, n_tokens:] = -torch.inf
    real, wanted = wanted[:, None] >= 0, wanted[:, None].clamp_min(0)
    at_target = scores.gather(1, wanted)
    if not wants_gradient:
        return scores.logsumexp(-1, keepdim=True), at_target, scores
    norm, change = _softmax_(scores, real)
    # softmax minus the wanted distribution; zero where a target is left out.
    spread = smoothing / n_tokens
    if smoothing:
        change = change.sub_(spread * real.to(full))
    # The target's entry is put, not added: in bfloat16 a probability near 1 would swallow the difference.
    its_own = torch.where(real, (at_target - norm).exp() - (1 - smoothing) - spread, 0)
    if _on_cpu(change):  # where a scatter in bfloat16 would copy all of it, twice
        return norm, at_target, change.scatter_(1, wanted, its_own).to(dtype)
    return norm, at_target, change.to(dtype).scatter_(1, wanted, its_own.to(dtype))


def _has_kernel(scores: Tensor) -> bool:
    """Whether one kernel does all of that."""
    return scores.is_cuda and scores.dtype in HALF and HAS_TRITON


def _wide(table: Float[Tensor, "V C"], dtype: torch.dtype) -> Float[Tensor, "W C"]:
    """The table in that precision, with rows of zeros up to the multiple that the device wants."""
    return F.pad(table.to(dtype), (0, 0, 0, -len(table) % ROW_MULTIPLE.get(table.device.type, 1)))


class _ChunkedLoss(torch.autograd.Function):
    """Forward computes the loss and, if anybody will ask, the gradients with it; backward only scales them."""

    @staticmethod
    def forward(ctx, hidden, table, bias, targets, smoothing: float, chunk: int, dtype: torch.dtype, enabled: bool):
        wants_gradient = enabled and any(ctx.needs_input_grad[:3])  # which says nothing of torch.no_grad()
        n_tokens, wide = table.shape[0], _wide(table, dtype)
        x = hidden.to(dtype)
        full = torch.promote_types(dtype, torch.float32)
        total = hidden.new_zeros((), dtype=full)
        spread = smoothing / n_tokens
        sum_of_rows = table.sum(0).to(full) if smoothing else None
        d_hidden, d_table, d_bias = [], None, None
        # On a CPU all chunks' scores have one place: new memory each time costs as much as the product.
        place = x.new_empty(min(chunk, len(x)), len(wide)) if _on_cpu(x) else None
        for start in range(0, len(x), chunk):
            rows, wanted = x[start : start + chunk], targets[start : start + chunk]
            scores = product(rows, wide.T, out=None if place is None else place[: len(rows)])  # (n, V + extra)
            if wants_gradient and bias is None and _has_kernel(scores):
                from regard.train.kernels import cross_entropy

                norm, at_target = cross_entropy(scores, wanted, n_tokens, smoothing)
                change = scores
            else:
                norm, at_target, change = _scored(scores, bias, wanted, n_tokens, smoothing, wants_gradient)
            loss = norm - (1 - smoothing) * at_target
            if sum_of_rows is not None:
                sum_of_scores = rows.to(full) @ sum_of_rows[:, None]
                loss = loss - spread * (sum_of_scores if bias is None else sum_of_scores + bias.sum())
            total = total + torch.where(wanted[:, None] >= 0, loss, 0).sum()
            if wants_gradient:
                if bias is not None:
                    part = change[:, :n_tokens].sum(0, dtype=full)
                    d_bias = part if d_bias is None else d_bias + part
                d_hidden.append(product(change, wide))
                if d_table is None:
                    d_table = product(change.T, rows, dtype=full)
                else:
                    add_product(d_table, change.T, rows)
            del scores, change  # before the next are made
        if wants_gradient:
            whole = torch.cat(d_hidden).to(hidden.dtype) if d_hidden else torch.zeros_like(hidden)
            d_table = torch.zeros_like(table) if d_table is None else d_table[:n_tokens].to(table.dtype)
            ctx.save_for_backward(whole, d_table, d_bias)
        return total

    @staticmethod
    def backward(ctx, scale):  # type: ignore[override]
        d_hidden, d_table, d_bias = ctx.saved_tensors
        return *_scaled((d_hidden, d_table, d_bias), scale), None, None, None, None, None


def _scaled(gradients: Iterable[Tensor | None], scale: Tensor) -> list[Tensor | None]:
    return [None if g is None else g * scale.to(g.dtype) for g in gradients]


class _TwoPassLoss(torch.autograd.Function):
    """As _ChunkedLoss, of two passes: a chunk's scores of both are there at once."""

    @staticmethod
    def forward(
        ctx, first, second, table, bias, targets, smoothing: float, weight: float, chunk: int, dtype, enabled: bool
    ):
        wants_gradient = enabled and any(ctx.needs_input_grad[:4])
        n_tokens, wide = table.shape[0], _wide(table, dtype)
        full = torch.promote_types(dtype, torch.float32)
        total = first.new_zeros((), dtype=full)
        d_passes, d_table, d_bias = ([], []), torch.zeros_like(wide, dtype=full), torch.zeros_like(table[:, 0])
        for start in range(0, len(first), chunk):
            rows = [x[start : start + chunk].to(dtype) for x in (first, second)]
            wanted = targets[start : start + chunk, None]
            logs = [product(x, wide.T)[:, :n_tokens].to(full) for x in rows]
            logs = [(x if bias is None else x + bias).log_softmax(-1) for x in logs]
            is_target = torch.arange(n_tokens, device=wanted.device) == wanted
            right = torch.where(is_target, 1 - smoothing, 0.0) + smoothing / n_tokens  # (n, V), fused when compiled
            for x, said, other, its in zip(rows, logs, logs[::-1], d_passes, strict=True):
                share, apart = said.exp(), said - other
                divergence = (share * apart).sum(-1, keepdim=True)
                loss = weight / 2 * divergence - (right * said).sum(-1, keepdim=True)
                total = total + torch.where(wanted >= 0, loss, 0).sum() / 2
                if wants_gradient:
                    # Of a pass's scores by its own divergence, and by the other's, in which they stand too.
                    pull = share * (apart - divergence) + share - other.exp()
                    change = torch.where(wanted >= 0, (share - right + weight / 2 * pull) / 2, 0)
                    if bias is not None:
                        d_bias = d_bias + change.sum(0)
                    change = F.pad(change.to(dtype), (0, len(wide) - n_tokens))
                    its.append(product(change, wide))
                    add_product(d_table, change.T, x)
        if wants_gradient:
            whole = [torch.cat(its).to(first.dtype) if its else torch.zeros_like(first) for its in d_passes]
            d_bias = None if bias is None else d_bias.to(bias.dtype)
            ctx.save_for_backward(*whole, d_table[:n_tokens].to(table.dtype), d_bias)
        return total

    @staticmethod
    def backward(ctx, scale):  # type: ignore[override]
        return *_scaled(ctx.saved_tensors, scale), None, None, None, None, None, None
