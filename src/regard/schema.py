"""What every configuration can do: plain values in and out, every problem found at once. And how mistakes are told.

A configuration is a frozen dataclass that inherits :class:`Node`; its fields' types say what may be read into them, its
``problems()`` what rules they must keep. Nothing here knows what a model is, and nothing imports torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, Union

# ---------------------------------------------------------------------------------------
# Errors: a user's mistake is one line that names the thing, its value, the rule and the way out.


class RegardError(ValueError):
    """A mistake in what the user gave; the command line prints it and exits with 2."""


class ConfigError(RegardError):
    """One or more problems in a configuration, all of them in ``problems``.

    >>> raise ConfigError(["d_model (0) must be at least 1"])
    Traceback (most recent call last):
    regard.schema.ConfigError: d_model (0) must be at least 1
    """

    def __init__(self, problems: Iterable[str]):
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class InputError(RegardError):
    """An input that the model cannot take: ids, lengths, masks, images, caches."""


def suggest(name: str, known: Iterable[str]) -> str:
    """The way out for an unknown name: the nearest known one, or all of them.

    >>> suggest("n_layer", ["n_layers", "n_heads"])
    'did you mean n_layers?'
    """
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"


# ---------------------------------------------------------------------------------------
# A node of a configuration


class Node:
    """What every configuration dataclass can do."""

    is_default: ClassVar[bool] = False  # among several kinds, the one that is meant where none is named

    def problems(self) -> Iterator[str]:
        """Rules that this piece breaks, one line each; its parts are asked separately."""
        return iter(())

    def validate(self) -> Self:
        """Collect every problem of this piece and its parts (wrong types, unknown names, broken rules); raise once, or
        return self.

        >>> from regard.config import Positions
        >>> Positions(kind="none").validate().kind
        'none'
        """
        from_dict(type(self), self.to_dict())
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON.

        >>> from regard.config import Vector
        >>> Vector(d_vector=7).to_dict()
        {'kind': 'vector', 'd_vector': 7, 'n_slots': 4}
        """
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def replace(self, **changes: Any) -> Self:
        """A copy with some values changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


def _plain(value: Any) -> Any:
    if isinstance(value, Node):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


def _walk(node: Node, path: str) -> Iterator[str]:
    prefix = f"{path}: " if path else ""
    yield from (prefix + problem for problem in node.problems())
    for field in dataclasses.fields(node):  # type: ignore[arg-type]
        value = getattr(node, field.name)
        if isinstance(value, Node):
            yield from _walk(value, f"{path}.{field.name}" if path else field.name)


def at_least(node: Any, least: int, *names: str) -> Iterator[str]:
    """The problems of numbers that are too small; None is none."""
    for name in names:
        value = getattr(node, name)
        if value is not None and value < least:
            yield f"{name} ({value}) must be at least {least}"


def fractions(node: Any, *names: str) -> Iterator[str]:
    """The problems of shares that are not from 0 up to 1."""
    for name in names:
        value = getattr(node, name)
        if not 0 <= value < 1:
            yield f"{name} ({value}) must be at least 0 and below 1"


def must_divide(name: str, value: int, by_name: str, by: int) -> Iterator[str]:
    """The problem of a width that does not divide, with the nearest that do."""
    if by > 0 and value % by:
        below, above = value // by * by, math.ceil(value / by) * by
        near = f"{below} or {above}" if below else f"{above}"
        yield f"{name} ({value}) must be divisible by {by_name} ({by}); try {near}"


# ---------------------------------------------------------------------------------------
# Plain values in

N = TypeVar("N")


def from_dict(cls: type[N], data: dict[str, Any]) -> N:
    """Build a configuration dataclass from plain values and validate it.

    >>> from regard.config import Vector
    >>> from_dict(Vector, {"d_vectr": 7})
    Traceback (most recent call last):
    regard.schema.ConfigError: d_vectr: unknown key; did you mean d_vector?
    d_vector: missing
    """
    problems: list[str] = []
    node = _read(cls, data, "", problems)
    if node is not _BROKEN:
        problems += _walk(node, "")
    if problems:
        raise ConfigError(problems)
    return node


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file as plain values; a file that is missing or broken is a one-line error."""
    return _read_file(path, "TOML", tomllib.loads)


