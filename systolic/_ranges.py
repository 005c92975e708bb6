"""Whether values survive a cast to a smaller type: one rule for all that comes in, batches and arguments alike."""

from __future__ import annotations

import numpy as np


def first_misfit(array: np.ndarray, wanted: np.dtype) -> tuple[int, ...] | None:
    """Index of the first element that ``wanted`` cannot hold; ``None`` where it holds them all.

    An integer must lie within the limits of the type; a finite float must not become infinite. Rounding, underflow, NaN
    and infinities pass.

    Example:
        >>> first_misfit(np.array([1, 2**40]), np.dtype("int32"))
        (1,)
        >>> first_misfit(np.array([[0.1, np.inf], [1e300, 1e300]]), np.dtype("float32"))
        (1, 0)
    """
    if wanted.kind in "iu":
        limits = np.iinfo(wanted)
        if not array.size or (limits.min <= int(array.min()) and int(array.max()) <= limits.max):
            return None
        lost = (array < limits.min) | (array > limits.max)
    else:
        try:
            with np.errstate(over="raise", under="ignore", invalid="ignore"):
                array.astype(wanted)
            return None
        except FloatingPointError:
            with np.errstate(over="ignore"):
                lost = np.isfinite(array) & ~np.isfinite(array.astype(wanted))
    return tuple(map(int, np.argwhere(lost)[0]))


def limits_of(dtype: np.dtype) -> str:
    """What a type holds, in words: ``"-2147483648 to 2147483647"``.

    Example:
        >>> limits_of(np.dtype("uint32")), limits_of(np.dtype("float32"))
        ('0 to 4294967295', '-3.4e+38 to 3.4e+38')
    """
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return f"{info.min} to {info.max}"
    largest = float(np.finfo(dtype).max)
    return f"{-largest:.1e} to {largest:.1e}"
