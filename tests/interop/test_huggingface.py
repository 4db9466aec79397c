"""Law 10: logits equal Hugging Face's at random weights, import and export both ways, padding on either side.

Everything runs in float64, through files as transformers saves and loads them. Most of theirs compute in float64
throughout and agree to 1e-9; their Llama norms and turns in float32, whatever the weights, and agrees to 1e-5.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard import presets
from regard.config import ConfigError, InputError, ModelConfig
from regard.interop import FAMILIES, config_from_hf, config_to_hf, from_hf, to_hf, weights_from_hf
from regard.interop.mapping import write_weights
from regard.nn import Layout, Transformer

LENGTHS = torch.tensor([5, 7, 2])
SIDES = ("none", "right", "left")

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Padded(NamedTuple):
    """One batch's padding, as we say it and as they do."""

    layout: Layout
    mask: Tensor  # (B, T)
    positions: Tensor  # (B, T)

    def theirs(self, side: str, first: int = 0) -> dict[str, Tensor]:
        # Only on the left do they need to be told the positions, and where they are not counted from 0.
        more = {"position_ids": self.positions + first} if side == "left" or first else {}
        if side == "none":
            return more
        return {"attention_mask": self.mask.long(), **more}


def padded(side: str, lengths: Tensor = LENGTHS) -> Padded:
    longest = int(lengths.max())
    slots = torch.arange(longest)[None]
    starts = longest - lengths if side == "left" else torch.zeros_like(lengths)
    lengths = torch.full_like(lengths, longest) if side == "none" else lengths
    mask = (slots >= starts[:, None]) & (slots < (starts + lengths)[:, None])
    layout = {"none": Layout(), "right": Layout(lengths=lengths), "left": Layout(lengths=lengths, starts=starts)}
    return Padded(layout[side], mask, (slots - starts[:, None]).clamp_min(0))


Pairs = Iterator[tuple[Tensor, Tensor]]


def decoder(theirs: Any, ours: Transformer, side: str) -> Pairs:
    pad, ids = padded(side), torch.randint(31, (3, 7))
    yield theirs(ids, **pad.theirs(side)).logits[pad.mask], ours(ids, layout=pad.layout)[pad.mask]


def bert(theirs: Any, ours: Transformer, side: str, segments: bool = True, first: int = 0) -> Pairs:
    pad, ids = padded(side), torch.randint(31, (3, 7))
    given = torch.randint(2, (3, 7)) if segments else None
    encoded = ours.encode(ids, pad.layout, segments=given)
    logits = ours(ids, layout=pad.layout, segments=given)
    out = theirs(ids, **({"token_type_ids": given} if segments else {}), **pad.theirs(side, first))
    # They pool at the first slot, which padding on the left fills.
    if "last_hidden_state" in out:
        yield out.last_hidden_state[pad.mask], encoded.hidden[pad.mask]
        if side != "left":
            yield out.pooler_output if "pooler_output" in out else out.last_hidden_state[:, 0], logits
    elif "prediction_logits" in out:
        yield out.prediction_logits[pad.mask], logits[pad.mask]
        if side != "left":
            yield out.seq_relationship_logits, ours.pair_head(encoded.hidden, pad.layout)
    elif out.logits.dim() == 3:
        yield out.logits[pad.mask], logits[pad.mask]
    elif side != "left":
        yield out.logits, logits


def distilbert(theirs: Any, ours: Transformer, side: str) -> Pairs:
    return bert(theirs, ours, side, segments=False)


def roberta(theirs: Any, ours: Transformer, side: str) -> Pairs:
    # Told the positions: by themselves they take the id 1 for padding, wherever it stands.
    return bert(theirs, ours, side, first=2)


def roberta_alone(theirs: Any, ours: Transformer, side: str) -> Pairs:
    """As they count the positions by themselves: padding is what has the id 1."""
    pad = padded(side)
    ids = torch.randint(2, 31, (3, 7)).masked_fill(~pad.mask, 1)
    mask = {} if side == "none" else {"attention_mask": pad.mask.long()}
    yield theirs(ids, **mask).logits[pad.mask], ours(ids, layout=pad.layout)[pad.mask]


def vit(theirs: Any, ours: Transformer, side: str) -> Pairs:
    pixels = torch.randn(3, 2, 15, 15, dtype=torch.float64)
    out = theirs(pixels)
    yield out.pooler_output if "pooler_output" in out else out.logits, ours(pixels)


