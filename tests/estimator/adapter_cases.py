"""One small network in four libraries, and the same network in NumPy float64.

dense(4 -> 8), batch normalisation (where asked for), relu, dropout, dense(8 -> 3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from systolic.estimator._mode import Mode
from systolic.estimator.adapters import as_adapter, plain

IN, HIDDEN, OUT, EPSILON, MOMENTUM = 4, 8, 3, 1e-5, 0.99


class NNXNet(nnx.Module):
    def __init__(self, rate: float, norm: bool, *, rngs: nnx.Rngs):
        self.first = nnx.Linear(IN, HIDDEN, rngs=rngs)
        self.norm = nnx.BatchNorm(HIDDEN, momentum=MOMENTUM, epsilon=EPSILON, rngs=rngs) if norm else None
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.last = nnx.Linear(HIDDEN, OUT, rngs=rngs)

    def __call__(self, x):
        x = self.first(x)
        x = self.norm(x) if self.norm is not None else x
        return self.last(self.dropout(nnx.relu(x)))


class LinenNet(linen.Module):
    rate: float
    norm: bool

    @linen.compact
    def __call__(self, x, train: bool):
        x = linen.Dense(HIDDEN, name="first")(x)
        if self.norm:
            x = linen.BatchNorm(not train, momentum=MOMENTUM, epsilon=EPSILON, name="norm")(x)
        x = linen.Dropout(self.rate, deterministic=not train)(linen.relu(x))
        return linen.Dense(OUT, name="last")(x)


class EquinoxNet(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm | None
    dropout: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, rate: float, norm: bool, *, key):
        first, last = jax.random.split(key)
        self.first = eqx.nn.Linear(IN, HIDDEN, key=first)
        self.norm = None
        if norm:
            self.norm = eqx.nn.BatchNorm(HIDDEN, "batch", eps=EPSILON, momentum=MOMENTUM, mode="batch")
        self.dropout = eqx.nn.Dropout(rate)
        self.last = eqx.nn.Linear(HIDDEN, OUT, key=last)

    def __call__(self, x, state=None, *, key):
        x = self.first(x)
        if self.norm is not None:
            x, state = self.norm(x, state)
        out = self.last(self.dropout(jax.nn.relu(x), key=key))
        return out if self.norm is None else (out, state)


def equinox_model(rate: float, norm: bool):
    if norm:
        return lambda key: eqx.nn.make_with_state(EquinoxNet)(rate, norm, key=key)
    return lambda key: EquinoxNet(rate, norm, key=key)


def plain_model(rate: float, norm: bool):
    def init(key):
        first, last = jax.random.split(key)
        params = {
            "first": {"kernel": jax.random.normal(first, (IN, HIDDEN)) / 2, "bias": jnp.zeros(HIDDEN)},
            "last": {"kernel": jax.random.normal(last, (HIDDEN, OUT)) / 2, "bias": jnp.zeros(OUT)},
        }
        if not norm:
            return params
        params["norm"] = {"scale": jnp.ones(HIDDEN), "bias": jnp.zeros(HIDDEN)}
        return params, {"norm": {"mean": jnp.zeros(HIDDEN), "var": jnp.ones(HIDDEN)}}

    def apply(params, *rest):
        *state, x, train, key = rest
        x = x @ params["first"]["kernel"] + params["first"]["bias"][None]
        if norm:
            (old,) = state
            now = {"mean": x.mean(0), "var": x.var(0)} if train else old["norm"]
            x = (x - now["mean"][None]) / jnp.sqrt(now["var"] + EPSILON)[None]
            x = x * params["norm"]["scale"][None] + params["norm"]["bias"][None]
            new = {"norm": jax.tree.map(lambda o, n: MOMENTUM * o + (1 - MOMENTUM) * n, old["norm"], now)}
        x = jax.nn.relu(x)
        if train:
            x = jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)
        out = x @ params["last"]["kernel"] + params["last"]["bias"][None]
        return (out, new) if norm else out

    return plain(init, apply, stateful=True) if norm else (init, apply)


def flax_statistics(state: Any) -> tuple[Any, Any]:
    tree = state.get("batch_stats", state)["norm"]
    return tree["mean"], tree["var"]


def equinox_statistics(state: Any) -> tuple[Any, Any]:
    tree = state["norm"]["batch_state_index"]
    return tree["0"], tree["1"]


def flax_weights(params: Any) -> dict[str, Any]:
    return {
        "w1": params["first"]["kernel"],
        "b1": params["first"]["bias"],
        "w2": params["last"]["kernel"],
        "b2": params["last"]["bias"],
        **({"scale": params["norm"]["scale"], "shift": params["norm"]["bias"]} if "norm" in params else {}),
    }


def equinox_weights(params: Any) -> dict[str, Any]:
    return {
        "w1": params["first"]["weight"].T,
        "b1": params["first"]["bias"],
        "w2": params["last"]["weight"].T,
        "b2": params["last"]["bias"],
        **({"scale": params["norm"]["weight"], "shift": params["norm"]["bias"]} if "norm" in params else {}),
    }


@dataclasses.dataclass(frozen=True)
class Case:
    """One library: how to make the model, to call it in a model function, and to read its arrays."""

    model: Callable[[float, bool], Any]
    call: Callable[[Any, Any, Mode, Any], Any]
    weights: Callable[[Any], dict[str, Any]] = flax_weights
    statistics: Callable[[Any], tuple[Any, Any]] = flax_statistics
    start_variance: float = 1.0

    def adapter(self, rate: float = 0.0, norm: bool = True):
        return as_adapter(self.model(rate, norm))

    def init(self, adapter: Any, seed: int = 0):
        x = jnp.zeros((2, IN))
        return adapter.init(jax.random.key(seed), lambda bound: self.call(bound, x, Mode.TRAIN, jax.random.key(9)))


CASES = {
    "nnx": Case(lambda rate, norm: lambda rngs: NNXNet(rate, norm, rngs=rngs), lambda m, x, mode, key: m(x)),
    "linen": Case(LinenNet, lambda m, x, mode, key: m(x, train=mode is Mode.TRAIN)),
    "equinox": Case(equinox_model, lambda m, x, mode, key: m.batched(x), equinox_weights, equinox_statistics),
    "plain": Case(plain_model, lambda m, x, mode, key: m(x, mode is Mode.TRAIN, key)),
}


def reference(weights: dict[str, np.ndarray], x: np.ndarray, statistics: Any = None):
    """Forward pass in float64: ``(out, hidden mean, hidden variance, what the backward pass needs)``.

    statistics: (mean, variance) to normalise with, or None for those of the batch.
    """
    z = x @ weights["w1"] + weights["b1"]
    mean, variance = z.mean(0), z.var(0)
    h, normal, deviation = z, None, None
    if "scale" in weights:
        use_mean, use_variance = (mean, variance) if statistics is None else statistics
        deviation = np.sqrt(use_variance + EPSILON)
        normal = (z - use_mean) / deviation
        h = normal * weights["scale"] + weights["shift"]
    active = np.maximum(h, 0)
    return active @ weights["w2"] + weights["b2"], mean, variance, (h, active, normal, deviation)


def reference_gradient(weights: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, statistics: Any = None):
    """Gradient of ``((out - y) ** 2).sum(-1).mean()`` by the chain rule, written out."""
    out, _, _, (h, active, normal, deviation) = reference(weights, x, statistics)
    d_out = 2 * (out - y) / len(x)
    gradient = {"w2": active.T @ d_out, "b2": d_out.sum(0)}
    d = (d_out @ weights["w2"].T) * (h > 0)
    if "scale" in weights:
        gradient |= {"scale": (d * normal).sum(0), "shift": d.sum(0)}
        d = d * weights["scale"]
        if statistics is None:
            d = d - d.mean(0) - normal * (d * normal).mean(0)
        d = d / deviation
    return gradient | {"w1": x.T @ d, "b1": d.sum(0)}
