"""What a model function returns, and its reduction to numbers that may be added up over batches.

The model function speaks of examples; this file owns everything that turns examples into scalars: the padding mask,
the weights, the checks of shapes. All of it happens while the program is traced: a wrong shape costs no compile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, get_args

import jax
import jax.numpy as jnp

from systolic._errors import InputError
from systolic.estimator import _metrics
from systolic.estimator._metrics import Mean, Metric, Reduction
from systolic.estimator._mode import Mode
from systolic.estimator._names import check_names
from systolic.estimator._weighted import array_of, masked_sums


@dataclasses.dataclass(frozen=True, eq=False)
class EstimatorSpec:
    """The result of a model function, per example: the framework reduces.

    loss: one value per example ``[batch]``, or per token and so on ``[batch, ...]``; the objective is its weighted mean
      over all entries of the global batch. A scalar is taken as it is, where no example of the batch is padding. A
      dict ``name -> loss`` serves several objectives (one optimizer each). Needed for TRAIN and EVAL.
    predictions: a pytree of arrays whose first dimension is the batch. Needed for PREDICT.
    metrics: ``name -> array [batch, ...]`` (reported as its weighted mean) or ``name ->`` :class:`Metric`.
    weights: None, or an array whose shape is a prefix of the loss's: ``[batch]``, ``[batch, sequence]`` (zero for
      padded tokens). Also weighs metrics given as plain arrays; a :class:`Metric` brings its own.
      With a dict of losses, one array for all or a dict of the same names. Weights are constants to the gradient. They
      are not negative: a negative or NaN weight makes the loss NaN. Where they are all zero, a step's loss and gradient
      are zero, and the loss of an evaluation is NaN.
    """

    loss: Any = None
    predictions: Any = None
    metrics: Mapping[str, Any] | None = None
    weights: Any = None

    def metric_objects(self) -> dict[str, Metric]:
        """The metrics, each a :class:`Metric`: plain arrays have become a :class:`Mean` with the spec's weights."""
        table: dict[str, Metric] = {}
        for name, metric in metrics_of(self).items():
            if not isinstance(metric, Metric):
                metric = Mean(metric, _plain_weights(self, metric, name))
            metric.label = name
            table[name] = metric
        return table


@dataclasses.dataclass(frozen=True)
class Finalizer:
    """The static half of a metric: how its totals combine over batches, and what they come to on the host."""

    name: str | None
    """The metric's class, by which an exported model finds it again; None for a class that is not systolic's own."""
    finalize: Callable[[Mapping[str, Any]], float]
    reductions: Mapping[str, Reduction]


def check_spec(spec: Any, mode: Mode, batch_size: int | None, name: str = "model_fn") -> EstimatorSpec:
    """Return ``spec`` if it has what ``mode`` needs and every first dimension is ``batch_size``; else InputError.

    Shapes are read from abstract values, so it works while tracing. batch_size None leaves sizes unchecked.
    """
    if not isinstance(spec, EstimatorSpec):
        raise InputError(
            f"model_fn: {name} returned {type(spec).__name__}, wanted an EstimatorSpec. "
            "Write return sl.EstimatorSpec(loss=..., predictions=..., metrics=...)."
        )
    if mode is Mode.PREDICT:
        if spec.predictions is None or not jax.tree.leaves(spec.predictions):
            raise InputError(
                f"model_fn: {name} returned no predictions in mode PREDICT. Set EstimatorSpec(predictions=...) to a "
                "dict of arrays with one row per example."
            )
    elif spec.loss is None or (isinstance(spec.loss, Mapping) and not spec.loss):
        raise InputError(
            f"model_fn: {name} returned no loss in mode {mode.name}. Set EstimatorSpec(loss=...) to an array with one "
            "value per example."
        )
    _check_losses(spec, batch_size)
    for path, leaf in jax.tree_util.tree_leaves_with_path(spec.predictions):
        _check_rows(leaf, batch_size, f"EstimatorSpec(predictions=...) leaf {jax.tree_util.keystr(path) or 'itself'}")
    for metric_name, metric in metrics_of(spec).items():
        what = f"EstimatorSpec(metrics={{{metric_name!r}: ...}})"
        if isinstance(metric, Metric):
            _check_metric(metric, what)
        values = metric.values if isinstance(metric, Metric) else metric
        _check_rows(values, batch_size, what, scalar=True)
        array_of(values, what)
    return spec


def reduce_loss(spec: EstimatorSpec, mask: jax.Array | None, name: str | None = None) -> tuple[jax.Array, jax.Array]:
    """``(weighted sum, sum of weights)`` of the loss over the real examples; the objective is their ratio.

    Two float32 (or float64) scalars that add up over microbatches, devices and hosts. mask: bool ``[batch]``, true for
    real examples, or None where all are. name: which entry of a dict of losses. A scalar loss gives ``(loss, 1)``; with
    a mask it is an InputError, since what padding did to it cannot be undone.
    """
    loss, weights = loss_entry(spec, name)
    weights = None if weights is None else jax.lax.stop_gradient(weights)
    loss = jnp.asarray(loss)
    loss = loss.astype(jnp.float64 if loss.dtype == jnp.float64 else jnp.float32)
    return masked_sums(loss, weights, mask, "loss" if name is None else f"loss {name!r}")


def metric_sums(spec: EstimatorSpec, mask: jax.Array | None) -> dict[str, dict[str, jax.Array]]:
    """This batch's contributions to ``loss`` (``loss/NAME`` for a dict of losses) and to each metric.

    mask as for :func:`reduce_loss`. The structure is the same for every batch; :func:`finalizers` is the other half.
    """
    sums: dict[str, dict[str, jax.Array]] = {}
    for label, name in loss_names(spec).items():
        value, weight = reduce_loss(spec, mask, name)
        sums[label] = {"sum": value, "weight": weight}
    return sums | {name: metric.sums(mask) for name, metric in spec.metric_objects().items()}


