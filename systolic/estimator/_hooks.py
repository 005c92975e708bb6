"""Hooks: code of the user's that the training loop calls at five moments, and the ones most runs want.

For what happens between steps on the host: stop early, watch a metric, send a message. Not for what belongs into the
step itself (a hook sees numbers that have already left the device, and its time is the loop's time).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from systolic._arguments import whole
from systolic._errors import CheckpointError, InputError
from systolic._log import logger

Direction = Literal["min", "max"]
Metrics = Mapping[str, float]


class Run(Protocol):
    """What a hook may ask of the run that calls it."""

    def stop(self, reason: str) -> None:
        """End training at the step that the hook was told of, in good order: save, call ``end``."""

    def export(self, directory: Path, batch_sizes: Sequence[int] | None, platforms: tuple[str, ...]) -> None:
        """Export the model as it stands now."""


class Hook:
    """Base of all hooks; override the methods you need.

    ``state`` and ``restore`` make a hook part of the checkpoint: a resumed run then decides as an undisturbed one.
    """

    def begin(self, run: Run) -> None:
        """Before the first step, after a checkpoint (if any) has been restored."""

    def after_steps(self, run: Run, step: int, metrics: Metrics) -> None:
        """When a training record is written: every ``RunConfig.log_every`` steps and at the run's last step.

        With ``steps_per_loop``, a record is written where a dispatch ends: the first time at or after each multiple of
        ``log_every``. Dispatches end at multiples of ``steps_per_loop``, evaluations, checkpoints and the last step: for 7
        and ``log_every=10``, records are of steps 14, 21, 35, 42, and so on, also in a resumed run. A run that a signal
        ended has no record of its last step, and will write those of an undisturbed one when it is resumed.

        ``metrics`` are those of the dispatch that ended at ``step``. The device waits while this method runs, so that
        ``run.stop`` ends training at exactly ``step``.
        """

    def after_evaluate(self, run: Run, step: int, metrics: Metrics) -> None:
        """After an evaluation at ``step``; ``metrics`` are exact over the whole evaluation set."""

    def after_save(self, run: Run, step: int) -> None:
        """After the checkpoint of ``step`` has been handed over for writing."""

    def end(self, run: Run, step: int) -> None:
        """After the last step, also when the run ends by an exception."""

    def state(self) -> Any:
        """What must survive a restart, as JSON can hold it; None for nothing."""
        return None

    def restore(self, state: Any) -> None:
        """Take back what ``state`` gave."""


def _metric(metrics: Metrics, name: str, who: str) -> float:
    if name not in metrics:
        seen = ", ".join(sorted(metrics)) or "none"
        raise InputError(
            f"{who}: metric {name!r} is not among the evaluation's: {seen}. "
            "Name one of these, or return it from model_fn in EstimatorSpec(metrics=...)."
        )
    return float(metrics[name])


class Best:
    """Follows the best value of a metric and the step it was seen at. NaN and infinity are never best.

    Args:
        metric: name among the evaluation's metrics.
        mode: "min" (a loss) or "max" (an accuracy).
        min_delta: a value must be better than the best by more than this to count.
        who: what errors call it: the hook it works for.

    Raises:
        InputError: another mode, or a ``min_delta`` below zero.

    Example:
        >>> best = Best("loss")
        >>> best.update(100, {"loss": 0.5}), best.update(200, {"loss": 0.7})
        (True, False)
        >>> best.step, best.value
        (100, 0.5)
    """

    def __init__(self, metric: str, mode: Direction = "min", min_delta: float = 0.0, who: str = "Best") -> None:
        self._who = who  # in errors: the hook that follows this best
        if mode not in ("min", "max"):
            raise InputError(f"{who}: mode is {mode!r}; it must be 'min' or 'max'")
        if not min_delta >= 0:
            raise InputError(f"{who}: min_delta is {min_delta}; it must be zero or positive")
        self.metric, self.mode, self.min_delta = metric, mode, min_delta
        self.value: float | None = None
        self.step: int | None = None

    def update(self, step: int, metrics: Metrics) -> bool:
        """Take in one evaluation; returns whether it is the new best.

        Raises:
            InputError: the metric is not among those given.
        """
        value = _metric(metrics, self.metric, self._who)
        if not math.isfinite(value):
            logger.warning("%s: %s is %s at step %d, which is never the best", self._who, self.metric, value, step)
            return False
        if self.value is not None:
            gain = self.value - value if self.mode == "min" else value - self.value
            if not gain > self.min_delta:
                return False
        self.value, self.step = value, int(step)
        return True

    def state(self) -> dict[str, Any]:
        """JSON-able; see ``restore``."""
        return {"metric": self.metric, "mode": self.mode, "value": self.value, "step": self.step}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` gave; a state of another metric or mode says nothing about this one and is left."""
        if (state["metric"], state["mode"]) == (self.metric, self.mode):
            self.value, self.step = state["value"], state["step"]


