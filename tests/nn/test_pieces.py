"""The pieces against torch.nn's own and against their formulas."""

import math

import pytest
import torch
from torch import nn

from laws.cases import CASES, an_input, build, inputs, outputs
from regard import presets
from regard.config import Labels, Pooled, Positions, Stack, Tokens
from regard.nn import MLP, Layout, Transformer, alibi_slopes, document_positions, pool, rotate, sinusoid
from regard.nn.heads import Mix
from regard.nn.positions import Rotary
from regard.nn.recurrent import Cell

B, T, S = 2, 5, 7


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch.nn.Transformer's own
@pytest.mark.parametrize("norm_order", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_equals_torch_transformer(norm_order, activation):
    """Encoder, decoder, masks, padding and norms at once: torch.nn.Transformer with the same weights."""
    d, heads, layers, ff = 21, 3, 2, 31
    theirs = nn.Transformer(
        d, heads, layers, layers, ff, 0.0, activation, norm_first=norm_order == "pre", batch_first=True
    ).double().eval()  # fmt: skip
    stack = Stack(
        input=Tokens(vocab_size=53), d_model=d, n_layers=layers, n_heads=heads, d_ff=ff, max_len=S,
        norm_order=norm_order, activation=activation, final_norm=True,
    )  # fmt: skip
    model = Transformer(
        presets.tiny_encoder_decoder().replace(encoder=stack, decoder=stack.replace(causal=True))
    ).double().eval()  # fmt: skip
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.randn_like(p) * 0.3)
        for tower, stack_of in ((theirs.encoder, model.encoder.stack), (theirs.decoder, model.decoder.stack)):
            for layer, block in zip(tower.layers, stack_of.blocks, strict=True):
                copy_attention(block.self_attn, layer.self_attn)
                norms = [block.self_norm, block.mlp_norm]
                if block.cross_attn is not None:
                    copy_attention(block.cross_attn, layer.multihead_attn)
                    norms.insert(1, block.cross_norm)
                for i, norm in enumerate(norms, 1):
                    norm.load_state_dict(getattr(layer, f"norm{i}").state_dict())
                block.mlp.up.load_state_dict(layer.linear1.state_dict())
                block.mlp.down.load_state_dict(layer.linear2.state_dict())
            stack_of.norm.load_state_dict(tower.norm.state_dict())
    source, target = torch.randint(0, 53, (B, S)), torch.randint(0, 53, (B, T))
    lengths = torch.tensor([S, 3])
    hidden = theirs(
        model.encoder.embed(source), model.decoder.embed(target),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64), tgt_is_causal=True,
        src_key_padding_mask=torch.arange(S)[None] >= lengths[:, None],
        memory_key_padding_mask=torch.arange(S)[None] >= lengths[:, None],
    )  # fmt: skip
    torch.testing.assert_close(model.decode(target, model.encode(source, lengths)).hidden, hidden)


def copy_attention(ours, theirs):
    weight, bias = theirs.in_proj_weight, theirs.in_proj_bias
    d = weight.shape[1]
    if ours.fused:
        ours.qkv.weight.copy_(weight)
        ours.qkv.bias.copy_(bias)
    else:
        ours.q.weight.copy_(weight[:d])
        ours.q.bias.copy_(bias[:d])
        ours.kv.weight.copy_(weight[d:])
        ours.kv.bias.copy_(bias[d:])
    ours.out.load_state_dict(theirs.out_proj.state_dict())


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(("kind", "project"), [("gru", None), ("lstm", None), ("lstm", 7)])
def test_cell_equals_torch(kind, project):
    extra = {} if project is None else {"proj_size": project}
    theirs = {"gru": nn.GRU, "lstm": nn.LSTM}[kind](11, 13, batch_first=True, **extra).double()
    ours = Cell(kind, 11, 13, project).double()
    names = {
        "weight_x": "weight_ih_l0",
        "weight_h": "weight_hh_l0",
        "bias_x": "bias_ih_l0",
        "bias_h": "bias_hh_l0",
        "project": "weight_hr_l0",
    }
    ours.load_state_dict({mine: getattr(theirs, name) for mine, name in names.items() if hasattr(theirs, name)})
    x = torch.randn(B, T, 11, dtype=torch.float64)
    wanted = theirs(x)[0]
    state = torch.zeros(B, project or 13, dtype=torch.float64)
    torch.testing.assert_close(ours(x, state), wanted)
    cell = None if kind == "gru" else torch.zeros(B, 13, dtype=torch.float64)
    for t in range(T):
        state, cell = ours.step(x[:, t], state, cell)
        torch.testing.assert_close(state, wanted[:, t])


