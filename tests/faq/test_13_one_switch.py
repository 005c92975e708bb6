"""FAQ 13. Is there one switch between a TPU and the machine at hand?

Yes: ``RunConfig(target=…)``, or TPUEstimator's spelling ``use_tpu``. Model, batch sizes and results stay the same; batch
sizes are global. A target that is only described can be compiled for and not run on, and says so.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import systolic as sl

X = np.random.default_rng(0).normal(size=(100, 3)).astype("float32")
Y = X.sum(1)
MODEL = (lambda key: {"w": jnp.zeros((3,))}, lambda params, x: x @ params["w"])


def model_fn(model, features, labels, mode):
    y = model(features["x"])
    if mode is sl.Mode.PREDICT:
        return sl.EstimatorSpec(predictions={"y": y})
    return sl.EstimatorSpec(loss=(y - labels) ** 2)


def run(**switch):
    """Train, evaluate and predict; the switch is all that differs."""
    estimator = sl.Estimator(
        MODEL, model_fn, optax.sgd(0.1), train_batch_size=16, config=sl.RunConfig(progress=False, **switch)
    )
    estimator.train(lambda: ({"x": X}, Y), steps=10)
    loss = estimator.evaluate(lambda: ({"x": X}, Y))["loss"]
    rows = [float(row["y"]) for row in estimator.predict(lambda: {"x": X})]
    devices = jax.tree.leaves(estimator.state)[0].sharding.device_set
    return np.asarray(estimator.state["params"]["w"]), loss, rows, len(devices)


def test_the_same_code_gives_the_same_results_on_one_device_and_on_eight():
    one, eight = run(target="cpu:1"), run(target="cpu:8")
    assert (one[3], eight[3]) == (1, 8)
    for a, b in zip(one[:3], eight[:3]):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_use_tpu_is_the_same_switch():
    np.testing.assert_array_equal(run(use_tpu=False)[0], run(target="cpu")[0])
    assert sl.RunConfig(use_tpu=True).target == "tpu"
    assert sl.RunConfig(use_tpu=False).target == "cpu"
    with pytest.raises(sl.InputError, match=r"use_tpu=True contradicts target='cpu'; give one of them"):
        sl.RunConfig(use_tpu=True, target="cpu")


def test_a_tpu_that_is_not_there_is_a_clear_error():
    with pytest.raises(sl.TargetError, match="tpu"):
        run(use_tpu=True)


def test_a_described_target_says_that_it_can_be_checked_and_not_run():
    with pytest.raises(sl.TargetError, match=r"v5e-8 is described, not attached.*estimator.check"):
        run(target="v5e-8")
