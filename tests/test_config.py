"""Every problem at once, each a line with the name, the value, the rule and the way out."""

import subprocess
import sys

import pytest

from regard import presets
from regard.config import (
    ConfigError,
    Contrastive,
    Grid,
    Labels,
    ModelConfig,
    Patches,
    Pooled,
    Positions,
    Vector,
    Vocabulary,
)  # fmt: skip

GOOD = presets.tiny_decoder()
STACK = GOOD.decoder
PAIR = presets.tiny_encoder_decoder()
GRU, LSTM = presets.tiny_bahdanau(), presets.tiny_lstm()


def problems(config) -> list[str]:
    with pytest.raises(ConfigError) as error:
        config.validate()
    return error.value.problems


def decoder(**changes):
    return GOOD.replace(decoder=STACK.replace(**changes))


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (decoder(d_model=100, n_heads=12, d_head=None), "decoder: d_model (100) must be divisible by n_heads (12); try 96 or 108"),
        (decoder(n_kv_heads=2), "decoder: n_heads (3) must be divisible by n_kv_heads (2); try 2 or 4"),
        (decoder(dropout=1.0), "decoder: dropout (1.0) must be at least 0 and below 1"),
        (decoder(norm_eps=0.0), "decoder: norm_eps (0.0) must be above 0"),
        (decoder(windows=(0, -1)), "decoder: windows ([0, -1]) must be radii of at least 1, or 0 for a dense layer"),
        (decoder(max_len=None), "decoder: max_len (None) must say how many tokens fit"),
        (decoder(positions=Positions(kind="rotary")), "decoder: d_head (7) must be even for rotary positions"),
        (
            decoder(positions=Positions(kind="rotary"), d_head=8, score="additive"),
            "decoder: score ('additive') must be 'dot' or 'scaled_dot' for rotary positions",
        ),
        (
            decoder(positions=Positions(kind="learned", join="concat")),
            "decoder.positions: d_position (None) must say how wide the concatenated positions are",
        ),
        (
            decoder(positions=Positions(kind="rotary", join="concat", d_position=4), d_head=8),
            "decoder.positions: join ('concat') does not fit rotary positions; only sinusoidal and learned can be",
        ),
        (decoder(causal=False), "decoder.causal (False) must be true: a decoder may not see the future"),
        (decoder(input=STACK.input.replace(vocab_size=0)), "decoder.input: vocab_size (0) must be at least 1"),
        (decoder(init_std=-1.0), "decoder: init_std (-1.0) must be above 0, or left out for Xavier's"),
        (ModelConfig(head=Vocabulary()), "encoder and decoder (both missing): a model needs at least one of them"),
        (GOOD.replace(share_embeddings=True), "share_embeddings (True) needs an encoder and a decoder"),
        (PAIR.replace(share_embeddings=True), "share_embeddings (True) needs one vocabulary, not 103 and 101"),
        (GOOD.replace(head=Contrastive(d_embed=5)), "head (kind 'contrastive'): a contrastive head and a text encoder need each other"),
        (
            presets.tiny_vit(input=Patches(image_size=16, patch_size=3)),
            "encoder.input: image_size (16) must be divisible by patch_size (3); try 15 or 18",
        ),
        (
            presets.tiny_vit(input=Patches(image_size=15, patch_size=3, class_token=False)),
            "head.pool ('class') needs a class token, which patches without one have not; or pool = 'mean'",
        ),
        (presets.tiny_vit(input=Grid(image_size=10, widths=(3, 5))), "encoder.input: image_size (10) must be divisible by 2 ** the number of stages (4); try 8 or 12"),
        (
            presets.tiny_bahdanau().replace(decoder=presets.tiny_bahdanau("dot").decoder.replace(d_hidden=19)),
            "decoder.d_hidden (19) must equal the encoder's width (22) for a dot score; or score = 'bilinear'",
        ),
        (
            presets.tiny_lstm().replace(decoder=presets.tiny_lstm().decoder.replace(bidirectional=True)),
            "decoder.bidirectional (True) must be false: a decoder may not see the future",
        ),
        (
            decoder(positions=Positions(kind="learned", join="concat", d_position=6)),
            "head.tied (True) needs token vectors as wide (23) as what is scored (29); set tied = false",
        ),
        (presets.tiny_encoder(head=Labels(n_labels=0)), "head: n_labels (0) must be at least 1"),
        (GOOD.replace(pair_head=Pooled(n_labels=2)), "pair_head: a second, pooled head goes with an encoder alone"),
        (decoder(positions=Positions(kind="alibi", base=1.0)), "decoder.positions: base (1.0) must be above 1; the paper has 10000"),
        (decoder(positions=Positions(kind="learned", join="concat", d_position=29)), "decoder: d_position (29) must be below d_model (29)"),
        (decoder(positions=Positions(kind="learned", join="concat", d_position=0)), "decoder.positions: d_position (0) must be at least 1"),
        (decoder(input=Patches(image_size=15, patch_size=3)), "decoder.input (kind 'patches') must be tokens"),
        (presets.tiny_clip().replace(decoder=STACK), "text: a second encoder goes with an encoder and without a decoder"),
        (PAIR.replace(head=Contrastive(d_embed=5)), "head (kind 'contrastive') does not fit a decoder"),
        (presets.tiny_clip().replace(head=Labels(n_labels=5)), "head (kind 'labels'): a contrastive head and a text encoder need each other"),
        (presets.tiny_clip().replace(head=Contrastive(d_embed=0)), "head: d_embed (0) must be at least 1"),
        (presets.tiny_clip().replace(head=Contrastive(d_embed=5, temperature=0.0)), "head: temperature (0.0) must be above 0; CLIP starts at 0.07"),
        (presets.tiny_vit().replace(head=Vocabulary()), "head (kind 'vocabulary') needs tokens under it, not patches"),
        (presets.tiny_vit(input=Grid(image_size=12, widths=())), "encoder.input: widths ([]) must name at least one stage, each at least 1 wide"),
        (presets.tiny_vit(input=Vector(d_vector=5, n_slots=1)), "encoder.input: n_slots (1) must be at least 2"),
        (presets.tiny_tagger().replace(head=Labels(n_labels=5, dropout=1.0)), "head: dropout (1.0) must be at least 0 and below 1"),
        (presets.tiny_captioner().replace(share_embeddings=True), "share_embeddings (True) needs tokens on both sides"),
        (
            PAIR.replace(decoder=PAIR.decoder.replace(input=PAIR.encoder.input, d_model=31), share_embeddings=True),
            "share_embeddings (True) needs one width, not 29 and 31",
        ),
        (ModelConfig(decoder=GRU.decoder, head=Vocabulary(tied=False)), "decoder.score ('additive') needs an encoder to attend to"),
        (GRU.replace(decoder=GRU.decoder.replace(d_attention=None)), "decoder: d_attention (None) must say how wide the additive score's hidden layer is"),
        (GRU.replace(decoder=GRU.decoder.replace(n_layers=2)), "decoder: score ('additive') needs one forward GRU layer, Bahdanau's decoder"),
        (GRU.replace(decoder=GRU.decoder.replace(cell="lstm")), "decoder: score ('additive') needs one forward GRU layer, Bahdanau's decoder"),
        (GRU.replace(encoder=GRU.encoder.replace(d_project=5)), "encoder: d_project (5) needs cell 'lstm', not 'gru'"),
        (LSTM.replace(decoder=LSTM.decoder.replace(d_hidden=0)), "decoder: d_hidden (0) must be at least 1"),
        (LSTM.replace(decoder=LSTM.decoder.replace(dropout=1.0)), "decoder: dropout (1.0) must be at least 0 and below 1"),
        (decoder(n_layers=-1), "decoder: n_layers (-1) must be at least 0"),
        (presets.tiny_vit(input=Grid(image_size=12, widths=(5, 7))), "head.pool ('class') needs a class token, which a grid has not; or pool = 'mean'"),
        (PAIR.replace(decoder=PAIR.decoder.replace(input=PAIR.encoder.input.replace(scale=False)), share_embeddings=True), "share_embeddings (True) needs one scale and n_segments on both sides"),
        (GRU.replace(encoder=presets.tiny_bahdanau("dot").decoder), "encoder.score ('dot') must be left out: an encoder has nothing to attend to"),
    ],
)  # fmt: skip
def test_each_rule(config, line):
    assert line in problems(config)


