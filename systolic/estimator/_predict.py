"""Prediction: one row out per example in, in order, computed as the rows are asked for."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from systolic._errors import InputError
from systolic.data import Batches, prefetch
from systolic.estimator._dispatch import AHEAD
from systolic.estimator._engine import Engine
from systolic.estimator._evaluate import features_only, limited, put_rows
from systolic.estimator._mode import Mode


def predict(engine: Engine, input_fn: Any) -> Iterator[Any]:
    """Rows of predictions; labels in the data are ignored, host-only features come back under their names.

    The rows of a full batch come out without waiting for more input, and before an error of the source.

    Closing the generator early stops the input thread and lets go of the data.
    """
    batches = Batches(
        input_fn,
        engine.batch_sizes[Mode.PREDICT],
        tail="pad",
        epochs=1,
        spec=features_only(engine.known_spec()),
        notices=engine.notices,
        labels_expected=False,
    )
    spec = batches.spec
    variables = engine.variables(spec)
    program = engine.executable("predict", spec)
    held: collections.deque[Any] = collections.deque()
    with (
        contextlib.closing(batches),
        prefetch(limited(batches, None), put_rows(engine, masked=False), depth=engine.config.prefetch) as feed,
    ):
        while True:
            # What is computed goes out before the input is waited for: a feed may wait for its answers.
            while held and (len(held) > AHEAD or not feed.ready):
                yield from rows(*held.popleft())
            try:
                batch, count, host = next(feed)
            except StopIteration:
                break
            except Exception:
                while held:  # whole batches that came before the source failed
                    yield from rows(*held.popleft())
                raise
            if jax.tree.leaves(variables)[0].is_deleted():
                raise InputError(
                    "predict: the model was trained on while its predictions were being read, and the parameters they "
                    "come from are gone; read them to the end first, or call predict again"
                )
            held.append((program(variables, batch), count, host.host))
        while held:
            yield from rows(*held.popleft())


def rows(predictions: Any, count: int, host: dict[str, np.ndarray] | None = None) -> Iterator[Any]:
    """The first ``count`` rows of a batch of predictions, each with its host-only features."""
    predictions = jax.device_get(predictions)
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
