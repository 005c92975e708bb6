"""Whose code a Python file is: the user's, a library's, or ours."""

from __future__ import annotations

import functools
import os
import sysconfig


@functools.lru_cache(4096)
def is_users_file(path: str) -> bool:
    """Whether a Python file is the user's: neither of a library nor ours."""
    if path.startswith("<"):  # <frozen importlib>, <string>
        return False
    real = os.path.realpath(path)
    if {"site-packages", "dist-packages"}.intersection(real.split(os.sep)):
        return False
    return not is_ours(path) and not any(real.startswith(folder) for folder in _standard_library())


@functools.lru_cache(4096)
def is_ours(path: str) -> bool:
    """Whether a file is of this package, or the script that starts it, or none (``<string>``)."""
    if path.startswith("<"):
        return True
    real = os.path.realpath(path)
    return real.startswith(_PACKAGE) or real == os.path.join(_realpath("scripts"), "systolic")


_PACKAGE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "")


def _realpath(name: str) -> str:
    return os.path.realpath(sysconfig.get_paths()[name])


@functools.cache
def _standard_library() -> tuple[str, ...]:
    return tuple(os.path.join(_realpath(name), "") for name in ("stdlib", "platstdlib"))
