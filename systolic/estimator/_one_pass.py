"""One pass over a data set by a compiled Program: results in order, as soon as they are there.

Batches are put on the device ahead of their use, and calls are dispatched ahead of the results that the host reads.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from systolic._errors import InputError
from systolic._log import logger
from systolic.data import Batch, Batches, prefetch
from systolic.estimator._dispatch import AHEAD, batch_tree
from systolic.estimator._failure import callback_errors, cause
from systolic.estimator._signals import StopRequest
from systolic.target import Target


def one_pass(
    batches: Batches,
    program: Callable[[Any, Any], Any],
    variables: Any,
    target: Target,
    *,
    steps: int | None = None,
    depth: int = 2,
    masked: bool = True,
    stop: StopRequest | None = None,
) -> Generator[tuple[Any, Batch]]:
    """``program(variables, batch)`` for each batch: pairs of its result on the host and the batch as it was read.

    A result goes out before the input is waited for, as a feed may wait for its answers, and before an error of a later
    batch. Closing the iterator early stops the input thread and lets go of the data.

    Args:
        batches: closed at the end, on the thread that reads them, which may be one that was left behind.
        steps: take at most so many.
        depth: batches put on the target ahead.
        masked: whether the Program takes the mask of real rows.
        stop: ends the pass once it asks to.

    Raises:
        InputError: training took the variables over in between.
        Exception: what the source or ``program`` raises; what a function of the user's raises that the Program calls on the
            host, in place of the device's error.
    """
    stop = StopRequest() if stop is None else stop
    sharding = NamedSharding(target.mesh({"data": -1}), PartitionSpec("data"))
    held: collections.deque[tuple[Any, Batch]] = collections.deque()

    def put(batch: Batch) -> tuple[Any, Batch]:
        tree = batch_tree(batch if masked else batch._replace(mask=None))
        return jax.device_put(tree, sharding), batch

    first = jax.tree.leaves(variables)[:1]  # training takes all of them over at once

    def call(batch: Any) -> Any:
        if first and first[0].is_deleted():
            raise InputError(
                "the model was trained on while it was being evaluated or its predictions were being read, and the "
                "parameters that they come from are gone; go through the data to its end first, or begin again"
            )
        return program(variables, batch)

    def read() -> Iterator[Batch]:
        with contextlib.closing(batches):
            yield from itertools.islice(batches, steps)

    def oldest() -> tuple[Any, Batch]:
        result, batch = held.popleft()
        return jax.device_get(result), batch

    with callback_errors() as raised, contextlib.closing(batches), prefetch(read(), put, depth=depth) as feed:
        failure: BaseException | None = None
        items = stop.items(feed)
        try:
            while True:
                while held and (len(held) > AHEAD or not feed.ready):
                    yield oldest()
                try:
                    item = next(items, None)
                    if item is None:
                        break
                    held.append((call(item[0]), item[1]))
                except Exception as error:
                    failure = error
                    break
            while held and not stop:
                yield oldest()
        except jax.errors.JaxRuntimeError as error:  # of a result: what comes after it is not wanted
            failure = error
        finally:
            if failure is None and raised:
                logger.error("a function that a program calls on the host raised", exc_info=raised[0])
    if failure is not None:
        raise cause(failure, raised)
