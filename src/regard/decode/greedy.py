"""The most likely token, again and again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.data.tokenizer import Tokenizer
from regard.nn import Transformer
from regard.nn.outputs import Encoded


@torch.no_grad()
def greedy(
    model: Transformer, tokens: Tokenizer, *, memory: Encoded | None = None, prompt: Sequence[int] = (), most: int
) -> list[int]:
    """At most ``most`` tokens that follow the start token and the prompt, up to the end token; one row."""
    device = next(model.parameters()).device
    given = torch.tensor([[tokens.start, *prompt]], device=device)
    room = given.shape[1] + max(most, 1)
    cache = model.start(memory, max_len=room) if memory is not None else model.start(batch_size=1, max_len=room)
    out: list[int] = []
    while len(out) < most:
        step = model.decode(given, cache=cache)
        best = int(model.logits(step.hidden)[0, -1].argmax())
        if best == tokens.end:
            break
        out.append(best)
        given = torch.tensor([[best]], device=device)
    return out
