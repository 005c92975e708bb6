"""Evaluation and prediction are exact for any number of examples, batch size and number of devices."""

from __future__ import annotations

import threading

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from adapter_cases import IN, LinenNet
from small_models import LINEAR, WIDTH, config, gradient_descent, linear, make_data, network, regression, weights

import systolic as sl

TRAINING = make_data(64, 7)


def threads() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("systolic")}


@pytest.fixture(scope="module", params=["cpu:1", "cpu:8"])
def trained(request):
    """A linear model after five steps, with programs of batch 8 that all tests here share."""
    estimator = linear(run={"target": request.param})
    estimator.train(lambda: TRAINING, steps=5)
    return estimator


def expected(estimator, data):
    p = weights(estimator)
    return data[0]["x"].astype("float64") @ p["w"] + p["b"]


# --- evaluation -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 15, 16, 17, 26, 100])
def test_metrics_over_n_examples_are_those_of_numpy(trained, n):
    some = make_data(n, seed=n)
    error = expected(trained, some) - some[1]
    got = trained.evaluate(lambda: some)
    assert set(got) == {"loss", "absolute_error"}
    assert got["loss"] == pytest.approx(np.mean(error**2), rel=1e-5)
    assert got["absolute_error"] == pytest.approx(np.mean(np.abs(error)), rel=1e-5)


def test_evaluation_never_compiles_again(trained):
    for n in (3, 11, 24):
        trained.evaluate(lambda n=n: make_data(n))
        trained.evaluate(iter([make_data(n)]))
    assert trained._engine.program("eval").compiles == 1


def test_counts_are_exact_beyond_float32():
    # A float32 total of ones stops at 2**24 - here per-batch sums are small and the total is kept in float64.
    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(loss=model(features["x"]) * 0 + labels, metrics={"sum": sl.metrics.Sum(labels)})

    estimator = linear(model_fn=model_fn, batch=1 << 16, optimizer=optax.sgd(0.0))
    large, ones = np.float32(2.0**24), np.ones(1 << 16, "float32")

    def batches():
        x = {"x": np.zeros((1 << 16, WIDTH), "float32")}
        yield x, np.full(1 << 16, large / (1 << 16), "float32")
        for _ in range(3):
            yield x, ones

    estimator.train(lambda: make_data(1 << 16), steps=1)
    assert estimator.evaluate(sl.data.batches(batches()))["sum"] == 2**24 + 3 * 2**16


def test_steps_limits_the_batches(trained):
    some = make_data(40)
    error = expected(trained, some)[:24] - some[1][:24]
    assert trained.evaluate(lambda: some, steps=3)["loss"] == pytest.approx(np.mean(error**2), rel=1e-5)
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield some

    trained.evaluate(sl.data.batches(endless()), steps=3)
    assert len(taken) < 20
    with pytest.raises(sl.InputError, match=r"evaluate\(steps\): saw 0, wanted a whole number of at least 1"):
        trained.evaluate(lambda: some, steps=0)


def nan_of_zeros(model, features, labels, mode):
    """A loss that is NaN for rows of zeros, and a metric that is infinite for them."""
    norm = jnp.sqrt((features["x"] ** 2).sum(-1))
    y = (features["x"] / norm[:, None] * 0).sum(-1) + model(features["x"])
    if mode is sl.Mode.PREDICT:
        return sl.EstimatorSpec(predictions={"y": y})
    return sl.EstimatorSpec(loss=(y - labels) ** 2, predictions={"y": y}, metrics={"inverse": 1 / norm})


def test_padding_cannot_bring_a_nan_into_the_result():
    estimator = linear(model_fn=nan_of_zeros)
    some = make_data(11)
    estimator.train(lambda: TRAINING, steps=2)
    got = estimator.evaluate(lambda: some)
    error = expected(estimator, some) - some[1]
    assert got["loss"] == pytest.approx(np.mean(error**2), rel=1e-5)
    assert got["inverse"] == pytest.approx(
        np.mean(1 / np.linalg.norm(some[0]["x"].astype("float64"), axis=1)), rel=1e-5
    )
    assert all(np.isfinite(row["y"]) for row in estimator.predict(lambda: some[0]))


