"""Batches are a pure function of seed, epoch and step; they hold the text they should, and packing changes no loss."""

from collections import Counter

import numpy as np
import pytest
import torch

import toy
from regard.config import InputError
from regard.data.batch import draws, uniform
from regard.data.batches import make_batches, padding
from regard.data.bucketed import Bucketed
from regard.data.filled import Filled
from regard.data.stream import Stream
from regard.nn import Transformer
from regard.recipe import model_config
from regard.train import tasks

TASKS = list(toy.MODELS)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Data of every task, made once."""
    known = {}

    def make(task):
        if task not in known:
            known[task] = toy.prepared(tmp_path_factory.mktemp(task), task)
        return known[task]

    return make


def config_of(recipe, data, **model):
    return model_config(model if "preset" in model else {**recipe.model, **model}, **data.counts())


def batches_of(made, task, split="train", *, model=None, shuffled=True, **train):
    recipe, data = made(task)
    return make_batches(
        data, split, recipe.train.replace(**train), config_of(recipe, data, **(model or {})), shuffled=shuffled
    )


LAYOUTS = {
    **{task: (task, {}) for task in TASKS},
    "packed": ("translate", {"packed": True, "row_tokens": 127}),
    "halves": ("fill", {"model": {"pair_head": {"n_labels": 2}}}),
}


@pytest.fixture(params=list(LAYOUTS))
def layout(request, made):
    task, options = LAYOUTS[request.param]
    return lambda split="train", **more: batches_of(made, task, split, **{**options, **more})


def same(a, b):
    mine, theirs = a.tensors(), b.tensors()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)


# ---------------------------------------------------------------------------------------
# Order


def test_a_step_is_the_same_whoever_asks_and_when(layout):
    one, other = layout(), layout()
    late = 2 * len(one) + 1
    first = one.part(late)
    for step in range(3):
        other.part(step)
    assert same(first, other.part(late))
    assert same(one.part(0), other.part(0))


def test_another_seed_or_epoch_is_another_order(layout):
    one, other = layout(), layout(seed=2)
    assert any(not same(one.part(step), other.part(step)) for step in range(3))
    assert any(not same(one.part(step), one.part(step + len(one))) for step in range(3))


def test_parts_have_all_rows_of_the_whole_and_draw_the_same_for_them(layout):
    batches = layout(word_dropout=0.3)
    for step in range(3):
        whole, parts = batches.part(step), [batches.part(step, i, 3) for i in range(3)]
        for i, part in enumerate(parts):
            mine = whole.inputs[i::3]
            width = min(mine.shape[1], part.inputs.shape[1])
            if len(mine):
                assert torch.equal(part.inputs[:, :width], mine[:, :width])
        assert (
            sum(int((p.wanted >= 0).sum()) for p in parts)
            == int((whole.wanted >= 0).sum())
            == batches.size(step).wanted
        )


def test_a_part_without_rows_asks_for_nothing(layout):
    batches = layout()
    n = len(batches.rows(0))
    empty = batches.part(0, n, n + 1)
    assert len(empty.inputs) == 1
    assert (empty.wanted < 0).all()


def test_an_epoch_has_every_example_once(made):
    for task in ("translate", "classify", "tag"):
        batches = batches_of(made, task)
        for epoch in range(2):
            seen = np.concatenate([batches.rows(epoch * len(batches) + i) for i in range(len(batches))])
            assert sorted(seen) == list(range(211))


def test_the_budget_holds_and_sizes_are_what_is_there(layout):
    batches = layout()
    for step in range(len(batches)):
        batch, size = batches.part(step), batches.size(step)
        if batches.unit == "images":
            assert batch.inputs.shape[0] == 13 == size.tokens
            assert size.wanted == int((batch.wanted >= 0).sum())
            if batch.target is None:
                assert size[1:] == (13, 13, 13)
            else:
                assert size.padded == batch.target.numel()
                assert size.real == int((batch.target != batches.tokenizer.pad).sum())
            continue
        sides = [batch.inputs] if batch.target is None else [batch.inputs, batch.target]
        assert size.padded == sum(side.numel() for side in sides)
        assert max(side.numel() for side in sides) <= 256
        pads = sum(int((side == batches.tokenizer.pad).sum()) for side in sides)  # no text has one
        assert size.real == size.padded - pads
        if batch.target is not None:
            assert size.tokens == int((batch.wanted >= 0).sum())


def test_lengths_in_a_bucket_are_alike(tmp_path):
    recipe, data = toy.prepared(tmp_path, "translate", n=5003, batch_tokens=1024)
    batches = make_batches(data, "train", recipe.train, config_of(recipe, data))
    assert isinstance(batches, Bucketed)
    assert padding(batches, range(len(batches))) < 0.06


# ---------------------------------------------------------------------------------------
# What is in them


def test_the_target_is_shifted_by_one(made):
    _, data = made("translate")
    tokens = data.tokenizer
    batch = batches_of(made, "translate").part(0)
    assert (batch.target[:, 0] == tokens.start).all()
    for target, wanted, n in zip(batch.target, batch.wanted, batch.target_layout.lengths, strict=True):
        assert torch.equal(target[1:n], wanted[: n - 1])
        assert wanted[n - 1] == tokens.end
        assert (wanted[n:] < 0).all()
    columns = data.split("train")
    rows = batches_of(made, "translate").rows(0)
    for row, source, n in zip(rows, batch.inputs, batch.layout.lengths, strict=True):
        assert source[: n - 1].tolist() == columns["source"][row].tolist()
        assert source[n - 1] == tokens.end


@pytest.mark.parametrize("task", ["generate", "fill"])
def test_validation_has_every_token_of_every_document_once(made, task):
    _, data = made(task)
    batches = batches_of(made, task, "valid", shuffled=False, mask_share=0.0)
    text = data.split("valid")["text"]
    seen = Counter()
    for step in range(len(batches)):
        batch = batches.part(step)
        known = batch.wanted if task == "generate" else batch.inputs
        seen.update(known[known >= 0].tolist())
    tokens = data.tokenizer
    wanted = Counter(np.asarray(text.ids).tolist())
    wanted[tokens.end] += len(text)
    for special in (tokens.pad, tokens.start, tokens.mask):
        seen.pop(special, None)
    if task == "fill":  # one token a row is guessed all the same
        assert sum(((seen - wanted) + (wanted - seen)).values()) <= 2 * batches.n_rows
    else:
        assert seen == wanted


def test_a_stream_is_the_documents_one_after_the_other(made):
    _, data = made("generate")
    batches = batches_of(made, "generate")
    assert isinstance(batches, Stream)
    tokens, texts = data.tokenizer, {tuple(data.split("train")["text"][i].tolist()) for i in range(211)}
    whole = 0
    for step in range(len(batches)):
        batch = batches.part(step)
        for ids, wanted, documents, positions in zip(
            batch.inputs, batch.wanted, batch.layout.documents, batch.layout.positions, strict=True
        ):
            for document in documents.unique():
                at = documents == document
                assert positions[at].tolist() == list(range(int(at.sum())))
                assert torch.equal(ids[at][1:], wanted[at][:-1])
                if ids[at][0] == tokens.start and wanted[at][-1] == tokens.end:
                    assert tuple(ids[at][1:].tolist()) in texts
                    whole += 1
    assert whole > 100


def test_one_document_has_no_walls_and_moves_between_epochs(tmp_path):
    recipe, data = toy.prepared(tmp_path, "generate")
    text = data.split("train")["text"]
    recipe = recipe.replace(data=recipe.data.replace(documents="file"))
    from regard.data.prepare import prepare

    data = prepare(recipe.data, tmp_path / "one")
    assert len(data.split("train")["text"]) == 1
    batches = make_batches(data, "train", recipe.train, config_of(recipe, data))
    assert batches.part(0).layout.documents is None
    assert len({batches.order(epoch)[2] for epoch in range(5)}) > 1
    assert len(text.ids) < len(data.split("train")["text"].ids)  # the line ends are text now


def test_masking_is_berts(made):
    _, data = made("fill")
    tokens = data.tokenizer
    batches = batches_of(made, "fill")
    plain = batches_of(made, "fill", mask_share=0.0)
    kept = masked = other = asked = 0
    for step in range(3 * len(batches)):
        batch, bare = batches.part(step), plain.part(step)
        original = bare.inputs.clone().flatten()
        original[bare.at[bare.wanted >= 0]] = bare.wanted[bare.wanted >= 0]  # what the one hidden token was
        at, wanted = batch.at[batch.wanted >= 0], batch.wanted[batch.wanted >= 0]
        assert torch.equal(original[at], wanted)
        assert not ((wanted == tokens.start) | (wanted == tokens.end) | (wanted == tokens.pad)).any()
        untouched = torch.ones(len(original), dtype=torch.bool)
        untouched[at] = False
        assert torch.equal(batch.inputs.flatten()[untouched], original[untouched])
        now = batch.inputs.flatten()[at]
        masked += int((now == tokens.mask).sum())
        kept += int((now == wanted).sum())
        other += int(((now != tokens.mask) & (now != wanted)).sum())
        asked += len(wanted)
        maskable = (original != tokens.start) & (original != tokens.end)
        for row in (maskable.view(batch.inputs.shape).sum(1),):
            assert len(wanted) == int(torch.maximum((row * 0.15).round(), torch.ones(())).sum())
    assert masked / asked == pytest.approx(0.8, abs=0.03)
    assert other / asked == pytest.approx(0.1, abs=0.03)
    assert kept / asked == pytest.approx(0.1, abs=0.03)


def test_halves_are_of_one_document_or_of_two(made):
    _, data = made("fill")
    tokens = data.tokenizer
    batches = batches_of(made, "fill", model={"pair_head": {"n_labels": 2}}, mask_share=0.0)
    texts = [data.split("train")["text"][i].tolist() for i in range(211)]
    joined = Counter()
    for step in range(len(batches)):
        batch = batches.part(step)
        ids = batch.inputs.clone()
        ids.flatten()[batch.at[batch.wanted >= 0]] = batch.wanted[batch.wanted >= 0]
        for row, segments, n, apart in zip(ids, batch.segments, batch.layout.lengths, batch.pair, strict=True):
            assert row[0] == tokens.start
            assert row[n - 1] == tokens.end
            assert (row[n:] == tokens.pad).all()
            first, second = row[:n][segments[:n] == 0].tolist(), row[:n][segments[:n] == 1].tolist()
            assert first[-1] == second[-1] == tokens.end
            together = first[1:-1] + second[:-1]
            is_one = any(together == t[i : i + len(together)] for t in texts for i in range(len(t) - len(together) + 1))
            joined[bool(apart), is_one] += 1
    assert joined[False, False] == 0
    assert joined[True, False] > 10 * joined[True, True]
    assert 0.3 < sum(v for k, v in joined.items() if k[0]) / joined.total() < 0.7


def test_labels_and_tags_stand_at_their_words(made):
    _, data = made("tag")
    batch, rows = batches_of(made, "tag").part(0), batches_of(made, "tag").rows(0)
    columns = data.split("train")
    for row, ids, wanted, n in zip(rows, batch.inputs, batch.wanted, batch.layout.lengths, strict=True):
        assert ids[1 : n - 1].tolist() == columns["text"][row].tolist()
        assert wanted[1 : n - 1].tolist() == columns["tag"][row].tolist()
        assert wanted[0] == wanted[n - 1] == -1
        assert (wanted[n:] == -1).all()
    _, data = made("classify")
    batch, rows = batches_of(made, "classify").part(0), batches_of(made, "classify").rows(0)
    assert batch.wanted.tolist() == data.split("train")["label"][rows].tolist()


def test_word_dropout_hides_its_share_and_no_special_token(layout):
    plain, batches = layout(), layout(word_dropout=0.25)
    if batches.data.images is not None:
        pytest.skip("images have no words")
    hidden = total = 0
    for step in range(len(batches)):
        a, b = plain.part(step), batches.part(step)
        tokens = batches.source_tokenizer
        changed = a.inputs != b.inputs
        assert (b.inputs[changed] == tokens.mask).all()
        special = (a.inputs == tokens.start) | (a.inputs == tokens.end) | (a.inputs == tokens.pad)
        assert not (changed & special).any()
        assert torch.equal(a.wanted, b.wanted)
        hidden, total = hidden + int(changed.sum()), total + int((~special).sum())
    if batches.data.task != "fill":  # which hides its own
        assert hidden / total == pytest.approx(0.25, abs=0.03)


# ---------------------------------------------------------------------------------------
# Packing


def test_a_packed_epoch_has_nearly_every_pair_once(made):
    batches = batches_of(made, "translate", packed=True, row_tokens=127)
    assert isinstance(batches, Filled)
    pairs, begins, ends, _, longest = batches.order(0)
    inside = np.concatenate([pairs[b:e] for b, e in zip(begins, ends, strict=True)])
    assert len(set(inside)) == len(inside) > 200
    assert longest == 2 ** (longest.bit_length() - 1) >= batches.longest


def test_packed_batches_have_one_shape_in_every_epoch(made):
    """Another shape, or another longest text, would be compiled anew."""
    batches = batches_of(made, "translate", packed=True, row_tokens=127)
    shapes = set()
    for step in range(3 * len(batches)):
        batch = batches.part(step)
        for layout in (batch.layout, batch.target_layout):
            shapes.add((tuple(batch.inputs.shape), len(layout.bounds), layout.longest))
    assert len(shapes) == 1


def test_packed_texts_match_on_both_sides(made):
    batches = batches_of(made, "translate", packed=True, row_tokens=127)
    for step in range(len(batches)):
        batch = batches.part(step)
        for layout in (batch.layout, batch.target_layout):
            assert layout.bounds.dtype == torch.int32
            assert int(layout.bounds[-1]) == batch.inputs.numel()
            sizes = layout.bounds.diff()
            assert int(sizes.max()) <= layout.longest
            n = int(layout.documents.max()) + 1
            assert (sizes[:n] > 0).all()
            assert (sizes[n:] == 0).all()
            by_document = torch.bincount(layout.documents.flatten())
            assert torch.equal(by_document.int(), sizes[:n])
        assert batch.layout.bounds.shape == batch.target_layout.bounds.shape
        assert int(batch.layout.documents.max()) == int(batch.target_layout.documents.max())
        # A row ends in padding, on both sides.
        assert (batch.wanted[:, -1] < 0).all()


@pytest.mark.parametrize("task", ["translate", "generate"])
def test_packing_changes_no_loss(made, task):
    """The loss of a packed batch is the sum over its texts, each alone."""
    recipe, data = made(task)
    config = config_of(recipe, data)
    model = Transformer(config).double().eval()
    options = {"packed": True, "row_tokens": 127} if task == "translate" else {}
    batch = batches_of(made, task, **options).part(0)
    with torch.no_grad():
        total, count = tasks.loss(model, batch)
    alone = 0.0
    layout = batch.layout if batch.target is None else batch.target_layout
    for document in layout.documents.unique():
        at = layout.documents == document
        wanted = batch.wanted[at][None]
        if (wanted < 0).all():
            continue
        if task == "generate":
            one = batch._replace(inputs=batch.inputs[at][None], layout=type(layout)(), wanted=wanted)
        else:
            one = batch._replace(
                inputs=batch.inputs[batch.layout.documents == document][None],
                layout=type(layout)(),
                wanted=wanted,
                target=batch.target[at][None],
                target_layout=type(layout)(),
            )
        with torch.no_grad():
            alone += float(tasks.loss(model, one)[0])
    assert float(total) == pytest.approx(alone, rel=1e-9)
    assert int(count) == int((batch.wanted >= 0).sum())


# ---------------------------------------------------------------------------------------
# Draws, and what is refused


def test_draws_are_uniform_and_belong_to_their_place():
    many = uniform(7, 3, np.arange(1000)[:, None], np.arange(100)[None])
    assert many.shape == (1000, 100)
    assert many.mean() == pytest.approx(0.5, abs=0.005)
    assert np.histogram(many, 10, (0, 1))[0].min() > 9_500
    assert len(np.unique(draws(7, np.arange(100_000)))) == 100_000
    assert (uniform(7, 3, np.arange(5, 9)[:, None], np.arange(100)[None]) == many[5:9]).all()
    assert not (uniform(8, 3, np.arange(1000)[:, None], np.arange(100)[None]) == many).any()


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("translate", {"batch_tokens": 7}, r"batch_tokens \(7\) must be at least \d+, the longest example's tokens"),
        ("translate", {"packed": True, "row_tokens": 11}, r"row_tokens \(11\) must be at least \d+"),
        ("translate", {"model": {"encoder": {"max_len": 13}}}, r"max_len \(13\) must be at least \d+"),
        ("generate", {"row_tokens": 257}, r"row_tokens \(257\) must be at most batch_tokens \(256\)"),
        (
            "generate",
            {"row_tokens": 1009, "batch_tokens": 2003},
            r"row_tokens \(1009\) must be at most the model's max_len \(97\)",
        ),
        ("generate", {"packed": False}, r"packed \(false\): generate always packs"),
        ("classify", {"packed": True}, r"packed \(true\): classify has a row a text"),
        (
            "translate",
            {"packed": True, "model": {"preset": "tiny_bahdanau"}},
            r"packed \(true\): a recurrent model cannot",
        ),
        (
            "generate",
            {"row_tokens": 80_000, "batch_tokens": 90_000, "model": {"decoder": {"max_len": 90_000}}},
            r"row_tokens \(80000\) must be at most \d+, all the tokens there are",
        ),
    ],
)
def test_what_does_not_fit_is_refused(made, task, options, message):
    with pytest.raises(InputError, match=message):
        batches_of(made, task, **options)
