"""Our dropout, a CPU's and a compiled GPU's: its rate, its scale, its seed and its gradient; nothing where it is off."""

import pytest
import torch

from regard.nn.dropout import LEVELS, add_dropout, dropout, hashed_dropout

N, M = 1009, 1013
WAYS = {"words": lambda x, p: dropout(x, p, training=True), "hashes": hashed_dropout}
ways = pytest.mark.parametrize("way", WAYS)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@ways
def test_rate_and_scale(p, dtype, way):
    torch.manual_seed(0)
    out = WAYS[way](torch.ones(N, M, dtype=dtype), p)
    assert out.dtype == dtype
    dropped = (out == 0).double().mean().item()
    assert abs(dropped - p) < 5 * (p * (1 - p) / (N * M)) ** 0.5 + 0.5 / LEVELS
    its_own = round(p * LEVELS) / LEVELS if way == "words" else p
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / (1 - its_own), dtype=dtype).item()}


@ways
def test_elements_are_independent_of_their_neighbours(way):
    """Of each pair of 16 in a row, and of those below each other, both are dropped as often as chance would: of words,
    which hold four elements, and of hashes, whose places differ in few bits."""
    torch.manual_seed(0)
    gone = (WAYS[way](torch.ones(N * 16), 0.5) == 0).double().view(-1, 16)
    beside, below = (gone.T @ torch.cat([gone, gone.roll(1, 0)], 1) / N).split(16, 1)
    together = torch.cat([beside[~torch.eye(16, dtype=torch.bool)], below.flatten()])
    assert (together - 0.25).abs().max() < 5 * (0.25 * 0.75 / N) ** 0.5


@ways
def test_a_seed_repeats_it_and_another_does_not(way):
    x = torch.randn(N, 3)

    def draw(seed):
        torch.manual_seed(seed)
        return WAYS[way](x, 0.4), WAYS[way](x, 0.4)

    first, again, other = draw(1), draw(1), draw(2)
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))
    assert not first[0].equal(first[1])
    assert not first[0].equal(other[0])


def test_hashes_of_other_words_are_other_masks():
    """Not one mask, shifted or with its places exchanged: whatever two words differ in, half of what one drops the other
    does too."""
    torch.manual_seed(0)
    first, second = (hashed_dropout(torch.ones(2**14), 0.5) == 0 for _ in range(2))
    places = torch.arange(2**14)
    for bit in range(14):
        for other in (second[places ^ (1 << bit)], second.roll(1 << bit)):
            assert abs((first & other).double().mean() - 0.25) < 5 * (0.25 * 0.75 / 2**14) ** 0.5


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.0, False), (0.7, False)])
def test_off_changes_nothing_and_draws_nothing(p, training):
    x, branch, state = torch.randn(5, 7), torch.randn(5, 7), torch.get_rng_state()
    assert dropout(x, p, training).equal(x)
    assert add_dropout(x, branch, p, training).equal(x + branch)
    assert torch.get_rng_state().equal(state)


def test_a_sum_is_the_residual_plus_the_dropped_branch():
    x, branch = torch.randn(11, 13, dtype=torch.float64), torch.randn(11, 13, dtype=torch.float64)
    torch.manual_seed(3)
    out = add_dropout(x, branch, 0.3, training=True)
    torch.manual_seed(3)
    torch.testing.assert_close(out, x + dropout(branch, 0.3, training=True))


def test_the_gradient_is_what_was_multiplied_by():
    x, branch = (torch.randn(11, 13, requires_grad=True) for _ in range(2))
    torch.manual_seed(5)
    scale = dropout(torch.ones_like(branch), 0.3, training=True)
    torch.manual_seed(5)
    (alone,) = torch.autograd.grad(dropout(branch, 0.3, training=True).sum(), branch)
    assert alone.equal(scale)
    torch.manual_seed(5)
    of_x, of_branch = torch.autograd.grad(add_dropout(x, branch, 0.3, training=True).sum(), (x, branch))
    assert of_x.equal(torch.ones_like(x))
    assert of_branch.equal(scale)


def test_every_shape_is_served():
    """Words hold four elements: what is left over, nothing at all, and a scalar; and a view that is not in order."""
    for shape in [(0,), (), (1,), (2, 3), (7,), (3, 0, 5)]:
        assert dropout(torch.ones(shape), 0.5, training=True).shape == shape
    view = torch.randn(5, 7).T
    out = dropout(view, 0.5, training=True)
    torch.testing.assert_close(out, torch.where(out == 0, 0, view * 2))


def test_probabilities_that_no_level_is_near_go_to_torch():
    assert dropout(torch.ones(N), 1.0, training=True).equal(torch.zeros(N))
    with pytest.raises(ValueError, match="probability"):
        dropout(torch.ones(N), -0.5, training=True)


def test_a_wider_residual_stays_wide():
    """float16 is not what the residual stream is carried in, only its branches."""
    out = add_dropout(torch.ones(N), torch.ones(N, dtype=torch.float16), 0.5, training=True)
    assert out.dtype == torch.float32
    assert set(out.tolist()) == {1.0, 3.0}
