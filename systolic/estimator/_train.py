"""The training loop: groups of batches in, dispatches out, and at their boundaries evaluation, checkpoint and stop.

The order at a boundary is evaluate, save, next group: a checkpoint holds the metrics of its own step, and a run that was
killed while evaluating evaluates again. The device is kept ahead of the host: results are read ``lag`` dispatches
late, and only where something is to be logged or checked.
"""

from __future__ import annotations

import collections
import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from systolic._errors import InputError, NonFiniteError
from systolic.data import Batches, Feed
from systolic.estimator._dispatch import Item, dispatcher
from systolic.estimator._engine import Engine
from systolic.estimator._mode import Mode
from systolic.estimator._nonfinite import nonfinite_step, refuse_nonfinite
from systolic.estimator._run import Run
from systolic.estimator._signals import StopRequest
from systolic.estimator._steps import Clock
from systolic.estimator._totals import combine

_HELD_BYTES = 4 << 20
"""Batches are kept until their step is known to be good, in order to name the tensor that went bad: at most this much."""

_AHEAD = 2  # dispatches in flight before the host reads a result
_SETTLE_SECONDS = 1.0  # results are read at least this often
_REPORT_SECONDS = 0.05  # the progress line and the watchdog hear of the loop at most this often

_Dispatch = tuple[int, int, Any, Any, tuple[float, float] | None]
"""Step before it, steps, outputs, group and, if it is to be logged, the time and the input-wait seconds so far."""


