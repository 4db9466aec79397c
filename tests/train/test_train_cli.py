"""`regard train` as its user meets it: what it prints, how it ends, and how it fails."""

import json
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest

import ready
import toy
from regard import cli
from regard import recipe as recipes
from regard.train import checkpoint
from regard.train.loop import train
from regard.train.run import Run
from regard.train.watch import Watch


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with a recipe and its prepared data."""
    folder = tmp_path_factory.mktemp("cli")
    recipe, data = toy.prepared(folder, "translate", steps=12, checkpoint_every=4, valid_every=6, log_every=2)
    (folder / "toy.json").write_text(recipe.to_json())
    return folder, data


def regard(folder, *arguments):
    return ready.run(*arguments, cwd=folder, env={"COLUMNS": "100"})


def refused(done, *parts):
    """One line, exit code 2, no traceback."""
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in lines[0]


def test_a_recipe_trains_from_raw_files(work):
    folder, _ = work
    done = regard(
        folder, "train", "toy.json", "--device", "cpu", "--data", "fresh", "--out", "runs/raw", "--tensorboard"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    for told in ("runs/raw: a new run", "parameters", "held out: loss", "reference", "done: 12 steps"):
        assert told in done.stderr
    assert (folder / "fresh" / "manifest.json").exists()
    assert list((folder / "runs/raw/tensorboard").iterdir())


def test_what_was_not_measured_is_not_told(work):
    folder, _ = work
    recipe = recipes.read(folder / "toy.json")
    table = recipe.to_dict()
    del table["data"]["valid"]
    (folder / "alone.json").write_text(json.dumps(table))
    common = ("train", "alone.json", "--device", "cpu", "--data", "alone")
    done = regard(folder, *common, "train.steps=8", "train.average=2", "--out", "runs/averaged")
    assert done.returncode == 0, done.stderr
    assert "model.safetensors has the average of 2 checkpoints\n" in done.stderr
    hot = ("train.lr=1e30", "train.warmup=0", "train.clip=0", "train.max_skipped=3", "train.checkpoint_every=100")
    done = regard(folder, *common, *hot, "--out", "runs/hot")
    assert done.returncode != 0
    assert "intact" not in done.stderr
    assert "begin a new run with less than train.lr (1e+30), or with train.clip, which is off" in done.stderr


def test_what_else_lies_beside_the_checkpoints_is_left_alone(work):
    """A backup of one, say. And data that was moved is asked for, not made anew."""
    folder, data = work
    out = folder / "beside"
    train(recipes.read(folder / "toy.json"), data.path, out, device="cpu", watch=Watch(quiet=True))
    last = checkpoint.checkpoints(out)[-1]
    shutil.copytree(last, last.with_name(f"{last.name}.bak"))
    assert checkpoint.checkpoints(out)[-1] == last
    done = regard(folder, "train", "--resume", out, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert last.with_name(f"{last.name}.bak").is_dir()
    refused(
        regard(folder, "train", "toy.json", "--resume", out, "--verify-resume"),
        "--verify-resume: makes runs of its own",
    )
    data.path.rename(folder / "moved")
    try:
        refused(regard(folder, "train", "--resume", out), "say where it is now: --data FOLDER")
        assert regard(folder, "train", "--resume", out, "--data", "moved").returncode == 0
    finally:
        (folder / "moved").rename(data.path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(work, number):
    folder, data = work
    out = folder / f"signal-{int(number)}"
    command = [
        sys.executable,
        "-m",
        "regard",
        "train",
        "toy.json",
        "train.steps=5000",
        "--data",
        data.path,
        "--out",
        out,
    ]
    process = subprocess.Popen(list(map(str, command)), cwd=folder, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not any(True for _ in Run(out).lines()):
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 128 + number, said
    assert f"stopped by {number.name}; everything is saved. To go on: regard train --resume {out}" in said
    last = checkpoint.checkpoints(out)[-1]
    assert checkpoint.read_facts(last)["step"] > 0


def test_a_full_disk_leaves_the_earlier_checkpoint(work):
    """The limit on a file's size stands for the disk: writing fails in the middle of a file."""
    folder, data = work
    out = folder / "full"
    train(recipes.read(folder / "toy.json"), data.path, out, device="cpu", watch=Watch(quiet=True))
    checkpoint.discard(checkpoint.checkpoints(out)[-1])
    earlier = checkpoint.checkpoints(out)[-1]

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

    command = [sys.executable, "-m", "regard", "train", "--resume", str(out)]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True)
    refused(done, "cannot be written", "what was there before is intact: make room and try again")
    assert checkpoint.checkpoints(out)[-1] == earlier
    checkpoint.load(earlier)
    assert not list((out / "state").glob(".*"))
    train(None, None, out, resume=True, device="cpu", watch=Watch(quiet=True))
    assert checkpoint.checkpoints(out)[-1].name == "step-000000012"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["train"], ["nothing to train; give a recipe"]),
        (["train", "nowhere.toml"], ["nowhere.toml: cannot be read (No such file or directory)"]),
        (["train", "toy.json", "train.stepz=3"], ["train.stepz: unknown key; did you mean steps?"]),
        (["train", "toy.json", "train.steps"], ["'train.steps' must be a key and its value"]),
        (["train", "toy.json", "--resume", "a", "--out", "b"], ["a run goes on where it is"]),
        (["train", "--resume", "nowhere"], ["nowhere/config.json: cannot be read", "is this a run directory?"]),
        (["train", "--resume", "a", "train.steps=9"], ["train.steps=9: a run goes on as it began", "--from a"]),
        (["train", "--resume", "a", "--from", "b"], ["--from b: a new run begins there; leave out --resume"]),
        (["train", "--verify-resume", "--resume", "x"], ["--verify-resume needs a recipe"]),
        (["train", "toy.json", "--data", "data", "--device", "tpu"], ["device ('tpu') must be cpu or cuda"]),
        (["train", "toy.json", "--data", "data", "--shard"], ["--shard needs several processes"]),
        (
            ["train", "toy.json", "--data", "data", "data.max_tokens=99"],
            ["data: was prepared otherwise (max_tokens: 256 then, 99 now)"],
        ),
        (["train", "toy.json", "--data", "data", "train.batch_tokens=5"], ["batch_tokens (5) must be at least"]),
        (
            ["train", "toy.json", "model.encoder.n_heds=2"],
            ["model: encoder.n_heds: unknown key; did you mean n_heads?"],
        ),
    ],
)
def test_mistakes(work, arguments, parts, monkeypatch, capsys):
    folder, _ = work
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["regard", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as end:
        cli.main()
    refused(subprocess.CompletedProcess(arguments, end.value.code, *capsys.readouterr()), *parts)
    assert not (folder / "runs" / "toy").exists()


def test_what_was_prepared_before_its_files_changed_is_refused(tmp_path, monkeypatch):
    """Trained on silently, it would be what nobody sees any more."""
    toy.write(tmp_path, "generate", 20, 1, "train")
    written = tmp_path / "train.txt"
    recipe = {
        "data": {"task": "generate", "train": {"files": "train*.txt"}, "hold_out": 0.3, "tokenizer": {"kind": "bytes"}},
        "model": {"preset": "tiny_decoder", "decoder": {"max_len": 64}},
        "train": {"steps": 2, "batch_tokens": 128, "row_tokens": 64},
    }
    (tmp_path / "small.json").write_text(json.dumps(recipe))
    command = ("train", "small.json", "--device", "cpu", "--quiet")
    assert ready.run(*command, "--out", "first", cwd=tmp_path).returncode == 0
    text = written.read_text()
    written.write_text(text)  # touched, but the same
    assert ready.run(*command, "--out", "again", cwd=tmp_path).returncode == 0
    written.write_text(text.swapcase())
    refused(
        ready.run(*command, "--out", "other", cwd=tmp_path),
        "train.txt: is not what data/small was prepared from; remove data/small",
    )
    assert ready.run(*command, "--out", "kept", "--data", "data/small", cwd=tmp_path).returncode == 0
    written.write_text(text)
    (tmp_path / "train2.txt").write_text(text)
    refused(ready.run(*command, "--out", "more", cwd=tmp_path), "train2.txt: is not what data/small was prepared from")
    (tmp_path / "train2.txt").unlink()
    written.unlink()  # gone: what was made of it is all there is
    assert ready.run(*command, "--out", "last", cwd=tmp_path).returncode == 0
    (tmp_path / "data" / "raw").mkdir()
    (tmp_path / "raw.json").write_text(json.dumps(recipe))
    refused(ready.run("train", "raw.json", cwd=tmp_path), "data/raw: is there, but is no data directory; say where")


def test_metrics_are_json_a_line(work):
    folder, data = work
    out = folder / "lines"
    done = regard(folder, "train", "toy.json", "--data", data.path, "--out", out, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in trained] == [2, 4, 6, 8, 10, 12]
    assert all(0 <= line["waited"] <= 1 and line["tokens_per_second"] > 0 for line in trained)
