"""Models of four libraries, seen by the estimator as pure functions over arrays."""

from __future__ import annotations

from systolic.estimator.adapters._nnx import NNXAdapter
from systolic.estimator.adapters._protocol import Adapter

__all__ = ["Adapter", "NNXAdapter"]
