"""A run's folder: made, checked for writing before anything is compiled, and locked by whoever trains in it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import pathlib
from collections.abc import Iterator

from systolic._errors import CheckpointError, InputError
from systolic.estimator._process import host, is_gone

_HELD: list[list[int]] = []  # one list per lock of this process: its handle, or nothing once it is closed


def prepare(folder: pathlib.Path) -> pathlib.Path:
    """Make ``folder`` and see that it can be written.

    Raises:
        InputError: it is a file, or cannot be made or written; found before any compile.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"RunConfig(model_dir): cannot write to {folder} ({error.strerror or error}); choose a folder you own"
        ) from error
    return folder


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Hold the folder for training; the lock goes with the process, however that ends.

    Raises:
        CheckpointError: another process trains in it.
    """
    _let_go_in_children()
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    held = [handle]
    _HELD.append(held)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(_in_use(folder, os.pread(handle, 512, 0).decode(errors="replace"))) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} {host()}\n".encode(), 0)
        yield
    finally:
        if held:  # a forked child has closed it already
            _HELD.remove(held)
            os.close(held.pop())


def _in_use(folder: pathlib.Path, owner: str) -> str:
    pid, _, machine = owner.strip().partition(" ")
    if not pid.isdigit():
        return f"{folder} is in use: an unknown process trains in it. Wait for it, or choose another model_dir"
    if is_gone(int(pid), machine or host()):
        return (
            f"{folder} is in use: process {pid}, which trained in it, is gone, and a process that it started lives on "
            "and holds the lock (a data loader's worker, perhaps). Stop that one, or choose another model_dir"
        )
    where = f" on {machine}" if machine and machine != host() else ""
    return f"{folder} is in use: process {pid}{where} trains in it. Wait for it, stop it, or choose another model_dir"


@functools.cache
def _let_go_in_children() -> None:
    """Have forked children close the locks: they share the open file, and would hold it when this process is dead."""
    os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for held in _HELD:
        if held:
            os.close(held.pop())
    _HELD.clear()
