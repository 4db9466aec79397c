"""Law 2: cached decoding equals uncached, token by token, for every shape, whatever is done to the rows."""

import pytest
import torch

from laws.cases import (
    CASES,
    DECODERS,
    EXACT,
    TINY,
    B,
    S,
    T,
    an_input,
    build,
    decoded,
    inputs,
    lengths_of,
    memory_of,
)
from regard import presets
from regard.config import InputError, Positions, Stack
from regard.nn import Layout, masks
from regard.nn.cache import Cache


@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "rotary", "alibi"])
@torch.no_grad()
def test_padding_may_stand_behind_the_last_place(kind):
    """What is real fits; what fills up the shorter rows would not."""
    model = build(presets.tiny_decoder(positions=Positions(kind=kind), max_len=11, d_head=6))
    [ids] = [x for x in inputs(model.config, rows=2) if x is not None]
    first, then = ids[:, :4].repeat(1, 3)[:, :10], ids[:, :3]
    cache = model.start(batch_size=2, max_len=11)
    decoded(model, first, layout=torch.tensor([10, 5]), cache=cache)
    got = decoded(model, then, layout=torch.tensor([1, 3]), cache=cache)
    for row, (n, m) in enumerate([(10, 1), (5, 3)]):
        whole = decoded(model, torch.cat([first[row : row + 1, :n], then[row : row + 1, :m]], dim=1))
        torch.testing.assert_close(got[row : row + 1, :m], whole[:, n:], **EXACT)


