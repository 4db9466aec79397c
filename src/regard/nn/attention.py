"""Attention: queries look into a soft key-value store (Bahdanau 2014, Luong 2015, Vaswani 2017).

A *score function* says how well a query fits a key; softmax over the keys turns scores into weights; the output is
the weighted sum of the values. One class serves self- and cross-attention, one head or many, every score function, and
Bahdanau's context attention over raw recurrent states, where every projection is the identity.

The dot-product scores run on torch's fused kernels, which never form the weights; packed texts on those for variable
lengths, which never look from one text into another. Who wants to see the weights asks for ``capture``: the layer then
also hands out what it attended with, and :meth:`Attended.weights` forms the weights of the chosen heads from that,
beside the fast path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.config import ConfigError, InputError, Score, must_divide
from regard.nn.cache import KeyValue
from regard.nn.linear import Linear, autocast_dtype
from regard.nn.masks import Lowered, Texts
from regard.nn.norms import RMSNorm
from regard.nn.positions import Rotation, rotate
from regard.nn.products import HALF, parted, trains_by_kernels


class Attended(NamedTuple):
    """What a layer attended with: its input x, and queries, keys and values after positions and before dropout."""

    x: Float[Tensor, "B T C"]
    q: Float[Tensor, "B H T D"]
    k: Float[Tensor, "B G S D"]
    v: Float[Tensor, "B G S E"]
    mask: Lowered
    scale: float
    w: Float[Tensor, "H D"] | None = None

    def weights(self, heads: Iterable[int] | int | None = None) -> Float[Tensor, "B heads T S"]:
        """The attention weights of the chosen heads (all by default): rows sum to one, or to zero where
        there was nothing to attend."""
        q, k, w = self.q, self.k, self.w
        chosen = None if heads is None else list(heads) if isinstance(heads, Iterable) else [heads]
        if chosen is not None and not chosen:
            raise InputError("heads ([]) must name at least one, or be left out for all")
        for head in chosen or ():
            if not hasattr(head, "__index__") or not 0 <= head < q.shape[1]:  # numpy's are numbers, too
                raise InputError(f"head {head} is out of range: this layer has {q.shape[1]}, 0 to {q.shape[1] - 1}")
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        mask = self.mask.dense(q.shape[2], k.shape[2], device=q.device, dtype=q.dtype)
        bias, alive = mask.bias, mask.alive
        if chosen is not None:
            q, k = _chosen(q, chosen, 1), _chosen(k, chosen, 1)
            w = None if w is None else _chosen(w, chosen, 0)
            bias = _chosen(bias, chosen, 1) if bias is not None and bias.shape[1] > 1 else bias
            alive = _chosen(alive, chosen, 1) if alive is not None and alive.shape[1] > 1 else alive
        scores = score(q, k, self.scale, w)
        return masked_softmax(scores, Lowered(mask.is_causal, bias, alive))


def _chosen(x: Tensor, heads: Sequence[int], axis: int) -> Tensor:
    # Slices, not a list as index: that would wait for a copy of the list to the device.
    return torch.stack([x.select(axis, head) for head in heads], dim=axis)


def score(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H S D"],
    scale: float,
    w: Float[Tensor, "H D"] | None = None,
) -> Float[Tensor, "B H T S"]:
    """Every query against every key: scaled dot products or, with ``w``, the additive w . tanh(q + k)."""
    half = q.dtype in (torch.float16, torch.bfloat16)
    if half and q.is_cuda and w is None and not torch.is_grad_enabled():
        # Half-width factors, float32 sums and scores: as the fused kernels have them.
        b, h = q.shape[:2]
        product = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(-2, -1), out_dtype=torch.float32)
        return product.mul_(scale).unflatten(0, (b, h))
    if half:
        q, k = q.float(), k.float()
    if w is None:
        return (q * scale) @ k.transpose(-2, -1)
    # All pairs at once are T x S x D numbers: this is why the dot product won.
    pairs = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (B, H, T, S, D)
    return (pairs @ w.to(q.dtype)[:, None, :, None]).squeeze(-1)


def masked_softmax(scores: Float[Tensor, "B H T S"], mask: Lowered) -> Float[Tensor, "B H T S"]:
    """Softmax over what may be attended; a row with nothing to attend is all zeros. Takes the scores over."""
    if mask.is_causal:
        t, s = scores.shape[-2:]
        # In place: these tensors are large, the scores are nobody else's, and no gradient needs them as they were.
        scores.masked_fill_(torch.ones(t, s, dtype=torch.bool, device=scores.device).triu_(1), -math.inf)
    elif mask.bias is not None and mask.bias.dtype == torch.bool:
        scores.masked_fill_(~mask.bias, -math.inf)
    elif mask.bias is not None:
        scores += mask.bias
    in_place = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    weights = torch.softmax(scores, dim=-1, out=scores) if in_place else scores.softmax(dim=-1)
    return weights if mask.alive is None else weights.masked_fill(~mask.alive, 0)


# Training on a GPU, by measurement (benchmarks/attention_kernels.py): which fused kernel is tried first.
SHORT = 64  # tokens
SHORT_TEXT = 512  # the longest of packed texts
OWN_TEXT = 256  # the same, for a kernel of our own
_IF_SHORT = [
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.MATH,
]
_IF_LONG = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def attend(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B G S D"],
    v: Float[Tensor, "B G S E"],
    mask: Lowered = Lowered(),
    *,
    scale: float,
    w: Float[Tensor, "H D"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T E"]:
    """The weighted sum of the values, by a fused kernel where the score is a dot product.

    >>> q, k = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    >>> attend(q, k, k, scale=1.0)
    tensor([[[[0.7311, 0.2689]]]])
    """
    groups = q.shape[1] // k.shape[1]
    # The kernel is asked for first: mostly there is none, and every layer of every step of decoding comes by here.
    has_short = _has_short(q, q.dtype, q.shape[3], v.shape[3]) and w is None and groups == 1 and q.dtype == k.dtype
    if has_short and _are_short(q.shape[2], k.shape[2], mask, dropout):
        return attend_short(q, k, v, mask, scale=scale)
    if mask.texts is not None:
        kernel = None if w is not None else text_kernel(q, k, v, mask.texts, dropout)
        if kernel is not None:
            return attend_texts(q, k, v, mask.texts, kernel, is_causal=mask.is_causal, scale=scale, dropout=dropout)
        mask = mask.dense(q.shape[2], k.shape[2], device=q.device, dtype=q.dtype)
    if mask.near is not None:
        return attend_near(q, k, v, mask, scale=scale, w=w, dropout=dropout)
    if k.dtype != q.dtype:  # a cache may be more exact than the model
        if mask.bias is not None and mask.bias.dtype != torch.bool:
            mask = mask._replace(bias=mask.bias.to(k.dtype))
        return attend(q.to(k.dtype), k, v, mask, scale=scale, w=w, dropout=dropout).to(q.dtype)
    if w is None and _few_fit(q, k, mask, groups, dropout):
        return attend_few(q, k, v, mask, scale=scale)
    if w is None and q.device.type == "cpu" and q.dtype == torch.bfloat16 and torch.is_grad_enabled():
        # A CPU's fused kernel takes ten times as long for a bfloat16 gradient as for a float32 one.
        bias = mask.bias if mask.bias is None or mask.bias.dtype == torch.bool else mask.bias.float()
        with torch.autocast("cpu", enabled=False):  # which would undo the casts
            out = attend(q.float(), k.float(), v.float(), mask._replace(bias=bias), scale=scale, dropout=dropout)
        return out.to(v.dtype)
    if w is None:
        fused = partial(F.scaled_dot_product_attention, q, k, v, mask.bias, dropout, mask.is_causal)
        if q.is_cuda and mask.bias is None and torch.is_grad_enabled():
            with sdpa_kernel(_IF_SHORT if q.shape[2] <= SHORT else _IF_LONG, set_priority=True):
                out = fused(scale=scale, enable_gqa=groups > 1)
        else:
            out = fused(scale=scale, enable_gqa=groups > 1)
        return out if mask.alive is None else out.masked_fill(~mask.alive, 0)
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    return F.dropout(masked_softmax(score(q, k, scale, w), mask), dropout).to(v.dtype) @ v


def attend_near(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B G T D"],
    v: Float[Tensor, "B G T E"],
    mask: Lowered,
    *,
    scale: float,
    w: Float[Tensor, "H D"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T E"]:
    """Queries that look only near by: each block of them is a row of its own, with the keys around it."""
    near, b, t = mask.near, q.shape[0], q.shape[2]
    assert near is not None
    assert mask.bias is not None
    spare = -t % near.size
    n = (t + spare) // near.size
    q = F.pad(q, (0, 0, 0, spare)).unflatten(2, (n, -1)).transpose(1, 2).flatten(0, 1)  # (B n, H, Q, D)
    k, v = (
        F.pad(x, (0, 0, near.before, near.after + spare)).unfold(2, near.keys, near.size)  # (B, G, n, D, K)
        .permute(0, 2, 1, 4, 3).flatten(0, 1)  # a head's width last in memory too, or no fused kernel takes it
        for x in (k, v)
    )  # fmt: skip
    bias, alive = (None if x is None else x.expand(b, -1, -1, -1).flatten(0, 1)[:, None] for x in mask[1:3])
    out = attend(q, k, v, Lowered(bias=bias, alive=alive), scale=scale, w=w, dropout=dropout)  # (B n, H, Q, E)
    return out.unflatten(0, (b, n)).transpose(1, 2).flatten(2, 3)[:, :, :t]


# A CPU's fused kernel is made for many queries; by measurement, these are few (docs/performance.md).
FEW = 16  # of a row, as a step of decoding has
FEW_TRAINED = 48  # of a row, and as many keys, where the gradient is wanted


def _few_fit(q: Tensor, k: Tensor, mask: Lowered, groups: int, dropout: float) -> bool:
    if q.device.type != "cpu" or dropout or torch.compiler.is_compiling():
        return False
    if torch.is_grad_enabled():
        few = max(q.shape[2], k.shape[2]) <= FEW_TRAINED
    else:
        few = q.shape[2] <= FEW and not mask.is_causal
    one_mask = groups == 1 or mask.bias is None or mask.bias.shape[1] == 1
    return few and one_mask and q.dtype in (torch.float32, torch.float64)


def attend_few(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B G S D"],
    v: Float[Tensor, "B G S E"],
    mask: Lowered,
    *,
    scale: float,
) -> Float[Tensor, "B H T E"]:
    """The weighted sum of the values for a few queries a row, on a CPU: two batched products take a third of the time
    of the fused kernel. Heads that share keys are more queries."""
    (b, h, t, _), (groups, s) = q.shape, k.shape[1:3]
    queries, keys = (q * scale).reshape(b * groups, -1, q.shape[3]), k.reshape(b * groups, s, -1)
    if (t == 1 and groups == h) or s > WIDE:  # keys first is the faster order then
        scores = torch.bmm(keys, queries.transpose(1, 2)).transpose(1, 2).contiguous()
    else:
        scores = torch.bmm(queries, keys.transpose(1, 2))
    weights = masked_softmax(scores.view(b, h, t, s), mask)  # dead rows become zeros
    weights, values = weights.view(b * groups, -1, s), v.reshape(b * groups, s, -1)
    if t <= 2 and groups == h and b * h * s >= MANY and values.dtype == torch.float32:
        return sum_rows(weights, values).view(b, h, t, -1)
    return torch.bmm(weights, values).view(b, h, t, -1)


WIDE = 48  # keys
MANY = 4_096  # values, from which looking up where they lie is the smaller part


def sum_rows(weights: Float[Tensor, "N T S"], rows: Float[Tensor, "N S E"]) -> Float[Tensor, "N T E"]:
    """T weighted sums of each N's S rows, by the kernel for bags of embeddings: for one or two it reads memory up to
    four times as fast as a CPU's batched product."""
    (n, t, s), e = weights.shape, rows.shape[2]
    rows = rows if rows.stride(1) == e and rows.stride(2) == 1 and rows.stride(0) % e == 0 else rows.contiguous()
    apart = rows.stride(0) // e  # the first rows of two bags
    table = rows.as_strided(((n - 1) * apart + s, e), (e, 1))
    places = torch.arange(n, dtype=torch.int32)[:, None, None] * apart + torch.arange(s, dtype=torch.int32)
    places, weights = places.expand(n, t, s).reshape(n * t, s), weights.reshape(n * t, s)
    return F.embedding_bag(places, table, per_sample_weights=weights, mode="sum").view(n, t, e)


