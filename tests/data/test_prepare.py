"""Every kind of file in, the same ids out; each mistake is one line; nothing is half-written."""

import contextlib
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import toy
from regard import cli, recipe
from regard.data import DataDir, prepare
from regard.data import readers as readers_module
from regard.data.prepare import Writer
from regard.data.readers import Corpus
from regard.data.tokenizer import Tokenizer
from regard.schema import InputError, from_dict

ENGLISH = ["A dog runs.", "Two men, 1984.", "", "The cat sleeps.", "Where is it?", "It is «here»\u2028now.", "No."]
GERMAN = [
    "Ein Hund läuft.",
    "Zwei Männer, 1984.",
    "Leer.",
    "Die Katze schläft.",
    "Wo ist sie?",
    "Sie ist „hier“.",
    "Nein.",
]
PAIRS = [pair for pair in zip(ENGLISH, GERMAN, strict=True) if all(pair)]

zstandard = pytest.importorskip("zstandard")
pyarrow = pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def lines(texts, end="\n"):
    return "".join(f"{text}{end}" for text in texts).encode()


def write(name, content):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    return name


def ask(task, train, **options):
    """A [data] table as a recipe has it."""
    train = train if isinstance(train, dict) else {"files": train}
    return from_dict(recipe.Data, {"task": task, "train": train, "tokenizer": {"kind": "bytes"}, **options})


def texts(data, split="train", column="text"):
    return [data.tokenizer_of(column).decode(row) for row in data.split(split)[column]]


# -- parallel text ------------------------------------------------------------------------


def csv_of(pairs, *, header):
    cells = [("en", "de")] * header + list(pairs)
    return "".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) + "\n" for row in cells)


def parquet_of(**columns):
    import pyarrow.parquet

    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return sink.getvalue().to_pybytes()


TABLES = {
    "pairs.tsv": (lines("\t".join(pair) for pair in zip(ENGLISH, GERMAN, strict=True)), []),
    "pairs.csv": (csv_of(zip(ENGLISH, GERMAN, strict=True), header=True), ["en", "de"]),
    "bare.csv": (csv_of(zip(ENGLISH, GERMAN, strict=True), header=False), []),
    "turned.tsv": (lines(["id\tde\ten", *(f"7\t{g}\t{e}" for e, g in zip(ENGLISH, GERMAN, strict=True))]), ["en", "de"]),
    "numbers.tsv": (lines(f"{g}\t7\t{e}" for e, g in zip(ENGLISH, GERMAN, strict=True)), ["3", "1"]),
    "pairs.jsonl": (lines(json.dumps({"id": 7, "de": g, "en": e}) for e, g in zip(ENGLISH, GERMAN, strict=True)), ["en", "de"]),
    "pairs.parquet": (parquet_of(en=ENGLISH, de=GERMAN), []),
    "windows.tsv": (b"\xef\xbb\xbf" + lines(("\t".join(pair) for pair in zip(ENGLISH, GERMAN, strict=True)), "\r\n"), []),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_parallel_text_in_one_file(name):
    content, columns = TABLES[name]
    data = prepare(ask("translate", write(name, content), columns=columns), "out")
    assert list(zip(texts(data, column="source"), texts(data, column="target"), strict=True)) == PAIRS
    split = data.manifest["splits"]["train"]
    assert (split["read"], split["examples"], split["dropped"]) == (7, 6, {"empty": 1, "too long": 0})


COMPRESS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("ending", COMPRESS)
def test_parallel_text_in_two_files(ending):
    pack = COMPRESS[ending]
    # Two members, as tools that append write them; the last line has no end.
    write(f"a.en{ending}", pack(lines(ENGLISH[:3])) + pack(lines(ENGLISH[3:])))
    write(f"a.de{ending}", pack(lines(GERMAN).rstrip(b"\n")))
    data = prepare(ask("translate", {"source": f"a.en{ending}", "target": f"a.de{ending}"}), "out")
    assert list(zip(texts(data, column="source"), texts(data, column="target"), strict=True)) == PAIRS


def test_globs_are_read_in_the_order_of_their_names():
    for i in (2, 0, 1):
        write(f"part{i}.en", f"one {i}\n")
        write(f"part{i}.de", f"eins {i}\n")
    data = prepare(ask("translate", {"source": "part*.en", "target": ["part[0-1].de", "part2.de"]}), "out")
    assert texts(data, column="source") == ["one 0", "one 1", "one 2"]
    assert texts(data, column="target") == ["eins 0", "eins 1", "eins 2"]
    write("a[1].txt", "brackets in a name")
    assert texts(prepare(ask("generate", "a[1].txt"), "other")) == ["brackets in a name"]


def test_filters_drop_and_count():
    pairs = ["short\tkurz", "x" * 12 + "\ty", "x\t" + "y" * 12, " \tleer", "abc\t1234567", "abc\t123456"]
    data = prepare(ask("translate", write("p.tsv", lines(pairs)), max_tokens=11, max_ratio=2.0), "out")
    assert texts(data, column="source") == ["short", "abc"]
    assert data.manifest["splits"]["train"]["dropped"] == {"empty": 1, "too long": 2, "ratio": 1}


def test_one_tokenizer_a_side():
    write("p.tsv", lines(["aab\tçç", "ab\tç"]))
    data = prepare(ask("translate", "p.tsv", tokenizer={"kind": "characters", "shared": False}), "out")
    assert (len(data.source_tokenizer), len(data.tokenizer)) == (4 + 256 + 2, 4 + 256 + 1)
    assert texts(data, column="source") == ["aab", "ab"]
    assert texts(data, column="target") == ["çç", "ç"]
    shared = prepare(ask("translate", "p.tsv", tokenizer={"kind": "characters"}), "shared")
    assert shared.source_tokenizer is shared.tokenizer
    assert len(shared.tokenizer) == 4 + 256 + 3


def test_a_tokenizer_from_a_file():
    write("p.tsv", lines(["aab\tçç", "ab\tç"]))
    first = prepare(ask("translate", "p.tsv", tokenizer={"kind": "characters"}), "first")
    second = prepare(ask("translate", "p.tsv", tokenizer={"file": "first/tokenizer.json", "shared": False}), "second")
    assert second.split("train")["source"].ids.tolist() == first.split("train")["source"].ids.tolist()
    assert second.manifest["tokenizers"]["tokenizer.json"]["from"] == "first/tokenizer.json"
    assert second.changed_input() is None
    write("first/tokenizer.json", " " + Path("first/tokenizer.json").read_text())
    assert second.changed_input() == "first/tokenizer.json"


# -- documents ----------------------------------------------------------------------------

POEM = "The dog,\nthe cat.\n\n \nA bird  sings;\r\na fish\tdoes not.\n\n\n"
DOCUMENTS = {
    "file": (["The dog,\nthe cat.\n\n \nA bird  sings;\na fish\tdoes not.\n\n"], 0),
    "paragraph": (["The dog,\nthe cat.", "A bird  sings;\na fish\tdoes not."], 0),
    "line": (["The dog,", "the cat.", "A bird  sings;", "a fish\tdoes not."], 4),
}


@pytest.mark.parametrize("documents", DOCUMENTS)
@pytest.mark.parametrize("part", [1, 5, 1 << 18])
@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_documents(documents, part, kind, monkeypatch):
    monkeypatch.setattr(readers_module, "PART", part)  # however the text is cut on its way
    write("poem.txt", POEM * (40 if kind == "bpe" else 1))
    wanted, empty = DOCUMENTS[documents]
    if kind == "bpe":
        empty *= 40
        wanted = [(POEM * 40).replace("\r", "")[:-1]] if documents == "file" else wanted * 40
    data = prepare(ask("generate", "poem.txt", documents=documents, tokenizer={"kind": kind, "vocab_size": 307}), "out")
    assert texts(data) == wanted
    assert data.manifest["splits"]["train"]["dropped"]["empty"] == empty
    assert data.manifest["splits"]["train"]["read"] == len(wanted) + empty
    assert [row.tolist() for row in data.split("train")["text"]] == data.tokenizer.encode_batch(wanted)


def test_a_folder_is_all_files_under_it():
    for name in ("b.txt", "a/z.md", "a/c", ".hidden/d", "a/.e"):
        write(f"text/{name}", f"in {name}\n")
    assert texts(prepare(ask("generate", "text"), "out")) == ["in a/c", "in a/z.md", "in b.txt"]
    assert texts(prepare(ask("fill", ["text/**/*.md", "text/b.txt"]), "other")) == ["in a/z.md", "in b.txt"]


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("d.jsonl", lines(json.dumps({"text": t, "n": i}) for i, t in enumerate(["one\ntwo", "", "three"])), []),
        (
            "d.jsonl",
            lines(json.dumps({"n": i, "text": t}) for i, t in enumerate(["one\ntwo", None, "three"])),
            ["text"],
        ),
        ("d.csv", 'text,n\n"one\ntwo",1\n,2\nthree,3\n', ["text"]),
        ("d.parquet", parquet_of(text=["one\ntwo", None, "three"]), []),
    ],
)
def test_documents_in_tables(name, content, columns):
    data = prepare(ask("generate", write(name, content), columns=columns), "out")
    assert texts(data) == ["one\ntwo", "three"]
    assert data.manifest["splits"]["train"]["dropped"] == {"empty": 1}


