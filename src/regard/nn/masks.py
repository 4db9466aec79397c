"""Every mask is built here: who may attend to whom. True means "may attend", everywhere.

A :class:`Mask` says what is allowed (causal, a window, lengths, documents, a prefix, or a tensor of the
caller's own) and stays small. :func:`lower` turns it, once per forward pass, into what the kernel wants: nothing,
the causal flag, variable lengths, blocks of neighbours, or a dense tensor, the last resort, for it bars the fastest
kernels. Padding is told by lengths, never by looking for a pad id.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.config import InputError


class Layout(NamedTuple):
    """Where the real tokens of a batch are; every field is optional.

    ``lengths`` and ``starts``: row b is real from starts[b] to starts[b] + lengths[b], so that padding may
    stand on either side. ``positions``: position ids, where they don't simply count the real tokens.
    ``documents``: packed sequences attend only within one id. ``prefix``: the first so many
    tokens of a row may be seen by all (prefix language model). ``allowed``: a mask of one's own.

    ``bounds`` and ``longest`` say again what ``documents`` say, in the form that a GPU's kernels take: text i of the
    batch, flattened row by row, goes from bounds[i] to bounds[i + 1], and none is longer than longest. The last bound
    may be repeated, so that every batch has as many. Text i of a target attends to text i of its source, and neither
    is empty unless both are.

    >>> documents = torch.tensor([[4, 4, 4, 7, 7], [2, 2, 2, 2, 2]])
    >>> layout = Layout(documents=documents, bounds=torch.tensor([0, 3, 5, 10, 10], dtype=torch.int32), longest=5)
    >>> layout.check(2, 5)
    """

    lengths: Int[Tensor, " B"] | None = None
    starts: Int[Tensor, " B"] | None = None
    positions: Int[Tensor, "B T"] | None = None
    documents: Int[Tensor, "B T"] | None = None
    prefix: Int[Tensor, " B"] | None = None
    allowed: Bool[Tensor, "..."] | None = None
    bounds: Int[Tensor, " N"] | None = None
    longest: int | None = None

    def check(self, batch: int, length: int, n_positions: int | None = None, n_heads: int = 1) -> None:
        """Refuse what does not fit a (batch, length) input, before anything runs on tensors.

        Values are read only where that costs no device wait.
        """
        for name, shape in _FIELDS.items():
            value, wanted = getattr(self, name), (batch, length)[: len(shape)]
            if value is not None and value.dtype not in (torch.int64, torch.int32):
                raise InputError(f"{name} of dtype {value.dtype} must be int64 or int32")
            if value is not None and tuple(value.shape) != wanted:
                raise InputError(f"{name} {_shape(value)} must have the shape {wanted}, {' by '.join(shape)}")
        rows = f"rows are {length} long"
        if self.lengths is not None:
            check_range("length", self.lengths, length + 1, rows)
        if self.starts is not None:
            check_range("start", self.starts, length + 1, rows)
        if self.lengths is not None and self.starts is not None:
            check_range("start + length", self.starts + self.lengths, length + 1, rows)
        if self.prefix is not None:
            check_range("prefix", self.prefix, length + 1, rows)
            if self.lengths is not None and _on_cpu(self.lengths) and bool((self.prefix > self.lengths).any()):
                raise InputError("prefix reaches past a row's real tokens; it must be at most the row's length")
        if self.positions is not None and n_positions is not None:
            check_range("position", self.positions, n_positions, f"this model has {n_positions}")
        if self.allowed is not None:
            _check_allowed(self.allowed, batch, length, length, n_heads)
        if self.bounds is not None or self.longest is not None:
            _check_bounds(self, batch, length)

    def position_ids(self, length: int, device: torch.device) -> Int[Tensor, "B T"]:
        """Positions that count the real tokens from 0, whichever side the padding is on."""
        if self.positions is not None:
            return self.positions
        slots = torch.arange(length, device=device)[None]  # (1, T)
        return slots if self.starts is None else (slots - self.starts[:, None]).clamp_min(0)

    def real(self, length: int, device: torch.device) -> Bool[Tensor, "B T"] | None:
        """Which positions hold real tokens; None where all do."""
        if self.lengths is None and self.starts is None:
            return None
        slots = torch.arange(length, device=device)[None]
        start, end = self.span(length)
        real = slots < end[:, None]
        return real if start is None else real & (slots >= start[:, None])

    def span(self, length: int) -> tuple[Int[Tensor, " B"] | None, Int[Tensor, " B"]]:
        """First real position (None for 0) and the one after the last, per row."""
        if self.lengths is None:
            assert self.starts is not None, "a span is asked of a layout that has one"
            return self.starts, torch.full_like(self.starts, length)
        return self.starts, self.lengths if self.starts is None else self.starts + self.lengths


_FIELDS = {
    "lengths": ("rows",),
    "starts": ("rows",),
    "prefix": ("rows",),
    "positions": ("rows", "positions"),
    "documents": ("rows", "positions"),
}


def check_range(what: str, values: Tensor, n: int, because: str) -> None:
    """Refuse a value outside 0 to n - 1, where looking costs no device wait."""
    if not _on_cpu(values):
        return
    low, high = (int(v) for v in torch.aminmax(values))
    if low < 0 or high >= n:
        raise InputError(f"{what} {low if low < 0 else high} is out of range: {because}, 0 to {n - 1}")


def _on_cpu(values: Tensor) -> bool:
    return values.device.type == "cpu" and values.numel() > 0


def as_layout(given: Layout | Tensor | None) -> Layout:
    """A layout as it is; a plain tensor is taken as the lengths; None is a full batch."""
    if isinstance(given, Layout):
        return given
    if given is not None and not isinstance(given, Tensor):
        raise InputError(f"layout ({given!r}) must be a Layout, or a tensor of lengths")
    return Layout() if given is None else Layout(lengths=given)


class Texts(NamedTuple):
    """Packed texts by their bounds in a flattened batch: text i of the queries attends to text i of the keys."""

    query_bounds: Int[Tensor, " N"]  # int32
    key_bounds: Int[Tensor, " N"]
    longest_query: int
    longest_key: int


class Mask(NamedTuple):
    """Who may attend: a query at slot i to a key at slot j, if every part that is given agrees.

    ``slots`` places the queries among the keys (a cache moves them); by default query t stands at slot t. Where a cache
    has ``lanes``, ``seen`` says which slots belong to a query's past.
    ``slopes`` is ALiBi's: a penalty on distance rather than a ban. ``texts`` say the same as the documents.
    """

    causal: bool = False
    window: int = 0  # radius; 0 is dense
    starts: Tensor | None = None  # (B,) first key that may be attended
    ends: Tensor | None = None  # (B,) one past the last
    prefix: Tensor | None = None  # (B,)
    query_documents: Tensor | None = None  # (B, T)
    key_documents: Tensor | None = None  # (B, S)
    texts: Texts | None = None
    slots: Tensor | None = None  # (B, T)
    lanes: int = 1  # so many slots stand side by side at each position
    seen: Tensor | None = None  # (B | 1, T | 1, S) slots of a cache, a query's own among them
    allowed: Tensor | None = None  # (B | 1, H | 1, T, S)
    slopes: Tensor | None = None  # (H,)


class Near(NamedTuple):
    """Blocks of ``size`` queries; each looks at the keys of its own block, and so many ``before`` and ``after`` it."""

    size: int
    before: int
    after: int

    @property
    def keys(self) -> int:
        return self.before + self.size + self.after


class Lowered(NamedTuple):
    """A mask as the attention kernel takes it.

    ``bias`` is boolean (True = may attend) or, with ALiBi, added to the scores. ``alive`` marks the
    queries with something to attend; a dead row is let see one key, so that no kernel
    meets an empty softmax, and its output is then set to zero. Where there are ``texts``, each is attended by itself;
    where queries look only ``near`` by, bias and alive are those of each block (B | 1, blocks, size, keys). ``mask`` is
    what these two were lowered from: :meth:`dense` is for whatever cannot take them.
    """

    is_causal: bool = False
    bias: Tensor | None = None  # (B | 1, H | 1, T | 1, S)
    alive: Tensor | None = None  # (B | 1, H | 1, T | 1, 1)
    texts: Texts | None = None
    near: Near | None = None
    mask: Mask | None = None

    def dense(self, t: int, s: int, *, device: torch.device, dtype: torch.dtype) -> Lowered:
        """The same without texts or blocks, for t queries over s keys."""
        return self if self.mask is None else lower_densely(self.mask, t, s, device=device, dtype=dtype)


def self_mask(
    layout: Layout,
    *,
    causal: bool,
    slopes: Tensor | None = None,
    slots: Tensor | None = None,
    lanes: int = 1,
    seen: Tensor | None = None,
) -> Mask:
    """The mask of a sequence that attends to itself."""
    starts, ends = _key_span(layout)
    # A prefix counts real tokens; a mask counts slots.
    prefix = layout.prefix if layout.prefix is None or starts is None else layout.prefix + starts
    return Mask(
        causal=causal,
        starts=starts,
        ends=ends,
        prefix=prefix,
        query_documents=layout.documents,
        key_documents=layout.documents,
        texts=_texts(layout, layout),
        slots=slots,
        lanes=lanes,
        seen=seen,
        allowed=layout.allowed,
        slopes=slopes,
    )


def cross_mask(memory: Layout, layout: Layout = Layout()) -> Mask:
    """The mask of a decoder that attends to a memory: every real position of it, of its own document."""
    starts, ends = _key_span(memory)
    if (layout.documents is None) != (memory.documents is None):
        raise InputError("documents: both source and target must say theirs, or neither")
    return Mask(
        starts=starts,
        ends=ends,
        query_documents=layout.documents,
        key_documents=memory.documents,
        texts=_texts(layout, memory),
    )


def _texts(queries: Layout, keys: Layout) -> Texts | None:
    if queries.bounds is None or keys.bounds is None or queries.longest is None or keys.longest is None:
        return None
    here, there = len(queries.bounds) - 1, len(keys.bounds) - 1
    if here != there:
        raise InputError(f"bounds: the target has {here} texts, the source {there}; they must be as many")
    return Texts(queries.bounds, keys.bounds, queries.longest, keys.longest)


def _key_span(layout: Layout) -> tuple[Tensor | None, Tensor | None]:
    if layout.lengths is None:
        return layout.starts, None
    return layout.span(0)


def allowed(mask: Mask, t: int, s: int, device: torch.device | None = None) -> Bool[Tensor, "B H T S"] | None:
    """The mask written out for t queries over s keys, broadcastable; None where everything is allowed.

    >>> allowed(Mask(causal=True, window=1), 3, 3)[0, 0].int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 1, 1]], dtype=torch.int32)
    """
    keys = torch.arange(s, device=device)  # (S,)
    parts = _by_place(mask, _apart(mask, t, keys), keys)
    if mask.query_documents is not None and mask.key_documents is not None:
        parts.append(mask.query_documents[:, None, :, None] == mask.key_documents[:, None, None, :])
    if mask.seen is not None:
        parts.append(mask.seen[:, None])
    if mask.allowed is not None:
        parts.append(_four_axes(mask.allowed))
    return reduce(and_, parts) if parts else None


def _by_place(mask: Mask, apart: Int[Tensor, "B _ T S"], keys: Int[Tensor, "..."]) -> list[Bool[Tensor, "..."]]:
    """What order, window and padding say of queries so far behind keys at these slots: all of it must hold."""
    parts: list[Tensor] = []
    if mask.causal:
        past = apart >= 0
        if mask.prefix is not None:
            past = past | (keys < mask.prefix[:, None, None, None])
        parts.append(past)
    if mask.window:
        parts.append(apart.abs() <= mask.window)
    if mask.starts is not None:
        parts.append(keys >= mask.starts[:, None, None, None])
    if mask.ends is not None:
        parts.append(keys < mask.ends[:, None, None, None])
    return parts


def lower(mask: Mask, t: int, s: int, *, device: torch.device, dtype: torch.dtype) -> Lowered:
    """What the kernel wants for t queries over s keys."""
    if _only_order(mask) and mask.texts is not None and mask.ends is None and device.type == "cuda":
        return Lowered(is_causal=mask.causal, texts=mask.texts, mask=mask)
    near = neighbours(mask, t, s)
    if near is not None:
        return lower_near(mask, near, t, device)
    return lower_densely(mask, t, s, device=device, dtype=dtype)


def _only_order(mask: Mask) -> bool:
    """Whether nothing is told but order, documents and where rows end."""
    others = (mask.starts, mask.prefix, mask.slots, mask.allowed, mask.slopes)
    return mask.window == 0 and all(part is None for part in others)


BLOCK = 64  # queries, at least: smaller ones waste a kernel


def neighbours(mask: Mask, t: int, s: int) -> Near | None:
    """The blocks of a windowed mask over its own sequence, where they leave out half the keys or more: then the cost
    grows with the length, not with its square."""
    others = (mask.prefix, mask.slots, mask.seen, mask.allowed, mask.slopes)
    if not mask.window or t != s or any(part is not None for part in others):
        return None
    near = Near(max(BLOCK, mask.window), mask.window, 0 if mask.causal else mask.window)
    return near if 2 * near.keys <= s else None


def lower_near(mask: Mask, near: Near, t: int, device: torch.device) -> Lowered:
    """The mask of each block. What stands before the first token and after the last is nobody's."""
    n = -(-t // near.size)
    queries = torch.arange(n * near.size, device=device).view(1, n, -1, 1)  # (1, n, Q, 1)
    keys = torch.arange(near.keys, device=device) - near.before + queries[:, :, :1]  # (1, n, 1, K)
    may = reduce(and_, _by_place(mask, queries - keys, keys), (keys >= 0) & (keys < t))
    if mask.query_documents is not None and mask.key_documents is not None:
        here, there = (
            _blocks(documents, near._replace(before=before, after=after), t)
            for documents, before, after in (
                (mask.query_documents, 0, 0),
                (mask.key_documents, near.before, near.after),
            )
        )
        may = may & (here[..., None] == there[:, :, None])
    alive = may.any(-1, keepdim=True)
    may = may | (~alive & (torch.arange(near.keys, device=device) == 0))
    # Queries after the last are cut off again: only padding, of which lengths tell, can leave one with nothing to see.
    return Lowered(bias=may, alive=None if mask.starts is mask.ends is None else alive, near=near, mask=mask)


def _blocks(values: Int[Tensor, "B T"], near: Near, t: int) -> Int[Tensor, "B n K"]:
    spare = -t % near.size
    return torch.nn.functional.pad(values, (near.before, near.after + spare)).unfold(1, near.keys, near.size)


def lower_densely(mask: Mask, t: int, s: int, *, device: torch.device, dtype: torch.dtype) -> Lowered:
    """The same for a kernel that takes neither texts nor blocks."""
    if _only_order(mask) and mask.query_documents is None:
        if mask.causal:
            # Padding on the right is in no real query's past, so lengths change nothing.
            return Lowered(is_causal=True)
        if mask.ends is None:
            return Lowered()
    may = allowed(mask, t, s, device)
    alive = None
    # Over its own sequence a query sees at least itself, unless lengths or a caller's mask say otherwise.
    own = t <= s and (mask.causal or mask.window > 0) and mask.query_documents is mask.key_documents
    if may is not None and not (own and mask.starts is mask.ends is mask.allowed is None):
        alive = may.any(-1, keepdim=True)
        may = may | (~alive & (torch.arange(s, device=device) == 0))
    if mask.slopes is None:
        return Lowered(bias=may if may is None or not _in_every_layer(device) else as_added(may, dtype), alive=alive)
    bias = _alibi(mask, t, s, device, torch.promote_types(dtype, torch.float32)).to(dtype)
    return Lowered(bias=bias if may is None else bias.masked_fill(~may, float("-inf")), alive=alive)


def _in_every_layer(device: torch.device) -> bool:
    """Whether a kernel would turn a boolean mask into what it adds, in each layer again: not where all is computed in
    one precision, as in decoding, and it can be done before."""
    return device.type == "cuda" and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cuda")


def as_added(may: Bool[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
    """A boolean mask as it is added to scores.

    >>> as_added(torch.tensor([True, False]), torch.float32)
    tensor([0., -inf])
    """
    return may.to(dtype).log_()


def side_by_side(mask: Mask, place: slice | None, s: int) -> Mask:
    """The same said more simply, where the rows of a cache all stand at one place and look at s slots: kernels are
    faster for it.

    >>> side_by_side(Mask(causal=True, slots=torch.tensor([[4], [4]])), slice(4, 5), 5) == Mask()
    True
    """
    if place is None or place.stop != s or mask.lanes > 1 or mask.seen is not None:
        return mask
    if place.start == 0:  # query t at slot t
        return mask._replace(slots=None)
    alone = place.stop == place.start + 1 and mask.window == 0 and mask.slopes is None
    return mask._replace(slots=None, causal=False, prefix=None) if alone else mask  # it sees all there is


def lower_memory(layout: Layout, memory: Float[Tensor, "B S C"]) -> Lowered:
    """The mask of a memory that is attended to again and again, by any number of queries a row: lowered once."""
    lowered = lower(cross_mask(layout), 1, memory.shape[1], device=memory.device, dtype=memory.dtype)
    if lowered.alive is None or torch.compiler.is_compiling() or not _on_cpu(lowered.alive):
        return lowered
    return lowered._replace(alive=None) if bool(lowered.alive.all()) else lowered


def _alibi(mask: Mask, t: int, s: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "B H T S"]:
    assert mask.slopes is not None
    apart = _apart(mask, t, torch.arange(s, device=device)).abs()
    return -mask.slopes.to(dtype)[:, None, None] * apart


def _apart(mask: Mask, t: int, keys: Int[Tensor, " S"]) -> Int[Tensor, "B 1 T S"]:
    """How far each key stands behind each query; negative ahead of it."""
    queries = torch.arange(t, device=keys.device)[None] if mask.slots is None else mask.slots  # (B | 1, T)
    if mask.lanes > 1:
        queries, keys = queries // mask.lanes, keys // mask.lanes
    return queries[:, None, :, None] - keys


def _four_axes(given: Tensor) -> Tensor:
    """A caller's mask, (T, S), (B, T, S) or (B, H, T, S), as four axes."""
    return given[None, None] if given.dim() == 2 else given[:, None] if given.dim() == 3 else given


def _check_allowed(given: Tensor, batch: int, t: int, s: int, n_heads: int) -> None:
    if given.dtype != torch.bool:
        raise InputError(f"mask has dtype {given.dtype}; it must be boolean, True where attending is allowed")
    fits = (
        given.dim() in (2, 3, 4)
        and tuple(given.shape[-2:]) == (t, s)
        and (given.dim() < 3 or given.shape[0] in (1, batch))
        and (given.dim() < 4 or given.shape[1] in (1, n_heads))
    )
    if not fits:
        wanted = f"({t}, {s}), ({batch}, {t}, {s}) or ({batch}, {n_heads}, {t}, {s})"
        raise InputError(f"mask {_shape(given)} must have shape {wanted}: queries by keys")


def _check_bounds(layout: Layout, batch: int, length: int) -> None:
    bounds, longest, documents = layout.bounds, layout.longest, layout.documents
    if bounds is None or longest is None or documents is None:
        raise InputError("bounds, longest and documents belong together: give all three, or documents alone")
    if bounds.dtype != torch.int32:
        raise InputError(f"bounds of dtype {bounds.dtype} must be int32, as kernels take them")
    if bounds.dim() != 1 or len(bounds) < 2:
        raise InputError(f"bounds {_shape(bounds)} must be one row: 0, and then where each text ends")
    if not isinstance(longest, int) or longest < 1:
        raise InputError(f"longest ({longest!r}) must be a number of tokens, at least 1")
    if not _on_cpu(bounds) or not _on_cpu(documents):
        return
    first, last, sizes = int(bounds[0]), int(bounds[-1]), bounds.diff()
    if (first, last) != (0, batch * length):
        raise InputError(f"bounds run from {first} to {last}; they must cover all {batch * length} tokens, from 0")
    if int(sizes.min()) < 0:
        raise InputError("bounds fall; each must be at least the one before it")
    if int(sizes.max()) > longest:
        raise InputError(f"a text of {int(sizes.max())} tokens is longer than longest ({longest})")
    begins = torch.zeros(batch * length, dtype=torch.bool)
    begins[bounds[:-1][sizes > 0].long()] = True
    wrong = begins != _first_of_document(documents).flatten()
    if bool(wrong.any()):
        at = int(wrong.int().argmax())
        raise InputError(f"bounds and documents disagree at row {at // length}, position {at % length}")


def _shape(value: Tensor) -> str:
    return f"of shape {tuple(value.shape)}"


def document_positions(documents: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Position ids that start again with every document of a packed row.

    >>> document_positions(torch.tensor([[4, 4, 4, 7, 7]]))
    tensor([[0, 1, 2, 0, 1]])
    """
    slots = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    return slots - torch.where(_first_of_document(documents), slots, 0).cummax(dim=1).values


def _first_of_document(documents: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    first = torch.ones_like(documents, dtype=torch.bool)
    first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return first
