"""What `Batches` gives: one batch, or a stack of them for one run of the device loop."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Batch(NamedTuple):
    """One batch of ``batch_size`` rows.

    Attributes:
        features: pytree of NumPy arrays [batch_size, ...] in the dtypes in which they travel.
        labels: the same, or None.
        mask: bool [batch_size], False for padding; None unless ``tail="pad"``.
        host: host-only features by name, object arrays [count, ...] of the real rows; None where there are none.
        count: real rows.
        position: what has been consumed once this batch has been: give it as ``start`` to go on after it.
    """

    features: Any
    labels: Any
    mask: np.ndarray | None
    host: dict[str, np.ndarray] | None
    count: int
    position: dict[str, Any]


class Group(NamedTuple):
    """A stack of batches for one run of the device loop.

    Attributes:
        features: pytree of NumPy arrays [stack, batch_size, ...]; the first ``count`` batches are real, the others
            repeat the first of them and are not to be looked at.
        labels: the same, or None.
        mask: bool [stack, batch_size], False for padding and in batches beyond ``count``; None unless ``tail="pad"``.
        host: host-only features by name, object arrays [rows, ...] of the real rows of all batches in order, or None.
        count: real batches.
        position: what has been consumed once all of the group has been.
        rows: real rows.
    """

    features: Any
    labels: Any
    mask: np.ndarray | None
    host: dict[str, np.ndarray] | None
    count: int
    position: dict[str, Any]
    rows: int