# -- labels -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("c.tsv", "good film\tpos\nbad film\tneg\n\nfine\tpos\n", []),
        ("c.tsv", "7\tpos\tx\tgood film\n8\tneg\t\tbad film\n9\tpos\t\t \n10\tpos\ty\tfine\n", ["4", "2"]),
        ("c.csv", "label,text\npos,good film\nneg,bad film\n,\npos,fine\n", ["text", "label"]),
        ("c.jsonl", lines(['{"t": "good film", "l": "pos"}', '{"t": "bad film", "l": "neg"}', "", '{"t": "fine", "l": "pos"}']), []),
        ("c.parquet", parquet_of(text=["good film", "bad film", "", "fine"], label=["pos", "neg", "neg", "pos"]), []),
    ],
)  # fmt: skip
def test_texts_with_a_label(name, content, columns):
    data = prepare(ask("classify", write(name, content), columns=columns), "out")
    assert texts(data) == ["good film", "bad film", "fine"]
    assert data.labels == ["neg", "pos"]
    label = data.split("train")["label"]
    assert (label.tolist(), label.dtype) == ([1, 0, 1], np.int32)
    assert data.manifest["splits"]["train"]["dropped"] == {"empty": 1, "too long": 0}


def test_labels_may_be_numbers_in_json():
    write("c.jsonl", lines(['{"t": "x", "l": 10}', '{"t": "y", "l": true}', '{"t": "z", "l": 2.5}']))
    assert prepare(ask("classify", "c.jsonl"), "out").labels == ["10", "2.5", "true"]


def test_two_texts_and_a_label():
    write("c.tsv", "a dog\tan animal\tyes\na dog\ta cat\tno\nlong text\tlong text\tno\n")
    data = prepare(ask("classify", "c.tsv", columns=["1", "2", "3"], max_tokens=17), "out")
    assert texts(data, column="text") == ["a dog", "a dog"]
    assert texts(data, column="second") == ["an animal", "a cat"]
    assert data.split("train")["label"].tolist() == [1, 0]
    assert data.manifest["splits"]["train"]["dropped"]["too long"] == 1


CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
Łódź\u00a0lamb NN I-NP I-LOC

Peter\tNNP\tI-NP\tI-PER
. . O O
-DOCSTART- -X- O O

