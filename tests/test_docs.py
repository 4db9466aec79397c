"""Every command and every line of Python in README.md and docs/ runs, and prints what the page says it prints.

In a ``console`` block, lines after ``$`` are run by the shell (``>`` continues a command), and the lines below are what
comes out; a line ``...`` stands for any lines. Commands that install, build or fetch are tried elsewhere, but for those
of a block that is marked as such (``console network``), which runs with ``pytest -m network``. The blocks of a page
share their files and names, from the top down.
"""

import contextlib
import doctest
import os
import re
import sys
from pathlib import Path

import pytest

import ready

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(console|python)( network)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = re.compile(r"(make|git|cd|source|\.|\S*pip3?|\S*python3? -m (venv|pip)) ")


# Nothing that only a shell understands, and what a shell then does with it.
READY = re.compile(r"(regard [^|<>&;$`*?~\\]*)(\|.*)?", re.DOTALL)


class Page:
    """A page's blocks, and what they leave behind."""

    def __init__(self, path):
        text = path.read_text(encoding="utf-8")
        self.path, self.names, self.done, self.home = path, {"__name__": "__main__"}, 0, None
        self.blocks = [(m[1], m[2], m[3], 2 + text[: m.start()].count("\n")) for m in BLOCK.finditer(text)]

    def run(self, last, make_home):
        """Run the block with this number, after those above it that have not run in this process yet."""
        if self.home is None:
            self.home = make_home(self.path.stem)
            for entry in ROOT.iterdir():  # the repository is at hand, and what a block writes stays out of it
                if entry.name not in ("data", "runs"):  # of somebody's own
                    (self.home / entry.name).symlink_to(entry)
        while self.done <= last:
            kind, network, text, line = self.blocks[self.done]
            self.done += 1  # first, so that a block that fails does not fail all below it
            if network and not self.blocks[last][1]:
                continue
            with contextlib.chdir(self.home):
                self._console(text, network) if kind == "console" else self._python(text, line)

    def _console(self, text, network):
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "FORCE_COLOR": ""}
        for command, printed in re.findall(r"^\$ (.*\n(?:> .*\n)*)((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            if ELSEWHERE.match(command) and not network:
                continue
            command = command.replace("\\\n> ", "").replace("\n> ", "\n")
            alone = READY.fullmatch(command)
            code, said = (
                ready.shell(alone[1], alone[2], environment) if alone else ready.in_a_shell(command, environment)
            )
            assert code == 0, f"$ {command}{said}"
            got = "".join(f"{line.rstrip()}\n" for line in said.splitlines())
            lines = [line.rstrip() for line in printed.splitlines()]
            pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line) + r"\n" for line in lines)
            if lines and not re.fullmatch(pattern, got):
                assert got == printed, f"$ {command}"

    def _python(self, text, line):
        if not text.startswith(">>>"):
            exec(compile("\n" * (line - 1) + text, str(self.path), "exec"), self.names)
            return
        test = doctest.DocTestParser().get_doctest(text, self.names, self.path.name, str(self.path), line - 1)
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
        said = []
        runner.run(test, out=said.append, clear_globs=False)
        self.names.update(test.globs)
        assert not runner.failures, "".join(said)


PAGES = [Page(path) for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))] if path.exists()]
BLOCKS = {f"{p.path.name}:{line}-{kind}": (p, i) for p in PAGES for i, (kind, *_, line) in enumerate(p.blocks)}
# Long trainings, or several.
SLOW = (
    "caption.md", "classify.md", "compare.md", "draw.md", "embed.md", "fill.md", "fine-tune.md", "interop.md",
    "match.md", "prefer.md", "train.md",
)  # fmt: skip
MARKED = [
    pytest.param(
        name,
        marks=[pytest.mark.network] if p.blocks[i][1] else [pytest.mark.slow] if name.startswith(SLOW) else [],
    )
    for name, (p, i) in BLOCKS.items()
]


@pytest.mark.parametrize("block", MARKED)
def test_block(block, tmp_path_factory):
    page, number = BLOCKS[block]
    page.run(number, tmp_path_factory.mktemp)
