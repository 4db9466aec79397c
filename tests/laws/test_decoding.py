"""Laws 2, 5 and 6 for what is searched and drawn: with a cache as without, a batch as its rows, a beam of 1 as greedy
search, and every score the model's own."""

import functools
import math
from types import SimpleNamespace

import pytest
import torch

from laws.cases import CASES, DECODERS, B, S, build, inputs, lengths_of, memory_of
from nn.test_steps import PLAIN
from regard import presets
from regard.config import ConfigError, InputError, Recurrent, Stack, Vocabulary
from regard.decode import Decoding, recorded
from regard.decode.recorded import Recorder
from regard.decode.search import Search, search
from regard.decode.ways import Beams, drawn, largest
from regard.nn import Transformer
from regard.nn import steps as nn_steps

WRITERS = [name for name, config in DECODERS.items() if isinstance(config.head, Vocabulary)]
END = 2
NEVER = (0, 7)
LIMITS = [9, 5, 7]
HOWS = {
    "greedy": Decoding(beam=1),
    "beam": Decoding(beam=3, n_best=3),
    "wide beam, plain": Decoding(beam=5, n_best=2, penalty="plain", length_penalty=1.0),
    "drawn": Decoding(temperature=1.3, n_best=2, seed=5),
    "drawn from few": Decoding(temperature=0.8, n_best=3, top_k=13, top_p=0.9),
    "drawn, not again": Decoding(temperature=1.1, n_best=2, min_p=0.05, repetition_penalty=1.7),
}


def ready(name, ends=1.0):
    """A model that ends now and then (the more the larger ``ends``), its prompts and its memory (rows of different lengths)."""
    model = build(CASES[name])
    model.head.bias = torch.nn.Parameter(torch.zeros(model.config.last.input.vocab_size, dtype=torch.float64))
    model.head.bias.data[END] = ends
    first, _ = inputs(model.config)
    prompt, lengths, memory = torch.tensor([[3, 4, 5], [6, 8, 9], [10, 11, 12]]), torch.tensor([2, 3, 1]), None
    if model.encoder is not None:
        memory = memory_of(model, first, lengths_of(first, torch.tensor([S, 2, 5])))
        prompt, lengths = prompt[:, :1], None
    return model.requires_grad_(False), first, memory, prompt, lengths


def row_of(model, first, prompt, lengths, row):
    """One row by itself, without padding."""
    n = [S, 2, 5][row]
    alone = first[row : row + 1] if first.is_floating_point() else first[row : row + 1, :n]
    memory = memory_of(model, alone) if model.encoder is not None else None
    return memory, prompt[row : row + 1, : None if lengths is None else lengths[row]]


def logprob(model, memory, prompt, ids):
    """The model's own score of a sequence, all of it at once and without a cache."""
    whole = torch.cat([prompt, torch.tensor([ids], dtype=torch.long)], dim=1)
    of_all = model.logits(model.decode(whole[:, :-1], memory).hidden).log_softmax(-1)
    return float(of_all[0, prompt.shape[1] - 1 :].gather(1, torch.tensor(ids)[:, None]).sum())


def found_in_batch(name, how, ends=1.0, **changes):
    model, first, memory, prompt, lengths = ready(name, ends)
    options = {"end": END, "limits": LIMITS, "how": how, "never": NEVER, **changes}
    return (model, first, prompt, lengths), search(model, prompt, lengths, memory=memory, **options)


@functools.cache
def found_once(name, how):
    """The same, for two laws about it; a test begins with the same random numbers, whichever comes first."""
    return found_in_batch(name, HOWS[how])


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", WRITERS)
def test_a_batch_equals_its_rows_in_any_order(name, how):
    (model, first, prompt, lengths), together = found_once(name, how)
    how = HOWS[how]
    for row in reversed(range(B)):
        memory, own = row_of(model, first, prompt, lengths, row)
        alone = search(model, own, memory=memory, end=END, limits=[LIMITS[row]], how=how, never=NEVER, requests=[row])[
            0
        ]
        assert [f.ids for f in alone] == [f.ids for f in together[row]]
        assert [f.score for f in alone] == pytest.approx([f.score for f in together[row]], abs=1e-5)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", WRITERS)