\t
Brussels NNP I-NP I-LOC"""


@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe"])
@pytest.mark.parametrize(
    ("columns", "labels"), [([], ["I-LOC", "I-ORG", "I-PER", "O"]), (["1", "2"], [".", "NN", "NNP", "VBZ"])]
)
def test_words_with_tags(columns, labels, kind):
    write("eng.train", CONLL + "\n\n" + CONLL)
    tokenizer = {"kind": kind, "vocab_size": 307}
    data = prepare(ask("tag", "eng.train", columns=columns, tokenizer=tokenizer), "out")
    assert texts(data) == ["EU rejects Łódź\u00a0lamb", "Peter .", "Brussels"] * 2
    assert data.labels == labels
    rows, tags = data.split("train")["text"], data.split("train")["tag"]
    assert rows.lengths.tolist() == tags.lengths.tolist()
    assert tags.ids.dtype == np.int16
    told = [[labels[tag] for tag in row if tag >= 0] for row in tags]
    wanted = (
        [["I-ORG", "O", "I-LOC"], ["I-PER", "O"], ["I-LOC"]]
        if not columns
        else [["NNP", "VBZ", "NN"], ["NNP", "."], ["NNP"]]
    )
    assert told == wanted * 2
    words = data.tokenizer.encode_words(["EU", "rejects", "Łódź\u00a0lamb"])
    starts = np.cumsum([0, *map(len, words)])[:-1]
    assert np.flatnonzero(tags[0] >= 0).tolist() == starts.tolist()


def test_a_cell_may_have_spaces():
    write("a.tsv", "10 000\tO\nNew York\tB-LOC\n\nBerlin\tB-LOC\n")
    data = prepare(ask("tag", "a.tsv", tokenizer={"kind": "bytes"}), "out")
    assert texts(data) == ["10 000 New York", "Berlin"]
    assert data.labels == ["B-LOC", "O"]


@pytest.mark.parametrize("name", ["", "caf\udce9.txt"])
def test_names_that_are_none(name):
    write("a.txt", "A dog runs.")
    with contextlib.suppress(OSError):  # a file system may not have it
        write(name or "b.txt", "A dog runs.")
    with pytest.raises(InputError, match=r"no file matches|the name is not valid UTF-8; rename it"):
        prepare(ask("generate", name, tokenizer={"kind": "bytes"}), "out")


def test_answers_that_are_alike_are_told_of(regard):
    rows = [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 3 + [{"prompt": "a", "chosen": "b", "rejected": "b"}]
    write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = regard(
        "prepare", "--task", "prefer", "--train", "a.jsonl", "data.tokenizer.kind=bytes", "--out", "out"
    )
    assert code == 0
    assert "train: 1 with the same answer twice dropped of 4" in out


def test_a_word_that_vanishes_takes_its_sentence_with_it():
    import tokenizers
    from tokenizers import models, normalizers

    theirs = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "dog": 1}, unk_token="[UNK]"))
    theirs.normalizer = normalizers.Replace("\u200b", "")
    theirs.save("theirs.json")
    write("a.conll", "dog N\n\n\u200b X\ndog N\n")
    data = prepare(ask("tag", "a.conll", tokenizer={"file": "theirs.json"}), "out")
    assert data.split("train")["text"].lengths.tolist() == [1]
    assert data.manifest["splits"]["train"]["dropped"] == {"empty": 1, "too long": 0}


# -- validation ---------------------------------------------------------------------------


def test_valid_files_use_the_tokenizer_and_labels_of_train():
    write("t.tsv", "bb\tx\naa\ty\n")
    write("v.tsv", "cab\ty\n")
    data = prepare(ask("classify", "t.tsv", valid={"files": "v.tsv"}, tokenizer={"kind": "characters"}), "out")
    assert data.splits == ["train", "valid"]
    assert data.split("valid")["text"].ids.tolist() == [4 + ord("c"), 260, 261]
    assert data.split("valid")["label"].tolist() == [1]


@pytest.mark.parametrize("task", ["generate", "fill"])
@pytest.mark.parametrize(
    ("share", "train", "valid"),
    [
        (0.1, ["abcde", "fghijk", "lmnop", "q"], ["rs"]),  # through a document
        (0.16, ["abcde", "fghijk", "lmnop"], ["qrs"]),  # between two
        (0.5, ["abcde", "fghi"], ["jk", "lmnop", "qrs"]),
    ],
)
def test_the_last_share_of_tokens_is_held_out(task, share, train, valid):
    write("d.txt", "abcde\nfghijk\nlmnop\nqrs\n")
    data = prepare(ask(task, "d.txt", documents="line", hold_out=share), "out")
    assert (texts(data), texts(data, "valid")) == (train, valid)
    for split in data.splits:
        facts = data.manifest["splits"][split]
        rows = data.split(split)["text"]
        assert facts["examples"] == len(rows)
        assert facts["columns"]["text"] == {"dtype": "uint16", "tokens": len(rows.ids), "longest": rows.lengths.max()}


def test_the_last_share_of_examples_is_held_out():
    write("c.tsv", lines(f"{'x' * (i + 1)}\t{'ab'[i % 2]}" for i in range(11)))
    data = prepare(ask("classify", "c.tsv", hold_out=0.3), "out")
    assert [len(t) for t in texts(data)] == list(range(1, 9))
    assert [len(t) for t in texts(data, "valid")] == [9, 10, 11]
    assert data.split("valid")["label"].tolist() == [0, 1, 0]
    write("t.conll", "".join(f"w{'x' * i} {'AB'[i % 2]}\n\n" for i in range(11)))
    data = prepare(ask("tag", "t.conll", hold_out=0.3), "tags")
    assert (len(data.split("train")["tag"]), data.split("valid")["tag"][0].tolist()) == (8, [0] + [-1] * 8)


# -- the directory ------------------------------------------------------------------------


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}


def test_the_same_files_give_the_same_directory():
    write("p.tsv", lines("\t".join(pair) for pair in PAIRS * 20))
    asked = ask("translate", "p.tsv", hold_out=0.1, tokenizer={"vocab_size": 313})
    prepare(asked, "one")
    prepare(asked, "two")
    assert contents("one") == contents("two")


def test_the_manifest_tells_what_is_there():
    import hashlib

    write("t.txt", "A dog runs.")
    asked = ask("generate", "t.txt")
    data = prepare(asked, "out")
    assert (data.task, data.labels, data.manifest["data"]) == ("generate", [], asked.to_dict())
    assert data.manifest["inputs"] == {"t.txt": {"bytes": 11, "sha256": hashlib.sha256(b"A dog runs.").hexdigest()}}
    assert set(contents("out")) == {"manifest.json", "tokenizer.json", "train.text.bin", "train.text.ends.bin"}
    assert set(data.manifest["files"]) == set(contents("out")) - {"manifest.json"}
    for name, content in contents("out").items():
        if name != "manifest.json":
            told = data.manifest["files"][name]
            assert told == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    tokenizer = data.manifest["tokenizers"]["tokenizer.json"]
    assert tokenizer["vocab_size"] == 260
    assert tokenizer["special"] == {"pad": 0, "start": 1, "end": 2, "mask": 3}
    assert contents("out")["train.text.bin"] == np.array([4 + b for b in b"A dog runs."], "<u2").tobytes()
    data.verify()


def test_ids_take_four_bytes_where_two_are_not_enough():
    import tokenizers
    from tokenizers import models, pre_tokenizers

    names = {"[UNK]": 0, **{f"w{i}": i for i in range(1, 70_001)}}
    theirs = tokenizers.Tokenizer(models.WordLevel(names, unk_token="[UNK]"))
    theirs.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    theirs.save("theirs.json")
    write("t.txt", "w1 w70000 w65536")
    data = prepare(ask("generate", "t.txt", tokenizer={"file": "theirs.json"}), "out")
    assert data.split("train")["text"].ids.dtype == np.uint32
    assert data.split("train")["text"][0].tolist() == [1, 70_000, 65_536]


def damaged(folder, change):
    write("t.txt", "A dog runs.")
    prepare(ask("generate", "t.txt"), folder)
    change(Path(folder))
    return folder


def test_a_directory_that_was_changed_is_noticed():
    cases = {
        "cut": (lambda d: os.truncate(d / "train.text.bin", 7), "cut/train.text.bin: 7 bytes, and the manifest says 22 bytes; prepare the data again"),
        "gone": (lambda d: (d / "tokenizer.json").unlink(), "gone/tokenizer.json: missing, and the manifest says "),
        "none": (lambda d: (d / "manifest.json").unlink(), "none: not a data directory (no manifest.json); make one: regard prepare RECIPE"),
        "half": (lambda d: os.truncate(d / "manifest.json", 97), "half/manifest.json: damaged; prepare the data again"),
        "new": (lambda d: (d / "manifest.json").write_text('{"format": 99}'), "new: format 99, and this regard reads 1; prepare the data again"),
    }  # fmt: skip
    for folder, (change, message) in cases.items():
        damaged(folder, change)
        with pytest.raises(InputError) as error:
            DataDir(folder)
        assert str(error.value).startswith(message)
    data = DataDir(damaged("flipped", lambda d: (d / "train.text.bin").write_bytes(bytes(22))))  # the size is right
    with pytest.raises(InputError, match="altered since it was prepared"):
        data.verify()
    with pytest.raises(InputError, match="no split 'test'; there are train"):
        data.split("test")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_nothing_is_left_of_what_fails_or_is_stopped(error, monkeypatch):
    def fail(*_):
        raise error

    write("t.txt", "A dog runs.")
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "finish", fail)
        with pytest.raises(type(error)):
            prepare(ask("generate", "t.txt"), "deep/out")
    assert list(Path("deep").iterdir()) == []
    assert texts(prepare(ask("generate", "t.txt"), "deep/out")) == ["A dog runs."]


def test_of_two_at_once_one_is_refused_and_the_other_is_whole():
    """Both would write under the same name until they are done: fashion-mnist's labels once came from one of two, its
    images from the other."""
    write("t.txt", "A dog runs.\n")
    refused: list[str] = []

    def second(what: str, *_: object) -> None:
        if what.startswith("encoding"):
            with pytest.raises(InputError) as error:
                prepare(ask("generate", "t.txt"), "out")
            refused.append(str(error.value))

    assert texts(prepare(ask("generate", "t.txt"), "out", progress=second)) == ["A dog runs."]
    assert set(refused) == {"out: another process is making it; wait until it is done"}
    assert [path.name for path in Path().iterdir() if path.name.startswith(".out")] == []


def test_a_killed_prepare_leaves_nothing_under_the_name_and_can_be_repeated():
    write("t.txt", "A dog runs.\n")
    script = """