# Attends from tokens (N, H, D) to tokens (M, G, D) and (M, G, E), each text by itself.
TextKernel = Callable[..., Tensor]


def attend_texts(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B G S D"],
    v: Float[Tensor, "B G S E"],
    texts: Texts,
    kernel: TextKernel,
    *,
    is_causal: bool,
    scale: float,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T E"]:
    """Attend within packed texts: the batch is flattened to its tokens, and back."""
    b, t = q.shape[0], q.shape[2]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B T, H, D)
    # A kernel refuses texts longer than all tokens together.
    texts = texts._replace(
        longest_query=min(texts.longest_query, q.shape[0]), longest_key=min(texts.longest_key, k.shape[0])
    )
    out = kernel(q, k, v, texts, is_causal=is_causal, scale=scale, dropout=dropout)
    return out.unflatten(0, (b, t)).transpose(1, 2)


def text_kernel(q: Tensor, k: Tensor, v: Tensor, texts: Texts, dropout: float = 0.0) -> TextKernel | None:
    """The fastest kernel for packed texts that takes these tensors; None where none does."""
    d, e = q.shape[-1], v.shape[-1]
    if not q.is_cuda or not q.dtype == k.dtype == v.dtype or q.dtype == torch.float64 or d % 8 or e % 8:
        return None
    longest = max(texts.longest_query, texts.longest_key)
    flash = q.dtype != torch.float32 and d == e and d <= 256
    if flash and (dropout or longest > SHORT_TEXT):
        return flash_texts
    return None if dropout else efficient_texts


