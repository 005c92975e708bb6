"""A loss that is not finite stops the run at its step, names where it came from, and leaves the state before it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import batched, close, config, gradient_descent, linear, make_data, network, same_bits, weights

import systolic as sl
from systolic.estimator._nonfinite import first_nonfinite

LOOPS = pytest.mark.parametrize("steps_per_loop", [1, 5])
BAD_STEP = 8  # batches 1 to 7 are good


def data_with(value, row=3, column=1):
    """Twelve batches of 8, the eighth with one bad value."""
    x, y = make_data(96)
    x["x"][8 * (BAD_STEP - 1) + row, column] = value
    return x, y


def train(estimator, data, steps=12):
    with pytest.raises(sl.NonFiniteError) as error:
        estimator.train(lambda: data, steps=steps)
    return str(error.value)


@LOOPS
@pytest.mark.parametrize(("value", "kind"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_a_bad_feature_is_named_with_its_step_and_place(steps_per_loop, value, kind):
    estimator = linear(run={"steps_per_loop": steps_per_loop})
    bad = data_with(value)
    text = train(estimator, bad)
    assert f"the loss of step {BAD_STEP} is not finite" in text
    assert f"{kind} in batch/features/x, shape (8, 3): 1 of 24 values at index (3, 1)" in text
    assert "The parameters are those before that step" in text
    assert "clip_norm" in text
    assert "on_nonfinite='ignore'" in text
    assert estimator.step == BAD_STEP - 1
    close(weights(estimator), gradient_descent(batched(bad, 8, BAD_STEP - 1)))


@LOOPS
def test_a_bad_label_is_named(steps_per_loop):
    x, y = make_data(96)
    y[8 * (BAD_STEP - 1)] = np.nan
    estimator = linear(run={"steps_per_loop": steps_per_loop})
    assert "NaN in batch/labels, shape (8,): 1 of 8 values at index (0,)" in train(estimator, (x, y))
    assert estimator.step == BAD_STEP - 1


def logarithm(model, features, labels, mode):
    y = model(features["x"])
    return sl.EstimatorSpec(loss=y**2 + jnp.log(labels))  # labels of a bad batch are negative


@LOOPS
def test_a_bad_operation_is_named_with_its_line(steps_per_loop):
    x, y = make_data(96)
    y = np.abs(y) + 1
    y[8 * (BAD_STEP - 1) + 2] = -1.0
    estimator = linear(model_fn=logarithm, run={"steps_per_loop": steps_per_loop})
    text = train(estimator, (x, y))
    line = logarithm.__code__.co_firstlineno + 2
    assert f"the loss of step {BAD_STEP} is not finite: NaN first comes out of log" in text
    assert "1 of 8 values at index (2,)" in text
    assert f"test_nonfinite.py:{line}" in text


@LOOPS
def test_bad_parameters_are_named(steps_per_loop):
    # The loss of step 1 is finite and its update is not.
    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(loss=model(features["x"]) * 1e30)

    estimator = linear(model_fn=model_fn, optimizer=optax.sgd(1e30), run={"steps_per_loop": steps_per_loop})
    text = train(estimator, make_data(96))
    assert "the loss of step 2 is not finite: infinity in params/b" in text
    assert estimator.step == 1


@LOOPS
def test_an_operation_inside_a_module_is_named_by_the_module(steps_per_loop):
    bad = data_with(1e30)  # its square, and so the variance of the batch, overflows
    estimator = network(norm=True, optimizer=optax.sgd(0.01), run={"steps_per_loop": steps_per_loop})
    text = train(estimator, bad)
    assert f"the loss of step {BAD_STEP} is not finite" in text
    assert "first comes out of" in text
    assert estimator.step == BAD_STEP - 1
    good = network(norm=True, optimizer=optax.sgd(0.01), run={"steps_per_loop": steps_per_loop})
    good.train(lambda: make_data(96), steps=BAD_STEP - 1)
    for part in ("params", "model_state"):
        assert same_bits(weights(estimator, part), weights(good, part))


@LOOPS
def test_training_goes_on_after_the_error(steps_per_loop):
    estimator = linear(run={"steps_per_loop": steps_per_loop})
    train(estimator, data_with(np.nan))
    good = make_data(96, 5)
    estimator.train(lambda: good, steps=3)
    assert estimator.step == BAD_STEP - 1 + 3
    assert np.isfinite(estimator.evaluate(lambda: good)["loss"])


@LOOPS
@pytest.mark.parametrize("again", [False, True])
def test_the_data_that_come_next_are_those_of_the_bad_step(steps_per_loop, again):
    estimator = linear(run={"steps_per_loop": steps_per_loop})
    train(estimator, data_with(np.nan))
    if again:  # nothing was corrected: the same step is bad once more
        assert f"the loss of step {BAD_STEP} is not finite" in train(estimator, data_with(np.nan))
    good = make_data(96)
    estimator.train(lambda: good, max_steps=20)
    close(weights(estimator), gradient_descent(batched(good, 8, 20)))


@LOOPS
def test_data_that_go_on_after_a_bad_first_step_begin_at_the_first_example(steps_per_loop):
    x, y = make_data(96)
    y[2] = np.nan
    estimator = linear(run={"steps_per_loop": steps_per_loop})
    train(estimator, (x, y))
    good = make_data(96)
    estimator.train(lambda: good, steps=9)
    close(weights(estimator), gradient_descent(batched(good, 8, 9)))


@LOOPS
def test_with_accumulated_gradients_the_bad_microbatch_is_named(steps_per_loop):
    x, y = make_data(96)
    y = np.abs(y) + 1
    y[8 * (BAD_STEP - 1) + 6] = -1.0  # row 6 is the second of microbatch 6 mod 4 = 2, which is the third
    estimator = linear(model_fn=logarithm, accumulate=4, run={"steps_per_loop": steps_per_loop})
    text = train(estimator, (x, y))
    assert f"the loss of step {BAD_STEP} is not finite: NaN first comes out of log" in text
    assert "1 of 2 values at index (1,)" in text
    assert "in microbatch 3 of 4" in text


def test_with_accumulated_gradients_a_bad_input_is_named_by_its_place_in_the_batch():
    estimator = linear(accumulate=4)
    assert "NaN in batch/features/x, shape (8, 3): 1 of 24 values at index (3, 1)." in train(
        estimator, data_with(np.nan)
    )


def test_a_bad_value_that_only_the_key_of_a_microbatch_brings_is_found():
    import jax

    def model_fn(model, features, labels, mode, key):
        draw = jax.random.uniform(key)
        return sl.EstimatorSpec(loss=model(features["x"]) ** 2 + jnp.log(draw - 0.25))  # NaN below a quarter

    # Step 1: the model's key is folded from the seed's, the step, the microbatch and 1.
    step = jax.random.fold_in(jax.random.key(0), 0)
    draws = [float(jax.random.uniform(jax.random.fold_in(jax.random.fold_in(step, i), 1))) for i in range(8)]
    first = next((i for i, draw in enumerate(draws) if draw < 0.25), None)
    assert first is not None
    text = train(linear(model_fn=model_fn, accumulate=8), make_data(96))
    assert "the loss of step 1 is not finite: NaN first comes out of log" in text
    assert f"in microbatch {first + 1} of 8" in text


@LOOPS
def test_nothing_bad_is_saved_and_the_run_can_be_resumed(tmp_path, steps_per_loop):
    options = {"steps_per_loop": steps_per_loop, "checkpoint_every": 3}
    train(linear(tmp_path, run=options), data_with(np.nan))
    again = linear(tmp_path, run=options)
    assert again.step == 6
    good = make_data(96)
    again.train(lambda: good, max_steps=12)
    whole = linear(run={"steps_per_loop": steps_per_loop})
    whole.train(lambda: good, steps=12)
    assert same_bits(weights(again), weights(whole))


def test_nothing_is_stopped_where_that_is_asked():
    estimator = linear(run={"on_nonfinite": "ignore"})
    estimator.train(lambda: data_with(np.nan), steps=12)
    assert estimator.step == 12
    assert np.isnan(weights(estimator)["w"]).all()


def test_a_finite_function_has_no_bad_value():
    assert first_nonfinite(lambda x: jnp.exp(-x), np.ones(3, "float32"), names=("x",)) is None


def test_a_value_inside_nested_calls_is_found():
    import jax

    inner = jax.jit(lambda x: jnp.sqrt(x) + 1)
    found = first_nonfinite(lambda x: inner(x).sum(), np.array([1.0, -1.0], "float32"), names=("x",))
    assert found.startswith("NaN first comes out of")
    assert "sqrt" in found
    assert "1 of 2 values at index (1,)" in found


def no_gradient(model, features, labels, mode):
    """A loss of zero whose gradient is not a number: the square root's slope at zero."""
    return sl.EstimatorSpec(loss=jnp.sqrt(0.0 * (model(features["x"]) - labels) ** 2))


