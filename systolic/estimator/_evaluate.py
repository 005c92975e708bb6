"""Evaluation: exact over a finite data set, whatever the batch size and the number of devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from systolic._errors import InputError
from systolic.data import Batches
from systolic.estimator._engine import Engine
from systolic.estimator._mode import Mode
from systolic.estimator._one_pass import one_pass
from systolic.estimator._signals import StopRequest
from systolic.estimator._totals import Totals


def evaluate(
    engine: Engine,
    input_fn: Any,
    steps: int | None = None,
    *,
    beat: Callable[[int], None] = lambda done: None,
    stop: StopRequest | None = None,
) -> dict[str, float] | None:
    """Metrics over one pass of ``input_fn`` (or its first ``steps`` batches).

    Args:
        beat: called with the number of batches done.
        stop: once it asks to stop, the evaluation is given up and ``None`` comes back.

    Raises:
        InputError: no example, shapes that differ from training, or a scalar loss on a batch that had to be padded.
    """
    stop = StopRequest() if stop is None else stop
    size = engine.batch_sizes[Mode.EVAL]
    with contextlib.closing(
        Batches(input_fn, size, tail="pad", epochs=1, spec=engine.known_spec(), notices=engine.notices)
    ) as batches:
        spec = stop.wait(batches.peek)
        if spec is None:
            return None
        variables = engine.variables(spec)
        program = engine.executable("eval", spec)
        totals: Totals | None = None
        results = one_pass(
            batches,
            program,
            variables,
            engine.target,
            steps=steps,
            depth=engine.config.prefetch,
            stop=stop,
        )
        with contextlib.closing(results):
            for done, (sums, batch) in enumerate(results, start=1):
                if batch.count < size and Mode.EVAL in engine.steps.scalar_loss:
                    refuse_scalar_loss(batch.count, size, done - 1)
                # How to finish a metric is known from the first call, where it runs op by op.
                totals = totals or Totals(engine.steps.finalizers[Mode.EVAL])
                totals.add(sums)
                beat(done)
        if stop:
            return None
        assert totals is not None, "Batches refuses an empty data set"
        return totals.result()


def refuse_scalar_loss(count: int, size: int, done: int) -> None:
    """The error for a mean over a batch of ``count`` real rows and padding, after ``done`` full batches."""
    remedy = f"pass steps={done} to stop before it" if done else f"set eval_batch_size to at most {count}"
    raise InputError(
        f"evaluate: model_fn returns a scalar loss, and the last batch holds {count} of {size} rows, so its mean would be "
        f"over padding too. Return one loss per example (drop the .mean()), or {remedy}"
    )