def finalizers(spec: EstimatorSpec) -> dict[str, Finalizer]:
    """The static half of :func:`metric_sums`, under the same names; holds no array, so it may outlive the trace."""
    table = {label: Finalizer("Mean", Mean.finalize, {}) for label in loss_names(spec)}
    for name, metric in spec.metric_objects().items():
        table[name] = Finalizer(_own_class(metric), type(metric).finalize, dict(metric.reductions))
    return table


def _own_class(metric: Metric) -> str | None:
    """The class's name if it is one of systolic's; a user's class may well be called ``Sum`` too."""
    name = type(metric).__name__
    return name if getattr(_metrics, name, None) is type(metric) else None


def metrics_of(spec: EstimatorSpec) -> Mapping[str, Any]:
    if spec.metrics is None:
        return {}
    if not isinstance(spec.metrics, Mapping):
        raise InputError(
            f"EstimatorSpec(metrics=...): got {type(spec.metrics).__name__}, wanted a dict from name to an array per "
            "example or a sl.metrics.Metric."
        )
    check_names("metrics", spec.metrics)
    return spec.metrics


def loss_names(spec: EstimatorSpec) -> dict[str, str | None]:
    """Label under which a loss is reported -> its name for :func:`reduce_loss`."""
    if spec.loss is None:
        return {}
    if isinstance(spec.loss, Mapping):
        check_names("loss", spec.loss)
        return {f"loss/{name}": name for name in spec.loss}
    return {"loss": None}


def loss_entry(spec: EstimatorSpec, name: str | None) -> tuple[Any, Any]:
    losses, weights = spec.loss, spec.weights
    if losses is None:
        raise InputError("EstimatorSpec(loss=...): no loss was given. Return an array with one value per example.")
    if not isinstance(losses, Mapping):
        if name is not None:
            raise InputError(
                f"EstimatorSpec(loss=...): a loss named {name!r} was asked for, but model_fn returned a single loss. "
                f"Return a dict such as {{{name!r}: ...}}."
            )
        return losses, weights
    if name not in losses:
        raise InputError(
            f"EstimatorSpec(loss=...): model_fn returned the losses {sorted(losses)}; wanted one named {name!r}. Name "
            "the optimizers and the losses alike."
        )
    return losses[name], weights.get(name) if isinstance(weights, Mapping) else weights


def _check_losses(spec: EstimatorSpec, batch_size: int | None) -> None:
    for label, name in loss_names(spec).items():
        loss, weights = loss_entry(spec, name)
        what = "EstimatorSpec(loss=...)" if name is None else f"EstimatorSpec(loss={{{name!r}: ...}})"
        _check_rows(loss, batch_size, what, scalar=True)
        if not jnp.issubdtype(array_of(loss, what).dtype, jnp.floating):
            raise InputError(f"{what}: got dtype {jnp.result_type(loss)}, wanted a real floating-point array.")
        if weights is None:
            continue
        shape, seen = jnp.shape(loss), array_of(weights, "EstimatorSpec(weights=...)").shape
        if not seen or seen != shape[: len(seen)]:
            raise InputError(
                f"EstimatorSpec(weights=...): got shape {seen} for {label} of shape {shape}; wanted a shape that the "
                f"loss's begins with{', such as ' + str(shape[:1]) if shape else ''}."
            )


def _check_rows(leaf: Any, batch_size: int | None, what: str, scalar: bool = False) -> None:
    """InputError unless ``leaf`` is an array of ``batch_size`` rows (or, where allowed, a scalar)."""
    if not hasattr(leaf, "dtype") and not isinstance(leaf, int | float):
        raise InputError(f"{what}: got {type(leaf).__name__}, wanted an array with one row per example.")
    shape = jnp.shape(leaf)
    if scalar and not shape:
        return
    if not shape or (batch_size is not None and shape[0] != batch_size):
        rows = "the batch" if batch_size is None else str(batch_size)
        raise InputError(
            f"{what}: got shape {shape}, wanted its first dimension to be {rows}, one row per example. Do not reduce "
            "over the batch; that is done for you, without the padding."
        )


def _check_metric(metric: Metric, what: str) -> None:
    """InputError unless a metric of the user's own has what the base class asks for."""
    if not hasattr(metric, "values"):
        raise InputError(
            f"{what}: {type(metric).__name__} sets no values, wanted an array with one row per example: the shapes are "
            "checked by it. Assign self.values in __init__."
        )
    for entry, reduction in metric.reductions.items():
        if reduction not in get_args(Reduction):
            raise InputError(
                f"{what}: {type(metric).__name__}.reductions has {reduction!r} for {entry!r}, wanted one of "
                f"{', '.join(map(repr, get_args(Reduction)))}."
            )


def _plain_weights(spec: EstimatorSpec, values: Any, name: str) -> Any:
    """The spec's weights for a metric given as a plain array; a scalar takes none."""
    weights, shape = spec.weights, jnp.shape(values)
    if weights is None or isinstance(weights, Mapping) or not shape:
        return None
    if jnp.shape(weights) != shape[: jnp.ndim(weights)]:
        raise InputError(
            f"EstimatorSpec(metrics={{{name!r}: ...}}): got shape {shape}, which the weights of shape "
            f"{jnp.shape(weights)} do not fit. Give the metric its own: sl.metrics.Mean(values, weights=...), or "
            "weights=None for none."
        )
    return weights
