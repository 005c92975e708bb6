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

_LOGGERS = ("jax._src.callback", "jax._src.debugging")


@contextlib.contextmanager
def callback_errors() -> Iterator[list[BaseException]]:
    """Collect what functions called from the device (``pure_callback``, ``io_callback``, ``debug.callback``) raise.

    The device's error holds their words only; JAX logs the exceptions themselves, which is where they are taken from,
    so that they can be raised instead of being logged.
    """
    raised: list[BaseException] = []

    def collect(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or "callback failed" not in record.getMessage():
            return True
        raised.append(error)
        return False

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(collect)
    try:
        yield raised
    finally:
        for logger in loggers:
            logger.removeFilter(collect)


def explain(engine: Engine, error: BaseException, raised: list[BaseException]) -> BaseException:
    """The error to raise for ``error``: that of a callback where it began there. Lets go of a state that is lost."""
    lost = _is_lost(engine)
    if raised and (lost or isinstance(error, jax.errors.JaxRuntimeError)):
        error = next((e for e in raised if str(e) in str(error)), raised[0])
        error.add_note("Raised in a function that model_fn calls on the host, during a training step or an evaluation.")
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