import os, signal
from regard import recipe
from regard.data.prepare import Writer, prepare
Writer.finish = lambda self: os.kill(os.getpid(), signal.SIGKILL)
data = recipe.Data(task="generate", train=recipe.Files(files=("t.txt",)), tokenizer=recipe.Tokenizer(kind="bytes"))
prepare(data, "out")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not Path("out").exists()
    assert Path(".partial.out").exists()
    assert texts(prepare(ask("generate", "t.txt"), "out")) == ["A dog runs."]
    assert not Path(".partial.out").exists()


def test_a_tokenizer_is_learned_from_an_even_sample_of_much_text(monkeypatch):
    write("t.txt", lines(f"number {i}" for i in range(211)))
    heard = []
    train = Tokenizer.train
    monkeypatch.setattr(Tokenizer, "train", lambda texts, *rest: train(heard.extend(texts) or heard, *rest))
    monkeypatch.setattr("regard.data.tokenizer.ENOUGH", 401)
    monkeypatch.setattr(sys.modules["regard.data.prepare"], "BATCH", 37)  # a few texts, and on with the stride
    data = prepare(ask("generate", "t.txt", documents="line", tokenizer={"vocab_size": 300}), "out")
    assert heard == [f"number {i}" for i in range(0, 211, 5)]
    assert data.manifest["tokenizers"]["tokenizer.json"]["learned_from"] == "1 text in 5"
    assert texts(data) == [f"number {i}" for i in range(211)]


