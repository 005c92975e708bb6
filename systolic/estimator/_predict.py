"""Prediction: one row out per example in, in order, computed as the rows are asked for."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from systolic._errors import InputError
from systolic.data import Batches
from systolic.estimator._engine import Engine
from systolic.estimator._mode import Mode
from systolic.estimator._one_pass import one_pass


def predict(engine: Engine, input_fn: Any) -> Iterator[Any]:
    """Rows of predictions; labels in the data are ignored, host-only features come back under their names.

    The rows of a full batch come out without waiting for more input, and before an error of the source.

    Closing the generator early stops the input thread and lets go of the data.
    """
    known = engine.known_spec()
    batches = Batches(
        input_fn,
        engine.batch_sizes[Mode.PREDICT],
        tail="pad",
        epochs=1,
        spec=None if known is None else dataclasses.replace(known, labels=None),
        notices=engine.notices,
        labels_expected=False,
    )
    with contextlib.closing(batches):
        spec = batches.spec
        variables = engine.variables(spec)
        program = engine.executable("predict", spec)
        results = one_pass(batches, program, variables, engine.target, depth=engine.config.prefetch, masked=False)
        with contextlib.closing(results):
            for predictions, batch in results:
                yield from rows(predictions, batch.count, batch.host)


def rows(predictions: Any, count: int, host: dict[str, np.ndarray] | None) -> Iterator[Any]:
    """The first ``count`` rows of a batch of predictions on the host, each with its host-only features."""
    host = host or {}
    if host and not isinstance(predictions, dict):
        predictions = {"predictions": predictions}
    clash = [name for name in host if name in predictions] if isinstance(predictions, dict) else []
    if clash:
        raise InputError(
            f"predictions and host-only features share the name {clash[0]!r}; rename one of them, so that both can be returned"
        )
    for i in range(count):
        row = jax.tree.map(lambda x, i=i: x[i], predictions)
        if host:
            row |= {name: column[i] for name, column in host.items()}
        yield row
