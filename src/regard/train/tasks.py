"""What the tasks ask of a model: a loss that is a sum and a count, scores on held-out data, and samples to look at.

The tasks differ in their batches (:mod:`regard.data.batches`) more than in their loss: what the head scores decides it.
A vocabulary head's loss never forms all scores at once (:mod:`regard.train.objectives`). Labels that are numbers have
the squared error; preferences compare two answers with what a reference model thought of them (:func:`preferred`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import Recurrent
from regard.data.augment import treated, untouched
from regard.data.batch import Vectors
from regard.data.batches import Batch
from regard.data.captions import Matches
from regard.data.store import DataDir
from regard.decode import Decoding
from regard.decode.search import search
from regard.evaluate.retrieval import recalls
from regard.model import Model
from regard.nn import Transformer
from regard.nn.codes import Coded, CodesHead
from regard.nn.heads import ContrastiveHead, VocabularyHead
from regard.nn.masks import Layout
from regard.train.objectives import token_loss, two_pass_loss


def hidden(model: Transformer, batch: Batch) -> Tensor:
    """What reaches the head."""
    match model.config.shape:
        case "encoder-decoder":
            assert batch.target is not None
            memory = model.encode(batch.inputs, batch.layout)
            return model.decode(batch.target, memory, layout=batch.target_layout).hidden
        case "decoder":
            return model.decode(batch.inputs, layout=batch.layout).hidden
    encoded = model.encode(batch.inputs, batch.layout, segments=batch.segments)
    return encoded.hidden if model.mix is None else model.mix(encoded.layers)


def _picked(out: Tensor, batch: Batch) -> Tensor:
    """The vectors that are scored: all of them, or those the batch names."""
    return out if batch.at is None else out.flatten(0, 1)[batch.at]


def _logits(model: Transformer, batch: Batch) -> Tensor:
    """All scores of what is wanted at once, for whom the loss is not enough."""
    out = _picked(hidden(model, batch), batch)
    return model.logits(out, batch.layout) if batch.at is None else model.logits(out[None])[0]


def loss(model: Transformer, batch: Batch, smoothing: float = 0.0, beta: float = 0.0) -> tuple[Tensor, Tensor]:
    """The loss summed over what is wanted, and how many that are."""
    head, batch = model.head, batch.ready(model_dtype(model))
    if batch.reference is not None:
        return _preference_loss(*preferred(model, batch), beta)
    if isinstance(head, ContrastiveHead):
        return _contrastive_loss(model, batch)
    if batch.wanted.is_floating_point():
        return _squared_error(_logits(model, batch), batch.wanted)
    if isinstance(head, CodesHead):
        found, _, error = _painted(model, batch)
        return _over_images(error + head.distances(found), batch)
    if not isinstance(head, VocabularyHead):
        return _label_loss(_logits(model, batch), batch, smoothing)
    out = hidden(model, batch)
    said = _scored(model, head, out, batch)
    total, count = token_loss(said, model.vocabulary_table(), batch.wanted, bias=head.bias, smoothing=smoothing)
    return total if batch.pair is None else total + _pair_loss(model, batch, out), count


def _scored(model: Transformer, head: VocabularyHead, out: Tensor, batch: Batch) -> Tensor:
    """The vectors that the vocabulary's rows are held against."""
    vectors = _picked(out, batch)
    if vectors.shape[-1] != model.config.d_scored:  # two directions, each scored by itself
        vectors = vectors.unflatten(-1, (2, -1))
    return head.transformed(vectors)


