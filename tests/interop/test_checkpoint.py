"""Other people's directories are ours: `regard.load` finds their logits, their ids, their task, labels and special tokens;
what it cannot be is said in one line."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

import foreign
import regard
import toy
from regard.config import InputError
from regard.data.readers import File
from regard.data.tokenizer import Tokenizer
from regard.schema import RegardError
from regard.train.loop import train

LINES = [*foreign.TEXTS[:5], *foreign.TEXTS[-2:], "", "  two  spaces\tand\na tab ", "naïve café, İstanbul", "x" * 131]


@torch.no_grad()
def check_logits(model: Any, theirs: Any, ids: list[int]) -> None:
    given = torch.tensor([ids])
    out = theirs(given)
    wanted = out.logits if "logits" in out else out.get("pooler_output", out.last_hidden_state[:, 0])
    got = model.logits(given)
    assert got.shape == wanted.shape
    assert (got - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("case", foreign.CASES.values(), ids=foreign.CASES.keys())
def test_a_directory_is_a_model(case: foreign.Case, tmp_path: Path):
    theirs, _, folder = foreign.made(case, tmp_path)
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    model = regard.load(folder, device="cpu", packed=False)
    assert model.task == case.task
    assert len(model.tokenizer) == len(auto)
    before, after = model.tokenizer.surroundings()
    for line in LINES:
        ids = model.tokenizer.encode(line)
        assert ids == auto(line, add_special_tokens=False)["input_ids"]
        assert [*before, *ids, *after] == auto(line)["input_ids"]
        assert model.tokenizer.decode(ids) == auto.decode(ids, skip_special_tokens=True)
    check_logits(model, theirs, auto(foreign.TEXTS[-1])["input_ids"])
    assert model.labels == (("bad", "fine", "good") if case.more is foreign.NAMES else ())
    first, last = (auto.bos_token_id, auto.eos_token_id)
    first = auto.cls_token_id if first is None else first
    last = auto.sep_token_id if last is None else last
    assert (model.tokenizer.start, model.tokenizer.end) == (first, last)
    if auto.pad_token is not None:
        assert (model.tokenizer.pad, model.tokenizer.mask) == (auto.pad_token_id, auto.mask_token_id)
        assert not model.tokenizer.lacks
    else:  # what is not there is not added: the model would have no vector for it
        assert model.tokenizer.lacks == {"pad", "mask"}
    if case.task == "generate":
        assert model.prefix == before
        assert model.ends == [auto.eos_token_id]


def test_a_prompt_begins_as_their_tokenizer_begins_it(tmp_path: Path):
    assert regard.load(foreign.made(foreign.CASES["gpt2"], tmp_path / "gpt2")[2]).prefix == []
    assert regard.load(foreign.made(foreign.CASES["llama"], tmp_path / "llama")[2]).prefix == [1]


def test_several_ends(tmp_path: Path):
    *_, folder = foreign.made(foreign.CASES["llama"], tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    assert regard.load(folder).ends == [2, 5]


def test_images_need_no_tokenizer(tmp_path: Path):
    sizes = {**foreign.SIZES, "image_size": 15, "patch_size": 3, "num_channels": 2}
    for name, task, labels in (("ViTForImageClassification", "classify", 3), ("DeiTModel", "embed", 0)):
        theirs = foreign.model(name, **sizes, **(foreign.NAMES if labels else {}))
        model = regard.load(foreign.save(tmp_path / name, theirs), packed=False)
        assert (model.task, len(model.labels)) == (task, labels)
        with torch.no_grad():
            pixels = torch.randn(3, 2, 15, 15)
            out = theirs(pixels)
            wanted = out.logits if labels else out.pooler_output
            assert (model.logits(pixels) - wanted).abs().max() < 1e-4
        with pytest.raises(InputError, match=r": reads images, and has no tokenizer; give another model$"):
            model.tokenizer  # noqa: B018


@torch.no_grad()
def test_images_and_texts(tmp_path: Path):
    tokenizer = foreign.byte_level()
    text = {**foreign.SIZES, **foreign.POSITIONS, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    image = {**foreign.SIZES, "image_size": 15, "patch_size": 3, "num_channels": 2}
    theirs = foreign.model("CLIPModel", text_config=text, vision_config=image, projection_dim=17)
    model = regard.load(foreign.save(tmp_path / "theirs", theirs, tokenizer), packed=False)
    assert model.task == "match"
    pixels, ids = (
        torch.randn(3, 2, 15, 15),
        torch.tensor([[*model.tokenizer.encode("two dogs"), tokenizer.eos_token_id]]),
    )
    pair = model.logits(pixels, ids)
    wanted = theirs(input_ids=ids, pixel_values=pixels).logits_per_image
    assert (pair.logits - wanted).abs().max() < 1e-4


def test_a_run_with_another_tokenizer(tmp_path: Path):
    """Of our own directories, too."""
    made, data = toy.prepared(tmp_path, "generate", steps=1)
    run = tmp_path / "run"
    train(made, data.path, run, device="cpu")
    assert regard.load(run).task == "generate"
    state = json.loads((run / "tokenizer.json").read_text())
    state["model"]["vocab"]["more"] = len(data.tokenizer)
    (run / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(
        InputError, match=r"run: its tokenizer has \d+ tokens, and the model's table only \d+; they do not"
    ):
        regard.load(run)


def test_weights_in_several_files(tmp_path: Path):
    case = foreign.CASES["gpt2"]
    theirs, tokenizer, folder = foreign.made(case, tmp_path, max_shard_size="20KB")
    assert len([*folder.glob("model-*.safetensors")]) > 2
    check_logits(regard.load(folder, packed=False), theirs, tokenizer("two dogs")["input_ids"])
    one = sorted(folder.glob("model-*.safetensors"))[1]
    one.unlink()
    with pytest.raises(InputError, match=rf"{one.name}: cannot be read"):
        regard.load(folder)


def test_half_precision_becomes_what_is_asked_for(tmp_path: Path):
    theirs, tokenizer, _ = foreign.made(foreign.CASES["gpt2"], tmp_path)
    folder = foreign.save(tmp_path / "half", theirs.bfloat16(), tokenizer)
    model = regard.load(folder, precision="float32", packed=False)
    check_logits(model, theirs.float(), tokenizer("two dogs")["input_ids"])
    assert next(model.net.parameters()).dtype == torch.float32


# ---------------------------------------------------------------------------------------
# Tokenizers


def test_bert_as_first_published(tmp_path: Path):
    """vocab.txt, and a setting that says how words are written."""
    _, tokenizer, folder = foreign.made(foreign.CASES["bert"], tmp_path)
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{name}\n" for name, _ in by_id), encoding="utf-8")
    wanted = [tokenizer(line)["input_ids"] for line in LINES]
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    mine = regard.load(folder).tokenizer
    assert [[2, *mine.encode(line), 3] for line in LINES] == wanted
    assert mine.surroundings() == ([2], [3])
    assert (mine.pad, mine.start, mine.end, mine.mask) == (0, 2, 3, 4)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert regard.load(folder).tokenizer.encode("Two") != mine.encode("Two")


@pytest.mark.parametrize("name", ["gpt2", "roberta masked"])
def test_byte_level_as_first_published(name: str, tmp_path: Path):
    """vocab.json and merges.txt."""
    _, tokenizer, folder = foreign.made(foreign.CASES[name], tmp_path)
    wanted = [tokenizer(line)["input_ids"] for line in LINES]
    state = json.loads((folder / "tokenizer.json").read_text())
    vocab = state["model"]["vocab"] | {token["content"]: token["id"] for token in state["added_tokens"]}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    merges = "".join(f"{' '.join(pair)}\n" for pair in state["model"]["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    before = regard.load(folder).tokenizer
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    mine = regard.load(folder).tokenizer
    start, end = mine.surroundings()
    assert [[*start, *mine.encode(line), *end] for line in LINES] == wanted
    assert (mine.pad, mine.start, mine.end, mine.mask) == (before.pad, before.start, before.end, before.mask)


def test_names_of_special_tokens_travel_with_a_tokenizer(tmp_path: Path):
    """What a model has no vector for is not added when its tokenizer is saved, and loaded again."""
    *_, folder = foreign.made(foreign.CASES["gpt2"], tmp_path)
    tokenizer = regard.load(folder).tokenizer
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert len(again) == len(tokenizer)
    assert (again.pad, again.start, again.end, again.mask) == (0, 0, 0, 0)
    assert again.lacks == {"pad", "mask"}
    (tmp_path / "tokenizer.special.json").unlink()
    assert len(Tokenizer.load(tmp_path / "tokenizer.json")) == len(tokenizer) + 3


def test_names_in_a_text_are_text(tmp_path: Path):
    tokenizer = regard.load(foreign.made(foreign.CASES["gpt2"], tmp_path)[2]).tokenizer
    text = "<|endoftext|>a dog"
    assert 0 not in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def real_lines(n: int) -> list[str]:
    """Lines of English, German and French, of Wikipedia and of plays."""
    files = sorted(
        file for file in toy.SHARED.rglob("*") if file.suffix in (".txt", ".gz", ".en", ".de", ".fr", ".tsv")
    )
    lines: list[str] = []
    for file in files:
        with contextlib.suppress(InputError):  # of a file that is no text
            lines += [line for _, (_, line) in zip(range(2_000), File(file).lines(), strict=False)]
    step = max(1, len(lines) // n)
    return lines[::step][:n]


@pytest.mark.skipif(not toy.SHARED.is_dir(), reason=f"{toy.SHARED} is not here")
@pytest.mark.parametrize("style", ["wordpiece", "byte_level", "roberta", "metaspace"])
def test_ids_of_ten_thousand_lines_of_real_text(style: str, tmp_path: Path):
    lines = real_lines(10_000)
    assert len(lines) == 10_000
    case = next(case for case in foreign.CASES.values() if case.tokenizer.__name__ == style)
    tokenizer = getattr(foreign, style)(lines[::5], 3_001)
    theirs = foreign.model(case.model, **case.sizes, vocab_size=len(tokenizer))
    folder = foreign.save(tmp_path / "theirs", theirs, tokenizer)
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    mine = regard.load(folder).tokenizer
    got = mine.encode_batch(lines)
    assert got == auto(lines, add_special_tokens=False)["input_ids"]
    before, after = mine.surroundings()
    assert [[*before, *ids, *after] for ids in got[:100]] == auto(lines[:100])["input_ids"]
    assert sum(map(len, got)) > 100_000
    assert [mine.decode(ids) for ids in got] == auto.batch_decode(got, skip_special_tokens=True)


# ---------------------------------------------------------------------------------------
# sentence-transformers


def as_sentence_transformer(folder: Path, pooling: dict[str, Any], *more: str) -> None:
    types = ["Transformer", "Pooling", *more]
    paths = ["", "1_Pooling", *(f"{i}_{name}" for i, name in enumerate(more, 2))]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(zip(types, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24, **pooling}))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 31, "do_lower_case": false}')


OLD = {f"pooling_mode_{name}": False for name in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")}


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        (OLD | {"pooling_mode_mean_tokens": True}, "mean"),
        (OLD | {"pooling_mode_cls_token": True}, "class"),
        ({"pooling_mode_lasttoken": True}, "end"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_pooling_of_sentence_transformers(settings: dict[str, Any], pooling: str, tmp_path: Path):
    *_, folder = foreign.made(foreign.CASES["bert"], tmp_path)
    as_sentence_transformer(folder, settings, "Normalize")
    model = regard.load(folder)
    assert (model.pooling, model.longest) == (pooling, 29)


@torch.no_grad()
def test_embeddings_are_theirs(tmp_path: Path):
    theirs, _, folder = foreign.made(foreign.CASES["bert"], tmp_path)
    as_sentence_transformer(folder, OLD | {"pooling_mode_mean_tokens": True}, "Normalize")
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [text for text in foreign.TEXTS if len(auto(text)["input_ids"]) <= 31]
    batch = auto(texts, padding=True, return_tensors="pt")
    hidden, mask = theirs(**batch).last_hidden_state, batch["attention_mask"][..., None]
    wanted = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    got = torch.from_numpy(regard.load(folder).embed(texts))
    assert (got - wanted).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("settings", "more", "message"),
    [
        (
            OLD | {"pooling_mode_max_tokens": True},
            (),
            "pooling (pooling_mode_max_tokens) is not supported; known: mean, cls, lasttoken",
        ),
        ({"pooling_mode": "max"}, (), "pooling (max) is not supported"),
        (OLD, (), "pooling () is not supported"),
        ({"pooling_mode": "mean"}, ("Dense",), "module Dense is not supported; known: Transformer, Pooling, Normalize"),
    ],
)
def test_pooling_that_there_is_not(settings: dict[str, Any], more: tuple[str, ...], message: str, tmp_path: Path):
    *_, folder = foreign.made(foreign.CASES["bert"], tmp_path)
    as_sentence_transformer(folder, settings, *more)
    with pytest.raises(InputError) as error:
        regard.load(folder)
    assert message in str(error.value)


# ---------------------------------------------------------------------------------------
# Refusals: one line


def edited(file: str, **changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(content | changes))

    return edit


def without(*files: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / file).unlink() for file in files]  # type: ignore[return-value]


def only_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def larger_tokenizer(folder: Path) -> None:
    foreign.byte_level(size=311).save_pretrained(folder)


def odd_tensors(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    state["odd"] = state.pop("transformer.ln_f.bias")
    save_file(state, folder / "model.safetensors")


def cut_short(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


REFUSED = {
    "architecture": (edited("config.json", architectures=["GPT2ForTokenClassification"]), "config.json: architectures ('GPT2ForTokenClassification') is not supported; known: GPT2LMHeadModel, GPT2Model"),
    "family": (edited("config.json", model_type="t5"), "config.json: model_type ('t5') is not supported; known: gpt2, llama, bert, roberta, distilbert, vit, deit, pegasus, marian, clip"),
    "several labels": (edited("config.json", problem_type="multi_label_classification"), "config.json: problem_type ('multi_label_classification') is not supported; one label a text is"),
    "option": (edited("config.json", activation_function="mish"), "config.json: activation_function ('mish') is not supported"),
    "pickle": (only_a_pickle, "has only a pickle (pytorch_model.bin), which is never opened; convert it with transformers: GPT2LMHeadModel.from_pretrained("),
    "no weights": (without("model.safetensors"), "has no model.safetensors, and no model.safetensors.index.json"),
    "cut": (cut_short, "model.safetensors: damaged, or no safetensors file"),
    "tensors": (odd_tensors, "this gpt2 checkpoint does not fit its configuration: missing: transformer.ln_f.bias; unexpected: odd"),
    "layers": (edited("config.json", n_layer=3), "missing: transformer.h.2.attn.c_attn.weight, "),
    "size": (edited("config.json", vocab_size=331), "of the wrong shape: transformer.wte.weight [310, 24], not [331, 24]"),
    "tokenizer": (larger_tokenizer, "its tokenizer has 311 tokens, and the model's table only 310; they do not belong together"),
    "no tokenizer": (without("tokenizer.json"), "has no tokenizer.json (nor vocab.txt, nor vocab.json and merges.txt); save one with transformers"),
    "broken tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "its tokenizer cannot be read"),
    "broken json": (lambda folder: (folder / "config.json").write_text("{"), "config.json: not of a run of regard"),
}  # fmt: skip


@pytest.mark.parametrize("spoil", REFUSED)
def test_what_cannot_be_loaded(spoil: str, tmp_path: Path):
    *_, folder = foreign.made(foreign.CASES["gpt2"], tmp_path)
    edit, message = REFUSED[spoil]
    edit(folder)
    with pytest.raises(RegardError) as error:
        regard.load(folder)
    assert message in str(error.value)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command_line_says_it_in_one_line(tmp_path: Path):
    *_, folder = foreign.made(foreign.CASES["gpt2"], tmp_path)
    only_a_pickle(folder)
    command = [sys.executable, "-m", "regard", "export", str(folder), "--to", "hf", "--out", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {folder}: has only a pickle (pytorch_model.bin)")


def test_many_tensors_are_counted(tmp_path: Path):
    *_, folder = foreign.made(foreign.CASES["bert"], tmp_path)
    edited("config.json", num_hidden_layers=0)(folder)
    with pytest.raises(InputError, match=r"unexpected: encoder\.layer\.0\.\S+, .* and 24 more$"):
        regard.load(folder)


# ---------------------------------------------------------------------------------------
# GGUF


@pytest.fixture
def gguf():
    return pytest.importorskip("gguf", reason="gguf is not installed")


CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
THEIR_NAMES = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "model.layers.": "blk.",
    "self_attn.o_proj.": "attn_output.",
    "input_layernorm.": "attn_norm.",
    "post_attention_layernorm.": "ffn_norm.",
    **{f"self_attn.{x}_proj.": f"attn_{x}." for x in "qkv"},
    **{f"mlp.{x}_proj.": f"ffn_{x}." for x in ("gate", "up", "down")},
}


def write_gguf(gguf: Any, path: Path, theirs: Any, tokenizer: Any, *, kind: str = "llama", **facts: Any) -> Path:
    """As llama.cpp's converter does it: with the rows of q and k in the order in which it turns them."""
    config = theirs.config
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    names = [name for name, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    special = {token["content"] for token in state["added_tokens"]}
    writer.add_tokenizer_model(facts.get("algorithm", "gpt2"))
    writer.add_tokenizer_pre(facts.get("pre", "gpt-2"))
    writer.add_token_list(names)
    writer.add_token_types([3 if name in special else 1 for name in names])
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    if facts.get("add_bos", False) is not None:
        writer.add_add_bos_token(facts.get("add_bos", False))
    for key, value in facts.get("rope", {}).items():
        writer.add_float32(f"llama.rope.{key}", value) if isinstance(value, float) else writer.add_uint32(
            f"llama.rope.{key}", value
        )
    writer.add_chat_template(CHAT)
    for name, tensor in theirs.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads:
            n = tensor.shape[0] // heads
            tensor = tensor.reshape(heads, 2, n // 2, -1).transpose(1, 2).reshape(tensor.shape)
        for old, new in THEIR_NAMES.items():
            name = name.replace(old, new)
        writer.add_tensor(name, tensor.detach().numpy().copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_file_is_a_model(tied: bool, gguf, tmp_path: Path):
    tokenizer = foreign.byte_level()
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    sizes = {**foreign.LLAMA, **rope, "tie_word_embeddings": tied, "vocab_size": len(tokenizer)}
    theirs = foreign.model("LlamaForCausalLM", **sizes)
    path = write_gguf(gguf, tmp_path / "model.gguf", theirs, tokenizer)
    model = regard.load(path, packed=False)
    assert (model.task, model.prefix, model.ends, model.chat_template) == ("generate", [], [0], CHAT)
    for line in LINES:
        assert model.tokenizer.encode(line) == tokenizer(line)["input_ids"]
    check_logits(model, theirs, tokenizer(foreign.TEXTS[-1])["input_ids"])
    alone = regard.load(tmp_path, packed=False)  # the directory that holds it
    assert all(torch.equal(a, b) for a, b in zip(alone.net.parameters(), model.net.parameters(), strict=True))


def test_a_gguf_file_may_ask_for_a_start(gguf, tmp_path: Path):
    tokenizer = foreign.byte_level()
    theirs = foreign.model("LlamaForCausalLM", **foreign.LLAMA, vocab_size=len(tokenizer))
    assert regard.load(write_gguf(gguf, tmp_path / "a.gguf", theirs, tokenizer, add_bos=True)).prefix == [0]


def test_llama_3_in_a_gguf_file_takes_words_whole_and_begins_with_a_start(gguf, tmp_path: Path):
    """As llama.cpp has it, whatever the merges are and where the file does not say."""
    tokenizer = foreign.byte_level(["a dog runs a dog runs"] * 5, 280)
    theirs = foreign.model("LlamaForCausalLM", **foreign.LLAMA, vocab_size=len(tokenizer))
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["model"]["merges"] = state["model"]["merges"][:-1]  # the last token is made by no merge now
    tokenizer.backend_tokenizer.from_str(json.dumps(state))
    [last] = [name for name, id in tokenizer.get_vocab().items() if id == len(tokenizer) - 1]
    model = regard.load(write_gguf(gguf, tmp_path / "a.gguf", theirs, tokenizer, pre="llama-bpe", add_bos=None))
    assert model.prefix == [0]
    assert model.tokenizer.encode(last.replace("Ġ", " ")) == [len(tokenizer) - 1]


def test_digits_stand_alone_where_a_gguf_file_says_so(gguf, tmp_path: Path):
    tokenizer = foreign.byte_level(["1234 1234 a dog"] * 5, 271)
    theirs = foreign.model("LlamaForCausalLM", **foreign.LLAMA, vocab_size=len(tokenizer))
    split = regard.load(write_gguf(gguf, tmp_path / "a.gguf", theirs, tokenizer, pre="smollm")).tokenizer
    assert len(tokenizer("1234")["input_ids"]) < len(split.encode("1234")) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "qwen2"}, "architecture ('qwen2') is not supported; known: llama"),
        (
            {"pre": "deepseek-llm"},
            "tokenizer.ggml.pre ('deepseek-llm') is not supported; known: gpt-2, default, smollm, llama-bpe",
        ),
        (
            {"rope": {"scaling.factor": 4.0}},
            "llama.rope.scaling.factor (4.0) is not supported; only plain rotary positions are",
        ),
        (
            {"rope": {"scale_linear": 2.0}},
            "llama.rope.scale_linear (2.0) is not supported; only plain rotary positions are",
        ),
        ({"rope": {"dimension_count": 2}}, "llama.rope.dimension_count (2) must be the width of a head, WIDTH"),
        ({"algorithm": "llama"}, "tokenizer.ggml.model ('llama') is not supported; known: gpt2"),
    ],
)
def test_what_a_gguf_file_may_not_be(options: dict[str, Any], message: str, gguf, tmp_path: Path):
    tokenizer = foreign.byte_level()
    theirs = foreign.model("LlamaForCausalLM", **foreign.LLAMA, vocab_size=len(tokenizer))
    path = write_gguf(gguf, tmp_path / "model.gguf", theirs, tokenizer, **options)
    with pytest.raises(InputError) as error:
        regard.load(path)
    width = theirs.config.hidden_size // theirs.config.num_attention_heads
    assert str(error.value) == f"{path}: {message.replace('WIDTH', str(width))}"


def test_a_gguf_file_that_is_none(gguf, tmp_path: Path):
    (tmp_path / "a.gguf").write_bytes(b"GGUX" + bytes(100))
    with pytest.raises(InputError, match=r"a\.gguf: cannot be read, or is no GGUF file \("):
        regard.load(tmp_path / "a.gguf")
    shutil.copy(tmp_path / "a.gguf", tmp_path / "b.gguf")
    with pytest.raises(InputError, match=r"has several GGUF files \(a\.gguf, b\.gguf \.\.\.\); name one of them$"):
        regard.load(tmp_path)


def test_a_gguf_file_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.gguf").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=r"a\.gguf: a GGUF file needs the package gguf; pip install gguf$"):
        regard.load(tmp_path / "a.gguf")


def test_tokenizers_are_those_of_the_library(tmp_path: Path):
    """What we save, the library opens as it is."""
    *_, folder = foreign.made(foreign.CASES["bert"], tmp_path)
    mine = regard.load(folder).tokenizer
    mine.save(tmp_path / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode(LINES[0], add_special_tokens=False).ids == mine.encode(LINES[0])
