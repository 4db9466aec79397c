"""The laws that decoding and batching rest on, held against a model of one's own, on text of one's own.

The tests prove them for small models of every shape. A checkpoint can still break one: a kernel of this machine,
weights that overflow, a mask that was forgotten. :func:`check` takes a minute and says which law holds, how near, and
where it breaks: the first layer whose output is another.

2. Cached decoding equals uncached, token by token.
3. Padding, its side and its amount change nothing that is real.
4. The future does not change the past; and order counts where there are positions, and only there.
5. A batch equals its rows one by one: greedy, beam, and drawn with a seed.
6. A greedy search finds what the definition finds, and a beam's score is the model's own score of that sequence.

Laws 2 to 4 are about the network, and are held to float64, where a rounding cannot hide behind a mistake; 5 and 6 about
the model as it is used. Two continuations that are nearer to each other than 1e-5 are a tie, which roundings decide:
ties are counted, not failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from regard.config import InputError, Stack, Tokens
from regard.decode.search import Decoding, search
from regard.decode.ways import Found
from regard.encode import rows as reading
from regard.files import called
from regard.model import Model, load
from regard.nn import Layout, Transformer
from regard.nn.blocks import Block
from regard.nn.outputs import Encoded

EXACT = 1e-9  # of the largest value, in float64
NEAR = 1e-3  # nats, of a whole sequence in float32
TIE = 1e-5  # nats, between two continuations
LONGEST = 48  # tokens of a text that are looked at
WRITTEN = 16  # tokens that a search writes
PAD = 7  # tokens of padding
TEXTS = (
    "The agreement on the European Economic Area was signed in August 1992.",
    "It was too tired.",
    "A small dog sleeps near the old door, and nobody knows why it came.",
    "Yes.",
    "Two men in blue shirts are talking to a woman.",
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One comparison: how many values, the worst difference, how much is allowed, and where it began."""

    law: int
    what: str
    compared: int
    worst: float
    allowed: float
    where: str = ""
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.worst <= self.allowed

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "holds": self.holds}


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was found, law by law."""

    model: str
    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        return all(finding.holds for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"model": self.model, "holds": self.holds, "findings": [one.to_dict() for one in self.findings]}

    def __rich__(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name, side in (("", "left"), ("law", "left"), ("compared", "right"), ("worst", "right"), ("", "left")):
            table.add_column(name, justify=side)  # type: ignore[arg-type]
        for one in self.findings:
            mark = Text("holds", "green") if one.holds else Text("BROKEN", "bold red")
            told = "; ".join(part for part in (one.where and f"first at {one.where}", one.note) if part)
            table.add_row(mark, f"{one.law}  {one.what}", f"{one.compared:,}", f"{one.worst:.1e}", Text(told))
        n = sum(not one.holds for one in self.findings)
        end = f"{n} of {len(self.findings)} are broken" if n else f"all {len(self.findings)} hold"
        return Group(table, Text(f"\n{self.model}: {end}"))


@torch.inference_mode()
def check(model: Model, texts: Sequence[str] = TEXTS) -> Checked:
    """Hold the laws against a model, on texts or, of one over images, on noise.

    >>> from regard import presets, recipe
    >>> from regard.data.tokenizer import Tokenizer
    >>> tokens = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> config = recipe.model_config({"preset": "tiny_decoder"}, vocab_size=len(tokens))
    >>> found = check(Model(Transformer(config), "generate", tokens), ["a dog", "two cats sleep"])
    >>> found.holds, sorted({finding.law for finding in found.findings})
    (True, [2, 3, 4, 5, 6])
    """
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise InputError("nothing to check a model on; give at least one text")
    net, exact = model.net, _in_float64(model)
    findings: list[Finding] = []
    if net.config.decoder is not None and model.has_tokenizer:
        given = _Given.of(model, texts)
        findings += [_cached(exact, given), *_padding_of_decoder(exact, given), _causal(exact, given)]
        findings += _batches_of_searches(net, given)
        findings += _searches(net, given)
    if _reads_text(net):
        rows = _read(model, texts)
        findings += [*_padding_of_encoder(exact, rows), *_order(exact, rows), _batch_of_rows(exact, rows)]
    elif net.config.encoder is not None:
        findings.append(_batch_of_images(exact))
    return Checked(
        model=called(model.path) if model.path else "this model",
        findings=tuple(sorted(findings, key=lambda one: one.law)),
    )


def _in_float64(model: Model) -> Transformer:
    """The same network, its weights as wide as they go: from the files, for what is used may be laid out otherwise."""
    if model.path is not None:
        return load(model.path, device=str(model.device), precision="float32", packed=False).net.double()
    wide = Transformer(model.config)
    wide.load_state_dict(model.net.state_dict())
    return wide.to(model.device, torch.float64).eval().requires_grad_(False)


# ---------------------------------------------------------------------------------------
# What is given


@dataclass
class _Given:
    """Rows of ids: what a decoder begins with, what its encoder reads where it has one, and what may be written."""

    prompts: list[list[int]]
    sources: list[list[int]] | None
    end: list[int]
    never: list[int]
    vocabulary: int
    written: int  # tokens that are written after a prompt

    @classmethod
    def of(cls, model: Model, texts: Sequence[str]) -> _Given:
        limit = getattr(model.config.decoder, "position_limit", None) or LONGEST + WRITTEN
        written = min(WRITTEN, limit // 2)
        if model.config.encoder is not None:
            prompts = [[model.tokenizer.start]] * len(texts)
            sources = [row[0].tolist() for row in _read(model, texts)] if _reads_text(model.net) else None
        else:
            prompts = [
                [*model.prefix, *model.tokenizer.encode(text)][: min(LONGEST, limit - written)] for text in texts
            ]
            sources = None
        known = model.config.last.input.vocab_size  # type: ignore[union-attr]
        return cls(prompts, sources, model.endings, model.never, known, written)

    def memory(self, net: Transformer, which: Sequence[int]) -> Encoded | None:
        if net.config.encoder is None:
            return None
        if self.sources is None:  # it looks at images
            return net.encode(_noise(net, len(self.prompts))[list(which)])
        ids, lengths = _padded([self.sources[i] for i in which])
        return net.encode(ids.to(_place(net)), Layout(lengths=lengths.to(_place(net))))

    def search(self, net: Transformer, which: Sequence[int], how: Decoding) -> list[Found]:
        """The best of each row, all in one batch."""
        ids, lengths = _padded([self.prompts[i] for i in which])
        options: dict[str, Any] = {"end": self.end, "limits": self.written, "how": how, "never": self.never}
        same = len(set(lengths.tolist())) == 1
        found = search(
            net,
            ids.to(_place(net)),
            None if same else lengths.to(_place(net)),
            memory=self.memory(net, which),
            requests=list(which),
            **options,
        )
        return [best for best, *_ in found]

    def row(self, net: Transformer, i: int) -> tuple[Tensor, Any]:
        """A row that a decoder reads whole, long enough to be told something by, and its memory."""
        ids = self.prompts[i]
        if len(ids) < 5:  # what it writes itself goes on
            [written] = self.search(net, [i], Decoding(beam=1, min_length=self.written))
            ids = [*ids, *written.ids]
        return torch.tensor([ids], device=_place(net)), self.memory(net, [i])


def _read(model: Model, texts: Sequence[str]) -> list[Tensor]:
    """Rows as an encoder reads them."""
    cut = [ids[:LONGEST] for ids in reading.tokenizer(model).encode_batch(list(texts))]
    return [torch.tensor([reading.make_row(model, ids).ids], device=model.device) for ids in cut]


def _reads_text(net: Transformer) -> bool:
    return net.config.encoder is not None and isinstance(net.config.encoder.input, Tokens)


def _noise(net: Transformer, n: int) -> Tensor:
    """Images, or vectors, of no meaning."""
    reads: Any = net.config.encoder.input  # type: ignore[union-attr]
    shape = (reads.d_vector,) if reads.kind == "vector" else (reads.channels, reads.image_size, reads.image_size)
    noise = torch.randn(n, *shape, generator=torch.Generator().manual_seed(1))
    return noise.to(_place(net), next(net.parameters()).dtype)


def _padded(rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Rows side by side, padded with a token like any other; and their lengths."""
    return reading.rectangle(rows, pad=rows[0][0]), torch.tensor([len(row) for row in rows])


