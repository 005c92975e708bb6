"""Metrics that are exact over a whole data set, whatever the batch size, the padding or the number of devices.

A metric is two pure halves. ``sums(mask)`` runs on the device, once a batch, and returns a small dict of arrays that
may be added up (or, where the metric says so, combined by max or min) over batches, devices and hosts.
``finalize(totals)`` runs on the host, once, on those totals in float64. Nothing else is kept, so the order and the
size of the batches cannot show in the result, beyond the rounding of one batch's float32 sum.

What comes out where there is nothing to count, or something that cannot be counted: with no example, or weights that
are all zero, Mean, RootMean, Perplexity, AUC, Max and Min are NaN, and Sum, Precision, Recall and F1 are 0. A negative
or NaN weight, an integer other than 0 and 1 where a bool is wanted, and a NaN among the values, of an example that
counts, make the result NaN; padding and entries of weight zero never do.

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
from systolic.estimator._weighted import booleans, expand, floats, masked_sums, same_shape, spoilt, weights_of

Reduction = Literal["sum", "max", "min"]

_ROUNDING = 1e-5
"""How far a float32 softmax, or a sum of its entries, may go beyond 1."""


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
    prefix of that of ``values``, none of them negative; an entry of weight zero is left out even if its value is NaN.
    """

    def __init__(self, values: Any, weights: Any = None):
        name = type(self).__name__
        self.values = floats(values, f"{name}(values=...)")
        self.weights = None if weights is None else weights_of(self.values, weights, f"{name}(weights=...)")

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
    """Square root of the weighted mean: the RMSE if ``values`` are squared errors; NaN if it is negative.

    Arguments as for :class:`Mean`.
    """

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
        self.values, other = booleans(predictions, f"{name}(predictions=...)")
        self.labels, neither = booleans(labels, f"{name}(labels=...)")
        same_shape(self.values, self.labels, name)
        self.weights = spoilt(weights_of(self.values, weights, f"{name}(weights=...)"), other | neither, "not_0_or_1")

    def sums(self, mask: jax.Array | None) -> dict[str, jax.Array]:
        def count(hits: jax.Array) -> jax.Array:
            return masked_sums(hits.astype(self.weights.dtype), self.weights, mask, f"metric {self.label!r}")[0]

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

    scores: probabilities in [0, 1], ``[batch, ...]``; labels: bool (or 0/1) of that shape; weights as for
    :class:`Mean`; bins: number of equal bins. A score beyond [0, 1] by more than rounding makes the result NaN: of
    logits take ``jax.nn.sigmoid`` first, which keeps their order.

    The exact area needs all scores sorted. Here two scores in one bin count as a tie (one half, the trapezoid rule),
    so the error is at most half the share of (positive, negative) pairs that fall into one bin: zero if scores are
    multiples of the bin width, and of the order of ``1 / bins`` for spread scores. Saturated scores (all near 0 or 1)
    are the bad case: pass ranks or a tempered probability. NaN where a class is absent.
    """

    def __init__(self, scores: Any, labels: Any, weights: Any = None, bins: int = 512):
        if not isinstance(bins, int | np.integer) or isinstance(bins, bool) or bins < 2:
            raise InputError(f"AUC(bins=...): got {bins!r}, wanted a whole number of at least 2.")
        self.bins = int(bins)
        self.values = floats(scores, "AUC(scores=...)")
        self.labels, neither = booleans(labels, "AUC(labels=...)")
        same_shape(self.values, self.labels, "AUC")
        no_probability = ~(jnp.abs(self.values - 0.5) <= 0.5 + _ROUNDING)  # NaN included
        weights = spoilt(weights_of(self.values, weights, "AUC(weights=...)"), neither, "not_0_or_1")
        self.weights = spoilt(weights, no_probability, "not_a_probability")

    def sums(self, mask: jax.Array | None) -> dict[str, jax.Array]:
        weights = expand(mask, self.weights, f"metric {self.label!r}")
        bins = jnp.floor(jnp.clip(self.values, 0.0, 1.0) * self.bins).astype(jnp.int32)
        bins = jnp.minimum(bins, self.bins - 1).reshape(-1, 1)
        # Compare and reduce rather than scatter: XLA fuses it, nothing of size [batch, bins] is stored, and it is
        # exact in float32 where a one-hot matrix product on a TPU would round the weights to bfloat16.
        hit = bins == jnp.arange(self.bins)[None, :]

        def histogram(of: jax.Array) -> jax.Array:
            return jnp.where(hit, jnp.where(of, weights, 0).reshape(-1, 1), 0).sum(axis=0)

        return {"positive": histogram(self.labels), "negative": histogram(~self.labels)}

    @staticmethod
    def finalize(totals: Mapping[str, np.ndarray]) -> float:
        positive, negative = np.asarray(totals["positive"]), np.asarray(totals["negative"])
        below = np.cumsum(negative) - negative
        return _ratio((positive * (below + 0.5 * negative)).sum(), positive.sum() * negative.sum())


class Max(Metric):
    """Largest of ``values`` ``[batch, ...]``; NaN where there was no example or one value is NaN."""

    reductions: ClassVar[Mapping[str, Reduction]] = {"extreme": "max"}

    def __init__(self, values: Any):
        self.values = floats(values, f"{type(self).__name__}(values=...)")

    def sums(self, mask: jax.Array | None) -> dict[str, jax.Array]:
        ones = jnp.ones_like(self.values)
        real = expand(mask, ones, f"metric {self.label!r}") != 0
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


def _ratio(numerator: Any, denominator: Any, empty: float = math.nan) -> float:
    return float(numerator) / float(denominator) if denominator != 0 else empty
