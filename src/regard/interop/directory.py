"""Whole directories for others to load: a translator of ours for transformers or for CTranslate2.

    transformers.AutoModelForSeq2SeqLM.from_pretrained(directory)    ctranslate2.Translator(directory)

What is written has the logits of our model, up to rounding, and not always its weights: a model is first brought into
the words of the other side where that changes no logit (the order of the channels is free, a missing bias is a bias of
zero). The tokenizer goes along and gives the same ids. Neither package is needed for ``hf``; nothing is downloaded.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from regard.config import ConfigError, Input, InputError, ModelConfig, Stack, Tokens, Vocabulary, suggest
from regard.data.tokenizer import SPECIAL, Tokenizer
from regard.files import drafted
from regard.interop import ct2, marian, pegasus
from regard.interop.mapping import Family, as_stack, write_weights
from regard.interop.options import check_same, is_stack_of
from regard.nn import Transformer, sinusoid, skeleton


class Translator(Protocol):
    """What is exported: ``regard.load`` gives one."""

    @property
    def net(self) -> Transformer: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def source_tokenizer(self) -> Tokenizer: ...


def export(model: Translator, to: str, out: str | Path) -> Path:
    """Write a translator as a directory that ``to`` ("hf" or "ctranslate2") loads, all of it or nothing.

    >>> import tempfile, types
    >>> from regard import presets, recipe
    >>> bytes_ = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> net = Transformer(presets.vaswani_base(vocab_size=len(bytes_), max_len=64))
    >>> model = types.SimpleNamespace(net=net, tokenizer=bytes_, source_tokenizer=bytes_)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sorted(file.name for file in export(model, "hf", Path(folder) / "mine").iterdir())
    ['config.json', 'generation_config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json']
    """
    if to not in FORMATS:
        raise InputError(f"--to ({to}) is not known; {suggest(to, FORMATS)}")
    out = Path(out)
    if out.exists():
        raise InputError(f"{out}: exists already; remove it, or choose another --out")
    _check(model.net.config, to)
    with drafted(out) as draft:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        FORMATS[to](model, draft)
    return out


# ---------------------------------------------------------------------------------------
# What can be written


def _check(config: ModelConfig, to: str) -> None:
    """Refuse a model that a format cannot be, with what it lacks and the way out."""
    if problem := _problem(config, to):
        others = [name for name in FORMATS if name != to and not _problem(config, name)]
        way_out = f"try --to {others[0]}" if others else "use it with regard itself"
        raise InputError(f"this model cannot be written for {to}: {problem}; {way_out}")


def _problem(config: ModelConfig, to: str) -> str:
    if config.shape != "encoder-decoder" or not isinstance(config.head, Vocabulary):
        return f"only translators can, and this is of another kind ({config.shape}, {config.head.kind} head)"
    for name, tower in {"encoder": config.encoder, "decoder": config.decoder}.items():
        if not is_stack_of(tower, Tokens):
            kind = f"{tower.kind} over {tower.input.kind}" if tower else "missing"
            return f"its {name} ({kind}) is no Transformer over tokens"
    if to == "ctranslate2":
        return "; ".join(ct2.problems(config))
    try:
        _hf_config(_reworded(config))
    except ConfigError as error:
        return str(error).partition("cannot be written as ")[2].partition(": ")[2] or str(error)
    return ""


def _weights(net: Transformer) -> dict[str, Tensor]:
    return {name: tensor.detach().float().cpu() for name, tensor in net.state_dict().items()}


# ---------------------------------------------------------------------------------------
# transformers


def _write_hf(model: Translator, path: Path) -> None:
    ours, config = model.net.config, _reworded(model.net.config)
    state = write_weights(_family(config), config, _reworded_weights(ours, config, _weights(model.net)))
    if pegasus.fits(config):  # which reads its sines from the file
        state |= {f"model.{name}.embed_positions.weight": _sines(config) for name in ("encoder", "decoder")}
    save_file({name: part.contiguous() for name, part in state.items()}, path / "model.safetensors", {"format": "pt"})

    writes, longest = model.tokenizer, as_stack(ours.decoder).n_positions
    ids = {"bos_token_id": writes.start, "eos_token_id": writes.end, "decoder_start_token_id": writes.start}
    ids |= {"pad_token_id": writes.pad, "forced_eos_token_id": None}
    _write_json(path / "config.json", _hf_config(config) | ids | {"dtype": "float32"})
    never = [writes.pad, writes.start, writes.mask]
    settings = {"max_length": longest, "num_beams": 4, "suppress_tokens": never}
    _write_json(path / "generation_config.json", ids | settings)
    _write_hf_tokenizer(model.source_tokenizer, path, as_stack(ours.encoder).n_positions)
    if model.source_tokenizer is not writes:  # AutoTokenizer.from_pretrained(directory, subfolder="target")
        (path / "target").mkdir()
        _write_hf_tokenizer(writes, path / "target", longest)


def _family(config: ModelConfig) -> Family:
    return pegasus if pegasus.fits(config) else marian


def _hf_config(config: ModelConfig) -> dict[str, Any]:
    family = _family(config)
    hf_config = {"model_type": family.model_types[0], **family.from_config(config)}
    check_same(config, family.to_config(hf_config), hf_config["architectures"][0])
    return hf_config


def _reworded(config: ModelConfig) -> ModelConfig:
    """The configuration of a model with the same logits, as near to Marian's as there is one."""
    assert isinstance(config.head, Vocabulary)
    encoder, decoder = as_stack(config.encoder), as_stack(config.decoder)

    def tower(stack: Stack) -> Stack:
        positions = stack.positions
        if _interleaved(config):
            positions = positions.replace(layout="half")
        # They have one limit for both sides, and their table of sines is no weight.
        longest = max(encoder.n_positions, decoder.n_positions) if positions.kind == "sinusoidal" else stack.max_len
        return stack.replace(positions=positions, max_len=longest, bias=True)

    return config.replace(encoder=tower(encoder), decoder=tower(decoder), head=config.head.replace(bias=True))


