"""Whole directories for others to load: a model of ours for transformers or for CTranslate2.

    transformers.AutoModelForSeq2SeqLM.from_pretrained(directory)    ctranslate2.Translator(directory)
    transformers.AutoModelForCausalLM.from_pretrained(directory)     ctranslate2.Generator(directory)

What is written has the logits of our model, up to rounding, and not always its weights: a model is first brought into
the words of the other side where that changes no logit (the order of the channels is free, a missing bias is a bias of
zero, and so is a missing segment; near zero, tanh is a straight line). The tokenizer goes along and gives the same ids,
and so do the names of the labels. Neither package is needed for ``hf``; nothing is downloaded.

``int8`` is our own: the run directory with its matrices as whole numbers, a quarter of the size, to ship or to keep.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from regard import weights
from regard.config import ConfigError, Input, InputError, ModelConfig, Pooled, Stack, Tokens, Vocabulary, suggest
from regard.data.tokenizer import SPECIAL, Tokenizer
from regard.decode.chat import chat_template
from regard.encode import images
from regard.files import drafted
from regard.interop import FAMILIES, config_to_hf, ct2, pictures
from regard.interop.mapping import as_stack, write_weights
from regard.interop.options import is_stack_of
from regard.model import Model
from regard.nn import sinusoid, skeleton


def export(model: Model, to: str, out: str | Path) -> Path:
    """Write a model as a directory that ``to`` ("hf", "ctranslate2" or ourselves, "int8") loads, all of it or nothing.

    >>> import tempfile
    >>> from regard import Transformer, presets, recipe
    >>> bytes_ = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> net = Transformer(presets.vaswani_base(vocab_size=len(bytes_), max_len=64))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     out = export(Model(net, "translate", bytes_), "hf", Path(folder) / "mine")
    ...     sorted(file.name for file in out.iterdir())
    ['config.json', 'generation_config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json']
    """
    if to not in FORMATS:
        raise InputError(f"--to ({to}) is not known; {suggest(to, FORMATS)}")
    out = Path(out)
    if out.exists():
        raise InputError(f"{out}: exists already; remove it, or choose another --out")
    _check(model.config, to)
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
        others = [name for name in ("hf", "ctranslate2") if name != to and not _problem(config, name)]
        way_out = f"try --to {others[0]}" if others else "use it with regard itself"
        raise InputError(f"this model cannot be written for {to}: {problem}; {way_out}")


def _problem(config: ModelConfig, to: str) -> str:
    if to == "int8":
        return ""
    kind = f"this is of another kind ({config.shape}, {config.head.kind} head)"
    if config.shape == "encoder-decoder":
        if not isinstance(config.head, Vocabulary):
            return f"of models with an encoder and a decoder only translators can, and {kind}"
        for name, tower in {"encoder": config.encoder, "decoder": config.decoder}.items():
            if not is_stack_of(tower, Tokens):
                what = f"{tower.kind} over {tower.input.kind}" if tower else "missing"
                return f"its {name} ({what}) is no Transformer over tokens"
    if to == "ctranslate2":
        if config.decoder is None or not isinstance(config.head, Vocabulary):
            return f"only translators and language models can, and {kind}"
        if not is_stack_of(config.decoder, Tokens):
            return f"its decoder ({config.decoder.kind}) is no Transformer over tokens"
        return "; ".join(ct2.problems(config))
    try:
        _reworded(config)
    except ConfigError as error:
        return str(error).partition("cannot be written as ")[2].partition(": ")[2] or str(error)
    return ""


def _weights(model: Model) -> dict[str, Tensor]:
    found = model.net.state_dict()
    if skeleton(model.config).state_dict().keys() - found.keys():
        raise InputError(
            f"{model.path}: its weights are laid out for a CPU; write regard.load({str(model.path)!r}, packed=False)"
        )
    return {name: tensor.detach().float().cpu() for name, tensor in found.items()}


# ---------------------------------------------------------------------------------------
# transformers


def _write_hf(model: Model, path: Path) -> None:
    config, hf = _reworded(model.config)
    state = write_weights(FAMILIES[hf["model_type"]], config, _reworded_weights(model.config, config, _weights(model)))
    if hf["model_type"] == "pegasus":  # which reads its sines from the file
        state |= {f"model.{name}.embed_positions.weight": _sines(config) for name in ("encoder", "decoder")}
    save_file({name: part.contiguous() for name, part in state.items()}, path / "model.safetensors", {"format": "pt"})
    if model.labels:
        names = {str(i): name for i, name in enumerate(model.labels)}
        hf |= {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}
    if any(isinstance(tower.input, Tokens) for tower in (config.encoder, config.decoder, config.text) if tower):
        hf |= _write_hf_texts(model, config, path)
    if images.reads_images(model):
        _write_json(path / "preprocessor_config.json", pictures.to_hf(images.facts(model)))
    _write_json(path / "config.json", hf | {"dtype": "float32"})


def _write_hf_texts(model: Model, config: ModelConfig, path: Path) -> dict[str, Any]:
    """The tokenizers and how text is written; returns what config.json has to know of it."""
    tokens, encoder = model.tokenizer, config.text or config.encoder
    ids: dict[str, Any] = {"bos_token_id": tokens.start, "eos_token_id": tokens.end, "pad_token_id": tokens.pad}
    if config.decoder is None:
        _write_hf_tokenizer(model, tokens, path, "encoder", as_stack(encoder))
        return ids
    decoder = as_stack(config.decoder)
    if config.encoder is None:
        _write_hf_tokenizer(model, tokens, path, "decoder", decoder)
        ends = model.ends if len(model.ends) > 1 else tokens.end
        _write_json(path / "generation_config.json", {**ids, "eos_token_id": ends, "max_length": decoder.n_positions})
        return ids
    ids |= {"decoder_start_token_id": tokens.start, "forced_eos_token_id": None}
    # Of our own limits: theirs is one for both sides.
    longest = as_stack(model.config.decoder).n_positions
    never = sorted({tokens.pad, tokens.start, tokens.mask} - {tokens.end})
    settings = {"max_length": longest, "num_beams": 4, "suppress_tokens": never}
    _write_json(path / "generation_config.json", ids | settings)
    _write_hf_tokenizer(model, model.source_tokenizer, path, "translator", as_stack(model.config.encoder))
    if model.source_tokenizer is not tokens:  # AutoTokenizer.from_pretrained(directory, subfolder="target")
        (path / "target").mkdir()
        _write_hf_tokenizer(model, tokens, path / "target", "translator", as_stack(model.config.decoder))
    return ids


def _reworded(config: ModelConfig) -> tuple[ModelConfig, dict[str, Any]]:
    """The configuration of a model with the same logits that a family has words for, and those words; of several tries
    the first that succeeds, or the complaint about the first."""
    problem = None
    for candidate in _tries(config):
        try:
            return candidate, config_to_hf(candidate)
        except ConfigError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _tries(config: ModelConfig) -> Iterator[ModelConfig]:
    if config.shape == "encoder-decoder":
        yield _as_marian(config)
        return
    name = "encoder" if config.decoder is None else "decoder"
    tower = getattr(config, name)
    if _bare_classifier(config):
        config = config.replace(head=config.head.replace(dense=True))
    if not isinstance(tower, Stack) or config.text is not None:
        yield config
        return
    tower = tower.replace(bias=tower.bias or tower.norm == "layer")  # Llama knows models without
    yield config.replace(**{name: tower})
    if isinstance(tower.input, Tokens) and name == "encoder" and not tower.input.n_segments:
        # What is no DistilBERT may be a BERT with one segment, of zeros.
        yield config.replace(encoder=tower.replace(input=tower.input.replace(n_segments=1)))


# BERT bends the first token's vector before the labels. So near to zero, tanh is a straight line, up to rounding.
STRAIGHT = 2.0**-15


def _bare_classifier(config: ModelConfig) -> bool:
    """Whether labels follow the first token's vector at once, over text."""
    head = config.head
    return (
        isinstance(head, Pooled)
        and (head.n_labels > 0, head.pool, head.dense) == (True, "class", False)
        and is_stack_of(config.encoder, Tokens)
    )


