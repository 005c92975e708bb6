"""One training run as a person and its hooks see it: progress, records, watchdog, summary."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import math
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from systolic._errors import InputError
from systolic._log import logger
from systolic.estimator._engine import Engine
from systolic.estimator._events import EventLog
from systolic.estimator._export import export
from systolic.estimator._folder import locked, prepare, unwritable
from systolic.estimator._hooks import Hook, HookList
from systolic.estimator._mode import Mode
from systolic.estimator._progress import Progress
from systolic.estimator._summary import write_summary
from systolic.estimator._watchdog import Watchdog


@contextlib.contextmanager
def alone(engine: Engine) -> Iterator[None]:
    """Hold the Estimator and its folder, where it has one, for one training; left when the last save is whole.

    Raises:
        InputError: another thread, or a hook's caller, trains this Estimator; or the folder cannot be written.
        CheckpointError: another process, or another Estimator, trains in the folder.
    """
    if not engine.training.acquire(blocking=False):
        raise InputError(
            "train: this Estimator is in training already, in another thread or in the run whose hook called this; wait "
            "for that to end, or make an Estimator for each thread"
        )
    engine.trainer = threading.get_ident()
    try:
        if engine.config.model_dir is None:
            yield
            return
        with locked(prepare(engine.config.model_dir)):  # type: ignore[arg-type]
            checkpoints = engine.checkpoints
            assert checkpoints is not None
            checkpoints.clean()
            with checkpoints.settled():
                engine.follow()
                yield
    finally:
        engine.trainer = None
        engine.training.release()


class TrainingRun:
    """What happens around the training loop; ``run.stop(reason)`` ends it in good order.

    A context manager: on the way out hooks are told, files closed and ``summary.html`` written, also when the run
    fails.
    """

    def __init__(self, engine: Engine, hooks: Sequence[Hook] = (), total: int | None = None) -> None:
        self.engine = engine
        self.stopped: str | None = None
        self.phases: dict[str, float] = {}
        self._hooks = HookList(hooks)
        self._begun = False
        self._started = time.monotonic()
        self._loss: Any = None
        self._wait = 0.0
        self._log: EventLog | None = None
        self.queue: Callable[[], str] = lambda: "not begun"  # how the training input stands, for the watchdog
        self._watchdog = Watchdog(engine.config.stall_seconds, queue_state=lambda: self.queue())
        self._progress = Progress(
            total,
            start=self._step(),
            examples_per_step=engine.batch_sizes[Mode.TRAIN],
            enabled=engine.config.progress,
        )

    def __enter__(self) -> TrainingRun:
        self._watchdog.start()
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            if self._begun:
                self._hooks.end(self, self._step())
        finally:
            self._progress.close()
            self._watchdog.close()
            if self._log is not None:
                self._log.close()
            if self._begun and self.engine.config.model_dir is not None:
                write_summary(self.engine.config.model_dir, self._info(error))

    # --- what hooks may ask ------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End training at the step that the calling hook was told of: save, then return."""
        if self.stopped is None:
            self.stopped = reason
            self._progress.note(reason)

    def export(self, directory: pathlib.Path, batch_sizes: Sequence[int] | None, platforms: tuple[str, ...]) -> None:
        """Export the model as it stands."""
        with self.phase("exporting"):
            export(self.engine, directory, batch_sizes, platforms)

    # --- what the loop reports ---------------------------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """The state exists and stands at ``step``; what a killed run recorded beyond it is cut."""
        if self.engine.config.model_dir is not None:
            try:
                self._log = EventLog(self.engine.config.model_dir, resume_step=step)
            except OSError as error:
                raise unwritable(pathlib.Path(error.filename or self.engine.config.model_dir), error) from error
            for compiled in self.engine.compiles:
                self._log.write(step, "compile", dataclasses.asdict(compiled))
        if saved := self.engine.meta.get("hooks"):
            self._hooks.restore(saved)
        self._begun = True
        self._hooks.begin(self)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Something other than training that takes its time."""
        started = time.monotonic()
        self._watchdog.beat(name)
        try:
            with self._progress.phase(name):
                yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - started
            self._watchdog.beat("training")

    def step(self, step: int, loss: float | None, wait: float) -> None:
        """Now and then: steps done, the newest known loss, seconds spent on input so far."""
        self._watchdog.beat("training")
        self._progress.update(step, loss, wait)

    def beat(self, phase: str) -> None:
        """Something moved, in ``phase``."""
        self._watchdog.beat(phase)

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        """A training record is due."""
        if self._log is not None:
            self._log.write(step, "train", metrics)
        self._hooks.after_steps(self, step, metrics)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """An evaluation is complete."""
        self._progress.note(f"step {step}: " + ", ".join(f"{name} {value:.6g}" for name, value in metrics.items()))
        if self._log is not None:
            self._log.write(step, "eval", metrics)
        self._hooks.after_evaluate(self, step, metrics)

    def saved(self, step: int) -> None:
        """A checkpoint was handed over for writing."""
        self._hooks.after_save(self, step)

    def hook_states(self) -> Any:
        """What the checkpoint keeps of the hooks."""
        return self._hooks.state()

    @property
    def hears_steps(self) -> bool:
        """Whether a hook wants to know of training records, and may stop the run there."""
        return any(getattr(h.after_steps, "__func__", None) is not Hook.after_steps for h in self._hooks.hooks)

    def _step(self) -> int:
        """Steps done, of the state in memory or, where there is none, the latest checkpoint."""
        return self.engine.peek_checkpoint() or self.engine.step()

    def _info(self, error: BaseException | None) -> dict[str, Any]:
        engine = self.engine
        params = jax.tree.leaves(engine.state["params"]) if engine.state is not None else []
        config = {f.name: getattr(engine.config, f.name) for f in dataclasses.fields(engine.config)}
        config |= {f"{mode.value}_batch_size": size for mode, size in engine.batch_sizes.items()}
        return {
            "title": f"Run {engine.config.model_dir.name}",  # type: ignore[union-attr]
            "target": engine.target.name,
            "devices": engine.target.num_devices,
            "step": self._step(),
            "seconds": time.monotonic() - self._started,
            "status": _status(error) or self.stopped or "finished",
            "ok": error is None,
            "parameters": sum(math.prod(x.shape) for x in params),
            "parameter_bytes": sum(x.nbytes for x in params),
            "config": config,
            "compiles": [dataclasses.asdict(c) for c in engine.compiles],
            "phases": self.phases,
            "versions": {
                name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax", "numpy")
            },
        }


def _status(error: BaseException | None) -> str | None:
    if error is None:
        return None
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return "stopped by a signal"
    logger.debug("the run failed", exc_info=error)
    return f"failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
