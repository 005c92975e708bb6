"""The call of a user's model function: by the names in its signature, with what goes wrong there told in its terms."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from systolic._errors import InputError
from systolic.estimator._mode import Mode
from systolic.estimator._spec import EstimatorSpec, check_spec, loss_entry, loss_names, metrics_of

_KNOWN = ("model", "features", "labels", "mode", "params", "key")


def call_model_fn(
    model_fn: Callable[..., EstimatorSpec],
    bound: Any,
    features: Any,
    labels: Any,
    mode: Mode,
    params: Any = None,
    rngs: jax.Array | None = None,
) -> EstimatorSpec:
    """Call ``model_fn`` with those of ``model, features, labels, mode, params, key`` that its signature names.

    bound: what an adapter's ``bind`` returned (passed as ``model``); params: the user's own settings; rngs: a PRNG key
    for this step (passed as ``key``). Returns the checked spec. InputError if the signature asks for something else,
    or the result is not an EstimatorSpec of the right shapes for ``mode`` (:func:`check_spec`).
    """
    values = dict(zip(_KNOWN, (bound, features, labels, mode, params, rngs)))
    positional, keywords = [], {}
    for name, parameter in inspect.signature(model_fn).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            keywords.update({known: value for known, value in values.items() if known not in keywords})
        elif parameter.kind is parameter.VAR_POSITIONAL:
            continue
        elif name in values:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(values.pop(name))
            else:
                keywords[name] = values[name]
        elif parameter.default is parameter.empty:
            raise InputError(
                f"model_fn: {_name(model_fn)} asks for a parameter {name!r}; wanted only names among "
                f"{', '.join(_KNOWN)}. Rename it, or bind it first with functools.partial."
            )
    try:
        spec = model_fn(*positional, **keywords)
    except (TypeError, AttributeError) as error:
        if labels is None and "NoneType" in str(error):
            raise InputError(_without_labels(_name(model_fn), mode, error)) from error
        raise
    except KeyError as error:
        wanted = error.args[0] if error.args else None
        if isinstance(features, Mapping) and isinstance(wanted, str) and wanted not in features:
            raise InputError(
                f"model_fn: {_name(model_fn)} looked for {wanted!r}, and the data has no feature of that name; the "
                f"features are {', '.join(map(repr, features)) or 'none'}. Let input_fn give it, or use another name."
            ) from error
        raise
    spec = check_spec(spec, mode, batch_size_of(features), _name(model_fn))
    _refuse_pairs(spec, features, labels)
    return spec


def _refuse_pairs(spec: EstimatorSpec, features: Any, labels: Any) -> None:
    """InputError for a loss or metric of [batch, batch] where no input has such a second dimension.

    ``[batch] - [batch, 1]`` broadcasts to every pair of examples: a number that changes with the batch size, and into
    which padding enters by the second dimension.
    """
    size = batch_size_of(features)
    if size is None or size < 2 or spec.weights is not None:
        return
    if any(jnp.ndim(leaf) > 1 and leaf.shape[1] == size for leaf in jax.tree.leaves((features, labels))):
        return
    values = {label: loss_entry(spec, name)[0] for label, name in loss_names(spec).items()}
    values |= {name: getattr(metric, "values", metric) for name, metric in metrics_of(spec).items()}
    for name, value in values.items():
        if jnp.shape(value)[:2] == (size, size):
            raise InputError(
                f"EstimatorSpec: {name} has shape {jnp.shape(value)}, one value for each pair of examples: predictions and "
                "labels of shapes such as (batch,) and (batch, 1) were broadcast against each other. Give both one shape, as "
                "in labels[:, 0]; if pairs are meant, reduce them to one value per example, or pass weights="
            )


def batch_size_of(features: Any) -> int | None:
    """First dimension of the first array in ``features``; None where there is no array."""
    for leaf in jax.tree.leaves(features):
        if getattr(leaf, "ndim", 0):
            return leaf.shape[0]
    return None


def _without_labels(name: str, mode: Mode, error: Exception) -> str:
    first = str(error).split("\n")[0]
    if mode is Mode.PREDICT:
        return (
            f"model_fn: {name} uses labels in mode PREDICT, where they are None ({first}). Return "
            "sl.EstimatorSpec(predictions=...) before the line that uses them: if mode is sl.Mode.PREDICT: ..."
        )
    return (
        f"model_fn: {name} uses labels in mode {mode.name}, and the data has none: labels are None ({first}). Let "
        "input_fn return a pair (features, labels), or compute the loss from the features alone."
    )


def _name(model_fn: Any) -> str:
    function = getattr(model_fn, "func", model_fn)
    return getattr(function, "__name__", type(function).__name__)
