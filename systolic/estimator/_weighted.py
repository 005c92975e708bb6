"""Weighted sums over the real entries of a batch: what losses and metrics are made of.

Padding and entries of weight zero contribute an exact zero, whatever their value. What cannot be weighed (a negative
weight, a label that is neither 0 nor 1) turns the weight into NaN: only values tell, so it is the result that shows it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from systolic._errors import InputError


def masked_sums(
    values: jax.Array, weights: jax.Array | None, mask: jax.Array | None, what: str
) -> tuple[jax.Array, jax.Array]:
    """``(sum of weights * values, sum of weights)`` over the real entries, in the dtype of ``values`` (>= float32).

    values ``[batch, ...]`` float; weights None or a shape that is a prefix of that of values; mask bool ``[batch]`` or
    None. An entry with mask false or weight zero contributes an exact zero, whatever its value, also to the gradient
    with respect to ``values``; a negative weight makes both sums NaN. InputError if values is a scalar and there is a
    mask (``what`` names it).
    """
    if weights is None and mask is None:
        return values.sum(), jnp.full((), values.size, values.dtype)
    weights = expand(mask, weights_of(values, weights, f"weights of the {what}"), what)
    return (jnp.where(weights != 0, values, 0) * weights).sum(), weights.sum()


def expand(mask: jax.Array | None, weights: jax.Array, what: str) -> jax.Array:
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


def weights_of(values: jax.Array, weights: Any, argument: str) -> jax.Array:
    """Weights broadcast to the shape of values, in their dtype (float32 for bools); NaN where they are negative."""
    values = floats(values, argument)
    if weights is None:
        return jnp.ones_like(values)
    weights = array_of(weights, argument)
    if weights.shape != values.shape[: weights.ndim]:
        raise InputError(
            f"{argument}: got shape {weights.shape} for values of shape {values.shape}; wanted a shape that the "
            f"values' shape begins with, such as {values.shape[:1]}."
        )
    signed = weights.dtype != bool and not jnp.issubdtype(weights.dtype, jnp.unsignedinteger)
    weights = weights.astype(values.dtype).reshape(weights.shape + (1,) * (values.ndim - weights.ndim))
    if signed:
        weights = _nan_where(weights < 0, weights, "negative_weight")
    return jnp.broadcast_to(weights, values.shape)


def spoilt(weights: jax.Array, bad: jax.Array, why: str) -> jax.Array:
    """Weights with NaN where ``bad`` (bool, of their shape) holds of an entry that counts; ``why`` in one word."""
    return _nan_where(bad & (weights != 0), weights, why)


def _nan_where(bad: jax.Array, values: jax.Array, why: str) -> jax.Array:
    # By an operation that gives NaN for what is bad only, and under a name: where a loss is NaN, the first operation that
    # came to one is looked for, and a NaN written into the program would be found first in every program.
    with jax.named_scope(why):
        return values + jnp.sqrt(jnp.where(bad, -1, 0).astype(values.dtype))


def array_of(values: Any, argument: str) -> jax.Array:
    """Values as an array of real numbers or bools; InputError for anything else."""
    try:
        array = jnp.asarray(values)
    except (TypeError, ValueError) as error:
        seen = getattr(values, "dtype", None) or type(values).__name__
        raise InputError(f"{argument}: got {seen}, wanted an array of numbers.") from error
    if array.dtype != bool and not any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.integer, jnp.floating)):
        raise InputError(
            f"{argument}: got dtype {array.dtype}, wanted real numbers or bools. Of complex numbers take .real or jnp.abs."
        )
    return array


def floats(values: Any, argument: str) -> jax.Array:
    """Values as float32, or as float64 if they are: a sum in bfloat16 would stop counting at 256."""
    values = array_of(values, argument)
    return values.astype(jnp.float64 if values.dtype == jnp.float64 else jnp.float32)


def booleans(values: Any, argument: str) -> tuple[jax.Array, jax.Array]:
    """Values as bools, and where they were neither: integers other than 0 and 1. InputError for floats."""
    values = array_of(values, argument)
    if jnp.issubdtype(values.dtype, jnp.floating):
        raise InputError(
            f"{argument}: got dtype {values.dtype}, wanted bool or integer 0/1. Threshold it, as in probability > 0.5."
        )
    other = jnp.zeros(values.shape, bool) if values.dtype == bool else (values != 0) & (values != 1)
    return values.astype(bool), other


def same_shape(first: jax.Array, labels: jax.Array, name: str) -> None:
    """InputError unless both have one shape: broadcasting would count pairs."""
    if first.shape != labels.shape:
        raise InputError(f"{name}: got shape {first.shape} against labels of shape {labels.shape}; wanted the same.")
