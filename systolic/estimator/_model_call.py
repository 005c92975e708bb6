"""The call of a user's model function: by the names in its signature, with what goes wrong there told in its terms."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from systolic._errors import InputError
from systolic.estimator._mode import Mode
from systolic.estimator._spec import EstimatorSpec, check_spec, loss_entry, loss_names, metrics_of
from systolic.program import explain_traced, user_line

_KNOWN = ("model", "features", "labels", "mode", "params", "key")


def call_model_fn(
    model_fn: Callable[..., EstimatorSpec],
    bound: Any,
    features: Any,
    labels: Any,
    mode: Mode,
    params: Any = None,
    rngs: jax.Array | None = None,
    host_only: Sequence[str] = (),
) -> EstimatorSpec:
    """Call ``model_fn`` with those of ``model, features, labels, mode, params, key`` that its signature names.

    bound: what an adapter's ``bind`` returned (passed as ``model``); params: the user's own settings; rngs: a PRNG key
    for this step (passed as ``key``); host_only: names of features that stay on the host, for messages. Returns the
    checked spec. InputError if the signature asks for something else, the result is not an EstimatorSpec of the right
    shapes for ``mode`` (:func:`check_spec`), or JAX cannot trace what the function does; exceptions that the function
    raises itself pass as they are.
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
    except Exception as error:
        message = _missing(error, features, labels, host_only, mode)
        if message is not None:
            raise InputError(f"model_fn: {_name(model_fn)} {message}") from error
        told = explain_traced(
            error, f"model_fn: {_name(model_fn)} in mode {mode.name}", features=features, labels=labels
        )
        if told is not None:
            raise told from error
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


def _missing(error: Exception, features: Any, labels: Any, host_only: Sequence[str], mode: Mode) -> str | None:
    """What to say where labels or a feature were used that are not there; None where that is not what happened."""
    first = str(error).split("\n")[0]
    if isinstance(error, TypeError | AttributeError) and "NoneType" in first:
        if host_only and isinstance(features, tuple) and any(part is None for part in features):
            return f"met None ({first}): of the tuple of features, {', '.join(host_only)} {_STAYS}, and None is in its place"
        if labels is None:
            return _without_labels(features, mode, first)
    wanted = error.args[0] if isinstance(error, KeyError) and error.args else None
    if not isinstance(features, Mapping) or not isinstance(wanted, str) or wanted in features:
        return None
    if any(wanted == name or name.endswith("/" + wanted) for name in host_only):
        return f"looked for feature {wanted!r}, which {_STAYS}"
    place = user_line(error)
    return (
        f"looked for {wanted!r}, and the data has no feature of that name; the features are "
        f"{', '.join(map(repr, features)) or 'none'}. Let input_fn give it, or use another name"
        f"{'' if place is None else f' ({place})'}."
    )


_STAYS = (
    "stays on the host, since strings and objects cannot go to a device; it comes back with predictions. For the model, turn "
    "it into integer ids or an array in input_fn, under a name of its own"
)


def _without_labels(features: Any, mode: Mode, first: str) -> str:
    if mode is Mode.PREDICT:
        return (
            f"uses labels in mode PREDICT, where they are None ({first}). Return "
            "sl.EstimatorSpec(predictions=...) before the line that uses them: if mode is sl.Mode.PREDICT: ..."
        )
    among = [name for name in ("labels", "label", "target", "y") if isinstance(features, Mapping) and name in features]
    hint = (
        f"; the features hold {among[0]!r}: input_fn may pass it as (features, features.pop({among[0]!r}))"
        if among
        else ""
    )
    return (
        f"uses labels in mode {mode.name}, and the data has none: labels are None ({first}). Let "
        f"input_fn return a pair (features, labels), or compute the loss from the features alone{hint}."
    )


def _name(model_fn: Any) -> str:
    function = getattr(model_fn, "func", model_fn)
    return getattr(function, "__name__", type(function).__name__)
