"""What is shown of attention is what the model attends with, in every family; and heads that are off are off."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import regard
from laws.cases import CASES, build, inputs
from regard import Model, Transformer, presets, recipe
from regard.config import Labels, Pooled
from regard.data.tokenizer import Tokenizer
from regard.look.ablation import ablate, ablate_each, without
from regard.look.attention import Attention, chosen, habit, head_reads
from regard.schema import InputError

TOKENS = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
PHOTO = np.random.default_rng(7).integers(0, 256, (31, 43, 3), dtype=np.uint8)


def bare(config) -> Model:
    """A model that takes tensors only."""
    return Model(build(config), "none", None)


def attends(config) -> bool:
    return any(Transformer(config).attention_layers().values())


ATTENDING = sorted(name for name, config in CASES.items() if attends(config))


def looked(config, **options) -> tuple[Model, Attention, tuple[torch.Tensor, ...]]:
    model, given = bare(config), [x for x in inputs(config, rows=1) if x is not None]
    return model, model.attention(*given, **options), tuple(given)


def spoken(name: str, task: str, **more) -> Model:
    """A tiny model of a preset that reads bytes, or images."""
    table = {"preset": name, **more.pop("table", {})}
    config = recipe.model_config(table, vocab_size=len(TOKENS), n_labels=more.pop("n_labels", None))
    torch.manual_seed(5)
    net = Transformer(config)
    for parameter in net.parameters():  # so large that attention is far from even
        nn.init.normal_(parameter, std=0.5)
    return Model(net, task, TOKENS, **more)


def test_a_translator_reads_one_text():
    with pytest.raises(InputError, match=r"^2 texts: this model reads one; put it into quotes"):
        spoken("tiny_encoder_decoder", "translate").attention(("a dog", "runs"))


# -- the laws, for every shape ----------------------------------------------------------------


@pytest.mark.parametrize("name", ATTENDING)
def test_rows_sum_to_one_and_the_past_sees_no_future(name):
    model, seen, _ = looked(CASES[name])
    assert seen.names == tuple(chosen(model))
    for layer in seen.layers:
        assert layer.weights.dtype == np.float32
        assert layer.weights.shape == (layer.n_heads, len(layer.rows), len(layer.columns))
        np.testing.assert_allclose(layer.weights.sum(-1), 1, atol=1e-5)
        tower = getattr(model.config, layer.name.split(".")[0])
        if getattr(tower, "causal", False) and not layer.is_cross:
            assert not np.triu(layer.weights, 1).any()
            assert (layer.weights[:, 1:, 0] > 0).any()


@pytest.mark.parametrize("name", ATTENDING)
def test_weights_times_values_through_the_projection_are_what_the_layer_hands_on(name):
    model, seen, given = looked(CASES[name])
    own: dict[str, list[torch.Tensor]] = {layer: [] for layer in seen.names}
    for layer, outs in own.items():
        model.net.attention(layer).register_forward_hook(lambda _, __, out, outs=outs: outs.append(out[0]))
    model.net(*given)  # the whole model, on its usual kernels
    for layer in seen.layers:
        attention, (_, _, _, v, *_) = model.net.attention(layer.name), layer.attended
        v = v.repeat_interleave(layer.n_heads // v.shape[1], dim=1)
        made = (torch.from_numpy(layer.weights).double()[None] @ v).transpose(1, 2).flatten(-2)
        torch.testing.assert_close(attention.out(made), torch.cat(own[layer.name], 1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ATTENDING)
def test_stopping_early_shows_the_same_and_runs_nothing_above(name):
    model, whole, given = looked(CASES[name])
    ran: list[str] = []
    for where, module in model.net.named_modules():
        if where in ("head", "mix") or where.rpartition(".")[0].endswith("stack.blocks"):
            module.register_forward_hook(lambda *_, where=where: ran.append(where))
    for layer in whole.names:
        ran.clear()
        seen = model.attention(*given, layers=layer)
        assert seen.names == (layer,)
        np.testing.assert_array_equal(seen.layers[0].weights, whole[layer].weights)
        tower, number, _ = layer.split(".")
        above = [where for where in ran if where.startswith(f"{tower}.") and int(where.split(".")[-1]) > int(number)]
        assert not above
        assert not {"head", "mix"} & set(ran)
        if hasattr(getattr(model.net, tower), "stack"):
            assert f"{tower}.stack.blocks.{number}" in ran, "or nothing was watched"


@pytest.mark.parametrize("name", ATTENDING)
def test_without_no_head_nothing_changes_and_afterwards_neither(name):
    model, _, given = looked(CASES[name])
    whole = model.logits(*given)
    some = [(layer, 0) for layer in chosen(model)]
    with without(model, []):
        assert same(model.logits(*given), whole)
    with without(model, some):
        assert not same(model.logits(*given), whole)
    assert same(model.logits(*given), whole)


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(flat(one), flat(other), strict=True))


def flat(out) -> list[torch.Tensor]:
    return [out] if isinstance(out, torch.Tensor) else list(out)


@pytest.mark.parametrize("name", ATTENDING)
def test_a_head_that_is_off_is_one_whose_columns_of_the_projection_are_zero(name):
    model, _, given = looked(CASES[name])
    for layer in chosen(model):
        attention = model.net.attention(layer)
        head, n = attention.n_heads - 1, attention.n_heads
        with without(model, [(layer, head)]):
            off = model.logits(*given)
        if isinstance(attention.out, nn.Identity):  # a recurrent decoder: its only context is gone
            assert n == 1
            continue
        kept = attention.out.weight.detach().clone()
        with torch.no_grad():
            attention.out.weight.unflatten(1, (n, -1))[:, head] = 0
            zeroed = model.logits(*given)
            attention.out.weight.copy_(kept)
        for a, b in zip(flat(off), flat(zeroed), strict=True):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


# -- rollout and entropy ----------------------------------------------------------------------


def written_out(layers, n_columns, memory=None):
    """Abnar and Zuidema in plain loops; a cross-attention brings in what reached the memory."""
    n = layers[0][0].shape[1]
    flow = [[float(i == j) for j in range(n_columns)] for i in range(n)]
    for weights, is_cross in layers:
        n_heads, _, n_keys = weights.shape
        after = []
        for i in range(n):
            mean = [sum(float(weights[h, i, j]) for h in range(n_heads)) / n_heads for j in range(n_keys)]
            source = [[0.0] * n + list(row) for row in memory] if is_cross else flow
            row = [flow[i][c] + sum(mean[j] * source[j][c] for j in range(n_keys)) for c in range(n_columns)]
            after.append([x / (1 + sum(mean)) for x in row])
        flow = after
    return flow


@pytest.mark.parametrize(
    "name", ["tiny_decoder", "tiny_encoder", "tiny_vit", "windows", "tiny_encoder_decoder", "alibi"]
)
def test_rollout_equals_the_formula_written_out(name):
    _, seen, _ = looked(CASES[name])
    flow = seen.rollout()
    mine = [(x.weights, x.is_cross) for x in seen.layers if x.name.split(".")[0] == flow.name.split(",")[0]]
    memory = None
    if name == "tiny_encoder_decoder":
        encoder = [(x.weights, False) for x in seen.layers if x.name.startswith("encoder.")]
        memory = written_out(encoder, encoder[0][0].shape[1])
        np.testing.assert_allclose(seen.rollout("encoder").weights, memory, atol=1e-6)
        assert flow.columns == (*seen["decoder.0.self"].columns, *seen["decoder.0.cross"].columns)
    np.testing.assert_allclose(flow.weights, written_out(mine, len(flow.columns), memory), atol=1e-6)
    np.testing.assert_allclose(flow.weights.sum(1), 1, atol=1e-5)


def test_rollout_needs_every_layer_up_to_the_highest():
    model, seen, given = looked(CASES["tiny_encoder_decoder"])
    assert (
        model.attention(*given, layers=["encoder", "decoder.0"]).rollout().weights.shape == seen.rollout().weights.shape
    )
    with pytest.raises(
        InputError, match="rollout: multiplies all self-attentions of a tower from 0 up; of the encoder"
    ):
        model.attention(*given, layers="encoder.1").rollout()
    with pytest.raises(InputError, match="the decoder reads what all layers of the encoder made"):
        model.attention(*given, layers=["encoder.0", "decoder"]).rollout()
    with pytest.raises(InputError, match=r"of the decoder, has decoder\.0\.cross"):
        looked(CASES["tiny_bahdanau"])[1].rollout()


def test_entropy_is_the_mean_over_rows_in_bits():
    _, seen, _ = looked(CASES["tiny_encoder_decoder"])
    for name, bits in seen.entropy().items():
        for head, found in enumerate(bits):
            rows = [-sum(w * math.log2(w) for w in row if w > 0) for row in seen[name].weights[head].astype(float)]
            assert found == pytest.approx(sum(rows) / len(rows), abs=1e-4)


def test_where_a_head_looks_most():
    class_token = np.full((3, 3), 0.1) + 0.7 * np.eye(3)[[0, 0, 0]]
    looks = looked(CASES["tiny_encoder"])[1].layers[0].head(0)
    names = dict(name="x", rows=("a", "b", "c"), columns=("a", "b", "c"))
    assert habit(type(looks)(**names, weights=class_token)) == ("a (1)", pytest.approx(0.8))
    assert habit(type(looks)(**names, weights=np.eye(3)))[0] == "itself"
    assert habit(type(looks)(**names, weights=np.eye(3)[[1, 2, 2]]))[0] == "the one after"


# -- every family, from what people give ---------------------------------------------------------


def test_text_in_an_encoder():
    filler = spoken("tiny_encoder", "fill")
    seen = filler.attention("a[MASK]")
    assert seen.layers[0].rows == seen.layers[0].columns == ("<s>", "<0x61>", "<mask>", "</s>")
    assert filler.attention("a[SEP]b").layers[0].rows == ("<s>", "<0x61>", "</s>", "<0x62>", "</s>")
    judge = spoken("tiny_encoder", "classify", table={"head": {"kind": "pooled"}}, n_labels=2, labels=["no", "yes"])
    assert judge.attention(("a", "b")).layers[0].rows == ("<s>", "<0x61>", "</s>", "<0x62>", "</s>")
    tagger = spoken("tiny_tagger", "tag", n_labels=3, labels=["B-DOG", "I-DOG", "O"])
    assert tagger.attention("ab c").layers[0].rows == ("<s>", "<0x61>", "<0x62>", "<0x20>", "<0x63>", "</s>")


def test_the_second_text_is_read_as_the_second():
    judge = spoken("tiny_encoder", "classify", table={"head": {"kind": "pooled"}}, n_labels=2, labels=["no", "yes"])
    seen = judge.attention(("a", "b"))["encoder.0.self"]
    ids = torch.tensor([[TOKENS.start, *TOKENS.encode("a"), TOKENS.end, *TOKENS.encode("b"), TOKENS.end]])
    segments = torch.tensor([[0, 0, 0, 1, 1]]) if judge.config.last.input.n_segments > 1 else None
    own = judge.net.encode(ids, segments=segments, capture=["0.self"]).attended["0.self"].weights()[0]
    np.testing.assert_allclose(seen.weights, own.detach().numpy(), atol=1e-6)


def test_text_in_a_language_model():
    seen = spoken("tiny_decoder", "generate").attention("ab")
    assert seen.layers[0].rows == ("<s>", "<0x61>", "<0x62>")


@pytest.mark.parametrize("name", ["tiny_encoder_decoder", "tiny_bahdanau"])
def test_a_translator_looks_at_its_own_translation_unless_told(name):
    model = spoken(name, "translate", longest=11)
    seen = model.attention("ab")
    assert seen.said == model.translate(["ab"], whole=True)[0].text
    told = model.attention("ab", "c")
    assert told["decoder.0.cross"].rows == ("<0x63>", "</s>"), "what is written"
    assert told["decoder.0.cross"].columns == ("<0x61>", "<0x62>", "</s>")
    if name == "tiny_encoder_decoder":
        assert told["decoder.0.self"].rows == ("<s>", "<0x63>"), "what is read"
        assert {x.name.split(".")[0] + x.name[-5:] for x in told.layers} == {
            "encoder.self",
            "decoder.self",
            "decodercross",
        }
        assert model.attention("ab", layers="encoder").said is None, "nothing needs to be written"


def test_a_translator_is_looked_at_as_it_reads_and_writes():
    """What marks a line is not read, and capitals that are spelled are read as small letters."""
    model = regard.load("en-de", device="cpu")
    for text in ("THE SHOP IS CLOSED TODAY.", "- The shop is closed today.", "The shop is closed. It is late."):
        said = model.translate([text], whole=text[-5:] == "late.")[0]
        seen = model.attention(text)
        [layer] = [layer for layer in seen.layers if layer.name == "decoder.1.cross"]
        assert layer.rows[:-1] == said.tokens
        assert layer.columns[-1] == "</s>"
        assert model.trace(text).answer.text == seen.said == said.text
        loss = model.ablate(text, heads=[]).loss
        assert loss == pytest.approx(-said.logprob / len(layer.rows), rel=1e-4)


def test_heads_may_be_numbers_of_numpys():
    model = regard.load("en-de", device="cpu")
    seen = model.attention("A dog runs.")
    layer = next(layer for layer in seen.layers if layer.name == "decoder.1.cross")
    sharpest = seen.entropy()["decoder.1.cross"].argmin()
    assert np.array_equal(layer.head(sharpest).weights, layer.head(int(sharpest)).weights)
    assert model.ablate("A dog runs.", heads=[("decoder.1.cross", sharpest)]).heads == (
        ("decoder.1.cross", int(sharpest)),
    )
    with pytest.raises(InputError, match=r"head \(1\.0\) is not in layer"):
        layer.head(1.0)


def test_patches_have_a_place_and_the_image_is_there():
    config = presets.tiny_vit()
    model = Model(Transformer(config), "classify", None, labels=[str(i) for i in range(11)])
    seen = model.attention(PHOTO)
    assert seen.layers[0].rows[:3] == ("[CLS]", "1,1", "1,2")
    assert seen.layers[0].rows[-1] == f"{seen.side},{seen.side}"
    assert seen.image is not None
    assert seen.image.shape == (seen.image.shape[0],) * 2 + (3,)
    assert head_reads(seen.rollout().weights, "class").shape == (1 + seen.side**2,)


@pytest.mark.parametrize("name", ["tiny_captioner", "tiny_show_attend_tell"])
def test_captioners_look_at_cells_of_the_image(name):
    model = spoken(name, "caption", longest=7)
    seen = model.attention(PHOTO, "ab")
    cross = seen["decoder.0.cross"]
    assert cross.rows == ("<0x61>", "<0x62>", "</s>")
    assert cross.columns[-1] == f"{seen.side},{seen.side}"
    assert model.attention(PHOTO).said == model.caption([PHOTO])[0].text


def test_two_encoders_look_at_an_image_a_text_or_both():
    model = spoken("tiny_clip", "match")
    both = model.attention(PHOTO, "ab")
    assert {name.split(".")[0] for name in both.names} == {"encoder", "text"}
    assert both["text.0.self"].rows == ("<s>", "<0x61>", "<0x62>", "</s>")
    alone = model.attention("ab")
    assert {name.split(".")[0] for name in alone.names} == {"text"}
    np.testing.assert_array_equal(alone["text.0.self"].weights, both["text.0.self"].weights)
    assert {name.split(".")[0] for name in model.attention(PHOTO).names} == {"encoder"}
    with pytest.raises(InputError, match=r"layer encoder\.0\.self has nothing to read; give an image and a text"):
        model.attention("ab", layers="encoder.0")


@pytest.mark.parametrize(
    ("make", "given", "options", "message"),
    [
        (lambda: spoken("tiny_decoder", "generate"), " ", {}, "text 1 is empty"),
        (
            lambda: spoken("tiny_decoder", "generate"),
            "a" * 999,
            {},
            "text of 999 tokens is longer than this model reads at",
        ),
        (
            lambda: spoken("tiny_decoder", "generate"),
            "a",
            {"target": "b"},
            "this model reads one input, and writes nothing",
        ),
        (
            lambda: spoken("tiny_decoder", "generate"),
            "a",
            {"layers": 7},
            "layer (7) is not in this model; known: decoder.0",
        ),
        (lambda: spoken("tiny_decoder", "generate"), "a", {"layers": "decoder.0.sel"}, "did you mean decoder.0.self?"),
        (lambda: spoken("tiny_lstm", "generate"), "a", {}, "has no attention to look at"),
        (lambda: spoken("tiny_encoder_decoder", "translate"), "a", {"target": 5}, "target (int) must be a text"),
        (lambda: spoken("tiny_encoder", "classify"), ("a", "b", "c"), {}, "3 texts are too many"),
        (lambda: bare(CASES["tiny_vec2seq"]), "a", {"target": torch.tensor([5])}, "this model reads vectors"),
        (lambda: bare(CASES["tiny_decoder"]), torch.zeros(2, 3, dtype=torch.long), {}, "(2, 3) must be one row with"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_in_one_line(make, given, options, message):
    with pytest.raises(InputError) as error:
        make().attention(given, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_layer_is_found_by_a_part_of_its_name_if_only_one_has_it():
    seen = looked(CASES["tiny_encoder_decoder"])[1]
    assert seen["1.cross"] is seen["decoder.1.cross"]
    with pytest.raises(
        InputError, match=r"layer \(1\) may be any of encoder\.1\.self, decoder\.1\.self, decoder\.1\.cross"
    ):
        seen[1]
    with pytest.raises(InputError, match=r"head \(5\) is not in layer decoder\.1\.cross; its heads are 0 to 2"):
        seen["1.cross"].head(5)


# -- heads that are off ---------------------------------------------------------------------------

ANSWERING = {
    "generate": (lambda: spoken("tiny_decoder", "generate"), "abc", None),
    "translate": (lambda: spoken("tiny_encoder_decoder", "translate", longest=11), "ab", "cd"),
    "recurrent": (lambda: spoken("tiny_bahdanau", "translate", longest=11), "ab", None),
    "fill": (lambda: spoken("tiny_encoder", "fill"), "a [MASK] c", None),
    "classify": (
        lambda: spoken(
            "tiny_encoder", "classify", table={"head": {"kind": "pooled"}}, n_labels=2, labels=["no", "yes"]
        ),
        "abc",
        "yes",
    ),
    "caption": (lambda: spoken("tiny_captioner", "caption", longest=7), PHOTO, "ab"),
    "match": (lambda: spoken("tiny_clip", "match"), PHOTO, "ab"),
}


@pytest.mark.parametrize("job", ANSWERING)
def test_loss_and_answer_without_heads_are_those_of_a_model_without_them(job):
    make, given, target = ANSWERING[job]
    model = make()
    layer = chosen(model)[-1]
    n = model.net.attention(layer).n_heads
    table = ablate_each(model, given, target)
    found = ablate(model, given, target, heads=[(layer, n - 1)])
    assert found.loss == pytest.approx(table.loss)
    assert found.change == pytest.approx(table.changes[layer][n - 1], abs=1e-6)
    assert found.change != 0
    assert ablate(model, given, target, heads=[]).change == 0
    assert found.output is not None
    attention = model.net.attention(layer)
    if isinstance(attention.out, nn.Linear):  # a model that was never given the head says the same
        with torch.no_grad():
            attention.out.weight.unflatten(1, (n, -1))[:, n - 1] = 0
        again = ablate(model, given, target, heads=[])
        assert again.output == found.output_without
        if target is not None or job == "generate":  # else it is asked for an answer of its own
            assert again.loss == pytest.approx(found.loss_without, abs=1e-5)
    assert set(table.changes) == set(chosen(model))
    assert table.most(1)[0][2] == pytest.approx(max(by.max() for by in table.changes.values()))


def test_the_loss_is_that_of_what_should_be_said():
    model = spoken("tiny_encoder_decoder", "translate", longest=11)
    ids = [*TOKENS.encode("cd"), TOKENS.end]
    logits = model.logits(torch.tensor([[*TOKENS.encode("ab"), TOKENS.end]]), torch.tensor([[TOKENS.start, *ids[:-1]]]))
    own = -logits[0].log_softmax(-1)[range(len(ids)), ids].mean()
    assert ablate(model, "ab", "cd", heads=[]).loss == pytest.approx(float(own), abs=1e-5)
    judge = ANSWERING["classify"][0]()
    shares = judge.classify(["abc"])[0].probabilities
    assert ablate(judge, "abc", "no", heads=[]).loss == pytest.approx(-math.log(shares["no"]), abs=1e-5)
    own_label = ablate(judge, "abc", heads=[])
    assert own_label.loss == pytest.approx(-math.log(max(shares.values())), abs=1e-5)


@pytest.mark.parametrize(
    ("job", "given", "target", "message"),
    [
        ("generate", "a", None, None),
        ("generate", "abc", "d", "a language model is asked for the text itself"),
        ("fill", "abc", None, "has no [MASK]"),
        ("fill", "a [MASK]", "bcd", "is 3 tokens, and a mask stands for one"),
        ("classify", "abc", "maybe", "target ('maybe') is no label of this model; known: no, yes"),
        ("match", PHOTO, None, "give both"),
    ],
)
def test_what_has_no_loss_is_refused(job, given, target, message):
    model = ANSWERING[job][0]()
    if message is None:
        assert ablate(model, given, target, heads=[]).loss > 0
        return
    with pytest.raises(InputError) as error:
        ablate(model, given, target, heads=[])
    assert message in str(error.value)


def test_heads_that_are_not_there_are_refused():
    model = ANSWERING["translate"][0]()
    for head, message in (
        (("encoder.0.self", 9), "head (9) is not in layer encoder.0.self; its heads are 0 to 2"),
        ((0, 1), "layer (0) may be any of encoder.0.self, decoder.0.self, decoder.0.cross; say which"),
    ):
        with pytest.raises(InputError) as error:
            ablate(model, "ab", "c", heads=[head])
        assert str(error.value) == message
    with pytest.raises(InputError, match="gives no answer whose loss could change"):
        ablate(bare(CASES["tiny_vq_vae"]), inputs(CASES["tiny_vq_vae"], rows=1)[0], heads=[])


def test_labels_of_a_pooled_and_a_tagged_model_over_tensors():
    for head in (Pooled(n_labels=5, pool="mean"), Labels(n_labels=5)):
        config = presets.tiny_encoder(head=head)
        assert ablate(bare(config), inputs(config, rows=1)[0], heads=[(0, 0)]).output is None
