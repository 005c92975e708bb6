"""Metrics that are exact over a whole data set, whatever the batch size, the padding or the number of devices.

A metric is two pure halves. ``sums(mask)`` runs on the device, once a batch, and returns a small dict of arrays that
may be added up (or, where the metric says so, combined by max or min) over batches, devices and hosts.
``finalize(totals)`` runs on the host, once, on those totals in float64. Nothing else is kept, so the order and the
size of the batches cannot show in the result, beyond the rounding of one batch's float32 sum.

Not for quantities that need every prediction at once (a rank correlation, a confusion plot): return these as
predictions and compute them from ``estimator.predict``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from systolic._errors import InputError

Reduction = Literal["sum", "max", "min"]


class Metric:
    """Base class; subclass it for a metric of your own.

    A subclass sets ``values`` (an array whose first dimension is the batch: the shape checks look at it), implements
    :meth:`sums` and the static :meth:`finalize`, and names in ``reductions`` the entries that are not added up.
    """

    reductions: ClassVar[Mapping[str, Reduction]] = {}
    """How an entry of :meth:`sums` is combined over batches; an entry that is not named is added."""

    values: jax.Array
    label: str = ""
    """The name it was given in ``EstimatorSpec.metrics``, for messages."""

    def sums(self, mask: jax.Array | None) -> dict[str, jax.Array]:
        """This batch's contribution: a dict of arrays of fixed shape.

        ``mask`` is bool ``[batch]``, true for real examples, or None where all are real. Entries that it excludes
        must not reach the result, not even as NaN: replace them with ``jnp.where`` before multiplying.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement sums(mask)")

    @staticmethod
    def finalize(totals: Mapping[str, np.ndarray]) -> float:
        """The metric's value from the totals (float64) of all batches; NaN where there was no example."""
        raise NotImplementedError("a Metric must implement the static method finalize(totals)")


class Mean(Metric):
    """Weighted mean of ``values``; what a plain array in ``EstimatorSpec.metrics`` becomes.

    values: ``[batch, ...]``, number or bool. weights: None (each entry counts one), or an array whose shape is a
    prefix of that of ``values``; an entry of weight zero is left out even if its value is NaN.
    """

    def __init__(self, values: Any, weights: Any = None):
        self.values = _floats(values)
        argument = f"{type(self).__name__}(weights=...)"
        self.weights = None if weights is None else _weights(self.values, weights, argument)

    def sums(self, mask: jax.Array | None) -> dict[str, jax.Array]:
        value, weight = masked_sums(self.values, self.weights, mask, f"metric {self.label!r}")
        return {"sum": value, "weight": weight}

    @staticmethod
    def finalize(totals: Mapping[str, np.ndarray]) -> float:
        return _ratio(totals["sum"], totals["weight"])


class Sum(Mean):
    """Weighted sum of ``values`` over all examples; arguments as for :class:`Mean`. Zero where there was no example."""

    @staticmethod
    def finalize(totals: Mapping[str, np.ndarray]) -> float:
        return float(totals["sum"])


class RootMean(Mean):
    """Square root of the weighted mean: the RMSE if ``values`` are squared errors. Arguments as for :class:`Mean`."""

    @staticmethod
    def finalize(totals: Mapping[str, np.ndarray]) -> float:
        mean = Mean.finalize(totals)
        return math.sqrt(mean) if mean >= 0 else math.nan


class Perplexity(Mean):
    """``exp`` of the weighted mean of ``values``, which are negative log likelihoods in nats, usually per token.

    Infinite where it does not fit a float64. Arguments as for :class:`Mean`.
    """

    @staticmethod
    def finalize(totals: Mapping[str, np.ndarray]) -> float:
        mean = Mean.finalize(totals)
        try:
            return math.exp(mean)
        except OverflowError:
            return math.inf


class _Confusion(Metric):
    """Counts shared by the metrics of a binary decision.

    predictions, labels: bool (or 0/1) arrays of one shape ``[batch, ...]``; weights as for :class:`Mean`.
    """

    def __init__(self, predictions: Any, labels: Any, weights: Any = None):
        name = type(self).__name__
        self.values = _booleans(predictions, f"{name}(predictions=...)")
        self.labels = _booleans(labels, f"{name}(labels=...)")
        _same_shape(self.values, self.labels, name)
        self.weights = _weights(self.values, weights, f"{name}(weights=...)")

    def sums(self, mask: jax.Array | None) -> dict[str, jax.Array]:
        def count(hits: jax.Array) -> jax.Array:
            return masked_sums(_floats(hits), self.weights, mask, f"metric {self.label!r}")[0]

        return {
            "true_positive": count(self.values & self.labels),
            "false_positive": count(self.values & ~self.labels),
            "false_negative": count(~self.values & self.labels),
        }


