"""JAX's persistent compilation cache: on from the first program, and heard when it hits or misses.

JAX stores nothing by default, and once told a folder still skips whatever compiled in under a second; so every start
of a many-program job compiles again. Here it is on for all programs, whatever their size, unless the user has set a
folder of their own or ``SYSTOLIC_CACHE=off``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import stat
from collections.abc import Iterator

import jax

from systolic._errors import InputError
from systolic._log import logger


def cache_dir() -> pathlib.Path:
    """Where compiled programs are kept: ``$SYSTOLIC_CACHE_DIR``, else ``$XDG_CACHE_HOME/systolic``, else ``~/.cache/systolic``."""
    if named := os.environ.get("SYSTOLIC_CACHE_DIR"):
        return pathlib.Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(base) if base else pathlib.Path.home() / ".cache") / "systolic"


def caches_wanted() -> bool:
    """Whether programs may be kept on disk: unless ``SYSTOLIC_CACHE=off``."""
    return os.environ.get("SYSTOLIC_CACHE", "on").lower() not in ("off", "0", "false")


def cache_limit() -> int:
    """Bytes that each of the two caches (JAX's and that of described compiles) may fill: ``$SYSTOLIC_CACHE_GIB``, else 5 GiB.

    Raises:
        InputError: the variable is no number above 0.
    """
    said = os.environ.get("SYSTOLIC_CACHE_GIB") or "5"
    try:
        limit = float(said) * 2**30
        if not 0 < limit < float("inf"):
            raise ValueError
    except ValueError:
        raise InputError(
            f"SYSTOLIC_CACHE_GIB: saw {said!r}, wanted GiB above 0 for each compile cache; SYSTOLIC_CACHE=off turns them off"
        ) from None
    return int(limit)


def prune(folder: pathlib.Path, limit: int) -> int:
    """Remove the files of ``folder`` that were used longest ago until the rest fills ``limit`` bytes; returns how many.

    Safe beside other processes that read, write and prune: a file that is gone is a miss for them, and gone for all. Use
    is the later of reading and writing, as far as the file system notes the former (to a day, as Linux mounts them).
    """
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another process prunes, too
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(found.st_mode):
                    files.append((max(found.st_atime, found.st_mtime), found.st_size, entry.path))
    total, removed = sum(size for _, size, _ in files), 0
    for _, size, path in sorted(files):
        if total <= limit:
            break
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        total -= size
        removed += 1
    return removed


def enable() -> bool:
    """Turn JAX's persistent cache on for this process; returns whether it is on."""
    if not caches_wanted():
        return False
    if jax.config.jax_compilation_cache_dir:
        return jax.config.jax_enable_compilation_cache
    folder = cache_dir() / "jax"
    if (problem := _unwritable(folder)) is not None:
        _warn_once(str(folder), problem)
        return False
    try:
        prune(folder, cache_limit())
    except OSError as error:  # another user's files, say: too large a cache is still a cache
        logger.warning("compile cache: cannot prune %s (%s)", folder, error)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # JAX decides once per process whether a cache is used, at its first compile, which may lie behind us.
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()
    return True


def _unwritable(folder: pathlib.Path) -> str | None:
    """Why entries cannot be written to ``folder``, which is made where it is not there; ``None`` where they can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return str(error)
    # An existing folder may be another user's, or on a read-only file system: JAX would then warn at every compile.
    return None if os.access(folder, os.W_OK | os.X_OK) else "it is read-only"


@functools.cache
def _warn_once(folder: str, problem: str) -> None:
    """A job compiles many programs; one warning for each folder and problem is enough."""
    logger.warning(
        "compile cache is off: cannot write to %s (%s); set SYSTOLIC_CACHE_DIR to a folder you own", folder, problem
    )


class CacheEvents:
    """Counts of cache events heard while one compile ran."""

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0

    def outcome(self, enabled: bool) -> str:
        """``hit`` | ``miss`` | ``off``."""
        if not enabled:
            return "off"
        return "hit" if self.hits and not self.misses else "miss"


@contextlib.contextmanager
def listen() -> Iterator[CacheEvents]:
    """Count the persistent cache's hits and misses in the body."""
    events = CacheEvents()

    def hear(event: str, **_: object) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            events.hits += 1
        elif event == "/jax/compilation_cache/cache_misses":
            events.misses += 1

    jax.monitoring.register_event_listener(hear)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_listener(hear)