def test_a_bad_gradient_behind_a_finite_loss_is_seen_before_anything_is_saved(tmp_path):
    estimator = linear(tmp_path, model_fn=no_gradient)
    with pytest.raises(sl.NonFiniteError, match=r"the gradient of step 1 .*NaN in params/.*Nothing was saved"):
        estimator.train(make_data(16), steps=1)
    assert list((tmp_path / "checkpoints").glob("[0-9]*")) == []


def test_in_a_large_model_a_bad_gradient_is_named_at_its_step_and_the_parameters_stay():
    width = 1 << 16

    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(loss=jnp.sqrt(0.0 * (features["x"] @ model() - labels) ** 2))

    model = (lambda key: {"w": jnp.ones(width)}, lambda params: params["w"])
    estimator = sl.Estimator(model, model_fn, optax.sgd(0.1), train_batch_size=4, config=config())
    with pytest.raises(sl.NonFiniteError, match="the gradient of step 1 is not finite, though its loss is: "):
        estimator.train(({"x": np.ones((8, width), "float32")}, np.ones(8, "float32")), steps=2)
    assert (np.asarray(estimator.state["params"]["w"]) == 1.0).all()


def test_an_infinity_written_into_the_program_is_not_taken_for_the_cause():
    def program(x):
        masked = jnp.where(x > 0, x, -jnp.inf)  # as in attention
        return jnp.exp(masked).sum() + jnp.log(x[0])

    assert "log" in first_nonfinite(program, jnp.array([-1.0, 2.0]), names=("x",))
    assert first_nonfinite(lambda x: jnp.exp(jnp.where(x > 0, x, -jnp.inf)), jnp.ones(2), names=("x",)) is None
    chosen = first_nonfinite(lambda x: jnp.where(x > 0, x, jnp.nan), jnp.array([-1.0, 2.0]), names=("x",))
    assert chosen.startswith("NaN")
