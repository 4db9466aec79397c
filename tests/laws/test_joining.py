"""Law 5 for rows that come and go: a request that joins others at any step gets what it gets alone."""

import numpy as np
import pytest
import torch

from laws.cases import DECODERS
from laws.test_decoding import END, HOWS, LIMITS, NEVER, WRITERS, AsRecorded, fixed, ready, row_of  # noqa: F401
from regard.config import Recurrent
from regard.decode import Decoding, recorded
from regard.decode.search import Search, search
from regard.decode.ways import IDLE

ARRIVALS = {  # the step at which each comes, and which row of the case it is
    "one by one": [(0, 1), (1, 0), (2, 2), (3, 1), (8, 0), (9, 2)],
    "two together, then two": [(0, 0), (0, 2), (5, 1), (5, 0), (6, 1)],
}
MAIN_WAYS = ("beam", "drawn, not again")  # one or the other of each model, all where there is time
EVERY_WAY = ("tiny_encoder_decoder", "tiny_bahdanau")


class Requests:
    """The rows of a case as requests, each by itself."""

    def __init__(self, name, how, recorder=None):
        self.model, self.first, _, self.prompt, self.lengths = ready(name, ends=0.0)
        self.how, self.recorder, self.known = how, recorder, {}

    def options(self, row, seed):
        if row not in self.known:
            self.known[row] = row_of(self.model, self.first, self.prompt, self.lengths, row)
        memory, prompt = self.known[row]
        return prompt, dict(
            memory=memory, end=END, limits=[LIMITS[row]], how=self.how.replace(seed=seed), never=NEVER, requests=[row]
        )

    def alone(self, row, seed):
        prompt, options = self.options(row, seed)
        return search(self.model, prompt, **options)[0]

    def begun(self, row, seed):
        prompt, options = self.options(row, seed)
        return Search(self.model, prompt, recorder=self.recorder, **options)

    def served(self, arrivals):
        """What each arrival gets where all go on together; and how large the batch was at each step."""
        waiting, running, who, answers, sizes = list(enumerate(arrivals)), None, {}, {}, []
        for step in range(99):
            while waiting and waiting[0][1][0] <= step:
                i, (_, row) = waiting.pop(0)
                new = self.begun(row, seed=i)
                if running is None:
                    running, who = new, {0: i}
                else:
                    [number] = running.join(new)
                    who[number] = i
            answers |= {who.pop(number): found for number, found in running.take().items()}
            if not waiting and not running.n_live:
                return answers, sizes
            running.close_up()
            sizes.append(len(running.state.rows))
            running.step()
        raise AssertionError("not done after 99 steps")


def check(requests, arrivals):
    answers, sizes = requests.served(arrivals)
    assert sorted(answers) == list(range(len(arrivals)))
    for i, (_, row) in enumerate(arrivals):
        alone = requests.alone(row, seed=i)
        assert [f.ids for f in answers[i]] == [f.ids for f in alone], (i, row)
        assert [f.score for f in answers[i]] == pytest.approx([f.score for f in alone], abs=1e-5)
        assert [f.ended for f in answers[i]] == [f.ended for f in alone]
    return sizes


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, marks=[] if name in EVERY_WAY or how == MAIN_WAYS[i % 2] else [pytest.mark.slow])
        for i, name in enumerate(WRITERS)
        for how in HOWS
    ],
)
def test_who_joins_gets_what_it_gets_alone(name, how):
    sizes = check(Requests(name, HOWS[how]), ARRIVALS["one by one"])
    assert 1 < max(sizes) < len(ARRIVALS["one by one"])  # they were together, and places were taken again or given up


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("tiny_encoder_decoder", "beam"),
        ("tiny_encoder_decoder", "drawn, not again"),
        ("tiny_bahdanau", "beam"),
        ("windows", "greedy"),
    ],
)
def test_the_same_with_fixed_shapes_and_recordings(name, how, fixed):  # noqa: F811
    """As on a GPU: rows are looked at now and then, places are taken again in place, and a step may be replayed."""
    recorder = AsRecorded()
    for arrivals in ARRIVALS.values():
        sizes = check(Requests(name, HOWS[how], recorder), arrivals)
        assert {recorded.fixed_size(size) for size in sizes} == set(sizes)
    assert bool(recorder.held) != isinstance(DECODERS[name].decoder, Recurrent)


@pytest.mark.parametrize("how", ["beam", "drawn"])
@pytest.mark.parametrize("name", ["tiny_encoder_decoder", "tiny_decoder", "tiny_bahdanau"])
def test_who_is_dropped_leaves_at_the_next_look_and_changes_nothing(name, how):
    requests = Requests(name, HOWS[how])
    running = requests.begun(0, seed=3)
    [other] = running.join(requests.begun(2, seed=4))
    running.step()
    running.drop([other])
    assert other in running.take()
    assert running.n_live == 1
    running.close_up()
    assert len(running.state.rows) == 1
    answer = {}
    while not answer:
        running.step()
        answer = running.take()
    assert [f.ids for f in answer[0]] == [f.ids for f in requests.alone(0, seed=3)]


def test_an_idle_place_stays_near_the_beginning_and_is_taken_first():
    """So that it neither outgrows its room nor makes the others look at more than they need."""
    requests = Requests("tiny_encoder_decoder", Decoding(beam=1))
    running = requests.begun(0, seed=0)
    running.join(requests.begun(1, seed=1))
    running.drop([0])
    for _ in range(2):
        running.take()
        running.step()
        assert int(running.cache.position[0]) == 1
    assert running.state.rows.tolist() == [IDLE, 1]
    assert running.join(requests.begun(2, seed=2)) == [2]
    assert running.state.rows.tolist() == [2, 1]
    assert np.array_equal(running.state.t.numpy(), running.state.written)
    assert torch.equal(running.cache.position, torch.from_numpy(running.given + running.state.written - 1))


@pytest.mark.parametrize("how", ["beam", "drawn"])
@pytest.mark.parametrize("name", ["tiny_encoder_decoder", "alibi", "rotary interleaved"])
def test_room_that_a_long_row_has_left_is_given_up(name, how):
    """And those that stay, and those that come then, find what they find alone."""
    requests = Requests(name, HOWS[how])
    running, who, answers = requests.begun(1, seed=1), {0: 1}, {}
    prompt, options = requests.options(0, seed=0)
    long = Search(requests.model, prompt, **{**options, "limits": [31]})
    [number] = running.join(long)
    running.drop([number])
    wide = running.cache.max_len
    running.take()
    for row, seed in ((1, 2), (2, 3)):
        [number] = running.join(requests.begun(row, seed=seed))
        who[number] = seed
    assert 2 * running.cache.max_len < wide
    while running.n_live:
        answers |= {who[number]: found for number, found in running.take().items()}
        running.step()
    for row, seed in ((1, 1), (1, 2), (2, 3)):
        assert [f.ids for f in answers[seed]] == [f.ids for f in requests.alone(row, seed=seed)]