def test_a_score_is_the_models_own(name, how):
    (model, first, prompt, lengths), together = found_once(name, how)
    how = HOWS[how]
    assert {len(found) for found in together} == {how.n_best}
    for row, found in enumerate(together):
        memory, own = row_of(model, first, prompt, lengths, row)
        for one in found:
            ids = one.ids + [END] * one.ended
            assert one.ended == (len(ids) < LIMITS[row] or one.ended)
            assert len(ids) <= LIMITS[row]
            assert not set(one.ids) & {END, *NEVER}
            assert one.logprob == pytest.approx(logprob(model, memory, own, ids), abs=1e-4)
            assert one.score == pytest.approx(one.logprob / how.norm(len(ids)), abs=1e-6)
        if not how.temperature:
            ranks = [(one.ended, one.score) for one in found]
            assert ranks == sorted(ranks, reverse=True)


@pytest.mark.parametrize("beams", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_a_beam_of_one_is_greedy(name, beams, monkeypatch):
    """Token by token without a cache: always the most likely one. Also where a beam of 1 has no short cut."""
    if beams:
        monkeypatch.setattr("regard.decode.search.Draws", Beams)
    (model, first, prompt, lengths), together = found_in_batch(name, Decoding(beam=1))
    for row, (found,) in enumerate(together):
        memory, own = row_of(model, first, prompt, lengths, row)
        ids: list[int] = []
        while len(ids) < LIMITS[row]:
            whole = torch.cat([own, torch.tensor([ids], dtype=torch.long)], dim=1)
            logits = model.logits(model.decode(whole, memory).hidden)[0, -1]
            logits[list(NEVER)] = -math.inf
            if int(logits.argmax()) == END:
                break
            ids.append(int(logits.argmax()))
        assert found.ids == ids


def written_out(model, memory, own, limit, how):
    """What has ended, the best first, and what goes on."""
    ways, ended = [([], 0.0)], []
    for t in range(limit):
        candidates = []
        for ids, total in ways:
            whole = torch.cat([own, torch.tensor([ids], dtype=torch.long)], dim=1)
            scores = model.logits(model.decode(whole, memory).hidden)[0, -1].log_softmax(-1)
            for id, score in enumerate(scores.tolist()):
                if id not in NEVER and not (id == END and t + 1 < how.min_length):
                    candidates.append((total + score, ids, id))
        candidates.sort(key=lambda c: -c[0])
        ended += [(total / how.norm(t + 1), ids) for total, ids, id in candidates[: how.ways] if id == END]
        ways = [([*ids, id], total) for total, ids, id in candidates if id != END][: how.ways]
        ended.sort(key=lambda e: -e[0])
        if len(ended) >= how.ways and ended[how.ways - 1][0] >= ways[0][1] / how.norm(t + 1):
            break
    return [ids for _, ids in ended], [ids for ids, _ in ways]


@pytest.mark.parametrize("penalty", ["gnmt", "plain"])
@pytest.mark.parametrize("beam", [2, 3, 5])
@pytest.mark.parametrize("name", ["tiny_encoder_decoder", "tiny_bahdanau", "tiny_decoder"])
def test_a_beam_is_what_it_says(name, beam, penalty):
    """The search written out: lists, sorting, no cache, no early stop: it ends when a beam of ended ones leads."""
    how = Decoding(beam=beam, n_best=2, penalty=penalty, min_length=2)
    n_ended = set()
    for ends in (1.0, 3.0):
        (model, first, prompt, lengths), together = found_in_batch(name, how, ends)
        for row in range(B):
            memory, own = row_of(model, first, prompt, lengths, row)
            ended, ways = written_out(model, memory, own, LIMITS[row], how)
            assert [one.ids for one in together[row]] == (ended + ways)[:2]
            n_ended.add(len(ended))
    assert max(n_ended) >= beam


def test_more_than_there_are_positions_is_refused():
    model, prompt = Transformer(presets.tiny_decoder()).eval(), torch.tensor([[1, 2]])
    limit = model.config.decoder.position_limit
    with pytest.raises(InputError, match=rf"a cache of {limit + 1} tokens is more than the {limit} positions"):
        search(model, prompt, end=END, limits=limit - 1, how=Decoding(beam=2))
    assert search(model, prompt, end=END, limits=limit - 2, how=Decoding(beam=2))


def test_worthless_endings_do_not_end_a_search():
    """A model that is sure of itself: every step has one good continuation, and ending is always the second best."""
    wanted = [5, 9, 6, 8, 10, 4, 11, 12]

    class Sure:
        """Stands in for a model that has learned one sentence by heart."""

        config = SimpleNamespace(decoder=None)

        def start(self, **options):
            return self

        def decode(self, ids, **options):
            return type("Decoded", (), {"hidden": ids[..., None].double()})

        def parameters(self):
            yield torch.zeros(1)

        def widen(self, max_len, lanes, **options):
            pass

        def vocabulary_table(self):
            return torch.zeros(13, 1)

        def follow(self, parents):
            pass

        def keep(self, rows):
            pass

        def logits(self, hidden):
            scores = torch.full((*hidden.shape[:2], 13), -20.0)
            scores[..., END] = -10.0
            for last, following in zip([1, *wanted], [*wanted, END], strict=True):
                scores[hidden[..., 0] == last, following] = 0.0
            return scores

    found = search(Sure(), torch.tensor([[1]]), end=END, limits=20, how=Decoding(beam=4))  # type: ignore[arg-type]
    assert found[0][0].ids == wanted


@pytest.mark.parametrize(("name", "ends"), [("tiny_encoder_decoder", 1.0), ("tiny_bahdanau", 4.0)])
def test_stopping_early_changes_nothing(name, ends, monkeypatch):
    """Without the bound every row goes on until a beam of ended ones leads: the same answers."""
    how = Decoding(beam=5)
    steps = []
    for early in (True, False):
        model, _, memory, prompt, _ = ready(name, ends)
        count = 0

        def counted(*args, step=recorded.step, **options):
            nonlocal count
            count += 1
            return step(*args, **options)

        if not early:
            monkeypatch.setattr("regard.decode.ways.Beams.settled", lambda state: torch.zeros_like(state.done))
        with monkeypatch.context() as patch:
            patch.setattr(recorded, "step", counted)
            found = search(model, prompt, memory=memory, end=END, limits=[31, 29, 23], how=how, never=NEVER)
        steps.append(([[one.ids for one in row] for row in found], count))
    (with_bound, fewer), (without, more) = steps
    assert with_bound == without
    assert fewer < more


class AsRecorded(Recorder):
    """A GPU's recorder, whose recordings are the step itself."""

    def room(self, device):
        return 1e9

    def record(self, step, device):
        return step


@pytest.fixture
def fixed(monkeypatch):
    """Searches as a GPU has them, with a few fixed shapes."""
    monkeypatch.setattr(recorded, "fixed_shapes", lambda device: True)
    monkeypatch.setattr("regard.decode.search.LOOK_EVERY", 2)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", ["tiny_encoder_decoder", "tiny_decoder"])
def test_searches_in_turns_do_not_disturb_each_other(name, how, fixed):
    """They have one shape, and so one recording, which only one of them can be in."""
    model, _, memory, prompt, lengths = ready(name)
    options = {"end": END, "limits": LIMITS, "how": HOWS[how], "never": NEVER, "memory": memory}
    prompts = [prompt, prompt.flip(1)]
    alone = [search(model, given, lengths, **options, recorder=AsRecorded()) for given in prompts]
    recorder = AsRecorded()
    for _ in range(2):
        running = [Search(model, given, lengths, **options, recorder=recorder) for given in prompts]
        live = list(running)
        while live:
            live = [one for one in live if one.leave()]
            for one in live:
                one.step()
        assert [one.state.found for one in running] == alone


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", ["tiny_encoder_decoder", "tiny_decoder", "tiny_bahdanau", "alibi", "windows"])
@pytest.mark.parametrize("fused", [False, True])
def test_fixed_shapes_and_recordings_change_nothing(name, how, fused, fixed, monkeypatch):
    """The second search of a shape moves into the first one's memory; rows that leave move into another's; and steps
    may be made of a GPU's kernels, here of what these are to do."""
    cases = (LIMITS, [1, 9, 1])
    with monkeypatch.context() as plain:
        plain.setattr(recorded, "fixed_shapes", lambda device: False)
        wanted = [found_in_batch(name, HOWS[how], limits=limits)[1] for limits in cases]
    if fused:
        monkeypatch.setattr(nn_steps, "fits", nn_steps.composes)
        monkeypatch.setattr(nn_steps, "kernels_for", lambda device: PLAIN)
        monkeypatch.setattr(recorded, "choosing", lambda: None)
    recorder = AsRecorded()
    for limits, expected in 3 * [*zip(cases, wanted, strict=True)]:
        _, found = found_in_batch(name, HOWS[how], limits=limits, recorder=recorder)
        for row, other in zip(found, expected, strict=True):
            assert [f.ids for f in row] == [f.ids for f in other]
            assert [f.score for f in row] == pytest.approx([f.score for f in other], abs=1e-5)
    recordings = [one for one in recorder.held.values() if isinstance(one, recorded.Recording)]
    assert all(one.fused == (fused and name in ("tiny_encoder_decoder", "tiny_decoder")) for one in recordings)
    sizes = {len(one.ids) for one in recordings}
    assert sizes == (set() if isinstance(DECODERS[name].decoder, Recurrent) else {B, 1})


def test_recordings_that_take_too_much_room_go(fixed, monkeypatch):
    """The last used stays; a search has what it moved into all the same."""
    recorder = AsRecorded()
    _, wanted = found_in_batch("tiny_encoder_decoder", HOWS["beam"], limits=[1, 9, 1], recorder=recorder)
    assert len(recorder.held) == 3  # the beginning, and the steps of all rows and of one
    monkeypatch.setattr(recorder, "room", lambda device: 0)
    _, found = found_in_batch("tiny_encoder_decoder", HOWS["beam"], limits=[1, 9, 1], recorder=recorder)
    assert found == wanted
    assert len(recorder.held) == 1


@pytest.mark.parametrize("name", ["tiny_encoder_decoder", "tiny_bahdanau", "alibi", "windows"])
def test_rows_that_leave_change_nothing_for_the_others(name, monkeypatch):
    found = []
    for share in (0.01, 2.0):  # as soon as one is done; never
        monkeypatch.setattr("regard.decode.search.LEAVE_SHARE", share)
        _, together = found_in_batch(name, Decoding(beam=3, n_best=3), limits=[31, 1, 5])
        found.append([[one.ids for one in row] for row in together])
    assert found[0] == found[1]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", ["tiny_encoder_decoder", "tiny_decoder", "alibi", "windows"])
def test_room_that_comes_with_each_token_changes_nothing(name, how, monkeypatch):
    _, at_first = found_once(name, how)
    monkeypatch.setattr("regard.nn.cache.AHEAD", 1)
    _, token_by_token = found_in_batch(name, HOWS[how])
    assert token_by_token == at_first


@pytest.mark.parametrize("name", ["tiny_encoder_decoder", "tiny_bahdanau"])
def test_another_seed_draws_others(name):
    texts = {}
    for seed in (0, 1):
        _, found = found_in_batch(name, Decoding(temperature=1.0, n_best=2, seed=seed))
        texts[seed] = [[one.ids for one in row] for row in found]
        assert all(row[0] != row[1] for row in texts[seed])
    assert texts[0] != texts[1]


@pytest.mark.parametrize("v", [5, 61, 64, 127, 6 * 64, 7 * 64, 16_001])
def test_the_largest_are_topks(v):
    draw = torch.Generator().manual_seed(v)
    scores, more = torch.randn(2, 3, v, generator=draw), torch.randn(2, 3, generator=draw)
    wanted = (scores + more[..., None]).flatten(1).topk(5)
    assert all(torch.equal(mine, its) for mine, its in zip(largest(scores, more, 5), wanted, strict=True))


def test_draws_fall_as_often_as_is_likely():
    shares = torch.tensor([0.4, 0.3, 0.2, 0.1])
    lots = (torch.arange(1000) + 0.5) / 1000
    counts = torch.bincount(drawn(shares.log().expand(1000, 4), lots), minlength=4)
    assert counts.tolist() == [400, 300, 200, 100]
    counts = torch.bincount(drawn(shares.log().expand(1000, 4), lots, top_k=2), minlength=4)
    assert counts.tolist() == [571, 429, 0, 0]
    counts = torch.bincount(drawn(shares.log().expand(1000, 4), lots, top_p=0.71), minlength=4)
    assert counts.tolist() == [444, 334, 222, 0] or counts.tolist() == [445, 333, 222, 0]
    assert torch.bincount(drawn(shares.log().expand(1000, 4), lots, top_p=0.39)).tolist() == [1000]
    counts = torch.bincount(drawn(shares.log().expand(1000, 4), lots, min_p=0.6), minlength=4)
    assert counts.tolist() == [571, 429, 0, 0]


@pytest.mark.parametrize("how", ["greedy", "beam", "drawn"])
def test_any_of_several_ends_ends(how):
    """A search with one end more finds what ended, and nothing goes on after it."""
    how, ends = HOWS[how], (END, 17)
    model, _, _, prompt, lengths = ready("tiny_decoder")
    model.head.bias.data[17] = 1.0
    found = search(model, prompt, lengths, end=ends, limits=23, how=how, never=NEVER)
    assert not any(set(one.ids) & {*ends} for row in found for one in row)
    assert any(one.ended for row in found for one in row)
    for row, some in enumerate(found):
        own = prompt[row : row + 1, : lengths[row]]
        for one in some:
            scores = [
                logprob(model, None, own, [*one.ids, *end]) for end in ([[e] for e in ends] if one.ended else [[]])
            ]
            assert min(abs(one.logprob - score) for score in scores) < 1e-4


def test_rows_that_are_done_go_along_within_their_room():
    """A long prompt that is soon done beside a short one with much to write: together they need no more positions."""
    model = build(CASES["tiny_decoder"]).requires_grad_(False)
    limit = model.config.decoder.position_limit
    prompt = torch.full((5, limit - 2), 5)
    lengths = torch.tensor([limit - 2] + [3] * 4)
    limits = [2] + [limit - 3] * 4
    found = search(model, prompt, lengths, end=END, limits=limits, how=Decoding(beam=1), never=[END])
    assert [len(one.ids) for (one,) in found] == limits


def test_more_ways_than_a_model_has_positions():
    """Ways stand side by side at one position: as many as one likes, and each as if there were few."""
    model = build(CASES["tiny_decoder"]).requires_grad_(False)
    many = model.config.decoder.position_limit + 3
    few, all_of_them = (
        search(model, torch.tensor([[5, 7]]), end=END, limits=4, how=Decoding(temperature=1.0, n_best=n))[0]
        for n in (2, many)
    )
    assert len(all_of_them) == many
    assert [one.ids for one in all_of_them[:2]] == [one.ids for one in few]


def test_forked_rows_refuse_what_does_not_fit():
    model = build(CASES["tiny_encoder_decoder"])
    assert isinstance(model.config.decoder, Stack)
    first, ids = inputs(model.config)
    for cached in (model, build(CASES["tiny_bahdanau"])):
        cache = cached.start(cached.encode(first), max_len=5, lanes=2)
        with torch.no_grad():
            cached.decode(ids[:, :1], cache=cache)
        cache.follow(torch.zeros(B, 2, dtype=torch.long))
        with pytest.raises(InputError, match="each row of the cache goes on in 2 ways, the ids have 3 tokens a row"):
            cached.decode(ids[:, :3], cache=cache)
        with pytest.raises(InputError, match="the rows of this cache have forked"):
            cache.reorder(torch.arange(B))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "beam (0) must be at least 1"),
        ({"beam": 2, "n_best": 3}, "n_best (3) must be at most beam (2)"),
        ({"beam": 2, "temperature": 0.5}, "a beam does not draw; give one of them"),
        ({"top_p": 0.5}, "top_k, top_p and min_p: go with a temperature above 0"),
        ({"min_p": 0.5}, "top_k, top_p and min_p: go with a temperature above 0"),
        ({"temperature": 1.0, "min_p": 1.5}, "min_p (1.5) must be at least 0 and at most 1"),
        ({"repetition_penalty": 0.0, "beam": 1}, "repetition_penalty (0.0) must be above 0; 1 is none"),
        ({"repetition_penalty": 1.5}, "repetition_penalty (1.5): not with a beam of 4; take beam 1"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p (0.0) must be above 0 and at most 1"),
        ({"max_length": 3, "min_length": 5}, "max_length (3) must be at least min_length (5)"),
        ({"penalty": "none"}, "penalty ('none')"),
    ],
)
def test_settings_that_make_no_sense(options, message):
    with pytest.raises(ConfigError) as error:
        Decoding(**options).validate()
    assert message in str(error.value)
