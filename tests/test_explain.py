"""Every value of a run, with its origin and the string that says what it does."""

import dataclasses
import inspect
import json
import subprocess
import sys

import pytest

import ready
from regard import config, presets, recipe
from regard.config import ConfigError, InputError, Stack
from regard.explain import ALPHABET, FROM_THE_DATA, SPECIAL, Draft, abouts, read
from regard.look.page import as_text
from regard.schema import Node

RECIPE = """\
[data]
task = "translate"
train = { source = "train.en", target = "train.de" }
[data.tokenizer]
vocab_size = 500 # small
[model]
preset = "vaswani_base"
max_len = 53
encoder.n_layers = 3
[model.decoder]
  n_layers = 2
[train]
steps = 7
betas = [
  0.9,
  0.95,
]
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RECIPE)
    return str(path)


def classes(module):
    return [c for _, c in inspect.getmembers(module, inspect.isclass) if issubclass(c, Node) and c is not Node]


@pytest.mark.parametrize("cls", sorted({*classes(config), *classes(recipe), Draft}, key=lambda c: c.__name__))
def test_every_field_says_what_it_does(cls):
    about = abouts(cls)
    assert list(about) == [field.name for field in dataclasses.fields(cls)]
    for text in about.values():
        assert text.endswith(".")
        assert "\n" not in text


def test_a_tokenizer_of_another_kind_keeps_what_was_said_of_it(tmp_path, path):
    """Its kind is one option among others, not a class of its own."""
    (tmp_path / "lower.toml").write_text(
        RECIPE.replace("vocab_size = 500 # small", "lowercase = true\nnormalise = 'nfkc'")
    )
    for changes in (["data.tokenizer.kind=bpe"], ["data.tokenizer.kind=characters"], []):
        run = read(str(tmp_path / "lower.toml"), changes)
        found = {value.key: (value.value, value.source) for value in run.values}
        assert found["data.tokenizer.lowercase"] == (True, "recipe line 5")
        assert found["data.tokenizer.normalise"] == ("nfkc", "recipe line 6")


def test_a_recipe_in_json_is_read_as_train_reads_it(tmp_path, path):
    table = recipe.read(path).to_dict()
    (tmp_path / "run.json").write_text(json.dumps({name: table[name] for name in ("data", "model", "train")}))
    run, same = read(str(tmp_path / "run.json")), read(path)
    assert (run.data, run.train) == (same.data, same.train)


def test_where_values_come_from(path):
    run = read(path, ["train.lr=0.5", "model.decoder.dropout=0.25", "train.steps=11"])
    source = {value.key: value.source for value in run.values}
    values = {value.key: value.value for value in run.values}
    assert source["data.task"] == "recipe line 2"
    assert source["data.train.source"] == source["data.train.target"] == "recipe line 3"
    assert source["data.train.files"] == source["data.valid.source"] == "default"
    assert source["data.tokenizer.vocab_size"] == "recipe line 5"
    assert source["model.preset"] == "recipe line 7"
    assert source["model.max_len"] == "recipe line 8"
    assert source["model.encoder.max_len"] == source["model.decoder.max_len"] == "recipe line 8"  # through the preset
    assert source["model.encoder.n_layers"] == "recipe line 9"
    assert source["model.decoder.n_layers"] == "recipe line 11"
    assert source["model.encoder.d_model"] == source["model.decoder.causal"] == "preset vaswani_base"
    assert source["model.encoder.norm"] == source["train.seed"] == "default"
    assert source["model.encoder.input.vocab_size"] == source["model.decoder.input.vocab_size"] == FROM_THE_DATA
    assert source["model.decoder.dropout"] == source["train.lr"] == source["train.steps"] == "command line"
    assert source["train.betas"] == "recipe line 14"
    assert (values["model.encoder.n_layers"], values["model.decoder.dropout"], values["train.steps"]) == (3, 0.25, 11)
    assert values["model.encoder.input.vocab_size"] is None
    assert run.given("train.betas")
    assert not run.given("train.seed")


def test_every_value_is_there_once(path):
    run = read(path)

    def leaves(node, key):
        for field in dataclasses.fields(node):
            value = getattr(node, field.name)
            yield from leaves(value, f"{key}.{field.name}") if isinstance(value, Node) else [f"{key}.{field.name}"]

    wanted = [*leaves(run.data, "data"), *leaves(run.model, "model"), *leaves(run.train, "train")]
    keys = [value.key for value in run.values]
    assert sorted(keys) == sorted([*wanted, "model.preset", "model.max_len"])
    assert all(value.about for value in run.values)


def test_labels_come_from_the_data(tmp_path):
    (tmp_path / "a.toml").write_text(
        '[data]\ntask = "classify"\ntrain.files = "a.tsv"\n[model]\npreset = "bert_base"\n[train]\nsteps = 3\n'
    )
    source = {value.key: value.source for value in read(str(tmp_path / "a.toml")).values}
    assert source["model.head.n_labels"] == FROM_THE_DATA
    assert source["data.train.files"] == "recipe line 3"
    assert {v.key: v.source for v in read("vit_b16").values}["model.head.n_labels"] == "preset vit_b16"


def test_an_argument_may_change_what_would_not_fit_without_it():
    """XL's 25 heads do not divide the width of the small one."""
    run = read("gpt2", ["model.size=xl", "model.decoder.n_heads=20"])
    source = {value.key: value.source for value in run.values}
    assert source["model.decoder.d_model"] == source["model.decoder.n_heads"] == "command line"
    assert source["model.decoder.max_len"] == "preset gpt2"


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_can_be_explained(name):
    run = read(name)
    assert run.model == presets.preset(name)
    assert (run.data, run.train) == (None, None)
    assert run.values[0].key == "model.preset"
    json.dumps(run.to_dict())