def marian(theirs: Any, ours: Transformer, side: str) -> Pairs:
    pad, target_pad = padded(side), padded(side, torch.tensor([4, 3, 6]))
    source, target = torch.randint(29, (3, 7)), torch.randint(29, (3, 6))
    masks = {"attention_mask": pad.mask.long(), "decoder_attention_mask": target_pad.mask.long()}
    # They count the padding too, and cannot be told otherwise; we can.
    layouts = [p.layout._replace(positions=torch.arange(p.mask.shape[1]).expand_as(p.mask)) for p in (pad, target_pad)]
    logits = theirs(source, decoder_input_ids=target, **({} if side == "none" else masks)).logits
    mine = ours(source, target, layout=layouts[0], target_layout=layouts[1])
    yield logits[target_pad.mask], mine[target_pad.mask]


def clip(theirs: Any, ours: Transformer, side: str) -> Pairs:
    pad, pixels = padded(side), torch.randn(4, 2, 15, 15, dtype=torch.float64)
    for scale in (theirs.logit_scale, ours.head.log_scale):
        scale.data.fill_(4.7)  # more than 100: training keeps it below, a checkpoint may have it
    ids = torch.randint(3, 29, (3, 7)).masked_fill(~pad.mask, 1)
    last = torch.where(pad.mask, torch.arange(7), 0).argmax(1)
    ids[torch.arange(3), last] = theirs.config.text_config.eos_token_id
    out = theirs(input_ids=ids, pixel_values=pixels, **pad.theirs(side))
    pair = ours(pixels, ids, target_layout=pad.layout)
    yield out.image_embeds, pair.first
    yield out.text_embeds, pair.text
    yield out.logits_per_image, pair.logits


class Case(NamedTuple):
    model: str
    config: dict[str, Any]
    run: Callable[[Any, Transformer, str], Pairs]
    tolerance: float = 1e-9


