"""Small models with known answers, and the same training written by hand in NumPy float64."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import systolic as sl

WIDTH = 3


def make_data(n: int, seed: int = 0, width: int = WIDTH) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """``n`` examples of a noisy linear relation, float32."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, width)).astype("float32")
    y = (x @ np.arange(1, width + 1) + 0.5 + 0.1 * rng.normal(size=n)).astype("float32")
    return {"x": x}, y


def init_linear(key):
    return {"w": jnp.zeros(WIDTH), "b": jnp.zeros(())}


def apply_linear(params, x):
    return x @ params["w"] + params["b"]


LINEAR = (init_linear, apply_linear)


def regression(model, features, labels, mode):
    """Squared error per example."""
    y = model(features["x"])
    if mode is sl.Mode.PREDICT:
        return sl.EstimatorSpec(predictions={"y": y})
    return sl.EstimatorSpec(
        loss=(y - labels) ** 2, predictions={"y": y}, metrics={"absolute_error": jnp.abs(y - labels)}
    )


def config(model_dir: Any = None, **options: Any) -> sl.RunConfig:
    return sl.RunConfig(model_dir=model_dir, progress=False, **{"target": "cpu:1", **options})


def linear(
    model_dir: Any = None, *, optimizer: Any = None, batch: int = 8, run: dict[str, Any] | None = None, **options: Any
) -> sl.Estimator:
    """An Estimator of linear regression; ``run`` are fields of its RunConfig."""
    return sl.Estimator(
        LINEAR,
        options.pop("model_fn", regression),
        optimizer or optax.sgd(0.1),
        train_batch_size=batch,
        config=config(model_dir, **(run or {})),
        **options,
    )


class Network(nnx.Module):
    """dense, batch normalisation where asked for, relu, dropout, dense to one output."""

    def __init__(self, rngs: nnx.Rngs, rate: float = 0.0, norm: bool = False, width: int = 8) -> None:
        self.first = nnx.Linear(WIDTH, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, momentum=0.9, rngs=rngs) if norm else None
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.last = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x):
        x = self.first(x)
        x = x if self.norm is None else self.norm(x)
        return self.last(self.dropout(nnx.relu(x)))[:, 0]


def network(
    model_dir: Any = None,
    *,
    rate: float = 0.0,
    norm: bool = False,
    width: int = 8,
    optimizer: Any = None,
    batch: int = 8,
    run: dict[str, Any] | None = None,
    **options: Any,
) -> sl.Estimator:
    return sl.Estimator(
        lambda rngs: Network(rngs, rate, norm, width),
        options.pop("model_fn", regression),
        optimizer or optax.adam(0.01),
        train_batch_size=batch,
        config=config(model_dir, **(run or {})),
        **options,
    )


def weights(estimator: sl.Estimator, part: str = "params") -> dict[str, np.ndarray]:
    """Parameters by path, on the host."""
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(estimator.state[part])
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(x) for path, x in leaves}


def same_bits(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> bool:
    return one.keys() == two.keys() and all(one[k].tobytes() == two[k].tobytes() for k in one)


def close(one: dict[str, np.ndarray], two: dict[str, np.ndarray], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=rtol, atol=atol, err_msg=name)


def gradient_descent(
    batches: list[tuple[np.ndarray, np.ndarray]],
    rate: Any = 0.1,
    momentum: float = 0.0,
    clip: float | None = None,
    ema: float | None = None,
) -> dict[str, np.ndarray]:
    """Linear regression by hand in float64; ``rate`` a number or a function of the step."""
    w, b = np.zeros(WIDTH), 0.0
    velocity = [np.zeros(WIDTH), 0.0]
    average = [w.copy(), b]
    for i, (x, y) in enumerate(batches):
        x, y = np.asarray(x, "float64"), np.asarray(y, "float64")
        error = x @ w + b - y
        gradient = [2 * x.T @ error / len(y), 2 * error.mean()]
        if clip is not None:
            norm = np.sqrt(sum(np.sum(g**2) for g in gradient))
            gradient = [g * min(1.0, clip / norm) for g in gradient]
        velocity = [momentum * v + g for v, g in zip(velocity, gradient)]
        step = rate(i) if callable(rate) else rate
        w, b = w - step * velocity[0], b - step * velocity[1]
        if ema is not None:
            average = [ema * a + (1 - ema) * p for a, p in zip(average, (w, b))]
    if ema is not None:
        return {"w": average[0], "b": np.float64(average[1])}
    return {"w": w, "b": np.float64(b)}


def batched(data: tuple[dict[str, np.ndarray], np.ndarray], size: int, steps: int) -> list[Any]:
    """The first ``steps`` batches of the data repeated without end, tails joining the next epoch."""
    x, y = data[0]["x"], data[1]
    rows = np.arange(steps * size) % len(y)
    return [(x[r], y[r]) for r in rows.reshape(steps, size)]