def read_json(path: str | Path) -> dict[str, Any]:
    """The same for JSON."""
    return _read_file(path, "JSON", json.loads)


def _read_file(path: str | Path, kind: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        table = parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror})"]) from None
    except ValueError as error:  # of TOML, JSON or UTF-8
        raise ConfigError([f"{path}: not valid {kind}: {error}"]) from None
    if not isinstance(table, dict):
        raise ConfigError([f"{path}: must hold a table of keys"])
    return table


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes``, table by table.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        # A table of another kind replaces the old one: its keys would not fit. Every kind of tokenizer has the same.
        if isinstance(old, dict) and isinstance(value, dict):
            same = key == "tokenizer" or value.get("kind", old.get("kind")) == old.get("kind")
            merged[key] = merge(old, value) if same else value
        else:
            merged[key] = value
    return merged


_BROKEN: Any = object()  # stands for a value that could not be read; its problem is noted


def _read(hint: Any, value: Any, path: str, problems: list[str]) -> Any:
    """``value`` as the type ``hint`` says; what does not fit goes to ``problems``."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        options = [o for o in options if o is not type(None)]
        if len(options) > 1:
            return _read_one_of(options, value, path, problems)
        return _read(options[0], value, path, problems)
    if origin is Literal:
        if value not in options:
            problems.append(f"{path} ({value!r}) must be one of {', '.join(map(str, options))}")
            return _BROKEN
        return value
    if origin is tuple:
        if isinstance(value, str) and options[0] is str:
            value = [value]  # one file is a list of one
        if not isinstance(value, list | tuple):
            problems.append(f"{path} ({value!r}) must be a list")
            return _BROKEN
        parts = tuple(_read(options[0], v, f"{path}[{i}]", problems) for i, v in enumerate(value))
        return _BROKEN if _BROKEN in parts else parts
    if origin is dict:
        if not isinstance(value, dict):
            problems.append(f"{path} ({value!r}) must be a table of keys")
            return _BROKEN
        return value
    if dataclasses.is_dataclass(hint):
        return _read_node(hint, value, path, problems)
    if hint is float and type(value) is int:
        value = float(value)
    if hint is int and type(value) is int and abs(value) > _LARGEST:
        problems.append(f"{path} ({value}) must be at most {_LARGEST}")
        return _BROKEN
    if type(value) is not hint or (hint is float and not math.isfinite(value)):
        problems.append(f"{path} ({value!r}) must be {_ARTICLES.get(hint, hint)}")
        return _BROKEN
    return value


_LARGEST = 2**31 - 1
_ARTICLES = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}


def _read_one_of(options: list[Any], value: Any, path: str, problems: list[str]) -> Any:
    """One of several dataclasses, told apart by ``kind``, which one of them may let be left out."""
    kinds: dict[str, Any] = {o.kind: o for o in options}
    kind = value.get("kind") if isinstance(value, dict) else None
    kind = next((o.kind for o in options if o.is_default), None) if kind is None else kind
    if not isinstance(kind, str) or kind not in kinds:
        problems.append(f"{path}.kind ({kind!r}) must be one of {', '.join(kinds)}")
        return _BROKEN
    return _read_node(kinds[kind], value, path, problems)


def _read_node(cls: Any, value: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, dict):
        problems.append(f"{path} ({value!r}) must be a table of keys")
        return _BROKEN
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    dot = f"{path}." if path else ""
    problems += [f"{dot}{key}: unknown key; {suggest(key, fields)}" for key in value if key not in fields]
    given = {k: _read(hints[k], v, dot + k, problems) for k, v in value.items() if k in fields}
    unset = dataclasses.MISSING
    missing = [n for n, f in fields.items() if n not in given and f.default is unset and f.default_factory is unset]
    problems += [f"{dot}{name}: missing" for name in missing]
    return _BROKEN if missing or _BROKEN in given.values() else cls(**given)
