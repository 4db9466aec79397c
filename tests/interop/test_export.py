"""What is exported is our model: transformers and CTranslate2 open the directory and find our logits, our words and our
ids. Everything goes through the files; weights are float32, every one of them drawn at random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import foreign
import regard
from regard import presets, recipe
from regard.config import InputError, Labels, ModelConfig, Pooled, Positions, Tokens, Vocabulary
from regard.data.tokenizer import SPECIAL, Tokenizer
from regard.decode.search import Decoding, search
from regard.encode.rows import make_row
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
# Models that are no translators


def small(preset: ModelConfig, **changes: Any) -> ModelConfig:
    """Of the sizes above, with a table that is larger than the tokenizer's, as many are."""
    name = "encoder" if preset.decoder is None else "decoder"
    tower = getattr(preset, name)
    given = tower.input.replace(vocab_size=len(WRITES) + 3) if isinstance(tower.input, Tokens) else tower.input
    sizes = {"d_model": 24, "n_heads": 3, "d_ff": 37, "n_layers": 2, "d_head": None, "d_value": None}
    longest = {"max_len": 41} if isinstance(tower.input, Tokens) else {}
    return preset.replace(**{name: tower.replace(**{**sizes, **longest, **changes, "input": given})})


SEGMENTS = Tokens(vocab_size=len(WRITES) + 3, n_segments=2)
MASKED = Vocabulary(tied=True, bias=True, transform=True)
SMALL = {
    "generate": small(presets.gpt2()),
    "generate without biases": small(presets.gpt2(), bias=False),
    "generate as Llama": small(presets.llama_small(), n_heads=6, n_kv_heads=2),
    "fill": small(presets.bert_base(head=MASKED)),
    "fill without biases": small(presets.bert_base(head=MASKED), bias=False),
    "fill in pairs": small(presets.bert_base(head=MASKED, pair_head=Pooled(n_labels=2, dense=True))),
    "classify": small(presets.bert_base(head=Pooled(n_labels=3, dense=True))),
    "classify at once": small(presets.bert_base(head=Pooled(n_labels=3))),
    "tag": small(presets.bert_base(head=Labels(n_labels=3))),
    "embed": small(presets.bert_base()),
    "classify images": small(presets.vit_b16(n_labels=3, image_size=32)),
}
for name, eps, head in (("fill", 1e-12, MASKED), ("fill", 1e-5, MASKED), ("tag", 1e-5, Labels(n_labels=3))):
    made = SMALL["fill"].replace(head=head)
    words = made.encoder.input.replace(n_segments=0)  # type: ignore[union-attr]
    SMALL[f"{name} without segments, {eps}"] = made.replace(
        encoder=made.encoder.replace(input=words, norm_eps=eps)  # type: ignore[union-attr]
    )
FAMILY = {"fill without segments, 1e-12": "distilbert", "fill without segments, 1e-05": "bert"}
LABELS = ("bad", "fine", "good")
AUTO = {
    "generate": "AutoModelForCausalLM",
    "fill": "AutoModelForMaskedLM",
    "classify": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "embed": "AutoModel",
}


@torch.no_grad()
def one_of_ours(name: str) -> Model:
    torch.manual_seed(13)
    task, net = name.split()[0], Transformer(SMALL[name])
    for weight in net.parameters():
        weight.normal_(std=0.2)
    tokens = None if "images" in name else WRITES
    return Model(net, task, tokens, labels=LABELS if task in ("classify", "tag") else ())