def test_bidirectional_encoder_equals_torch_on_packed_sequences():
    """Padding is stepped around on the device; torch packs on the host. Same states, same thought vector."""
    model = build(CASES["tiny_bahdanau"])
    tower = model.encoder
    theirs = nn.GRU(13, 11, batch_first=True, bidirectional=True).double()
    for suffix, cell in (("", tower.forwards[0]), ("_reverse", tower.backwards[0])):
        for mine, name in {
            "weight_x": "weight_ih",
            "weight_h": "weight_hh",
            "bias_x": "bias_ih",
            "bias_h": "bias_hh",
        }.items():
            getattr(theirs, f"{name}_l0{suffix}").data = getattr(cell, mine).data
    ids, lengths = torch.randint(0, 103, (3, S)), torch.tensor([S, 1, 4])
    packed = nn.utils.rnn.pack_padded_sequence(tower.embed(ids), lengths, batch_first=True, enforce_sorted=False)
    out, last = theirs(packed)
    wanted, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    got = model.encode(ids, lengths)
    real = torch.arange(S)[None] < lengths[:, None]
    torch.testing.assert_close(got.hidden[real], wanted[real])
    torch.testing.assert_close(got.summary, torch.cat([last[0], last[1]], dim=-1))


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("base", [10_000.0, 50.0])
@pytest.mark.parametrize("d", [10, 7])
def test_sinusoid_is_the_papers_formula(layout, base, d):
    table = sinusoid(T, d, base, layout)
    assert table.shape == (T, d)
    half = -(-d // 2)
    for t in range(T):
        for i in range(half):
            angle = t / base ** (2 * i / d)
            at_sin, at_cos = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, half + i)
            assert table[t, at_sin].item() == pytest.approx(math.sin(angle), abs=1e-7)
            if at_cos < d:
                assert table[t, at_cos].item() == pytest.approx(math.cos(angle), abs=1e-7)


def test_fixed_tables_survive_the_meta_device():
    with torch.device("meta"):
        model = Transformer(presets.tiny_encoder_decoder())
    assert torch.equal(model.encoder.positions.table, sinusoid(37, 29))


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_rotary_scores_depend_on_distance_alone(layout):
    rotary = Rotary(101, 12, 10_000.0, layout)
    q, k = torch.randn(1, 1, 1, 12), torch.randn(1, 1, 1, 12)

    def product(i, j):
        at = lambda n: rotary(torch.tensor([[n]]))  # noqa: E731
        return (rotate(q, at(i)) * rotate(k, at(j))).sum()

    torch.testing.assert_close(product(5, 2), product(83, 80), atol=1e-4, rtol=1e-4)
    assert not torch.isclose(product(5, 2), product(5, 3), atol=1e-4)
    torch.testing.assert_close(rotate(q, rotary(torch.tensor([[9]]))).norm(), q.norm())


def test_alibi_slopes():
    torch.testing.assert_close(alibi_slopes(8), torch.tensor([2.0 ** -(i + 1) for i in range(8)]))
    # The paper's rule for 12 heads: the 8 of above, then every other of the 16 that come next.
    torch.testing.assert_close(alibi_slopes(12)[8:], torch.tensor([2 ** (-0.5 * (2 * i + 1)) for i in range(4)]))


def test_added_and_concatenated_positions():
    config = presets.tiny_encoder(
        head=presets.Labels(n_labels=5), positions=Positions(kind="sinusoidal", join="concat", d_position=6)
    )
    model = Transformer(config)
    collected = []
    model.encoder.embed_norm = None
    model.encoder(torch.tensor([[3, 4]]), Layout(), collect=collected)
    torch.testing.assert_close(collected[0][0, :, 23:], sinusoid(2, 6))
    torch.testing.assert_close(collected[0][0, :, :23], model.encoder.embed(torch.tensor([[3, 4]]))[0])


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("relu", lambda x: max(x, 0.0)),
        ("gelu", lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2)))),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("gelu_quick", lambda x: x / (1 + math.exp(-1.702 * x))),
        ("silu", lambda x: x / (1 + math.exp(-x))),
    ],
)
def test_activations(activation, formula):
    mlp = MLP(presets.tiny_decoder(activation=activation).decoder).double()
    x = torch.randn(B, T, 29, dtype=torch.float64)
    hidden = mlp.up(x).detach().apply_(formula)
    torch.testing.assert_close(mlp(x), mlp.down(hidden))


