"""Where commands write: stdout and files, with a clear error for each way in which they take no more."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import IO, Any, TextIO, cast

from systolic._errors import InputError

_WIDE = 160  # columns where there is no terminal, so that a log or a pipe does not break lines at 80


class Stream:
    """A text file of the user's choice: what goes wrong in writing is an error of the option that named it.

    A reader that has gone (``BrokenPipeError``) is no error, and passes.
    """

    def __init__(self, option: str, path: str | None, file: TextIO) -> None:
        self._option, self._path, self._file = option, path, file

    def write(self, text: str) -> int:
        """Write all of it.

        Raises:
            InputError: it cannot be written.
        """
        with self._explained():
            return self._file.write(text)

    def flush(self) -> None:
        """Hand over what is buffered.

        Raises:
            InputError: it cannot be written.
        """
        with self._explained():
            self._file.flush()

    def isatty(self) -> bool:
        """Whether a person looks at it."""
        return self._file.isatty()

    @property
    def encoding(self) -> str:
        """The file's."""
        return self._file.encoding

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise  # where rich calls this, it has caught the error
        except OSError as error:
            raise unwritable(self._option, self._path, error) from error
        except UnicodeEncodeError as error:
            raise InputError(
                f"{self._option}: {error.object[error.start]!r} is not in its encoding, {error.encoding}; set "
                "PYTHONIOENCODING=utf-8"
            ) from error


def stdout() -> Stream:
    """The process's stdout."""
    return Stream("stdout", None, sys.stdout)


def emit(text: str) -> None:
    """Print a line, or several, on stdout."""
    stdout().write(text + "\n")


def complain(text: str) -> None:
    """Print a line, or several, on stderr; where that cannot be written there is nobody to tell."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def console() -> Any:
    """A rich console on stdout."""
    from rich.console import Console

    class Passing(Console):
        """A reader that has gone is for the command to end with, not for rich, which exits with 1."""

        def on_broken_pipe(self) -> None:
            raise  # where rich calls this, it has caught the error

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE
    return Passing(file=cast("IO[str]", stdout()), highlight=False, width=width)


def open_streams() -> bool:
    """Whether there is a stdout. A closed stderr is opened, to nowhere: what is meant for it must not go elsewhere."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (for the life of the process)
    return sys.stdout is not None


def flush_stdout() -> None:
    """Hand over all that was printed.

    Raises:
        InputError: it cannot be written.
        BrokenPipeError: nobody reads it.
    """
    stdout().flush()


def discard_stdout() -> None:
    """Point stdout to nowhere, if it takes no more: so that its last flush, at exit, is silent."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_writable(option: str, path: str) -> None:
    """Find out before any work whether a file can be written; it is left as it is, and its folder is made.

    Raises:
        InputError: it cannot be written.
    """
    if not path:
        raise InputError(f"{option}: saw '', wanted a file")
    file = pathlib.Path(path).expanduser()
    if file.is_dir():
        raise InputError(f"{option}: {path} is a folder; name a file in it, as in {file / option.lstrip('-')}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if (
            file.exists() and not file.is_file()
        ):  # a pipe, or /dev/stderr: opening it may wait, or tell its reader of an end
            return
        new = not file.exists()
        with open(file, "ab"):
            pass
        if new:
            file.unlink()
    except OSError as error:
        raise unwritable(option, path, error) from error


def write_text(option: str, path: str, text: str) -> None:
    """Write a file that the user named with ``option``.

    Raises:
        InputError: it cannot be written.
    """
    file = pathlib.Path(path).expanduser()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(option, path, error) from error


def unwritable(option: str, path: str | None, error: OSError) -> InputError:
    """The error for a file that cannot be written; ``path`` is None for stdout, which has no name."""
    reason = error.strerror or str(error)
    if path is None:
        return InputError(f"{option}: cannot be written ({reason}); send it somewhere else")
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "make room, or name a file on another disk" if full else "name a file in a folder that you own"
    return InputError(f"{option}: cannot write {path} ({reason}); {advice}")
