"""Texts in, translations out: in Python and on the command line."""

import gzip
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch

import ready
import regard
import toy
from regard.config import InputError
from regard.decode.search import Decoding, search
from regard.decode.translate import Translation, aligned, stream, words_of
from regard.evaluate.facts import of_model
from regard.interop.directory import export
from regard.model import Model
from regard.nn.packed import multiplies_int8
from regard.train.loop import train
from regard.train.watch import Watch
from regard.weights import read_weights, write_weights


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Run directories: a translator that has hardly learned anything, and a language model."""
    folder = tmp_path_factory.mktemp("translate")
    for task in ("translate", "generate"):
        recipe, data = toy.prepared(folder / task, task)
        train(recipe, data.path, folder / f"run-{task}", device="cpu", watch=Watch(quiet=True))
    return folder


@pytest.fixture(scope="module")
def model(work):
    return regard.load(work / "run-translate")


LINES = ["the red dog", "a cat", "", "two old birds sleep under the large green dog", "a dog. The cat. A bird.", "é"]


def test_a_text_is_what_the_search_found(model):
    (said,) = model.translate(["the red dog"], beam=3, length_penalty=1.0)
    reads, writes = model.source_tokenizer, model.tokenizer
    ids = reads.encode("the red dog")
    memory = model.net.encode(torch.tensor([[*ids, reads.end]]))
    options = {"end": writes.end, "limits": 2 * len(ids) + 16, "never": [writes.pad, writes.start, writes.mask]}
    how = Decoding(beam=3, length_penalty=1.0)
    ((found,),) = search(model.net, torch.tensor([[writes.start]]), memory=memory, how=how, **options)
    assert said.text == writes.decode(found.ids)
    assert said.tokens == tuple(writes.token(id) for id in found.ids)
    assert said.score == pytest.approx(found.score, rel=1e-5)
    assert said.logprob == pytest.approx(found.logprob, rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"temperature": 1.1, "n_best": 2, "seed": 3}])
def test_a_batch_equals_its_texts(model, options):
    together = model.translate(LINES, **options)
    small = model.translate(LINES, batch_tokens=40, **options)
    assert [t.text for t in small] == [t.text for t in together]
    alone = [model.translate(line, **options)[0] for line in LINES]
    assert [t.text for t in alone] == [t.text for t in together]
    assert [t.score for t in alone] == pytest.approx([t.score for t in together], abs=1e-4)
    streamed = [found.text for _, found in stream(model, iter(LINES), **options)]
    assert streamed == [t.text for t in together]


def test_a_translation_is_as_long_as_it_must_be(model):
    """Also where it would have ended before."""
    most = model.translate("a cat", beam=1, min_length=60)[0]
    assert len(most.tokens) >= 59


def test_what_there_is_nothing_to_translate_in_is_copied(model):
    for text in ("", "   ", "...", "😀 😀!", "这是一个测试。", "\n"):
        assert model.translate(text)[0].text == text


def test_a_document_is_put_back_together(model):
    said = model.translate("A dog runs.  The cat sleeps.\n\n\tA bird jumps.\n")[0].text
    parts = [model.translate(text)[0].text for text in ("A dog runs.", "The cat sleeps.", "A bird jumps.")]
    assert said == f"{parts[0]}  {parts[1]}\n\n\t{parts[2]}\n"
    one = model.translate("A dog. The cat.", whole=True)[0]
    assert len(one.tokens) <= 2 * 15 + 16


def test_what_marks_a_line_is_kept(model):
    """Lists, headings and quotations are layout; within a line, and in a text taken whole, the same signs are text."""
    said = model.translate("# The dog\n\n1. A cat. - A bird.\n  > - the red dog\n* * *", align=True)[0]
    alone = [model.translate(text)[0].text for text in ("The dog", "A cat.", "- the red dog", "the red dog")]
    inline = model.translate("A bird. - A bird.")[0].text.removeprefix(model.translate("A bird.")[0].text)
    assert alone[2] == f"- {alone[3]}"
    assert said.text == f"# {alone[0]}\n\n1. {alone[1]}{inline}\n  > - {alone[3]}\n* * *"
    assert [j for _, j in said.alignment] == list(range(len(said.text.split())))
    words = ["#", "The", "dog", "1.", "A", "cat.", "-", "A", "bird.", ">", "-", "the", "red", "dog", "*", "*", "*"]
    aligned = {said.text.split()[j]: words[i] for i, j in said.alignment}
    assert all(aligned[sign] == sign for sign in ("#", "1.", ">"))
    assert model.translate("   - the red dog")[0].text == f"   - {alone[3]}"  # as a list within a list is written
    whole = model.translate("- the red dog", whole=True)[0]
    assert whole.logprob != pytest.approx(model.translate("the red dog")[0].logprob, abs=1e-6)


def test_capitals_that_are_spelled_are_read_as_small_letters(model):
    ships = regard.load("en-de", device="cpu")
    shouted, said = ships.translate(["THE SHOP IS CLOSED. BE QUIET!", "The shop is closed. Be quiet!"], align=True)
    assert shouted.text == said.text.upper() != said.text
    assert (shouted.tokens, shouted.alignment, shouted.score) == (said.tokens, said.alignment, said.score)
    for text in ("NATO", "THE SHOP IS closed.", "BE QUIET, ŉO!"):  # it knows the name; some are small already
        assert ships.translate(text, beam=1)[0].text != ships.translate(text.lower(), beam=1)[0].text.upper()
    # A model that reads letter by letter reads capitals as they are.
    loud, quiet = model.translate(["THE RED DOG", "The red dog"])
    assert loud.score != pytest.approx(quiet.score, abs=1e-6)


@pytest.mark.slow
def test_a_line_of_thousands_of_words(model):
    text = " ".join(toy.sentences(500, seed=3))
    assert len(text.split()) > 2_000
    said = model.translate(text, beam=1)[0]
    assert said.text
    assert said.text != text
    assert all(len(model.source_tokenizer.encode(t)) > model.longest for t in (text,))


def test_the_next_best(model):
    (said,) = model.translate("the red dog", beam=5, n_best=3)
    scores = [said.score, *(other.score for other in said.others)]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert len({said.tokens, *(other.tokens for other in said.others)}) == 3
    plain = said.to_dict()
    assert plain["others"][1]["text"] == said.others[1].text
    assert "alignment" not in plain


def test_the_next_best_of_several_sentences_are_the_best_of_all_choices(model):
    sentences = "A dog runs.", "The cat sleeps.", "A bird."
    (said,) = model.translate(" ".join(sentences), beam=4, n_best=4, align=True)
    each = [(one, *one.others) for one in model.translate(sentences, beam=4, n_best=4)]
    sums = [(sum(one.score for one in chosen), [one.text for one in chosen]) for chosen in itertools.product(*each)]
    sums.sort(key=lambda one: -one[0])
    told = (said, *said.others)
    assert [one.score for one in told] == pytest.approx([score for score, _ in sums[:4]], abs=1e-4)
    assert [one.text for one in told] == [" ".join(texts) for _, texts in sums[:4]]


def test_every_word_is_aligned_with_one_of_the_source(model):
    for text in ("the red dog", "A dog runs. The cat sleeps."):
        (said,) = model.translate(text, align=True, n_best=2)
        for one in (said, *said.others):
            assert [j for _, j in one.alignment] == list(range(len(one.text.split())))
            assert all(0 <= i < len(text.split()) for i, _ in one.alignment)
    assert model.translate("... ...", align=True)[0].alignment == ((0, 0), (1, 1))


def test_words_are_counted_across_sentences_without_a_space(model):
    """After a wide sign, and where a word that is too long is cut."""
    for text in ("the。red dog。a cat", "a b " + "x" * 400):
        (said,) = model.translate(text, align=True)
        assert [j for _, j in said.alignment] == list(range(len(said.text.split())))
        assert all(0 <= i < len(text.split()) for i, _ in said.alignment)


def test_tokens_add_up_to_words(model):
    ids = model.tokenizer.encode("the old dog")
    assert words_of(model.tokenizer, ids) == [0] * 3 + [1] * 4 + [2] * 4 or words_of(model.tokenizer, ids)[-1] == 2
    weights = torch.tensor([[0.3, 0.3, 0.4], [0.0, 0.1, 0.9], [0.2, 0.2, 0.6]])
    assert aligned(weights, [0, 0, 1], [0, 1, 1]) == ((0, 0), (1, 1))


def test_a_model_without_attention_cannot_align(model):
    table = {"preset": "tiny_bahdanau", "decoder": {"score": None, "d_attention": None}}
    net = regard.Transformer(regard.recipe.model_config(table, vocab_size=len(model.tokenizer)))
    silent = regard.Model(net, "translate", model.tokenizer)
    with pytest.raises(InputError, match="align: this model has no cross-attention to tell from"):
        silent.translate("a", align=True)


def test_lines_come_in_order_and_errors_after_what_came_before(model):
    def lines():
        yield from LINES
        raise InputError("the file is damaged")

    answers = stream(model, lines(), beam=1)
    for line in LINES:
        source, said = next(answers)
        assert source == line
        assert isinstance(said, Translation)
    with pytest.raises(InputError, match="the file is damaged"):
        next(answers)


def test_int8_weights_are_a_quarter_and_nearly_the_same(work, model, tmp_path):
    weights = read_weights(model.path / "model.safetensors")
    write_weights(tmp_path / "w.safetensors", weights, int8=True)
    again = read_weights(tmp_path / "w.safetensors")
    assert again.keys() == weights.keys()
    for name, weight in weights.items():
        step = weight.abs().amax(-1, keepdim=True) / 127 if weight.dim() == 2 else weight.abs() / 1024
        assert again[name].dtype == torch.float32
        assert ((again[name] - weight).abs() <= step / 2 + 1e-7).all(), name
    large = {"w": torch.randn(211, 307)}
    write_weights(tmp_path / "large", large, int8=True)
    assert (tmp_path / "large").stat().st_size < large["w"].numel() * 4 * 0.28


def test_int8_has_all_that_stands_beside_the_weights(work, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(work / "run-generate", run)
    (run / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (run / "tokenizer.special.json").write_text('{"pad": "<pad>", "start": "<s>", "end": "</s>", "mask": null}')
    (run / "painter").mkdir()
    (run / "painter" / "config.json").write_text("{}")
    given = regard.load(run, device="cpu")
    small = export(given, "int8", tmp_path / "small")
    for name in (
        "config.json",
        "tokenizer.json",
        "tokenizer.special.json",
        "chat_template.jinja",
        "painter/config.json",
    ):
        assert (small / name).read_bytes() == (run / name).read_bytes()
    loaded = regard.load(small, device="cpu")
    assert (loaded.tokenizer.lacks, loaded.tokenizer.end) == (given.tokenizer.lacks, given.tokenizer.end)


def test_int8_is_a_run_directory_of_its_own(work, model, tmp_path):
    small = export(model, "int8", tmp_path / "small")
    weights = read_weights(model.path / "model.safetensors")
    for name, weight in regard.load(small, device="cpu", packed=False).net.state_dict().items():
        ours = weights[name]
        assert ((weight - ours).abs() <= ours.abs().amax(-1, keepdim=True) / 127).all(), name
    assert {file.name for file in small.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    with pytest.raises(InputError, match="None: no run directory of regard; --to int8 makes one smaller"):
        export(Model(model.net, "translate", model.tokenizer), "int8", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_the_score_card_that_ships_stays_as_it_is(tmp_path):
    card = regard.load("en-de", device="cpu").path / "scorecard.json"
    before = card.read_bytes()
    (tmp_path / "a.en").write_text("I love you.\n")
    (tmp_path / "a.de").write_text("Ich liebe dich.\n")
    done = run(tmp_path, "evaluate", "en-de", "--source", "a.en", "--reference", "a.de", "--language", "de", "--json")
    assert (done.returncode, json.loads(done.stdout)["sentences"]) == (0, 1)
    assert "score card" not in done.stderr
    assert card.read_bytes() == before


def test_the_model_that_ships():
    model = regard.load("en-de", device="cpu")
    assert sum(file.stat().st_size for file in model.path.iterdir()) < 14e6
    assert of_model(model)["path"] == "en-de", "a score card that ships names no folder of the machine it was made on"
    said = model.translate(["How much does this cost?", "My sister lives in Berlin.", "I love you."])
    assert [found.text for found in said] == [
        "Wie viel kostet das?",
        "Meine Schwester wohnt in Berlin.",
        "Ich liebe dich.",
    ]
    strange = model.translate(["I love 🍕.", "naïve café 北京", "The 🦊 and the 🍕 sleep.", "🍕🦊"])
    assert [found.text for found in strange[:2]] == ["Ich liebe 🍕.", "naïve café 北京"]
    assert not any("\ufffd" in found.text for found in strange)
    assert strange[3].text == "🍕🦊"
    assert model.translate("Happy birthday! 🎉 🎂")[0].text == "Alles Gute zum Geburtstag! 🎉 🎂"
    # Signs are no letters: two of them do not make a sentence one in another script.
    assert "👍👍" in model.translate("Great job 👍👍")[0].text
    # Letters that have tokens, of scripts that have no words: copied whole, not in parts.
    foreign = ["Привет, как дела?", "Ελληνικά είναι δύσκολα."]
    assert [found.text for found in model.translate(foreign)] == foreign
    assert not any("\ufffd" in found.text for found in model.translate(["#hashtag @user", "x < 5 and y > 3"]))
    # A space is a space, and what is not seen is not read.
    wanted = model.translate("Good morning to you.")[0].text
    for told in ("Good\u00a0morning to you.", "Good\u2009morning to\tyou.", "Good mor\u00adning\u200b to you."):
        assert model.translate(told)[0].text == wanted
    # German has the participle last, and what was read second is said second.
    (found,) = model.translate(["Yesterday I bought a book."], align=True)
    assert found.text == "Gestern habe ich ein Buch gekauft."
    assert {(0, 0), (2, 5), (4, 4)} <= {*found.alignment}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "x"}, r"precision \('x'\) must be float32, bfloat16, float16 or int8"),
        ({"device": "tpu"}, r"device \('tpu'\) must be cpu or cuda"),
        pytest.param(
            {"device": "cuda"},
            r"device \(cuda\): there is no GPU here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_where_and_how_it_is_loaded_is_checked(options, message):
    with pytest.raises(regard.RegardError, match=message):
        regard.load("en-de", **options)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_precisions(work, precision):
    model = regard.load(work / "run-translate", precision=precision)
    assert next(model.net.parameters()).dtype == getattr(torch, precision)
    assert model.translate("the red dog")[0].text
    logits = model.logits(torch.tensor([[5, 6, 7]]), torch.tensor([[1, 5]]))
    assert logits.shape == (1, 2, len(model.tokenizer))


@pytest.mark.slow
@pytest.mark.skipif(not multiplies_int8(), reason="this machine or this torch has no such product")
def test_int8_translates_alike_in_any_batch(work):
    model = regard.load(work / "run-translate", precision="int8")
    assert of_model(model)["precision"] == "int8"
    texts = ["the red dog", "a cat", "the old house of the green dog and a cat", "a"]
    together = model.translate(texts)
    for text, found in zip(texts, together, strict=True):
        (alone,) = model.translate(text)
        assert (alone.text, alone.logprob) == (found.text, pytest.approx(found.logprob, abs=1e-4))
    exact = regard.load(work / "run-translate", precision="float32").translate(texts)
    for found, wanted in zip(together, exact, strict=True):
        assert abs(found.logprob - wanted.logprob) < 0.1 * (1 + abs(wanted.logprob))
    said = run(work, "translate", "run-translate", *texts, "--int8")
    assert (said.stdout.splitlines(), said.stderr) == ([found.text for found in together], "")


# ---------------------------------------------------------------------------------------
# What cannot be loaded


def test_int8_is_a_layout_of_its_own(work):
    with pytest.raises(InputError, match=r"precision \(int8\): .* packed=False leaves them; leave one out"):
        regard.load(work / "run-translate", device="cpu", precision="int8", packed=False)


def test_what_is_no_model(work, tmp_path):
    file = tmp_path / "file"
    file.write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"kind": "other"}')
    (tmp_path / "young").mkdir()
    (tmp_path / "young" / "config.json").write_text((work / "run-translate/config.json").read_text())
    for path, message in [
        (tmp_path / "none", "no such directory"),
        (file, "is a file; a model is a directory"),
        (tmp_path / "empty", r"not a model of regard \(no config.json\)"),
        (tmp_path / "other", "not of a run of regard"),
        (tmp_path / "young", "has no model.safetensors yet"),
    ]:
        with pytest.raises(InputError, match=message):
            regard.load(path)
    (tmp_path / "young" / "model.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="damaged, or no safetensors file"):
        regard.load(tmp_path / "young")
    write_weights(tmp_path / "young" / "model.safetensors", {"a": torch.zeros(2)})
    with pytest.raises(InputError, match=r"does not fit its config.json"):
        regard.load(tmp_path / "young")


# ---------------------------------------------------------------------------------------
# The command


def command(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return {"args": [sys.executable, "-m", "regard", *map(str, arguments)], "env": environment}


def run(folder, *arguments, input=""):
    return ready.run(*arguments, cwd=folder, env={"COLUMNS": "100"}, input=input)


def test_texts_files_and_standard_input_give_the_same(work, model):
    wanted = [t.text for t in model.translate(LINES[:3])]
    assert run(work, "translate", "run-translate", *LINES[:3]).stdout.splitlines() == wanted
    text = "".join(f"{line}\n" for line in LINES[:3])
    assert run(work, "translate", "run-translate", input=text).stdout.splitlines() == wanted
    with gzip.open(work / "lines.gz", "wt") as file:
        file.write(text)
    done = run(work, "translate", "run-translate", "--file", "lines.gz", "--n-best", "2", "--scores", "--align")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "2", "3"]  # of what is copied there is one
    assert [row[2] for row in rows[::2]] == wanted
    assert all(float(row[1]) <= 0 for row in rows)
    assert [row[3] for row in rows[::2]] == [
        " ".join(f"{i}-{j}" for i, j in said.alignment) for said in model.translate(LINES[:3], align=True)
    ]
    done = run(work, "translate", "run-translate", LINES[0], "--json")
    assert json.loads(done.stdout)["source"] == LINES[0]
    assert json.loads(done.stdout)["text"] == wanted[0]


def test_a_file_given_as_a_text_is_asked_about(work):
    done = run(work, "translate", "run-translate", "lines.txt", "a")
    (work / "lines.txt").write_text("a\n")
    assert done.returncode == 0
    done = run(work, "translate", "run-translate", "lines.txt", "a")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: lines.txt: is a file; to read the texts in it, say --file lines.txt\n"


def test_a_mark_before_the_first_line_is_no_text(work, model):
    wanted = model.translate(LINES[0])[0].text
    assert run(work, "translate", "run-translate", input=f"\ufeff{LINES[0]}\n").stdout == wanted + "\n"


def test_a_stream_that_is_closed(work):
    for closed, code in ((0, 2), (1, 0)):
        streams = {"stderr": subprocess.PIPE, "cwd": work, "text": True}
        given = {**command("translate", "run-translate", *(["a"] if closed else [])), **streams}
        done = subprocess.run(preexec_fn=lambda closed=closed: os.close(closed), **given)
        assert done.returncode == code, done.stderr
        assert ("error: standard input: is closed" in done.stderr) == (code == 2)
    given = {**command("translate", "nowhere", "a"), "stdout": subprocess.PIPE, "cwd": work, "text": True}
    done = subprocess.run(preexec_fn=lambda: os.close(2), **given)
    assert (done.returncode, done.stdout) == (2, "")  # an error is no result


def test_a_line_is_answered_before_the_next_one_comes(work, model):
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": work, "text": True}
    with subprocess.Popen(**command("translate", "run-translate", "--beam", 1), **options) as process:
        for line in LINES[:2]:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert process.stdout.readline() == model.translate(line, beam=1)[0].text + "\n"
        process.stdin.close()
        assert process.wait() == 0


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal to type into")
def test_ctrl_c_at_the_prompt_ends_quietly(work):
    """Not with what the interpreter says of a thread that still waits for a line."""
    ours, theirs = os.openpty()
    options = {"stdin": theirs, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": work, "text": True}
    # Where the tests run in the background (nohup), Ctrl-C is ignored, and a process inherits that.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(**command("translate", "run-translate", "--beam", 1), **options) as process:
        os.write(ours, f"{LINES[0]}\n".encode())
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait() == 130
    os.close(ours)
    os.close(theirs)
    assert said.startswith("a text a line; Ctrl-D ends\n")
    assert "Fatal" not in said


def test_a_reader_that_has_seen_enough(work):
    (work / "many.txt").write_text("a cat\n" * 2_500)  # in several lots
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": work, "text": True}
    arguments = ("translate", "run-translate", "--file", "many.txt", "--beam", 1)
    with subprocess.Popen(**command(*arguments), **options) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait() == -signal.SIGPIPE
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "a"], "nowhere: no such directory"),
        (["run-generate", "a"], "run-generate: was trained to generate, not to translate; give another model"),
        (["run-translate", "a", "--file", "many.txt"], "texts and --file; give one of them"),
        (["run-translate", "--file", "none.txt"], "none.txt: cannot be read (No such file or directory)"),
        (["run-translate", "--file", "binary"], "binary: line 1 is not valid UTF-8"),
        (["run-translate", "a", "--beam", "0"], "beam (0) must be at least 1"),
        (["run-translate", "a", "--beam", "2", "--temperature", "1"], "a beam does not draw"),
        (["run-translate", "a", "--beam", "99999"], "beam (99999) must be at most"),
        (["run-translate", "--file", "zero"], "zero: line 2 has a zero byte"),
        (["run-translate", "--file", "lines.txt", "--file", "none.txt"], "none.txt: cannot be read"),
        (["run-translate", "a", "--device", "tpu"], "--device (tpu) must be cpu or cuda"),
        (["run-translate", "a", "--precision", "int3"], "--precision (int3) must be float32, bfloat16 or float16"),
        (
            ["run-translate", "a", "--precision", "float16", "--int8"],
            "--int8 and --precision (float16): give one of them",
        ),
    ],
)
def test_bad_input_is_one_line(work, arguments, message):
    (work / "binary").write_bytes(b"\xff\xfe\x00a\n")
    (work / "zero").write_bytes(b"a cat\n\0a\0 \n")
    (work / "lines.txt").write_text("a cat\n")
    done = run(work, "translate", *arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_standard_input_that_is_not_text(work):
    done = subprocess.run(
        **command("translate", "run-translate"), cwd=work, capture_output=True, input=b"the dog\n\xff\xfe\n"
    )
    assert done.returncode == 2
    assert done.stderr.decode().strip() == ("error: standard input: line 2 is not valid UTF-8; convert it to UTF-8")
    assert done.stdout.decode().count("\n") == 1


def test_packing_changes_nothing_but_rounding(work):
    plain, packed = (regard.load(work / "run-translate", packed=packed) for packed in (False, True))
    ids, target = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 5]])
    torch.testing.assert_close(packed.logits(ids, target), plain.logits(ids, target), atol=1e-5, rtol=1e-5)
    assert packed.n_parameters == plain.n_parameters == plain.net.n_parameters()
