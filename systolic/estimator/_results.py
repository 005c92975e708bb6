"""What comes back from dispatches: read a few dispatches late, looked at for NaN, and logged where a record is due."""

from __future__ import annotations

import collections
import itertools
import math
import time
from typing import Any

import jax
import numpy as np

from systolic._errors import NonFiniteError
from systolic.estimator._dispatch import Dispatcher
from systolic.estimator._engine import Engine
from systolic.estimator._mode import Mode
from systolic.estimator._nonfinite import nonfinite_step
from systolic.estimator._run import TrainingRun
from systolic.estimator._steps import Clock
from systolic.estimator._totals import combine

Dispatch = tuple[int, int, list[Any], Any, Any, list[float] | None]
"""Step before it, steps, data positions as they are done, outputs, group and, if it is to be logged, the time when it was
done and the input-wait seconds so far."""


class Results:
    """The results of one call of training.

    Attributes:
        held: dispatches whose results have not been read, oldest first; the loop appends.

    Args:
        position: in the data, at the beginning.
        step, now: steps done and the time at the beginning, from which the first rate is taken.
    """

    def __init__(
        self, engine: Engine, run: TrainingRun, path: Dispatcher, position: dict[str, Any], step: int, now: float
    ) -> None:
        self.held: collections.deque[Dispatch] = collections.deque()
        self._engine, self._run, self._path = engine, run, path
        self._position = position  # in the data, after the last dispatch that was read
        self._rest: tuple[int, int, Any] | None = None  # the last dispatch that was read, if it was not logged
        self._undated: Dispatch | None = None  # the newest that is to be logged; until it is done, its time is a guess
        self._loss: float | None = None  # of the last dispatch that was read
        self.begin_rate(step, now, 0.0)

    def begin_rate(self, step: int, now: float, wait: float) -> None:
        """Take the next record's rates from here on."""
        self._rate = step, now, wait

    def pause(self, seconds: float) -> None:
        """Leave a pause (an evaluation, a save) out of the rates."""
        step, since, wait = self._rate
        self._rate = step, since + seconds, wait

    def newest_loss(self) -> float | None:
        """The loss of the newest dispatch that is done, without waiting for one that is not."""
        losses = (self._path.last_loss(held[3], held[1], wait=False) for held in reversed(self.held))
        return next((loss for loss in losses if loss is not None), self._loss)

    def hold_due(self, dispatch: Dispatch, wait: float) -> None:
        """Hold a dispatch that is to be logged, and see to it that the one before is done: the rates are the device's.

        The loop dispatches ahead of the device, so that the times of its dispatches tell nothing; where the device keeps
        up, the dispatch before is done already, and nothing is waited for.
        """
        self._date(wait)
        self._undated = dispatch
        self.held.append(dispatch)

    def _date(self, wait: float | None = None) -> None:
        if self._undated is None:
            return
        (_, steps, _, outputs, _, when), self._undated = self._undated, None
        assert when is not None
        if self._path.last_loss(outputs, steps, wait=False) is None:
            self._path.last_loss(outputs, steps, wait=True)
            when[:] = time.monotonic(), when[1] if wait is None else wait

    def settle(self, count: int) -> None:
        """Read the results of the ``count`` oldest dispatches: stop on a bad loss, log what is due."""
        if count < 1:
            return
        held, path = self.held, self._path
        if self._undated is not None and any(each is self._undated for each in itertools.islice(held, count)):
            self._date()
        _, steps, _, outputs, *_ = held[count - 1]
        self._loss = path.last_loss(outputs, steps, wait=True)
        if self._engine.steps.guard and math.isnan(self._loss):  # type: ignore[arg-type]
            self._explain_nonfinite()
        for _ in range(count):
            first, steps, positions, outputs, _, when = held.popleft()
            if when is not None:
                self._log(first + steps, steps, outputs, *when)
        self._position = positions[-1]
        self._rest = None if when is not None else (first + steps, steps, outputs)

    def log_rest(self, now: float, wait: float) -> None:
        """Log the last dispatch that was read, if it was not: the last steps of a run are told too."""
        rest, self._rest = self._rest, None
        if rest is not None:
            self._log(*rest, now, wait)

    def _log(self, step: int, steps: int, outputs: Any, now: float, wait: float) -> None:
        outputs = self._path.scalars(outputs, steps)
        since_step, since, waited = self._rate
        self.begin_rate(step, now, wait)
        seconds = max(now - since, 1e-9)
        kinds = self._engine.steps.finalizers[Mode.TRAIN]
        sums = combine(outputs["metrics"], kinds)
        metrics = {"loss": float(outputs["loss"].mean())}
        metrics |= {name: float(kinds[name].finalize(totals)) for name, totals in sums.items()}
        if "learning_rate" in outputs:
            metrics["learning_rate"] = float(outputs["learning_rate"][-1])
        metrics["steps_per_second"] = (step - since_step) / seconds
        metrics["input_wait"] = min(1.0, (wait - waited) / seconds)
        self._run.trained(step, metrics)

    def _explain_nonfinite(self) -> None:
        """Name the step and the first bad tensor. State and data position stand as they were before that step."""
        engine, previous = self._engine, self._position
        step = engine.step()
        clock = Clock.unpack(np.asarray(engine.state["clock"]))._replace(halted=0)  # type: ignore[index]
        engine.state["clock"] = engine.place(clock.pack())  # type: ignore[index]  # a later call may train on
        culprit = f"the loss or the gradient of step {step + 1} is not finite"
        for first, count, positions, _, group, _ in self.held:
            if first <= step < first + count:
                done = step - first
                if done and len(positions) == count:
                    previous = positions[done - 1]
                elif done:  # within a stack, whose data position is known at its ends only
                    previous = {**previous, "skip": previous.get("skip", 0) + done}
                engine.meta["position"] = previous
                state, batch = jax.device_get((engine.state, self._path.batch(group, done)))
                culprit = nonfinite_step(engine.steps, state, batch, engine.spec, step + 1)  # type: ignore[arg-type]
                break
            previous = positions[-1]
        raise NonFiniteError(
            f"{culprit}. The parameters are those before that step, and the same data come next. Look at the input, lower "
            "the learning rate or clip gradients (Estimator(clip_norm=1.0)); RunConfig(on_nonfinite='ignore') trains on"
        )