class EarlyStopping(Hook):
    """Stops the run when a metric of the evaluation has not got better for ``patience`` evaluations in a row.

    Args:
        metric: name among the evaluation's metrics.
        patience: evaluations without a gain that end the run; at least 1.
        mode: "min" (a loss) or "max" (an accuracy).
        min_delta: a gain must be more than this to count.

    A run resumed after it was stopped stops at once again, as the undisturbed run would have stayed stopped; give a
    larger ``patience`` to go on.

    Raises:
        InputError: an argument out of its range.
    """

    def __init__(self, metric: str, patience: int, mode: Direction = "min", min_delta: float = 0.0) -> None:
        self.patience = whole("EarlyStopping(patience)", patience)
        self.best = Best(metric, mode, min_delta, who=type(self).__name__)
        self.waited = 0

    def begin(self, run: Run) -> None:
        self._stop_if_due(run)

    def after_evaluate(self, run: Run, step: int, metrics: Metrics) -> None:
        self.waited = 0 if self.best.update(step, metrics) else self.waited + 1
        self._stop_if_due(run)

    def _stop_if_due(self, run: Run) -> None:
        if self.waited < self.patience:
            return
        best = self.best
        seen = "was never finite" if best.value is None else f"was best at step {best.step} ({best.value:.6g})"
        run.stop(f"early stopping: {best.metric} {seen} and has not got better for {self.waited} evaluations")

    def state(self) -> dict[str, Any]:
        return {"best": self.best.state(), "waited": self.waited}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.best.restore(state["best"])
        same = (state["best"]["metric"], state["best"]["mode"]) == (self.best.metric, self.best.mode)
        self.waited = state["waited"] if same else 0


class HookList(Hook):
    """Several hooks called as one, in the order given; their states are saved and restored together.

    Raises:
        InputError: something in the list is not a ``Hook``.
    """

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self.hooks = tuple(hooks)
        for number, hook in enumerate(self.hooks):
            if not isinstance(hook, Hook):
                raise InputError(
                    f"hooks[{number}] is {hook!r}; wanted an instance of a class derived from Hook"
                    + (" (this is the class: call it)" if isinstance(hook, type) else "")
                )

    def begin(self, run: Run) -> None:
        for hook in self.hooks:
            hook.begin(run)

    def after_steps(self, run: Run, step: int, metrics: Metrics) -> None:
        for hook in self.hooks:
            hook.after_steps(run, step, metrics)

    def after_evaluate(self, run: Run, step: int, metrics: Metrics) -> None:
        for hook in self.hooks:
            hook.after_evaluate(run, step, metrics)

    def after_save(self, run: Run, step: int) -> None:
        for hook in self.hooks:
            hook.after_save(run, step)

    def end(self, run: Run, step: int) -> None:
        """Every hook's ``end`` is called, also when one of them raises; the first error is raised after the last."""
        errors = []
        for hook in self.hooks:
            try:
                hook.end(run, step)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def state(self) -> list[list[Any]]:
        """One [class name, state] per hook."""
        return [[type(hook).__name__, hook.state()] for hook in self.hooks]

    def restore(self, state: Iterable[tuple[str, Any]]) -> None:
        """Give each hook the first unused state of its class; a hook that is new to the run starts afresh.

        Raises:
            CheckpointError: a hook cannot read the state that was saved for its class.
        """
        left = [(name, saved) for name, saved in state]
        for hook in self.hooks:
            name = type(hook).__name__
            found = next((entry for entry in left if entry[0] == name), None)
            if found is None:
                continue
            left.remove(found)
            if found[1] is None:
                continue
            try:
                hook.restore(found[1])
            except (KeyError, TypeError, ValueError) as error:
                raise CheckpointError(
                    f"hook {name}: its saved state {found[1]!r} cannot be restored ({type(error).__name__}: {error}). "
                    "Has its class changed since the checkpoint was written? Remove the hook, or use a new run folder."
                ) from error
