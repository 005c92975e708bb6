"""A step that fails on the way: the user's exception is told, and the Estimator says truly where it stands."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import linear, make_data, same_bits, weights

import systolic as sl

DATA = make_data(40)


class Boom(Exception):
    pass


def failing(kind, at):
    """A model function that calls the host in each step of training, and fails at the call of that number."""
    calls = [0]

    def host(x):
        calls[0] += 1
        if calls[0] == at:
            raise Boom(f"at call {at}")
        return np.asarray(x)

    def model_fn(model, features, labels, mode):
        loss = (model(features["x"]) - labels) ** 2
        if mode is sl.Mode.TRAIN:
            same = jax.lax.stop_gradient(loss)
            shape = jax.ShapeDtypeStruct(loss.shape, loss.dtype)
            if kind == "debug":
                jax.debug.callback(lambda x: [host(x), None][1], loss)
            else:
                call = jax.pure_callback if kind == "pure" else jax.experimental.io_callback
                loss = loss + 0 * jax.lax.stop_gradient(call(host, shape, same))
        return sl.EstimatorSpec(loss=loss)

    return model_fn


KINDS = pytest.mark.parametrize("kind", ["pure", "io", "debug"])
LOOPS = pytest.mark.parametrize("steps_per_loop", [1, 4])


@KINDS
@LOOPS
def test_the_exception_of_a_host_callback_is_raised_and_the_run_goes_on_from_its_checkpoint(
    tmp_path, caplog, kind, steps_per_loop
):
    options = {"steps_per_loop": steps_per_loop, "checkpoint_every": 4}
    estimator = linear(tmp_path, model_fn=failing(kind, 10), run=options)
    with pytest.raises(Boom, match="at call 10") as raised:
        estimator.train(lambda: DATA, max_steps=20)
    assert any("goes on from step 8, the latest checkpoint" in note for note in raised.value.__notes__)
    assert "host" in [entry.name for entry in raised.traceback]  # the line of the user's that raised
    assert not [record for record in caplog.records if "callback failed" in record.getMessage()]  # told once
    assert estimator.step == 8
    estimator.train(lambda: DATA, max_steps=20)
    whole = linear(run={"steps_per_loop": steps_per_loop}, model_fn=failing(kind, 0))
    whole.train(lambda: DATA, steps=20)
    assert same_bits(weights(estimator), weights(whole))


@LOOPS
def test_without_a_checkpoint_a_lost_state_is_told_and_training_begins_anew(steps_per_loop):
    estimator = linear(model_fn=failing("pure", 10), run={"steps_per_loop": steps_per_loop})
    with pytest.raises(Boom) as raised:
        estimator.train(lambda: DATA, steps=20)
    assert any("the next training begins anew, at step 0" in note for note in raised.value.__notes__)
    assert estimator.step == 0
    with pytest.raises(sl.CheckpointError, match="has not been trained"):
        estimator.evaluate(lambda: DATA)
    estimator.train(lambda: DATA, steps=5)
    whole = linear(model_fn=failing("pure", 0), run={"steps_per_loop": steps_per_loop})
    whole.train(lambda: DATA, steps=5)
    assert same_bits(weights(estimator), weights(whole))


def test_an_exception_of_the_input_leaves_the_state_where_it_is():
    def source(good):
        for i in range(good):
            yield {"x": DATA[0]["x"][8 * i : 8 * i + 8]}, DATA[1][8 * i : 8 * i + 8]
        if good < 5:
            raise Boom("in the input")

    estimator = linear()
    with pytest.raises(sl.InputError, match="Boom raised at element 3") as raised:
        estimator.train(lambda: sl.data.batches(source(3)), steps=5)
    assert not getattr(raised.value, "__notes__", [])
    done = estimator.step
    assert 1 <= done <= 3
    estimator.train(lambda: sl.data.batches(source(5)), steps=5)  # behind the batches that were trained on
    whole = linear()
    whole.train(lambda: DATA, steps=done + 5)
    assert same_bits(weights(estimator), weights(whole))


def test_an_exception_of_a_callback_in_an_evaluation_leaves_the_state_where_it_is():
    def model_fn(model, features, labels, mode):
        loss = (model(features["x"]) - labels) ** 2
        if mode is sl.Mode.EVAL:
            loss = jax.pure_callback(raising, jax.ShapeDtypeStruct(loss.shape, loss.dtype), loss)
        return sl.EstimatorSpec(loss=loss)

    def raising(x):
        raise Boom("in evaluation")

    estimator = linear(model_fn=model_fn)
    with pytest.raises(Boom, match="in evaluation"):
        estimator.train_and_evaluate(lambda: DATA, lambda: DATA, max_steps=8, eval_every=4)
    assert estimator.step == 4
    assert jnp.isfinite(estimator.state["params"]["w"]).all()


def test_a_first_call_that_failed_leaves_the_estimator_as_new():
    estimator = linear()
    for _ in range(2):
        with pytest.raises(sl.InputError, match="labels"):
            estimator.train(lambda: DATA[0], steps=1)
    estimator.train(lambda: DATA, steps=1)
    other = linear()
    other.train(lambda: DATA, steps=1)
    assert same_bits(weights(estimator), weights(other))


def test_epochs_that_a_failed_call_did_not_come_to_are_not_counted():
    estimator = linear(batch=4)  # 40 examples: ten steps an epoch

    def rows(broken):
        for i in range(40):
            if broken and i == 26:
                raise OSError("unplugged")
            yield {"x": DATA[0]["x"][i : i + 1]}, DATA[1][i : i + 1]

    with pytest.raises(sl.InputError, match="unplugged"):
        estimator.train(lambda: rows(True), epochs=5)
    assert estimator.step <= 6
    estimator.train(lambda: rows(False), epochs=1)  # finishes the one begun, and then has one
    assert estimator.step == 20
