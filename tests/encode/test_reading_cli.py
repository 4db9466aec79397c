"""fill, classify, tag, embed and evaluate at the front door: what is printed where, and with which exit code."""

import contextlib
import json
import shutil
import signal
import sys

import numpy as np
import pytest

import regard
import toy
from regard.cli import main
from regard.encode.shots import classify_with_prompt
from regard.evaluate import read_cards
from regard.train.loop import train
from regard.train.watch import Watch

TASKS = ("fill", "classify", "tag", "generate")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A run directory of each kind, hardly trained."""
    folder = tmp_path_factory.mktemp("work")
    for task in TASKS:
        longer = {"model": {"preset": "tiny_decoder", "decoder": {"max_len": 251}}} if task == "generate" else {}
        made, data = toy.prepared(folder / task, task, steps=3, valid_every=3, **longer)
        train(made, data.path, folder / f"run-{task}", device="cpu", watch=Watch(quiet=True))
    shutil.copytree(folder / "run-classify", folder / "run-pairs")  # as one of two texts and a label is
    facts = json.loads((folder / "run-pairs/config.json").read_text())
    facts["recipe"]["data"]["columns"] = ["1", "2", "3"]
    (folder / "run-pairs/config.json").write_text(json.dumps(facts))
    (folder / "texts.txt").write_text("the dog runs\na cat\ntwo old birds sleep\n")
    (folder / "gaps.txt").write_text("the d[MASK]g runs\n[MASK] c[MASK]t\n")
    (folder / "pairs.txt").write_text("the dog runs\tit sleeps\na cat\ta bird\n")
    (folder / "binary").write_bytes(b"\xff\xfe\x00a\n")
    return folder


@pytest.fixture
def run(work, monkeypatch, capsys, tmp_path):
    """The command line, in this process."""

    def made(*arguments, stdin=""):
        given = tmp_path / "stdin"
        given.write_text(stdin)
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        before = signal.getsignal(signal.SIGPIPE)
        with given.open() as opened:
            monkeypatch.setattr(sys, "stdin", opened)
            with contextlib.chdir(work), pytest.raises(SystemExit) as ended:
                main()
        signal.signal(signal.SIGPIPE, before)
        out = capsys.readouterr()
        return ended.value.code or 0, out.out, out.err

    return made


def lines(work, name):
    return (work / name).read_text().splitlines()


def test_fill(run, work):
    model = regard.load(work / "run-fill", device="cpu")
    wanted = model.fill(lines(work, "gaps.txt"), top=2)
    code, out, err = run("fill", "run-fill", "--file", "gaps.txt", "--top", 2)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{n}\t{m}\t{c.probability:.4f}\t{c.text}"
        for n, f in enumerate(wanted, 1)
        for m, mask in enumerate(f.masks, 1)
        for c in mask
    ]
    _, plain, _ = run("fill", "run-fill", "--top", 2, stdin=(work / "gaps.txt").read_text())
    assert plain == out
    _, told, _ = run("fill", "run-fill", *lines(work, "gaps.txt"), "--json")
    assert [json.loads(line)["text"] for line in told.splitlines()] == lines(work, "gaps.txt")
    assert len(json.loads(told.splitlines()[1])["masks"]) == 2


def test_classify(run, work):
    model = regard.load(work / "run-classify", device="cpu")
    wanted = model.classify(lines(work, "texts.txt"))
    code, out, err = run("classify", "run-classify", "--file", "texts.txt")
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"{f.label}\t{f.probability:.4f}" for f in wanted]
    model = regard.load(work / "run-pairs", device="cpu")
    _, told, _ = run("classify", "run-pairs", "--json", "--pairs", stdin=(work / "pairs.txt").read_text())
    found = [json.loads(line) for line in told.splitlines()]
    pairs = [line.split("\t") for line in lines(work, "pairs.txt")]
    assert [f["text"] for f in found] == pairs
    assert [f["label"] for f in found] == [f.label for f in model.classify([tuple(pair) for pair in pairs])]
    _, _, err = run("classify", "run-classify", "dog " * 97)
    assert err == "1 of them too long for the model, and cut\n"


def test_tag(run, work):
    model = regard.load(work / "run-tag", device="cpu")
    code, out, err = run("tag", "run-tag", "--file", "texts.txt")
    assert (code, err) == (0, "")
    wanted = model.tag(lines(work, "texts.txt"))
    assert out == "\n".join("".join(f"{w}\t{t}\n" for w, t in zip(f.words, f.tags, strict=True)) for f in wanted)
    _, told, _ = run("tag", "run-tag", "a dog", "--json")
    assert json.loads(told)["words"] == ["a", "dog"]


def test_embed(run, work):
    model = regard.load(work / "run-fill", device="cpu")
    texts = lines(work, "texts.txt")
    assert run("embed", "run-fill", "--file", "texts.txt", "--out", "vectors.npy") == (0, "", "")
    assert np.abs(np.load(work / "vectors.npy") - model.embed(texts)).max() < 1e-6
    code, out, _ = run("embed", "run-fill", *texts, "--pool", "class", "--raw")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [f["text"] for f in found] == texts
    assert np.abs(np.array([f["vector"] for f in found]) - model.embed(texts, "class", False)).max() < 1e-5
    assert run("embed", "run-generate", "a", "--out", "one.npy")[0] == 0
    assert sorted(path.name for path in work.glob("*.npy")) == ["one.npy", "vectors.npy"]


def test_classify_with_examples(run, work):
    examples = [tuple(line.split("\t")) for line in lines(work, "classify/train.tsv")]
    model = regard.load(work / "run-generate", device="cpu")
    how = ("--shots", 2, "--examples", "classify/train.tsv", "--template", "{text}: {label}. ", "--seed", 7)
    code, out, _ = run("classify", "run-generate", "--file", "texts.txt", *how)
    options = {"template": "{text}: {label}. ", "seed": 7}
    wanted = classify_with_prompt(model, lines(work, "texts.txt"), examples=examples, shots=2, **options)
    assert code == 0
    assert out.splitlines() == [f"{f.label}\t{f.probability:.4f}" for f in wanted]
    code, out, _ = run("classify", "run-generate", "a dog", "--shots", 0, "--labels", "animal, none", "--json")
    assert list(json.loads(out)["probabilities"]) == ["animal", "none"]
    code, out, _ = run("evaluate", "run-generate", "--file", "classify/valid.tsv", *how, "--json")
    card = json.loads(out)
    assert (code, card["name"], card["texts"]) == (0, "valid.tsv, 2 shots", 31)
    shots = ("--shots", "0,1,2", "--examples", "classify/train.tsv", "--template", "{text}: {label}. ")
    code, out, _ = run(
        "evaluate", "run-generate", "--file", "classify/valid.tsv", *shots, "--json", "--picture", "s.png"
    )
    assert [point["shots"] for point in json.loads(out)["curves"]["run-generate"]] == [0, 1, 2]
    assert (work / "s.png").stat().st_size > 1000


@pytest.mark.parametrize(("task", "file"), [("classify", "classify/valid.tsv"), ("tag", "tag/valid.conll")])
def test_evaluate(run, work, task, file):
    code, out, err = run("evaluate", f"run-{task}", "--file", file, "--json")
    assert (code, err) == (0, f"score card: run-{task}/scorecard.json\n")
    card = json.loads(out)
    kept = read_cards(work / f"run-{task}")["sets"][card.pop("name")]
    assert kept == card
    assert card["training"]["steps"] == 3
    code, out, _ = run("evaluate", f"run-{task}", f"run-{task}", "--file", file)
    assert code == 0
    assert "B - A" in out


def test_evaluate_a_text(run, work):
    code, out, err = run("evaluate", "run-generate", "--text", "texts.txt", "--json")
    assert (code, err) == (0, "score card: run-generate/scorecard.json\n")
    card = json.loads(out)
    assert card["words"] == 9
    assert read_cards(work / "run-generate")["sets"]["texts.txt"]["bits_per_byte"] == card["bits_per_byte"]


SHOTS = [
    "evaluate",
    "run-generate",
    "--file",
    "classify/valid.tsv",
    "--shots",
    "0,1",
    "--examples",
    "classify/train.tsv",
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fill", "run-tag", "a [MASK]"], "run-tag: was trained to tag, not to fill; give another model"),
        (["fill", "run-fill", "a dog"], "text 1 ('a dog') has no [MASK]"),
        (["fill", "run-fill", f"[MASK] {'dog ' * 97}"], "more than the 97 of this model; shorten it"),
        (["fill", "run-fill", "a [MASK]", "--top", "0"], "top (0) must be at least 1"),
        (["classify", "run-fill", "a"], "run-fill: was trained to fill, not to classify; give another model"),
        (["classify", "run-classify", "a", " "], "text 2 is empty; give at least one word"),
        (["classify", "run-classify", "a", "--file", "texts.txt"], "texts and --file; give one of them"),
        (["classify", "run-classify", "--file", "none.txt"], "none.txt: cannot be read (No such file or directory)"),
        (["classify", "run-classify", "--file", "binary"], "binary: line 1 is not valid UTF-8"),
        (["classify", "run-classify", "the dog\tgood"], "a text has no tab; cut the column of texts out"),
        (["classify", "run-classify", "texts.txt"], "texts.txt: is a file; to read the texts in it, say --file texts.txt"),
        (["tag", "run-tag", "texts.txt"], "texts.txt: is a file; to read"),
        (["embed", "run-fill", "texts.txt"], "texts.txt: is a file; to read"),
        (["embed", "run-fill", "--file", "classify/train.tsv"], "classify/train.tsv: is a table, and a text is a line here"),
        (["classify", "run-classify", "--file", "some.conll"], "some.conll: is a table, and a text is a line here"),
        (["classify", "run-classify", "--file", "classify"], "classify: is a folder; name a file in it"),
        (["classify", "run-classify", "a\tb", "--pairs"], "text 1: the model was trained on single texts; give one"),
        (["classify", "run-pairs", "a"], "text 1: the model was trained on pairs; give two (--pairs)"),
        (["classify", "run-classify", "a", "--pairs"], "--pairs needs two texts, with a tab between them"),
        (["classify", "run-classify", "a", "--seed", "1"], "--seed: goes with --shots"),
        (["classify", "run-classify", "a", "--shots", "1", "--labels", "a,b"], "was trained to classify, not to generate"),
        (["classify", "run-generate", "a", "--shots", "1"], "--shots: give --examples FILE, or for no examples at all"),
        (["classify", "run-generate", "a", "--shots", "3", "--labels", "a,b"], "shots (3) must be from 0 to 0"),
        (["classify", "run-generate", "a", "--shots", "0", "--labels", "a"], "labels (a): a choice needs at least two"),
        (["classify", "run-generate", "a\tb", "--shots", "0", "--pairs"], "--pairs and --shots"),
        (["classify", "run-generate", "a", "--shots", "40", "--examples", "classify/train.tsv"], "give fewer shots than 40"),
        (["tag", "run-classify", "a"], "run-classify: was trained to classify, not to tag; give another model"),
        (["embed", "run-fill", "a", "--pool", "max"], "--pool (max) must be mean, class or end"),
        (["embed", "run-fill", "a", "--out", "v.txt"], "--out (v.txt) must end with .npy"),
        (["embed", "run-fill", ""], "text 1 is empty"),
        (["embed", "nowhere", "a", "--out", "none/v.npy"], "none/v.npy: cannot be written: there is no folder none"),
        (["embed", "run-fill", "--out", "none.npy"], "nothing to embed; give at least one text"),
        (["evaluate", "run-classify"], "give what to score on: --source and --reference, or --file, or --text"),
        (["evaluate", "run-classify", "--file", "a.tsv", "--text", "b"], "give what to score on"),
        (["evaluate", "run-fill", "--file", "a.tsv"], "was trained to fill, not to classify or tag"),
        (["evaluate", "run-classify", "--file", "none.tsv"], "none.tsv: no file matches"),
        (["evaluate", "run-classify", "--file", "texts.txt"], "does not say how columns are told apart"),
        (["evaluate", "run-classify", "--file", "pairs.tsv"], "label 'it sleeps' is not one that the model was trained on"),
        (["evaluate", "run-tag", "--file", "pairs.tsv"], "is not one that the model was trained on"),
        (["evaluate", "run-classify", "--text", "texts.txt"], "was trained to classify, not to generate"),
        (["evaluate", "run-generate", "run-generate", "--text", "texts.txt"], "--text: takes one model"),
        (["evaluate", "run-generate", "--file", "pairs.tsv", "--shots", "x"], "--shots (x) must be a number, or several"),
        (["evaluate", "run-generate", "--file", "pairs.tsv", "--picture", "a.png"], "--picture: goes with --shots"),
        (["evaluate", "run-generate", "--file", "classify/valid.tsv", "--shots", "0,99"], "shots (99) must be from 0 to 0"),
        ([*SHOTS, "--picture", "a.txt"], "a.txt: a picture must be .png or .svg"),
        ([*SHOTS, "--picture", "none/a.png"], "none/a.png: cannot be written: there is no folder none"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(run, work, arguments, message):
    (work / "pairs.tsv").write_text((work / "pairs.txt").read_text())
    (work / "some.conll").write_text("the O\n")
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_a_table_is_read_by_the_columns_that_were_trained_on(run, work):
    """What evaluate scores of a file is what classify and tag label of it; labels are not read, nor needed."""
    texts = ["the dog runs", "a cat, old", "two birds"]
    _, wanted, _ = run("classify", "run-classify", *texts)
    (work / "bare.csv").write_text('the dog runs,good\n"a cat, old",bad\n,\n,bad\ntwo birds,good\n,,,\n')
    assert run("classify", "run-classify", "--file", "bare.csv") == (
        0,
        wanted,
        "bare.csv: 3 rows without text, left out\n",
    )
    facts = json.loads((work / "run-classify/config.json").read_text())
    shutil.copytree(work / "run-classify", work / "run-named")
    facts["recipe"]["data"]["columns"] = ["review", "verdict"]
    (work / "run-named/config.json").write_text(json.dumps(facts))
    (work / "named.csv").write_text('id,review\n1,the dog runs\n2,"a cat, old"\n3,two birds\n')
    (work / "named.jsonl").write_text("".join(json.dumps({"id": 7, "review": text}) + "\n" for text in texts))
    for name in ("named.csv", "named.jsonl"):
        assert run("classify", "run-named", "--file", name)[1] == wanted
    _, wanted, _ = run("classify", "run-pairs", "--pairs", "the dog runs\tit sleeps", "a cat\ta bird")
    (work / "pairs.csv").write_text("the dog runs,it sleeps,good\na cat,a bird,bad\n")
    assert run("classify", "run-pairs", "--file", "pairs.csv")[1:] == (wanted, "")
    (work / "gaps.csv").write_text("the dog runs,it sleeps,good\na cat,,bad\na cat,a bird,bad\n")
    assert run("classify", "run-pairs", "--file", "gaps.csv") == (0, wanted, "gaps.csv: 1 row without text, left out\n")
    _, told, _ = run("classify", "run-pairs", "--file", "pairs.csv", "--json")
    assert json.loads(told.splitlines()[0])["text"] == ["the dog runs", "it sleeps"]
    _, wanted, _ = run("tag", "run-tag", "the dog runs", "a cat")
    for name in ("words.conll", "words.tsv"):
        (work / name).write_text("the\tO\ndog\tB-X\nruns\tO\n\na\tO\ncat\tB-X\n")
        assert run("tag", "run-tag", "--file", name)[1] == wanted
    (work / "bare.conll").write_text("the\ndog\nruns\n\na\ncat\n")
    assert run("tag", "run-tag", "--file", "bare.conll")[1] == wanted


def test_a_prompt_reads_other_columns_than_the_language_model_did(run, work):
    how = ("--shots", 0, "--labels", "good,bad")
    _, wanted, _ = run("classify", "run-generate", "the dog runs", "a cat", *how)
    shutil.copytree(work / "run-generate", work / "run-titled")
    facts = json.loads((work / "run-titled/config.json").read_text())
    facts["recipe"]["data"]["columns"] = ["title"]
    (work / "run-titled/config.json").write_text(json.dumps(facts))
    (work / "shown.csv").write_text("the dog runs,good\na cat,bad\n")
    assert run("classify", "run-titled", "--file", "shown.csv", *how)[1] == wanted


def test_a_long_text_is_no_file(run, work):
    long = "the dog runs? " * 50
    code, out, _ = run("classify", "run-classify", long)
    assert (code, out.count("\n")) == (0, 1)


def test_every_file_is_looked_for_before_any_is_read(run, work):
    code, out, err = run("classify", "run-classify", "--file", "texts.txt", "--file", "none.txt")
    assert (code, out) == (2, "")
    assert err == "error: none.txt: cannot be read (No such file or directory)\n"


def test_what_comes_before_a_mistake_is_answered(run, work):
    code, out, err = run("classify", "run-classify", stdin="the dog\n\na cat\n")
    assert (code, out.count("\n")) == (2, 1)
    assert err == "error: line 2 is empty; give at least one word\n"
