"""Files that are there whole or not at all: written under another name, and renamed when the disk has them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from regard.schema import InputError, RegardError

MODE = 0o666 & ~(_umask := os.umask(0))  # of every other file; safetensors makes its own for the owner alone
os.umask(_umask)
SHIPPED = Path(__file__).parent / "models"  # in a checkout a link to models/; a wheel has the files


def shipped() -> list[str]:
    """The names of the models that come with regard.

    >>> "en-de" in shipped()
    True
    """
    return sorted(path.name for path in SHIPPED.iterdir() if path.is_dir()) if SHIPPED.is_dir() else []


def is_shipped(model: Path) -> bool:
    """Whether a model is one that comes with regard."""
    return model.parent == SHIPPED


def called(model: Path) -> str:
    """What a model is called to people: its name, if it comes with regard, or where it is.

    >>> called(SHIPPED / "en-de"), called(Path("runs/my"))
    ('en-de', 'runs/my')
    """
    return model.name if is_shipped(model) else str(model)


def write_text(path: Path, text: str) -> None:
    """A text file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "a.txt")
    >>> write_text(path, "A dog runs.")
    >>> path.read_text()
    'A dog runs.'
    """
    with drafted(path) as draft:
        draft.write_text(text, encoding="utf-8")


def draft_of(path: Path) -> Path:
    """What a file or folder is called until it is whole: nobody else's name, and with the same ending.

    >>> draft_of(Path("runs/git")).name, draft_of(Path("a.png")).suffix
    ('.partial.git', '.png')
    """
    return path.with_name(f".partial.{path.name}")


@contextlib.contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """Another name to write a file or a folder under; it gets its own when all of it is on the disk."""
    draft = draft_of(path)
    with told(path):
        yield draft
        for part in (*draft.rglob("*"), draft):
            flush(part)
        draft.rename(path)


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """What goes wrong while writing, in one line; a half-written draft is removed, whatever happens."""
    draft = draft_of(path)
    try:
        yield
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, FileNotFoundError):
            check_folder(path)
        raise RegardError(
            f"{path}: cannot be written ({reason}); what was there before is intact: make room and try again"
        ) from None


def check_folder(path: str | Path) -> None:
    """Refuse now what could not be written there later.

    >>> check_folder("nowhere/a.npy")
    Traceback (most recent call last):
    regard.schema.InputError: nowhere/a.npy: cannot be written: there is no folder nowhere; make it first
    """
    if not (folder := Path(path).parent).is_dir():
        raise InputError(f"{path}: cannot be written: there is no folder {folder}; make it first") from None


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """No other process makes the same file or folder meanwhile: it is refused. A process that is killed lets go."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{lock.parent}: cannot be a folder ({error.strerror}); choose another") from None
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{path}: another process is making it; wait until it is done") from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until the disk has it; a file may be read by whoever may read the others."""
    if path.is_file():
        path.chmod(MODE)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