def efficient_texts(
    q: Float[Tensor, "N H D"],
    k: Float[Tensor, "M G D"],
    v: Float[Tensor, "M G E"],
    texts: Texts,
    *,
    is_causal: bool,
    scale: float,
    dropout: float = 0.0,
) -> Float[Tensor, "N H E"]:
    """The memory-efficient kernel over variable lengths. Its dropout is not the same in both passes: not for that."""
    assert not dropout, "text_kernel gives another"
    groups, width = q.shape[1] // k.shape[1], q.shape[-1]
    k, v = (x if groups == 1 else x.repeat_interleave(groups, dim=1) for x in (k, v))
    # torch's shape function of the backward pass cannot take a scale (2.11 to 2.13): another than its own goes before.
    q = q if scale == width**-0.5 else q * (scale * width**0.5)
    # A view of the bounds, for self-attention has one tensor in both places, which torch.compile refuses.
    texts = texts._replace(key_bounds=texts.key_bounds.view(-1))
    return _EfficientTexts.apply(q[None], k[None], v[None], *texts, int(is_causal))[0]


class _EfficientTexts(torch.autograd.Function):
    """torch's own gradient, but for one argument: it would split a long text's keys among blocks, for which it clears
    a buffer of texts x heads x longest x 64 numbers. Packed texts are blocks enough."""

    @staticmethod
    def forward(ctx, q, k, v, query_bounds, key_bounds, longest_query, longest_key, causal):
        out, lse, *_ = torch.ops.aten._efficient_attention_forward(
            q, k, v, None, query_bounds, key_bounds, longest_query, longest_key, 0.0, causal, True
        )
        ctx.save_for_backward(q, k, v, query_bounds, key_bounds, out, lse)
        ctx.rest = longest_query, longest_key, causal
        return out

    @staticmethod
    def backward(ctx, *gradients):
        q, k, v, query_bounds, key_bounds, out, lse = ctx.saved_tensors
        longest_query, longest_key, causal = ctx.rest
        unread = lse  # the seed and offset of a dropout
        dq, dk, dv, _ = torch.ops.aten._efficient_attention_backward(
            *gradients, q, k, v, None, out, query_bounds, key_bounds, longest_query, longest_key, lse,
            0.0, unread, unread, causal, False, num_splits_key=1,
        )  # fmt: skip
        return dq, dk, dv, None, None, None, None, None