GPT2 = {"n_embd": 21, "n_head": 3, "n_layer": 2, "n_inner": 29, "vocab_size": 31, "n_positions": 17}
GPT2 |= {"bos_token_id": 30, "eos_token_id": 30}
SIZES = {"hidden_size": 21, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 29}
BERT = {**SIZES, "vocab_size": 31, "max_position_embeddings": 17}
DISTILBERT = {"dim": 21, "n_heads": 3, "n_layers": 2, "hidden_dim": 29, "vocab_size": 31}
DISTILBERT |= {"max_position_embeddings": 17}
ROBERTA = {**BERT, "max_position_embeddings": 19}
VIT = {**SIZES, "image_size": 15, "patch_size": 3, "num_channels": 2, "layer_norm_eps": 1e-6}
MARIAN = {"d_model": 21, "vocab_size": 31, "max_position_embeddings": 19, "scale_embedding": True}
MARIAN |= {"encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 29, "activation_function": "swish"}
MARIAN |= {"decoder_layers": 1, "decoder_attention_heads": 7, "decoder_ffn_dim": 23}
MARIAN |= {"pad_token_id": 30, "decoder_start_token_id": 30, "eos_token_id": 0, "forced_eos_token_id": 0}
MARIAN_APART = MARIAN | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 37, "scale_embedding": False}
LLAMA = {**SIZES, "hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 14}
LLAMA |= {"vocab_size": 31, "max_position_embeddings": 17}
LLAMA_BIASED = {**LLAMA, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": None}
LLAMA_BIASED |= {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "num_key_value_heads": None}
CLIP = {
    "projection_dim": 17,
    "text_config": {**BERT, "bos_token_id": 29, "eos_token_id": 30},
    "vision_config": {**VIT, "hidden_size": 25, "num_attention_heads": 5, "hidden_act": "gelu"},
}

CASES = {
    "gpt2": Case("GPT2LMHeadModel", GPT2, decoder),
    "gpt2 untied": Case("GPT2LMHeadModel", {**GPT2, "tie_word_embeddings": False, "n_inner": None}, decoder),
    "bert": Case("BertModel", BERT, bert),
    "bert masked": Case("BertForMaskedLM", BERT, bert),
    "bert pretraining": Case("BertForPreTraining", BERT, bert),
    "bert sequence": Case("BertForSequenceClassification", {**BERT, "num_labels": 5}, bert),
    "bert tokens": Case("BertForTokenClassification", {**BERT, "hidden_act": "gelu_new"}, bert),
    "distilbert": Case("DistilBertModel", DISTILBERT, distilbert),
    "distilbert masked": Case("DistilBertForMaskedLM", {**DISTILBERT, "activation": "relu"}, distilbert),
    "distilbert sequence": Case("DistilBertForSequenceClassification", {**DISTILBERT, "num_labels": 5}, distilbert),
    "distilbert tokens": Case("DistilBertForTokenClassification", {**DISTILBERT, "num_labels": 5}, distilbert),
    "roberta": Case("RobertaModel", {**ROBERTA, "hidden_act": "relu"}, roberta),
    "roberta masked": Case("RobertaForMaskedLM", ROBERTA, roberta),
    "roberta counting": Case("RobertaForMaskedLM", {**ROBERTA, "type_vocab_size": 1}, roberta_alone),
    "roberta sequence": Case("RobertaForSequenceClassification", {**ROBERTA, "num_labels": 5}, roberta),
    "roberta tokens": Case("RobertaForTokenClassification", {**ROBERTA, "num_labels": 5}, roberta),
    "vit": Case("ViTForImageClassification", {**VIT, "num_labels": 11}, vit),
    "vit features": Case("ViTModel", VIT, vit),
    "deit": Case("DeiTForImageClassification", {**VIT, "num_labels": 11}, vit),
    "deit features": Case("DeiTModel", VIT, vit),
    "marian": Case("MarianMTModel", MARIAN, marian),
    "marian apart": Case("MarianMTModel", MARIAN_APART, marian),
    "marian untied": Case("MarianMTModel", {**MARIAN_APART, "tie_word_embeddings": False}, marian),
    "llama": Case("LlamaForCausalLM", LLAMA, decoder, 1e-5),
    "llama tied, biased": Case("LlamaForCausalLM", LLAMA_BIASED, decoder, 1e-5),
    "clip": Case("CLIPModel", CLIP, clip),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@torch.no_grad()
def noisy(model: Any) -> Any:
    """Every weight drawn at random, also those that start at zero or one."""
    for weight in model.parameters():
        if weight.requires_grad:  # their sines are a parameter too
            weight.normal_(std=0.5)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    for name, weight in model.named_parameters():
        if "position_embeddings" in name and model.config.model_type == "roberta":
            weight[:2] = 0.0  # no token reads these, and they begin as zeros
    return model.double().eval()


def peer(case: Case) -> Any:
    cls = getattr(transformers, case.model)
    return noisy(cls(cls.config_class(**case.config)))


def saved(model: Any, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    model.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


@torch.no_grad()
def worst(case: Case, theirs: Any, ours: Transformer, side: str) -> float:
    """The largest difference of any logit that is real on both sides."""
    differences = [0.0]
    for expected, got in case.run(theirs, ours, side):
        assert expected.shape == got.shape
        assert expected.dtype == got.dtype == torch.float64
        differences.append(float((expected - got).abs().max()))
    return max(differences)


@pytest.mark.parametrize("side", SIDES)
@every_case
def test_their_model_here(case: Case, side: str, tmp_path: Path):
    theirs = peer(case)
    ours = from_hf(*saved(theirs, tmp_path))
    assert worst(case, theirs, ours, side) < case.tolerance


@pytest.mark.parametrize("side", SIDES)
@every_case
def test_our_model_there(case: Case, side: str, tmp_path: Path):
    theirs_config, _ = saved(peer(case), tmp_path)
    ours = noisy(Transformer(config_from_hf(theirs_config)))
    hf_config, state = to_hf(ours, theirs_config["model_type"])
    (tmp_path / "config.json").write_text(json.dumps(hf_config))
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    theirs, loaded = getattr(transformers, case.model).from_pretrained(
        tmp_path, dtype=torch.float64, output_loading_info=True
    )
    assert not any(loaded[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    assert worst(case, theirs.eval(), ours, side) < case.tolerance


@every_case
def test_there_and_back_changes_no_bit(case: Case, tmp_path: Path):
    hf_config, state = saved(peer(case), tmp_path)
    ours = from_hf(hf_config, state)
    _, again = to_hf(ours, hf_config["model_type"])
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)
    assert config_from_hf(config_to_hf(ours.config, hf_config["model_type"])) == ours.config


@every_case
def test_a_model_in_memory_is_read_like_a_saved_one(case: Case, tmp_path: Path):
    """Its state dict has tied copies, tables of sines, and for ViT new names."""
    theirs = peer(case)
    hf_config, state = saved(theirs, tmp_path)
    config = config_from_hf(hf_config)
    expected = weights_from_hf(state, config, hf_config["model_type"])
    got = weights_from_hf(theirs.state_dict(), config, hf_config["model_type"])
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in expected)


# ---------------------------------------------------------------------------------------
# Old checkpoints


def test_gpt2_as_first_published(tmp_path: Path):
    """Without the model's name before each tensor, and with the causal mask as a buffer."""
    hf_config, state = saved(peer(CASES["gpt2"]), tmp_path)
    old = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    old |= {f"h.{i}.attn.bias": torch.ones(1, 1, 17, 17).tril() for i in range(2)}
    expected, got = from_hf(hf_config, state).state_dict(), from_hf(hf_config, old).state_dict()
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_bert_as_first_published(tmp_path: Path):
    """A masked-token model with TensorFlow's names, and with the heads of its pre-training."""
    hf_config, state = saved(peer(CASES["bert pretraining"]), tmp_path)
    hf_config["architectures"] = ["BertForMaskedLM"]
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in state.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(17)[None]
    model = from_hf(hf_config, old)
    assert model.pair_head is None
    assert torch.equal(model.head.norm.weight, state["cls.predictions.transform.LayerNorm.weight"])


def test_a_tied_copy_alone_is_enough(tmp_path: Path):
    hf_config, state = saved(peer(CASES["gpt2"]), tmp_path)
    state["lm_head.weight"] = state.pop("transformer.wte.weight")
    assert torch.equal(from_hf(hf_config, state).decoder.embed.weight, state["lm_head.weight"])


# ---------------------------------------------------------------------------------------
# Published sizes


def without_inner_dropout(config: ModelConfig) -> ModelConfig:
    """Theirs has no dropout inside a ViT's feed-forward, where the paper has one."""
    return config.replace(encoder=config.encoder.replace(mlp_dropout=0.0))


def test_presets_are_the_published_configurations():
    def default(name: str, **options: Any) -> ModelConfig:
        return config_from_hf(getattr(transformers, name)(**options).to_dict())

    assert default("GPT2Config") == presets.gpt2()
    assert default("BertConfig") == presets.bert_base()
    assert default("RobertaConfig", vocab_size=30522, max_position_embeddings=514) == presets.bert_base()
    vit = default("ViTConfig", num_labels=1000, layer_norm_eps=1e-6, hidden_dropout_prob=0.1)
    assert vit == without_inner_dropout(presets.vit_b16())
    assert default("CLIPConfig") == presets.clip_b32()


@pytest.mark.parametrize(
    "config",
    [
        presets.gpt2("xl"),
        presets.bert_large(head=presets.MASKED_TOKENS, pair_head=presets.Pooled(n_labels=2, dense=True)),
        without_inner_dropout(presets.vit_l16()),
        presets.llama_small(),
        presets.clip_b32(),
    ],
    ids=["gpt2", "bert", "vit", "llama", "clip"],
)
def test_presets_there_and_back(config: ModelConfig):
    assert config_from_hf(config_to_hf(config)) == config


# ---------------------------------------------------------------------------------------
# Refusals: one line that names the thing


@pytest.fixture
def checkpoint(tmp_path: Path):
    return saved(peer(CASES["gpt2"]), tmp_path)


def test_missing_extra_and_wrong_tensors_are_named(checkpoint):
    hf_config, state = checkpoint
    del state["transformer.ln_f.weight"]
    state["transformer.h.2.ln_1.bias"] = torch.zeros(21)
    state["transformer.wpe.weight"] = state["transformer.wpe.weight"][:13]
    with pytest.raises(InputError) as error:
        from_hf(hf_config, state)
    assert str(error.value) == (
        "this gpt2 checkpoint does not fit its configuration: missing: transformer.ln_f.weight;"
        " unexpected: transformer.h.2.ln_1.bias; of the wrong shape: transformer.wpe.weight [13, 21], not [17, 21]"
    )


def test_a_transposed_part_of_a_fused_tensor_is_named(tmp_path: Path):
    hf_config, state = saved(peer(CASES["llama"]), tmp_path)
    name = "model.layers.1.self_attn.k_proj.weight"
    state[name] = state[name].T
    with pytest.raises(InputError, match=rf"of the wrong shape: {name} \[24, 28\], not \[28, 24\]$"):
        from_hf(hf_config, state)


def test_tied_copies_that_differ_are_refused(checkpoint):
    hf_config, state = checkpoint
    state["lm_head.weight"] = state["transformer.wte.weight"] + 1
    with pytest.raises(InputError, match=r"^lm_head\.weight and transformer\.wte\.weight differ"):
        from_hf(hf_config, state)


def test_our_own_weights_must_fit_as_well():
    config = presets.tiny_decoder(d_model=21, d_value=7)
    state = Transformer(config).state_dict()
    state["odd"] = state.pop("decoder.stack.norm.bias")
    with pytest.raises(InputError, match=r"missing: decoder\.stack\.norm\.bias; unexpected: odd$"):
        write_weights(FAMILIES["gpt2"], config, state)


@pytest.mark.parametrize("hf_config", [{"model_type": "t5"}, {}])
def test_unknown_family(hf_config: dict[str, Any]):
    given = hf_config.get("model_type")
    with pytest.raises(ConfigError) as error:
        config_from_hf(hf_config)
    assert str(error.value) == f"model_type ({given!r}) is not supported; known: {', '.join(FAMILIES)}"


UNSUPPORTED = [
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention (True) is not supported; only False is"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx (True) is not supported"),
    ("gpt2", {"activation_function": "mish"}, "activation_function ('mish') is not supported; known: relu, gelu"),
    ("gpt2", {"architectures": ["GPT2DoubleHeadsModel"]}, "architectures ('GPT2DoubleHeadsModel') is not supported"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type ('relative_key') is not supported"),
    ("bert", {"is_decoder": True}, "is_decoder (True) is not supported; only False is"),
    ("distilbert", {"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds (True) is not supported; only False is"),
    ("roberta", {"pad_token_id": 0}, "pad_token_id (0) is not supported; only 1 is"),
    (
        "roberta",
        {"architectures": ["RobertaForMaskedLM"], "hidden_act": "relu"},
        "hidden_act ('relu') is not supported",
    ),
    (
        "deit",
        {"architectures": ["DeiTForImageClassificationWithTeacher"]},
        "architectures ('DeiTForImageClassificationWithTeacher') is not supported: no head here has two classifiers; save it as",
    ),
    ("vit", {"qkv_bias": False}, "qkv_bias (False) is not supported; only True is"),
    ("vit", {"image_size": [224, 192]}, "image_size ([224, 192]) is not supported; only squares are"),
    ("vit", {"pooler_output_size": 7}, "pooler_output_size (7) is not supported; only 768 is"),
    ("marian", {"normalize_before": True}, "normalize_before (True) is not supported; only False is"),
    ("marian", {"tie_word_embeddings": False}, "tie_word_embeddings (False) is not supported; only True is"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling (of type 'linear') is not supported"),
    ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters (of type 'llama3') is not supported"),
    ("llama", {"mlp_bias": True}, "mlp_bias (True) is not supported; only False is"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act ('gelu') is not supported; known: silu"),
    ("clip", {"text_config": {"hidden_act": "mish"}}, "hidden_act ('mish') is not supported"),
]


@pytest.mark.parametrize(
    ("family", "option", "message"), UNSUPPORTED, ids=[f"{f} {next(iter(o))}" for f, o, _ in UNSUPPORTED]
)
def test_options_that_we_cannot_be(family: str, option: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as error:
        config_from_hf({"model_type": family, **option})
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (presets.tiny_decoder(), "gpt2: decoder.d_head is 7 here and 9 there; decoder.d_value is 5 here and 9 there"),
        (presets.gpt3("small"), "gpt2: decoder.windows is (0, 128) here and () there"),
        (presets.gpt1(), "gpt2: decoder.norm_order is 'post' here and 'pre' there"),
        (presets.vaswani_base(), "marian: encoder.positions.layout is 'interleaved' here and 'half' there"),
        (
            presets.tiny_encoder(head=presets.Pooled(n_labels=3, pool="mean"), d_model=21, d_value=7),
            "bert: head.pool is 'mean' here and 'class' there; head.dense is False here and True there",
        ),
    ],
    ids=["head widths", "windows", "post-norm", "layout of the sines", "pooling"],
)
def test_options_that_they_cannot_be(config: ModelConfig, message: str):
    with pytest.raises(ConfigError) as error:
        config_to_hf(config)
    assert str(error.value).startswith(f"this model cannot be written as {message}")
    assert "\n" not in str(error.value)


def test_a_configuration_of_another_family():
    with pytest.raises(ConfigError, match=r"^this model cannot be written as bert: it is of another kind \(decoder\)$"):
        weights_from_hf({}, presets.gpt2(), "bert")


def test_a_kind_that_they_do_not_have():
    with pytest.raises(ConfigError, match=r"no family is of this kind \(encoder-decoder\); known: gpt2, llama"):
        config_to_hf(presets.bahdanau())