def test_all_problems_are_raised_at_once():
    found = problems(decoder(d_ff=0, dropout=2.0, n_kv_heads=2, input=STACK.input.replace(vocab_size=-1)))
    assert len(found) == 4


def test_unknown_keys_wrong_types_and_broken_rules_are_raised_together():
    data = GOOD.to_dict()
    data["decoder"].update(n_layer=3, dropout=1.5)
    data["decoder"]["input"]["vocab_size"] = 0
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_dict(data)
    assert len(error.value.problems) == 3


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda d: d["decoder"].update(d_modl=3), "decoder.d_modl: unknown key; did you mean d_model?"),
        (lambda d: d["decoder"].pop("d_ff"), "decoder.d_ff: missing"),
        (lambda d: d["decoder"].update(d_ff="many"), "decoder.d_ff ('many') must be a whole number"),
        (lambda d: d["decoder"].update(d_ff=True), "decoder.d_ff (True) must be a whole number"),
        (lambda d: d["decoder"].update(norm="batch"), "decoder.norm ('batch') must be one of layer, rms"),
        (lambda d: d["decoder"].update(windows=3), "decoder.windows (3) must be a list"),
        (lambda d: d["decoder"].update(kind=[]), "decoder.kind ([]) must be one of transformer, recurrent"),
        (lambda d: d["decoder"].update(kind="cnn"), "decoder.kind ('cnn') must be one of transformer, recurrent"),
        (lambda d: d.update(decoder=7), "decoder (7) must be a table of keys"),
        (lambda d: d["decoder"]["input"].pop("kind"), "decoder.input.kind (None) must be one of tokens, patches, grid, vector"),
        (lambda d: d.update(positions="here"), "positions: unknown key; known: encoder, decoder"),
    ],
)  # fmt: skip
def test_plain_values_that_do_not_fit(change, line):
    data = GOOD.to_dict()
    change(data)
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_dict(data)
    assert any(line in problem for problem in error.value.problems), error.value.problems


