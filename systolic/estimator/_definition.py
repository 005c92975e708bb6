"""What an Estimator is made of: its arguments, checked, and copies of them with some changed."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import optax

from systolic._arguments import number, whole
from systolic._errors import InputError
from systolic.estimator._config import RunConfig
from systolic.estimator._hooks import Hook, HookList
from systolic.estimator._mode import Mode
from systolic.estimator._precision import Precision
from systolic.estimator._steps import Steps
from systolic.estimator.adapters import as_adapter


@dataclasses.dataclass(frozen=True)
class Definition:
    """The arguments of :class:`systolic.Estimator`, as they were given; those that leave something to a default, too."""

    model: Any
    model_fn: Callable[..., Any]
    optimizer: optax.GradientTransformation | None
    train_batch_size: int
    eval_batch_size: int | None
    predict_batch_size: int | None
    config: RunConfig | None
    params: Any
    precision: str
    accumulate: int
    clip_norm: float | None
    ema: float | None
    hooks: Sequence[Hook]
    _hook_states: tuple[Any, ...] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.config, RunConfig | None):
            raise InputError(
                f"Estimator(config): saw {type(self.config).__name__}, wanted a RunConfig: sl.RunConfig(...)"
            )
        if not callable(self.model_fn):
            raise InputError(
                f"Estimator(model_fn): saw {type(self.model_fn).__name__}, wanted a function of (model, features, labels, mode)"
            )
        optimizer = self.optimizer
        if not (optimizer is None or (hasattr(optimizer, "init") and hasattr(optimizer, "update"))):
            raise InputError(
                f"Estimator(optimizer): saw {type(optimizer).__name__}, wanted an optax transformation such as "
                "optax.adamw(1e-3), or None for prediction only"
            )
        for name in ("train_batch_size", "eval_batch_size", "predict_batch_size"):
            if (size := getattr(self, name)) is not None or name == "train_batch_size":
                whole(f"Estimator({name})", size)
        if self.train_batch_size % whole("Estimator(accumulate)", self.accumulate):
            raise InputError(
                f"Estimator(accumulate): train_batch_size={self.train_batch_size} is not divisible by {self.accumulate} microbatches"
            )
        if self.clip_norm is not None:
            number("Estimator(clip_norm)", self.clip_norm, 0, math.inf, "a positive norm, or None")
        if self.ema is not None:
            number("Estimator(ema)", self.ema, 0, 1, "a decay between 0 and 1, such as 0.999")
        if isinstance(self.hooks, Hook) or not isinstance(self.hooks, Iterable):
            raise InputError(f"Estimator(hooks): saw {self.hooks!r}, wanted a list of hooks: hooks=[...]")
        hooks = HookList(tuple(self.hooks)).hooks  # a generator could be read only once
        object.__setattr__(self, "hooks", hooks)
        object.__setattr__(self, "_hook_states", tuple(copy.deepcopy(hook.state()) for hook in hooks))

    def changed(self, **changes: Any) -> Definition:
        """A copy with other arguments; a name may also be that of a field of :class:`systolic.RunConfig`."""
        own = {field.name for field in dataclasses.fields(self) if field.init}
        run = {field.name for field in dataclasses.fields(RunConfig)}
        for name in changes:
            if name not in own | run:
                raise InputError(
                    f"with_config({name}): there is no such argument; wanted one of Estimator's ({', '.join(sorted(own))}) "
                    f"or RunConfig's ({', '.join(sorted(run))})"
                )
        of_run = {name: value for name, value in changes.items() if name in run}
        of_own = {name: value for name, value in changes.items() if name in own}
        if of_run:
            config = of_own.get("config", self.config) or RunConfig()
            of_own["config"] = config.replace(**of_run)
        if "hooks" not in of_own:
            of_own["hooks"] = [_as_new(*pair) for pair in zip(self.hooks, self._hook_states, strict=True)]
        return dataclasses.replace(self, **of_own)

    @property
    def batch_sizes(self) -> dict[Mode, int]:
        """Global batch size of each mode."""
        evaluated = int(self.train_batch_size if self.eval_batch_size is None else self.eval_batch_size)
        predicted = evaluated if self.predict_batch_size is None else int(self.predict_batch_size)
        return {Mode.TRAIN: int(self.train_batch_size), Mode.EVAL: evaluated, Mode.PREDICT: predicted}

    def steps(self, config: RunConfig) -> Steps:
        """The pure functions of a run with ``config``."""
        optimizer = self.optimizer
        if optimizer is not None and self.clip_norm is not None:
            optimizer = optax.chain(optax.clip_by_global_norm(self.clip_norm), optimizer)
        return Steps(
            adapter=as_adapter(self.model),
            model_fn=self.model_fn,
            optimizer=optimizer,
            hyper=self.params,
            precision=Precision(self.precision),
            accumulate=int(self.accumulate),
            ema=self.ema,
            guard=config.on_nonfinite == "stop",
        )


def _as_new(hook: Hook, state: Any) -> Hook:
    """A copy of a hook in the state that it was given in: what it has seen belongs to the run that it saw."""
    try:
        new = copy.deepcopy(hook)
    except Exception as error:
        raise InputError(
            f"with_config: the hook {type(hook).__name__} cannot be copied ({error}); give hooks=[...] of the new Estimator's own"
        ) from error
    if state is not None:
        new.restore(state)
    return new
