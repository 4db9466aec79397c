"""Tokens fall apart into what they were merged from: the text stays the same, and so do all laws of batches and runs."""

import json
import queue
import threading

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

import toy
from regard import recipe
from regard.config import InputError
from regard.data import dropout
from regard.data.batches import make_batches
from regard.data.dropout import split_apart
from regard.data.prepare import prepare
from regard.data.store import Ragged
from regard.data.tokenizer import Tokenizer
from regard.recipe import Train, model_config
from regard.train import checkpoint
from regard.train.distributed import World
from regard.train.loader import AHEAD, Loader
from regard.train.loop import Trainer, train
from regard.train.run import Run
from regard.train.watch import Watch

TEXT = [
    "Two young, White males are outside near many bushes (1984).",
    "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
    "Several men in hard hats are operating a giant pulley system,\nand 12345 more <pad> are not.",
] * 3
WORDS = [*" ".join(TEXT).split(), " ", "\n", "🙂", "</s>"]
ANY = 10**9  # as many tokens as there will be


def byte_level() -> Tokenizer:
    """One from elsewhere, over the bytes of words."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=389, initial_alphabet=alphabet, show_progress=False))
    return Tokenizer(inner)


def with_ends() -> Tokenizer:
    """One from elsewhere that marks the ends of words (Sennrich's own)."""
    inner = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.decoder = decoders.BPEDecoder()
    inner.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(vocab_size=211, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False),
    )
    return Tokenizer(inner)


def with_prefix() -> Tokenizer:
    """One from elsewhere that marks what goes on within a word, and finds tokens in more ways than one."""
    names = ["a", "##b", "##c", "##bc", "ab", "abc"]
    merges = [("##b", "##c"), ("a", "##bc"), ("a", "##b"), ("ab", "##c")]
    model = models.BPE({name: i for i, name in enumerate(names)}, merges, continuing_subword_prefix="##")
    inner = tokenizers.Tokenizer(model)
    inner.decoder = decoders.WordPiece("##", cleanup=False)
    return Tokenizer(inner)


TRAINED = {
    "ours": Tokenizer.train(TEXT, recipe.Tokenizer(vocab_size=389)),
    "lower": Tokenizer.train(TEXT, recipe.Tokenizer(vocab_size=367, lowercase=True)),
    "byte-level": byte_level(),
    "ends": with_ends(),
}


def ragged(rows, dtype=np.uint16) -> Ragged:
    return Ragged(np.array([id for row in rows for id in row], dtype), np.cumsum([len(row) for row in rows]))


def rows_of(column: Ragged) -> list[list[int]]:
    return [column[i].tolist() for i in range(len(column))]


# ---------------------------------------------------------------------------------------
# Tokens and their parents


@pytest.mark.parametrize("name", TRAINED)
@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.lists(st.text(max_size=5) | st.sampled_from(WORDS)).map(" ".join), max_size=7),
    share=st.sampled_from([0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
@example(texts=["", " dog", "漢字 in <0x41> weiße\x00  hats", ""], share=1.0, seed=3)
def test_the_text_stays_the_same(name, texts, share, seed):
    mine = TRAINED[name]
    before = [mine.encode(text) for text in texts]
    after = rows_of(split_apart(ragged(before), mine.parents, share, ANY, seed))
    assert [mine.decode(row) for row in after] == [mine.decode(row) for row in before]
    if share == 1.0:
        assert all(mine.parents[id, 0] < 0 for row in after for id in row)


def test_what_falls_apart_wholly_is_characters_and_bytes():
    mine = TRAINED["ours"]
    (row,) = rows_of(split_apart(ragged([mine.encode("near 漢")]), mine.parents, 1.0, ANY, 1))
    assert [mine.token(id) for id in row] == ["▁", "n", "e", "a", "r", "▁", "<0xE6>", "<0xBC>", "<0xA2>"]


@pytest.mark.parametrize("name", TRAINED)
def test_every_merge_has_its_parents_and_nothing_else_has(name):
    mine = TRAINED[name]
    model = json.loads(mine._inner.to_str())["model"]
    made = {first + second for first, second in model["merges"]}
    names = {id: text for text, id in model["vocab"].items()}
    assert len(made) > 60
    for id, (first, second) in enumerate(mine.parents.tolist()):
        if first < 0:
            assert second < 0
            assert names.get(id) not in made
        else:
            assert names[first] + names[second] == names[id]
    assert (mine.parents[[mine.pad, mine.start, mine.end, mine.mask]] < 0).all()
    assert (mine.parents[mine.byte_ids] < 0).all()


def test_prefixes_are_known_and_the_earliest_of_several_ways_is_taken():
    mine = with_prefix()
    names = {id: text for text, id in mine._inner.get_vocab().items()}
    known = {names[id]: (names[a], names[b]) for id, (a, b) in enumerate(mine.parents.tolist()) if a >= 0}
    assert known == {"##bc": ("##b", "##c"), "abc": ("a", "##bc"), "ab": ("a", "##b")}
    (row,) = rows_of(split_apart(ragged([[5]]), mine.parents, 1.0, ANY, 1))
    assert mine.decode(row) == mine.decode([5]) == "abc"


def test_a_special_token_stays_whole_though_merges_make_it():
    model = models.BPE({"[": 0, "]": 1, "[]": 2}, [("[", "]")])
    inner = tokenizers.Tokenizer(model)
    inner.add_special_tokens(["[]"])
    assert (Tokenizer(inner).parents < 0).all()


def test_tokenizers_that_merge_nothing_have_no_parents():
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    unigram = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0))
    for mine in (Tokenizer(words), Tokenizer(unigram), Tokenizer.train(TEXT, recipe.Tokenizer(kind="characters"))):
        assert mine.parents.shape == (len(mine), 2)
        assert (mine.parents < 0).all()


