"""A conversation with a model that carries a chat template: turns in, answers out as they are written.

A template is a Jinja program that came with somebody's model: it runs in Jinja's sandbox, where it can read the
messages and nothing else. What it writes between the turns (``<|im_start|>``) is encoded as special tokens; the same
letters in what a person types are letters.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Generator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from regard.decode.generate import Generation, stream
from regard.schema import InputError, read_json

if TYPE_CHECKING:
    from regard.model import Model

MAX_NEW_TOKENS = 512  # of an answer


class Chat:
    """What was said so far, and the model that answers.

    A conversation that has grown too long for the model's context loses its first turns, not the system's; ``left_out``
    counts their messages.
    """

    def __init__(self, model: Model, *, system: str | None = None):
        model.check_task("generate")
        template, names = _found(model)
        self.template, self.names = _compiled(template, str(model.path or "this model")), names
        self.model = copy.copy(model)  # for its ends: an answer also ends where a turn does
        turn = model.tokenizer.special_ids.get(names["eos_token"])
        self.model.ends = [*model.ends, *([turn] if turn is not None and turn not in model.ends else [])]
        self.messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        self.left_out = 0

    def say(
        self, text: str, *, max_new_tokens: int = MAX_NEW_TOKENS, **options: Any
    ) -> Generator[str, None, Generation]:
        """The answer to a turn, as it is written; options are those of :func:`regard.decode.generate.stream`. An answer
        that is broken off counts as far as it came."""
        ids, kept = self.fitting([*self.messages, {"role": "user", "content": text}], max_new_tokens)
        self.left_out += len(self.messages) + 1 - len(kept)
        self.messages, said = kept, list[str]()
        answer = stream(self.model, ids, max_new_tokens=max_new_tokens, **options)
        try:
            while True:
                said.append(next(answer))
                yield said[-1]
        except StopIteration as end:
            return end.value
        finally:
            self.messages.append({"role": "assistant", "content": "".join(said)})

    def fitting(self, messages: list[dict[str, str]], max_new_tokens: int) -> tuple[list[int], list[dict[str, str]]]:
        """The ids of what was said, and what that is: without the first turns where they are too many."""
        context, first = self.model.context, int(messages[0]["role"] == "system")
        room = None if context is None else context - min(max_new_tokens, context // 2)
        while True:
            ids = self.encode(messages)
            if room is None or len(ids) <= room:
                return ids, messages
            if len(messages) - first < 3:
                raise InputError(f"this turn is too long: {len(ids)} tokens, where the model has room for {room}")
            messages = [*messages[:first], *messages[first + 2 :]]

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        """The ids of a conversation, up to where the model is to answer."""
        special = self.model.tokenizer.special_ids
        names = sorted(special, key=len, reverse=True)
        either = re.compile("|".join(map(re.escape, names)))
        # What looks special in a message is hidden behind a character that is none, until the template's own is found.
        contents = [message["content"] for message in messages]
        veil = next((c for c in map(chr, range(0xFDD0, 0xFDF0)) if not any(c in text for text in contents)), None)
        if veil is None:
            raise InputError("the messages have every one of U+FDD0 to U+FDEF, which are no characters; leave them out")
        hidden = [
            {**message, "content": either.sub(lambda m: f"{veil}{names.index(m[0])}{veil}", message["content"])}
            for message in messages
        ]
        try:
            text = self.template.render(messages=hidden, add_generation_prompt=True, **self.names)
        except TemplateError as error:
            raise InputError(f"the model's chat template refuses this conversation: {error}") from None
        except Exception as error:  # a program of somebody's: it may do anything wrong
            raise InputError(f"the model's chat template fails: {type(error).__name__}: {error}") from None
        ids: list[int] = []
        for i, part in enumerate(re.split(f"({either.pattern})", text)):
            if i % 2:
                ids.append(special[part])
            elif part:
                ids += self.model.tokenizer.encode(re.sub(f"{veil}(\\d+){veil}", lambda m: names[int(m[1])], part))
        return ids


def _compiled(template: str, name: str) -> Template:
    """As transformers has it: the options of Jinja that templates are written for, and the functions that they call."""
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])

    def refuse(why: str) -> None:
        raise TemplateError(why)

    jinja.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    jinja.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    try:
        return jinja.from_string(template)
    except TemplateError as error:
        raise InputError(f"{name}: its chat template is not valid ({error})") from None


def chat_template(model: Model) -> str | None:
    """The template of a model that was made to chat: its own, or in a file beside it."""
    return _template(model, _settings(model))


def _template(model: Model, settings: Mapping[str, Any]) -> str | None:
    return model.chat_template or _in_file(_folder(model)) or _of_settings(settings.get("chat_template"))


def _folder(model: Model) -> Path | None:
    return model.path if model.path is not None and model.path.is_dir() else None


def _settings(model: Model) -> dict[str, Any]:
    """What the tokenizer_config.json beside a model says."""
    folder = _folder(model)
    config = folder / "tokenizer_config.json" if folder is not None else None
    return read_json(config) if config is not None and config.exists() else {}


def _found(model: Model) -> tuple[str, dict[str, str]]:
    """A model's template, and the names of special tokens that templates ask for."""
    settings = _settings(model)
    template = _template(model, settings)
    if template is None:
        name = model.path or "this model"
        raise InputError(
            f"{name}: has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json), so it was"
            f" not made to chat; to go on with a text: regard generate {name} TEXT"
        )
    by_id = {id: name for name, id in model.tokenizer.special_ids.items()}
    own = {"bos_token": model.prefix[:1], "eos_token": model.ends[-1:]}
    names = {role: "".join(by_id.get(id, "") for id in ids) for role, ids in own.items()}
    for role in ("bos_token", "eos_token", "pad_token", "unk_token"):
        told = settings.get(role)
        told = told.get("content") if isinstance(told, Mapping) else told
        names[role] = told if isinstance(told, str) else names.get(role, "")
    return template, names


def _in_file(folder: Path | None) -> str | None:
    file = folder / "chat_template.jinja" if folder is not None else None
    return file.read_text(encoding="utf-8") if file is not None and file.exists() else None


def _of_settings(given: Any) -> str | None:
    """One template or, by their names, several: the first is the usual one, unless another is called so."""
    if isinstance(given, list):
        named = {one.get("name"): one.get("template") for one in given if isinstance(one, Mapping)}
        given = named.get("default", next(iter(named.values()), None))
    return given if isinstance(given, str) else None
