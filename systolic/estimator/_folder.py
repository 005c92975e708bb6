"""A run's folder: made, checked for writing before anything is compiled, and locked by whoever trains in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator

from systolic._errors import CheckpointError, InputError


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
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 64).decode(errors="replace").strip() or "unknown"
            raise CheckpointError(
                f"{folder} is in use: process {owner} trains in it. Wait for it, stop it, or choose another model_dir"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
