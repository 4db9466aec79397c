"""`regard check`: it holds for every shape, and where something is broken it says what and where."""

import json

import pytest
import torch
from typer.testing import CliRunner

import toy
from regard import check, presets, recipe
from regard.cli import app
from regard.config import InputError
from regard.data.tokenizer import Tokenizer
from regard.model import Model
from regard.nn import Transformer
from regard.train.loop import train
from regard.train.watch import Watch

BYTES = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
TASKS = {"decoder": "generate", "encoder-decoder": "translate", "encoder": "embed"}
OVER_TEXT = [
    name
    for name in presets.names()
    if name.startswith("tiny_")
    and (config := presets.preset(name)).shape in TASKS
    and all(getattr(t, "input", None) is None or t.input.kind == "tokens" for t in (config.encoder, config.decoder))
]


def model(name, **changes):
    torch.manual_seed(3)
    table = {"preset": name, **changes}
    config = recipe.model_config(table, vocab_size=len(BYTES), source_vocab_size=len(BYTES), n_labels=3)
    return Model(Transformer(config), TASKS[config.shape], BYTES, BYTES)


@pytest.mark.parametrize("name", OVER_TEXT)
def test_it_holds_for_every_shape_over_text(name):
    found = check.check(model(name), ["a dog", "two cats sleep here", "b"])
    assert found.holds, found.to_dict()
    assert {one.law for one in found.findings} >= ({2, 3, 4, 5, 6} if "coder" in name and "en" not in name else {3, 5})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("tiny_encoder", {"encoder": {"positions": {"kind": "alibi"}}}),  # whose distances are the same backwards
        ("tiny_decoder", {"decoder": {"max_len": 19}}),  # fewer than are read and written elsewhere
        ("tiny_decoder", {"decoder": {"max_len": 53}}),
        ("tiny_encoder_decoder", {"decoder": {"max_len": 11}}),
    ],
)
def test_it_holds_for(name, changes):
    found = check.check(model(name, **changes), ["a dog that runs after a cat " * 3, "two cats sleep here"])
    assert found.holds, found.to_dict()


def test_any_of_a_models_ends_ends():
    """A beam's score is that of the end that it had."""
    given = model("tiny_decoder")
    given.ends = [BYTES.end, 50]
    given.net.decoder.embed.weight.data[50] *= 3
    found = check.check(given, ["a dog", "two cats sleep here", "b"])
    assert found.holds, found.to_dict()


def leak(module, inputs, output):
    """A layer that looks at all there is, the future and the padding too."""
    first = output[0] if isinstance(output, tuple) else output
    mixed = first + 0.1 * first.mean(1, keepdim=True)
    return (mixed, *output[1:]) if isinstance(output, tuple) else mixed


def test_what_is_broken_is_named(monkeypatch):
    whole = check._in_float64

    def broken(model):
        net = whole(model)
        net.decoder.stack.blocks[1].register_forward_hook(leak)
        return net

    monkeypatch.setattr(check, "_in_float64", broken)
    found = check.check(model("tiny_decoder"), ["a dog", "two cats sleep here"])
    wrong = {one.law: one for one in found.findings if not one.holds}
    assert not found.holds
    assert wrong.keys() == {2, 3, 4}
    assert {one.where for one in wrong.values()} == {"decoder layer 1"}


def test_a_search_that_scores_wrongly_is_found(monkeypatch):
    def search(*args, **options):
        return [[best._replace(logprob=best.logprob - 0.5)] for best, *_ in real(*args, **options)]

    real = check.search
    monkeypatch.setattr(check, "search", search)
    found = check.check(model("tiny_encoder_decoder"), ["a dog"])
    assert [one.what for one in found.findings if not one.holds] == [
        "a beam's score is the model's own of that sequence"
    ]


def test_positions_that_do_nothing_are_found():
    given = model("tiny_encoder")
    given.net.encoder.positions.weight.data.zero_()
    found = check.check(given, ["a dog sleeps"])
    assert [one.what for one in found.findings if not one.holds] == ["with positions, order counts"]


def test_images(tmp_path):
    torch.manual_seed(3)
    found = check.check(Model(Transformer(presets.tiny_vit()), "classify", None))
    assert found.holds
    assert [one.law for one in found.findings] == [5]


def test_nothing_to_check_on():
    with pytest.raises(InputError, match="nothing to check a model on; give at least one text"):
        check.check(model("tiny_decoder"), [" "])


def test_the_command(tmp_path, monkeypatch):
    made, data = toy.prepared(tmp_path, "translate", n=37, steps=3, valid_every=3, checkpoint_every=3)
    run = train(made, data.path, tmp_path / "run", device="cpu", watch=Watch(quiet=True)).path
    (tmp_path / "lines.txt").write_text("a dog\n\ncats\n")
    monkeypatch.setattr(check, "WRITTEN", 5)  # each new length is planned for anew by a CPU's kernels
    given = [str(run), "--file", str(tmp_path / "lines.txt"), "--device", "cpu"]
    said = CliRunner().invoke(app, ["check", *given, "--json"])
    assert said.exit_code == 0, said.output
    told = json.loads(said.stdout)
    assert (told["model"], told["holds"]) == (str(run), True)
    assert [one["law"] for one in told["findings"]] == [2, 3, 3, 3, 3, 4, 4, 5, 5, 5, 5, 6, 6]
    monkeypatch.setattr(check, "NEAR", -1.0)
    said = CliRunner().invoke(app, ["check", *given])
    assert said.exit_code == 1
    assert "4 of 13 are broken" in said.stdout
    wrong = CliRunner().invoke(app, ["check", str(run), "a dog", "--file", "lines.txt"])
    assert str(wrong.exception) == "texts and --file (lines.txt); give one of them"