def test_a_model_file_may_say_how_it_is_trained(tmp_path):
    path = tmp_path / "model.toml"
    stack = Stack(input=config.Tokens(vocab_size=7), d_model=6, n_layers=1, n_heads=2, d_ff=5, max_len=3, causal=True)
    path.write_text(
        '[model]\nhead.kind = "vocabulary"\ndecoder = { input = { kind = "tokens", vocab_size = 7 }, d_model = 6,'
        " n_layers = 1, n_heads = 2, d_ff = 5, max_len = 3, causal = true }\n[train]\nlr = 0.25\n"
    )
    run = read(str(path))
    assert run.model.decoder == stack
    assert run.train.lr == 0.25
    assert {v.source for v in run.values} == {"default", "recipe line 2", "recipe line 3", "recipe line 5"}
    assert not run.given("train.steps")


def test_bytes_and_characters_have_their_own_number(path):
    assert read(path, ["data.tokenizer.kind=bytes"]).model.decoder.input.vocab_size == 256 + len(SPECIAL)
    by_characters = read(path, ["data.tokenizer.kind=characters"]).model.decoder.input.vocab_size
    assert by_characters == 256 + len(SPECIAL) + ALPHABET
    assert read(path).model.decoder.input.vocab_size == 500


def test_all_that_is_wrong_is_told_at_once(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(
        '[data]\ntask = "translat"\nmax_tokenz = 5\n[model]\npreset = "vaswani_base"\n[model.encoder]\nn_layerz = 3\n'
        '[train]\nsteps = "many"\n[extra]\na = 1\n'
    )
    with pytest.raises(ConfigError) as error:
        read(str(path))
    assert error.value.problems == [
        "extra: unknown key; did you mean train?",
        "data.max_tokenz: unknown key; did you mean max_tokens?",
        "data.task ('translat') must be one of translate, generate, fill, classify, tag, prefer, caption, match, paint,"
        " draw",
        "data.train: missing",
        "train.steps ('many') must be a whole number",
        "model: encoder.n_layerz: unknown key; did you mean n_layers?",
    ]
    path.write_text('modell = 1\n[train]\nstep = 3\nlr = "x"\n')
    with pytest.raises(ConfigError) as error:
        read(str(path))
    assert error.value.problems == [
        "modell: unknown key; did you mean model?",
        "train.step: unknown key; did you mean steps?",
        "train.lr ('x') must be a finite number",
        "model: missing",
    ]


@pytest.mark.parametrize("width", [40, 80, 120, 160])
def test_the_page_keeps_to_its_width(path, width):
    run = read(path, ["train.lr=0.5"])
    lines = as_text(run, width).splitlines()
    assert max(map(len, lines)) <= width
    assert [line.partition("]")[0] + "]" for line in lines if line.startswith("[")] == [
        f"[{section}]" for section in run.sections
    ]
    shown = "".join("".join(lines).split())
    for value in run.values:
        assert "".join(value.about.split()) in shown if width < 120 else value.source.replace(" ", "") in shown


def run_command(*arguments):
    return ready.run("explain", *arguments, env={"FORCE_COLOR": ""})


def test_the_command(path):
    lines = run_command(path, "train.lr=0.5").stdout.splitlines()
    assert lines[0] == "[data]  Where text or images come from."
    (line,) = (line for line in lines if line.startswith("  lr "))
    assert " ".join(line.split()) == "lr 0.5 command line Highest learning rate."
    values = json.loads(run_command(path, "train.lr=0.5", "--json").stdout)["values"]
    about = "Highest learning rate."
    assert {"key": "train.lr", "value": 0.5, "source": "command line", "about": about} in values


def test_a_run_directory_tells_its_recipe(tmp_path, path):
    """What is not in it is a line, too."""
    table = {"recipe": recipe.read(path).to_dict()}
    (tmp_path / "config.json").write_text(json.dumps(table))
    mine, its = (read(str(name)) for name in (tmp_path, path))
    assert (mine.model, mine.train, mine.data) == (its.model, its.train, its.data)
    sources = {value.key: value.source for value in read(str(tmp_path), ["train.lr=0.5"]).values}
    assert (sources["train.steps"], sources["train.lr"]) == ("recipe", "command line")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="tells of no recipe; give a run directory, a recipe or a preset"):
        read(str(tmp_path))