class Precision(_Confusion):
    """True positives over predicted positives; zero where nothing was predicted positive, as in scikit-learn.

    predictions, labels: bool (or 0/1) arrays of one shape ``[batch, ...]``; weights as for :class:`Mean`.
    """

    @staticmethod
    def finalize(totals: Mapping[str, np.ndarray]) -> float:
        return _ratio(totals["true_positive"], totals["true_positive"] + totals["false_positive"], empty=0.0)


class Recall(_Confusion):
    """True positives over real positives; zero where there are none, as in scikit-learn.

    predictions, labels: bool (or 0/1) arrays of one shape ``[batch, ...]``; weights as for :class:`Mean`.
    """

    @staticmethod
    def finalize(totals: Mapping[str, np.ndarray]) -> float:
        return _ratio(totals["true_positive"], totals["true_positive"] + totals["false_negative"], empty=0.0)


class F1(_Confusion):
    """Harmonic mean of precision and recall over the whole data set; zero where both are.

    predictions, labels: bool (or 0/1) arrays of one shape ``[batch, ...]``; weights as for :class:`Mean`.
    """

    @staticmethod
    def finalize(totals: Mapping[str, np.ndarray]) -> float:
        hits = 2.0 * totals["true_positive"]
        return _ratio(hits, hits + totals["false_positive"] + totals["false_negative"], empty=0.0)


class AUC(Metric):
    """Area under the ROC curve, from a histogram of the scores.

    scores: probabilities in [0, 1] (others are clipped), ``[batch, ...]``; labels: bool (or 0/1) of that shape;
    weights as for :class:`Mean`; bins: number of equal bins.

    The exact area needs all scores sorted. Here two scores in one bin count as a tie (one half, the trapezoid rule),
    so the error is at most half the share of (positive, negative) pairs that fall into one bin: zero if scores are
    multiples of the bin width, and of the order of ``1 / bins`` for spread scores. Saturated scores (all near 0 or 1)
    are the bad case: pass ranks or a tempered probability. NaN where a class is absent.
    """

    def __init__(self, scores: Any, labels: Any, weights: Any = None, bins: int = 512):
        self.values = _floats(scores)
        self.labels = _booleans(labels, "AUC(labels=...)")
        _same_shape(self.values, self.labels, "AUC")
        self.weights = _weights(self.values, weights, "AUC(weights=...)")
        if bins < 2:
            raise InputError(f"AUC(bins=...): got {bins}, wanted at least 2 bins.")
        self.bins = bins

    def sums(self, mask: jax.Array | None) -> dict[str, jax.Array]:
        weights = _expand(mask, self.weights, f"metric {self.label!r}")
        bins = jnp.floor(jnp.clip(self.values, 0.0, 1.0) * self.bins).astype(jnp.int32)
        bins = jnp.minimum(bins, self.bins - 1).reshape(-1, 1)
        # Compare and reduce rather than scatter: XLA fuses it, nothing of size [batch, bins] is stored, and it is
        # exact in float32 where a one-hot matrix product on a TPU would round the weights to bfloat16.
        hit = bins == jnp.arange(self.bins)[None, :]

        def histogram(of: jax.Array) -> jax.Array:
            return jnp.where(hit, jnp.where(of, weights, 0).reshape(-1, 1), 0).sum(axis=0)

        # A NaN score of a real example must show; its bin would be arbitrary.
        nan = jnp.where(weights != 0, jnp.isnan(self.values), False).any().astype(jnp.float32)
        return {"positive": histogram(self.labels), "negative": histogram(~self.labels), "nan": nan}

    @staticmethod
    def finalize(totals: Mapping[str, np.ndarray]) -> float:
        positive, negative = np.asarray(totals["positive"]), np.asarray(totals["negative"])
        if totals["nan"]:
            return math.nan
        below = np.cumsum(negative) - negative
        return _ratio((positive * (below + 0.5 * negative)).sum(), positive.sum() * negative.sum())


