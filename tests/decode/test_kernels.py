"""What a GPU's kernels choose is what the search chooses without them, step by step and in all that is remembered."""

import os
from importlib.util import find_spec

import pytest
import torch

from regard.decode.search import Decoding
from regard.decode.ways import Beams, Draws

CUDA = torch.cuda.is_available()
pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or not (CUDA or os.environ.get("TRITON_INTERPRET") == "1"),
    reason="needs triton, and a GPU or TRITON_INTERPRET=1",
)
DEVICE = torch.device("cuda" if CUDA else "cpu")
V = 331
HOWS = {
    "greedy": Decoding(beam=1),
    "greedy, not short": Decoding(beam=1, min_length=4),
    "beam": Decoding(beam=3, n_best=3),
    "beam, not short": Decoding(beam=4, min_length=4),
    "wide beam, plain": Decoding(beam=5, n_best=2, penalty="plain", length_penalty=1.0),
    "beam, no penalty": Decoding(beam=2, length_penalty=0.0),
}


@pytest.mark.parametrize(("end", "never"), [((2,), (0, 7)), ((2, 11), ())])
@pytest.mark.parametrize("how", HOWS)
@torch.inference_mode()
def test_kernels_choose_as_the_search_does(how, end, never):
    from regard.decode import kernels

    how, limits = HOWS[how], [9, 5, 3]
    kind = Draws if how.ways == 1 else Beams
    mine, theirs = (kind(how, limits, 16, list(end), list(never), DEVICE, None, None) for _ in range(2))
    mine.kernels = kernels
    for t in range(max(limits)):
        logits = 2 * torch.randn(3, 1 if t == 0 else how.ways, V, device=DEVICE)
        for id in end:  # now and then among the best
            logits[..., id] += 6 * torch.rand(logits.shape[:2], device=DEVICE)
        live = ~theirs.over()
        for found, expected in zip(mine.step(logits.clone()), theirs.step(logits.clone()), strict=True):
            assert torch.equal(found[live], expected[live])
        filled = theirs.of_rows["pool_rank"] > -torch.inf if kind is Beams else None
        for name, expected in theirs.of_rows.items():
            found = mine.of_rows[name]
            if name == "pool_tokens":
                for at in filled.nonzero().tolist():
                    size = theirs.pool_size[*at]
                    assert torch.equal(found[*at][:size], expected[*at][:size])
                continue
            if name.startswith("pool") and name != "pool_rank":
                found, expected = found[filled], expected[filled]
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