@pytest.mark.parametrize("name", SMALL)
@torch.no_grad()
def test_every_family_for_hf(name: str, tmp_path: Path):
    model = one_of_ours(name)
    folder = export(model, "hf", tmp_path / "out")
    kind = "AutoModelForImageClassification" if "images" in name else AUTO[model.task]
    kind = "BertForPreTraining" if "pairs" in name else kind
    theirs, loaded = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not any(loaded[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    theirs.eval()
    if name in FAMILY:
        assert theirs.config.model_type == FAMILY[name]

    again = regard.load(folder, device="cpu", packed=False)
    assert (again.task, again.labels) == (model.task, model.labels)
    if "images" in name:
        given = torch.randn(2, 3, 32, 32)
    else:
        auto = transformers.AutoTokenizer.from_pretrained(folder)
        before = [] if model.task == "translate" else [WRITES.start]
        after = [] if model.task == "generate" else [WRITES.end]
        for text in TEXTS:
            wanted = [*before, *WRITES.encode(text), *after]
            assert auto(text)["input_ids"] == wanted
            assert again.tokenizer.encode(text) == WRITES.encode(text)
        assert (auto.pad_token_id, auto.mask_token_id) == (WRITES.pad, WRITES.mask)
        mine, other = model.tokenizer, again.tokenizer
        assert all(getattr(mine, role) == getattr(other, role) for role in SPECIAL)
        assert again.prefix == model.prefix
        theirs(**auto(TEXTS[:3], padding=True, return_tensors="pt", truncation=True, max_length=41))
        given = torch.tensor([auto(TEXTS[0])["input_ids"]])
    out = theirs(given)
    wanted = out.get("logits", out.get("prediction_logits", out.get("pooler_output")))
    for each in (model, again):
        got = each.logits(given)
        assert got.shape == wanted.shape
        assert (got - wanted).abs().max() < 1e-4


def test_hf_knows_the_labels(tmp_path: Path):
    written = json.loads((export(one_of_ours("classify"), "hf", tmp_path / "out") / "config.json").read_text())
    assert written["id2label"] == {"0": "bad", "1": "fine", "2": "good"}
    assert written["label2id"] == {"bad": 0, "fine": 1, "good": 2}


@torch.no_grad()
def test_pairs_as_each_was_trained(tmp_path: Path):
    """RoBERTa has two ends between two texts, as long as it was not trained here on one."""
    theirs, tokenizer, folder = foreign.made(foreign.CASES["roberta classes"], tmp_path)
    model = regard.load(folder, packed=False)
    pair = ("the red dog", "two cats")
    given = tokenizer(*pair, return_tensors="pt")["input_ids"]
    assert make_row(model, *map(model.tokenizer.encode, pair)).ids == given[0].tolist()
    [found] = model.classify([pair])
    wanted = theirs(given).logits.softmax(-1)[0].tolist()
    assert list(found.probabilities.values()) == pytest.approx(wanted, abs=1e-5)

    trained_here = Model(model.net, "classify", model.tokenizer, labels=LABELS)
    for number, each in enumerate((model, trained_here)):
        auto = transformers.AutoTokenizer.from_pretrained(export(each, "hf", tmp_path / f"out{number}"))
        assert auto(*pair)["input_ids"] == make_row(each, *map(model.tokenizer.encode, pair)).ids


def test_a_prompt_begins_as_it_did_in_training(tmp_path: Path):
    """GPT-2's own tokenizer puts nothing before a text; here it is trained with a start."""
    _, tokenizer, folder = foreign.made(foreign.CASES["gpt2"], tmp_path)
    model = regard.load(folder, packed=False)
    trained_here = Model(model.net, "generate", model.tokenizer)
    for each, prefix in ((model, []), (trained_here, [tokenizer.bos_token_id])):
        out = export(each, "hf", tmp_path / f"out{len(prefix)}")
        assert transformers.AutoTokenizer.from_pretrained(out)("a dog")["input_ids"][: len(prefix)] == prefix
        assert regard.load(out).prefix == each.prefix == prefix


@pytest.mark.parametrize("name", ["fill in pairs", "fill without segments, 1e-05", "fill without segments, 1e-12"])
@torch.no_grad()
def test_hf_takes_pairs(name: str, tmp_path: Path):
    """A second text has its own segment where the model has one, and none where it has not."""
    model = one_of_ours(name)
    folder = export(model, "hf", tmp_path / "out")
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    batch = auto("the fox", "a dog", return_tensors="pt")
    first, second = ([*WRITES.encode(text), WRITES.end] for text in ("the fox", "a dog"))
    assert batch["input_ids"].tolist() == [[WRITES.start, *first, *second]]
    segments = torch.tensor([[0] * (1 + len(first)) + [1] * len(second)]) if name == "fill in pairs" else None
    assert ("token_type_ids" in batch) == (segments is not None)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    mine = model.net(batch["input_ids"], segments=segments)
    assert (theirs(**batch).logits - mine).abs().max() < 1e-4


@pytest.mark.parametrize("case", ["gpt2", "llama", "bert masked", "roberta masked", "distilbert classes"])
@torch.no_grad()
def test_what_came_from_them_goes_back(case: str, tmp_path: Path):
    """With its own tokenizer, and with the special tokens that it had."""
    theirs, tokenizer, folder = foreign.made(foreign.CASES[case], tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    model = regard.load(folder, packed=False)
    back = export(model, "hf", tmp_path / "back")
    auto = transformers.AutoTokenizer.from_pretrained(back)
    for text in TEXTS:
        assert auto(text)["input_ids"] == tokenizer(text)["input_ids"]
    for role in ("pad", "mask"):
        assert getattr(auto, f"{role}_token") == getattr(tokenizer, f"{role}_token")
    assert auto.chat_template == (model.chat_template if model.task == "generate" else None)
    kind = {"generate": "AutoModelForCausalLM"}.get(model.task, AUTO[model.task])
    given = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    again = getattr(transformers, kind).from_pretrained(back).eval()
    assert (again(given).logits - theirs(given).logits).abs().max() < 1e-4
    assert regard.load(back).labels == model.labels


@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith("generate")])
def test_ctranslate2_generates_as_we_do(name: str, tmp_path: Path, ctranslate2):
    model = one_of_ours(name)
    folder = export(model, "ctranslate2", tmp_path / "out")
    theirs = ctranslate2.Generator(str(folder))
    prompts = [[WRITES.start, *WRITES.encode(text)] for text in ("the fox", "a lazy dog and", "über")]
    scored = theirs.score_batch(names(WRITES, prompts))
    for prompt, got in zip(prompts, scored, strict=True):
        logits = model.logits(torch.tensor([prompt]))[0, :-1].log_softmax(-1)
        wanted = logits.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
        assert (torch.tensor(got.log_probs) - wanted).abs().max() < 1e-4
    found = theirs.generate_batch(names(WRITES, prompts[:1]), max_length=7, include_prompt_in_result=False)
    given = torch.tensor(prompts[:1])
    [[mine]] = search(model.net, given, end=WRITES.end, limits=7, how=Decoding(beam=1))
    assert found[0].sequences_ids[0] == mine.ids
    assert Tokenizer.load(folder / "tokenizer.json").encode("the fox") == WRITES.encode("the fox")


@pytest.mark.parametrize("case", ["gpt2", "llama"])
def test_ctranslate2_takes_what_came_from_elsewhere(case: str, tmp_path: Path, ctranslate2):
    _, tokenizer, folder = foreign.made(foreign.CASES[case], tmp_path)
    model = regard.load(folder, packed=False)
    theirs = ctranslate2.Generator(str(export(model, "ctranslate2", tmp_path / "out")))
    ids = tokenizer("two dogs run")["input_ids"]
    (scored,) = theirs.score_batch([tokenizer.convert_ids_to_tokens(ids)])
    logits = model.logits(torch.tensor([ids]))[0, :-1].log_softmax(-1)
    wanted = logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert (torch.tensor(scored.log_probs) - wanted).abs().max() < 1e-4


@pytest.mark.parametrize(
    "config", [BOTH["post-norm"], BOTH["pre-norm"], BOTH["two vocabularies"]], ids=["one", "pegasus", "two"]
)
@torch.no_grad()
def test_a_translator_comes_back(config: ModelConfig, tmp_path: Path):
    model = random_model(config, norms=8.0)
    again = regard.load(export(model, "hf", tmp_path / "out"), device="cpu", packed=False)
    assert again.task == "translate"
    assert ours(again, Decoding(beam=1), 13) == ours(model, Decoding(beam=1), 13)
    assert again.source_tokenizer.encode(TEXT) == model.source_tokenizer.encode(TEXT)
    assert again.tokenizer.encode(TEXT) == model.tokenizer.encode(TEXT)


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
    ("hf", presets.tiny_decoder(), "decoder.d_head is 7 here and 9 there; decoder.d_value is 5 here and 9 there; use it with regard itself"),
    ("hf", presets.gpt3("small"), "decoder.windows is (0, 128) here and () there; use it with regard itself"),
    ("hf", presets.tiny_elmo(), "no family is of this kind (encoder); known: gpt2, llama, bert"),
    ("hf", SMALL["classify"].replace(head=Pooled(n_labels=3, pool="mean")), "head.pool is 'mean' here and 'class' there"),
    ("ctranslate2", presets.tiny_vit(), "only translators and language models can, and this is of another kind (encoder, pooled head)"),
    ("ctranslate2", presets.tiny_elmo(), "only translators and language models can"),
    ("ctranslate2", SMALL["generate"].replace(decoder=SMALL["generate"].decoder.replace(windows=(3,))), "decoder.windows is (3,) here and () there; use it with regard itself"),
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


@pytest.mark.parametrize("to", ["hf", "ctranslate2"])
def test_weights_laid_out_for_a_cpu_are_not_written(to: str, tmp_path: Path):
    with pytest.raises(
        InputError, match=r"en-de: its weights are laid out for a CPU; write regard.load\(.*, packed=False"
    ):
        export(regard.load("en-de", device="cpu"), to, tmp_path / "out")
    assert not [*tmp_path.iterdir()]


def test_an_unknown_format(tmp_path: Path):
    with pytest.raises(InputError, match=r"^--to \(onnx\) is not known; known: hf, ctranslate2, int8$"):
        export(random_model(config()), "onnx", tmp_path / "out")


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2.specs", None)
    with pytest.raises(InputError, match=r"^--to ctranslate2 needs the package ctranslate2; pip install ctranslate2$"):
        export(random_model(config()), "ctranslate2", tmp_path / "out")
    assert not [*tmp_path.iterdir()]