@torch.no_grad()
def test_what_a_cache_or_a_position_cannot_say_is_refused():
    model = build(CASES["tiny_encoder_decoder"])
    source, _ = inputs(model.config, rows=1)
    packed = model.encode(source, Layout(documents=(torch.arange(source.shape[1]) // 3)[None]))
    with pytest.raises(InputError, match="documents: a cache remembers one text a row"):
        model.start(packed, max_len=5)
    model = build(presets.tiny_decoder(positions=Positions(kind="alibi")))
    [ids] = [x for x in inputs(model.config, rows=1) if x is not None]
    with pytest.raises(InputError, match="positions: ALiBi counts how far tokens stand apart"):
        model.decode(ids, layout=Layout(positions=3 * torch.arange(ids.shape[1])[None]))


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_cached_equals_uncached_token_by_token(name):
    model = build(CASES[name])
    first, second = inputs(model.config)
    ids = first if second is None else second
    layout = lengths_of(first, torch.tensor([S, 2, 5])) if second is not None else None
    memory = memory_of(model, first, layout)
    whole = decoded(model, ids, memory)
    cache = model.start(memory, batch_size=None if memory else B, max_len=T + 2)
    steps = [decoded(model, ids[:, t : t + 1], cache=cache) for t in range(T)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, **EXACT)
    assert cache.position.tolist() == [T] * B


@pytest.mark.parametrize("rows", [1, B])
@pytest.mark.parametrize("name", ["tiny_decoder", "tiny_encoder_decoder"])
@torch.no_grad()
def test_a_step_is_the_same_by_the_ways_of_a_gpu(name, rows, monkeypatch):
    """There no row's place is known to the host, and masks are added to scores."""
    model = build(TINY[name])
    first, second = (None if x is None else x[:rows] for x in inputs(model.config))
    ids = first if second is None else second
    layout = lengths_of(first, torch.tensor([S - 2, 2, 5][:rows])) if second is not None else None
    memory = memory_of(model, first, layout)
    whole = decoded(model, ids, memory)
    monkeypatch.setattr(Cache, "place", lambda self, slots: None)
    monkeypatch.setattr(masks, "_in_every_layer", lambda device: True)
    cache = model.start(memory, batch_size=None if memory else rows, max_len=T + 2)
    steps = [decoded(model, ids[:, t : t + 1], cache=cache) for t in range(T)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, **EXACT)


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_prompts_of_different_lengths_share_a_cache(name):
    """Prefill a padded batch at once, then go on: every row as if it were alone."""
    model = build(CASES[name])
    first, second = inputs(model.config)
    ids = first if second is None else second
    memory = memory_of(model, first)
    prompt, n = torch.tensor([3, 1, 5]), 2
    cache = model.start(memory, batch_size=None if memory else B, max_len=T)
    decoded(model, ids[:, :5], cache=cache, layout=prompt)
    assert cache.position.tolist() == prompt.tolist()
    rows = torch.arange(B)
    going_on = [decoded(model, ids[rows, prompt + i][:, None], cache=cache) for i in range(n)]
    for row in range(B):
        alone = None if memory is None else model.encode(first[row : row + 1])
        wanted = decoded(model, ids[row : row + 1, : prompt[row] + n], alone)
        got = torch.cat([step[row] for step in going_on])
        torch.testing.assert_close(got, wanted[0, -n:], **EXACT)


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_reordered_rows_go_on_as_the_rows_they_were(name):
    """Rows that stand at different positions, over memories padded on both sides; the memory is left as it was."""
    model = build(CASES[name])
    first, second = inputs(model.config)
    ids = first if second is None else second
    layout = Layout()
    if second is not None and not first.is_floating_point():
        layout = Layout(lengths=torch.tensor([S - 2, 2, 5]), starts=torch.tensor([1, 3, 0]))
    memory = memory_of(model, first, layout)
    prompt, order = torch.tensor([4, 1, 3]), torch.tensor([2, 0, 0])
    wanted = decoded(model, ids, memory)[order, prompt[order]]
    cache = model.start(memory, batch_size=None if memory else B, max_len=T)
    decoded(model, ids[:, :4], cache=cache, layout=prompt)
    cache.reorder(order)
    assert cache.position.tolist() == prompt[order].tolist()
    got = decoded(model, ids[order, prompt[order]][:, None], cache=cache)
    torch.testing.assert_close(got[:, 0], wanted, **EXACT)
    again = decoded(model, ids, memory)[order, prompt[order]]
    assert torch.equal(again, wanted), "a cache reorders its own copy of the memory"


@pytest.mark.parametrize("name", [n for n, c in DECODERS.items() if c.encoder is not None])
@torch.no_grad()
def test_beams_of_one_source_need_not_move_its_keys(name):
    model = build(CASES[name])
    first, _ = inputs(model.config, rows=1)
    first, ids = first.expand(B, *first.shape[1:]), an_input(model.config.decoder, B, T)
    rows, outs = torch.tensor([2, 0, 0]), []
    for cross in (True, False):
        cache = model.start(model.encode(first), max_len=T)
        decoded(model, ids[:, :4], cache=cache)
        cache.reorder(rows, cross=cross)
        outs.append(decoded(model, ids[:, 4:5], cache=cache))
    torch.testing.assert_close(outs[0], outs[1], **EXACT)


@pytest.mark.parametrize("name", [n for n, c in DECODERS.items() if c.encoder is None and isinstance(c.decoder, Stack)])
@torch.no_grad()
def test_a_finished_row_is_filled_again(name):
    """One row goes on where it was while another starts anew beside it, its cache nearly full."""
    model = build(CASES[name])
    ids = an_input(model.config.decoder, 2, T)
    cache = model.start(batch_size=2, max_len=T)
    decoded(model, ids[:, : T - 1], cache=cache)
    cache.reset(torch.tensor([1]))
    fresh = an_input(model.config.decoder, 2, 3)
    fresh[0, 0] = ids[0, T - 1]
    out = decoded(model, fresh, cache=cache, layout=torch.tensor([1, 3]))
    assert cache.position.tolist() == [T, 3]
    torch.testing.assert_close(out[0, 0], decoded(model, ids[:1])[0, T - 1], **EXACT)
    torch.testing.assert_close(out[1], decoded(model, fresh[1:])[0], **EXACT)


@pytest.mark.parametrize("name", ["tiny_decoder", "tiny_llama", "sinusoidal half"])
@torch.no_grad()
def test_positions_of_ones_own_go_with_a_cache(name):
    model = build(CASES[name])
    ids, positions = an_input(model.config.decoder, 1, T), torch.tensor([[2, 3, 5, 7, 11, 13, 17]])
    whole = model(ids, layout=Layout(positions=positions))
    cache = model.start(batch_size=1, max_len=T)
    steps = [
        decoded(model, ids[:, t : t + 1], cache=cache, layout=Layout(positions=positions[:, t : t + 1]))
        for t in range(T)
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, **EXACT)
    assert not torch.allclose(whole, model(ids))


@torch.no_grad()
def test_a_prefix_of_padded_prompts_in_a_cache():
    model = build(TINY["tiny_decoder"])
    ids = an_input(model.config.decoder, 2, T)
    layout = Layout(prefix=torch.tensor([3, 2]), lengths=torch.tensor([5, 4]))
    whole = decoded(model, ids[:, :5], layout=layout)
    cache = model.start(batch_size=2, max_len=T)
    cached = decoded(model, ids[:, :5], cache=cache, layout=layout)
    torch.testing.assert_close(cached[0], whole[0], **EXACT)
    torch.testing.assert_close(cached[1, :4], whole[1, :4], **EXACT)


@torch.no_grad()
def test_a_prefix_is_given_once_and_stays_seen():
    model = build(CASES["tiny_decoder"])
    ids, layout = an_input(model.config.decoder, 2, T), Layout(prefix=torch.tensor([3, 5]))
    cache = model.start(batch_size=2, max_len=T)
    parts = [decoded(model, ids[:, :5], cache=cache, layout=layout), decoded(model, ids[:, 5:], cache=cache)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(ids, layout=layout), **EXACT)


@pytest.mark.parametrize("name", ["tiny_decoder", "tiny_llama", "tiny_encoder_decoder", "tiny_bahdanau", "tiny_lstm"])
def test_a_cache_holds_no_graph(name):
    model = build(CASES[name])
    first, second = inputs(model.config)
    ids = first if second is None else second
    memory = memory_of(model, first)
    cache = model.start(memory, batch_size=None if memory else B, max_len=T)
    for t in range(2):
        decoded(model, ids[:, t : t + 1], cache=cache)
    held = [cache.k, cache.v] if hasattr(cache, "k") else [*cache.state, *cache.cells]
    assert not any(tensor.requires_grad for tensor in held)


@pytest.mark.parametrize("name", ["tiny_decoder", "tiny_llama", "alibi", "windows", "additive"])
@torch.no_grad()
def test_capture_with_a_cache_sees_the_whole_past(name):
    model = build(CASES[name])
    first, second = inputs(model.config)
    ids, memory = (first, None) if second is None else (second, model.encode(first))
    layers = model.attention_layers()["decoder"]
    whole = model.decode(ids, memory, capture=layers).attended
    cache = model.start(memory, batch_size=None if memory else B, max_len=T)
    model.decode(ids[:, :-1], cache=cache)
    for layer, attended in model.decode(ids[:, -1:], cache=cache, capture=layers).attended.items():
        torch.testing.assert_close(attended.weights(), whole[layer].weights()[:, :, -1:], **EXACT)
