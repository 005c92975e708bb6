"""Training against the same arithmetic by hand, and what must not change it: loops, devices, microbatches, cuts."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from adapter_cases import CASES, IN, OUT
from flax import nnx
from small_models import (
    LINEAR,
    WIDTH,
    batched,
    close,
    config,
    gradient_descent,
    linear,
    make_data,
    network,
    regression,
    same_bits,
    weights,
)

import systolic as sl
from systolic import data

DATA = make_data(40)


def records(folder):
    """The training records as (step, metrics)."""
    return [(record["step"], record["metrics"]) for record in sl.read_events(folder, "train")]


def program(estimator, name="train"):
    """The Program of that name, for looking into."""
    return estimator._engine.program(name)


# --- the arithmetic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps_per_loop", [1, 5])
def test_linear_regression_is_that_of_numpy(momentum, steps_per_loop):
    estimator = linear(optimizer=optax.sgd(0.05, momentum=momentum or None), run={"steps_per_loop": steps_per_loop})
    estimator.train(lambda: DATA, steps=23)
    close(weights(estimator), gradient_descent(batched(DATA, 8, 23), 0.05, momentum))
    assert estimator.step == 23


def test_logistic_regression_is_that_of_numpy():
    x, y = DATA[0]["x"], (DATA[1] > 0).astype("int32")

    def model_fn(model, features, labels, mode):
        logits = model(features["x"])
        return sl.EstimatorSpec(loss=optax.losses.sigmoid_binary_cross_entropy(logits, labels.astype("float32")))

    estimator = sl.Estimator(LINEAR, model_fn, optax.sgd(0.5), train_batch_size=8, config=config())
    estimator.train(lambda: ({"x": x}, y), steps=30)
    w, b = np.zeros(WIDTH), 0.0
    for x_, y_ in batched(({"x": x}, y), 8, 30):
        error = 1 / (1 + np.exp(-(x_.astype("float64") @ w + b))) - y_
        w, b = w - 0.5 * x_.T.astype("float64") @ error / 8, b - 0.5 * error.mean()
    close(weights(estimator), {"w": w, "b": b})


def test_weights_of_the_loss_make_it_a_weighted_mean():
    importance = np.random.default_rng(1).uniform(0, 2, 40).astype("float32")
    importance[::5] = 0

    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(loss=(model(features["x"]) - labels) ** 2, weights=features["importance"])

    estimator = linear(model_fn=model_fn, batch=40)
    estimator.train(lambda: ({**DATA[0], "importance": importance}, DATA[1]), steps=3)
    x, y, v = (a.astype("float64") for a in (DATA[0]["x"], DATA[1], importance))
    w, b = np.zeros(WIDTH), 0.0
    for _ in range(3):
        error = v * (x @ w + b - y)
        w, b = w - 0.1 * 2 * x.T @ error / v.sum(), b - 0.1 * 2 * error.sum() / v.sum()
    close(weights(estimator), {"w": w, "b": b})


def test_steps_max_steps_and_epochs_count_as_they_say():
    estimator = linear()
    estimator.train(lambda: DATA, steps=3)
    estimator.train(lambda: DATA, steps=4)
    assert estimator.step == 7
    estimator.train(lambda: DATA, max_steps=7)
    assert estimator.step == 7
    estimator.train(lambda: DATA, max_steps=10)
    assert estimator.step == 10
    close(weights(estimator), gradient_descent(batched(DATA, 8, 10)))
    fresh = linear()
    fresh.train(lambda: DATA)  # one epoch of 40 examples by 8
    assert fresh.step == 5
    twice = linear()
    twice.train(lambda: DATA, epochs=2)
    assert twice.step == 10


def test_each_call_for_epochs_is_so_many_more():
    estimator = linear()
    estimator.train(lambda: DATA)
    estimator.train(lambda: DATA)
    assert estimator.step == 10
    estimator.train(lambda: DATA, epochs=2)
    assert estimator.step == 20
    close(weights(estimator), gradient_descent(batched(DATA, 8, 20)))
    estimator.train(lambda: DATA, steps=2)
    estimator.train(lambda: DATA, epochs=1)  # the three steps that are left of the epoch begun, and one epoch
    assert estimator.step == 30


def test_a_run_that_has_had_its_epochs_has_nothing_left_to_do_when_started_again(tmp_path):
    def script(*epochs):
        estimator = linear(tmp_path)
        for n in epochs:
            estimator.train(lambda: DATA, epochs=n)
        return estimator

    assert script(2).step == 10
    again = script(2)
    assert again.step == 10
    assert script(2, 1).step == 15
    assert script(2, 1).step == 15
    linear(tmp_path).train(lambda: DATA, steps=2)  # as if killed in the second of the last two epochs
    last = script(2, 1, 2)
    assert last.step == 25
    close(weights(last), gradient_descent(batched(DATA, 8, 25)))


# --- loops on the device -------------------------------------------------------------------------------------------------


def test_any_number_of_steps_per_loop_agrees_to_rounding():
    trained = {}
    for k in (1, 2, 5, 7):
        estimator = network(optimizer=optax.adam(0.01), run={"steps_per_loop": k})
        estimator.train(lambda: DATA, steps=20)
        assert estimator.step == 20
        trained[k] = weights(estimator)
    for k in (2, 5, 7):
        close(trained[k], trained[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("every", [1, 3, 4, 7])
def test_a_loop_cut_short_gives_the_same_bits_without_another_compile(tmp_path, every):
    shuffled = lambda: data.arrays(*DATA, shuffle=5)  # noqa: E731
    whole = network(rate=0.3, run={"steps_per_loop": 5})
    whole.train(shuffled, steps=20)
    cut = network(tmp_path, rate=0.3, run={"steps_per_loop": 5, "checkpoint_every": every})
    cut.train(shuffled, steps=20)
    assert same_bits(weights(cut), weights(whole))
    assert program(cut).compiles == 1
    pieces = network(rate=0.3, run={"steps_per_loop": 5})
    for n in (1, 4, 6, 2, 7):
        pieces.train(shuffled, steps=n)
    assert same_bits(weights(pieces), weights(whole))
    assert program(pieces).compiles == 1


def test_evaluation_and_its_frequency_change_nothing():
    plain = network(norm=True, run={"steps_per_loop": 5})
    plain.train(lambda: DATA, steps=12)
    watched = network(norm=True, run={"steps_per_loop": 5})
    watched.train_and_evaluate(lambda: DATA, lambda: make_data(11, 1), max_steps=12, eval_every=3)
    assert same_bits(weights(watched), weights(plain))
    assert same_bits(weights(watched, "model_state"), weights(plain, "model_state"))
    assert {name: program(watched, name).compiles for name in ("train", "eval")} == {"train": 1, "eval": 1}


# --- devices and microbatches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps_per_loop", [1, 3])
def test_one_and_eight_devices_agree(steps_per_loop):
    trained = []
    for target in ("cpu:1", "cpu:8"):
        estimator = network(
            rate=0.2,
            norm=True,
            batch=16,
            optimizer=optax.sgd(0.05, momentum=0.9),
            run={"target": target, "steps_per_loop": steps_per_loop},
            clip_norm=1.0,
        )
        estimator.train(lambda: DATA, steps=10)
        trained.append(estimator)
    close(weights(trained[0]), weights(trained[1]), rtol=1e-4, atol=1e-6)
    close(weights(trained[0], "model_state"), weights(trained[1], "model_state"), rtol=1e-4, atol=1e-6)
    assert len(jax.tree.leaves(trained[1].state["params"])[0].sharding.device_set) == 8


@pytest.mark.parametrize("target", ["cpu:1", "cpu:2"])
@pytest.mark.parametrize("accumulate", [2, 4])
def test_accumulated_gradients_are_those_of_the_whole_batch(target, accumulate):
    whole = linear(run={"target": target})
    parts = linear(run={"target": target}, accumulate=accumulate)
    for estimator in (whole, parts):
        estimator.train(lambda: DATA, steps=9)
    close(weights(parts), weights(whole))
    close(weights(parts), gradient_descent(batched(DATA, 8, 9)))


def test_accumulation_weighs_microbatches_by_what_is_in_them(tmp_path):
    # All the weight lies in one microbatch: a mean of the microbatches' means would be half the gradient.
    importance = np.tile(np.array([1, 0], "float32"), 4)

    def model_fn(model, features, labels, mode):
        loss = (model(features["x"]) - labels) ** 2
        return sl.EstimatorSpec(loss=loss, weights=features["v"], metrics={"error": jnp.abs(labels)})

    some = ({"x": DATA[0]["x"][:8], "v": importance}, DATA[1][:8])
    estimators = [linear(tmp_path / str(n), model_fn=model_fn, accumulate=n, run={"log_every": 1}) for n in (1, 2, 4)]
    for estimator in estimators:
        estimator.train(lambda: some, steps=4)
        close(weights(estimator), weights(estimators[0]))
    logged = [[(r["loss"], r["error"]) for _, r in records(tmp_path / str(n))] for n in (1, 2, 4)]
    np.testing.assert_allclose(logged[1], logged[0], rtol=1e-5)
    np.testing.assert_allclose(logged[2], logged[0], rtol=1e-5)


# --- what Optax and the Estimator do to the gradient ---------------------------------------------------------------------------


def test_clip_norm_clips_the_global_norm():
    estimator = linear(clip_norm=0.5)
    estimator.train(lambda: DATA, steps=10)
    close(weights(estimator), gradient_descent(batched(DATA, 8, 10), clip=0.5))


def test_the_moving_average_is_kept_beside_the_parameters():
    estimator = linear(ema=0.9)
    estimator.train(lambda: DATA, steps=10)
    close(weights(estimator), gradient_descent(batched(DATA, 8, 10)))
    close(weights(estimator, "ema"), gradient_descent(batched(DATA, 8, 10), ema=0.9))


@pytest.mark.parametrize("steps_per_loop", [1, 4])
def test_a_schedule_is_followed_and_its_value_logged(tmp_path, steps_per_loop):
    def schedule(step):
        return 0.1 / (1.0 + step)

    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=schedule)
    estimator = linear(
        tmp_path, optimizer=optimizer, clip_norm=100.0, run={"steps_per_loop": steps_per_loop, "log_every": 4}
    )
    estimator.train(lambda: DATA, steps=12)
    close(weights(estimator), gradient_descent(batched(DATA, 8, 12), schedule))
    logged = {step: metrics["learning_rate"] for step, metrics in records(tmp_path)}
    assert sorted(logged) == [4, 8, 12]
    for step, value in logged.items():
        assert value == pytest.approx(0.1 / step)  # the rate that took the parameters to this step: schedule(step - 1)


def test_a_plain_schedule_is_followed():
    estimator = linear(optimizer=optax.sgd(optax.linear_schedule(0.2, 0.0, 10)))
    estimator.train(lambda: DATA, steps=10)
    close(weights(estimator), gradient_descent(batched(DATA, 8, 10), lambda i: 0.2 * (1 - i / 10)))


@pytest.mark.parametrize("steps_per_loop", [1, 4])
def test_the_logged_loss_and_metrics_are_exact_means(tmp_path, steps_per_loop):
    estimator = linear(tmp_path, run={"steps_per_loop": steps_per_loop, "log_every": 4})
    estimator.train(lambda: DATA, steps=8)
    batches = batched(DATA, 8, 8)
    errors = []
    for i, (x, y) in enumerate(batches):
        p = gradient_descent(batches[:i])
        errors.append(x.astype("float64") @ p["w"] + p["b"] - y)
    assert [step for step, _ in records(tmp_path)] == [4, 8]
    for step, record in records(tmp_path):
        window = errors[step - steps_per_loop : step]  # the last dispatch
        assert record["loss"] == pytest.approx(np.mean(np.square(window)), rel=1e-5)
        assert record["absolute_error"] == pytest.approx(np.mean(np.abs(window)), rel=1e-5)


def test_the_logged_rate_leaves_out_what_comes_before_the_first_step_and_pauses(tmp_path):
    slept = []

    class Slow(sl.Hook):
        def _sleep(self):
            began = time.monotonic()
            time.sleep(0.3)
            slept.append(time.monotonic() - began)

        def begin(self, run):
            self._sleep()

        def after_save(self, run, step):
            self._sleep()

    began = time.monotonic()
    for until in (130, 400):  # the second run is resumed between two records
        options = {"log_every": 100, "checkpoint_every": 150}
        linear(tmp_path, hooks=[Slow()], run=options).train(lambda: DATA, max_steps=until)
    whole = time.monotonic() - began
    rates = [(step, metrics["steps_per_second"]) for step, metrics in records(tmp_path)]
    assert [step for step, _ in rates] == [100, 130, 200, 300, 400]
    steps = [100, 30, 70, 100, 100]
    # The seconds that the rates stand for are some of those that were not slept.
    assert sum(n / rate for n, (_, rate) in zip(steps, rates)) < whole - sum(slept)


# --- precision ----------------------------------------------------------------------------------------------------------------


def dots(text):
    return [line for line in text.splitlines() if "stablehlo.dot_general" in line]


def test_bfloat16_computes_in_bfloat16_and_keeps_parameters_and_losses_in_float32(tmp_path):
    estimator = network(tmp_path, norm=True, precision="bfloat16", run={"log_every": 10})
    estimator.train(lambda: DATA, steps=30)
    text = program(estimator).compile("cpu:1").lower_text()
    products = dots(text)
    assert products
    assert all(line.count("xbf16>") == 3 for line in products), "\n".join(products)  # both operands and the result
    for part in ("params", "model_state", "opt_state"):
        floats = [x.dtype for x in jax.tree.leaves(estimator.state[part]) if jnp.issubdtype(x.dtype, jnp.floating)]
        assert set(floats) == {np.dtype("float32")}, part
    full = network(norm=True)
    full.train(lambda: DATA, steps=30)
    assert all("bf16" not in line for line in dots(program(full).compile("cpu:1").lower_text()))
    exact, rounded = full.evaluate(lambda: DATA)["loss"], estimator.evaluate(lambda: DATA)["loss"]
    assert rounded == pytest.approx(exact, rel=0.05)
    row = next(estimator.predict(lambda: DATA[0]))
    assert row["y"].dtype == np.float32


@pytest.mark.parametrize("library", ["nnx", "linen", "equinox"])
def test_running_statistics_in_float32_do_not_widen_what_follows_them(library):
    case = CASES[library]

    def model_fn(model, features, labels, mode, key):
        out = case.call(model, features["x"], mode, key)
        if mode is sl.Mode.PREDICT:
            return sl.EstimatorSpec(predictions={"y": out})
        return sl.EstimatorSpec(loss=((out - labels) ** 2).sum(-1))

    estimator = sl.Estimator(
        case.model(0.1, True), model_fn, optax.sgd(0.1), train_batch_size=8, precision="bfloat16", config=config()
    )
    spec = data.Batches(({"x": np.zeros((8, IN), "float32")}, np.zeros((8, OUT), "float32")), 8).spec
    # Equinox's own layer widens in inference, where it reads its running statistics: the model's doing, not ours.
    for name in ("train",) if library == "equinox" else ("train", "eval", "predict"):
        products = dots(estimator._engine.program(name, spec).lower(sl.Target("cpu:1")).as_text())
        assert products
        assert all(line.count("xbf16>") == 3 for line in products), "\n".join(products)


# --- randomness and state ---------------------------------------------------------------------------------------------------------


def test_dropout_differs_from_step_to_step_and_is_reproducible():
    def model_fn(model, features, labels, mode, key):
        kept = jax.random.bernoulli(key, 0.5, labels.shape).astype("float32")
        # The loss does not depend on the step but for the draw, which it shows.
        return sl.EstimatorSpec(loss=(model(features["x"]) - kept) ** 2 * 0 + kept, metrics={"kept": kept})

    def losses(seed, steps_per_loop):
        seen = []

        class Record(sl.Hook):
            def after_steps(self, run, step, metrics):
                seen.append(metrics["loss"])

        estimator = linear(
            model_fn=model_fn,
            batch=40,
            hooks=[Record()],
            run={"seed": seed, "log_every": 1, "steps_per_loop": steps_per_loop},
        )
        estimator.train(lambda: DATA, steps=8)
        return seen

    first = losses(0, 1)
    assert len(set(first)) > 3
    assert first == losses(0, 1)
    assert first != losses(1, 1)
    assert losses(0, 4) == pytest.approx([np.mean(first[:4]), np.mean(first[4:])])


def test_dropout_of_a_module_is_reproducible_and_off_in_evaluation():
    one, two, other = (network(rate=0.5, run={"seed": seed}) for seed in (0, 0, 1))
    for estimator in (one, two, other):
        estimator.train(lambda: DATA, steps=6)
    assert same_bits(weights(one), weights(two))
    assert not same_bits(weights(one), weights(other))
    assert one.evaluate(lambda: DATA) == one.evaluate(lambda: DATA)


def test_batch_statistics_move_in_training_only():
    estimator = network(norm=True, optimizer=optax.sgd(0.0), batch=8)
    estimator.train(lambda: DATA, steps=2)
    params = weights(estimator)
    mean, var = np.zeros(8), np.ones(8)
    for x, _ in batched(DATA, 8, 2):
        h = x.astype("float64") @ params["first/kernel"] + params["first/bias"]
        mean, var = 0.9 * mean + 0.1 * h.mean(0), 0.9 * var + 0.1 * h.var(0)
    state = weights(estimator, "model_state")
    np.testing.assert_allclose(state["norm/mean"], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state["norm/var"], var, rtol=1e-4)
    estimator.evaluate(lambda: DATA)
    list(estimator.predict(lambda: DATA[0]))
    assert same_bits(weights(estimator, "model_state"), state)


# --- the end of an epoch --------------------------------------------------------------------------------------------------------------


def test_a_short_tail_joins_the_next_epoch():
    estimator = linear(run={"tail": "carry"})
    estimator.train(lambda: make_data(11), steps=8)  # epochs end inside batches 2, 3, 5, 6, 7
    close(weights(estimator), gradient_descent(batched(make_data(11), 8, 8)))


def test_a_short_tail_is_dropped_where_asked():
    some = make_data(11)
    estimator = linear(run={"tail": "drop"})
    estimator.train(lambda: some, steps=3)
    close(weights(estimator), gradient_descent([(some[0]["x"][:8], some[1][:8])] * 3))


@pytest.mark.parametrize("steps_per_loop", [1, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_short_tail_is_padded_where_asked_and_the_padding_has_no_weight(steps_per_loop, accumulate):
    some = make_data(11)
    x, y = some[0]["x"], some[1]
    estimator = linear(run={"tail": "pad", "steps_per_loop": steps_per_loop}, accumulate=accumulate)
    estimator.train(lambda: some, steps=6)
    close(weights(estimator), gradient_descent([(x[:8], y[:8]), (x[8:], y[8:])] * 3))


def test_padding_is_refused_with_batch_statistics():
    estimator = network(norm=True, run={"tail": "pad"})
    with pytest.raises(sl.InputError, match=r"RunConfig\(tail='pad'\): this model keeps batch statistics.*'carry'"):
        estimator.train(lambda: make_data(11), steps=2)


def scalar(model, features, labels, mode):
    return sl.EstimatorSpec(loss=((model(features["x"]) - labels) ** 2).mean())


def test_a_scalar_loss_is_taken_where_no_batch_is_padded():
    estimator = linear(model_fn=scalar)
    estimator.train(lambda: make_data(11), steps=8)
    close(weights(estimator), gradient_descent(batched(make_data(11), 8, 8)))
    full = linear(model_fn=scalar, run={"tail": "pad"})
    full.train(lambda: DATA, steps=5)
    close(weights(full), gradient_descent(batched(DATA, 8, 5)))


@pytest.mark.parametrize("steps_per_loop", [1, 3])
def test_a_scalar_loss_is_explained_where_a_batch_is_padded(steps_per_loop):
    estimator = linear(model_fn=scalar, run={"tail": "pad", "steps_per_loop": steps_per_loop})
    with pytest.raises(sl.InputError, match=r"model_fn returns a scalar loss, and a batch holds padding.*one loss per"):
        estimator.train(lambda: make_data(11), steps=8)


# --- early stopping, best model, and others ------------------------------------------------------------------------------------------------


def test_training_stops_early_and_says_why():
    estimator = linear(optimizer=optax.sgd(0.0), hooks=[sl.EarlyStopping("loss", patience=2)])
    estimator.train_and_evaluate(lambda: DATA, lambda: DATA, max_steps=1000, eval_every=2)
    assert estimator.step == 6  # best at 2, no gain at 4 and 6


def test_a_model_without_labels_trains():
    def model_fn(model, features, mode):
        return sl.EstimatorSpec(loss=(model(features["x"]) - 1.0) ** 2)

    estimator = linear(model_fn=model_fn)
    estimator.train(lambda: DATA[0], steps=5)
    close(weights(estimator), gradient_descent([(x, np.ones(8)) for x, _ in batched(DATA, 8, 5)]))


def test_parameters_of_the_user_reach_the_model_function():
    def model_fn(model, features, labels, mode, params):
        return sl.EstimatorSpec(loss=params["scale"] * (model(features["x"]) - labels) ** 2)

    estimator = linear(model_fn=model_fn, params={"scale": 0.5}, optimizer=optax.sgd(0.2))
    estimator.train(lambda: DATA, steps=5)
    close(weights(estimator), gradient_descent(batched(DATA, 8, 5), 0.1))
    assert regression  # the default of `linear` is another


def test_eager_training_equals_compiled_training():
    compiled, eager = (linear(run={"eager": e, "steps_per_loop": 3}) for e in (False, True))
    for estimator in (compiled, eager):
        estimator.train(lambda: DATA, steps=7)
    close(weights(eager), weights(compiled))
    assert program(eager).compiles == 0


def test_a_model_with_convolutions_takes_single_steps_on_the_cpu_and_loops_elsewhere(caplog):
    class Small(nnx.Module):
        def __init__(self, rngs):
            self.convolution = nnx.Conv(1, 2, (3, 3), rngs=rngs)

        def __call__(self, x):
            return self.convolution(x).mean(axis=(1, 2))

    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(loss=(model(features)[:, 0] - labels) ** 2)

    images, labels = np.ones((8, 4, 4, 1), "float32"), np.zeros(8, "float32")

    def trained(steps_per_loop):
        options = config(steps_per_loop=steps_per_loop, seed=3)
        estimator = sl.Estimator(lambda rngs: Small(rngs), model_fn, optax.sgd(0.1), train_batch_size=4, config=options)
        estimator.train(lambda: (images, labels), steps=5)
        return estimator

    one, many = trained(1), trained(4)
    assert same_bits(weights(one), weights(many))  # the same program, so the same bits
    assert "convolutions" in caplog.text
    program = many._engine.program("train")
    assert program.example[1]["features"].shape == (4, 4, 4, 4, 1)  # what a described target is asked to compile


def aligned(*shape):
    """Zeros whose memory JAX takes as it is, without a copy, on the CPU."""
    raw = np.zeros(int(np.prod(shape)) * 4 + 64, "uint8")
    start = -raw.ctypes.data % 64
    return raw[start : start + int(np.prod(shape)) * 4].view("float32").reshape(shape)


@pytest.mark.parametrize("reused", ["features", "labels", "both", "a ring of them"])
@pytest.mark.parametrize("slow", [False, True])
def test_a_generator_may_fill_its_buffers_again_and_again(reused, slow):
    # Batch i holds i % 7 in features and labels: they agree if each is read before the next batch overwrites it.
    def model_fn(model, features, labels, mode):
        y = model(features["x"]) * 0 + features["x"][:, 0]
        if mode is sl.Mode.PREDICT:
            return sl.EstimatorSpec(predictions=y)
        return sl.EstimatorSpec(loss=model(features["x"]) * (y - labels), metrics={"agree": y == labels})

    def data():
        ring = [(aligned(4, 3), aligned(4)) for _ in range(6 if reused == "a ring of them" else 1)]
        for i in range(60):
            features, labels = ring[i % len(ring)]
            features = features if reused != "labels" else aligned(4, 3)
            labels = labels if reused != "features" else aligned(4)
            features[:], labels[:] = i % 7, i % 7
            if slow:
                time.sleep(0.003)  # so that it is read on a thread of its own
            yield {"x": features}, labels

    for run in ({}, {"steps_per_loop": 6}):
        estimator = linear(batch=4, model_fn=model_fn, optimizer=optax.sgd(0.1), run=run)
        estimator.train(lambda: sl.data.batches(data()), steps=1)
        before = weights(estimator)
        estimator.train(lambda: sl.data.batches(data()), epochs=1)
        assert same_bits(weights(estimator), before)  # every gradient is zero
    estimator = linear(model_fn=model_fn, batch=4, eval_batch_size=4, predict_batch_size=4)
    estimator.train(lambda: sl.data.batches(data()), steps=1)
    assert estimator.evaluate(lambda: sl.data.batches(data()))["agree"] == 1.0
    assert list(estimator.predict(lambda: sl.data.batches(data()))) == [
        float(i % 7) for i in range(60) for _ in range(4)
    ]


def test_an_optimizer_may_look_at_the_loss():
    reduce = optax.contrib.reduce_on_plateau(
        factor=0.5, patience=1, rtol=1.0
    )  # only a loss of zero would be good enough
    estimator = linear(optimizer=optax.chain(optax.sgd(0.01), reduce))
    estimator.train(lambda: make_data(40), steps=8)
    assert float(estimator.state["opt_state"][1].scale) < 1.0


@pytest.mark.parametrize("eager", [False, True])
def test_a_scalar_loss_on_padded_rows_is_refused_compiled_and_eager(eager):
    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(loss=((model(features["x"]) - labels) ** 2).mean())

    estimator = linear(model_fn=model_fn, run={"tail": "pad", "eager": eager})
    with pytest.raises(sl.InputError, match="scalar loss"):
        estimator.train(make_data(5), epochs=1)


def test_in_bfloat16_methods_and_parts_of_a_model_return_float32():
    class Parts(nnx.Module):
        def __init__(self, rngs):
            self.trunk, self.head = nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)
            self.more = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])
            self.named = nnx.Dict(last=nnx.Linear(4, 4, rngs=rngs))
            self.sizes = (3, 4)

        def encode(self, x):
            return self.trunk(x)

    seen = {}

    def model_fn(model, features, labels, mode):
        hidden = model.encode(features["x"])
        y = model.head(hidden)
        seen.update(hidden=hidden.dtype, y=y.dtype, inside=model.trunk.kernel.dtype)
        for part in model.more:
            hidden = part(hidden)
        seen.update(first=model.more[0](hidden).dtype, each=hidden.dtype, named=model.named["last"](hidden).dtype)
        assert len(model.more) == 2
        assert model.sizes == (3, 4)
        return sl.EstimatorSpec(loss=(y[:, 0] - labels) ** 2)

    estimator = sl.Estimator(
        lambda rngs: Parts(rngs), model_fn, optax.sgd(0.1), train_batch_size=8, config=config(), precision="bfloat16"
    )
    estimator.train(make_data(8), steps=1)
    assert seen.pop("inside") == jnp.bfloat16
    assert seen == dict.fromkeys(("hidden", "y", "first", "each", "named"), jnp.float32)


def test_train_and_evaluate_goes_on_with_other_data_from_their_first_example():
    first, other = make_data(64, 1), make_data(64, 2)
    eight = [slice(i, i + 8) for i in range(0, 64, 8)]
    estimator = linear()
    estimator.train_and_evaluate(lambda: first, lambda: other, max_steps=3, eval_every=3)
    metrics = estimator.train_and_evaluate(lambda: other, lambda: other, max_steps=5, eval_every=5, restart_data=True)
    batches = [(first[0]["x"][r], first[1][r]) for r in eight[:3]] + [
        (other[0]["x"][r], other[1][r]) for r in eight[:2]
    ]
    by_hand = gradient_descent(batches)
    for name, value in weights(estimator).items():
        np.testing.assert_allclose(value, by_hand[name], rtol=1e-4, atol=1e-6)
    error = other[0]["x"].astype("float64") @ by_hand["w"] + by_hand["b"] - other[1]
    assert metrics["loss"] == pytest.approx(np.mean(error**2), rel=1e-4)
