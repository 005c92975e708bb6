"""The training loop: groups of batches in, dispatches out, and at their boundaries evaluation, checkpoint and stop.

The order at a boundary is evaluate, save, next group: a checkpoint holds the metrics of its own step, and a run that was
killed while evaluating evaluates again. The device is kept ahead of the host: results are read some dispatches late,
unless a hook wants to hear of them, and only where something is to be logged or checked.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import NamedSharding

from systolic._errors import InputError
from systolic._log import logger
from systolic.data import Batches, Feed
from systolic.estimator._dispatch import AHEAD, Item, dispatcher
from systolic.estimator._engine import Engine
from systolic.estimator._failure import callback_errors, explain
from systolic.estimator._folder import keep_locked
from systolic.estimator._mode import Mode
from systolic.estimator._nonfinite import refuse_nonfinite
from systolic.estimator._packing import Packing
from systolic.estimator._results import Results
from systolic.estimator._run import TrainingRun
from systolic.estimator._signals import StopRequest

_HELD_BYTES = 4 << 20
"""Batches are kept until their step is known to be good, in order to name the tensor that went bad: at most this much."""

_SETTLE_SECONDS = 1.0  # results are read at least this often
_REPORT_SECONDS = 0.05  # the progress line and the watchdog hear of the loop at most this often


class TrainLoop:
    """Trains ``engine`` on ``input_fn`` until step ``until`` (or the end of ``epochs``), reporting to ``run``.

    Where dispatches end depends on the step and the configuration only, never on time or on where a run was resumed: a
    hook that stops the run stops it at the same step everywhere.

    Args:
        evaluate: called as ``evaluate()`` when ``eval_every`` steps have passed and at the end; returns metrics, or
            ``None`` when it was asked to stop.
    """

    def __init__(
        self,
        engine: Engine,
        input_fn: Any,
        run: TrainingRun,
        stop: StopRequest,
        *,
        until: int | None,
        epochs: int | None = None,
        evaluate: Callable[[], dict[str, float] | None] | None = None,
        eval_every: int | None = None,
    ) -> None:
        self.engine, self.run_, self.stop = engine, run, stop
        self.until, self.evaluate, self.eval_every = until, evaluate, eval_every
        config = engine.config
        self.size = config.steps_per_loop
        self.every = [n for n in (config.checkpoint_every if config.model_dir else None, eval_every) if n]
        position = dict(engine.position() or {})
        self._skip = position.pop("skip", 0)  # batches to leave out: those before a bad one within its stack
        self.batches = Batches(
            input_fn,
            engine.batch_sizes[Mode.TRAIN],
            tail=config.tail,
            epochs=epochs,
            start=position or None,
            stack=self.size,
            spec=engine.spec,
            notices=engine.notices,
            size_name="train_batch_size",
        )
        self._saved: int | None = None  # the step that was saved last

    def __call__(self) -> None:
        """Train; on return the state is checked to be finite and saved."""
        engine, run = self.engine, self.run_
        epochs, position = self.batches.epochs, engine.position()
        if epochs is not None and position is not None and position["epoch"] >= epochs:
            engine.ensure_state()
            self._nothing_to_do(f"the {epochs} epochs asked for in all are done; steps= and a larger epochs= go on")
            return
        with contextlib.closing(self.batches):
            with run.phase("reading the first batch"):
                # A run that has had all its epochs finds no first batch, and knows its spec.
                known = engine.spec if epochs is not None else None
                spec = known or self.stop.wait(self.batches.peek)
            if spec is None:  # told to stop while waiting
                return
            with run.phase("initialising"):
                engine.ensure_state(spec)
            engine.trains = True
            if engine.spec is None:
                engine.spec = spec
            self._refuse_padding_with_batch_statistics()
            self._train(spec)

    def _nothing_to_do(self, why: str) -> None:
        self.engine.notices.give(f"train: nothing to do, the model is at step {self.engine.step()}: {why}")

    def _train(self, spec: Any) -> None:
        engine, run = self.engine, self.run_
        self._batch_bytes = max(1, _nbytes(spec.batched(engine.batch_sizes[Mode.TRAIN])))
        self.size = self.batches.stack = engine.steps_per_loop(spec)
        packing = Packing(engine.state_shapes(spec)) if engine.packs(spec) else None
        self._path = dispatcher(self.size, self._batch_bytes, packing)
        step = engine.step()
        if self.until is not None and step >= self.until:
            if step > self.until or not self.evaluate:
                self._nothing_to_do(f"max_steps={self.until} is reached; steps= and a larger max_steps= go on")
            if self.evaluate:  # a run told to stop during its last evaluation was saved without it
                run.begin(step)
                self._evaluate(step)
            return
        with run.phase("compiling train"):
            train = engine.executable("train", spec)
        run.begin(step)
        if not run.stopped and self._evaluation_due(step):
            self._evaluate(step)
        if run.stopped or self.stop:  # a hook that had stopped the run before stays with it
            return
        call = train if engine.config.eager else train.direct
        position = engine.meta.get("position") or self.batches.position
        self.results = Results(engine, run, self._path, position, step, time.monotonic())
        feed = Feed(self._groups(step), self._put(), engine.config.prefetch)
        run.queue = feed.state
        failure = None
        with callback_errors() as raised:
            try:
                with feed:
                    self._loop(feed, call, step)
            except BaseException as error:
                failure = explain(engine, error, raised)
        if failure is not None:
            raise failure
        if raised:
            logger.error("a function that model_fn calls on the host raised", exc_info=raised[0])

    def _loop(self, feed: Feed, call: Callable, step: int) -> None:
        engine, run, stop, results = self.engine, self.run_, self.stop, self.results
        log_every, path, clock, held = engine.config.log_every, self._path, time.monotonic, results.held
        log_at, boundary, start = (step // log_every + 1) * log_every, self._next_boundary(step), step
        now = clock()
        settle_at = report_at = now + _REPORT_SECONDS
        most = max(2 * AHEAD * self.size, min(128 * self.size, _HELD_BYTES // self._batch_bytes))
        heard = run.hears_steps
        for group, count, positions in stop.items(feed):
            outputs = path.run(engine, call, group, count, positions)
            began, now, before, step = now, clock(), step, step + count
            path.adapt(now - began)
            if step >= log_at:
                results.hold_due(
                    (before, count, positions, outputs, group, [now, feed.wait_seconds]), feed.wait_seconds
                )
                log_at = (step // log_every + 1) * log_every
                if heard:  # may stop the run, then at this very step
                    results.settle(len(held))
            else:
                held.append((before, count, positions, outputs, group, None))
                if before == start:  # a first step takes longer: memory, threads and files are new
                    results.begin_rate(step, now, feed.wait_seconds)
            if len(held) > AHEAD and (step - held[0][0] >= most or now >= settle_at):
                results.settle(len(held) - AHEAD)
                settle_at = now + _SETTLE_SECONDS
            if now >= report_at:
                run.step(step, results.newest_loss(), feed.wait_seconds)
                report_at = now + _REPORT_SECONDS
            if step == boundary or stop.number or run.stopped:
                self._boundary(step, feed, last=step == self.until)
                boundary = self._next_boundary(step)
                if stop.number or run.stopped:
                    return
                now = clock()
        if step > start:  # the data is over, or a signal ended the wait for more
            self._boundary(step, feed, last=not stop)

    def _next_boundary(self, step: int) -> int:
        """The next step at which the loop has something else to do than to train; -1: none."""
        ends = [(step // n + 1) * n for n in self.every]
        return min(ends if self.until is None else [*ends, self.until], default=-1)

    def _boundary(self, step: int, feed: Feed, last: bool) -> None:
        """Everything that is not training; ``last``: the run ends here of itself."""
        engine, run, stop = self.engine, self.run_, self.stop
        self.results.settle(len(self.results.held))
        began, wait = time.monotonic(), feed.wait_seconds
        run.step(step, self.results.newest_loss(), wait)
        if (last or run.stopped) and not stop:
            self.results.log_rest(began, wait)
        every = engine.config.checkpoint_every
        saves = bool(stop or run.stopped or last or (every and step % every == 0)) and step != self._saved
        evaluates = not stop and (self._evaluation_due(step) or (last and self._evaluation_missing(step)))
        if saves:
            self._refuse_nonfinite(step)
        if evaluates:
            self._evaluate(step)
            if run.stopped and not stop:
                self.results.log_rest(began, wait)
        if saves or run.stopped or stop:
            if not saves:
                self._refuse_nonfinite(step)
            self._save(step)
            if run.stopped and not stop:
                self.results.log_rest(began, wait)
        self.results.pause(time.monotonic() - began)

    def _save(self, step: int) -> None:
        engine, run = self.engine, self.run_
        if step == self._saved:
            return
        engine.meta["hooks"] = run.hook_states()
        with run.phase("saving"):
            if engine.config.model_dir is not None:
                keep_locked(engine.config.model_dir)  # type: ignore[arg-type]
            engine.save()
        self._saved = step
        run.saved(step)

    def _refuse_nonfinite(self, step: int) -> None:
        if self.engine.steps.guard:
            refuse_nonfinite(self.engine.state["params"], step)  # type: ignore[index]

    def _evaluation_missing(self, step: int) -> bool:
        return self.evaluate is not None and self.engine.meta.get("evaluated") != step

    def _evaluation_due(self, step: int) -> bool:
        every = self.eval_every
        return bool(every and step and step % every == 0 and self._evaluation_missing(step))

    def _evaluate(self, step: int) -> None:
        assert self.evaluate is not None
        metrics = self.evaluate()
        if metrics is not None:
            self.engine.meta |= {"evaluated": step, "metrics": metrics}
            self.run_.evaluated(step, metrics)

    def _groups(self, step: int) -> Iterator[Item]:
        """Groups of batches that end where a boundary or a record is; runs ahead of the loop."""
        scalar_loss, log_every = self.engine.steps.scalar_loss, self.engine.config.log_every
        with contextlib.closing(self.batches):  # on the thread that reads them, which may be one that was left behind
            for _ in range(self._skip):
                self._path.read(self.batches, 1, False)
            while self.until is None or step < self.until:
                # A resumed run's dispatches end where those of an undisturbed one do, in multiples of the loop's size.
                every = log_every if self.size == 1 else self.size
                ends = [(step // every + 1) * every]
                if (boundary := self._next_boundary(step)) > 0:
                    ends.append(boundary)
                item = self._path.read(self.batches, min(ends) - step, Mode.TRAIN in scalar_loss)
                if item is None:
                    return
                step += item[1]
                yield item

    def _put(self) -> Callable[[Item], Item]:
        """Host batches to device, for the prefetch thread."""
        sharding = NamedSharding(self.engine.target.mesh({"data": -1}), self._path.layout)

        def put(item: Item) -> Item:
            return jax.device_put(item[0], sharding), item[1], item[2]

        return put

    def _refuse_padding_with_batch_statistics(self) -> None:
        engine = self.engine
        if engine.config.tail == "pad" and engine.steps.adapter.has_batch_statistics(engine.state["model_state"]):  # type: ignore[index]
            raise InputError(
                "RunConfig(tail='pad'): this model keeps batch statistics, and padded rows would enter them; "
                "use tail='carry' or 'drop', or a normalisation without batch statistics"
            )


def _nbytes(structs: Any) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(structs))
