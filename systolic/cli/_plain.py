"""JSON of arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


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
