"""One call for training: alone on the Estimator and its folder, from the last checkpoint to the last save."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from systolic.estimator._engine import Engine
from systolic.estimator._evaluate import evaluate
from systolic.estimator._hooks import Hook
from systolic.estimator._run import TrainingRun, alone
from systolic.estimator._signals import stop_on_signal
from systolic.estimator._train import TrainLoop


class Evaluation(NamedTuple):
    """What is evaluated beside training: data, steps between evaluations, batches of each (``None``: all)."""

    input_fn: Any
    every: int
    steps: int | None


def train(
    engine: Engine,
    input_fn: Any,
    until: int | Callable[[int], int] | None,
    epochs: int | None = None,
    *,
    restart_data: bool,
    hooks: Sequence[Hook],
    evaluation: Evaluation | None = None,
) -> dict[str, float]:
    """Train and save; returns the metrics of the last evaluation of the run, ``{}`` where there was none.

    until: the last step, or a function of the step at which training begins; epochs: passes over the data, beyond those of
    earlier calls. With neither, it goes on to the end of the data.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(alone(engine))
        began = engine.peek_checkpoint() or engine.step()
        if restart_data and began:
            engine.ensure_state()
            engine.meta["position"], engine.epochs = None, 0
        if epochs is not None:
            epochs = engine.epochs + int(epochs)
        if callable(until):
            until = until(began)
        last = None if until is None else int(until)
        stop = stack.enter_context(stop_on_signal())
        run = stack.enter_context(TrainingRun(engine, hooks, last))
        stack.push(functools.partial(_count_epochs, engine, epochs))
        if engine.state is None and began == 0:
            stack.push(functools.partial(_forget, engine))

        def evaluated() -> dict[str, float] | None:
            assert evaluation is not None
            with run.phase("evaluating"):
                return evaluate(
                    engine, evaluation.input_fn, evaluation.steps, beat=lambda _: run.beat("evaluating"), stop=stop
                )

        TrainLoop(
            engine,
            input_fn,
            run,
            stop,
            until=last,
            epochs=epochs,
            evaluate=None if evaluation is None else evaluated,
            eval_every=None if evaluation is None else evaluation.every,
        )()
        if engine.checkpoints is not None:
            with run.phase("saving"):
                engine.checkpoints.wait()
        if stop:
            stop.finish()
    if stop:  # asked for while the summary was being written
        stop.finish()
    return dict(engine.meta.get("metrics") or {})


def _count_epochs(engine: Engine, wanted: int | None, kind: type[BaseException] | None, *_: Any) -> None:
    """What the calls so far come to, as far as they came: a later call for epochs first finishes the one begun."""
    if wanted is not None and kind is None:
        engine.epochs = wanted
        return
    position = engine.position()
    engine.epochs = 0 if position is None else position["epoch"] + (position["row"] > 0 or position["element"] > 0)


def _forget(engine: Engine, kind: type[BaseException] | None, *_: Any) -> None:
    """After a first call that failed before its first step: the next may bring other data."""
    if kind is not None and engine.position() is None:
        engine.forget()
