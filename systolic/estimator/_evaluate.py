"""Evaluation: exact over a finite data set, whatever the batch size and the number of devices."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from systolic._errors import InputError
from systolic.data import Batch, Batches, ElementSpec, prefetch
from systolic.estimator._dispatch import AHEAD, batch_tree
from systolic.estimator._engine import Engine
from systolic.estimator._mode import Mode
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
    batches = Batches(input_fn, size, tail="pad", epochs=1, spec=engine.known_spec(), notices=engine.notices)
    spec = stop.wait(batches.peek)
    if spec is None:
        batches.close()
        return None
    variables = engine.variables(spec)
    program = engine.executable("eval", spec)
    totals: Totals | None = None
    held: collections.deque[Any] = collections.deque()
    done = 0
    with (
        contextlib.closing(batches),
        prefetch(limited(batches, steps), put_rows(engine), depth=engine.config.prefetch) as feed,
    ):
        for batch, count, _ in stop.items(feed):
            sums = program(variables, batch)
            if count < size and Mode.EVAL in engine.steps.scalar_loss:
                refuse_scalar_loss(count, size, done)
            totals = totals or Totals(engine.steps.finalizers[Mode.EVAL])
            held.append(sums)
            if len(held) > AHEAD:
                totals.add(jax.device_get(held.popleft()))
            done += 1
            beat(done)
    if stop:
        return None
    assert totals is not None, "Batches refuses an empty data set"
    for sums in held:
        totals.add(jax.device_get(sums))
    return totals.result()


def refuse_scalar_loss(count: int, size: int, done: int) -> None:
    """The error for a mean over a batch of ``count`` real rows and padding, after ``done`` full batches."""
    remedy = f"pass steps={done} to stop before it" if done else f"set eval_batch_size to at most {count}"
    raise InputError(
        f"evaluate: model_fn returns a scalar loss, and the last batch holds {count} of {size} rows, so its mean would be "
        f"over padding too. Return one loss per example (drop the .mean()), or {remedy}"
    )


def put_rows(engine: Engine, masked: bool = True) -> Callable[[Batch], tuple[Any, int, Batch]]:
    """Host batch to (batch on the device, number of real rows, host batch)."""
    sharding = NamedSharding(engine.target.mesh({"data": -1}), PartitionSpec("data"))

    def put(batch: Batch) -> tuple[Any, int, Batch]:
        tree = batch_tree(batch if masked else batch._replace(mask=None))
        # Copied and complete before the next batch is read: a generator may use its buffers again.
        return jax.block_until_ready(jax.device_put(tree, sharding, may_alias=False)), batch.count, batch

    return put


def limited(batches: Any, steps: int | None) -> Any:
    """At most ``steps`` batches; closed on the thread that reads them, which may be one that was left behind."""
    with contextlib.closing(batches):
        for done, batch in enumerate(batches, start=1):
            yield batch
            if done == steps:
                return


def features_only(spec: ElementSpec | None) -> ElementSpec | None:
    """The spec without labels: what prediction needs."""
    return None if spec is None else ElementSpec(spec.features, None)
