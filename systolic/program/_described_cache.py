"""A folder of compile results: written whole or not at all, checked when read, bounded in size.

An entry is a folder named by its key. It is filled under another name and then renamed, so a reader sees all of it or
nothing; a checksum catches what a crash or a full disk left behind. The entry used longest ago goes first, by a rename,
so that a reader in another process meets all of it or none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from systolic._log import logger
from systolic.program._jax_cache import cache_limit

_STALE = 24 * 3600.0
_INDEX = "entry.json"


class DescribedCache:
    """Entries of ``(meta, files)`` under ``root``; safe for several processes at once.

    Args:
        root: folder; made when the first entry is written.
        limit: bytes over all entries; ``None``: that of ``$SYSTOLIC_CACHE_GIB``.
    """

    def __init__(self, root: pathlib.Path, limit: int | None = None) -> None:
        self.root = root
        self.limit = cache_limit() if limit is None else limit

    def load(self, key: str) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        """The entry of ``key``, or ``None`` when there is none or it is damaged (then it is removed)."""
        folder = self.root / key
        try:
            index = json.loads((folder / _INDEX).read_text())
            files = {name: (folder / name).read_bytes() for name in index["files"]}
            if index["sha256"] != _digest(index["meta"], files):
                raise ValueError("checksum")
        except FileNotFoundError:
            if folder.exists():
                self._drop(folder)
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("compile cache: entry %s is damaged (%s) and is rebuilt", key[:12], error)
            self._drop(folder)
            return None
        with contextlib.suppress(OSError):  # a cache that cannot be written can still be read
            os.utime(folder)
        return index["meta"], files

    def store(self, key: str, meta: Mapping[str, Any], files: Mapping[str, bytes]) -> bool:
        """Write an entry; returns False, with a warning, where the folder cannot be written or the entry is too large."""
        size = sum(map(len, files.values()))
        if size > self.limit:
            logger.warning(
                "compile cache: an entry of %.1f MiB is over the limit of %.1f MiB (SYSTOLIC_CACHE_GIB) and is not kept",
                size / 2**20,
                self.limit / 2**20,
            )
            return False
        partial: pathlib.Path | None = None
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            partial = pathlib.Path(tempfile.mkdtemp(prefix=".partial-", dir=self.root))
            for name, data in files.items():
                (partial / name).write_bytes(data)
            index = {"meta": meta, "files": sorted(files), "sha256": _digest(meta, files)}
            (partial / _INDEX).write_text(json.dumps(index))
            self._publish(partial, self.root / key)
        except OSError as error:
            logger.warning("compile cache: cannot write to %s (%s); the result is not kept", self.root, error)
            if partial is not None:
                shutil.rmtree(partial, ignore_errors=True)
            return False
        try:
            self._evict(keep=key)
        except OSError as error:  # the entry is there, and the next writer will try again
            logger.warning("compile cache: cannot prune %s (%s)", self.root, error)
        return True

    def _publish(self, partial: pathlib.Path, final: pathlib.Path) -> None:
        try:
            os.rename(partial, final)
        except OSError:
            if not final.exists():
                raise
            shutil.rmtree(partial, ignore_errors=True)  # another process compiled the same program and was first

    def _evict(self, keep: str) -> None:
        entries = []
        for folder in self.root.iterdir():
            try:
                age = time.time() - folder.stat().st_mtime
                if folder.name.startswith("."):
                    if age > _STALE:
                        shutil.rmtree(folder, ignore_errors=True)
                    continue
                entries.append((age, sum(file.stat().st_size for file in folder.iterdir()), folder))
            except (FileNotFoundError, NotADirectoryError):  # removed by another process in between; no entry of ours
                continue
        total = sum(size for _, size, _ in entries)
        for _, size, folder in sorted(entries, key=lambda entry: -entry[0]):
            if total <= self.limit:
                return
            if folder.name != keep:
                self._drop(folder)
                total -= size

    def _drop(self, folder: pathlib.Path) -> None:
        """Remove an entry in one step for readers, then from the disk."""
        try:
            grave = pathlib.Path(tempfile.mkdtemp(prefix=".dropped-", dir=self.root))
        except OSError:
            return  # the cache is read-only: the next reader will meet the same check
        with contextlib.suppress(OSError):  # another process did it
            os.rename(folder, grave / "entry")
        shutil.rmtree(grave, ignore_errors=True)


def _digest(meta: Any, files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for name in sorted(files):
        digest.update(f"{name}:{len(files[name])}:".encode())
        digest.update(files[name])
    return digest.hexdigest()
