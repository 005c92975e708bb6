"""FAQ 4. Can data be fed by hand, from Python, and still use all cores?

Yes: an input function returns anything that can be iterated over, and each batch is split over all devices. The result
does not depend on how the data came, nor on the number of devices.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import systolic as sl

N, BATCH = 96, 16
X = np.random.default_rng(0).normal(size=(N, 4)).astype("float32")
Y = (X @ np.array([1.0, -2.0, 3.0, 0.5], "float32")).astype("float32")

MODEL = (lambda key: {"w": jnp.zeros((4,))}, lambda params, x: x @ params["w"])


def model_fn(model, features, labels, mode):
    return sl.EstimatorSpec(loss=(model(features["x"]) - labels) ** 2)


def train(input_fn, target="cpu:8"):
    estimator = sl.Estimator(
        MODEL, model_fn, optax.sgd(0.05), train_batch_size=BATCH, config=sl.RunConfig(target=target, progress=False)
    )
    estimator.train(input_fn, steps=12)
    return estimator


def examples():
    """One example at a time, as a loop by hand would feed them."""
    for x, y in zip(X, Y):
        yield {"x": x}, y


def ragged_batches():
    """Batches of sizes that have nothing to do with the training batch."""
    cuts = [0, 1, 6, 37, 40, 90, N]
    for start, end in itertools.pairwise(cuts):
        yield {"x": X[start:end]}, Y[start:end]


def grain_dataset():
    grain = pytest.importorskip("grain")
    return grain.MapDataset.range(N).map(lambda i: ({"x": X[i]}, Y[i]))


SOURCES = {
    "arrays": lambda: ({"x": X}, Y),
    "examples": examples,
    "list of examples": lambda: list(examples()),
    "batches": lambda: sl.data.batches(ragged_batches()),
    "grain": grain_dataset,
}


def expected():
    w = np.zeros(4)
    for i in range(12):
        rows = np.arange(i * BATCH, (i + 1) * BATCH) % N
        x, y = X[rows].astype("float64"), Y[rows].astype("float64")
        w = w - 0.05 * 2 * x.T @ (x @ w - y) / BATCH
    return w


@pytest.mark.parametrize("source", SOURCES)
def test_any_iterable_feeds_all_eight_devices(source):
    estimator = train(SOURCES[source])
    np.testing.assert_allclose(estimator.state["params"]["w"], expected(), rtol=1e-4, atol=1e-6)
    assert len(estimator.state["params"]["w"].sharding.device_set) == 8


def test_each_device_gets_its_own_rows():
    seen = {}

    def spy(model, features, labels, mode):
        jax.debug.inspect_array_sharding(features["x"], callback=lambda s: seen.update(sharding=s))
        return model_fn(model, features, labels, mode)

    estimator = sl.Estimator(
        MODEL, spy, optax.sgd(0.05), train_batch_size=BATCH, config=sl.RunConfig(target="cpu:8", progress=False)
    )
    estimator.train(examples, steps=1)
    assert seen["sharding"].shard_shape((BATCH, 4)) == (BATCH // 8, 4)
    assert len(seen["sharding"].device_set) == 8


def test_a_batch_that_cannot_be_split_is_told_before_any_compile():
    estimator = sl.Estimator(
        MODEL, model_fn, optax.sgd(0.05), train_batch_size=12, config=sl.RunConfig(target="cpu:8", progress=False)
    )
    with pytest.raises(sl.TargetError, match=r"train_batch_size\): saw 12, .* 8 devices .* use 8 or 16"):
        estimator.train(examples, steps=1)
