"""FAQ 11. Is there an eager mode?

Yes: ``RunConfig(eager=True)`` runs the same model function op by op. Breakpoints stop in it, prints show numbers, and the
results are those of the compiled run.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import systolic as sl

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
Y = X.sum(1)
MODEL = (lambda key: {"w": jnp.zeros((3,))}, lambda params, x: x @ params["w"])


def make(model_fn, eager, steps_per_loop=1):
    config = sl.RunConfig(eager=eager, steps_per_loop=steps_per_loop, target="cpu:1", progress=False)
    return sl.Estimator(MODEL, model_fn, optax.sgd(0.1), train_batch_size=8, config=config)


def plain(model, features, labels, mode):
    y = model(features["x"])
    if mode is sl.Mode.PREDICT:
        return sl.EstimatorSpec(predictions={"y": y})
    return sl.EstimatorSpec(loss=(y - labels) ** 2)


def test_a_breakpoint_in_evaluation_sees_numbers():
    seen = []

    def model_fn(model, features, labels, mode):
        if mode is not sl.Mode.TRAIN:
            seen.append(np.asarray(features["x"]).copy())  # what a breakpoint or a print would show
        return plain(model, features, labels, mode)

    estimator = make(model_fn, eager=True)
    estimator.train(lambda: ({"x": X}, Y), steps=3)
    estimator.evaluate(lambda: ({"x": X}, Y))
    np.testing.assert_array_equal(np.concatenate(seen), X)
    seen.clear()
    list(estimator.predict(lambda: {"x": X}))
    np.testing.assert_array_equal(np.concatenate(seen), X)


def test_a_branch_on_a_value_works_and_each_step_runs_the_function_anew():
    calls = []

    def model_fn(model, features, labels, mode):
        if float(jnp.abs(features["x"]).max()) > 0:  # compiled, this would be an error: a tracer has no value
            calls.append(mode)
        return plain(model, features, labels, mode)

    estimator = make(model_fn, eager=True)
    estimator.train(lambda: ({"x": X}, Y), steps=5)
    assert calls.count(sl.Mode.TRAIN) >= 5


def test_results_equal_those_of_the_compiled_run():
    for steps_per_loop in (1, 3):
        eager, compiled = (make(plain, e, steps_per_loop) for e in (True, False))
        for estimator in (eager, compiled):
            estimator.train(lambda: ({"x": X}, Y), steps=7)
        np.testing.assert_allclose(eager.state["params"]["w"], compiled.state["params"]["w"], rtol=1e-5)
        one, two = (e.evaluate(lambda: ({"x": X}, Y))["loss"] for e in (eager, compiled))
        np.testing.assert_allclose(one, two, rtol=1e-5)


def test_nan_checks_of_jax_name_the_operation():
    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(loss=jnp.log(-1.0 - model(features["x"]) ** 2))

    estimator = make(model_fn, eager=True)
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="log"):
        estimator.train(lambda: ({"x": X}, Y), steps=1)