def _sines(config: ModelConfig) -> Tensor:
    stack = as_stack(config.decoder)
    return sinusoid(stack.n_positions, stack.d_model, layout="half")


def _interleaved(config: ModelConfig) -> bool:
    """Whether sines and cosines alternate, on both sides: they may share a table, whose channels have one order."""
    places = [as_stack(tower).positions for tower in (config.encoder, config.decoder)]
    return all(place.kind == "sinusoidal" and place.layout == "interleaved" for place in places)


# Which of a matrix's sides are the channels between the layers.
COLUMNS = (".embed.weight", "head.weight", ".qkv.weight", ".q.weight", ".kv.weight", ".up.weight")
ROWS = (".out.weight", ".out.bias", ".down.weight", ".down.bias", "norm.weight", "norm.bias")


def _reworded_weights(ours: ModelConfig, theirs: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that go with it: the channels in the order of its sines, and zeros for biases that were missing."""

    def sines_first(n: int) -> Tensor:
        return torch.cat([torch.arange(0, n, 2), torch.arange(1, n, 2)])

    reworded = dict(weights)
    if _interleaved(ours):
        for name, tensor in weights.items():
            if name.endswith(COLUMNS):
                reworded[name] = tensor[:, sines_first(tensor.shape[1])]
            elif name.endswith(ROWS):
                reworded[name] = tensor[sines_first(tensor.shape[0])]
    for name, tensor in skeleton(theirs).state_dict().items():
        if name.endswith(".bias"):
            reworded.setdefault(name, torch.zeros(tensor.shape))
    return reworded


def _write_hf_tokenizer(tokenizer: Tokenizer, path: Path, longest: int) -> None:
    """A tokenizer for transformers: the same ids, and the end token after them, as the model reads and writes it."""
    tokenizer.save(path / "tokenizer.json")
    inner = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    names = {role: inner.id_to_token(getattr(tokenizer, role)) for role in SPECIAL}
    inner.post_processor = TemplateProcessing(
        single=["$A", names["end"]],
        pair=["$A", names["end"], "$B", names["end"]],
        special_tokens=[(names["end"], tokenizer.end)],
    )
    inner.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": names["start"],
        "eos_token": names["end"],
        "pad_token": names["pad"],
        "mask_token": names["mask"],
        "model_max_length": longest,
        "model_input_names": ["input_ids", "attention_mask"],  # transformers 4 would add segments
        "split_special_tokens": True,  # "<pad>" in a text is text
        "clean_up_tokenization_spaces": False,
    }
    _write_json(path / "tokenizer_config.json", settings)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------
# CTranslate2


def _write_ctranslate2(model: Translator, path: Path) -> None:
    config = model.net.config
    source, target = (as_stack(tower).input for tower in (config.encoder, config.decoder))
    reads = _names(model.source_tokenizer, source, path / "source.tokenizer.json")
    writes = _names(model.tokenizer, target, path / "tokenizer.json")
    if model.source_tokenizer is model.tokenizer:
        (path / "source.tokenizer.json").unlink()
    ct2.write(config, _weights(model.net), reads, writes, path)


def _names(tokenizer: Tokenizer, given: Input, file: Path) -> list[str]:
    """The name of each id. Special tokens have ours, for there both sides have to agree on them."""
    assert isinstance(given, Tokens)
    tokenizer.save(file)
    inner = tokenizers.Tokenizer.from_file(str(file))
    special = {getattr(tokenizer, role): name for role, (name, *_) in SPECIAL.items()}
    names = [special.get(id) or inner.id_to_token(id) or f"<{id}>" for id in range(given.vocab_size)]
    assert len(set(names)) == len(names), "every token has a name of its own"
    return names


FORMATS: dict[str, Callable[[Translator, Path], None]] = {"hf": _write_hf, "ctranslate2": _write_ctranslate2}