def _cross_entropy(logits: Tensor, wanted: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    total = F.cross_entropy(
        logits.flatten(0, -2).float(), wanted.flatten(), ignore_index=-1, reduction="sum", label_smoothing=smoothing
    )
    return total, (wanted >= 0).sum()


def _label_loss(logits: Tensor, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """The cross-entropy of labels; of an image that was mixed, of both of its labels by their shares."""
    if batch.second is None or batch.share is None:
        return _cross_entropy(logits, batch.wanted, smoothing)
    real = batch.wanted >= 0
    each = [
        F.cross_entropy(logits.float(), wanted, ignore_index=-1, reduction="none", label_smoothing=smoothing)
        for wanted in (batch.wanted, torch.where(real, batch.second, -1))
    ]
    return (batch.share * each[0] + (1 - batch.share) * each[1]).sum(), real.sum()


def model_dtype(model: Transformer) -> torch.dtype:
    """What its weights are in, and so what it reads pixels in."""
    return next(model.parameters()).dtype


def _painted(model: Transformer, batch: Batch) -> tuple[Coded, Tensor, Tensor]:
    """The codes of images, what is painted from them, (B, K, Y, X), and how far that is from them, (B,): the squared
    error of a pixel in deviations."""
    assert isinstance(model.head, CodesHead)
    found = model.head.coded(hidden(model, batch))
    painted = model.head.painted(found).float()
    return found, painted, (painted - batch.inputs.float()).square().mean((1, 2, 3))


def _over_images(each: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    real = batch.wanted >= 0
    return torch.where(real, each, 0).sum(), real.sum()


def _painting_tally(model: Transformer, batch: Batch, std: Tensor) -> dict[str, Tensor]:
    """The loss, the error of pixels from 0 to 1, and how often each code was used."""
    assert isinstance(model.head, CodesHead)
    found, painted, error = _painted(model, batch)
    total, count = _over_images(error + model.head.distances(found), batch)
    of_one = ((painted - batch.inputs.float()) * std[:, None, None]).square().mean((1, 2, 3))
    real = (batch.wanted >= 0)[:, None].expand_as(found.ids).flatten()
    used = torch.zeros(len(found.codes), dtype=torch.float64, device=real.device)
    used.index_add_(0, found.ids.flatten(), real.double())
    return {"loss": total, "count": count, "error": _over_images(of_one, batch)[0], "used": used}


def _squared_error(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    real = ~wanted.isnan()
    return torch.where(real, logits[:, 0].float() - wanted, 0).square().sum(), real.sum()


def preferred(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """How much likelier each chosen answer is to the model than the rejected one, beyond what the reference thought,
    as a difference of logarithms, (N,); and which of the pairs count."""
    assert batch.at is not None
    assert batch.reference is not None
    logits = _logits(model, batch).float()
    said = -F.cross_entropy(logits, batch.wanted, ignore_index=-1, reduction="none")
    row, asked = batch.at // batch.inputs.shape[1], (batch.wanted >= 0).to(said.dtype)
    chosen, rejected = said.new_zeros(len(batch.inputs)).index_add(0, row, said).chunk(2)
    counts = said.new_zeros(len(batch.inputs)).index_add(0, row, asked)[: len(chosen)] > 0
    return chosen - rejected - batch.reference, counts


def _preference_loss(margin: Tensor, counts: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """DPO (Rafailov et al. 2023): -log sigmoid of beta times the margin."""
    return torch.where(counts, -F.logsigmoid(beta * margin), 0).sum(), counts.sum()


# ---------------------------------------------------------------------------------------
# Pairs of images and texts


def vectors(model: Transformer, batch: Batch) -> Vectors:
    """Both sides of pairs as unit vectors."""
    batch = batch.ready(model_dtype(model))
    assert batch.target is not None
    pair = model(batch.inputs, batch.target, target_layout=batch.target_layout)
    return Vectors(_wide(pair.first), _wide(pair.text), batch.wanted >= 0)


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _contrastive_loss(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """CLIP's: which text of an update belongs to each image, and which image to each text.

    A pair is held against all others of an update, so its loss cannot be a sum over parts. A part knows what the others
    look like (``beside``), and works out the loss of the whole with its own vectors in their place: its gradient is
    then what the whole one's has by way of them, and those of all parts add up to it. What all parts have in common is
    the scale, of which each takes its share; and of the loss itself, its own pairs'."""
    assert batch.target is not None
    pair = model(batch.inputs, batch.target, target_layout=batch.target_layout)
    own, scale = Vectors(_wide(pair.first), _wide(pair.text), batch.wanted >= 0), _wide(pair.scale)
    if batch.beside is None:
        return _pairs_loss(own, scale).sum() / 2, own.real.sum()
    assert batch.place is not None
    at = batch.place + torch.arange(len(own.real), device=own.real.device)
    whole = Vectors(*(all.index_copy(0, at, mine) for all, mine in zip(batch.beside, own, strict=True)))
    share = own.real.sum().to(scale.dtype) / whole.real.sum()
    each = _pairs_loss(whole, scale.detach() + share * (scale - scale.detach()))
    total = each.sum() / 2
    mine = each[:, at].sum().detach() / 2
    return mine + total - total.detach(), own.real.sum()


def _pairs_loss(given: Vectors, scale: Tensor) -> Tensor:
    """Of each image, and of each text, (2, N); 0 where there is no pair."""
    with torch.autocast(given.first.device.type, enabled=False):
        logits = scale * given.first @ given.text.T
    logits = logits.masked_fill(given.real ^ given.real[:, None], float("-inf"))  # rows of nothing stay finite
    right = torch.where(given.real, torch.arange(len(logits), device=logits.device), -1)
    sides = [F.cross_entropy(side, right, ignore_index=-1, reduction="none") for side in (logits, logits.T)]
    return torch.stack(sides)


def retrieval(model: Transformer, batches: Matches, device: torch.device) -> dict[str, float]:
    """The loss of held-out pairs, a batch at a time, and how often the right one is found among all of them."""
    head = model.head
    assert isinstance(head, ContrastiveHead)
    images, texts, total = [], [], torch.zeros((), dtype=torch.float64, device=device)
    scale = _wide(head.log_scale.exp().clamp(max=100))
    for step in range(len(batches)):
        found = vectors(model, batches.part(step).to(device))
        total += _pairs_loss(found, scale).sum() / 2
        images.append(found.first)
    for rows in np.array_split(np.arange(len(batches.columns["of"])), len(batches)):
        ids, layout = batches.texts(rows)
        layout = Layout(lengths=None if layout.lengths is None else layout.lengths.to(device))
        texts.append(_wide(head.embed_text(model.encode_text(ids.to(device), layout).hidden, layout)))
    of = torch.from_numpy(np.asarray(batches.columns["of"], np.int64)).to(device)
    return {"loss": float(total) / batches.n, **recalls(torch.cat(images), torch.cat(texts), of)}


def _pair_loss(model: Transformer, batch: Batch, out: Tensor) -> Tensor:
    """Whether two halves belong together. A pair weighs as much as the tokens that its row is asked for, so that both
    tasks count alike, and the sum stays a sum over rows."""
    assert batch.at is not None
    assert batch.pair is not None
    assert model.pair_head is not None
    of_pairs = F.cross_entropy(model.pair_head(out, batch.layout).float(), batch.pair, reduction="none")
    row, asked = batch.at // batch.inputs.shape[1], (batch.wanted >= 0).to(of_pairs.dtype)
    return of_pairs @ torch.zeros_like(of_pairs).index_add(0, row, asked)


def r_drop_loss(model: Transformer, batch: Batch, smoothing: float, weight: float) -> tuple[Tensor, Tensor]:
    """The loss of two passes with different dropout, and how far apart what they say is (Liang et al. 2021)."""
    head, batch = model.head, batch.ready(model_dtype(model))
    if isinstance(head, VocabularyHead):
        said = [_scored(model, head, hidden(model, batch), batch) for _ in range(2)]
        how = {"weight": weight, "bias": head.bias, "smoothing": smoothing}
        return two_pass_loss(said, model.vocabulary_table(), batch.wanted, **how)
    passes = [_logits(model, batch).flatten(0, -2).float() for _ in range(2)]
    wanted = batch.wanted.flatten()
    losses = [_label_loss(logits, batch, smoothing) for logits in passes]
    a, b = (logits.log_softmax(-1) for logits in passes)
    # KL(a, b) + KL(b, a), as one product.
    apart = torch.where(wanted >= 0, ((a.exp() - b.exp()) * (a - b)).sum(-1), 0).sum()
    return (losses[0][0] + losses[1][0] + weight * apart / 2) / 2, losses[0][1]


class Objective(nn.Module):
    """A model and its loss as one module: what torch's engines for compiling and for many processes wrap."""

    def __init__(self, model: Transformer, smoothing: float = 0.0, r_drop: float = 0.0, beta: float = 0.0):
        super().__init__()
        self.model, self.smoothing, self.r_drop, self.beta = model, smoothing, r_drop, beta

    def forward(self, batch: Batch, tallied: bool = False, looks: bool = False) -> Tensor | dict[str, Tensor] | Vectors:
        if tallied:
            return tally(self.model, batch, self.beta)
        if looks:
            return vectors(self.model, batch)
        if self.r_drop:
            return r_drop_loss(self.model, batch, self.smoothing, self.r_drop)[0]
        return loss(self.model, batch, self.smoothing, self.beta)[0]


# ---------------------------------------------------------------------------------------
# Held-out data


def tally(model: Transformer, batch: Batch, beta: float = 0.0) -> dict[str, Tensor]:
    """Loss, number of predictions and what the scores need beside them, each summed over a batch: how many predictions
    were right (where counting is cheap), how large the margin of preferences is, the moments of numbers."""
    how, batch = batch.treatment, batch.ready(model_dtype(model))
    if isinstance(model.head, CodesHead):
        assert how is not None
        return {name: value.double() for name, value in _painting_tally(model, batch, how.std).items()}
    if batch.reference is not None:
        margin, counts = preferred(model, batch)
        total, count = _preference_loss(margin, counts, beta)
        right = counts & (margin + batch.reference > 0)  # the chosen one is the likelier one, whatever it was before
        sums = {"right": right.sum(), "margin": torch.where(counts, beta * margin, 0).sum()}
    elif batch.wanted.is_floating_point():
        logits = _logits(model, batch)
        total, count = _squared_error(logits, batch.wanted)
        real = ~batch.wanted.isnan()
        x, y = (torch.where(real, v.double(), 0) for v in (logits[:, 0], batch.wanted))
        sums = {"x": x.sum(), "y": y.sum(), "xx": (x * x).sum(), "yy": (y * y).sum(), "xy": (x * y).sum()}
    elif isinstance(model.head, VocabularyHead) and batch.at is None:
        (total, count), sums = loss(model, batch), {}
    else:
        logits = _logits(model, batch)
        total, count = _cross_entropy(logits, batch.wanted)
        sums = {"right": ((logits.argmax(-1) == batch.wanted) & (batch.wanted >= 0)).sum()}
    return {name: value.double() for name, value in {"loss": total, "count": count, **sums}.items()}


def scores(sums: dict[str, Any]) -> dict[str, float]:
    """What the sums say.

    >>> scores({"loss": 2.0, "count": 4.0, "right": 3.0})
    {'loss': 0.5, 'accuracy': 0.75}
    """
    n = max(sums["count"], 1)
    found = {"loss": sums["loss"] / n}
    if "used" in sums:
        return {**found, "psnr": -10 * math.log10(max(sums["error"] / n, 1e-10)), "codes": _in_use(sums["used"])}
    if "right" in sums:
        found["accuracy"] = sums["right"] / n
    if "margin" in sums:
        found["margin"] = sums["margin"] / n
    if "xy" in sums:
        return {**found, "pearson": _pearson(sums, n)}
    return found if len(found) > 1 else {**found, "perplexity": math.exp(min(found["loss"], 700))}


def _in_use(counts: Sequence[float]) -> float:
    """Of how many codes, all used alike, the use would be as even (its perplexity).

    >>> round(_in_use([5.0, 5.0, 0.0]), 3)
    2.0
    """
    shares = [n / sum(counts) for n in counts if n]
    return math.exp(-sum(p * math.log(p) for p in shares))


def _pearson(sums: dict[str, float], n: float) -> float:
    """The correlation of what was said and what was wanted; 0 where one of them never changes."""
    spread = math.sqrt(max(0.0, sums["xx"] - sums["x"] ** 2 / n) * max(0.0, sums["yy"] - sums["y"] ** 2 / n))
    return (sums["xy"] - sums["x"] * sums["y"] / n) / spread if spread else 0.0


def translations(model: Transformer, data: DataDir, columns: dict[str, Any], rows: Iterable[int]) -> list[str]:
    """What the model writes for some sources of a split, greedily: as it would as a trained one."""
    trained = Model(
        model, data.task, data.tokenizer, data.source_tokenizer, longest=data.manifest["data"]["max_tokens"]
    )
    sources = [data.source_tokenizer.decode(columns["source"][i]) for i in rows]
    return [found.text for found in trained.translate(sources, whole=True, beam=1)]


def captions(model: Transformer, data: DataDir, columns: dict[str, Any], images: Sequence[int]) -> list[str]:
    """What the model says of some images of a split, greedily."""
    told = {"longest": data.manifest["data"]["max_tokens"], "images": data.manifest["images"]}
    trained = Model(model, data.task, data.tokenizer, **told)
    return [found.text for found in trained.caption(columns["image"][images], beam=1)]


def caption_bleu(data: DataDir, columns: dict[str, Any], said: Sequence[str]) -> float:
    """sacreBLEU of captions of a split's first images, each against all that it has."""
    from regard.evaluate.scores import caption_bleu

    own: list[list[str]] = [[] for _ in said]
    for row in np.flatnonzero(np.asarray(columns["of"]) < len(said)):
        own[columns["of"][row]].append(data.tokenizer.decode(columns["text"][row]))
    return caption_bleu(said, own).value


def bleu(data: DataDir, columns: dict[str, Any], said: Sequence[str]) -> float:
    """sacreBLEU of translations of a split's first sources."""
    from regard.evaluate.scores import bleu

    return bleu(said, [[data.tokenizer.decode(columns["target"][i]) for i in range(len(said))]]).value


# ---------------------------------------------------------------------------------------
# Samples


@torch.no_grad()
def samples(model: Transformer, data: DataDir, columns: dict[str, Any], n: int = 3) -> Iterator[dict[str, str]]:
    """What the model says of the first few examples of a split, beside what it should say."""
    device = next(model.parameters()).device
    rows = len(columns["image"] if "image" in columns else next(iter(columns.values())))
    if data.task not in _SAMPLES:
        return
    for i in range(n if data.task == "generate" else min(n, rows)):
        yield _SAMPLES[data.task](model, data, columns, i, device)


def _ids(ids: Iterable[int], device: torch.device) -> Tensor:
    return torch.tensor([list(ids)], device=device, dtype=torch.int64)


def _translated(model: Transformer, data: DataDir, columns, i: int, device) -> dict[str, str]:
    return {
        "source": data.source_tokenizer.decode(columns["source"][i]),
        "model": translations(model, data, columns, [i])[0],
        "reference": data.tokenizer.decode(columns["target"][i]),
    }


def _continued(model: Transformer, data: DataDir, columns, i: int, device) -> dict[str, str]:
    documents = columns["text"]
    text = documents[i % len(documents)]
    at = i // len(documents) * len(text) // 3  # of few documents, a few places in each
    prompt = text[at : at + min(12, max(1, len(text) // 2), _room(model) // 2)]
    given = _ids([data.tokenizer.start, *prompt], device)
    most = max(1, min(40, _room(model) - given.shape[1]))
    [[found]] = search(model, given, end=data.tokenizer.end, limits=most, how=Decoding(beam=1))
    return {"prompt": data.tokenizer.decode(prompt), "model": data.tokenizer.decode(found.ids)}


def _filled_in(model: Transformer, data: DataDir, columns, i: int, device) -> dict[str, str]:
    tokens = data.tokenizer
    text = [int(t) for t in columns["text"][i][: min(24, _room(model) - 2)]]
    hide = len(text) // 2
    masked = [*text[:hide], tokens.mask, *text[hide + 1 :]]
    logits = model(_ids([tokens.start, *masked, tokens.end], device))
    assert isinstance(logits, Tensor)
    if isinstance(model.config.encoder, Recurrent):  # what comes after the token before, and before the token after
        said = logits[0, hide, 0].log_softmax(-1) + logits[0, hide + 2, 1].log_softmax(-1)
    else:
        said = logits[0, hide + 1]
    guess = int(said.argmax())
    before, with_it, whole = (tokens.decode(text[:n]) for n in (hide, hide + 1, len(text)))
    space = " " if with_it[len(before) :].startswith(" ") else ""  # a token's own, which fill gives it again
    shown = f"{before}{space}[MASK]{whole[len(with_it) :]}"
    return {"text": shown, "model": tokens.decode([guess]), "reference": tokens.decode(text[hide : hide + 1])}


def _labelled(model: Transformer, data: DataDir, columns, i: int, device) -> dict[str, str]:
    if data.images is not None:
        return _pictured(model, data, columns, i, device)
    tokens, text = data.tokenizer, columns["text"][i]
    second = [*columns["second"][i], tokens.end] if "second" in columns else []
    segments = torch.tensor([[0] * (len(text) + 2) + [1] * len(second)], device=device)
    tower = model.config.encoder
    wants = second and getattr(tower.input, "n_segments", 0) > 1  # type: ignore[union-attr]
    logits = model(_ids([tokens.start, *text, tokens.end, *second], device), segments=segments if wants else None)
    assert isinstance(logits, Tensor)
    shown = tokens.decode(text) + (f" | {tokens.decode(second)}" if second else "")
    wanted = columns["label"][i]
    if data.has_numbers:
        return {"text": shown, "model": f"{float(logits[0, 0]):.4g}", "reference": f"{wanted:.4g}"}
    return {"text": shown, "model": data.labels[int(logits[0].argmax())], "reference": data.labels[int(wanted)]}


def _pictured(model: Transformer, data: DataDir, columns, i: int, device) -> dict[str, str]:
    wanted, how = columns["label"][i], untouched(data.manifest["images"], device)
    pixels = torch.from_numpy(columns["image"][i : i + 1].copy()).to(device)
    logits = model(treated(pixels, how).to(model_dtype(model)))
    assert isinstance(logits, Tensor)
    if data.has_numbers:
        return {"image": str(i + 1), "model": f"{float(logits[0, 0]):.4g}", "reference": f"{wanted:.4g}"}
    said = data.labels[int(logits[0].argmax())]
    return {"image": str(i + 1), "model": said, "reference": data.labels[int(wanted)]}


def _captioned(model: Transformer, data: DataDir, columns, i: int, device) -> dict[str, str]:
    """Of the first few images, not of one image's captions."""
    row = int(np.flatnonzero(np.asarray(columns["of"]) == i)[0])
    [said] = captions(model, data, columns, [i])
    return {"image": str(i + 1), "model": said, "reference": data.tokenizer.decode(columns["text"][row])}


def _matched(model: Transformer, data: DataDir, columns, i: int, device) -> dict[str, str]:
    """Which of the first few texts it would give an image."""
    of, tokens = np.asarray(columns["of"]), data.tokenizer
    rows = np.flatnonzero(of < 29)[:97]
    texts = [tokens.decode(columns["text"][row]) for row in rows]
    told = {"longest": data.manifest["data"]["max_tokens"], "images": data.manifest["images"]}
    cosines = Model(model, data.task, tokens, **told).match(columns["image"][i : i + 1], texts).cosines[0]
    right = int(np.flatnonzero(of[rows] == i)[0])
    return {"image": str(i + 1), "model": texts[int(cosines.argmax())], "reference": texts[right]}


def _tagged(model: Transformer, data: DataDir, columns, i: int, device) -> dict[str, str]:
    tokens, text, tags = data.tokenizer, columns["text"][i], columns["tag"][i]
    logits = model(_ids([tokens.start, *text, tokens.end], device))
    assert isinstance(logits, Tensor)
    said = logits[0, 1:-1].argmax(-1).tolist()
    first = [k for k, tag in enumerate(tags) if tag >= 0]
    named = [data.labels[said[k]] for k in first]
    return {
        "text": tokens.decode(text),
        "model": " ".join(named),
        "reference": " ".join(data.labels[int(tags[k])] for k in first),
    }


def _answered(model: Transformer, data: DataDir, columns, i: int, device) -> dict[str, str]:
    """What it says by itself, beside what it should rather say."""
    tokens = data.tokenizer
    prompt = columns["prompt"][i][: _room(model) // 2]
    given = _ids([tokens.start, *prompt], device)
    most = max(1, min(40, _room(model) - given.shape[1]))
    [[found]] = search(model, given, end=tokens.end, limits=most, how=Decoding(beam=1))
    answers = {name: tokens.decode(columns[name][i]) for name in ("chosen", "rejected")}
    return {"prompt": tokens.decode(prompt), "model": tokens.decode(found.ids), **answers}


_SAMPLES = {
    "translate": _translated,
    "generate": _continued,
    "fill": _filled_in,
    "classify": _labelled,
    "tag": _tagged,
    "prefer": _answered,
    "caption": _captioned,
    "match": _matched,
}


def _room(model: Transformer) -> int:
    """How many tokens the model can take."""
    limits = [getattr(t, "position_limit", None) for t in (model.config.encoder, model.config.decoder) if t is not None]
    return min([limit for limit in limits if limit is not None], default=1024)