def test_swiglu():
    mlp = MLP(presets.tiny_llama().decoder).double()
    x = torch.randn(B, T, 29, dtype=torch.float64)
    gate, up = (x @ mlp.up.weight.T).chunk(2, dim=-1)
    torch.testing.assert_close(mlp(x), (gate * gate.sigmoid() * up) @ mlp.down.weight.T)


def test_patches_are_cut_channel_row_column():
    model = Transformer(presets.tiny_vit())
    embed = model.encoder.embed
    conv = nn.Conv2d(3, 29, 3, stride=3)
    conv.weight.data, conv.bias.data = embed.project.weight.data.reshape(29, 3, 3, 3), embed.project.bias.data
    pixels = torch.randn(B, 3, 15, 15)
    out = embed(pixels)
    torch.testing.assert_close(out[:, 1:], conv(pixels).flatten(2).transpose(1, 2))
    torch.testing.assert_close(out[:, 0], embed.class_token.expand(B, -1))


@pytest.mark.parametrize("how", ["class", "end", "mean"])
def test_pooling(how):
    hidden = torch.randn(3, T, 11)
    layout = Layout(lengths=torch.tensor([5, 2, 1]), starts=torch.tensor([0, 3, 2]))
    rows = [hidden[0], hidden[1, 3:5], hidden[2, 2:3]]
    pick = {"class": lambda r: r[0], "end": lambda r: r[-1], "mean": lambda r: r.mean(0)}[how]
    torch.testing.assert_close(pool(hidden, how, layout), torch.stack([pick(r) for r in rows]))
    torch.testing.assert_close(pool(hidden, how), torch.stack([pick(r) for r in hidden]))


def test_document_positions():
    documents = torch.tensor([[4, 4, 4, 7, 7], [1, 2, 2, 2, 9]])
    assert document_positions(documents).tolist() == [[0, 1, 2, 0, 1], [0, 0, 1, 2, 0]]


def test_tied_and_shared_tables_are_one_tensor():
    model = Transformer(CASES["shared embeddings"])
    names = [n for n, p in model.named_parameters() if p.shape[0] == 101]
    assert names == ["encoder.embed.weight"]
    assert model.vocabulary_table() is model.encoder.embed.weight
    assert set(model.state_dict()) == {n for n, _ in model.named_parameters()}, "a checkpoint holds weights, each once"


def test_scaled_embeddings():
    model = build(CASES["tiny_encoder_decoder"])
    ids = torch.tensor([[3]])
    torch.testing.assert_close(model.encoder.embed(ids)[0, 0], model.encoder.embed.weight[3] * math.sqrt(29))


def test_gpt2_initialisation():
    model = Transformer(presets.tiny_decoder(init_std=0.02, d_model=290, n_heads=5, d_head=58, d_ff=1160))
    block = model.decoder.stack.blocks[0]
    assert block.self_attn.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.mlp.down.weight.std().item() == pytest.approx(0.02 / math.sqrt(4), rel=0.05)
    assert block.mlp.up.bias.abs().max() == 0


def test_a_deviation_of_ones_own_is_for_every_vector_there_is():
    wide = {"d_model": 290, "n_heads": 5, "d_head": 58, "d_ff": 31, "init_std": 0.5}
    about = pytest.approx(0.5, rel=0.1)
    bert = Transformer(presets.tiny_encoder(**wide)).encoder
    assert [w.std().item() for w in (bert.embed.weight, bert.embed.segments, bert.positions.weight)] == [about] * 3
    vit = Transformer(presets.tiny_vit(**wide)).encoder
    assert [w.std().item() for w in (vit.embed.class_token, vit.positions.weight)] == [about] * 2


@pytest.mark.parametrize("name", CASES)
def test_reset_is_a_function_of_the_seed(name):
    draws = []
    for _ in range(2):
        torch.manual_seed(5)
        draws.append(Transformer(CASES[name]).state_dict())
    assert all(torch.equal(draws[0][k], draws[1][k]) and draws[0][k].isfinite().all() for k in draws[0])


@pytest.mark.parametrize("name", CASES)
def test_memory_given_later_is_as_good_as_new(name):
    """Built on the meta device, given memory full of nonsense, reset: every weight and every table is there."""
    fresh = Transformer(CASES[name])
    with torch.device("meta"):
        late = Transformer(CASES[name])
    late.to_empty(device="cpu")
    for tensor in (*late.parameters(), *late.buffers()):
        tensor.data.fill_(7)
    for model in (fresh, late):
        torch.manual_seed(5)
        model.reset()
    for (name, mine), (_, theirs) in zip(
        (*late.named_parameters(), *late.named_buffers()),
        (*fresh.named_parameters(), *fresh.named_buffers()),
        strict=True,
    ):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("name", CASES)
