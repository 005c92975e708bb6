"""Adding up what a metric's ``sums`` returned: over microbatches on the device, over batches on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from systolic.estimator._spec import Finalizer

_ON_DEVICE = {"sum": lambda x: x.sum(axis=0), "max": lambda x: x.max(axis=0), "min": lambda x: x.min(axis=0)}
_ON_HOST = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def combine(stacked: Mapping[str, Mapping[str, Any]], finalizers: Mapping[str, Finalizer]) -> dict[str, dict[str, Any]]:
    """Sums stacked along a leading dimension (one row per microbatch), combined as each metric says."""
    return {
        name: {entry: _ON_DEVICE[finalizers[name].reductions.get(entry, "sum")](x) for entry, x in sums.items()}
        for name, sums in stacked.items()
    }


class Totals:
    """Totals of a data set in float64: exact in the count, and beyond one batch's float32 sum in the value.

    Args:
        finalizers: how each metric's sums combine and what they come to, as the traced program saw them.
    """

    def __init__(self, finalizers: Mapping[str, Finalizer]) -> None:
        self._finalizers = finalizers
        self._totals: dict[str, dict[str, np.ndarray]] = {}

    def add(self, sums: Mapping[str, Mapping[str, Any]]) -> None:
        """Add one batch's sums (host or device arrays)."""
        for name, entries in sums.items():
            mine = self._totals.setdefault(name, {})
            for entry, value in entries.items():
                value = np.asarray(value, np.float64)
                reduction = self._finalizers[name].reductions.get(entry, "sum")
                mine[entry] = _ON_HOST[reduction](mine[entry], value) if entry in mine else value

    def result(self) -> dict[str, float]:
        """``loss`` and every metric over all that was added."""
        return {name: float(self._finalizers[name].finalize(totals)) for name, totals in self._totals.items()}
