"""The Programs of one model, each built once: from the pure functions of a step to signatures and layouts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from systolic.data import ElementSpec
from systolic.estimator._config import RunConfig
from systolic.estimator._mode import Mode
from systolic.estimator._packing import Packing
from systolic.estimator._steps import State, Steps
from systolic.program import CompileBudget, Program


class Programs:
    """Builds Programs and keeps them; shapes of the state come from the caller, which may have a state already."""

    def __init__(self, steps: Steps, config: RunConfig) -> None:
        self._steps, self._config = steps, config
        self._budget, self._packed_budget = (
            CompileBudget(config.compile_budget, setting="RunConfig(compile_budget=…)") for _ in range(2)
        )
        self._made: dict[Any, Program] = {}
        self._known: dict[Any, bool] = {}

    def init(self, spec: ElementSpec, rng: np.ndarray) -> Program:
        """``init``: uint32 key data -> a fresh state."""
        steps = self._steps
        return self._once(
            ("init", repr(spec)),
            lambda: ("init", lambda rng: steps.init(rng, spec), (rng,), {"out_specs": PartitionSpec()}),
        )

    def apply(self, mode: Mode, spec: ElementSpec, state: State, size: int) -> Program:
        """``eval`` or ``predict`` of a batch of ``size`` rows: (variables, batch) -> sums or predictions."""
        function = self._steps.evaluate if mode is Mode.EVAL else self._steps.predict
        rows = PartitionSpec("data")

        def build() -> tuple[Any, ...]:
            variables = {"params": state["params"], "model_state": state["model_state"]}
            out = PartitionSpec() if mode is Mode.EVAL else rows
            specs = {"in_specs": (PartitionSpec(), rows), "out_specs": out}
            batch = self.batch(mode, spec, size)
            return mode.value, lambda variables, batch: function(variables, batch, spec), (variables, batch), specs

        return self._once((mode, repr(spec.features if mode is Mode.PREDICT else spec), size), build)

    def train(self, spec: ElementSpec, state: State, size: int, loop: int, packed: bool) -> Program:
        """``train``: (state, batch) -> (state, outputs); with ``loop`` > 1, (state, stack of batches, count).

        packed: the state is taken and given as vectors (:class:`Packing`).
        """
        steps = self._steps

        def build() -> tuple[Any, ...]:
            batch = self.batch(Mode.TRAIN, spec, size, loop)
            specs: dict[str, Any] = {"donate": (0,), "out_specs": PartitionSpec()}
            if loop > 1:
                specs["in_specs"] = (PartitionSpec(), PartitionSpec(None, "data"), PartitionSpec())
                count = jax.ShapeDtypeStruct((), jnp.int32)
                return "train", lambda s, b, n: steps.train_loop(s, b, n, spec), (state, batch, count), specs
            specs["in_specs"] = (PartitionSpec(), PartitionSpec("data"))
            if not packed:
                return "train", lambda state, batch: steps.train(state, batch, spec), (state, batch), specs
            packing = Packing(state)

            def step(vectors: Any, batch: Any) -> Any:
                new, outputs = steps.train(packing.unpack(vectors), batch, spec)
                return packing.pack(new), outputs

            specs["budget"] = self._packed_budget  # beside the same program as it is checked
            return "train", step, (jax.eval_shape(packing.pack, state), batch), specs

        return self._once((Mode.TRAIN, repr(spec), size, loop, packed), build)

    def has_convolutions(self, spec: ElementSpec, state: State, size: int) -> bool:
        """Whether a training step convolves."""
        key = ("convolutions", repr(spec), size)
        if key not in self._known:
            step = jax.make_jaxpr(lambda state, batch: self._steps.train(state, batch, spec.device))
            self._known[key] = "conv_general_dilated" in str(step(state, self.batch(Mode.TRAIN, spec.device, size)))
        return self._known[key]

    def _once(self, key: Any, build: Any) -> Program:
        if key not in self._made:
            name, function, arguments, specs = build()
            specs = {"budget": self._budget, "eager": self._config.eager, **specs}
            self._made[key] = Program(function, *arguments, name=name, **specs)
        return self._made[key]

    def batch(self, mode: Mode, spec: ElementSpec, size: int, loop: int = 1) -> dict[str, Any]:
        """The batch argument of a mode's Program (shapes); a stack of ``loop`` of them for the device loop."""
        stack = loop if loop > 1 else None
        features, labels = spec.batched(size, stack)
        batch = {"features": features}
        if labels is not None and mode is not Mode.PREDICT:
            batch["labels"] = labels
        if mode is Mode.EVAL or (mode is Mode.TRAIN and self._config.tail == "pad"):
            batch["mask"] = jax.ShapeDtypeStruct((size,) if stack is None else (stack, size), jnp.bool_)
        return batch