def test_autocast_trains_every_shape(name):
    model = Transformer(CASES[name])
    first, second = inputs(model.config, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = outputs(model(first, second))
    out.float().square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    exact = outputs(model(first, second))
    assert (out - exact).norm() < 0.1 * exact.norm() + 0.1


def test_autocast_carries_the_residual_stream_at_its_width():
    model = Transformer(presets.tiny_encoder_decoder())
    ids = torch.tensor([[3, 4, 5]])
    with torch.autocast("cpu", torch.bfloat16):
        out = model.decode(ids, model.encode(ids)).hidden
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), model.decode(ids, model.encode(ids)).hidden, atol=0.1, rtol=0.1)


def test_positions_take_their_base_and_layout_from_the_configuration():
    config = presets.tiny_encoder(positions=Positions(kind="sinusoidal", base=50.0, layout="half"))
    assert torch.equal(Transformer(config).encoder.positions.table, sinusoid(37, 29, 50.0, "half"))


def test_segments_join_the_tokens():
    embed = build(CASES["tiny_encoder"]).encoder.embed
    ids, segments = torch.tensor([[3, 4, 5]]), torch.tensor([[0, 1, 1]])
    torch.testing.assert_close(embed(ids, segments), embed.weight[ids] + embed.segments[segments])
    torch.testing.assert_close(embed(ids), embed.weight[ids] + embed.segments[0])


def test_grid_cells_are_read_row_by_row():
    embed = build(CASES["tiny_captioner"]).encoder.embed
    pixels = torch.randn(B, 3, 12, 12, dtype=torch.float64)
    cells, out = embed.stages(pixels), embed(pixels)
    for y in range(3):
        for x in range(3):
            torch.testing.assert_close(out[:, 3 * y + x], embed.project(cells[:, :, y, x]))


def test_mix_is_elmos_formula():
    mix = Mix(3).double()
    mix.weights.data, mix.gamma.data = torch.tensor([0.3, -1.0, 2.0]).double(), torch.tensor(1.7).double()
    layers = [torch.randn(B, T, 11, dtype=torch.float64) for _ in range(3)]
    share = [math.exp(w) / sum(map(math.exp, (0.3, -1.0, 2.0))) for w in (0.3, -1.0, 2.0)]
    wanted = 1.7 * (share[0] * layers[0] + share[1] * layers[1] + share[2] * layers[2])
    torch.testing.assert_close(mix(layers), wanted, atol=1e-6, rtol=1e-6)


def test_contrastive_head_written_out():
    """Class token of the image, last real token of the text, unit length, and CLIP's temperature, whose limit is a
    matter of training: what others trained may be beyond."""
    model = build(CASES["tiny_clip"])
    head = model.head
    with torch.no_grad():
        head.log_scale.fill_(math.log(1 / 0.07))
    pixels, ids, lengths = an_input(model.config.encoder, 3), an_input(model.config.text, 2, T), torch.tensor([T, 2])
    pair = model(pixels, ids, target_layout=lengths)
    image = model.encode(pixels).hidden[:, 0] @ head.first.weight.T
    text = model.encode_text(ids, lengths).hidden[torch.arange(2), lengths - 1] @ head.text.weight.T
    wanted = (image / image.norm(dim=-1, keepdim=True)) @ (text / text.norm(dim=-1, keepdim=True)).T / 0.07
    torch.testing.assert_close(pair.logits, wanted)
    with torch.no_grad():
        head.log_scale.fill_(9.0)
    assert model(pixels, ids).scale.item() == pytest.approx(math.exp(9.0))
    assert Transformer(CASES["tiny_clip"]).head.log_scale.exp().item() == pytest.approx(1 / 0.07)


