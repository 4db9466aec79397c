"""Other people's checkpoints in small: tokenizers in each family's own style, learned here, and models at random weights,
saved as transformers saves them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from toy import sentences

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TEXTS = [*sentences(97, 7), "Two dogs & 31 cats; the Mädchen läuft über die Straße.", "It's 12:30 — «déjà vu» 漢字 🦊!"]


def wordpiece(texts: Iterable[str] = TEXTS, size: int = 211) -> Any:
    """BERT's: uncased, without accents, ## before what goes on."""
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    inner.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    )
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    roles = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    return fast(inner, roles)


def byte_level(texts: Iterable[str] = TEXTS, size: int = 307) -> Any:
    """GPT-2's: merges of bytes, and one special token."""
    inner = _byte_level(texts, size, ["<|endoftext|>"])
    inner.post_processor = processors.ByteLevel(trim_offsets=False)
    return fast(inner, dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"))


def roberta(texts: Iterable[str] = TEXTS, size: int = 307) -> Any:
    """The same with special tokens around a text."""
    inner = _byte_level(texts, size, ["<s>", "<pad>", "</s>", "<unk>"])
    inner.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    roles = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    return fast(inner, roles)


def _byte_level(texts: Iterable[str], size: int, special: list[str]) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    inner.train_from_iterator(texts, trainer)
    return inner


def metaspace(texts: Iterable[str] = TEXTS, size: int = 401) -> Any:
    """Llama's: ▁ for a space, bytes for what is unknown, and a start before every text."""
    inner = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(back)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    learner = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    learner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    learner.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    )
    state, other = (json.loads(t.to_str()) for t in (inner, learner))
    state["model"] |= {key: other["model"][key] for key in ("vocab", "merges")}
    inner = tokenizers.Tokenizer.from_str(json.dumps(state))
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return fast(inner, {"bos": "<s>", "eos": "</s>", "unk": "<unk>"})


def fast(inner: tokenizers.Tokenizer, roles: dict[str, str]) -> Any:
    names = {f"{role}_token": name for role, name in roles.items()}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names)


SIZES = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 29}
POSITIONS = {"max_position_embeddings": 67}
GPT2 = {"n_embd": 24, "n_head": 3, "n_layer": 2, "n_inner": 29, "n_positions": 67}
DISTILBERT = {"dim": 24, "n_heads": 3, "n_layers": 2, "hidden_dim": 29, **POSITIONS}
LLAMA = {**SIZES, **POSITIONS, "num_key_value_heads": 1}


def model(name: str, **options: Any) -> Any:
    """One of theirs, every weight drawn at random."""
    cls = getattr(transformers, name)
    torch.manual_seed(11)
    made = cls(cls.config_class(**options)).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.normal_(std=0.3)
    return made


def save(folder: Path, made: Any, tokenizer: Any = None, **options: Any) -> Path:
    made.save_pretrained(folder, **options)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder


class Case(NamedTuple):
    model: str
    sizes: dict[str, Any]
    tokenizer: Callable[[], Any]
    task: str
    more: dict[str, Any] = {}


BERT = {**SIZES, **POSITIONS}
ROBERTA = {**BERT, "type_vocab_size": 1}
NAMES = {"id2label": {0: "bad", 1: "fine", 2: "good"}, "label2id": {"bad": 0, "fine": 1, "good": 2}}
CASES = {
    "gpt2": Case("GPT2LMHeadModel", GPT2, byte_level, "generate"),
    "llama": Case("LlamaForCausalLM", LLAMA, metaspace, "generate"),
    "bert": Case("BertModel", BERT, wordpiece, "embed"),
    "bert masked": Case("BertForMaskedLM", BERT, wordpiece, "fill"),
    "bert classes": Case("BertForSequenceClassification", BERT, wordpiece, "classify", NAMES),
    "bert number": Case("BertForSequenceClassification", BERT, wordpiece, "classify", {"num_labels": 1}),
    "bert tags": Case("BertForTokenClassification", BERT, wordpiece, "tag", NAMES),
    "distilbert": Case("DistilBertModel", DISTILBERT, wordpiece, "embed"),
    "distilbert masked": Case("DistilBertForMaskedLM", DISTILBERT, wordpiece, "fill"),
    "distilbert classes": Case("DistilBertForSequenceClassification", DISTILBERT, wordpiece, "classify", NAMES),
    "roberta masked": Case("RobertaForMaskedLM", ROBERTA, roberta, "fill"),
    "roberta classes": Case("RobertaForSequenceClassification", ROBERTA, roberta, "classify", NAMES),
}


def made(case: Case, folder: Path, more: int = 3, **options: Any) -> tuple[Any, Any, Path]:
    """Their model and tokenizer, and the directory they are saved in. The table is padded, as many are."""
    tokenizer = case.tokenizer()
    theirs = model(case.model, **case.sizes, vocab_size=len(tokenizer) + more, **case.more)
    return theirs, tokenizer, save(folder / "theirs", theirs, tokenizer, **options)
