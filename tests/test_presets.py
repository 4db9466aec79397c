"""Published parameter counts, on the meta device, where 175 billion of them cost nothing."""

import pytest
import torch

from regard import presets
from regard.config import ConfigError, ModelConfig
from regard.nn import Transformer


def count(config) -> int:
    with torch.device("meta"):
        return Transformer(config).n_parameters()


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (presets.gpt1(), 116_534_784),
        (presets.gpt2("small"), 124_439_808),
        (presets.gpt2("medium"), 354_823_168),
        (presets.gpt2("large"), 774_030_080),
        (presets.gpt2("xl"), 1_557_611_200),
        (presets.bert_base(), 109_482_240),
        (presets.bert_large(), 335_141_888),
        (presets.vit_b16(), 86_567_656),
        (presets.vit_l16(), 304_326_632),
        (presets.clip_b32(), 151_277_313),
        (presets.vaswani_base(), 63_082_496),
        (presets.vaswani_big(), 214_245_376),
    ],
)
def test_published_counts(config, published):
    assert count(config) == published


@pytest.mark.parametrize(
    ("size", "published"),
    # The paper's table rounds. Its XL, 24 heads of 128 at width 2,048, has 1.52B, not the 1.3B printed beside it.
    [("small", 125e6), ("medium", 356e6), ("large", 760e6), ("2.7b", 2.65e9), ("6.7b", 6.66e9), ("13b", 12.95e9),
     ("175b", 175e9)],
)  # fmt: skip
def test_gpt3_counts(size, published):
    assert count(presets.gpt3(size)) == pytest.approx(published, rel=0.005)


def test_gpt3_alternates_dense_and_banded():
    with torch.device("meta"):
        model = Transformer(presets.gpt3("small"))
    assert model.decoder.stack.windows[:4] == [0, 128, 0, 128]


@pytest.mark.parametrize(
    ("tower", "residual", "attention", "inner", "embedding"),
    [
        (presets.vaswani_base().decoder, 0.1, 0.0, 0.0, 0.1),  # 5.4: sub-layer outputs, and embeddings plus positions
        (presets.vaswani_big().encoder, 0.3, 0.0, 0.0, 0.3),
        (presets.gpt1().decoder, 0.1, 0.1, 0.0, 0.1),  # 4.1: residual, embedding and attention
        (presets.gpt2().decoder, 0.1, 0.1, 0.0, 0.1),
        (presets.bert_base().encoder, 0.1, 0.1, 0.0, 0.1),  # A.2: on all layers
        (presets.vit_b16().encoder, 0.1, 0.0, 0.1, 0.1),  # B.1: after every dense layer but qkv, and the positions
        (presets.clip_b32().encoder, 0.0, 0.0, 0.0, 0.0),
        (presets.llama_small().decoder, 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_dropout_is_where_the_paper_has_it(tower, residual, attention, inner, embedding):
    given = (tower.dropout, tower.attn_dropout, tower.mlp_dropout, tower.embed_dropout)
    assert given == (residual, attention, inner, embedding)


@pytest.mark.parametrize("name", presets.names())
def test_round_trip_through_json_and_validation(name):
    config = presets.preset(name).validate()
    assert ModelConfig.from_json(config.to_json()) == config


def test_toml_starts_from_a_preset(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text('[model]\npreset = "gpt2"\nsize = "medium"\n[model.decoder]\nn_layers = 3\n')
    config = presets.from_toml(path)
    assert config.decoder.n_layers == 3
    assert config.decoder.d_model == 1024


def test_a_preset_takes_its_arguments_from_the_table():
    config = presets.resolve({"preset": "vaswani_base", "vocab_size": 53, "decoder": {"n_layers": 2}})
    assert (config.encoder.input.vocab_size, config.decoder.input.vocab_size) == (53, 53)
    assert (config.encoder.n_layers, config.decoder.n_layers) == (6, 2)
    with pytest.raises(ConfigError, match="vocb: preset vaswani_base does not take it; known: vocab_size, max_len"):
        presets.preset("vaswani_base", vocb=53)


def test_toml_may_change_the_kind_of_a_part(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text('[model]\npreset = "tiny_decoder"\n[model.head]\nkind = "labels"\nn_labels = 5\n')
    assert presets.from_toml(path).head.n_labels == 5


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"preset": "gpt22"}, "preset ('gpt22') is not known; did you mean gpt2?"),
        ({"preset": 5}, "preset (5) is not known"),
        ({"preset": "gpt2", "size": "huge"}, "gpt2 size ('huge') is not known; known: small, medium, large, xl"),
        ({"preset": "gpt1", "size": "small"}, "size: unknown key"),
        ({"preset": "gpt2", "decoder": {"n_layer": 3}}, "decoder.n_layer: unknown key; did you mean n_layers?"),
        ({}, "head: missing"),
        ({"preset": "gpt2", "size": 3}, "gpt2 size (3) is not known"),
        ({"preset": "gpt2", "size": [3]}, "size ([3]) must be a number or text"),
        ({"preset": "tiny_decoder", "changes": 3}, "changes: unknown key"),
        (3, "model (3) must be a table"),
    ],
)
def test_mistakes_in_a_model_table(table, message):
    with pytest.raises(ConfigError) as error:
        presets.resolve(table)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "cannot be read"), ("[model", "not valid TOML"), ("[train]\n", "has no [model] table")],
)
def test_mistakes_in_a_toml_file(tmp_path, text, message):
    path = tmp_path / "model.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        presets.from_toml(path)