def test_initialisation_of_the_rest():
    wide = {"d_model": 290, "n_heads": 5, "d_head": 58, "d_value": 58, "d_ff": 1160}
    normal = lambda std: pytest.approx(std, rel=0.05)  # noqa: E731
    model = Transformer(presets.tiny_encoder_decoder(init_std=0.02, norm_order="pre", **wide))
    block = model.decoder.stack.blocks[1]
    assert block.self_attn.out.weight.std().item() == normal(0.02 / math.sqrt(4))
    assert block.cross_attn.out.weight.std().item() == normal(0.02 / math.sqrt(4))
    post = Transformer(presets.tiny_encoder_decoder(init_std=0.02, norm_order="post", **wide))
    assert post.decoder.stack.blocks[1].self_attn.out.weight.std().item() == normal(0.02)
    assert post.decoder.stack.blocks[1].mlp.down.weight.std().item() == normal(0.02)
    xavier = Transformer(presets.tiny_encoder_decoder(**wide).replace(head=presets.Vocabulary(tied=False)))
    assert xavier.encoder.embed.weight.std().item() == normal(290**-0.5)
    assert xavier.head.weight.std().item() == normal(290**-0.5)
    bound = math.sqrt(6 / (290 + 1160))
    assert xavier.encoder.stack.blocks[0].mlp.up.weight.abs().max().item() == pytest.approx(bound, rel=0.01)


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
@pytest.mark.parametrize("which", ["dropout", "embed_dropout", "attn_dropout", "mlp_dropout"])
def test_each_dropout_drops_in_training_alone(which, score):
    model = Transformer(presets.tiny_encoder_decoder(score=score, **{which: 0.3}))
    ids = torch.tensor([[3, 4, 5]])
    model.train()
    assert not torch.equal(model(ids, ids), model(ids, ids))
    model.eval()
    assert torch.equal(model(ids, ids), model(ids, ids))


@pytest.mark.parametrize(
    "config",
    [
        presets.tiny_lstm().replace(decoder=presets.tiny_lstm().decoder.replace(dropout=0.3)),
        presets.tiny_lstm().replace(decoder=presets.tiny_lstm().decoder.replace(embed_dropout=0.3)),
        presets.tiny_bahdanau().replace(decoder=presets.tiny_bahdanau().decoder.replace(dropout=0.3)),
        presets.tiny_encoder(head=Labels(n_labels=5, dropout=0.3)),
        presets.tiny_encoder(head=Pooled(n_labels=5, dropout=0.3)),
    ],
    ids=["recurrent", "recurrent input", "readout", "labels", "pooled"],
)
def test_dropout_of_ancestors_and_heads(config):
    model = Transformer(config)
    first, second = inputs(config, dtype=torch.float32)
    model.train()
    assert not torch.equal(model(first, second), model(first, second))
    model.eval()
    assert torch.equal(model(first, second), model(first, second))


def test_bahdanaus_decoder_written_out():
    """s_i = f(s_{i-1}, y_{i-1}, c_i) with c_i = softmax(w . tanh(W1 s_{i-1} + W2 h_j)) h: equations 4 to 6 of the paper."""
    model = build(CASES["tiny_bahdanau"])
    tower = model.decoder
    source, target, lengths = torch.randint(0, 103, (B, S)), torch.randint(0, 101, (B, T)), torch.tensor([S, 3])
    memory = model.encode(source, lengths)
    out = model.decode(target, memory).hidden
    w, of_state, of_memory = tower.attn.score_w[0], tower.attn.score_q[0], tower.attn.score_k[0]
    cell = tower.forwards[0]
    for row in range(B):
        h = memory.hidden[row, : lengths[row]]
        state = torch.tanh(tower.bridge(memory.summary[row]))
        for t in range(T):
            y = tower.embed.weight[target[row, t]]
            context = (torch.tanh(state @ of_state + h @ of_memory) @ w).softmax(0) @ h
            state, _ = cell.step(torch.cat([y, context])[None], state[None], None)
            state = state[0]
            wanted = torch.tanh(tower.readout(torch.cat([state, context, y])))
            torch.testing.assert_close(out[row, t], wanted)


def test_elmos_second_layer_has_a_residual():
    model = build(CASES["elmo tagger"])
    tower, ids = model.encoder, torch.randint(0, 101, (B, T))
    layers = model.encode(ids).layers
    zero = torch.zeros(B, 11, dtype=torch.float64)
    first = tower.forwards[0](tower.embed(ids), zero)
    torch.testing.assert_close(layers[0][..., :11], first)
    torch.testing.assert_close(layers[1][..., :11], tower.forwards[1](first, zero) + first)


def test_weights_of_half_precision_are_formed_in_float32():
    from regard.nn import Attention

    for score in ("scaled_dot", "additive"):
        layer = Attention(21, n_heads=3, score=score).bfloat16()
        _, attended = layer(torch.randn(B, T, 21).bfloat16(), capture=True)
        weights = attended.weights()
        assert weights.dtype == torch.float32
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, 3, T))


@pytest.mark.parametrize("how", ["class", "end", "mean"])
def test_an_empty_row_padded_on_the_left_can_be_pooled(how):
    layout = Layout(lengths=torch.tensor([0, 2]), starts=torch.tensor([5, 3]))
    assert pool(torch.randn(2, 5, 11), how, layout).isfinite().all()