def _place(net: Transformer) -> torch.device:
    return next(net.parameters()).device


# ---------------------------------------------------------------------------------------
# Where a difference begins


@contextmanager
def _outputs(net: Transformer) -> Iterator[dict[str, list[Tensor]]]:
    """Within, what comes out of every block, by its name, from below upwards."""
    held: dict[str, list[Tensor]] = {}

    def hook(name: str):
        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            held.setdefault(name, []).append((output[0] if isinstance(output, tuple) else output).detach())

        return keep

    blocks = {name: module for name, module in net.named_modules() if isinstance(module, Block)}
    handles = [module.register_forward_hook(hook(_told(name))) for name, module in blocks.items()]
    try:
        yield held
    finally:
        for handle in handles:
            handle.remove()


def _told(name: str) -> str:
    """decoder.stack.blocks.3 as a person says it."""
    tower, *_, number = name.split(".")
    return f"{tower} layer {number}"


def _worst(a: Tensor, b: Tensor) -> float:
    """The largest difference, in parts of the largest value; what is no number is infinitely far."""
    apart = (a - b).abs().max() / a.abs().max().clamp_min(1)
    return float(apart) if bool(apart.isfinite()) else float("inf")


def _compared(
    law: int, what: str, pairs: Sequence[tuple[Tensor, Tensor]], places=(), allowed: float = EXACT
) -> Finding:
    """A finding over pairs of tensors; ``places`` are names with pairs of their own, of what led there."""
    worst = max((_worst(a, b) for a, b in pairs), default=0.0)
    where = ""
    if worst > allowed:
        where = next((name for name, a, b in places if a.shape != b.shape or _worst(a, b) > allowed), "the head")
    return Finding(
        law=law, what=what, compared=sum(a.numel() for a, _ in pairs), worst=worst, allowed=allowed, where=where
    )


