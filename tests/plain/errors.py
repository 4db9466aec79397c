"""Bad input: one line with the name, the value, the rule and the way out, before anything runs on tensors."""

import pytest
import torch

from laws.cases import CASES, build
from regard.config import ConfigError, InputError
from regard.nn import Attention, Layout, Transformer

IDS = torch.tensor([[5, 6, 7], [8, 9, 10]])


def model(name, dtype=torch.float32):
    return build(CASES[name], dtype)


def raises(message, call):
    with pytest.raises((InputError, ConfigError)) as error:
        call()
    assert "\n" not in str(error.value)
    assert message in str(error.value), str(error.value)


def test_ids():
    decoder = model("tiny_decoder")
    raises("id 101 is out of range: the vocabulary has 101, 0 to 100", lambda: decoder(torch.tensor([[101]])))
    raises("id -1 is out of range", lambda: decoder(torch.tensor([[-1, 3]])))
    raises("must be int64 or int32, rows by positions", lambda: decoder(torch.tensor([1, 2])))
    raises("must be int64 or int32, rows by positions", lambda: decoder(torch.rand(2, 3)))


def test_segments():
    encoder = model("tiny_encoder")
    raises("segment 2 is out of range: this model has 2, 0 to 1", lambda: encoder(IDS, segments=IDS * 0 + 2))
    raises("must have the shape of the ids, (2, 3)", lambda: encoder(IDS, segments=IDS[:, :2] * 0))
    raises("this model has none", lambda: model("tiny_elmo")(IDS, segments=IDS * 0))


@pytest.mark.parametrize("name", ["tiny_decoder", "tiny_llama", "sinusoidal half"])
def test_sequences_past_the_position_limit(name):
    long = torch.zeros(1, 38, dtype=torch.long)
    raises(
        "38 tokens are more than the 37 positions of this model; shorten the input or raise max_len",
        lambda: model(name)(long),
    )


def test_position_ids_past_the_limit():
    layout = Layout(positions=IDS * 0 + 37)
    raises("position 37 is out of range: this model has 37, 0 to 36", lambda: model("tiny_decoder")(IDS, layout=layout))


@pytest.mark.parametrize("name", ["no positions", "alibi"])
def test_without_a_table_of_positions_there_is_no_limit(name):
    decoder, ids = model(name), torch.zeros(1, 50, dtype=torch.long)
    cache = decoder.start(batch_size=1, max_len=53)
    cached = decoder.logits(decoder.decode(ids, cache=cache).hidden)
    torch.testing.assert_close(cached, decoder(ids), atol=1e-4, rtol=1e-4)


def test_layouts():
    decoder = model("tiny_decoder")
    raises(
        "lengths of shape (3,) must have the shape (2,), rows",
        lambda: decoder(IDS, layout=torch.tensor([1, 2, 3])),
    )
    raises(
        "length 4 is out of range: rows are 3 long, 0 to 3",
        lambda: decoder(IDS, layout=torch.tensor([1, 4])),
    )
    raises("length -1 is out of range", lambda: decoder(IDS, layout=torch.tensor([1, -1])))
    raises(
        "start + length 5 is out of range",
        lambda: decoder(IDS, layout=Layout(lengths=torch.tensor([3, 3]), starts=torch.tensor([0, 2]))),
    )
    raises(
        "documents of shape (2, 2) must have the shape (2, 3), rows by positions",
        lambda: decoder(IDS, layout=Layout(documents=IDS[:, :2])),
    )
    raises(
        "mask of shape (3, 4) must have shape (3, 3)",
        lambda: decoder(IDS, layout=Layout(allowed=torch.ones(3, 4, dtype=torch.bool))),
    )
    raises(
        "mask of shape (2, 5, 3, 3) must have shape",
        lambda: decoder(IDS, layout=Layout(allowed=torch.ones(2, 5, 3, 3, dtype=torch.bool))),
    )
    raises(
        "mask of shape (5, 3, 3) must have shape",
        lambda: decoder(IDS, layout=Layout(allowed=torch.ones(5, 3, 3, dtype=torch.bool))),
    )
    raises(
        "mask has dtype torch.float32; it must be boolean",
        lambda: decoder(IDS, layout=Layout(allowed=torch.ones(3, 3))),
    )
    raises("not for recurrent models", lambda: model("tiny_lstm")(IDS, layout=Layout(documents=IDS)))


