"""A run's folder: made, checked for writing before anything is compiled, and locked by whoever trains in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import pathlib
from collections.abc import Iterator

from systolic._errors import CheckpointError, InputError
from systolic._log import logger
from systolic.estimator._process import host, is_gone

_LOCK = ".lock"


def prepare(folder: pathlib.Path) -> pathlib.Path:
    """Make ``folder`` and see that it can be written.

    Raises:
        InputError: it is a file, the disk is full, or it cannot be made or written; found before any compile.
    """
    probe = folder / f".write-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints").mkdir(exist_ok=True)
        try:
            probe.write_bytes(b"\0")  # an empty file fits on a full disk
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    return folder


def unwritable(path: pathlib.Path, error: OSError, argument: str = "RunConfig(model_dir)") -> InputError:
    """The error for who cannot write ``path``, which came from ``argument``: why, and what to do."""
    remedy = "choose a folder you own"
    blocking = next((p for p in (path, *path.parents) if os.path.exists(p) and not os.path.isdir(p)), None)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "the disk is full: free some space, or choose another folder"
    elif error.errno in (errno.ENOTDIR, errno.EEXIST) and blocking is not None:
        remedy = f"{blocking} is a file where a folder is wanted: remove it, or choose a folder you own"
    elif error.errno == errno.ENAMETOOLONG:
        remedy = "choose a shorter name"
    elif error.errno == errno.EISDIR:
        remedy = f"{path} is a folder where a file is wanted: remove it, or choose another folder"
    return InputError(f"{argument}: cannot write to {path} ({error.strerror or error}); {remedy}")


class _Lock:
    """An exclusive lock on a folder, by a file in it. It goes with the process, however that ends."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.path = folder, folder / _LOCK
        self.handle: int | None = self._acquire()

    def _acquire(self) -> int:
        while True:
            try:
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                raise unwritable(self.path, error) from error
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.stands(handle):  # else it was removed meanwhile, and another may hold the one that is there now
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, f"{os.getpid()} {host()}\n".encode(), 0)
                    return handle
            except BlockingIOError:
                owner = os.pread(handle, 512, 0).decode(errors="replace")
                os.close(handle)
                raise CheckpointError(_in_use(self.folder, owner)) from None
            except OSError as error:
                os.close(handle)
                raise unwritable(self.path, error) from error
            os.close(handle)

    def stands(self, handle: int) -> bool:
        """Whether ``handle`` is of the file that lies at the lock's path."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(handle))
        except FileNotFoundError:
            return False

    def renew(self) -> None:
        """Take the lock again where somebody has removed its file."""
        if self.handle is None or self.stands(self.handle):
            return
        if not self.folder.is_dir():
            raise CheckpointError(
                f"{self.folder} was removed while training in it, and the checkpoints with it; nothing was saved now. "
                "Start again, and leave the folder where it is"
            )
        removed, self.handle = self.handle, self._acquire()
        os.close(removed)
        logger.warning("%s was removed while training; it has been made again", self.path)

    def release(self) -> None:
        """Let go; a second call does nothing."""
        handle, self.handle = self.handle, None
        if handle is not None:
            os.close(handle)


_HELD: list[_Lock] = []  # the locks of this process


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Hold the folder for training.

    Raises:
        CheckpointError: another process trains in it.
        InputError: the lock's file cannot be written.
    """
    _let_go_in_children()
    lock = _Lock(folder)
    _HELD.append(lock)
    try:
        yield
    finally:
        lock.release()
        if lock in _HELD:  # a forked child holds none any more
            _HELD.remove(lock)


def keep_locked(folder: pathlib.Path) -> None:
    """To be called before each save: the lock's file is there still, or is made again.

    Raises:
        CheckpointError: the folder is gone, or another process has begun to train in it.
    """
    for lock in _HELD:
        if lock.folder == folder:
            lock.renew()


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
    for lock in _HELD:
        lock.release()
    _HELD.clear()