class TrainLoop:
    """Trains ``engine`` on ``input_fn`` until step ``until`` (or the end of ``epochs``), reporting to ``run``.

    Args:
        evaluate: called as ``evaluate()`` when ``eval_every`` steps have passed and at the end; returns metrics, or
            ``None`` when it was asked to stop.
    """

    def __init__(
        self,
        engine: Engine,
        input_fn: Any,
        run: Run,
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
        self.batches = Batches(
            input_fn,
            engine.batch_sizes[Mode.TRAIN],
            tail=config.tail,
            epochs=epochs,
            start=engine.position(),
            stack=self.size,
            spec=engine.spec,
            notices=engine.notices,
        )
        self._held: collections.deque[_Dispatch] = collections.deque()
        self._logged_at = time.monotonic()
        self._logged_step = 0
        self._logged_wait = 0.0

    def __call__(self) -> None:
        """Train; on return the state is checked to be finite and saved."""
        engine, run = self.engine, self.run_
        epochs, position = self.batches.epochs, engine.position()
        if epochs is not None and position is not None and position["epoch"] >= epochs:
            engine.ensure_state()
            return
        with run.phase("reading the first batch"):
            # A run that has had all its epochs finds no first batch, and knows its spec.
            spec = engine.spec if epochs is not None and engine.spec is not None else self.batches.spec
        with run.phase("initialising"):
            engine.ensure_state(spec)
        engine.trains = True
        if engine.spec is None:
            engine.spec = spec
        self._refuse_padding_with_batch_statistics()
        self._batch_bytes = max(1, _nbytes(spec.batched(engine.batch_sizes[Mode.TRAIN])))
        self.size = self.batches.stack = engine.steps_per_loop(spec)
        # Collectives of several steps at once can starve each other on CPU devices, which share one pool of threads.
        self._serial = engine.target.platform == "cpu" and engine.target.num_devices > 1
        self._path = dispatcher(self.size, self._batch_bytes, bursts=not self._serial)
        step = self._logged_step = engine.step()
        if self.until is not None and step >= self.until:
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
        feed = Feed(self._groups(step), self._put(), engine.config.prefetch)
        with contextlib.closing(self.batches), feed:
            self._loop(feed, call, step)

    def _loop(self, feed: Feed, call: Callable, step: int) -> None:
        engine, run, stop, held = self.engine, self.run_, self.stop, self._held
        log_every, path, clock = engine.config.log_every, self._path, time.monotonic
        log_at, boundary = (step // log_every + 1) * log_every, self._next_boundary(step)
        now = clock()
        settle_at = report_at = now + _REPORT_SECONDS
        most = max(2 * _AHEAD * self.size, min(128 * self.size, _HELD_BYTES // self._batch_bytes))
        wait = self._serial  # the first step too: whether a generator reuses its buffer shows with its second batch
        for group, count, positions in feed:
            outputs = path.run(engine, call, group, count, positions)
            if wait or step == self._logged_step:
                jax.block_until_ready(outputs)
            began, now, before, step = now, clock(), step, step + count
            path.adapt(now - began)
            due = step >= log_at
            held.append((before, count, outputs, group, (now, feed.wait_seconds) if due else None))
            if due:
                log_at = (step // log_every + 1) * log_every
            if step - held[0][0] >= most or now >= settle_at:
                self._settle(len(held) - _AHEAD)
                settle_at = now + _SETTLE_SECONDS
            if now >= report_at:
                run.step(step, self._newest_loss(), feed.wait_seconds)
                report_at = now + _REPORT_SECONDS
            if step == boundary or stop.number or run.stopped:
                run.step(step, self._newest_loss(), feed.wait_seconds)
                self._boundary(step)
                boundary = self._next_boundary(step)
                if stop.number or run.stopped:
                    return
        if held:
            self._boundary(step, last=True)

    def _next_boundary(self, step: int) -> int:
        """The next step at which the loop has something else to do than to train; -1: none."""
        ends = [(step // n + 1) * n for n in self.every]
        return min(ends if self.until is None else [*ends, self.until], default=-1)

    def _boundary(self, step: int, last: bool = False) -> None:
        engine, run = self.engine, self.run_
        self._settle(len(self._held))
        last = last or step == self.until
        every = engine.config.checkpoint_every
        saves = bool(self.stop or run.stopped or last or (every and step % every == 0))
        if saves and engine.steps.guard:
            refuse_nonfinite(engine.state["params"], step)  # type: ignore[index]
        if not self.stop and (self._evaluation_due(step) or (self.evaluate is not None and last)):
            self._evaluate(step)
        if saves or run.stopped:
            engine.meta["hooks"] = run.hook_states()
            with run.phase("saving"):
                engine.save()
            run.saved(step)

    def _evaluation_due(self, step: int) -> bool:
        every = self.eval_every
        return bool(
            self.evaluate and every and step and step % every == 0 and self.engine.meta.get("evaluated") != step
        )

    def _evaluate(self, step: int) -> None:
        assert self.evaluate is not None
        metrics = self.evaluate()
        if metrics is not None:
            self.engine.meta |= {"evaluated": step, "metrics": metrics}
            self.run_.evaluated(step, metrics)

    def _groups(self, step: int) -> Iterator[Item]:
        """Groups of batches that end where a boundary or a record is; runs ahead of the loop."""
        scalar_loss, log_every = self.engine.steps.scalar_loss, self.engine.config.log_every
        while self.until is None or step < self.until:
            ends = [(step // log_every + 1) * log_every] if self.size == 1 else [step + self.size]
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
            # Copied and complete before the next item is read: a generator may use its buffers again.
            return jax.block_until_ready(jax.device_put(item[0], sharding, may_alias=False)), item[1], item[2]

        return put

    def _newest_loss(self) -> float | None:
        """The loss of the newest dispatch that is done, without waiting for one that is not."""
        losses = (self._path.last_loss(outputs, count, wait=False) for _, count, outputs, *_ in reversed(self._held))
        return next((loss for loss in losses if loss is not None), None)

    def _settle(self, count: int) -> None:
        """Read the results of the ``count`` oldest dispatches: stop on a bad loss, log what is due."""
        if count < 1:
            return
        held, path = self._held, self._path
        _, steps, outputs, *_ = held[count - 1]
        if self.engine.steps.guard and math.isnan(path.last_loss(outputs, steps, wait=True)):
            self._explain_nonfinite()
        for _ in range(count):
            first, steps, outputs, _, when = held.popleft()
            if when is not None:
                self._log(first + steps, path.scalars(outputs, steps), *when)

    def _log(self, step: int, outputs: Any, now: float, wait: float) -> None:
        seconds = max(now - self._logged_at, 1e-9)
        kinds = self.engine.steps.finalizers[Mode.TRAIN]
        sums = combine(outputs["metrics"], kinds)
        metrics = {"loss": float(outputs["loss"].mean())}
        metrics |= {name: float(kinds[name].finalize(totals)) for name, totals in sums.items()}
        if "learning_rate" in outputs:
            metrics["learning_rate"] = float(outputs["learning_rate"][-1])
        metrics["steps_per_second"] = (step - self._logged_step) / seconds
        metrics["input_wait"] = min(1.0, (wait - self._logged_wait) / seconds)
        self._logged_at, self._logged_step, self._logged_wait = now, step, wait
        self.run_.trained(step, metrics)

    def _explain_nonfinite(self) -> None:
        """Name the step and the first bad tensor; the state stands as it was before that step."""
        engine = self.engine
        step = engine.step()
        clock = Clock.unpack(np.asarray(engine.state["clock"]))._replace(halted=0)  # type: ignore[index]
        engine.state["clock"] = engine.place(clock.pack())  # type: ignore[index]  # a later call may train on
        culprit = f"the loss or the gradient of step {step + 1} is not finite"
        for first, count, _, group, _ in self._held:
            if first <= step < first + count:
                state, batch = jax.device_get((engine.state, self._path.batch(group, step - first)))
                culprit = nonfinite_step(engine.steps, state, batch, engine.spec, step + 1)
        raise NonFiniteError(
            f"{culprit}. The parameters are those before that step. Look at the input, lower the learning rate or clip "
            "gradients (Estimator(clip_norm=1.0)); RunConfig(on_nonfinite='ignore') trains on"
        )

    def _refuse_padding_with_batch_statistics(self) -> None:
        engine = self.engine
        if engine.config.tail == "pad" and engine.steps.adapter.has_batch_statistics(engine.state["model_state"]):  # type: ignore[index]
            raise InputError(
                "RunConfig(tail='pad'): this model keeps batch statistics, and padded rows would enter them; "
                "use tail='carry' or 'drop', or a normalisation without batch statistics"
            )


def _nbytes(structs: Any) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(structs))
