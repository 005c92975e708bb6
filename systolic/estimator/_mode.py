"""Which of its three programs a model function is being traced for."""

from __future__ import annotations

import enum


class Mode(enum.Enum):
    """What the model function is asked for.

    Members are singletons, so ``mode is Mode.TRAIN`` is the test to write; it is decided while tracing and costs
    nothing in the compiled program.
    """

    TRAIN = "train"
    """A loss to differentiate: dropout acts, batch statistics move."""

    EVAL = "eval"
    """A loss and metrics to report: dropout is off, batch statistics are used as they are."""

    PREDICT = "predict"
    """Predictions only; ``labels`` is None."""
