"""A folder for one run of the compiler, which goes away with its owner however that ends.

A process that is killed runs no clean-up of its own, and Python's answer to SIGTERM is to end without any. So a shell
waits at the other end of a pipe: when its owner ends, by whatever signal, the pipe closes and the shell removes the
folder. (The compiler's process is ended by the kernel, see ``_child.py``.) What a loss of power leaves behind, the next
compile sweeps away.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

from systolic.program._errors import CompilerCrash

_FULL = (errno.ENOSPC, errno.EDQUOT)

# The compiler may write for another moment while the kernel ends it: so more than one try.
_JANITOR = 'read -r end; for try in 1 2 3 4 5; do rm -rf -- "$1"; [ -e "$1" ] || exit 0; sleep 0.2; done'


@contextlib.contextmanager
def job_folder(program: str) -> Iterator[pathlib.Path]:
    """A new folder under the system's folder for temporary files (``$TMPDIR``), without white space in its path.

    Raises:
        CompilerCrash: that disk is full, before or while the body ran.
    """
    try:
        base = tempfile.gettempdir()
    except FileNotFoundError as error:  # Python tries to write to each candidate, and found none that takes a file
        raise CompilerCrash(
            f"program {program!r} was not compiled: no folder for temporary files can be written ({error.args[-1]}); free "
            "some space, or set TMPDIR to a folder on a disk that has some"
        ) from error
    if len(base.split()) != 1:  # libtpu splits its arguments at white space
        base = "/tmp"
    sweep(pathlib.Path(base))
    try:
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-", dir=base))
        with _janitor(folder):
            yield folder
    except OSError as error:
        if error.errno in _FULL:
            raise CompilerCrash(full_disk(program, pathlib.Path(base))) from error
        raise


def sweep(base: pathlib.Path) -> None:
    """Remove the folders of owners that are no more, among those whose process numbers mean the same as ours."""
    for folder in base.glob(f"{_prefix()}*-*"):
        owner = folder.name.removeprefix(_prefix()).partition("-")[0]
        if owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            shutil.rmtree(folder, ignore_errors=True)  # another user's stays


@functools.cache
def _prefix() -> str:
    """Of the folders of this kernel and process namespace: a disk may be shared with other machines and containers."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text()
    namespace = os.readlink("/proc/self/ns/pid")
    return f"systolic-compile-{hashlib.sha256((boot + namespace).encode()).hexdigest()[:8]}-"


def is_full(folder: pathlib.Path) -> bool:
    """Whether the disk of ``folder`` takes no more: found out by writing, since quotas do not show in the free space."""
    probe = folder / "probe"
    try:
        probe.write_bytes(bytes(1 << 16))
        return False
    except OSError as error:
        return error.errno in _FULL
    finally:
        probe.unlink(missing_ok=True)


def full_disk(program: str, folder: pathlib.Path) -> str:
    """What to say about a full disk."""
    free = shutil.disk_usage(folder).free
    return (
        f"program {program!r} was not compiled: the disk of {folder} is full ({free >> 20} MiB free); free some space "
        "there, or set TMPDIR to a folder on another disk"
    )


@contextlib.contextmanager
def _janitor(folder: pathlib.Path) -> Iterator[None]:
    shell = subprocess.Popen(
        ["/bin/sh", "-c", _JANITOR, "sh", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # out of reach of the terminal's Ctrl-C
    )
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        assert shell.stdin is not None
        shell.stdin.close()
        shell.wait()