def test_a_run_directory_knows_what_the_data_said(tmp_path):
    """An untrained recipe can but assume it, and says so."""
    file = tmp_path / "a.toml"
    file.write_text(
        '[data]\ntask = "classify"\ntrain = { files = "a.tsv" }\ntokenizer = { kind = "characters" }\n'
        '[model]\npreset = "tiny_encoder"\nhead = { kind = "pooled" }\n[train]\nsteps = 7\n'
    )
    assert read(str(file)).assumed == ("360 tokens", "2 labels")
    config = recipe.model_config({"preset": "tiny_encoder", "head": {"kind": "pooled"}}, vocab_size=281, n_labels=5)
    whole = {"recipe": recipe.read(str(file)).to_dict(), "model": config.to_dict()}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    run = read(str(tmp_path))
    assert (run.model, run.assumed) == (config, ())
    told = {value.key: (value.value, value.source) for value in run.values}
    assert told["model.encoder.input.vocab_size"] == (281, "from the data")
    assert told["model.head.n_labels"] == (5, "from the data")
    assert told["train.steps"] == (7, "recipe")
    assert told["train.seed"] == (1, "default")
    other = read(str(tmp_path), ["data.tokenizer.kind=bytes", "data.labels=numbers"])  # then it knows no more
    assert other.model.encoder.input.vocab_size == 256 + len(SPECIAL)
    assert (other.model.head.n_labels, other.assumed) == (1, ())


def test_a_model_that_comes_with_regard_is_known():
    assert read("en-de").model.decoder.n_layers == 2


def test_the_command_needs_no_torch(path):
    script = f"import sys; from regard.cli import app; app(['explain', {path!r}], standalone_mode=False); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "False"


def test_mistakes_are_a_line_each_and_exit_code_2(path):
    result = run_command(path, "train.step=3", "data.max_ratio=0.5")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "error: train.step: unknown key; did you mean steps?\nerror: data: max_ratio (0.5) must be above 1\n"
    )
