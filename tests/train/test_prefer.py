"""Preference tuning: DPO's loss is the formula written out, begins at log 2, and makes the model prefer."""

import math

import pytest
import torch

import regard
from regard.data.prepare import prepare
from regard.recipe import Recipe
from regard.schema import from_dict
from regard.train import tasks, tune
from regard.train.run import Run

from .test_tune import ask, base, trainer, tuned


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    return base(tmp_path_factory.mktemp("writer"), "generate", {"preset": "tiny_decoder", "decoder": {"max_len": 97}})


def logarithm(net, prompt, answer, tokens):
    """Of an answer's probability, token by token, its end included."""
    ids = [tokens.start, *prompt, *answer]
    said = net(torch.tensor([ids]))[0].log_softmax(-1)
    asked = [*answer, tokens.end]
    return sum(said[len(prompt) + i, token] for i, token in enumerate(asked))


def test_the_loss_is_the_formula_written_out(writer, tmp_path):
    """A moved model against the one it began as, pair by pair and without batches."""
    beta = 0.3
    made, given = trainer(tmp_path, writer, "prefer", beta=beta)
    made.model.eval()
    torch.manual_seed(7)
    with torch.no_grad():
        for weight in made.model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    batches, columns = made.held_out, made.data.split("valid")
    batch, rows = batches.part(0), batches.rows(0)
    with torch.no_grad():
        total, count = tasks.loss(made.model, batch, beta=beta)
        expected, right = 0.0, 0
        for i in rows:
            ratio, plain = {}, {}
            for name in ("chosen", "rejected"):
                told = (columns["prompt"][i].tolist(), columns[name][i].tolist(), given.tokenizer)
                plain[name] = logarithm(made.model, *told)
                ratio[name] = plain[name] - logarithm(given.net, *told)
            margin = ratio["chosen"] - ratio["rejected"]
            expected -= torch.log(torch.sigmoid(beta * margin))
            right += bool(plain["chosen"] > plain["rejected"])
    assert count == len(rows) > 2
    assert float(total) == pytest.approx(float(expected), rel=1e-4)
    sums = tasks.tally(made.model, batch, beta)
    assert int(sums["right"]) == right


def test_it_begins_at_log_2(writer, tmp_path):
    made, _ = trainer(tmp_path, writer, "prefer")
    found = made.score()
    assert found["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert found["margin"] == pytest.approx(0, abs=1e-5)
    batch = made.batches.part(0)
    with torch.no_grad():
        total, count = tasks.loss(made.model, batch, beta=0.1)
    assert float(total / count) == pytest.approx(math.log(2), abs=1e-6)


def test_the_two_halves_are_prompt_and_answer(writer, tmp_path):
    """What is asked for of a row are its answer's tokens and the end, right after the prompt."""
    made, given = trainer(tmp_path, writer, "prefer")
    columns, tokens = made.data.split("train"), given.tokenizer
    rows = made.batches.rows(1)
    batch = made.batches.make(1, rows)
    width = batch.inputs.shape[1]
    assert tokens.decode(columns["chosen"][0]).startswith(" the ")
    for half, name in enumerate(("chosen", "rejected")):
        for k, i in enumerate(rows):
            row = half * len(rows) + k
            prompt, answer = columns["prompt"][i].tolist(), columns[name][i].tolist()
            n = 1 + len(prompt) + len(answer)
            assert batch.inputs[row, :n].tolist() == [tokens.start, *prompt, *answer]
            assert int(batch.layout.lengths[row]) == n
            here = batch.at // width == row
            assert (batch.at[here] % width).tolist() == list(range(len(prompt), n))
            assert batch.wanted[here].tolist() == [*answer, tokens.end]


def test_it_learns_to_prefer(writer, tmp_path):
    run = tuned(tmp_path, writer, "prefer", steps=20, valid_every=20, lr=0.003)
    first, last = [line for line in run.lines() if line["kind"] == "valid"]
    assert first["step"] == 0
    assert last["loss"] < 0.5 * first["loss"]
    assert last["accuracy"] == 1
    assert last["margin"] > 0.5
    assert regard.load(run.path, device="cpu").task == "generate"
    assert Run(run.path).recipe().data.task == "prefer"


def test_parts_and_processes_add_up(writer, tmp_path):
    """A part that gets no pair asks for nothing."""
    made, _ = trainer(tmp_path, writer, "prefer", batch_tokens=256)
    made.model.double().eval()
    rows = made.batches.rows(0)
    with torch.no_grad():
        whole = tasks.loss(made.model, made.batches.part(0), beta=0.1)
        parts = [tasks.loss(made.model, made.batches.part(0, i, len(rows) + 2), beta=0.1) for i in range(len(rows) + 2)]
    assert sum(int(count) for _, count in parts) == int(whole[1]) == made.batches.size(0).wanted
    assert float(parts[-1][0]) == 0
    assert float(sum(total for total, _ in parts)) == pytest.approx(float(whole[0]), rel=1e-6)


def test_what_gives_no_choice_is_dropped(writer, tmp_path):
    (tmp_path / "p.jsonl").write_text(
        '{"prompt": "a dog", "chosen": " runs", "rejected": " sleeps"}\n'
        '{"prompt": "a dog", "chosen": " runs", "rejected": " runs"}\n'
        '{"prompt": "a cat", "chosen": " ", "rejected": " runs"}\n'
    )
    table = ask(tmp_path, "prefer").data.to_dict() | {
        "train": {"files": str(tmp_path / "p.jsonl")}, "valid": {}, "columns": ["prompt", "chosen", "rejected"],
    }  # fmt: skip
    recipe = from_dict(Recipe, {"data": table, "train": {"steps": 1}})
    given = regard.load(writer, device="cpu", packed=False)
    data = prepare(recipe.data, tmp_path / "data", tokenizers=tune.tokenizers(given))
    facts = data.manifest["splits"]["train"]
    assert facts["examples"] == 1
    assert facts["dropped"] == {"empty": 1, "too long": 0, "alike": 1}
    assert data.tokenizer.same_as(given.tokenizer)
