"""``regard`` in a process of its own that has torch already: a fork of one that has imported it and done nothing else.

To import it is most of what a short command does. Nothing of the tests is in that process: no annotation checks, no
warnings as errors. What an interpreter does when it starts (``python -m``, PYTHONIOENCODING), only a new one shows.
"""

import contextlib
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
from multiprocessing import reduction

SERVER = multiprocessing.get_context("forkserver")
# The last two are what a training imports beside it.
SERVER.set_forkserver_preload(
    ["torch", "regard.cli", "regard.model", "regard.train.loop", "torch._dynamo", "matplotlib.figure"]
)


def run(*arguments, cwd=None, env=None, input="", together=False) -> subprocess.CompletedProcess[str]:
    """What a command says and how it ends; ``together``, with what it says on stderr among the rest."""
    with contextlib.ExitStack() as files:
        given, out, apart = (files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
        given.write(input)
        given.seek(0)
        streams = [reduction.DupFd(file.fileno()) for file in (given, out, out if together else apart)]
        place, environment = os.fspath(cwd or os.getcwd()), {**os.environ, **(env or {})}
        process = SERVER.Process(target=_forked, args=([*map(str, arguments)], place, environment, streams))
        process.start()
        process.join()
        code = process.exitcode
        process.close()
        for file in (out, apart):
            file.seek(0)
        assert code is not None
        return subprocess.CompletedProcess(["regard", *arguments], code, out.read(), apart.read())


def _forked(arguments, place, environment, streams):
    os.chdir(place)
    os.environ.clear()
    os.environ.update(environment)
    for stream, where in enumerate(streams):
        os.dup2(where.detach(), stream)
    sys.argv = ["regard", *arguments]
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(i, how) for i, how in enumerate(("r", "w", "w")))
    from regard.cli import main

    main()


def shell(command, rest, environment):
    """A command line; what stands behind it (``| head -1``, ``|| true``) is the shell's."""
    piped = bool(rest) and not rest.startswith("||")
    done = run(*shlex.split(command)[1:], env=environment, together=not piped)
    if piped:
        code, said = in_a_shell(rest[1:], environment, done.stdout)
        return code, done.stderr + said
    if rest and done.returncode:
        code, said = in_a_shell(f"(exit {done.returncode}) {rest}", environment)
        return code, done.stdout + said
    return done.returncode, done.stdout


def in_a_shell(command, environment, given=""):
    streams = {"input": given, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, shell=True, env=environment, text=True, **streams)
    return done.returncode, done.stdout
