"""Directories with other people's models: a Hugging Face checkpoint (or timm's) in, the parts of a Model out.

config.json              which family, how large, with which head; the names of its labels
model.safetensors        the weights, in one file or in several that model.safetensors.index.json lists
tokenizer.json           or, of older ones, vocab.txt (BERT), or vocab.json and merges.txt (GPT-2, RoBERTa), or
                         source.spm, target.spm and vocab.json (Marian)
tokenizer_config.json    the roles of the special tokens; special_tokens_map.json has them, too
generation_config.json   the tokens that end a text
preprocessor_config.json how a picture is resized, cut and scaled; processor_config.json has it, too
modules.json             how sentence-transformers makes one vector of a text

What a model is to do follows from its head: write (generate, translate), fill in, classify, tag, match, or embed where
there is none. Nothing is downloaded, nothing is unpickled, and no weight is left at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from regard.config import Codes, Contrastive, Labels, ModelConfig, Pooled, RegardError, Stack, Tokens, Vocabulary
from regard.data.tokenizer import SPECIAL, Tokenizer
from regard.interop import config_from_hf, from_hf, pictures, timm
from regard.interop.sentencepiece import read_pieces, unigram
from regard.model import Parts
from regard.schema import InputError, read_json
from regard.weights import read_weights


def read_checkpoint(folder: Path) -> Parts:
    """The parts of the model in a directory, or an error that says what keeps it from being one of ours.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "config.json").write_text('{"model_type": "vit"}')
    >>> _ = (folder / "pytorch_model.bin").write_text("")
    >>> read_checkpoint(folder)
    Traceback (most recent call last):
    regard.schema.InputError: ...: has only a pickle (pytorch_model.bin), which is never opened; convert it with ...
    """
    hf = read_json(folder / "config.json")
    hf = timm.worded(hf) if timm.is_timm(hf) else hf
    try:
        config = config_from_hf(hf)
        if hf.get("problem_type") == "multi_label_classification":
            raise InputError("problem_type ('multi_label_classification') is not supported; one label a text is")
    except RegardError as error:
        raise InputError(f"{folder / 'config.json'}: {'; '.join(str(error).splitlines())}") from None
    state = read_state(folder, (hf.get("architectures") or ["AutoModel"])[0])
    tokenizer, source = _tokenizers(folder, hf, config)
    try:
        net = from_hf(hf, state)
    except RegardError as error:
        raise InputError(f"{folder}: {error}") from None
    return Parts(net, task_of(config), tokenizer, source, _options(folder, hf, config, tokenizer))


def task_of(config: ModelConfig) -> str:
    """What a model with this head is for.

    >>> from regard import presets
    >>> [task_of(preset()) for preset in (presets.gpt2, presets.bert_base, presets.vit_b16, presets.clip_b32)]
    ['generate', 'embed', 'classify', 'match']
    """
    match config.head:
        case Vocabulary():
            return {"decoder": "generate", "encoder": "fill"}.get(config.shape, "translate")
        case Pooled(n_labels=n):
            return "classify" if n else "embed"
        case Labels():
            return "tag"
        case Contrastive():
            return "match"
        case Codes():
            return "paint"


# ---------------------------------------------------------------------------------------
# Weights


def read_state(folder: Path, kind: str = "AutoModel") -> dict[str, Tensor]:
    """The tensors of a directory, of one file or of all that its index lists."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists():
        return read_weights(folder / "model.safetensors")
    if index.exists():
        where = read_json(index).get("weight_map")
        if not isinstance(where, dict):
            raise InputError(f"{index}: has no weight_map, which says where each tensor is")
        state = {name: t for file in sorted(set(where.values())) for name, t in read_weights(folder / file).items()}
        if lost := sorted(where.keys() - state.keys()):
            raise InputError(f"{index}: lists tensors that its files do not hold: {', '.join(lost)}")
        return state
    if pickles := sorted(file.name for file in folder.glob("*.bin")):
        raise InputError(
            f"{folder}: has only a pickle ({pickles[0]}), which is never opened; convert it with transformers:"
            f" {kind}.from_pretrained({str(folder)!r}).save_pretrained(DIRECTORY, safe_serialization=True)"
        )
    raise InputError(f"{folder}: has no model.safetensors, and no model.safetensors.index.json")


