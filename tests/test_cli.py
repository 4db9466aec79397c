"""The front door: what is printed where, and with which exit code."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ready
import regard
from regard import presets

ROOT = Path(__file__).parents[1]


def run(*arguments, cwd=None):
    return ready.run(*arguments, cwd=cwd, env={"FORCE_COLOR": ""})


def test_version_is_the_packages():
    assert regard.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    said = subprocess.run([sys.executable, "-m", "regard", "--version"], capture_output=True, text=True).stdout
    assert said == f"regard {regard.__version__}\n"


JOBS = [
    "prepare", "train", "compare", "plan", "translate", "export", "generate", "chat", "fill", "classify", "tag", "embed",
    "caption", "match", "draw", "evaluate", "serve", "look", "explain", "walk", "check", "presets", "quickstart",
]  # fmt: skip


def test_help_lists_the_jobs_without_torch():
    script = "import sys, regard, regard.config, regard.presets, regard.cli; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
    result = run("--help")
    assert result.returncode == 0
    assert re.findall(r"^  (\w+)  ", result.stdout.split("Commands:")[1], re.MULTILINE) == JOBS


def test_names_open_when_asked_for():
    assert all(getattr(regard, name) is not None for name in dir(regard))
    with pytest.raises(AttributeError, match="no attribute 'Transfromer'"):
        regard.Transfromer  # noqa: B018


def test_walk_prints_six_steps_as_plain_text():
    result = run("walk", "I am a student")
    assert result.returncode == 0
    assert result.stderr == ""
    assert re.findall(r"^\d", result.stdout, re.MULTILINE) == list("123456")
    assert "\x1b" not in result.stdout
    assert not re.search(r" $", result.stdout, re.MULTILINE)
    assert "Ids: 0, 1, 2 ... for each new word." in result.stdout
    assert result.stdout == f"{regard.walk('I am a student')}\n"


def test_walk_in_json():
    result = run("walk", "a b c", "--model", "tiny_decoder", "--layer", "1", "--head", "2", "--seed", "3", "--json")
    steps = json.loads(result.stdout)
    assert steps == json.loads(
        json.dumps(regard.walk("a b c", model=presets.tiny_decoder(), layer=1, head=2, seed=3).to_dict())
    )
    assert steps["scores"][0][1:] == [None, None]


def test_walk_over_a_model_from_a_file(tmp_path):
    (tmp_path / "mine.toml").write_text('[model]\npreset = "tiny_encoder_decoder"\n[model.decoder]\nn_layers = 3\n')
    result = run(
        "walk", "ein Hund", "--target", "a dog runs", "--model", "mine.toml", "--layer", "2.cross", cwd=tmp_path
    )
    assert result.stdout.startswith("Cross-attention in six steps: layer decoder.2.cross, head 0\n")


def test_walk_over_scores():
    result = run("walk", "--scores", "112,96,16,8", "--d-key", "64")
    assert [line.split()[3] for line in result.stdout.splitlines()[3:]] == ["0.8808", "0.1192", "0.0000", "0.0000"]
    assert json.loads(run("walk", "--scores", "-1, 2", "--json").stdout)["scores"] == [-1.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], 'nothing to walk over; give a text ("I am a student") or --scores 112,96,16,8'),
        (["a", "--scores", "1,2"], "a text and --scores; give one of them"),
        (["a", "--d-key", "3"], "--d-key: goes with --scores"),
        (["--scores", "1,2", "--head", "1", "--seed", "2"], "--head, --seed: goes with a text"),
        (["--scores", "1,x"], "--scores ('1,x') must be numbers with commas between them: 112,96,16,8"),
        (["--scores", "nan"], "scores (nan) must be finite numbers"),
        (["--scores", "1,,2"], "--scores ('1,,2') must be numbers with commas between them: 112,96,16,8"),
        (["--scores", ""], "scores are empty; give at least one number"),
        (["--scores", "1", "--d-key", "0"], "d_key (0) must be a whole number of at least 1"),
        (["a", "--model", "gtp2"], "preset ('gtp2') is not known; did you mean gpt2?"),
        (["a", "--model", "no.toml"], "no.toml: cannot be read (No such file or directory)"),
        (["", "--head", "0"], "text ('') is empty; give at least one word"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, message):
    result = run("walk", *arguments)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["translate", "en-de", "- Hello"], "no such option: -; a text that begins with - goes behind --"),
        (["translate", "en-de", "--bem", "4"], "no such option: --bem (Possible options: --beam, --n-best)"),
        (["translate", "en-de", "x", "--beam", "wide"], "invalid value for '--beam': "),
        (["translate", "en-de", "-- Hello"], "no such option: -- Hello; a text that begins with - goes behind --"),
        (["translate"], "missing argument 'model'"),
    ],
)
def test_what_is_no_command_line_is_one_line_too(arguments, said):
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {said}")
    assert result.stderr.endswith("; regard translate --help tells more\n")
    assert result.stderr.count("\n") == 1


def test_without_a_word_there_is_the_help():
    result = run()
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: regard")
    assert "  translate  " in result.stderr
    assert run("nosuch").stderr == "error: no such command 'nosuch'; regard --help tells more\n"
    needs = run("translate", "--beam").stderr
    assert needs.startswith("error: option '--beam' requires an argument; ")
    assert needs.endswith(" --help tells more\n")


@pytest.mark.parametrize("arguments", [[], ["nosuch"], ["walk"]])
def test_nothing_said_aside_is_among_the_results(arguments):
    command = shlex.join([sys.executable, "-m", "regard", *arguments])
    result = subprocess.run(f"{command} 2>&-", shell=True, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")


def test_every_problem_has_its_own_line(tmp_path):
    (tmp_path / "bad.toml").write_text("[model]\nencodr = 1\n")
    result = run("walk", "a", "--model", "bad.toml", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "error: encodr: unknown key; did you mean encoder?\nerror: head: missing\n"


def test_presets():
    rows = json.loads(run("presets", "--json").stdout)
    assert [row["name"] for row in rows] == presets.names()
    assert next(row for row in rows if row["name"] == "gpt2") == {
        "name": "gpt2",
        "shape": "decoder",
        "parameters": 124_439_808,
        "about": "GPT-2 in its four sizes: small (124M), medium (355M), large (774M), xl (1,558M).",
    }
    lines = run("presets").stdout.splitlines()
    assert len(lines) == 1 + len(rows)
    assert lines[0].split() == ["name", "shape", "parameters", "about"]


def test_a_closed_pipe_ends_quietly():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "regard", "walk", "--scores", "3,5"]
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (result.returncode, result.stderr) == (-signal.SIGPIPE, "")


def test_an_interrupt_exits_with_130():
    stop = "def stop(*_): raise KeyboardInterrupt"
    script = f"import regard.cli, regard.look\n{stop}\nregard.look.walk_scores = stop\nregard.cli.main()"
    command = [sys.executable, "-c", script, "walk", "--scores", "3,5"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 130
    assert "Traceback" not in result.stderr


def test_a_terminal_without_the_signs_gets_question_marks():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "regard", "walk", "--scores", "3,5"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0
    assert "?64 = 8" in result.stdout


def test_a_quickstart_in_an_unknown_language():
    result = run("quickstart", "--to", "xx")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: --to (xx)")
