"""GGUF files (llama.cpp): weights, tokenizer and chat template in one; read, not written.

Read with the package gguf (``pip install regard[gguf]``). Quantised weights become float32. llama.cpp turns pairs that
stand side by side where Llama's own code turns two halves, and has the rows of its queries and keys in that order: they
are put back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from torch import Tensor

from regard.config import RegardError, suggest
from regard.data.tokenizer import Tokenizer
from regard.interop import from_hf
from regard.model import Parts
from regard.schema import InputError

# Theirs, and Hugging Face's.
TENSORS = {
    r"^token_embd\.": "model.embed_tokens.",
    r"^output_norm\.": "model.norm.",
    r"^output\.": "lm_head.",
    r"^blk\.(\d+)\.attn_norm\.": r"model.layers.\1.input_layernorm.",
    r"^blk\.(\d+)\.ffn_norm\.": r"model.layers.\1.post_attention_layernorm.",
    r"^blk\.(\d+)\.attn_([qkv])\.": r"model.layers.\1.self_attn.\2_proj.",
    r"^blk\.(\d+)\.attn_output\.": r"model.layers.\1.self_attn.o_proj.",
    r"^blk\.(\d+)\.ffn_(gate|up|down)\.": r"model.layers.\1.mlp.\2_proj.",
}


def read_gguf(path: Path) -> Parts:
    """The parts of the model in a GGUF file, or in the only one of a directory.

    >>> read_gguf(Path("nowhere.gguf"))
    Traceback (most recent call last):
    regard.schema.InputError: nowhere.gguf: ...
    """
    try:
        import gguf
    except ImportError:
        raise InputError(f"{path}: a GGUF file needs the package gguf; pip install gguf") from None
    if path.is_dir():
        first, *others = sorted(path.glob("*.gguf"))
        if others:
            raise InputError(f"{path}: has several GGUF files ({first.name}, {others[0].name} ...); name one of them")
        path = first
    try:
        reader = gguf.GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise InputError(f"{path}: cannot be read, or is no GGUF file ({error})") from None
    facts = {name: field.contents() for name, field in reader.fields.items()}
    if (kind := facts.get("general.architecture")) != "llama":
        raise InputError(f"{path}: architecture ({kind!r}) is not supported; known: llama")
    try:
        hf = _config(facts, {tensor.name for tensor in reader.tensors})
        tokenizer = _tokenizer(facts)
    except KeyError as error:
        raise InputError(f"{path}: lacks the key {error}, which every model has") from None
    except RegardError as error:
        raise InputError(f"{path}: {error}") from None
    # Theirs are memory-mapped, and must not be written to.
    state = {t.name: torch.from_numpy(np.array(gguf.dequantize(t.data, t.tensor_type))) for t in reader.tensors}
    try:
        net = from_hf(hf, dict(_named(state, hf)))
    except RegardError as error:
        raise InputError(f"{path}: {error}") from None
    options = {
        "longest": hf["max_position_embeddings"],
        "prefix": [tokenizer.start] if facts.get("tokenizer.ggml.add_bos_token", _is_llama_3(facts)) else [],
        "ends": [tokenizer.end],
        "chat_template": facts.get("tokenizer.chat_template"),
    }
    return Parts(net, "generate", tokenizer, None, options)


def _config(facts: Mapping[str, Any], tensors: set[str]) -> dict[str, Any]:
    """The config.json that says the same."""
    for name in ("llama.rope.scaling.factor", "llama.rope.scale_linear"):
        if facts.get(name, 1) not in (0, 1):
            raise InputError(f"{name} ({facts[name]}) is not supported; only plain rotary positions are")
    scaling = facts.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in tensors:
        raise InputError(f"llama.rope.scaling.type ({scaling!r}) is not supported; only plain rotary positions are")
    heads = facts["llama.attention.head_count"]
    width = facts.get("llama.attention.key_length", facts["llama.embedding_length"] // heads)
    if (turned := facts.get("llama.rope.dimension_count", width)) != width:
        raise InputError(f"llama.rope.dimension_count ({turned}) must be the width of a head, {width}")
    return {
        "model_type": "llama",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts.get("llama.attention.head_count_kv", heads),
        "head_dim": width,
        "max_position_embeddings": facts["llama.context_length"],
        # Written in single precision: 1e-05 comes back as 9.999999747378752e-06.
        "rms_norm_eps": float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": facts.get("llama.rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in tensors,
    }


def _named(state: Mapping[str, Tensor], hf: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors under Hugging Face's names, queries and keys in their order."""
    heads = {"attn_q": hf["num_attention_heads"], "attn_k": hf["num_key_value_heads"]}
    for name, tensor in state.items():
        if n := heads.get(name.split(".")[-2]):
            tensor = halves(tensor, n)
        for old, new in TENSORS.items():
            name = re.sub(old, new, name)
        yield name, tensor


def halves(rows: Tensor, n_heads: int) -> Tensor:
    """Each head's rows, from pairs side by side to two halves.

    >>> halves(torch.tensor([0, 1, 2, 3, 10, 11, 12, 13]), 2)
    tensor([ 0,  2,  1,  3, 10, 12, 11, 13])
    """
    return rows.unflatten(0, (n_heads, -1, 2)).transpose(1, 2).flatten(0, 2)


# ---------------------------------------------------------------------------------------
# The tokenizer

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# How a text is split before merges, by llama.cpp's names.
SPLITS = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "default": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
}
CONTROL, OF_THE_USER = 3, 4  # token types: special, and words that are never split


def _is_llama_3(facts: Mapping[str, Any]) -> bool:
    """Whose words are taken whole where they are tokens, and whose texts begin with the start, as llama.cpp has it."""
    return facts.get("tokenizer.ggml.pre") == "llama-bpe"


def _tokenizer(facts: Mapping[str, Any]) -> Tokenizer:
    if (kind := facts["tokenizer.ggml.model"]) != "gpt2":
        raise InputError(f"tokenizer.ggml.model ({kind!r}) is not supported; known: gpt2")
    split = facts.get("tokenizer.ggml.pre", "default")
    if split not in SPLITS:
        raise InputError(f"tokenizer.ggml.pre ({split!r}) is not supported; {suggest(split, SPLITS)}")
    names, types = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    ids = {name: id for id, name in enumerate(names)}
    inner = tokenizers.Tokenizer(models.BPE(ids, merges, ignore_merges=_is_llama_3(facts)))
    inner.pre_tokenizer = SPLITS[split]()
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([n for n, kind in zip(names, types, strict=True) if kind == CONTROL])
    own = [n for n, kind in zip(names, types, strict=True) if kind == OF_THE_USER]
    inner.add_tokens([AddedToken(name, normalized=False) for name in own])
    keys = {"pad": "padding", "start": "bos", "end": "eos", "mask": "mask"}
    special = {role: facts.get(f"tokenizer.ggml.{key}_token_id") for role, key in keys.items()}
    return Tokenizer(inner, {role: None if id is None else names[id] for role, id in special.items()})