def test_a_nan_that_stands_in_padding_changes_nothing():
    # The steps' own function, with padding that is as bad as it can be.
    estimator = network(norm=True)
    estimator.train(lambda: TRAINING, steps=3)
    engine = estimator._engine
    program, variables = engine.executable("eval"), engine.variables()
    some = make_data(8, 3)
    mask = np.arange(8) < 5
    results = []
    for filling in (0.0, np.nan, np.inf):
        x, y = some[0]["x"].copy(), some[1].copy()
        x[5:], y[5:] = filling, filling
        out = program(variables, {"features": {"x": x}, "labels": y, "mask": mask})
        results.append({name: {k: float(v) for k, v in sums.items()} for name, sums in out.items()})
    assert results[0] == results[1] == results[2]
    assert results[0]["loss"]["weight"] == 5.0
    assert np.isfinite(results[0]["loss"]["sum"])


def test_a_nan_in_a_real_example_shows():
    estimator = linear()
    estimator.train(lambda: TRAINING, steps=1)
    x, y = make_data(11)
    x["x"][10, 0] = np.nan
    assert np.isnan(estimator.evaluate(lambda: (x, y))["loss"])


def test_batch_norm_and_dropout_are_off_in_evaluation():
    estimator = network(rate=0.5, norm=True)
    estimator.train(lambda: TRAINING, steps=20)
    p, s = weights(estimator), weights(estimator, "model_state")
    some = make_data(13, 5)
    h = some[0]["x"].astype("float64") @ p["first/kernel"] + p["first/bias"]
    h = (h - s["norm/mean"]) / np.sqrt(s["norm/var"] + 1e-5) * p["norm/scale"] + p["norm/bias"]
    y = (np.maximum(h, 0) @ p["last/kernel"] + p["last/bias"])[:, 0]
    assert estimator.evaluate(lambda: some)["loss"] == pytest.approx(np.mean((y - some[1]) ** 2), rel=1e-4)
    rows = [row["y"] for row in estimator.predict(lambda: some[0])]
    np.testing.assert_allclose(rows, y, rtol=1e-4, atol=1e-5)


def test_the_moving_average_is_what_is_evaluated_and_predicted():
    estimator = linear(ema=0.8)
    estimator.train(lambda: TRAINING, steps=6)
    rows = np.arange(48).reshape(6, 8)
    average = gradient_descent([(TRAINING[0]["x"][r], TRAINING[1][r]) for r in rows], ema=0.8)
    some = make_data(11)
    y = some[0]["x"].astype("float64") @ average["w"] + average["b"]
    assert estimator.evaluate(lambda: some)["loss"] == pytest.approx(np.mean((y - some[1]) ** 2), rel=1e-5)
    np.testing.assert_allclose([row["y"] for row in estimator.predict(lambda: some[0])], y, rtol=1e-5, atol=1e-6)


def scalar(model, features, labels, mode):
    return sl.EstimatorSpec(loss=((model(features["x"]) - labels) ** 2).mean())


def test_a_scalar_loss_is_exact_on_full_batches_and_refused_on_others():
    estimator = linear(model_fn=scalar)
    estimator.train(lambda: TRAINING, steps=1)
    some = make_data(19)
    error = expected(estimator, some) - some[1]
    full = (({"x": some[0]["x"][:16]}, some[1][:16]),)
    assert estimator.evaluate(lambda: full[0])["loss"] == pytest.approx(np.mean(error[:16] ** 2), rel=1e-5)
    assert estimator.evaluate(lambda: some, steps=2)["loss"] == pytest.approx(np.mean(error[:16] ** 2), rel=1e-5)
    with pytest.raises(sl.InputError, match=r"scalar loss, and the last batch holds 3 of 8 rows.*pass steps=2"):
        estimator.evaluate(lambda: some)
    with pytest.raises(sl.InputError, match=r"holds 3 of 8 rows.*eval_batch_size") as error:
        estimator.evaluate(lambda: make_data(3))
    assert "steps=0" not in str(error.value)


def test_an_evaluation_that_fails_leaves_no_thread():
    estimator = linear()
    estimator.train(lambda: TRAINING, steps=1)
    before = threads()

    def broken():
        yield from [({"x": np.zeros((8, WIDTH), "float32")}, np.zeros(8, "float32"))] * 3
        raise OSError("the disk went away")

    with pytest.raises(sl.InputError, match="the disk went away"):
        estimator.evaluate(sl.data.batches(broken()))
    assert threads() <= before


