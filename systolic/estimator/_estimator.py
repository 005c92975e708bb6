"""The Estimator: a model, what to learn, and where; trains, evaluates, predicts, checks and exports."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import optax

from systolic._arguments import flag, folder, whole
from systolic._errors import InputError
from systolic.estimator import _evaluate, _predict
from systolic.estimator._config import RunConfig
from systolic.estimator._definition import Definition
from systolic.estimator._engine import Engine
from systolic.estimator._hooks import Hook
from systolic.estimator._mode import Mode
from systolic.estimator._signals import stop_on_signal
from systolic.estimator._training import Evaluation, train

if TYPE_CHECKING:
    from systolic.check import CheckOptions, CheckReport


class Estimator:
    """A model with its loss, optimizer and batch sizes; the same code on CPU, GPU and TPU, on one device or many.

    Args:
        model: how to make the model: ``lambda rngs: MyModule(..., rngs=rngs)`` (Flax NNX), a Linen module,
            ``sl.equinox(fn)``, or a pair ``(init, apply)``.
        model_fn: ``model_fn(model, features, labels, mode) -> EstimatorSpec``; it may also ask for ``params`` and ``key``.
        optimizer: an optax transformation (schedules included); may be ``None`` for prediction only.
        train_batch_size: global batch size, over all devices; likewise ``eval_batch_size`` and
            ``predict_batch_size``, which default to it.
        config: where and how the run goes.
        params: handed to ``model_fn`` as ``params`` where it has that parameter.
        precision: ``"float32"``, or ``"bfloat16"`` to compute in bfloat16 with float32 parameters and losses.
        accumulate: split each training batch into this many microbatches; the gradient is that of the whole batch.
        clip_norm: clip the gradient's global norm before the optimizer.
        ema: decay of a moving average of the parameters; evaluation, prediction and export use it.
        hooks: called by every training run.

    Example:
        >>> import jax, numpy as np, optax, systolic as sl
        >>> def model_fn(model, features, labels, mode):
        ...     y = model(features["x"])[:, 0]
        ...     if mode is sl.Mode.PREDICT:
        ...         return sl.EstimatorSpec(predictions={"y": y})
        ...     return sl.EstimatorSpec(loss=(y - labels) ** 2)
        >>> model = (lambda key: {"w": jax.numpy.zeros((1, 1))}, lambda params, x: x @ params["w"])
        >>> estimator = sl.Estimator(
        ...     model, model_fn, optax.sgd(0.1), train_batch_size=4, config=sl.RunConfig(progress=False))
        >>> x = np.linspace(-1, 1, 16, dtype="float32")
        >>> data = lambda: ({"x": x[:, None]}, 3 * x)
        >>> estimator.train(data, steps=200)
        >>> round(estimator.evaluate(data)["loss"], 6)
        0.0
    """

    def __init__(
        self,
        model: Any,
        model_fn: Callable[..., Any],
        optimizer: optax.GradientTransformation | None = None,
        *,
        train_batch_size: int,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        config: RunConfig | None = None,
        params: Any = None,
        precision: str = "float32",
        accumulate: int = 1,
        clip_norm: float | None = None,
        ema: float | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self._definition = Definition(
            model,
            model_fn,
            optimizer,
            train_batch_size,
            eval_batch_size,
            predict_batch_size,
            config,
            params,
            precision,
            accumulate,
            clip_norm,
            ema,
            hooks,
        )
        self.config = config or RunConfig()
        self.batch_sizes = self._definition.batch_sizes
        self.hooks = self._definition.hooks
        self._engine = Engine(self._definition.steps(self.config), self.config, self.batch_sizes)

    def with_config(self, **changes: Any) -> Estimator:
        """A new Estimator over the same model, with some things changed.

        Hooks are copied as they were given. It has no state in memory: it begins with the latest checkpoint of its ``model_dir``, or anew.

        Args:
            changes: arguments of Estimator (``eval_batch_size=512``, ``optimizer=None``) or fields of
                :class:`systolic.RunConfig` (``target="cpu:1"``, ``model_dir="runs/other"``), by name.

        Raises:
            InputError: a name or a value that neither takes.
        """
        definition = self._definition.changed(**changes)
        return Estimator(
            **{field.name: getattr(definition, field.name) for field in dataclasses.fields(definition) if field.init}
        )

    @property
    def step(self) -> int:
        """Training steps done, of the state in memory or else the latest checkpoint."""
        if self._engine.state is None and (saved := self._engine.peek_checkpoint()) is not None:
            return saved
        return self._engine.step()

    @property
    def state(self) -> Any:
        """The state on the device (``params``, ``model_state``, ``opt_state``, ``clock``, ``ema``); ``None`` before any.

        Restored for an evaluation or a prediction, it has no ``opt_state``.
        """
        return self._engine.state

    def train(
        self,
        input_fn: Any,
        steps: int | None = None,
        *,
        max_steps: int | None = None,
        epochs: int | None = None,
        restart_data: bool = False,
        hooks: Sequence[Hook] = (),
    ) -> None:
        """Train on ``input_fn``, from the latest checkpoint of ``model_dir`` if there is one.

        Args:
            input_fn: a function that returns the data of one epoch (or the data itself): a dict or tuple of arrays,
                any iterable of examples or batches, a Grain or tf.data dataset, a torch DataLoader.
            steps: how many more steps; ``max_steps``: up to this step in all; ``epochs``: passes over the data, in
                addition to those of earlier calls (a restarted run counts those it has had). With none of them, one
                epoch.
            restart_data: begin ``input_fn`` at its first example instead of where training stopped; for going on with
                other data, as in fine-tuning.
            hooks: called in addition to the Estimator's.
        """
        if steps is not None and max_steps is not None:
            raise InputError(
                "train(steps, max_steps): saw both; give steps (how many more) or max_steps (how many in all)"
            )
        if steps is None and max_steps is None and epochs is None:
            epochs = 1
        for name, value in (("steps", steps), ("max_steps", max_steps), ("epochs", epochs)):
            if value is not None:
                whole(f"train({name})", value)
        flag("train(restart_data)", restart_data)
        self._refuse_indivisible(Mode.TRAIN)
        until = max_steps if steps is None else lambda step: step + int(steps)
        train(self._engine, input_fn, until, epochs, restart_data=restart_data, hooks=(*self.hooks, *hooks))

    def evaluate(self, input_fn: Any, steps: int | None = None) -> dict[str, float]:
        """Exact metrics over one pass of ``input_fn`` (or its first ``steps`` batches): ``loss`` and the spec's."""
        if steps is not None:
            steps = whole("evaluate(steps)", steps)
        self._refuse_indivisible(Mode.EVAL)
        with stop_on_signal() as stop:
            result = _evaluate.evaluate(self._engine, input_fn, steps, stop=stop)
            if stop:
                stop.finish()
        assert result is not None
        return result

    def predict(self, input_fn: Any) -> Iterator[Any]:
        """One row of predictions per example, in order, lazily; labels in the data are ignored."""
        self._refuse_indivisible(Mode.PREDICT)
        return _predict.predict(self._engine, input_fn)

    def train_and_evaluate(
        self,
        train_fn: Any,
        eval_fn: Any,
        *,
        max_steps: int,
        eval_every: int,
        eval_steps: int | None = None,
        restart_data: bool = False,
        hooks: Sequence[Hook] = (),
    ) -> dict[str, float]:
        """Train up to step ``max_steps``, evaluating every ``eval_every`` steps and at the end.

        Args:
            train_fn, max_steps, restart_data, hooks: as for :meth:`train`.
            eval_fn, eval_steps: as ``input_fn`` and ``steps`` of :meth:`evaluate`.

        Returns:
            The last evaluation's metrics.
        """
        for name, value in (("max_steps", max_steps), ("eval_every", eval_every), ("eval_steps", eval_steps)):
            if value is not None or name != "eval_steps":
                whole(f"train_and_evaluate({name})", value)
        flag("train_and_evaluate(restart_data)", restart_data)
        for name, data in (("train_fn", train_fn), ("eval_fn", eval_fn)):
            if data is None:
                raise InputError(f"train_and_evaluate({name}): saw None, wanted data or a function that returns it")
        for mode in (Mode.EVAL, Mode.TRAIN):
            self._refuse_indivisible(mode)
        evaluation = Evaluation(eval_fn, eval_every, eval_steps)
        hooks = (*self.hooks, *hooks)
        return train(self._engine, train_fn, max_steps, restart_data=restart_data, hooks=hooks, evaluation=evaluation)

    def check(
        self,
        input_fn: Any,
        target: Any = "v5e-8",
        *,
        depth: str = "fast",
        programs: Sequence[str] | None = None,
        batch_size: int | None = None,
        options: CheckOptions | None = None,
    ) -> CheckReport:
        """Compile every Program for ``target`` with the real TPU compiler, without a TPU.

        Args:
            input_fn: as for :meth:`train`; its first element tells shapes and dtypes.
            target: one name, such as ``"v5e-8"``, or several.
            depth: ``"schedule"`` (seconds), ``"fast"`` (a verdict; memory close to exact), ``"full"`` (minutes).
            programs: some of ``init``, ``train``, ``eval``, ``predict``; default: the three modes.
            batch_size: global batch size to check instead of the Estimator's own.
            options: limits and parallelism; its ``depth`` counts then.

        Returns:
            The report; print it, or ``write_html``. A program that does not compile or fit is a result, not an error.
        """
        from systolic.check import CheckOptions
        from systolic.estimator._check import check

        return check(self._engine, input_fn, target, options or CheckOptions(depth=depth), programs, batch_size)

    def export(
        self, directory: Any, *, batch_sizes: Sequence[int] | None = None, platforms: Sequence[str] = ("cpu", "tpu")
    ) -> pathlib.Path:
        """Write weights and StableHLO programs to ``directory``; ``sl.load`` runs them without this code.

        Args:
            batch_sizes: static batch sizes of the prediction program; default: ``predict_batch_size``.
            platforms: among ``cpu``, ``tpu``, ``cuda``, ``rocm``.
        """
        from systolic.estimator._export import export

        return export(self._engine, folder("export(directory)", directory), batch_sizes, platforms)

    def _refuse_indivisible(self, mode: Mode) -> None:
        from systolic.estimator._check import refuse_indivisible

        parts = self._engine.steps.accumulate if mode is Mode.TRAIN else 1
        refuse_indivisible(f"Estimator({mode.value}_batch_size)", self.batch_sizes[mode], self._engine.target, parts)
