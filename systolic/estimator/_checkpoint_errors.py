"""What Orbax and the file system raise around checkpoints: told once, as one error, and without noise beside it."""

from __future__ import annotations

import contextlib
import errno
import logging
import sys
from collections.abc import Iterator
from typing import Any

from systolic._errors import CheckpointError

DISK_FULL = "the disk is full: free some space and start again; what was saved before is whole"


def without_orbax_logs() -> None:
    """Keep Orbax's threads from logging a trace each of a failure that is raised as an error; for the whole process."""
    logging.getLogger("absl").addFilter(_not_orbax)


def _not_orbax(record: logging.LogRecord) -> bool:
    return "/orbax/" not in record.pathname


@contextlib.contextmanager
def late_reads_unheard() -> Iterator[None]:
    """For a body that reads: no trace of reads that come back after another one has failed.

    Where one array cannot be read, Orbax closes its event loop; the others come back to it at any time later, on threads
    of their own, and Python reports each as unraisable. After a failure the filter therefore stays.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        closed = isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"
        if not (closed and unraisable.object is None):  # Python code would name an object, such as a coroutine
            before(unraisable)

    sys.unraisablehook = hook
    yield
    if sys.unraisablehook is hook:
        sys.unraisablehook = before


@contextlib.contextmanager
def explained(what: str, remedy: str | None = None) -> Iterator[None]:
    """Turn what Orbax and the file system raise into one CheckpointError that says what to do."""
    handled = sys.exception()  # what the caller was about already is not of this error
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        cause = _root(error, handled)
        number = getattr(cause, "errno", None)
        if number == errno.ENOSPC or "No space left" in str(cause) or "RESOURCE_EXHAUSTED" in str(cause):
            raise CheckpointError(f"{what}: no space left on device; {DISK_FULL}") from error
        if number in (errno.EACCES, errno.EROFS, errno.EPERM) or "PERMISSION_DENIED" in str(cause):
            remedy = "there is no write permission: choose another model_dir or change its owner"
        first = (str(cause).strip().splitlines() or [""])[0]
        if not isinstance(cause, OSError) and len(first) < 20:  # as of a KeyError, which says nothing without its name
            first = f"{type(cause).__name__} {first}".strip()
        raise CheckpointError(f"{what}: {first[:300]}" + (f"; {remedy}" if remedy else "")) from error


def _root(error: BaseException, handled: BaseException | None) -> BaseException:
    while (below := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        if below is handled:
            break
        error = below
    return error