def flash_texts(
    q: Float[Tensor, "N H D"],
    k: Float[Tensor, "M G D"],
    v: Float[Tensor, "M G D"],
    texts: Texts,
    *,
    is_causal: bool,
    scale: float,
    dropout: float = 0.0,
) -> Float[Tensor, "N H D"]:
    """The flash kernel over variable lengths."""
    out, *_ = torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        texts.query_bounds,
        texts.key_bounds,
        texts.longest_query,
        texts.longest_key,
        dropout,
        is_causal,
        False,
        scale=scale,
    )
    return out


def attend_short(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H S D"],
    v: Float[Tensor, "B H S D"],
    mask: Lowered,
    *,
    scale: float,
) -> Float[Tensor, "B H T D"]:
    """Attend within short texts by a kernel of our own."""
    return attend_parts([x.transpose(1, 2)[:, :, None] for x in (q, k, v)], mask, scale=scale).transpose(1, 2)


def attend_parts(parts: list[Float[Tensor, "B _ _ H D"]], mask: Lowered, *, scale: float) -> Float[Tensor, "B T H D"]:
    """The same, packed texts or a row each, of queries, keys and values in the parts that products made them in: one
    for all three, queries and the other two, or each by itself."""
    from regard.nn import text_kernels

    (b, t), s = parts[0].shape[:2], parts[-1].shape[1]
    texts = mask.texts
    if texts is None:
        rows = torch.arange(b + 1, dtype=torch.int32, device=parts[0].device)
        texts = Texts(rows * t, rows * s, t, s)
    tokens = [part.flatten(0, 1) for part in parts]  # (B T, n, H, D)
    out, _ = text_kernels.attend_short(tokens, *texts, mask.is_causal, scale)
    return out.unflatten(0, (b, t))