# --- prediction ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, 8, 9, 17, 26])
def test_n_rows_come_back_in_order(trained, n):
    some = make_data(n, seed=n)
    rows = list(trained.predict(lambda: some[0]))
    assert len(rows) == n
    np.testing.assert_allclose([row["y"] for row in rows], expected(trained, some), rtol=1e-5, atol=1e-6)


def test_labels_in_the_data_are_ignored(trained):
    some = make_data(11)
    with_labels = [row["y"] for row in trained.predict(lambda: some)]
    np.testing.assert_array_equal(with_labels, [row["y"] for row in trained.predict(lambda: some[0])])
    assert trained._engine.program("predict").compiles == 1


def test_rows_are_computed_as_they_are_asked_for(trained):
    read = []

    def stream():
        for i in range(100):
            read.append(i)
            yield {"x": np.full((8, WIDTH), i, "float32")}

    before = threads()
    rows = trained.predict(sl.data.batches(stream()))
    assert read == []
    p = weights(trained)
    for i in range(10):
        assert float(next(rows)["y"]) == pytest.approx(float(p["w"].sum() * (i // 8) + p["b"]), rel=1e-5, abs=1e-6)
    assert len(read) < 20
    rows.close()
    assert threads() <= before
    assert len(read) < 20
    with pytest.raises(StopIteration):
        next(rows)


def test_a_generator_of_the_user_is_closed_with_the_prediction(trained):
    closed = []

    def stream():
        try:
            while True:
                yield {"x": np.zeros((8, WIDTH), "float32")}
        finally:
            closed.append(True)

    rows = trained.predict(sl.data.batches(stream()))
    next(rows)
    del rows
    assert closed == [True]


def test_strings_stay_on_the_host_and_come_back_with_their_rows(trained):
    some = make_data(11)
    names = np.array([f"row {i}" for i in range(11)])
    rows = list(trained.predict(lambda: {**some[0], "name": names}))
    assert [row["name"] for row in rows] == list(names)
    np.testing.assert_allclose([row["y"] for row in rows], expected(trained, some), rtol=1e-5, atol=1e-6)


def test_strings_come_back_after_training_with_them():
    x, y = make_data(16)
    named = ({**x, "name": np.array([f"row {i}" for i in range(16)])}, y)
    estimator = linear()
    estimator.train(lambda: named, steps=2)
    assert [row["name"] for row in estimator.predict(lambda: named)] == list(named[0]["name"])
    assert estimator.evaluate(lambda: named)["loss"] > 0


def test_predictions_may_be_one_array_or_a_tree():
    def model_fn(model, features, labels, mode):
        y = model(features["x"])
        predictions = {"pair": (y, -y), "deep": {"square": y**2}}
        return sl.EstimatorSpec(predictions=predictions, loss=None if mode is sl.Mode.PREDICT else y)

    estimator = linear(model_fn=model_fn)
    estimator.train(lambda: TRAINING[0], steps=1)
    some = make_data(9)
    y = expected(estimator, some)
    for row, value in zip(estimator.predict(lambda: some[0]), y, strict=True):
        assert float(row["pair"][1]) == pytest.approx(-value, rel=1e-5)
        assert float(row["deep"]["square"]) == pytest.approx(value**2, rel=1e-5)


def test_a_name_in_both_predictions_and_strings_is_refused(trained):
    names = np.array(["a"] * 8)
    with pytest.raises(sl.InputError, match="predictions and host-only features share the name 'y'"):
        next(trained.predict(lambda: {**make_data(8)[0], "y": names}))


def test_an_untrained_model_is_refused():
    estimator = sl.Estimator(LINEAR, nan_of_zeros, train_batch_size=8, config=config())
    with pytest.raises(sl.CheckpointError, match=r"has not been trained.*call train first"):
        next(estimator.predict(lambda: make_data(3)[0]))
    with pytest.raises(sl.CheckpointError, match=r"has not been trained.*call train first"):
        estimator.evaluate(lambda: make_data(3))


def test_labels_are_not_needed_to_predict_with_a_model_that_learns_its_shapes_from_them():
    # A Linen module is initialised by a training step, which has labels; prediction has none.
    def model_fn(model, features, labels, mode):
        out = model(features["x"], train=mode is sl.Mode.TRAIN)
        if mode is sl.Mode.PREDICT:
            return sl.EstimatorSpec(predictions={"y": out})
        return sl.EstimatorSpec(loss=((out - labels[:, None]) ** 2).sum(-1))

    estimator = sl.Estimator(LinenNet(0.1, True), model_fn, optax.sgd(0.1), train_batch_size=8, config=config())
    x, y = np.ones((9, IN), "float32"), np.ones(9, "float32")
    estimator.train(lambda: ({"x": x}, y), steps=2)
    assert len(list(estimator.predict(lambda: {"x": x}))) == 9


def test_a_new_process_predicts_and_evaluates_from_the_checkpoint_and_knows_its_shapes(tmp_path):
    estimator = linear(tmp_path)
    estimator.train(lambda: TRAINING, steps=3)
    some = make_data(11)
    rows = [row["y"] for row in estimator.predict(lambda: some[0])]
    again = linear(tmp_path)
    assert [row["y"] for row in again.predict(lambda: some[0])] == rows
    assert linear(tmp_path).evaluate(lambda: some) == estimator.evaluate(lambda: some)
    wide = make_data(11, width=5)
    with pytest.raises(sl.InputError, match=r"feature 'x' .*shape \(11, 5\) seen, \(rows, 3\) expected"):
        next(linear(tmp_path).predict(lambda: wide[0]))
    with pytest.raises(sl.InputError, match=r"feature 'x' .*shape \(11, 5\) seen, \(rows, 3\) expected"):
        linear(tmp_path).evaluate(lambda: wide)


# --- functions of the user's that are called on the host --------------------------------------------------------------


def checked(how, check):
    """A model function that hands its output to ``check`` on the host, outside training."""

    def model_fn(model, features, labels, mode):
        spec = regression(model, features, labels, mode)
        if mode is sl.Mode.TRAIN:
            return spec
        y = spec.predictions["y"]
        same = jax.ShapeDtypeStruct(y.shape, y.dtype)
        if how == "pure_callback":
            y = jax.pure_callback(check, same, y)
        elif how == "io_callback":
            y = jax.experimental.io_callback(check, same, y)
        else:
            jax.debug.callback(check, y)
        if mode is sl.Mode.PREDICT:
            return sl.EstimatorSpec(predictions={"y": y})
        return sl.EstimatorSpec(loss=(y - labels) ** 2)

    return model_fn


class OutOfRangeError(Exception):
    pass


class Check:
    """Lets ``good`` calls pass and raises in the others."""

    def __init__(self):
        self.good = 1000

    def __call__(self, y):
        self.good -= 1
        if self.good < 0:
            raise OutOfRangeError("no such price")
        return np.asarray(y)


@pytest.mark.parametrize("how", ["pure_callback", "io_callback", "debug.callback"])
def test_what_a_function_on_the_host_raises_is_the_error_and_later_calls_work(how, caplog):
    check = Check()
    estimator = linear(model_fn=checked(how, check))
    x, y = make_data(40, 2)
    estimator.train(lambda: (x, y), steps=2)
    uses = (lambda: estimator.evaluate(lambda: (x, y))["loss"], lambda: [r["y"] for r in estimator.predict(lambda: x)])
    whole = [use() for use in uses]
    for use, result in zip(uses, whole, strict=True):
        check.good = 0
        with pytest.raises(OutOfRangeError, match="no such price") as error:
            use()
        assert error.value.__notes__ == ["Raised in a function that model_fn calls on the host."]
        check.good = 1000
        assert use() == result
    assert caplog.text == ""


def test_rows_of_batches_before_the_one_that_a_function_on_the_host_refuses_come_out():
    check = Check()
    estimator = linear(model_fn=checked("pure_callback", check))
    x, y = make_data(40, 2)
    estimator.train(lambda: (x, y), steps=2)
    check.good, got = 2, []
    rows = estimator.predict(lambda: x)
    with pytest.raises(OutOfRangeError):
        got.extend(row["y"] for row in rows)
    np.testing.assert_allclose(
        got, x["x"][:16].astype("float64") @ weights(estimator)["w"] + weights(estimator)["b"], rtol=1e-5
    )
