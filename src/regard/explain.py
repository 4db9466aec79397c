"""Every value of a run: what it is, where it came from, what it does.

A value is the command line's, else the recipe's, else the preset's, else the default; how many tokens and labels there
are, only the data says. What a value does is the string below its field in ``recipe.py`` or ``config.py``, read from
there, so that it is written once. Nothing here imports torch.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from regard import presets
from regard.config import ConfigError, InputError, ModelConfig
from regard.files import SHIPPED, shipped
from regard.recipe import Data, Recipe, Tokenizer, Train, model_config, parse_changes
from regard.schema import Node, from_dict, merge, read_json, read_toml

FROM_THE_DATA = "from the data"
SPECIAL = ("pad", "start", "end", "mask")  # tokens that every vocabulary has
WIDE = 120  # columns from which on a value and what it does share a line
ENDLESS = 10_000  # of a pipe, where each value has one line
ALPHABET = 100  # characters of a text, about: letters in both cases, digits, signs
LABELS = 2  # of texts or words, at the least


@dataclass(frozen=True)
class Value:
    """One value of a run. None as a value that comes from the data is not known yet."""

    key: str
    value: Any
    source: str
    about: str

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0]


@dataclass(frozen=True)
class Explained:
    """A recipe, or only the model of one (a preset, a TOML file without data), with every value's origin."""

    name: str
    model: ModelConfig | None  # none where it is that of --from
    train: Train | None
    data: Data | None
    values: tuple[Value, ...]
    sections: dict[str, str]  # what each table is for
    assumed: tuple[str, ...] = ()  # of the model, for only the data says

    def given(self, key: str) -> bool:
        """Whether somebody chose this value for this run.

        >>> read("gpt2", ["train.steps=7"]).given("train.steps")
        True
        """
        return any(v.key == key and v.source.startswith(("recipe", "command")) for v in self.values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON.

        >>> read("tiny_lstm").to_dict()["values"][-1]["key"]
        'model.head.transform'
        """
        return {"name": self.name, "values": [dataclasses.asdict(value) for value in self.values]}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield from _page(self, options.max_width)


# ---------------------------------------------------------------------------------------
# Reading


@dataclass(frozen=True, kw_only=True)
class Draft(Node):
    """A recipe without data: a model, and perhaps how it would be trained."""

    model: dict[str, Any]
    """Which model: a preset with changes, or every value."""
    train: Train
    """How it is trained."""

    def problems(self) -> Iterator[str]:
        try:
            presets.resolve(self.model)
        except ConfigError as error:
            yield from (f"model: {problem}" for problem in error.problems)


def read(name: str, changes: Sequence[str] = ()) -> Explained:
    """A recipe, a TOML file with only a model in it, a run directory, a model that comes with regard or a preset, with
    changes like ``train.steps=100``. Every problem is reported at once.

    >>> [v.source for v in read("gpt2", ["model.size=xl"]).values if v.key == "model.decoder.n_layers"]
    ['command line']
    """
    given, is_preset = parse_changes(changes), name in presets.names()
    folder = SHIPPED / name if name in shipped() and not Path(name).exists() else Path(name)
    trained: dict[str, Any] | None = None  # the model of a run, which knows what the data said
    if not is_preset and folder.suffix == ".json" and not folder.is_dir():
        file, lines = read_json(name), {}
    elif not is_preset and (name.endswith(".toml") or folder.is_file()):
        file, lines = read_toml(name), _lines(Path(name).read_text(encoding="utf-8"))
    elif not is_preset and folder.is_dir():
        config = folder / "config.json"
        told = read_json(config)
        if "recipe" not in told:
            raise InputError(f"{config}: tells of no recipe; give a run directory, a recipe or a preset")
        file, lines, trained = told["recipe"], {}, told.get("model", {})
    else:
        presets.preset(name)  # a name that is none says so
        file, lines, given = {}, {}, merge({"model": {"preset": name}}, given)
    table = merge(file, given)
    if _counts_otherwise(file, table):
        trained = None
    data, model, train = _read_tables(table, trained)
    origin = _Origin(file, given, lines, {"model": {}, **table}, trained)
    values, sections = [], {}
    for section, node in (("data", data), ("model", model), ("train", train)):
        if node is not None:
            sections[section] = abouts(Recipe)[section]
            values += origin.of_preset() if section == "model" else []
            values += origin.values(section, node, sections)
    order = list(sections)
    values.sort(key=lambda value: order.index(value.section))
    assumed = () if trained or data is None else _assumed(data)
    return Explained(name, model, train, data, tuple(values), sections, assumed)


def _read_tables(
    table: dict[str, Any], trained: dict[str, Any] | None
) -> tuple[Data | None, ModelConfig | None, Train | None]:
    """The run that a table describes, or every problem of it."""
    cls = Recipe if "data" in table else Draft
    whole = table if "data" in table else merge({"train": {"steps": 1}}, table)
    try:
        run = from_dict(cls, whole)
    except ConfigError as error:
        raise ConfigError([*error.problems, *_hidden_problems(whole, error.problems)]) from None
    if isinstance(run, Draft):
        return None, presets.resolve(run.model), run.train if "train" in table else None
    if run.needs_model:
        return run.data, None, run.train
    labels = (1 if run.data.labels == "numbers" else LABELS) if run.data.task in ("classify", "tag") else 0
    counts = {"vocab_size": _vocab_size(run.data.tokenizer), "n_labels": labels}
    counts = _counts(trained) if trained else counts
    return run.data, model_config(run.model, **counts, images=run.data.images), run.train


def _counts_otherwise(file: dict[str, Any], table: dict[str, Any]) -> bool:
    """Whether changes are to what decides how many tokens and labels there are."""
    before, after = file.get("data", {}), table.get("data", {})
    return any(before.get(name) != after.get(name) for name in ("task", "labels", "tokenizer"))


def _counts(model: dict[str, Any]) -> dict[str, Any]:
    """What the data said, by a whole model."""
    inputs = {name: (model.get(name) or {}).get("input", {}) for name in ("encoder", "decoder", "text")}
    sizes = {name: its.get("vocab_size", 0) for name, its in inputs.items() if its.get("kind") == "tokens"}
    written = sizes.get("decoder") or sizes.get("text") or sizes.get("encoder", 0)
    labels = (model.get("head") or {}).get("n_labels") or 0
    return {"vocab_size": written, "source_vocab_size": sizes.get("encoder"), "n_labels": labels}


def _assumed(data: Data) -> tuple[str, ...]:
    """What of a model is a guess until the data is read."""
    tokens = f"{_vocab_size(data.tokenizer)} tokens"
    return (tokens,) * (data.tokenizer.kind == "characters" and not data.images) + (f"{LABELS} labels",) * (
        data.task in ("classify", "tag") and data.labels != "numbers"
    )


def _hidden_problems(table: dict[str, Any], known: list[str]) -> Iterator[str]:
    """A value that cannot be read hides the rules of the tables beside it, so each table is asked by itself."""
    readers = {"data": lambda t: from_dict(Data, t), "model": presets.resolve, "train": lambda t: from_dict(Train, t)}
    for name, reader in readers.items():
        try:
            if isinstance(table.get(name), dict):
                reader(table[name])
        except ConfigError as error:
            told = [problem.removeprefix(name).lstrip(".: ") for problem in known]
            yield from (f"{name}: {problem}" for problem in error.problems if problem not in told)


def _vocab_size(tokenizer: Tokenizer) -> int:
    """What the recipe expects; the data has the last word."""
    if tokenizer.kind == "bpe":
        return tokenizer.vocab_size
    return 256 + len(SPECIAL) + (ALPHABET if tokenizer.kind == "characters" else 0)


# ---------------------------------------------------------------------------------------
# Where a value came from


@dataclass(frozen=True)
class _Origin:
    file: dict[str, Any]
    given: dict[str, Any]
    lines: dict[str, int]
    table: dict[str, Any]
    trained: dict[str, Any] | None  # of a run, whose recipe has every value, the defaults too

    def values(self, key: str, node: Node, sections: dict[str, str]) -> Iterator[Value]:
        """The values of a node and, below, of its parts; what the parts are for goes to ``sections``."""
        about, parts = abouts(type(node)), []
        for field in dataclasses.fields(node):  # type: ignore[arg-type]
            value, path = getattr(node, field.name), f"{key}.{field.name}"
            if isinstance(value, Node):
                parts.append((path, value, about[field.name]))
                continue
            source = self.source(path, value, field.default)
            unknown = source == FROM_THE_DATA and not self.trained
            yield Value(path, None if unknown else value, source, about[field.name])
        for path, value, text in parts:
            sections[path] = text
            yield from self.values(path, value, sections)

    def source(self, key: str, value: Any, default: Any) -> str:
        if self._from_the_data(key):
            return FROM_THE_DATA
        if key in self._pixels:  # the data's, and what that has is given
            return self._chosen(self._pixels[key]) or "default"
        chosen = self._chosen(key) or self._through_an_argument(key)
        if chosen and not (self.trained and chosen == "recipe" and value == default):
            return chosen
        preset = self._preset
        return f"preset {preset}" if preset and key.startswith("model.") and value != default else "default"

    @property
    def _pixels(self) -> dict[str, str]:
        """The values of a model over images that are those of the data."""
        sees = self.table.get("data", {}).get("images") is not None
        where = {"image_size": "data.images.size", "channels": "data.images.channels"}
        return {f"model.encoder.input.{name}": key for name, key in where.items()} if sees else {}

    def of_preset(self) -> Iterator[Value]:
        """The preset's name and its arguments, which are no fields of a model."""
        for name in ("preset", *self._arguments) if self._preset else ():
            about = f"An argument of preset {self._preset}." if name != "preset" else "The model to start from."
            yield Value(f"model.{name}", self.table["model"][name], self._chosen(f"model.{name}"), about)

    @property
    def _preset(self) -> str | None:
        return self.table["model"].get("preset")

    @property
    def _arguments(self) -> dict[str, Any]:
        fields = {field.name for field in dataclasses.fields(ModelConfig)}
        return {k: v for k, v in self.table["model"].items() if k not in fields and k != "preset"}

    def _chosen(self, key: str) -> str:
        """Command line or recipe, where one of them names this key."""
        if _has(self.given, key):
            return "command line"
        if not _has(self.file, key):
            return ""
        while key not in self.lines and "." in key:
            key = key.rpartition(".")[0]  # a table in one line
        return f"recipe line {self.lines[key]}" if key in self.lines else "recipe"

    def _through_an_argument(self, key: str) -> str:
        """What a preset makes of its arguments is whose the argument is."""
        arguments = self._arguments if self._preset and key.startswith("model.") else {}
        for name in arguments:
            made = [presets.preset(str(self._preset), **a) for a in (arguments, _without(arguments, name))]
            if len({repr(_get(config.to_dict(), key.removeprefix("model."))) for config in made}) > 1:
                return self._chosen(f"model.{name}")
        return ""

    def _from_the_data(self, key: str) -> bool:
        if "data" not in self.table:
            return False
        labelled = self.table["data"]["task"] in ("classify", "tag")
        return key.endswith(".input.vocab_size") or (key == "model.head.n_labels" and labelled)


def _without(table: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in table.items() if k != key}


def _get(table: Any, key: str) -> Any:
    for part in key.split("."):
        table = table.get(part) if isinstance(table, dict) else None
    return table


def _has(table: Any, key: str) -> bool:
    head, _, name = key.rpartition(".")
    parent = _get(table, head) if head else table
    return isinstance(parent, dict) and name in parent


def _lines(text: str) -> dict[str, int]:
    """The line on which each key of a TOML file stands.

    >>> _lines("[train]\\nsteps = 7\\n[model]\\nhead.tied = true")
    {'train.steps': 2, 'model.head.tied': 4}
    """
    found, table = {}, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[([^\[\]]+)\]\s*(#.*)?$", line):
            table = header[1].replace(" ", "") + "."
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            found.setdefault(table + key[1], number)
    return found


@cache
def abouts(cls: type) -> dict[str, str]:
    """What each field of a configuration class does: the string below it.

    >>> abouts(Train)["steps"]
    'Updates of the weights.'
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            texts[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return texts


# ---------------------------------------------------------------------------------------
# The page


def _page(run: Explained, width: int) -> Iterator[RenderableType]:
    keys = max(len(value.key.rpartition(".")[2]) for value in run.values)
    sources = max(len(value.source) for value in run.values)
    for section, about in run.sections.items():
        own = [value for value in run.values if value.section == section]
        yield Text.assemble("" if section == next(iter(run.sections)) else "\n", (f"[{section}]", "bold"), f"  {about}")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column(width=keys, no_wrap=True)
        value_width = None if width >= ENDLESS else 24 if width >= WIDE else max(8, width - keys - sources - 8)
        table.add_column(width=value_width, min_width=24 if width >= ENDLESS else None, overflow="fold")
        table.add_column(width=sources, style="dim")
        if width >= WIDE:
            table.add_column()
        for value in own:
            row = (Text(value.key.rpartition(".")[2]), Text(_shown(value), "cyan"), Text(value.source))
            if width >= WIDE:
                table.add_row(*row, Text(value.about))
                continue
            line = Table.grid(padding=(0, 2, 0, 0))
            for column in table.columns:
                line.add_column(
                    width=column.width, no_wrap=column.no_wrap, overflow=column.overflow, style=column.style
                )
            line.add_row(*row)
            yield Padding(line, (0, 0, 0, 2))
            yield Padding(Text(value.about, "dim"), (0, 0, 0, 6))
        if width >= WIDE:
            yield Padding(table, (0, 0, 0, 2))


def _shown(value: Value) -> str:
    """As TOML has it; nothing as a dash, and a question mark for what the data has yet to say."""
    if value.source == FROM_THE_DATA and value.value is None:
        return "?"
    return "-" if value.value in (None, (), "") else json.dumps(value.value, ensure_ascii=False)