# ---------------------------------------------------------------------------------------
# Laws 2 to 4, of the network


def _cached(net: Transformer, given: _Given) -> Finding:
    pairs, places = [], []
    for i in range(len(given.prompts)):
        ids, memory = given.row(net, i)
        with _outputs(net) as whole:
            wanted = net.logits(net.decode(ids, memory).hidden)
        cache = net.start(memory, batch_size=None if memory is not None else 1, max_len=ids.shape[1])
        with _outputs(net) as steps:
            got = [net.logits(net.decode(ids[:, t : t + 1], cache=cache).hidden) for t in range(ids.shape[1])]
        pairs.append((wanted, torch.cat(got, 1)))
        places += [(name, whole[name][0], torch.cat(steps[name], 1)) for name in whole if name in steps]
    return _compared(2, "cached decoding equals uncached", pairs, places)


def _padding_of_decoder(net: Transformer, given: _Given) -> Iterator[Finding]:
    rows = [given.row(net, i) for i in range(len(given.prompts))]
    runs = [(ids, lambda ids, layout, m=memory: net.decode(ids, m, layout=layout).hidden) for ids, memory in rows]
    return _padding(net, runs, getattr(net.config.decoder, "position_limit", None), "what is written")


def _padding_of_encoder(net: Transformer, rows: Sequence[Tensor]) -> Iterator[Finding]:
    runs = [(ids, lambda ids, layout: net.encode(ids, layout).hidden) for ids in rows]
    return _padding(net, runs, getattr(net.config.encoder, "position_limit", None), "what is read")