def _as_marian(config: ModelConfig) -> ModelConfig:
    """A translator, as near to Marian's as there is one with the same logits."""
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
    if config.shape != "encoder-decoder":
        return False
    places = [as_stack(tower).positions for tower in (config.encoder, config.decoder)]
    return all(place.kind == "sinusoidal" and place.layout == "interleaved" for place in places)


# Which of a matrix's sides are the channels between the layers.
COLUMNS = (".embed.weight", "head.weight", ".qkv.weight", ".q.weight", ".kv.weight", ".up.weight")
ROWS = (".out.weight", ".out.bias", ".down.weight", ".down.bias", "norm.weight", "norm.bias")


def _reworded_weights(ours: ModelConfig, theirs: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that go with it: the channels in the order of its sines, and zeros for what was missing."""

    def sines_first(n: int) -> Tensor:
        return torch.cat([torch.arange(0, n, 2), torch.arange(1, n, 2)])

    reworded = dict(weights)
    if _interleaved(ours):
        for name, tensor in weights.items():
            if name.endswith(COLUMNS):
                reworded[name] = tensor[:, sines_first(tensor.shape[1])]
            elif name.endswith(ROWS):
                reworded[name] = tensor[sines_first(tensor.shape[0])]
    if _bare_classifier(ours):
        reworded["head.dense.weight"] = STRAIGHT * torch.eye(weights["head.classify.weight"].shape[1])
        reworded["head.classify.weight"] = weights["head.classify.weight"] / STRAIGHT
    for name, tensor in skeleton(theirs).state_dict().items():
        if name.endswith((".bias", ".segments")):
            reworded.setdefault(name, torch.zeros(tensor.shape))
    return reworded


def _write_hf_tokenizer(model: Model, tokenizer: Tokenizer, path: Path, kind: str, reads: Stack) -> None:
    """A tokenizer for transformers: the same ids, and around them what the model was trained with."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    names = {role: inner.id_to_token(getattr(tokenizer, role)) for role in SPECIAL if role not in tokenizer.lacks}
    # Around a text goes what the model was trained with: what its tokenizer puts there, if it came with one, or ours.
    before, after, between = {
        "encoder": ([tokenizer.start], [tokenizer.end], model.between),
        "decoder": (model.prefix, [], model.prefix),
        "translator": ([], [tokenizer.end], []),
    }[kind]
    if (before, after, between) != (*tokenizer.surroundings(), tokenizer.between()):
        ids = dict.fromkeys([*before, *after, *between])
        opens, ends, parts = ([inner.id_to_token(id) for id in some] for some in (before, after, between))
        inner.post_processor = TemplateProcessing(
            single=[*opens, "$A", *ends],
            pair=[*opens, "$A", *ends, *parts, "$B:1", *(f"{name}:1" for name in ends)],
            special_tokens=[(inner.id_to_token(id), id) for id in ids],
        )
    inner.save(str(path / "tokenizer.json"))
    segments = getattr(reads.input, "n_segments", 0) > 1
    roles = {"start": "cls", "end": "sep"} if kind == "encoder" else {"start": "bos", "end": "eos"}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{roles.get(role, role)}_token": name for role, name in names.items()},
        "model_max_length": reads.n_positions,
        "model_input_names": ["input_ids", *["token_type_ids"][: int(segments)], "attention_mask"],
        # "<pad>" in a text is text; what others trained, they use otherwise.
        "split_special_tokens": tokenizer.special is None,
        "clean_up_tokenization_spaces": False,
    }
    if model.task == "generate" and (template := chat_template(model)) is not None:
        settings["chat_template"] = template
    _write_json(path / "tokenizer_config.json", settings)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------