def test_progress_tells_of_every_stage():
    write("p.tsv", lines("\t".join(pair) for pair in PAIRS * 20))
    told = []
    data = ask("translate", "p.tsv", valid={"files": "p.tsv"}, tokenizer={"vocab_size": 313})
    prepare(data, "out", progress=lambda *what: told.append(what))
    stages = list(dict.fromkeys(stage for stage, *_ in told))
    assert stages == [
        "checking train",
        "checking valid",
        "learning source and target tokens",
        "encoding train",
        "encoding valid",
    ]
    size = Path("p.tsv").stat().st_size
    assert {(done, total) for _, done, total, _ in told} == {(size, size), (0, 0)}
    assert told[-1][-1] == f"{sum(len(c.ids) for c in DataDir('out').split('valid').values()):,} tokens"


# -- mistakes -----------------------------------------------------------------------------


@pytest.fixture
def regard(monkeypatch, capsys):
    """The command line in this process: exit code, standard output, standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["regard", *arguments])
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as end:
            cli.main()
        return (end.value.code or 0, *capsys.readouterr())

    return run


def no_module(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)


XZ = lzma.compress(lines(str(i) for i in range(10_007)))
GZ = gzip.compress(lines(str(i * i) for i in range(10_007)))
ZST = zstandard.compress(lines(str(i) for i in range(10_007)))
T = ["--task"]
KNOWN = ".tsv, .csv, .jsonl, .ndjson, .parquet, and .gz, .xz, .zst after them"
MISTAKES = {
    "line counts": (
        {"a.en": "1\n2\n3\n", "a.de": "1\n2\n3\n4\n5"}, "translate --source a.en --target a.de",
        "a.en has 3 lines and a.de 5: both need as many, a sentence and its translation on the same line"),
    "line counts, the other way": (
        {"a.en": "1\n2\n3\n", "a.de": "1\n"}, "translate --source a.en --target a.de",
        "a.en has 3 lines and a.de 1: both need as many, a sentence and its translation on the same line"),
    "numbers of files": (
        {"a.en": "1", "b.en": "2", "a.de": "1"}, "translate --source *.en --target a.de",
        "2 source files and 1 target files: give as many of each"),
    "one side": ({"a.en": "1"}, "translate --source a.en", "train: target (none): source is given, and parallel text needs both"),
    "UTF-8": (
        {"a.txt": b"good\nf\xfcr\n"}, "generate --train a.txt",
        "a.txt: line 2 is not valid UTF-8 (byte 0xfc after 1); convert the file to UTF-8"),
    "empty file": ({"a.txt": "b", "b.txt": ""}, "generate --train *.txt", "b.txt: the file is empty"),
    "empty compressed file": ({"a.tsv.xz": lzma.compress(b"")}, "translate --train a.tsv.xz", "a.tsv.xz: the file is empty"),
    "empty parquet": ({"a.parquet": parquet_of(a=[], b=[])}, "translate --train a.parquet", "a.parquet: the file is empty"),
    "words in cells": (
        {"a.tsv": "New York\tB-LOC\n\nBerlin\n"}, "tag --train a.tsv", "a.tsv: line 3 has 1 column, and column 2 is needed"),
    "nobody's home": ({}, "generate --train ~nobody/a.txt", "~nobody/a.txt: no file matches; paths are relative to where you are"),
    "only blank lines": ({"a.txt": "\n \n"}, "generate --train a.txt", "train: no example is left of 1: 1 empty"),
    "only a header": ({"a.csv": "en,de\n"}, "translate --train a.csv --columns en,de", "train: no example is left of 0: no rows"),
    "all filtered": (
        {"a.tsv": "aaaa\tb\nccc\td\n\te\n"}, "translate --train a.tsv data.max_tokens=3 data.max_ratio=2.0",
        "train: no example is left of 3: 1 empty, 1 longer than max_tokens (3), 1 beyond max_ratio (2.0)"),
    "valid all filtered": (
        {"a.tsv": "a\tb\n", "v.tsv": "aaaa\tb\n"}, "translate --train a.tsv --valid v.tsv data.max_tokens=3",
        "valid: no example is left of 1: 1 longer than max_tokens (3)"),
    "vocabulary": (
        {"a.txt": "The dog and the cat"}, "generate --train a.txt data.tokenizer.kind=bpe",
        'vocab_size (8000): the text supports at most 272; choose kind = "characters"'),
    "missing column": (
        {"a.csv": "en,fr\nx,y\n"}, "translate --train a.csv --columns en,de", "a.csv: no column 'de'; there are en, fr"),
    "missing key": (
        {"a.jsonl": '{"en": "x", "de": "y"}\n{"en": "x"}'}, "translate --train a.jsonl --columns en,de",
        "a.jsonl: line 2: no column 'de'; there are en"),
    "missing parquet column": (
        {"a.parquet": parquet_of(en=["x"], fr=["y"])}, "translate --train a.parquet --columns en,de",
        "a.parquet: no column 'de'; there are en, fr"),
    "too few keys": ({"a.jsonl": '{"en": "x"}'}, "translate --train a.jsonl", "a.jsonl: 1 column (en), and 2 are needed"),
    "too few columns": (
        {"a.tsv": "x\ty\n\nx\n"}, "translate --train a.tsv", "a.tsv: line 3 has 1 column, and column 2 is needed"),
    "too few columns in conll": (
        {"a.conll": "x y\n\nx\n"}, "tag --train a.conll", "a.conll: line 3 has 1 column, and column 2 is needed"),
    "number of columns": (
        {"a.tsv": "x\ty\n"}, "translate --train a.tsv --columns 1,2,3", "columns (1, 2, 3): translate needs 2, not 3"),
    "column 0": ({"a.tsv": "x\ty\n"}, "translate --train a.tsv --columns 0,1", "columns (0) are counted from 1"),
    "named columns of conll": (
        {"a.conll": "x y\n"}, "tag --train a.conll --columns word,tag",
        "columns (word, tag): conll files have no header; give numbers, from 1"),
    "tags in a table": (
        {"a.csv": "x,y\n"}, "tag --train a.csv", "a.csv: tags are read from conll files: a word and its tag a line, blank between"),
    "label missing": ({"a.tsv": "x\ty\nx\t \n"}, "classify --train a.tsv", "a.tsv: line 2: the label is missing"),
    "label missing in JSON": (
        {"a.jsonl": '{"t": "x", "l": null}'}, "classify --train a.jsonl", "a.jsonl: line 1: the label is missing"),
    "label not in train": (
        {"a.tsv": "x\tpos\ny\tneg\n", "v.tsv": "x\tpos\nx\tpoz\n"}, "classify --train a.tsv --valid v.tsv",
        "v.tsv: line 2: label 'poz' is not in the training data; did you mean pos?"),
    "tag not in train": (
        {"a.conll": "x O\ny I-X\n", "v.conll": "\nx O\n\nx O\ny Q\n"}, "tag --train a.conll --valid v.conll",
        "v.conll: line 5: label 'Q' is not in the training data; known: O, I-X"),
    "label held out whole": (
        {"a.tsv": "x\ta\n" * 5 + "x\tb\n" * 2}, "classify --train a.tsv --hold-out 0.3",
        "hold_out (0.3): label 'b' is held out whole; shuffle the file, or give valid files"),
    "too little to hold out": (
        {"a.tsv": "x\ta\n" * 5}, "classify --train a.tsv --hold-out 0.01", "hold_out (0.01) of 5 examples leaves none on one side"),
    "too few tokens to hold out": (
        {"a.txt": "dog"}, "generate --train a.txt --hold-out 0.01", "hold_out (0.01) of 3 tokens leaves none on one side"),
    "more columns than two": (
        {"a.csv": "id,review,sentiment\n1,good film,pos\n"}, "classify --train a.csv",
        "a.csv: line 1 has 3 columns (id, review, sentiment), and a text and its label are 2; say which: columns ="
        ' ["NAME", "NAME"] of a header, or their places ["1", "2"]; on the command line --columns 1,2'),
    "more keys than two": (
        {"a.jsonl": '{"id": 1, "review": "good", "label": "pos"}\n'}, "classify --train a.jsonl",
        "a.jsonl: line 1 has 3 columns (id, review, label), and a text and its label are 2; say which: columns ="
        ' ["NAME", "NAME"] of a header, or their places ["1", "2"]; on the command line --columns 1,2'),
    "header": (
        {"a.tsv": "sentence\tlabel\n" + "x\t1\n" * 3 + "y\t0\n" * 2}, "classify --train a.tsv",
        "a.tsv: line 1 looks like a header: label 'label' is nowhere else; say columns = [\"sentence\", \"label\"],"
        ' or columns = ["1", "2"] if it is none'),
    "no file": ({}, "generate --train no/*.txt", "no/*.txt: no file matches; paths are relative to where you are"),
    "empty folder": ({"f/.x": "1"}, "generate --train f", "f: no file matches; paths are relative to where you are"),
    "out exists": ({"a.txt": "x", "out/x": "y"}, "generate --train a.txt", "out: exists already; remove it, or choose another --out"),
    "extension": (
        {"a.foo.gz": GZ}, "translate --train a.foo.gz",
        f"a.foo.gz: the extension '.foo' does not say how columns are told apart; known: {KNOWN}"),
    "no extension": (
        {"pairs": "x"}, "classify --train pairs",
        f"pairs: the extension '(none)' does not say how columns are told apart; known: {KNOWN}"),
    "cut gz": (
        {"a.txt.gz": GZ[:-997]}, "generate --train a.txt.gz",
        "a.txt.gz: damaged or cut short (Compressed file ended before the end-of-stream marker was reached); fetch the file again"),
    "no gz": (
        {"a.txt.gz": "plain"}, "generate --train a.txt.gz",
        "a.txt.gz: damaged or cut short (Not a gzipped file (b'pl')); fetch the file again"),
    "cut xz": (
        {"a.txt.xz": XZ[:-997]}, "generate --train a.txt.xz",
        "a.txt.xz: damaged or cut short (Compressed file ended before the end-of-stream marker was reached); fetch the file again"),
    "corrupt xz": (
        {"a.txt.xz": XZ[:997] + bytes(7) + XZ[1004:]}, "generate --train a.txt.xz",
        "a.txt.xz: damaged or cut short (Corrupt input data); fetch the file again"),
    "cut zst": (
        {"a.txt.zst": ZST[:-997]}, "generate --train a.txt.zst",
        "a.txt.zst: damaged or cut short (the last frame has no end); fetch the file again"),
    "no zst": (
        {"a.txt.zst": "plain text"}, "generate --train a.txt.zst",
        "a.txt.zst: damaged or cut short (zstd decompressor error: Unknown frame descriptor); fetch the file again"),
    "cut parquet": (
        {"a.parquet": parquet_of(a=["x"], b=["y"])[:-7]}, "translate --train a.parquet", "a.parquet: not a parquet file, or cut short ("),
    "packed parquet": (
        {"a.parquet.gz": GZ}, "translate --train a.parquet.gz", "a.parquet.gz: parquet is compressed inside; unpack the .gz around it"),
    "no JSON": (
        {"a.jsonl": '{"a": "x"}\n{"a": \n'}, "generate --train a.jsonl",
        "a.jsonl: line 2 is not JSON (Expecting value: line 1 column 7 (char 6))"),
    "JSON, but no object": (
        {"a.jsonl": "[1]\n"}, "generate --train a.jsonl", "a.jsonl: line 1 is not an object: {...} with a key for each column"),
    "JSON, but no text": (
        {"a.jsonl": '{"id": 7, "text": "x"}\n'}, "generate --train a.jsonl", "a.jsonl: line 1: column 'id' (7) must be text"),
    "half a character": (
        {"a.jsonl": '{"t": "x"}\n{"t": "\\ud83d"}\n'}, "generate --train a.jsonl",
        "a.jsonl: line 2: column 't' has half of a surrogate pair, which is no character"),
    "open quote": (
        {"a.csv": 'x,y\n"x,y\nz,w\n'}, "translate --train a.csv", "a.csv: line 3 is not valid CSV (unexpected end of data)"),
    "tokenizer file": (
        {"a.txt": "x"}, "generate --train a.txt data.tokenizer.file=no.json", "no.json: cannot be read (No such file or directory)"),
    "nothing": ({}, "", "nothing to prepare; give a recipe (regard prepare RECIPE.toml), or --task and files"),
    "no train": ({}, "generate", "train: missing"),
    "unknown task": ({"a.txt": "x"}, "genrate --train a.txt", "task ('genrate') must be one of translate, generate, fill, classify, tag, prefer, caption, match, paint, draw"),
    "unknown key": ({"a.txt": "x"}, "generate --train a.txt data.max_token=3", "max_token: unknown key; did you mean max_tokens?"),
    "no recipe": ({}, "recipe.toml", "recipe.toml: cannot be read (No such file or directory)"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_line_and_exit_code_2(name, regard):
    files, arguments, message = MISTAKES[name]
    for file, content in files.items():
        write(file, content)
    before = contents(".")
    arguments = arguments.split()
    if name not in ("no recipe", "nothing"):
        kind = (
            [] if "data.tokenizer.kind=bpe" in arguments or name == "tokenizer file" else ["data.tokenizer.kind=bytes"]
        )
        arguments = ["--task", *arguments, *kind, "--out", "out"]
    code, out, err = regard("prepare", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert err == f"error: {message}\n" or message.endswith("(")
    assert len(err.splitlines()) == 1
    assert contents(".") == before


def test_a_change_to_a_recipe_goes_into_it(regard):
    write(
        "r.toml",
        '[data]\ntask = "generate"\ntrain = {files = "a.txt"}\n[model]\npreset = "tiny_decoder"\n[train]\nsteps = 1\n',
    )
    write("a.txt", "A dog runs.")
    assert (
        regard("prepare", "r.toml", "--task", "fill")[2]
        == "error: r.toml and options for task: change a recipe with data.KEY=VALUE\n"
    )
    assert (
        regard("prepare", "--task", "generate", "--train", "a.txt")[2]
        == "error: --out: missing; say where the data directory goes: --out data/NAME\n"
    )
    assert (
        regard("prepare", "--task", "generate", "--train", "a.txt", "--out", "out", "max_tokens=200")[2]
        == "error: max_tokens: is no change of the data; write data.KEY=VALUE: data.max_tokens=200\n"
    )
    code, out, err = regard("prepare", "r.toml", "data.tokenizer.kind=characters")
    assert (code, err) == (0, "")
    assert out.startswith("data/r: generate\n")
    assert DataDir("data/r").manifest["data"]["tokenizer"]["kind"] == "characters"
    assert regard("prepare", "r.toml")[2] == "error: data/r: exists already; remove it, or choose another --out\n"


@pytest.mark.parametrize(("module", "name"), [("zstandard", "a.txt.zst"), ("pyarrow.parquet", "a.parquet")])
def test_a_missing_extra_is_named(module, name, monkeypatch):
    write(name, ZST if "zst" in name else parquet_of(a=["x"]))
    no_module(monkeypatch, module)
    with pytest.raises(
        InputError,
        match=rf"^{name.split('.')[-1]} files need {module.split('.')[0]}; install it: pip install 'regard\[files\]'$",
    ):
        prepare(ask("generate", name), "out")


def test_an_unreadable_file(monkeypatch):
    write("a.txt", "A dog runs.")

    def fail(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(readers_module._Counted, "__init__", fail)
    with pytest.raises(InputError, match=r"^a.txt: cannot be read \(Permission denied\)$"):
        prepare(ask("generate", "a.txt"), "out")


def test_what_can_be_read_only_once_is_refused():
    os.mkfifo("pipe.txt")
    with pytest.raises(
        InputError, match=r"^pipe.txt: not a file that can be read more than once; write it to disk first$"
    ):
        Corpus(ask("generate", "pipe.txt"), recipe.Files(files=("pipe.txt",)))


# -- what is printed ----------------------------------------------------------------------


def test_the_summary_as_text_and_as_json(regard):
    write("p.tsv", lines(["a dog\tein Hund", "a cat\teine Katze", "\tleer", "a long one\tein langer"]))
    asked = [
        "--task",
        "translate",
        "--train",
        "p.tsv",
        "--columns",
        "1,2",
        "data.tokenizer.kind=bytes",
        "data.max_tokens=10",
    ]
    code, out, err = regard("prepare", *asked, "--out", "one")
    assert (code, err) == (0, "")
    assert (
        out
        == """\