# ---------------------------------------------------------------------------------------
# Tokenizers


def _tokenizers(folder: Path, hf: Mapping[str, Any], config: ModelConfig) -> tuple[Tokenizer | None, Tokenizer | None]:
    """Of what is written, and of what is read where that is another."""
    towers = (config.encoder, config.decoder, config.text)
    if not any(tower is not None and isinstance(tower.input, Tokens) for tower in towers):
        return None, None
    if not (folder / "tokenizer.json").exists() and (folder / "source.spm").exists():
        return _marian(folder, hf, "target"), _marian(folder, hf, "source")
    own = folder / "target"  # as our own export has it
    tokenizer = read_tokenizer(own if own.is_dir() else folder, hf)
    source = read_tokenizer(folder, hf) if own.is_dir() else None
    return tokenizer, source


def read_tokenizer(folder: Path, hf: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a directory, with the special tokens in the roles that it gives them."""
    settings = _settings(folder)
    file = folder / "tokenizer.json"
    try:
        if file.exists():
            inner = tokenizers.Tokenizer.from_file(str(file))
        elif (folder / "vocab.txt").exists():
            inner = _wordpiece(folder, settings)
        elif (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
            inner = _byte_level(folder, settings, hf)
        else:
            raise InputError(
                f"{folder}: has no tokenizer.json (nor vocab.txt, nor vocab.json and merges.txt); save one with"
                " transformers: AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
            )
    except RegardError:
        raise
    except Exception as error:  # the library raises nothing more precise
        raise InputError(f"{folder}: its tokenizer cannot be read ({error})") from None
    return Tokenizer(inner, dict(_roles(inner, settings, hf)))


def _marian(folder: Path, hf: Mapping[str, Any], side: str) -> Tokenizer:
    """One side's of an OPUS-MT directory."""
    settings, own = _settings(folder), folder / "target_vocab.json"
    file = own if side == "target" and own.exists() else folder / "vocab.json"
    pieces, ids = read_pieces(folder / f"{side}.spm"), read_json(file)
    try:
        inner = unigram(pieces, ids)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None
    return Tokenizer(inner, dict(_roles(inner, settings, hf)))


# The roles of special tokens in their words; what a decoder calls bos, an encoder calls cls.
ROLES = {
    "pad": ("pad_token",),
    "start": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "mask": ("mask_token",),
}


def _settings(folder: Path) -> dict[str, Any]:
    files = (folder / name for name in ("special_tokens_map.json", "tokenizer_config.json"))
    return {key: value for file in files if file.exists() for key, value in read_json(file).items()}


def _roles(
    inner: tokenizers.Tokenizer, settings: Mapping[str, Any], hf: Mapping[str, Any]
) -> Iterator[tuple[str, str | None]]:
    """The name of each special token, as they say it or else as it is customary, and None for those there are not."""
    for role, keys in ROLES.items():
        given = [settings.get(key) for key in keys]
        names = [name["content"] if isinstance(name, dict) else name for name in given if name is not None]
        if role == "start" and hf.get("decoder_start_token_id") is not None:
            names.insert(0, inner.id_to_token(hf["decoder_start_token_id"]))
        yield role, next((n for n in [*names, *SPECIAL[role]] if n and inner.token_to_id(n) is not None), None)


def _wordpiece(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """BERT's, as it was first published."""
    names = (folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    inner = tokenizers.Tokenizer(models.WordPiece({name: id for id, name in enumerate(names)}, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.add_special_tokens([n for n in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if n in names])
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, names.index(name)) for name in ("[CLS]", "[SEP]")],
    )
    return inner


def _byte_level(folder: Path, settings: Mapping[str, Any], hf: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """GPT-2's and RoBERTa's, likewise."""
    inner = tokenizers.Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space", False))
    inner.decoder = decoders.ByteLevel()
    given = {name: inner.token_to_id(name) for name in ("<|endoftext|>", "<s>", "</s>", "<pad>", "<unk>")}
    ids = {name: id for name, id in given.items() if id is not None}
    inner.add_special_tokens([*ids])
    if inner.token_to_id("<mask>") is not None:  # it swallows the space before it
        inner.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    inner.post_processor = processors.ByteLevel(trim_offsets=False)
    if hf["model_type"] == "roberta":
        inner.post_processor = processors.RobertaProcessing(("</s>", ids["</s>"]), ("<s>", ids["<s>"]))
    return inner


# ---------------------------------------------------------------------------------------
# What else a model has


def _options(folder: Path, hf: Mapping[str, Any], config: ModelConfig, tokenizer: Tokenizer | None) -> dict[str, Any]:
    tower = config.text or config.encoder or config.decoder
    options: dict[str, Any] = {"longest": tower.n_positions if isinstance(tower, Stack) else 256}
    options["labels"] = _labels(hf, config)
    options["images"] = pictures.read(folder, hf, config)
    if tokenizer is None:
        return options
    before, after = tokenizer.surroundings()
    if config.shape == "decoder":
        options |= {"prefix": before, "ends": _ends(folder, hf, tokenizer), "chat_template": _chat_template(folder)}
    if config.shape == "encoder":
        options["between"] = tokenizer.between()
    if (folder / "modules.json").exists():
        options["pooling"] = _pooling(folder)
        limits = folder / "sentence_bert_config.json"
        if limits.exists() and (longest := read_json(limits).get("max_seq_length")):
            options["longest"] = longest - len(before) - len(after)  # theirs counts the special tokens
    return options


def _labels(hf: Mapping[str, Any], config: ModelConfig) -> list[str]:
    """The names of the labels; a single one is a number, and has none."""
    n = getattr(config.head, "n_labels", 0)
    if n < 2:
        return []
    names = hf.get("id2label") or {}
    return [str(names.get(str(i), names.get(i, f"LABEL_{i}"))) for i in range(n)]


def _ends(folder: Path, hf: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
    """The tokens of which any ends a text: the tokenizer's, and those that the model was made to end with."""
    file = folder / "generation_config.json"
    given = (read_json(file) if file.exists() else {}).get("eos_token_id", hf.get("eos_token_id"))
    more = given if isinstance(given, list) else [] if given is None else [given]
    return list(dict.fromkeys([tokenizer.end, *(id for id in more if id < len(tokenizer))]))


def _chat_template(folder: Path) -> str | None:
    """The Jinja template of a conversation: a file of its own, or a setting; of several, the usual one."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    given = _settings(folder).get("chat_template")
    if isinstance(given, list):
        given = {entry.get("name"): entry.get("template") for entry in given}.get("default")
    return given


# sentence-transformers' ways to make one vector, old names and new, as ours.
POOLING = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "class",
    "pooling_mode_lasttoken": "end",
    "mean": "mean",
    "cls": "class",
    "lasttoken": "end",
}


def _pooling(folder: Path) -> str:
    """How sentence-transformers makes one vector of a text."""
    file = folder / "modules.json"
    try:
        modules = {entry["type"].rpartition(".")[2]: entry["path"] for entry in read_list(file)}
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{file}: is not a list of modules, each with a type and a path") from None
    if others := sorted(modules.keys() - {"Transformer", "Pooling", "Normalize"}):
        raise InputError(f"{file}: module {others[0]} is not supported; known: Transformer, Pooling, Normalize")
    if "Pooling" not in modules:
        raise InputError(f"{file}: has no Pooling module, which says how a text becomes one vector")
    file = folder / modules["Pooling"] / "config.json"
    settings = read_json(file)
    if "pooling_mode" in settings:
        chosen = [settings["pooling_mode"]] if isinstance(settings["pooling_mode"], str) else settings["pooling_mode"]
    else:
        chosen = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in POOLING:
        raise InputError(
            f"{file}: pooling ({', '.join(map(str, chosen))}) is not supported; known: mean, cls, lasttoken"
        )
    return POOLING[chosen[0]]


def read_list(path: Path) -> list[Any]:
    """A JSON file that holds a list."""
    import json

    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error})") from None