# CTranslate2


def _write_ctranslate2(model: Model, path: Path) -> None:
    config = model.config
    if config.encoder is None:
        names = _own_names(model.tokenizer, as_stack(config.decoder).input, path / "tokenizer.json")
        ct2.write_decoder(config, _weights(model), names, model.tokenizer, path)
        return
    source, target = (as_stack(tower).input for tower in (config.encoder, config.decoder))
    reads = _agreed_names(model.source_tokenizer, source, path / "source.tokenizer.json")
    writes = _agreed_names(model.tokenizer, target, path / "tokenizer.json")
    if model.source_tokenizer is model.tokenizer:
        (path / "source.tokenizer.json").unlink()
    ct2.write(config, _weights(model), reads, writes, path)


def _own_names(tokenizer: Tokenizer, given: Input, file: Path) -> list[str]:
    """The name of each id; a table may have more of them than there are tokens."""
    assert isinstance(given, Tokens)
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    inner.save(str(file))
    return [inner.id_to_token(id) or f"<{id}>" for id in range(given.vocab_size)]


def _agreed_names(tokenizer: Tokenizer, given: Input, file: Path) -> list[str]:
    """The same; special tokens have our names, for there both sides have to agree on them."""
    special = {getattr(tokenizer, role): name for role, (name, *_) in SPECIAL.items()}
    names = [special.get(id) or name for id, name in enumerate(_own_names(tokenizer, given, file))]
    assert len(set(names)) == len(names), "every token has a name of its own"
    return names


# ---------------------------------------------------------------------------------------
# regard


def _write_int8(model: Model, path: Path) -> None:
    if model.path is None or not (model.path / "model.safetensors").exists() or _is_foreign(model.path):
        raise InputError(f"{model.path}: no run directory of regard; --to int8 makes one smaller")
    beside = [model.path / name for name in ("config.json", "labels.json", "chat_template.jinja")]
    for file in (*beside, *model.path.glob("*tokenizer*.json")):
        if file.exists():
            shutil.copyfile(file, path / file.name)
    if (model.path / "painter").is_dir():
        shutil.copytree(model.path / "painter", path / "painter")
    read = weights.read_weights(model.path / "model.safetensors")
    weights.write_weights(path / "model.safetensors", read, int8=True)


def _is_foreign(folder: Path) -> bool:
    facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return "model_type" in facts or "architecture" in facts


FORMATS: dict[str, Callable[[Model, Path], None]] = {
    "hf": _write_hf,
    "ctranslate2": _write_ctranslate2,
    "int8": _write_int8,
}