class Max(Metric):
    """Largest of ``values`` ``[batch, ...]``; NaN where there was no example or one value is NaN."""

    reductions: ClassVar[Mapping[str, Reduction]] = {"extreme": "max"}

    def __init__(self, values: Any):
        self.values = _floats(values)

    def sums(self, mask: jax.Array | None) -> dict[str, jax.Array]:
        ones = jnp.ones_like(self.values)
        real = _expand(mask, ones, f"metric {self.label!r}") != 0
        return {
            "extreme": self._extreme(real),
            "count": jnp.where(real, ones, 0).sum(),
            # Max and min of arrays on different hosts do not promise to carry a NaN; a count does.
            "nan": jnp.where(real, jnp.isnan(self.values), False).sum().astype(ones.dtype),
        }

    def _extreme(self, real: jax.Array) -> jax.Array:
        return jnp.where(real & ~jnp.isnan(self.values), self.values, -jnp.inf).max()

    @staticmethod
    def finalize(totals: Mapping[str, np.ndarray]) -> float:
        return float(totals["extreme"]) if totals["count"] > 0 and not totals["nan"] else math.nan


class Min(Max):
    """Smallest of ``values`` ``[batch, ...]``; NaN where there was no example or one value is NaN."""

    reductions: ClassVar[Mapping[str, Reduction]] = {"extreme": "min"}

    def _extreme(self, real: jax.Array) -> jax.Array:
        return jnp.where(real & ~jnp.isnan(self.values), self.values, jnp.inf).min()


def masked_sums(
    values: jax.Array, weights: jax.Array | None, mask: jax.Array | None, what: str
) -> tuple[jax.Array, jax.Array]:
    """``(sum of weights * values, sum of weights)`` over the real entries, in the dtype of ``values`` (>= float32).

    values ``[batch, ...]`` float; weights None or a shape that is a prefix of that of values; mask bool ``[batch]`` or
    None. An entry with mask false or weight zero contributes an exact zero, whatever its value, also to the gradient
    with respect to ``values``. InputError if values is a scalar and there is a mask (``what`` names it).
    """
    if weights is None and mask is None:
        return values.sum(), jnp.full((), values.size, values.dtype)
    weights = _expand(mask, _weights(values, weights, f"weights of the {what}"), what)
    return (jnp.where(weights != 0, values, 0) * weights).sum(), weights.sum()


def _expand(mask: jax.Array | None, weights: jax.Array, what: str) -> jax.Array:
    """Weights with those of masked examples replaced by zero (a NaN weight in padding included)."""
    if mask is None:
        return weights
    if weights.ndim == 0:
        raise InputError(
            f"model_fn: the {what} is a scalar, but this batch may hold padding, which has already been averaged into "
            "it. Return one value per example (shape [batch]) and the mean over the real ones is taken for you: with "
            "optax, leave out .mean(). A scalar is accepted only for steps whose batches are always full."
        )
    mask = jnp.asarray(mask, bool)
    return jnp.where(mask.reshape(mask.shape + (1,) * (weights.ndim - mask.ndim)), weights, 0)


def _weights(values: jax.Array, weights: Any, argument: str) -> jax.Array:
    """Weights broadcast to the shape of values, in their dtype (float32 for bools)."""
    values = _floats(values)
    if weights is None:
        return jnp.ones_like(values)
    weights = jnp.asarray(weights)
    if weights.shape != values.shape[: weights.ndim]:
        raise InputError(
            f"{argument}: got shape {weights.shape} for values of shape {values.shape}; wanted a shape that the "
            f"values' shape begins with, such as {values.shape[:1]}."
        )
    weights = weights.astype(values.dtype).reshape(weights.shape + (1,) * (values.ndim - weights.ndim))
    return jnp.broadcast_to(weights, values.shape)


def _floats(values: Any) -> jax.Array:
    """Values as float32, or as float64 if they are: a sum in bfloat16 would stop counting at 256."""
    values = jnp.asarray(values)
    return values.astype(jnp.float64 if values.dtype == jnp.float64 else jnp.float32)


def _booleans(values: Any, argument: str) -> jax.Array:
    values = jnp.asarray(values)
    if jnp.issubdtype(values.dtype, jnp.inexact):
        raise InputError(
            f"{argument}: got dtype {values.dtype}, wanted bool or integer 0/1. Threshold it, as in probability > 0.5."
        )
    return values.astype(bool)


def _same_shape(first: jax.Array, labels: jax.Array, name: str) -> None:
    if first.shape != labels.shape:
        raise InputError(f"{name}: got shape {first.shape} against labels of shape {labels.shape}; wanted the same.")


def _ratio(numerator: Any, denominator: Any, empty: float = math.nan) -> float:
    return float(numerator) / float(denominator) if denominator != 0 else empty