def test_a_whole_number_serves_as_a_number_and_null_as_none():
    data = GOOD.to_dict()
    data["decoder"].update(dropout=0, n_kv_heads=None)
    config = ModelConfig.from_dict(data)
    assert config.decoder.dropout == 0.0
    assert config.decoder.n_kv_heads is None


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            decoder(positions=Positions(kind="rotray")),
            "decoder.positions.kind ('rotray') must be one of sinusoidal, learned",
        ),
        (decoder(norm="batch"), "decoder.norm ('batch') must be one of layer, rms"),
        (decoder(activation="gelu_new"), "decoder.activation ('gelu_new') must be one of relu"),
        (decoder(d_ff="31"), "decoder.d_ff ('31') must be a whole number"),
        (decoder(d_ff=31.0), "decoder.d_ff (31.0) must be a whole number"),
        (decoder(norm_eps=float("nan")), "decoder.norm_eps (nan) must be a finite number"),
        (decoder(n_layers=10**10), "decoder.n_layers (10000000000) must be at most 2147483647"),
        (decoder(n_layers=2000), "decoder: n_layers (2000) must be at most 1024"),
        (decoder(windows=(10**20,)), "decoder.windows[0] (100000000000000000000) must be at most 2147483647"),
        (decoder(n_layers=0), "decoder.n_layers (0) must be at least 1; only an encoder may be a bare embedding"),
        (
            GOOD.replace(head=Pooled(n_labels=2, mix=True)),
            "head.mix (True) goes with an encoder alone, whose layers it mixes",
        ),
        (
            decoder(input=STACK.input.replace(n_segments=2)),
            "decoder.input.n_segments (2) must be 0: only an encoder has segments",
        ),
        (
            presets.tiny_elmo(head=presets.MASKED_TOKENS.replace(tied=False)),
            "head.transform (True) needs a Transformer's activation and norm; set transform = false",
        ),
        (
            presets.tiny_clip().replace(
                encoder=presets.tiny_vit(input=Patches(image_size=15, patch_size=3, class_token=False)).encoder
            ),
            "head.pool ('class') needs a class token, which patches without one have not; or pool = 'mean'",
        ),
    ],
)
def test_a_configuration_built_in_python_is_held_to_the_same(config, line):
    assert any(line in problem for problem in problems(config)), problems(config)


def test_json_that_is_none():
    with pytest.raises(ConfigError, match="not valid JSON"):
        ModelConfig.from_json("{")


def test_frozen():
    with pytest.raises(AttributeError):
        GOOD.decoder.d_model = 3


def test_configuration_needs_no_torch():
    code = "import sys, regard, regard.config, regard.presets, regard.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