# ---------------------------------------------------------------------------------------
# A column

# Tokens 0 and 1 are no merges; each other is of the two before it.
PARENTS = np.array([[-1, -1], [-1, -1], *([i - 2, i - 1] for i in range(2, 7))])


def column(n: int = 1009, token: int = 2) -> Ragged:
    return ragged([[token] * (i % 7) for i in range(n)])


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_its_share_of_the_tokens_falls_apart(share):
    whole = column(5003)
    n = len(whole.ids)
    after = split_apart(whole, PARENTS, share, ANY, 1)
    assert len(after.ids) / n == pytest.approx(1 + share, abs=4 * (share * (1 - share) / n) ** 0.5)
    # Of a merge's merges, as many again: 3 is 1 and 2, and 2 is 0 and 1.
    after = split_apart(column(5003, 3), PARENTS, share, ANY, 1)
    counts = np.bincount(after.ids, minlength=4) / n
    assert counts == pytest.approx([share**2, share + share**2, share * (1 - share), 1 - share], abs=0.02)


def test_a_share_of_nothing_changes_nothing_and_types_stay():
    for dtype in (np.uint16, np.uint32):
        whole = Ragged(column(token=6).ids.astype(dtype), column().ends)
        after = split_apart(whole, PARENTS, 0.0, ANY, 1)
        assert rows_of(after) == rows_of(whole)
        assert split_apart(whole, PARENTS, 0.5, ANY, 1).ids.dtype == dtype
    assert len(split_apart(ragged([]), PARENTS, 0.5, ANY, 1)) == 0


def test_draws_are_of_the_seed_and_the_place_and_not_of_the_chunk(monkeypatch):
    whole = column(token=6)
    one = split_apart(whole, PARENTS, 0.3, ANY, 1, 5, 0)
    for other in ((2, 5, 0), (1, 6, 0), (1, 5, 1)):
        assert len(split_apart(whole, PARENTS, 0.3, ANY, *other).ids) != len(one.ids)
    monkeypatch.setattr(dropout, "AT_ONCE", 11)
    small = split_apart(whole, PARENTS, 0.3, ANY, 1, 5, 0)
    assert rows_of(small) == rows_of(one)
    assert len({tuple(row) for row in rows_of(one) if len(row) > 5}) > 100  # rows are not alike
    monkeypatch.setattr(dropout, "AT_ONCE", 3)  # less than a row
    assert rows_of(split_apart(whole, PARENTS, 0.3, ANY, 1, 5, 0)) == rows_of(one)


def test_a_row_that_would_be_too_long_stays_whole():
    whole = column(token=6)
    free, held = (split_apart(whole, PARENTS, 0.3, longest, 1) for longest in (ANY, 7))
    kept = 0
    for before, long, short in zip(rows_of(whole), rows_of(free), rows_of(held), strict=True):
        assert short == (before if len(long) > 7 else long)
        kept += len(long) > 7
    assert 100 < kept < 900


# ---------------------------------------------------------------------------------------
# Batches