one: translate

               examples  tokens  mean  median  95 %  longest
train  source         3      20   6.7       5    10       10
       target                28   9.3      10    10       10
train: 0.714 source tokens to a target token
train: 1 empty dropped of 4

vocabulary      size  occur  tokens a word    bytes
tokenizer.json   260   6.2%           3.69  100.00%

source  <0x61> <0x20> <0x64> <0x6F> <0x67>
target  <0x65> <0x69> <0x6E> <0x20> <0x48> <0x75> <0x6E> <0x64>
source  <0x61> <0x20> <0x63> <0x61> <0x74>
target  <0x65> <0x69> <0x6E> <0x65> <0x20> <0x4B> <0x61> <0x74> <0x7A> <0x65>
source  <0x61> <0x20> <0x6C> <0x6F> <0x6E> <0x67> <0x20> <0x6F> <0x6E> <0x65>
target  <0x65> <0x69> <0x6E> <0x20> <0x6C> <0x61> <0x6E> <0x67> <0x65> <0x72>
"""
    )
    code, out, _ = regard("prepare", *asked, "--out", "two", "--json")
    told = json.loads(out)
    assert told["splits"]["train"] == {
        "examples": 3, "read": 4, "dropped": {"empty": 1, "too long": 0}, "source_target_ratio": 0.714,
        "columns": {
            "source": {"tokens": 20, "mean": 6.7, "median": 5, "p95": 10, "longest": 10},
            "target": {"tokens": 28, "mean": 9.3, "median": 10, "p95": 10, "longest": 10},
        },
    }  # fmt: skip
    assert told["tokenizers"]["tokenizer.json"]["used"] == round(16 / 260, 4)
    assert told["samples"][0]["source"] == "<0x61> <0x20> <0x64> <0x6F> <0x67>"


def test_the_summary_of_labels_and_tags(regard):
    write("t.conll", "Ann B\nruns O\n")
    out = regard("prepare", "--task", "tag", "--train", "t.conll", "data.tokenizer.kind=characters", "--out", "tags")[1]
    assert "2 labels: B, O" in out
    assert "text  A n n ▁ r u n s\ntag   B - - O - - - -" in out
    write("c.tsv", "x\tpos\ny\tneg\n")
    out = regard(
        "prepare", "--task", "classify", "--train", "c.tsv", "data.tokenizer.kind=characters", "--out", "labels"
    )[1]
    assert "text   x\nlabel  pos\ntext   y\nlabel  neg\n" in out


def test_a_bar_is_shown_to_those_who_look():
    pty = pytest.importorskip("pty")
    write("a.txt", "A dog runs.\n" * 100)
    command = [
        sys.executable,
        "-m",
        "regard",
        "prepare",
        "--task",
        "generate",
        "--train",
        "a.txt",
        "data.tokenizer.kind=bytes",
        "--out",
        "out",
    ]
    terminal, end = pty.openpty()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=end, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    ) as process:
        os.close(end)
        out = process.stdout.read().decode()
        seen = b""
        while process.poll() is None or not seen:
            try:
                seen += os.read(terminal, 1 << 16)
            except OSError:
                break
            time.sleep(0.01)
    os.close(terminal)
    assert process.returncode == 0
    assert "\x1b" not in out
    assert b"encoding train" in seen
    assert b"1,199 tokens" in seen


# -- real data ----------------------------------------------------------------------------

REAL = {
    "multi30k": (
        "translate", {"source": "multi30k/train.en.gz", "target": "multi30k/train.de.gz"},
        {"source": "multi30k/val.en.gz", "target": "multi30k/val.de.gz"}, {}, 29_000, 1_014),
    "anki": ("translate", {"files": "anki/eng-deu.tsv.xz"}, None, {"hold_out": 0.05}, 161_322, 8_491),
    "sst-2": ("classify", {"files": "sst-2/train.tsv.xz"}, {"files": "sst-2/dev.tsv.xz"}, {"columns": ["sentence", "label"]}, 67_349, 872),
    "cola": ("classify", {"files": "cola/train.tsv.xz"}, {"files": "cola/dev.tsv.xz"}, {"columns": ["4", "2"]}, 8_551, 1_043),
    "conll2003": ("tag", {"files": "conll2003/eng.train.xz"}, {"files": "conll2003/eng.testa.xz"}, {}, 14_041, 3_250),
    "wikitext-2": ("generate", {"files": "wikitext-2/wiki.train.tokens.xz"}, {"files": "wikitext-2/wiki.valid.tokens.xz"}, {}, 1, 1),
    "wikipedia": ("fill", {"files": "wikipedia/valid.txt.xz"}, None, {"documents": "paragraph", "hold_out": 0.1}, None, None),
    "shakespeare": ("generate", {"files": "shakespeare/input.txt"}, None, {"hold_out": 0.1}, 1, 1),
    "europarl": (
        "translate", {"source": "europarl/dev.en.xz", "target": "europarl/dev.de.xz"},
        {"source": "europarl/test.en.xz", "target": "europarl/test.de.xz"}, {}, 3_000, 3_000),
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_real_files(name, tmp_path):
    task, train, valid, options, n_train, n_valid = REAL[name]
    if not (toy.SHARED / name).exists():
        pytest.skip(f"{toy.SHARED / name} is not there")
    place = {"train": {side: str(toy.SHARED / file) for side, file in train.items()}}
    if valid is not None:
        place["valid"] = {side: str(toy.SHARED / file) for side, file in valid.items()}
    tokenizer = {"vocab_size": 4_001} if name in ("conll2003", "cola") else {"kind": "characters"}
    data = prepare(ask(task, max_tokens=1_009, **place, **options, tokenizer=tokenizer), tmp_path / name)
    if n_train is not None:
        assert [data.manifest["splits"][split]["examples"] for split in data.splits] == [n_train, n_valid]
    if name == "conll2003":
        assert data.labels == ["B-LOC", "B-MISC", "B-ORG", "I-LOC", "I-MISC", "I-ORG", "I-PER", "O"]
    if name == "shakespeare":
        whole = texts(data)[0] + texts(data, "valid")[0]
        assert whole == (toy.SHARED / "shakespeare/input.txt").read_text().rstrip("\n")