def _are_short(t: int, s: int, mask: Lowered, dropout: float) -> bool:
    """Whether every text, packed or a row by itself, is one that our kernel is the fastest for."""
    if mask.texts is not None:
        return not dropout and max(mask.texts.longest_query, mask.texts.longest_key) <= OWN_TEXT
    return not dropout and mask.bias is None and mask.alive is None and max(t, s) <= SHORT


def _has_short(x: Tensor, dtype: torch.dtype, *widths: int) -> bool:
    """Whether there is that kernel where x is: for training in half precision, of heads that are all as wide."""
    if not trains_by_kernels(x) or dtype not in HALF:
        return False
    return len(set(widths)) == 1 and 16 <= widths[0] <= 128 and widths[0] & (widths[0] - 1) == 0


class Attention(nn.Module):
    """Multi-head attention with any score function; self-attention unless ``d_memory`` is given.

    ``d_query`` and ``d_memory`` are the widths that come in, ``d_values`` that of a separate source of values,
    ``d_out`` the width that goes out. ``n_kv_heads`` below n_heads shares keys and values among groups of heads.
    Projections named in ``identity`` ("q", "k", "v", "out") are left out: the input itself is used, cut into heads.

    >>> layer = Attention(12, n_heads=3)
    >>> out, _ = layer(torch.randn(2, 5, 12))
    >>> out.shape
    torch.Size([2, 5, 12])
    """

    def __init__(
        self,
        d_query: int,
        *,
        d_memory: int | None = None,
        d_values: int | None = None,
        d_out: int | None = None,
        n_heads: int = 1,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        d_value: int | None = None,
        score: Score = "scaled_dot",
        d_attention: int | None = None,
        bias: bool = True,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        identity: Sequence[str] = (),
    ):
        super().__init__()
        self.is_self = d_memory is None
        together = d_values is None  # keys and values come from one source
        d_memory = d_query if d_memory is None else d_memory
        d_values = d_memory if d_values is None else d_values
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads or n_heads
        self.dropout = dropout
        if not 0 <= dropout < 1:
            raise ConfigError([f"dropout ({dropout}) must be at least 0 and below 1"])

        if n_heads < 1 or self.n_kv_heads < 1:
            raise ConfigError([f"n_heads ({n_heads}) and n_kv_heads ({n_kv_heads}) must be at least 1"])
        # Width of one head of queries, keys and values. An identity projection takes what comes in.
        q = d_query // n_heads if "q" in identity else d_head or d_query // n_heads
        k = d_memory // self.n_kv_heads if "k" in identity else d_head or (q if "q" in identity else d_query // n_heads)
        v = d_values // self.n_kv_heads if "v" in identity else d_value or d_head or d_query // n_heads
        _check_widths(d_query, d_memory, d_values, n_heads, self.n_kv_heads, d_head, q, k, score, identity)
        self.widths = n_heads * q, self.n_kv_heads * k, self.n_kv_heads * v

        # One matrix per input: a single product projects to queries, keys and values together.
        self.fused = self.is_self and not set(identity) & {"q", "k", "v"}
        self.fused_kv = not self.fused and together and not set(identity) & {"k", "v"}
        if self.fused:
            self.qkv = Linear(d_query, sum(self.widths), bias)
        else:
            self.q = nn.Identity() if "q" in identity else Linear(d_query, self.widths[0], bias)
            if self.fused_kv:
                self.kv = Linear(d_memory, sum(self.widths[1:]), bias)
            else:
                self.k = nn.Identity() if "k" in identity else Linear(d_memory, self.widths[1], bias)
                self.v = nn.Identity() if "v" in identity else Linear(d_values, self.widths[2], bias)
        d_heads = n_heads * v
        self.out = nn.Identity() if "out" in identity else Linear(d_heads, d_out or d_query, bias)
        self.q_norm = RMSNorm(q, norm_eps) if qk_norm else None
        self.k_norm = RMSNorm(k, norm_eps) if qk_norm else None

        # The score function. Bilinear moves its matrix to the queries and is a dot product from there on; additive
        # prepares both sides, so that a cached key is ready to be added.
        self.scale = q**-0.5 if score == "scaled_dot" else 1.0
        self.score_q = self.score_k = self.score_w = None
        if score == "bilinear":
            self.score_q = nn.Parameter(torch.empty(n_heads, q, k))
        elif score == "additive":
            d = d_attention or q
            self.score_q = nn.Parameter(torch.empty(n_heads, q, d))
            self.score_k = nn.Parameter(torch.empty(self.n_kv_heads, k, d))
            self.score_w = nn.Parameter(torch.empty(n_heads, d))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the score function's own weights; the projections draw theirs."""
        for weight in (self.score_q, self.score_k, self.score_w):
            if weight is not None:
                bound = weight.shape[-1] ** -0.5 if weight.dim() == 2 else weight.shape[1] ** -0.5
                nn.init.uniform_(weight, -bound, bound)

    def queries(self, q: Float[Tensor, "B T d"], by: Rotation | None = None) -> Float[Tensor, "B H T D"]:
        """Projected queries as heads, normed, turned, and prepared for the score function."""
        heads = q.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, H, T, D)
        heads = heads if self.q_norm is None else self.q_norm(heads)
        heads = heads if by is None else rotate(heads, by)
        return heads if self.score_q is None else _each_head(heads, self.score_q)

    def keys(self, k: Float[Tensor, "B S d"], by: Rotation | None = None) -> Float[Tensor, "B G S D"]:
        """Projected keys as heads, likewise."""
        heads = k.unflatten(-1, (self.n_kv_heads, -1)).transpose(1, 2)  # (B, G, S, D)
        heads = heads if self.k_norm is None else self.k_norm(heads)
        heads = heads if by is None else rotate(heads, by)
        return heads if self.score_k is None else _each_head(heads, self.score_k)

    def values(self, v: Float[Tensor, "B S d"]) -> Float[Tensor, "B G S E"]:
        return v.unflatten(-1, (self.n_kv_heads, -1)).transpose(1, 2)  # (B, G, S, E)

    def remember(
        self, memory: Float[Tensor, "B S d"], values: Tensor | None = None, by: Rotation | None = None
    ) -> KeyValue:
        """Keys and values of a memory, to be computed once and attended to many times."""
        if self.fused_kv and values is None:
            k, v = parted(self.kv, memory, self.widths[1:])
        elif self.fused_kv:
            raise InputError("values: this layer projects keys and values together; give d_values to part them")
        else:
            k, v = self.k(memory), self.v(memory if values is None else values)
        return KeyValue(self.keys(k, by), self.values(v))

    def _comes_in_parts(
        self, x: Tensor, memory: Tensor | KeyValue | None, values: Tensor | None, mask: Lowered, dropout: float
    ) -> bool:
        """Whether the kernel for short texts takes what the products make as they make it: then it also gives their
        gradients so, which need not be put together."""
        fused = self.fused or (self.fused_kv and isinstance(memory, Tensor) and values is None)
        if not fused or self.q_norm is not None or self.score_q is not None or len(set(self.widths)) > 1:
            return False
        dtype, s = autocast_dtype(x) or x.dtype, memory.shape[1] if isinstance(memory, Tensor) else x.shape[1]
        return _are_short(x.shape[1], s, mask, dropout) and _has_short(x, dtype, self.widths[0] // self.n_heads)

    def forward(
        self,
        x: Float[Tensor, "B T C"],
        memory: Float[Tensor, "B S M"] | KeyValue | None = None,
        values: Float[Tensor, "B S N"] | None = None,
        *,
        mask: Lowered = Lowered(),
        rotation: Rotation | None = None,
        store: Callable[[KeyValue], KeyValue] | None = None,
        capture: bool = False,
    ) -> tuple[Float[Tensor, "B T O"], Attended | None]:
        """Attend from x to itself or to a memory; with ``capture`` also hand out what was attended with.

        ``store`` takes the new keys and values and returns all that may be attended to: a cache's layer.
        """
        if self.is_self and (memory is not None or values is not None):
            raise InputError("this layer attends to its own input; give d_memory to make one that takes a memory")
        if not self.is_self and memory is None:
            raise InputError("this layer attends to a memory; give one")
        if isinstance(memory, Tensor) and memory.shape[0] != x.shape[0]:
            raise InputError(f"the memory has {memory.shape[0]} rows, the queries {x.shape[0]}; they must be as many")
        dropout = self.dropout if self.training else 0.0
        untouched = rotation is None and store is None and not capture
        if untouched and self._comes_in_parts(x, memory, values, mask, dropout):
            layers = [(self.qkv, x)] if self.fused else [(self.q, x), (self.kv, memory)]
            heads = -1, self.n_heads, self.widths[0] // self.n_heads
            parts = [layer(given).unflatten(-1, heads) for layer, given in layers]
            return self.out(attend_parts(parts, mask, scale=self.scale).flatten(-2)), None
        if self.fused:
            q, k, v = parted(self.qkv, x, self.widths)
            q, kv = self.queries(q, rotation), KeyValue(self.keys(k, rotation), self.values(v))
        else:
            q = self.queries(self.q(x), rotation)
            if isinstance(memory, KeyValue):
                kv = memory
            else:
                kv = self.remember(x if memory is None else memory, values, rotation if self.is_self else None)
        if store is not None:
            kv = store(kv)
        out = attend(q, kv.k, kv.v, mask, scale=self.scale, w=self.score_w, dropout=dropout)
        attended = Attended(x, q, kv.k, kv.v, mask, self.scale, self.score_w) if capture else None
        return self.out(out.transpose(1, 2).flatten(-2)), attended


def _each_head(x: Float[Tensor, "B H T D"], weight: Float[Tensor, "H D N"]) -> Float[Tensor, "B H T N"]:
    # x @ weight would copy the weight for every row of the batch.
    return torch.einsum("bhtd,hdn->bhtn", x, weight.to(x.dtype))


def _check_widths(d_query, d_memory, d_values, n_heads, n_kv_heads, d_head, q, k, score, identity) -> None:
    """Widths that cannot work, all of them at once."""
    problems = [
        f"identity ({name!r}) must be among q, k, v, out" for name in identity if name not in ["q", "k", "v", "out"]
    ]
    if min(d_query, d_memory, d_values) < 1:
        problems.append(f"widths that come in ({d_query}, {d_memory}, {d_values}) must be at least 1")
    problems += must_divide("n_heads", n_heads, "n_kv_heads", n_kv_heads)
    if d_head is None or "q" in identity:
        problems += must_divide("d_query", d_query, "n_heads", n_heads)
    for name, width, part in (("d_memory", d_memory, "k"), ("d_values", d_values, "v")):
        if part in identity:
            problems += must_divide(name, width, "n_kv_heads", n_kv_heads)
    if score in ("dot", "scaled_dot") and q != k:
        problems.append(f"query heads ({q} wide) and key heads ({k} wide) must be equally wide for a {score} score")
    if score not in ("dot", "scaled_dot", "bilinear", "additive"):
        problems.append(f"score ({score!r}) must be one of dot, scaled_dot, bilinear, additive")
    if problems:
        raise ConfigError(problems)