LAYOUTS = {"padded": {}, "packed": {"packed": True, "row_tokens": 127}}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Pairs in subwords, one of them long enough that the others may fall apart."""
    folder = tmp_path_factory.mktemp("pairs")
    made = toy.make_recipe(folder, "translate", n=503)
    long = " ".join(toy.WORDS)
    for name, text in (("in", long), ("out", toy.backwards(long))):
        with (folder / f"train.{name}").open("a") as file:
            file.write(f"{text} {text}\n")
    made = made.replace(data=made.data.replace(tokenizer=recipe.Tokenizer(vocab_size=397)))
    return made, prepare(made.data, folder / "data")


@pytest.fixture(params=list(LAYOUTS))
def batches_of(request, pairs):
    def make(split="train", *, shuffled=True, **train):
        made, data = pairs
        config = model_config(made.model, vocab_size=len(data.tokenizer))
        settings = made.train.replace(**LAYOUTS[request.param], **train)
        return make_batches(data, split, settings, config, shuffled=shuffled)

    return make


def same(a, b):
    mine, theirs = a.tensors(), b.tensors()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)


def texts_of(batches, batch):
    """Every pair of texts in a batch, once."""
    tokens = batches.tokenizer
    found = []
    for source, target in zip(batch.inputs.tolist(), batch.target.tolist(), strict=True):
        target = [id for id in target if id != tokens.pad]
        source = [id for id in source if id != tokens.pad]
        assert source.count(tokens.end) == target.count(tokens.start)
        ends = [i for i, id in enumerate(source) if id == tokens.end]
        starts = [i for i, id in enumerate(target) if id == tokens.start]
        for begin, end, first, last in zip([-1, *ends], ends, starts, [*starts[1:], None], strict=False):
            found.append((tokens.decode(source[begin + 1 : end]), tokens.decode(target[first + 1 : last])))
    return found


def test_batches_hold_the_same_text_in_more_tokens(batches_of):
    plain, split = batches_of(), batches_of(bpe_dropout=0.3)
    known = {
        (plain.tokenizer.decode(plain.columns["source"][i]), plain.tokenizer.decode(plain.columns["target"][i]))
        for i in range(504)
    }
    real = sum(plain.size(step).real for step in range(len(plain)))
    for epoch in range(3):
        steps = range(epoch * len(split), (epoch + 1) * len(split))
        seen = [text for step in steps for text in texts_of(split, split.part(step))]
        assert set(seen) <= known
        assert len(set(seen)) > 0.9 * len(known)
        assert sum(split.size(step).real for step in steps) > 1.15 * real


def test_the_first_epoch_has_every_pair_once(batches_of):
    split = batches_of(bpe_dropout=0.3)
    seen = [text for step in range(len(split)) for text in texts_of(split, split.part(step))]
    rows = sum(len(split.rows(step)) for step in range(len(split)))
    if split.train.packed:  # a row is several pairs; the last one may come again, and what is less than a row waits
        assert abs(len(seen) - 504) < 30
    else:
        assert rows == len(seen) == 504


def test_budget_and_sizes_hold_after_splitting(batches_of):
    split = batches_of(bpe_dropout=0.4)
    longest = 1 + max(int(split.columns[side].lengths.max()) for side in ("source", "target"))
    assert split.longest == longest
    for step in range(3 * len(split)):
        batch, size = split.part(step), split.size(step)
        assert size.padded == batch.inputs.numel() + batch.target.numel()
        assert max(batch.inputs.numel(), batch.target.numel()) <= 256
        pads = sum(int((side == split.tokenizer.pad).sum()) for side in (batch.inputs, batch.target))
        assert size.real == size.padded - pads
        assert size.wanted == size.tokens == int((batch.wanted >= 0).sum())
        for side in (batch.layout, batch.target_layout):
            if side.lengths is not None:
                assert int(side.lengths.max()) <= longest
            else:
                assert int(side.positions.max()) < longest


def test_parts_are_the_whole(batches_of):
    split = batches_of(bpe_dropout=0.3, word_dropout=0.2)
    for step in (0, 1, len(split), 2 * len(split) + 1):
        whole, parts = split.part(step), [split.part(step, i, 3) for i in range(3)]
        for i, part in enumerate(parts):
            mine = whole.inputs[i::3]
            width = min(mine.shape[1], part.inputs.shape[1])
            if len(mine):
                assert torch.equal(part.inputs[:, :width], mine[:, :width])
        assert sum(int((p.wanted >= 0).sum()) for p in parts) == split.size(step).wanted


def test_an_epoch_is_the_same_whoever_asks_and_when_and_two_differ(batches_of):
    one, other = batches_of(bpe_dropout=0.3), batches_of(bpe_dropout=0.3)
    late = 2 * len(one) + 1
    first = one.part(late)
    for step in range(3):
        other.part(step)
    assert same(first, other.part(late))
    assert same(one.part(0), other.part(0))
    columns = [one.columns_in(epoch) for epoch in (0, 1, 0)]
    assert rows_of(columns[0]["source"]) == rows_of(columns[2]["source"])
    assert rows_of(columns[0]["source"]) != rows_of(columns[1]["source"])
    assert rows_of(columns[0]["target"]) != rows_of(columns[1]["target"])
    seeded = batches_of(bpe_dropout=0.3, seed=2)
    assert rows_of(columns[0]["source"]) != rows_of(seeded.columns_in(0)["source"])


def test_the_next_epoch_is_begun_in_the_middle_of_this_one(batches_of, monkeypatch):
    """In another thread than that which makes the batches, and they are what they would have been."""
    split, alone = batches_of(bpe_dropout=0.3), batches_of(bpe_dropout=0.3)
    n, begun, order = len(split), queue.Queue(), split.order
    assert n > 2 * AHEAD

    def told(epoch):
        if epoch:
            begun.put((epoch, threading.current_thread().name))
        return order(epoch)

    monkeypatch.setattr(split, "order", told)
    loader = Loader(split, 1, parts=1, rank=0, world=1, device=torch.device("cpu"))
    for _ in range(n // 2 - AHEAD):
        next(loader)
        assert begun.empty()
    for step in range(n // 2 - AHEAD, n + 3):
        assert same(next(loader).parts[0], alone.part(step))
    loader.stop()
    epoch, thread = begun.get(timeout=30)
    assert epoch == 1
    assert thread != loader.thread.name


def test_none_and_what_is_held_out_are_as_they_are(batches_of):
    plain = batches_of(bpe_dropout=0.0)
    assert plain.columns_in(3) is plain.columns
    held, split = batches_of("valid", shuffled=False), batches_of("valid", shuffled=False, bpe_dropout=0.3)
    assert len(held) == len(split)
    assert all(same(held.part(step), split.part(step)) for step in range(len(held)))


def test_what_cannot_be_is_refused(tmp_path):
    problems = list(Train(steps=1, bpe_dropout=1.0).problems())
    assert problems == ["bpe_dropout (1.0) must be at least 0 and below 1"]
    for task, message in (
        ("translate", r"bpe_dropout \(0\.1\): the tokenizer of the source has learned no merges .*; set it to 0"),
        ("generate", r"bpe_dropout \(0\.1\): only for translate, not generate; set it to 0"),
    ):
        made, data = toy.prepared(tmp_path / task, task, bpe_dropout=0.1)
        with pytest.raises(InputError, match=message):
            make_batches(data, "train", made.train, model_config(made.model, vocab_size=len(data.tokenizer)))


# ---------------------------------------------------------------------------------------
# Laws 8 and 9


def test_parts_add_up_to_the_whole_batch(pairs, tmp_path, batches_of):
    made, data = pairs
    layout = batches_of().train
    made = made.replace(train=layout.replace(bpe_dropout=0.3, smoothing=0.1))
    one = Trainer(made, data, Run(tmp_path), World(0, 1, torch.device("cpu")), Watch(quiet=True))
    one.model.double()
    for step in (1, 2, len(one.batches) + 2):
        gradients = []
        for parts in (1, 3):
            loader = Loader(one.batches, step, parts=parts, rank=0, world=1, device=torch.device("cpu"))
            update = next(loader)
            loader.stop()
            for batch in update.parts:
                (one.objective(batch) / update.size.wanted).backward()
            gradients.append([p.grad for p in one.model.parameters()])
            for p in one.model.parameters():
                p.grad = None
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_killed_and_resumed_is_never_killed(pairs, tmp_path, monkeypatch, batches_of):
    made, data = pairs
    layout = batches_of().train
    made = made.replace(
        train=layout.replace(steps=40, checkpoint_every=20, valid_every=20, bpe_dropout=0.2, micro_batches=2)
    )
    assert len(batches_of(bpe_dropout=0.2)) < 40  # another epoch has begun

    def fit(recipe, path, **options):
        return train(recipe, data.path, path, device="cpu", watch=Watch(quiet=True), **options)

    straight = fit(made, tmp_path / "straight")
    with toy.killed_at(20, monkeypatch):
        fit(made, tmp_path / "broken")
    broken = fit(None, tmp_path / "broken", resume=True)
    ends = [checkpoint.read_facts(checkpoint.checkpoints(run.path)[-1])["files"] for run in (straight, broken)]
    assert ends[0] == ends[1]
    assert broken.weights.read_bytes() == straight.weights.read_bytes()
    whole = fit(made.replace(train=made.train.replace(bpe_dropout=0.0)), tmp_path / "whole")
    assert whole.weights.read_bytes() != straight.weights.read_bytes()
