"""What a failed step leaves behind: the exception of the user's that began it, and a state that may be lost.

A step takes over the arrays of the state (they are donated). When it fails on the device, or in a Python function that
it calls on the host, its results are not there and its arguments are gone: nothing is left in memory to go on from.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import jax

from systolic.estimator._engine import Engine
from systolic.program import out_of_memory

_LOGGERS = ("jax._src.callback", "jax._src.debugging")


@contextlib.contextmanager
def callback_errors() -> Iterator[list[BaseException]]:
    """Collect what functions called from the device (``pure_callback``, ``io_callback``, ``debug.callback``) raise.

    The device's error holds their words only; JAX logs the exceptions themselves, which is where they are taken from,
    so that they can be raised instead of being logged.
    """
    collector = _Collector()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(collector)
    try:
        yield collector.raised
    finally:
        for logger in loggers:
            logger.removeFilter(collector)


class _Collector(logging.Filter):
    """Takes what callbacks raise out of a log, for each collector there is: which thread asked for a call is not told."""

    def __init__(self) -> None:
        super().__init__()
        self.raised: list[BaseException] = []

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or "callback failed" not in record.getMessage():
            return True
        for each in logging.getLogger(record.name).filters:
            if isinstance(each, _Collector):
                each.raised.append(error)
        return False


def cause(error: BaseException, raised: list[BaseException], lost: bool = False) -> BaseException:
    """The error to raise for ``error``: the user's own, where a callback raised it and the device tells of that.

    lost: the state is lost, for which a callback is to blame even where the error speaks of something else.
    """
    if isinstance(error, jax.errors.JaxRuntimeError) and (told := out_of_memory(error, "the model")):
        told.__cause__ = error
        return told
    if not raised or error in raised or not (lost or isinstance(error, jax.errors.JaxRuntimeError)):
        return error
    own = next((e for e in raised if str(e) in str(error)), raised[0])
    own.add_note("Raised in a function that model_fn calls on the host.")
    return own


def explain(engine: Engine, error: BaseException, raised: list[BaseException]) -> BaseException:
    """The error to raise for ``error`` in training: its :func:`cause`. Lets go of a state that is lost."""
    lost = _is_lost(engine)
    error = cause(error, raised, lost)
    if lost:
        engine.state, engine.meta = None, {}
        step = engine.peek_checkpoint()
        error.add_note(
            "The step that failed had taken over the state in memory, which is lost. "
            + (
                f"The next call goes on from step {step}, the latest checkpoint in {engine.config.model_dir}."
                if step is not None
                else "There is no checkpoint to go back to: the next training begins anew, at step 0. "
                "RunConfig(model_dir=..., checkpoint_every=...) keeps checkpoints."
            )
        )
    return error


def _is_lost(engine: Engine) -> bool:
    try:
        leaves = jax.tree.leaves(engine.state)
        jax.block_until_ready(leaves)
    except RuntimeError:  # of a step that failed, or of one that was to use what that step had taken over
        return True
    return any(leaf.is_deleted() for leaf in leaves)
