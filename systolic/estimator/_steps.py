"""The pure functions of a model: init, one training step, a loop of steps, evaluation and prediction of one batch.

State is one pytree of plain arrays: ``params``, ``model_state`` (batch statistics and the like), ``opt_state``, ``ema``
(when asked for) and ``clock`` (see :class:`Clock`).

A batch is a dict of ``features``, ``labels`` (absent when there are none) and, where rows may be padding, ``mask``
(bool, one per row).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from systolic._errors import InputError
from systolic.data import ElementSpec, to_device_dtypes
from systolic.estimator._gradient import value_and_grad
from systolic.estimator._mode import Mode
from systolic.estimator._model_call import call_model_fn
from systolic.estimator._precision import Precision
from systolic.estimator._spec import Finalizer, finalizers, metric_sums, reduce_loss
from systolic.estimator._totals import combine
from systolic.estimator.adapters import Adapter

State = dict[str, Any]
BatchTree = Mapping[str, Any]


SCALAR_LOSS = (
    "RunConfig(tail='pad'): model_fn returns a scalar loss, and a batch holds padding, so its mean would be over padding "
    "too. Return one loss per example (drop the .mean()), or use tail='carry'"
)


_GUARDED_GRADIENT = 1 << 16
"""Parameters from which on each step's gradient is looked at, too. In a smaller model that would take a good part of the
step; there a bad gradient shows as a bad loss in the step after, and no checkpoint is written with bad parameters."""


class Clock(NamedTuple):
    """Where training stands, kept as one small array: every array of the state costs host time at each dispatch.

    Attributes:
        step: steps done, uint32.
        halted: 1 when a loss was not finite: the state stands as it was before that step; else 0, uint32.
        rng: key data, uint32[n]; the key of a step is folded from it and ``step``, so that a resumed run draws the same.
    """

    step: Any
    halted: Any
    rng: Any

    def pack(self) -> jax.Array:
        """As one array, uint32[2 + n]."""
        return jnp.concatenate([jnp.stack([self.step, self.halted]).astype(jnp.uint32), self.rng])

    @classmethod
    def unpack(cls, packed: Any) -> Clock:
        """From what :meth:`pack` made."""
        return cls(packed[0], packed[1], packed[2:])

    def key(self) -> jax.Array:
        """The PRNG key of the next step."""
        return jax.random.fold_in(jax.random.wrap_key_data(self.rng), self.step)


@dataclasses.dataclass(frozen=True)
class Steps:
    """What to learn and how, as pure functions of state and batch.

    Attributes:
        adapter: the model behind its adapter.
        model_fn: the user's function of (model, features, labels, mode).
        optimizer: optax transformation; gradients reach it as means over the real rows of the whole global batch.
        hyper: passed to ``model_fn`` as ``params`` where it has such a parameter.
        precision: the dtype in which the model computes.
        accumulate: microbatches per step; gradients are summed over them and divided once.
        ema: decay of the moving average of parameters, or ``None``.
        guard: freeze the state at the first loss that is not finite.
        finalizers: found while tracing: how each mode's sums combine and what they come to.
        scalar_loss: found while tracing: modes whose loss is one number per batch, which must then be full.
    """

    adapter: Adapter
    model_fn: Callable[..., Any]
    optimizer: optax.GradientTransformation | None
    hyper: Any = None
    precision: Precision = dataclasses.field(default_factory=Precision)
    accumulate: int = 1
    ema: float | None = None
    guard: bool = True
    finalizers: dict[Mode, dict[str, Finalizer]] = dataclasses.field(default_factory=dict)
    scalar_loss: set[Mode] = dataclasses.field(default_factory=set)

    def init(self, rng: jax.Array, spec: ElementSpec) -> State:
        """A fresh state; ``rng`` is uint32 key data, ``spec`` the examples' shapes (for models that infer theirs)."""
        key = jax.random.wrap_key_data(rng)
        features, labels = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec.batched(2))
        batch = _batch(features, labels)

        def run(bound: Any) -> None:
            self._call(bound, batch, spec, Mode.TRAIN, key)

        params, model_state = self.adapter.init(key, run)
        state: State = {
            "params": params,
            "model_state": model_state,
            "opt_state": () if self.optimizer is None else self.optimizer.init(params),
            "clock": Clock(jnp.uint32(0), jnp.uint32(0), rng).pack(),
        }
        if self.ema is not None:
            state["ema"] = jax.tree.map(jnp.copy, params)
        return state

    def train(self, state: State, batch: BatchTree, spec: ElementSpec) -> tuple[State, dict[str, Any]]:
        """One step. Returns the new state and scalars: ``loss`` (NaN once halted), ``metrics`` (sums), ``learning_rate``."""
        if self.optimizer is None:
            raise InputError("Estimator(optimizer): training needs an optimizer; pass one, e.g. optax.adamw(1e-3)")
        clock = Clock.unpack(state["clock"])
        key = clock.key()
        loss, sums, grads, model_state = self._gradients(state, batch, spec, key)
        optimizer = optax.with_extra_args_support(self.optimizer)  # some, such as reduce_on_plateau, look at the loss
        updates, opt_state = optimizer.update(grads, state["opt_state"], state["params"], value=loss)
        new: State = {
            "params": optax.apply_updates(state["params"], updates),
            "model_state": model_state,
            "opt_state": opt_state,
        }
        if self.ema is not None:
            new["ema"] = optax.incremental_update(new["params"], state["ema"], 1.0 - self.ema)
        halted = clock.halted != 0
        if self.guard:
            # The selects read what the update reads anyway: they fuse with it and cost no memory traffic.
            halted = halted | ~jnp.isfinite(loss)
            if sum(g.size for g in jax.tree.leaves(grads)) >= _GUARDED_GRADIENT:
                halted = halted | ~_all_finite(grads)
            new = {
                name: jax.tree.map(lambda n, o: jnp.where(halted, o, n), tree, state[name])
                for name, tree in new.items()
            }
        moved = halted.astype(jnp.uint32)
        new["clock"] = Clock(clock.step + 1 - moved, moved, clock.rng).pack()
        # One scalar tells the host both: the loss, and (as NaN, from then on) that the state stands still.
        outputs = {"loss": jnp.where(halted, jnp.nan, loss), "metrics": sums, **_learning_rate(opt_state)}
        return new, outputs

    def train_loop(
        self, state: State, batches: BatchTree, count: jax.Array, spec: ElementSpec
    ) -> tuple[State, dict[str, Any]]:
        """``count`` steps over the first ``count`` of K stacked batches; scalars come back as arrays of K.

        The count is an argument, so a loop cut short by an evaluation, a checkpoint or a resume runs the same program.
        """
        size = jax.tree.leaves(batches)[0].shape[0]

        def pick(i: Any) -> Any:
            return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), batches)

        shapes = jax.eval_shape(lambda s: self.train(s, pick(0), spec)[1], state)
        blank = jax.tree.map(lambda s: jnp.zeros((size, *s.shape), s.dtype), shapes)

        def body(i: Any, carry: Any) -> Any:
            state, outputs = carry
            state, scalars = self.train(state, pick(i), spec)
            return state, jax.tree.map(lambda o, s: o.at[i].set(s), outputs, scalars)

        return jax.lax.fori_loop(0, count, body, (state, blank))

    def evaluate(self, variables: State, batch: BatchTree, spec: ElementSpec) -> dict[str, Any]:
        """Masked sums over one batch, ``loss`` among them, ready to be added up: ``{metric: {entry: array}}``."""
        bound = self._bind(variables["params"], variables["model_state"], Mode.EVAL, jax.random.key(0))
        out = self._call(bound, batch, spec, Mode.EVAL, jax.random.key(0))
        return self._sums(out, self._mask(out, batch, Mode.EVAL), Mode.EVAL)

    def predict(self, variables: State, batch: BatchTree, spec: ElementSpec) -> Any:
        """The predictions of one batch, a pytree with leading dimension batch."""
        bound = self._bind(variables["params"], variables["model_state"], Mode.PREDICT, jax.random.key(0))
        out = self._call(bound, batch, spec, Mode.PREDICT, jax.random.key(0))
        return self.precision.widen(out.predictions)

    def loss(
        self, params: Any, model_state: Any, batch: BatchTree, spec: ElementSpec, key: jax.Array
    ) -> tuple[Any, Any]:
        """Weighted sum of the batch's losses, and (weight, metric sums, new model_state)."""
        bound = self._bind(params, model_state, Mode.TRAIN, key)
        out = self._call(bound, batch, spec, Mode.TRAIN, key)
        if isinstance(out.loss, Mapping):
            raise InputError(
                f"EstimatorSpec(loss=...): saw a dict of losses ({', '.join(out.loss)}) and one optimizer; add them up, "
                "each with its weight, to one array with a value per example"
            )
        mask = self._mask(out, batch, Mode.TRAIN)
        total, weight = reduce_loss(out, mask)
        sums = self._sums(out, mask, Mode.TRAIN)
        del sums["loss"]  # it is the objective, which is reported as it was differentiated
        return total, (weight, sums, self.adapter.unbind(bound))

    def _gradients(
        self, state: State, batch: BatchTree, spec: ElementSpec, key: jax.Array
    ) -> tuple[Any, Any, Any, Any]:
        def value(params: Any, model_state: Any, batch: BatchTree, key: jax.Array) -> Any:
            return self.loss(params, model_state, batch, spec, key)

        differentiate = value_and_grad(value)
        if self.accumulate == 1:
            (total, (weight, sums, model_state)), grads = differentiate(
                state["params"], state["model_state"], batch, key
            )
        else:
            total, weight, sums, model_state, grads = self._accumulate(differentiate, state, batch, key)
        scale = jnp.where(weight > 0, 1.0 / jnp.where(weight > 0, weight, 1.0), 0.0)
        return total * scale, sums, jax.tree.map(lambda g: g * scale.astype(g.dtype), grads), model_state

    def _accumulate(self, differentiate: Callable, state: State, batch: BatchTree, key: jax.Array) -> tuple[Any, ...]:
        # Row i goes to microbatch i mod n: each device's rows stay on it, whatever the number of devices.
        n = self.accumulate
        micro = jax.tree.map(lambda x: x.reshape(x.shape[0] // n, n, *x.shape[1:]).swapaxes(0, 1), dict(batch))

        def body(carry: Any, i_part: Any) -> Any:
            done, model_state = carry
            i, part = i_part
            (total, (weight, sums, model_state)), grads = differentiate(
                state["params"], model_state, part, jax.random.fold_in(key, i)
            )
            return (jax.tree.map(jnp.add, done, grads), model_state), (total, weight, sums)

        blank = jax.tree.map(jnp.zeros_like, state["params"])
        (grads, model_state), (totals, weights, sums) = jax.lax.scan(
            body, (blank, state["model_state"]), (jnp.arange(n), micro)
        )
        return totals.sum(), weights.sum(), combine(sums, self.finalizers[Mode.TRAIN]), model_state, grads

    def _bind(self, params: Any, model_state: Any, mode: Mode, key: jax.Array) -> Any:
        return self.adapter.bind(self.precision.narrow(params), model_state, mode, key)

    def _call(self, bound: Any, batch: BatchTree, spec: ElementSpec, mode: Mode, key: jax.Array) -> Any:
        features = to_device_dtypes(batch["features"], spec.features)
        labels = (
            to_device_dtypes(batch["labels"], spec.labels) if "labels" in batch and mode is not Mode.PREDICT else None
        )
        return call_model_fn(
            self.model_fn,
            self.precision.wrap(bound),
            self.precision.narrow(features),
            labels,
            mode,
            params=self.hyper,
            rngs=jax.random.fold_in(key, 1),
            host_only=spec.host_only,
        )

    def _mask(self, out: Any, batch: BatchTree, mode: Mode) -> Any:
        # A scalar was averaged over its batch before we see it: right for full batches, and the loops refuse others.
        if not isinstance(out.loss, Mapping) and jnp.ndim(out.loss) == 0:
            self.scalar_loss.add(mode)
            mask = batch.get("mask")
            if (
                mask is not None and not isinstance(mask, jax.core.Tracer) and not mask.all()
            ):  # eager: the loops are late
                raise InputError(SCALAR_LOSS)
            return None
        return batch.get("mask")

    def _sums(self, out: Any, mask: Any, mode: Mode) -> dict[str, Any]:
        self.finalizers[mode] = finalizers(out)
        return metric_sums(out, mask)


def _all_finite(tree: Any) -> jax.Array:
    # Not by the largest magnitude: the maximum of a long vector may lose a NaN on the CPU.
    return jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]).all()


def _batch(features: Any, labels: Any) -> dict[str, Any]:
    return {"features": features} if labels is None else {"features": features, "labels": labels}


def _learning_rate(opt_state: Any) -> dict[str, Any]:
    found = optax.tree_utils.tree_get_all_with_path(opt_state, "learning_rate")
    return {"learning_rate": found[0][1]} if found else {}
