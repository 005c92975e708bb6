"""Estimators: a model, what to learn and where, driven over data."""

from systolic.estimator import _metrics as metrics
from systolic.estimator._best_export import BestExport
from systolic.estimator._config import RunConfig
from systolic.estimator._estimator import Estimator
from systolic.estimator._events import read_events
from systolic.estimator._hooks import Best, EarlyStopping, Hook
from systolic.estimator._load import Loaded, load
from systolic.estimator._mode import Mode
from systolic.estimator._spec import EstimatorSpec

__all__ = [
    "Best",
    "BestExport",
    "EarlyStopping",
    "Estimator",
    "EstimatorSpec",
    "Hook",
    "Loaded",
    "Mode",
    "RunConfig",
    "load",
    "metrics",
    "read_events",
]