def test_caches():
    decoder = model("tiny_decoder")
    cache = decoder.start(batch_size=2, max_len=4)
    decoder.decode(IDS, cache=cache)
    raises(
        "the cache holds 4 tokens, 3 are used and 3 more do not fit; start it with max_len=6 or more",
        lambda: decoder.decode(IDS, cache=cache),
    )
    raises("the cache has 2 rows, the ids have 1", lambda: decoder.decode(IDS[:1], cache=cache))
    raises("a cache of 38 tokens is more than the 37 positions", lambda: decoder.start(batch_size=2, max_len=38))
    raises("start needs the encoder's memory", lambda: model("tiny_encoder_decoder").start(max_len=4))
    raises("a batch_size", lambda: decoder.start(max_len=4))
    raises(
        "starts: not with a cache",
        lambda: decoder.decode(
            IDS[:, :1], cache=decoder.start(batch_size=2, max_len=4), layout=Layout(starts=torch.tensor([0, 0]))
        ),
    )
    raises("no decoder, and so no cache", lambda: model("tiny_encoder").start(max_len=4))
    recurrent = model("tiny_lstm")
    raises(
        "the cache has 2 rows, the ids have 1",
        lambda: recurrent.decode(IDS[:1], cache=recurrent.start(batch_size=2, max_len=4)),
    )


def test_layouts_with_a_cache_and_a_prefix():
    decoder = model("tiny_decoder")
    layout = Layout(prefix=torch.tensor([3, 1]), lengths=torch.tensor([2, 3]))
    raises("prefix reaches past a row's real tokens", lambda: decoder(IDS, layout=layout))
    raises("prefix 4 is out of range", lambda: decoder(IDS, layout=Layout(prefix=torch.tensor([4, 1]))))
    cache = decoder.start(batch_size=2, max_len=4)
    raises("documents: not with a cache", lambda: decoder.decode(IDS, cache=cache, layout=Layout(documents=IDS)))
    translator = model("tiny_encoder_decoder")
    memory = translator.encode(IDS)
    cache = translator.start(memory, max_len=4)
    raises("give the memory, or a cache started with it", lambda: translator.decode(IDS, memory, cache=cache))
    raises(
        "both source and target must say theirs", lambda: translator.decode(IDS, memory, layout=Layout(documents=IDS))
    )


def test_what_does_not_belong_together():
    translator, decoder = model("tiny_encoder_decoder"), model("tiny_decoder")
    memory = translator.encode(IDS)
    raises("the memory has 2 rows, the decoder 1", lambda: translator.decode(IDS[:1], memory))
    raises("the memory has 2 rows, the decoder 7", lambda: translator.start(memory, batch_size=7, max_len=4))
    raises("memory (Tensor) must be what encode returns", lambda: translator.decode(IDS, memory.hidden))
    raises("this decoder has no encoder", lambda: decoder.start(memory, max_len=4))
    raises("takes one input, not two", lambda: decoder(IDS, IDS))
    raises("is another model's", lambda: decoder.decode(IDS, cache=model("tiny_lstm").start(batch_size=2, max_len=4)))
    raises(
        "the memory has 1 rows, the queries 2",
        lambda: Attention(6, d_memory=5)(torch.rand(2, 2, 6), torch.rand(1, 2, 5)),
    )
    raises("hidden is 5 wide; this head scores 29", lambda: decoder.logits(torch.rand(1, 3, 5)))
    cache = decoder.start(batch_size=2, max_len=4)
    raises("rows must be a tensor of 2 whole numbers", lambda: cache.reorder(torch.tensor([0])))
    raises("row 5 is out of range: the cache has 2, 0 to 1", lambda: cache.reorder(torch.tensor([5, 0])))
    raises("must have at least one of each", lambda: decoder.start(batch_size=2, max_len=0))


def test_values_of_the_wrong_type():
    decoder = model("tiny_decoder")
    raises("lengths of dtype torch.float32 must be int64 or int32", lambda: decoder(IDS, layout=torch.tensor([2.5, 1])))
    raises(
        "lengths of dtype torch.bool must be int64 or int32", lambda: decoder(IDS, layout=torch.tensor([True, False]))
    )
    raises("layout (3) must be a Layout, or a tensor of lengths", lambda: decoder(IDS, layout=3))
    raises("input (list) must be a tensor", lambda: decoder([[1, 2]]))
    raises("capture ('0.self') must be a list of layers: ['0.self']", lambda: decoder.decode(IDS, capture="0.self"))
    raises("config (str) must be a ModelConfig; a preset's is presets.preset(NAME)", lambda: Transformer("gpt2"))
    raises("config (dict) must be a ModelConfig", lambda: Transformer({}))
    raises(
        "heads ([]) must name at least one",
        lambda: decoder.decode(IDS, capture=["0.self"]).attended["0.self"].weights([]),
    )
    raises("dropout (2.0) must be at least 0 and below 1", lambda: Attention(6, dropout=2.0))


