"""From a host batch to the argument of a Program."""

from __future__ import annotations

from typing import Any

from systolic.data import Batch, Group


def batch_tree(batch: Batch | Group) -> dict[str, Any]:
    """``features``, and ``labels`` and ``mask`` where the batch has them."""
    parts = {"features": batch.features, "labels": batch.labels, "mask": batch.mask}
    return {name: value for name, value in parts.items() if value is not None}