def _padding(
    net: Transformer, runs: Sequence[tuple[Tensor, Callable[..., Tensor]]], limit: int | None, what: str
) -> Iterator[Finding]:
    for side in ("right", "left"):
        pairs, places = [], []
        for given, run in runs:
            ids = given if limit is None else given[:, : max(0, limit - PAD)]
            if not ids.numel():
                continue
            padding, n = ids[:, :1].expand(1, PAD), ids.shape[1]  # a token like any other
            with _outputs(net) as alone:
                wanted = run(ids, Layout())
            together = torch.cat([ids, padding] if side == "right" else [padding, ids], 1)
            with _outputs(net) as padded:
                got = run(together, _beside(n, side, ids.device))
            at = slice(0, n) if side == "right" else slice(PAD, None)
            pairs.append((wanted, got[:, at]))
            places += [(name, alone[name][0], padded[name][0][:, at]) for name in alone]
        if pairs:
            yield _compared(3, f"padding on the {side} of {what} changes nothing", pairs, places)


def _beside(n: int, side: str, device: torch.device) -> Layout:
    lengths = torch.tensor([n], device=device)
    return (
        Layout(lengths=lengths) if side == "right" else Layout(lengths=lengths, starts=torch.tensor([PAD]).to(device))
    )


def _causal(net: Transformer, given: _Given) -> Finding:
    """Bit for bit: what comes later is not even multiplied."""
    pairs, places = [], []
    for i in range(len(given.prompts)):
        ids, memory = given.row(net, i)
        half = max(1, ids.shape[1] // 2)
        other = ids.clone()
        other[:, half:] = (ids[:, half:] + 1) % given.vocabulary
        with _outputs(net) as before:
            wanted = net.decode(ids, memory).hidden[:, :half]
        with _outputs(net) as after:
            got = net.decode(other, memory).hidden[:, :half]
        pairs.append((wanted, got))
        places += [(name, before[name][0][:, :half], after[name][0][:, :half]) for name in before]
    return _compared(4, "the future does not change the past", pairs, places, allowed=0.0)


def _order(net: Transformer, rows: Sequence[Tensor]) -> Iterator[Finding]:
    encoder = net.config.encoder
    if not isinstance(encoder, Stack) or encoder.causal or encoder.windows:
        return
    rows = [ids for ids in rows if len(set(ids[0].tolist())) > 2]
    if not rows:
        return
    # Moved round, not turned round: ALiBi's distances are the same backwards.
    pairs = [(net.encode(ids).hidden.roll(1, 1), net.encode(ids.roll(1, 1)).hidden) for ids in rows]
    found = _compared(4, "without positions, order does not count", pairs)
    if encoder.positions.kind == "none":
        yield found
        return
    # With them it must: the nearest of the texts is told, and it must not be near.
    least = min(_worst(a, b) for a, b in pairs)
    worst = 0.0 if least > 1e3 * EXACT else 1.0
    note = f"moved round by one, a text changes by at least {least:.1e}"
    yield Finding(
        law=4, what="with positions, order counts", compared=found.compared, worst=worst, allowed=0, note=note
    )


# ---------------------------------------------------------------------------------------
# Laws 5 and 6, of the model as it is used

WAYS = {
    "greedy": Decoding(beam=1),
    "beam 4": Decoding(beam=4),
    "drawn": Decoding(temperature=0.8, top_p=0.95, seed=7),
}


def _batches_of_searches(net: Transformer, given: _Given) -> Iterator[Finding]:
    everyone = list(range(len(given.prompts)))
    for name, how in WAYS.items():
        together, backwards = given.search(net, everyone, how), given.search(net, everyone[::-1], how)[::-1]
        worst, ties, tokens = 0.0, 0, 0
        for i in everyone:
            [alone] = given.search(net, [i], how)
            tokens += len(alone.ids)
            for other in (together[i], backwards[i]):
                apart = abs(alone.logprob - other.logprob)
                if alone.ids == other.ids:
                    worst = max(worst, apart)
                elif not how.temperature and abs(alone.score - other.score) < TIE:
                    ties += 1
                else:
                    worst = float("inf")
        note = f"{ties} ties within {TIE:.0e}" if ties else ""
        what = f"a batch equals its rows one by one, {name}"
        yield Finding(law=5, what=what, compared=tokens, worst=worst, allowed=NEAR, note=note)


def _searches(net: Transformer, given: _Given) -> Iterator[Finding]:
    worst, ties, tokens, wrong = 0.0, 0, 0, ""
    for i in range(len(given.prompts)):
        [found] = given.search(net, [i], WAYS["greedy"])
        ids, gap = _greedy_by_definition(net, given, i)
        tokens += len(ids)
        if ids != found.ids:
            ties += gap < TIE
            worst = worst if gap < TIE else 1.0
            wrong = wrong or f"text {i + 1}"
    note = f"{ties} ties within {TIE:.0e}" if ties else ""
    where = wrong if worst else ""
    what = "beam 1 is what is most likely, step by step"
    yield Finding(law=6, what=what, compared=tokens, worst=worst, allowed=0, where=where, note=note)
    apart, tokens = 0.0, 0
    for i in range(len(given.prompts)):
        [found] = given.search(net, [i], WAYS["beam 4"])
        tokens += len(found.ids)
        apart = max(apart, abs(found.logprob - _own_score(net, given, i, found)))
    what = "a beam's score is the model's own of that sequence"
    yield Finding(law=6, what=what, compared=tokens, worst=apart, allowed=NEAR)


def _greedy_by_definition(net: Transformer, given: _Given, i: int) -> tuple[list[int], float]:
    """The likeliest token again and again, everything computed anew each time; and the closest that another came."""
    ids, memory, nearest = list(given.prompts[i]), given.memory(net, [i]), float("inf")
    written: list[int] = []
    while len(written) < given.written:
        row = torch.tensor([ids + written], device=_place(net))
        scores = net.logits(net.decode(row, memory).hidden[:, -1:])[0, 0].float().log_softmax(-1)
        scores[given.never] = -torch.inf
        first, second = scores.topk(2).values.tolist()
        nearest = min(nearest, first - second)
        chosen = int(scores.argmax())
        if chosen in given.end:
            break
        written.append(chosen)
    return written, nearest


def _own_score(net: Transformer, given: _Given, i: int, found: Found) -> float:
    """By the model alone; of several ends that it may have, the one that comes nearest to what was found."""
    prompt, memory = given.prompts[i], given.memory(net, [i])
    told: list[float] = []
    for after in [[*found.ids, end] for end in given.end] if found.ended else [found.ids]:
        row = torch.tensor([prompt + after], device=_place(net))
        scores = net.logits(net.decode(row, memory).hidden).float().log_softmax(-1)[0]
        which = torch.tensor(after, device=row.device)
        told.append(float(scores[len(prompt) - 1 : -1].gather(1, which[:, None]).sum()))
    return min(told, key=lambda one: abs(one - found.logprob))


def _batch_of_rows(net: Transformer, rows: Sequence[Tensor]) -> Finding:
    ids, lengths = _padded([row[0].tolist() for row in rows])
    together = net.encode(ids.to(_place(net)), Layout(lengths=lengths.to(_place(net)))).hidden
    pairs = [(net.encode(row).hidden, together[i : i + 1, : row.shape[1]]) for i, row in enumerate(rows)]
    return _compared(5, "a batch equals its texts one by one, as they are read", pairs)


def _batch_of_images(net: Transformer) -> Finding:
    noise = _noise(net, 3)
    with _outputs(net) as together:
        wanted = net.encode(noise).hidden
    places, pairs = [], []
    for i in range(3):
        with _outputs(net) as alone:
            pairs.append((wanted[i : i + 1], net.encode(noise[i : i + 1]).hidden))
        places += [(name, together[name][0][i : i + 1], alone[name][0]) for name in together]
    return _compared(5, "a batch equals its images one by one", pairs, places)
