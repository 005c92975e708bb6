"""Arguments as users pass them: taken in one way everywhere, or refused by name before any work is done."""

from __future__ import annotations

import numbers
import os
import pathlib
import re
from typing import Any

from systolic._errors import InputError


def whole(argument: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """A whole number from ``least`` to ``most``, of Python or NumPy; InputError naming ``argument`` (``RunConfig(keep)``)."""
    fits = isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least
    if not fits or (most is not None and int(value) > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{argument}: saw {value!r}, wanted a whole number {limits}")
    return int(value)


def number(argument: str, value: Any, above: float, below: float, wanted: str) -> float:
    """A number between two limits that are not reached; ``wanted`` says in words what it is."""
    fits = isinstance(value, numbers.Real) and not isinstance(value, bool) and above < float(value) < below
    if not fits:
        raise InputError(f"{argument}: saw {value!r}, wanted {wanted}")
    return float(value)


def flag(argument: str, value: Any) -> bool:
    """True or False, not what merely counts as one."""
    if not isinstance(value, bool):
        raise InputError(f"{argument}: saw {value!r}, wanted True or False")
    return value


def one_of(argument: str, value: Any, choices: tuple[str, ...]) -> str:
    """One of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{argument}: saw {value!r}, wanted one of {', '.join(map(repr, choices))}")
    return value


def folder(argument: str, value: Any) -> pathlib.Path:
    """A path on a mounted file system; ``~`` is the home folder.

    InputError for what is not a path, for the empty path (it would be the working folder), and for an address such as
    ``gs://bucket/run``, which would become a local folder of that name.
    """
    try:
        path = os.fspath(value)
    except TypeError:
        path = None
    if not isinstance(path, str) or not path:
        raise InputError(f"{argument}: saw {value!r}, wanted the path of a folder, as a string or a pathlib.Path")
    if scheme := re.match(r"([a-z][a-z0-9+.-]+):/", path):
        raise InputError(
            f"{argument}: saw {path!r}; {scheme[1]} addresses are not supported, only mounted file systems: mount the bucket "
            "(gcsfuse, s3fs) and name the mounted folder, or copy the finished folder"
        )
    if "\0" in path:
        raise InputError(f"{argument}: saw {path!r}, which holds a null character; wanted the path of a folder")
    return pathlib.Path(path).expanduser()
