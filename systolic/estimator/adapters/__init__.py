"""Models of four libraries, seen by the estimator as pure functions over arrays.

``as_adapter`` recognises what it is given; ``nnx``, ``linen``, ``equinox`` and ``plain`` say it outright and take the
options of each. None of the libraries is imported before a model of it is used.
"""

from __future__ import annotations

from systolic.estimator.adapters._detect import as_adapter
from systolic.estimator.adapters._equinox import EquinoxAdapter as equinox
from systolic.estimator.adapters._linen import LinenAdapter as linen
from systolic.estimator.adapters._nnx import NNXAdapter as nnx
from systolic.estimator.adapters._plain import PlainAdapter as plain
from systolic.estimator.adapters._protocol import Adapter

__all__ = ["Adapter", "as_adapter", "equinox", "linen", "nnx", "plain"]