def test_recurrent_models():
    lstm = model("tiny_lstm")
    raises("positions: not for recurrent models", lambda: lstm(IDS, layout=Layout(positions=IDS)))
    raises("ids have no positions", lambda: lstm(torch.zeros(2, 0, dtype=torch.long)))


def test_images():
    vit = model("tiny_vit")
    raises("image of 16 x 15 pixels must be 15 x 15", lambda: vit(torch.rand(2, 3, 16, 15)))
    raises("must be floats (B, 3, 15, 15)", lambda: vit(torch.rand(2, 1, 15, 15)))
    raises("must be floats (B, 3, 15, 15)", lambda: vit(torch.zeros(2, 3, 15, 15, dtype=torch.uint8)))
    raises("image of 13 x 13 pixels must be 12 x 12", lambda: model("tiny_captioner").encode(torch.rand(1, 3, 13, 13)))
    raises("vectors of shape (2, 12) must be (B, 13)", lambda: model("tiny_vec2seq").encode(torch.rand(2, 12)))


def test_the_wrong_shape_of_model():
    raises("this model has no encoder; call decode", lambda: model("tiny_decoder").encode(IDS))
    raises("this model has no decoder; call encode", lambda: model("tiny_encoder").decode(IDS))
    raises("this model has no text encoder", lambda: model("tiny_encoder").encode_text(IDS))
    raises("give the memory, or a cache started with it", lambda: model("tiny_encoder_decoder").decode(IDS))
    raises("no logits of one input", lambda: model("tiny_clip").logits(torch.rand(1, 2, 29)))
    raises("no vocabulary head, but one of kind 'pooled'", lambda: model("tiny_vit").vocabulary_table())
    raises("takes two inputs; the second is missing", lambda: model("tiny_encoder_decoder")(IDS))


def test_capture_of_a_layer_that_is_not_there():
    raises(
        "capture ('2.self') is no attention layer of this tower",
        lambda: model("tiny_decoder").decode(IDS, capture=["2.self"]),
    )


def test_weights_of_a_head_that_is_not_there():
    seen = model("tiny_decoder").decode(IDS, capture=["0.self"]).attended["0.self"]
    raises("head 3 is out of range: this layer has 3, 0 to 2", lambda: seen.weights([0, 3]))


def test_attention_widths():
    raises("d_query (10) must be divisible by n_heads (3); try 9 or 12", lambda: Attention(10, n_heads=3))
    raises("n_heads (0) and n_kv_heads (None) must be at least 1", lambda: Attention(10, n_heads=0))
    raises("try 12", lambda: Attention(5, n_heads=12))
    raises("attends to its own input", lambda: Attention(6)(torch.rand(1, 2, 6), torch.rand(1, 3, 6)))
    raises("attends to a memory; give one", lambda: Attention(6, d_memory=5)(torch.rand(1, 2, 6)))
    raises("keys and values together", lambda: Attention(6, d_memory=5)(*(torch.rand(1, 2, d) for d in (6, 5, 5))))
    raises("n_heads (6) must be divisible by n_kv_heads (4)", lambda: Attention(12, n_heads=6, n_kv_heads=4))
    raises("must be equally wide for a dot score", lambda: Attention(10, d_memory=12, identity=("q", "k"), score="dot"))
    raises("score ('cosine') must be one of dot, scaled_dot, bilinear, additive", lambda: Attention(10, score="cosine"))
    raises(
        "d_memory (7) must be divisible by n_kv_heads (2)",
        lambda: Attention(10, d_memory=7, n_heads=2, identity=("k",), score="bilinear"),
    )
    raises("identity ('w') must be among q, k, v, out", lambda: Attention(10, identity=("w",)))


def test_a_row_with_nothing_to_attend_gives_finite_gradients():
    """An empty source: zeros from every head, finite everywhere."""
    translator = model("tiny_encoder_decoder", torch.float64).train()
    lengths = torch.tensor([0, 3])
    seen = translator.encode(IDS, lengths, capture=["0.self"])
    assert seen.attended["0.self"].weights()[0].abs().max() == 0
    translator(IDS, IDS, layout=lengths).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in translator.parameters())
