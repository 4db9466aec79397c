"""What is exported is our model: transformers and CTranslate2 open the directory and find our logits, our words and our
ids. Everything goes through the files; weights are float32, every one of them drawn at random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from regard import presets, recipe
from regard.config import InputError, ModelConfig, Positions, Tokens, Vocabulary
from regard.data.tokenizer import Tokenizer
from regard.decode.search import Decoding, search
from regard.interop.directory import export
from regard.model import Model
from regard.nn import Layout, Transformer

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TEXT = "the quick brown fox jumps over a lazy dog and das Mädchen läuft über die Straße"


def tokenizer(vocab_size: int) -> Tokenizer:
    words = TEXT.split()
    texts = [f"{a} {b}" for a in words for b in words]
    return Tokenizer.train(texts, recipe.Tokenizer(vocab_size=vocab_size))


READS, WRITES = tokenizer(293), tokenizer(307)

SIZES = {"d_model": 21, "n_heads": 3, "d_head": None, "d_value": None, "max_len": 41}


def config(*, shared: bool = True, head: Vocabulary = Vocabulary(), **changes: Any) -> ModelConfig:
    """A translator; its decoder has another depth and other widths than its encoder."""
    base = presets.tiny_encoder_decoder(**{**SIZES, **changes})
    reads, writes = (Tokens(vocab_size=len(t), scale=True) for t in (WRITES if shared else READS, WRITES))
    encoder = base.encoder.replace(input=reads, max_len=43)  # type: ignore[union-attr]
    decoder = base.decoder.replace(input=writes, n_layers=3, d_ff=37)  # type: ignore[union-attr]
    return base.replace(encoder=encoder, decoder=decoder, head=head, share_embeddings=shared)


@torch.no_grad()
def random_model(config: ModelConfig, norms: float = 1.0) -> Model:
    """Every weight drawn at random, biases too. With large norms a model says different things for different sources,
    and rounds more."""
    torch.manual_seed(6)
    net = Transformer(config)
    spread = {"embed.weight": 0.5, "norm.weight": norms, "weight": 0.2, "bias": 0.1}
    for name, weight in net.named_parameters():
        weight.normal_(std=next(std for end, std in spread.items() if name.endswith(end)))
    return Model(net, "translate", WRITES, None if config.share_embeddings else READS)


HALF = Positions(kind="sinusoidal", layout="half")
OWN_HEAD = Vocabulary(tied=False, bias=True)

BOTH = {  # what either format takes
    "post-norm": config(),
    "pre-norm": config(norm_order="pre", activation="gelu"),
    "halves": config(positions=HALF, head=Vocabulary(bias=True)),
    "without biases": config(norm_order="pre", bias=False, activation="silu"),
    "two vocabularies": config(shared=False, activation="gelu_tanh"),
    "a head of its own": config(shared=False, head=OWN_HEAD, bias=False),
}
CTRANSLATE2 = BOTH | {
    "learned positions": config(positions=Positions(kind="learned"), embed_norm=True, norm_eps=0.1),
    "no positions": config(positions=Positions(), norm_order="pre", final_norm=False, activation="gelu_quick"),
    "two vocabularies, pre-norm": config(shared=False, norm_order="pre", head=OWN_HEAD),
    "as Llama": config(
        positions=Positions(kind="rotary", layout="half", base=500.0), norm="rms", norm_eps=0.1, norm_order="pre",
        activation="swiglu", bias=False, n_heads=6, n_kv_heads=2, d_head=14,
    ),
    "gated, turned in pairs": config(positions=Positions(kind="rotary"), activation="swiglu", n_heads=7, d_head=10),
}  # fmt: skip
for_both = pytest.mark.parametrize("config", BOTH.values(), ids=BOTH.keys())
for_ctranslate2 = pytest.mark.parametrize("config", CTRANSLATE2.values(), ids=CTRANSLATE2.keys())

SOURCES = [[5, 290, 7], [280, 9, 10, 281, 282, 13, 14], [262], [17, 18, 19, 20, 285]]
TARGETS = [[300, 6, 299], [270], [8, 9, 306, 11, 290], [271, 272]]
NEVER = [WRITES.pad, WRITES.start, WRITES.mask]


def rows(ids: list[list[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(row) for row in ids])
    padded = [torch.tensor(row) for row in ids]
    return torch.nn.utils.rnn.pad_sequence(padded, batch_first=True, padding_value=pad), lengths


def ours(model: Model, how: Decoding, limit: int) -> list[list[int]]:
    source, lengths = rows([[*ids, model.source_tokenizer.end] for ids in SOURCES], model.source_tokenizer.pad)
    start = torch.full((len(SOURCES), 1), WRITES.start)
    memory = model.net.encode(source, lengths)
    found = search(model.net, start, memory=memory, end=WRITES.end, limits=limit, how=how, never=NEVER)
    return [best.ids for best, *_ in found]


@torch.no_grad()
def log_probabilities(model: Model) -> list[torch.Tensor]:
    """Of every token of each target, its end included."""
    answers = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        logits = model.net(torch.tensor([[*source, WRITES.end]]), torch.tensor([[WRITES.start, *target]]))[0]
        answers.append(logits.log_softmax(-1).gather(1, torch.tensor([*target, WRITES.end])[:, None])[:, 0])
    return answers


def varied(outputs: list[list[int]]) -> bool:
    """Not one token again and again, which would agree with anything."""
    return len({id for row in outputs for id in row}) > 5


# ---------------------------------------------------------------------------------------
# transformers


def opened(folder: Path) -> Any:
    model, loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loaded[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    return model.eval()


@for_both
@torch.no_grad()
def test_hf_has_our_logits(config: ModelConfig, tmp_path: Path):
    model = random_model(config)
    theirs = opened(export(model, "hf", tmp_path / "out"))
    (source, n_source), (target, n_target) = rows(SOURCES, 0), rows(TARGETS, 0)
    real = [Layout(lengths=n).real(int(n.max()), n.device) for n in (n_source, n_target)]
    logits = theirs(
        source, attention_mask=real[0].long(), decoder_input_ids=target, decoder_attention_mask=real[1].long()
    ).logits
    mine = model.net(source, target, layout=n_source, target_layout=n_target)
    assert (logits - mine)[real[1]].abs().max() < 1e-5


def generated(theirs: Any, model: Model, **options: Any) -> list[list[int]]:
    reads = model.source_tokenizer
    source, lengths = rows([[*ids, reads.end] for ids in SOURCES], reads.pad)
    mask = torch.arange(source.shape[1]) < lengths[:, None]
    outputs = theirs.generate(source, attention_mask=mask.long(), **options).tolist()
    assert {row[0] for row in outputs} == {WRITES.start}
    ends = [[*row, WRITES.end].index(WRITES.end) for row in outputs]
    return [row[1:end] for row, end in zip(outputs, ends, strict=True)]


@for_both
def test_hf_says_what_we_say(config: ModelConfig, tmp_path: Path):
    model = random_model(config, norms=8.0)
    theirs = opened(export(model, "hf", tmp_path / "out"))
    greedy = ours(model, Decoding(beam=1), 13)
    assert varied(greedy)
    assert generated(theirs, model, num_beams=1, max_new_tokens=13) == greedy
    # Of one length, so that what rules there are for stopping is of no account.
    beam = ours(model, Decoding(beam=3, min_length=12), 11)
    assert beam != ours(model, Decoding(beam=1, min_length=12), 11)
    assert generated(theirs, model, num_beams=3, min_new_tokens=11, max_new_tokens=11) == beam


def test_hf_knows_our_special_ids_and_limits(tmp_path: Path):
    folder = export(random_model(config()), "hf", tmp_path / "out")
    settings = opened(folder).generation_config
    assert (settings.decoder_start_token_id, settings.eos_token_id, settings.pad_token_id) == (1, 2, 0)
    assert settings.forced_eos_token_id is None
    assert settings.max_length == 41
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 43


TEXTS = [
    "the fox läuft über die Straße",
    "  two  spaces\tand a tab, no-break\u00a0and thin\u2009ones ",
    "emoji 🦊👩‍👩‍👧 and 漢字, العربية; combining: u\u0308ber",
    "<pad> and </s> in a text are text, <mask> too",
    "line\nends\r\n\r\nof both kinds\n",
    "1234567 12.5% (a-b) \x00\x07 ﬁne ½",
    "",
    " ",
]


@pytest.mark.parametrize("config", [BOTH["post-norm"], BOTH["two vocabularies"]], ids=["one", "two"])
def test_hf_tokenizers_have_our_ids(config: ModelConfig, tmp_path: Path):
    model = random_model(config)
    folder = export(model, "hf", tmp_path / "out")
    both = {"": model.source_tokenizer} | ({"target": WRITES} if model.source_tokenizer is not WRITES else {})
    assert (folder / "target").exists() == ("target" in both)
    for subfolder, mine in both.items():
        theirs = transformers.AutoTokenizer.from_pretrained(folder, subfolder=subfolder)
        assert (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id, theirs.mask_token_id) == (0, 1, 2, 3)
        batch = theirs(TEXTS, padding=True)
        assert batch.keys() == {"input_ids", "attention_mask"}
        for text, ids, mask in zip(TEXTS, batch["input_ids"], batch["attention_mask"], strict=True):
            wanted = mine.encode(text)
            assert ids[: sum(mask)] == [*wanted, mine.end]
            assert theirs(text, add_special_tokens=False)["input_ids"] == wanted
            assert theirs.decode(ids, skip_special_tokens=True) == mine.decode(wanted)


# ---------------------------------------------------------------------------------------
# CTranslate2


@pytest.fixture
def ctranslate2():
    return pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")


def names(tokens: Tokenizer, ids: list[list[int]]) -> list[list[str]]:
    """As the user of a tokenizer.json has them."""
    return [[tokens._inner.id_to_token(id) for id in row] for row in ids]


@for_ctranslate2
def test_ctranslate2_has_our_log_probabilities(config: ModelConfig, tmp_path: Path, ctranslate2):
    model = random_model(config)
    theirs = ctranslate2.Translator(str(export(model, "ctranslate2", tmp_path / "out")))
    scored = theirs.score_batch(names(model.source_tokenizer, SOURCES), names(WRITES, TARGETS))
    for got, wanted in zip(scored, log_probabilities(model), strict=True):
        assert len(got.log_probs) == len(wanted)
        assert (torch.tensor(got.log_probs) - wanted).abs().max() < 1e-4


@for_ctranslate2
def test_ctranslate2_says_what_we_say(config: ModelConfig, tmp_path: Path, ctranslate2):
    model = random_model(config, norms=8.0)
    theirs = ctranslate2.Translator(str(export(model, "ctranslate2", tmp_path / "out")))

    def said(**options: Any) -> list[list[str]]:
        never = [[token] for token in ("<pad>", "<s>", "<mask>")]
        sources = names(model.source_tokenizer, SOURCES)
        return [r.hypotheses[0] for r in theirs.translate_batch(sources, suppress_sequences=never, **options)]

    greedy = ours(model, Decoding(beam=1, min_length=2), 13)
    assert varied(greedy)
    assert said(beam_size=1, max_decoding_length=13) == names(WRITES, greedy)
    beam = ours(model, Decoding(beam=3, min_length=12), 11)
    assert said(beam_size=3, min_decoding_length=11, max_decoding_length=11) == names(WRITES, beam)


@pytest.mark.parametrize("shared", [True, False])
def test_ctranslate2_takes_texts_with_the_tokenizer_beside_it(shared: bool, tmp_path: Path, ctranslate2):
    model = random_model(config(shared=shared))
    folder = export(model, "ctranslate2", tmp_path / "out")
    assert (folder / "source.tokenizer.json").exists() == (not shared)
    reads = Tokenizer.load(folder / ("tokenizer.json" if shared else "source.tokenizer.json"))
    ids = reads.encode("the fox\n läuft 🦊")
    assert ids == model.source_tokenizer.encode("the fox\n läuft 🦊")
    theirs = ctranslate2.Translator(str(folder))
    (scored,) = theirs.score_batch(names(reads, [ids]), [[]])
    with torch.no_grad():
        mine = model.net(torch.tensor([[*ids, reads.end]]), torch.tensor([[WRITES.start]])).log_softmax(-1)[0, 0]
    assert scored.log_probs == pytest.approx([float(mine[WRITES.end])], abs=1e-4)


def test_special_tokens_by_other_names(tmp_path: Path, ctranslate2):
    """A tokenizer from elsewhere may call its end [SEP]; both sides of CTranslate2 have one name for it."""
    model = random_model(config(shared=False))
    state = READS._inner.to_str().replace('"</s>"', '"[SEP]"')
    (tmp_path / "other.json").write_text(state)
    other = Tokenizer.load(tmp_path / "other.json")
    assert other.end == READS.end
    renamed = Model(model.net, "translate", WRITES, other)
    folders = [export(m, "ctranslate2", tmp_path / name) for m, name in ((model, "one"), (renamed, "two"))]
    one, two = (
        ctranslate2.Translator(str(folder)).score_batch(names(READS, SOURCES), names(WRITES, TARGETS))
        for folder in folders
    )
    assert [r.log_probs for r in one] == [r.log_probs for r in two]


# ---------------------------------------------------------------------------------------
# Refusals: one line, and nothing is left behind


REFUSED = [
    ("hf", config(norm="rms"), "encoder.norm is 'rms' here and 'layer' there; decoder.norm is 'rms' here and 'layer' there; try --to ctranslate2"),
    ("hf", config(positions=Positions(kind="rotary"), d_head=8), "try --to ctranslate2"),
    ("hf", config(head=OWN_HEAD), "tie_word_embeddings (False) is not supported; only True is; try --to ctranslate2"),
    ("hf", config(shared=False, norm_order="pre"), "share_embeddings is False here and True there; try --to ctranslate2"),
    ("hf", config(score="additive"), "use it with regard itself"),
    ("ctranslate2", config(score="bilinear"), "encoder.score is 'bilinear' here and 'scaled_dot' there"),
    ("ctranslate2", config(windows=(0, 5)), "encoder.windows is (0, 5) here and () there"),
    ("ctranslate2", config(final_norm=True), "encoder.final_norm is True here and None or False there"),
    ("ctranslate2", presets.tiny_bahdanau(), "its encoder (recurrent over tokens) is no Transformer over tokens"),
    ("hf", presets.tiny_captioner(), "its encoder (transformer over grid) is no Transformer over tokens"),
    ("hf", presets.tiny_decoder(), "only translators can, and this is of another kind (decoder, vocabulary head)"),
    ("ctranslate2", presets.tiny_vit(), "only translators can, and this is of another kind (encoder, pooled head)"),
]  # fmt: skip


@pytest.mark.parametrize(("to", "config", "message"), REFUSED)
def test_what_a_format_cannot_be(to: str, config: ModelConfig, message: str, tmp_path: Path):
    model = Model(Transformer(config), "translate", WRITES)
    with pytest.raises(InputError) as error:
        export(model, to, tmp_path / "out")
    assert str(error.value).startswith(f"this model cannot be written for {to}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not [*tmp_path.iterdir()]


def test_a_directory_that_exists_is_left_alone(tmp_path: Path):
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match=r"out: exists already; remove it, or choose another --out$"):
        export(random_model(config()), "hf", tmp_path / "out")
    assert not [*(tmp_path / "out").iterdir()]


def test_an_unknown_format(tmp_path: Path):
    with pytest.raises(InputError, match=r"^--to \(onnx\) is not known; known: hf, ctranslate2$"):
        export(random_model(config()), "onnx", tmp_path / "out")


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2.specs", None)
    with pytest.raises(InputError, match=r"^--to ctranslate2 needs the package ctranslate2; pip install ctranslate2$"):
        export(random_model(config()), "ctranslate2", tmp_path / "out")
    assert not [*tmp_path.iterdir()]
