"""Where commands write: consoles that wrap only on terminals, files with a clear error, JSON of arrays."""

from __future__ import annotations

import math
import os
import pathlib
import sys
from typing import Any

import numpy as np

from systolic._errors import InputError

_WIDE = 160  # columns where there is no terminal, so that a log or a pipe does not break lines at 80


def console() -> Any:
    """A rich console on stdout."""
    from rich.console import Console

    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console(highlight=False)
    return Console(highlight=False, width=_WIDE)


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


def unwritable(option: str, path: str, error: OSError) -> InputError:
    """The error for a file that cannot be written."""
    return InputError(
        f"{option}: cannot write {path} ({error.strerror or error}); name a file in a folder that you own"
    )


def plain(value: Any) -> Any:
    """What JSON can hold: arrays as lists; NaN and infinities, which JSON has no word for, as null.

    Example:
        >>> plain({"class": np.int32(3), "probability": np.array([0.25, np.nan])})
        {'class': 3, 'probability': [0.25, None]}
    """
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    array = np.asarray(value)
    if array.dtype.kind in "mM":
        return array.astype(str).tolist()
    if array.dtype.kind == "c":
        return {"real": plain(array.real), "imag": plain(array.imag)}
    if array.dtype.kind in "biufOSU":
        listed = array.tolist()
        return str(listed) if listed is value else plain(listed)
    return plain(array.astype(np.float32))  # bfloat16 and its like
