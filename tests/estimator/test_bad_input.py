"""Bad input to an Estimator: one error that names the argument, what was seen, what was wanted, and what to do.

Damage to checkpoints, full disks, folders that cannot be written, and two runs in one folder are in ``test_checkpoint``;
a check that runs out of memory is in the tests of ``check``.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import LINEAR, config, linear, make_data, regression

import systolic as sl
from systolic.target import libtpu_version

needs_libtpu = pytest.mark.skipif(libtpu_version() is None, reason="needs libtpu")

DATA = make_data(40)


def says(error, *parts):
    text = str(error.value)
    for part in parts:
        assert part in text, f"{part!r} is not in: {text}"


# --- batch sizes ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "nearest"), [(12, "use 8 or 16"), (5, "use 8")])
def test_a_training_batch_that_the_devices_do_not_divide(size, nearest):
    estimator = linear(batch=size, run={"target": "cpu:8"})
    with pytest.raises(sl.TargetError) as error:
        estimator.train(lambda: DATA, steps=1)
    says(error, "Estimator(train_batch_size)", f"saw {size}", "8 devices of cpu:8", nearest)


def test_evaluation_and_prediction_batches_that_the_devices_do_not_divide():
    estimator = linear(batch=8, eval_batch_size=12, predict_batch_size=20, run={"target": "cpu:8"})
    estimator.train(lambda: DATA, steps=1)
    with pytest.raises(sl.TargetError) as error:
        estimator.evaluate(lambda: DATA)
    says(error, "Estimator(eval_batch_size)", "saw 12", "use 8 or 16")
    with pytest.raises(sl.TargetError) as error:
        estimator.predict(lambda: DATA[0])
    says(error, "Estimator(predict_batch_size)", "saw 20", "use 16 or 24")
    with pytest.raises(sl.TargetError) as error:  # before hours of training, not after
        estimator.train_and_evaluate(lambda: DATA, lambda: DATA, max_steps=2, eval_every=1)
    says(error, "Estimator(eval_batch_size)")


def test_microbatches_that_do_not_divide():
    with pytest.raises(sl.InputError, match=r"Estimator\(accumulate\): train_batch_size=8 is not divisible by 3"):
        linear(batch=8, accumulate=3)
    estimator = linear(batch=8, accumulate=2, run={"target": "cpu:8"})
    with pytest.raises(sl.TargetError) as error:
        estimator.train(lambda: DATA, steps=1)
    says(error, "saw 8", "8 devices × 2 microbatches", "use 16")


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "8"])
def test_a_batch_size_that_is_no_count(size):
    with pytest.raises(
        sl.InputError, match=r"Estimator\(train_batch_size\): saw .*, wanted a whole number of at least"
    ):
        linear(batch=size)


@pytest.mark.parametrize("name", ["eval_batch_size", "predict_batch_size"])
def test_another_batch_size_that_is_no_count(name):
    with pytest.raises(sl.InputError, match=rf"Estimator\({name}\): saw 0, wanted a whole number of at least 1"):
        linear(**{name: 0})


# --- data ---------------------------------------------------------------------------------------------------------------------------


def test_fewer_examples_than_a_batch():
    with pytest.raises(sl.InputError) as error:
        linear(batch=8).train(lambda: make_data(5))
    says(error, "batch_size: 8 seen", "the data has 5 examples", "smaller batch")


def test_a_missing_feature_is_named_in_training_and_in_evaluation():
    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(loss=(model(features["z"]) - labels) ** 2)

    with pytest.raises(sl.InputError) as error:
        linear(model_fn=model_fn).train(lambda: DATA, steps=1)
    says(error, "model_fn looked for 'z'", "no feature of that name", "the features are 'x'", "input_fn")
    estimator = linear()
    estimator.train(lambda: DATA, steps=1)
    with pytest.raises(sl.InputError) as error:
        estimator.evaluate(lambda: ({"z": DATA[0]["x"]}, DATA[1]))
    says(error, "missing: 'x'", "not expected: 'z'", "the same as in training")
    with pytest.raises(sl.InputError) as error:
        next(estimator.predict(lambda: {"z": DATA[0]["x"]}))
    says(error, "missing: 'x'")


def test_shapes_that_differ_between_training_and_evaluation():
    estimator = linear()
    estimator.train(lambda: DATA, steps=1)
    for use in (estimator.evaluate, lambda fn: list(estimator.predict(fn))):
        with pytest.raises(sl.InputError) as error:
            use(lambda: make_data(16, width=4))
        says(error, "feature 'x'", "(16, 4) seen", "(rows, 3) expected")
    with pytest.raises(sl.InputError) as error:
        estimator.evaluate(lambda: (DATA[0], DATA[1][:, None]))
    says(error, "labels", "(40, 1) seen", "(rows,) expected")


def test_a_dtype_that_cannot_be_cast_without_loss():
    estimator = linear()
    estimator.train(lambda: DATA, steps=1)
    with pytest.raises(sl.InputError) as error:
        estimator.evaluate(lambda: ({"x": DATA[0]["x"].astype("complex64")}, DATA[1]))
    says(error, "feature 'x'", "complex64", "float32")
    with pytest.raises(sl.InputError) as error:
        estimator.evaluate(lambda: ({"x": np.full((40, 3), "a")}, DATA[1]))
    says(error, "'x'")


def test_labels_that_are_missing():
    with pytest.raises(sl.InputError) as error:
        linear().train(lambda: DATA[0], steps=1)
    says(error, "model_fn: regression uses labels in mode TRAIN", "labels are None", "a pair (features, labels)")
    estimator = linear()
    estimator.train(lambda: DATA, steps=1)
    with pytest.raises(sl.InputError) as error:
        estimator.evaluate(lambda: DATA[0])
    says(error, "missing: 'labels'", "the same as in training")


def test_labels_that_are_used_where_there_are_none():
    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(loss=(model(features["x"]) - labels) ** 2, predictions=features["x"])

    estimator = linear(model_fn=model_fn)
    estimator.train(lambda: DATA, steps=1)
    with pytest.raises(sl.InputError) as error:
        next(estimator.predict(lambda: DATA[0]))
    says(error, "model_fn uses labels in mode PREDICT, where they are None", "if mode is sl.Mode.PREDICT")


def test_an_error_of_the_users_own_is_not_hidden():
    def model_fn(model, features, labels, mode):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        linear(model_fn=model_fn).train(lambda: DATA, steps=1)


@pytest.mark.parametrize(
    "source", [list, dict, lambda: iter(()), lambda: ({"x": np.zeros((0, 3), "float32")}, np.zeros(0))]
)
def test_no_data_at_all(source):
    with pytest.raises(sl.InputError, match=r"0 examples|empty|no "):
        linear().train(source, steps=1)


def test_a_ragged_feature():
    def ragged():
        for i in range(16):
            yield {"x": np.zeros(3 + (i == 11), "float32")}, np.float32(0)

    with pytest.raises(sl.InputError) as error:
        linear().train(ragged, steps=2)
    says(error, "feature 'x' of example 11", "(4,) seen", "(3,) expected")


def test_a_generator_that_raises():
    def broken():
        yield from (({"x": DATA[0]["x"][i]}, DATA[1][i]) for i in range(20))
        raise OSError("the disk went away")

    with pytest.raises(sl.InputError, match="the disk went away"):
        linear().train(broken, steps=10)


def test_a_generator_that_cannot_be_read_twice():
    source = ({"x": DATA[0]["x"][i], "n": i} for i in range(16))
    with pytest.raises(sl.InputError, match="fresh iterable"):
        linear(model_fn=lambda model, features: sl.EstimatorSpec(loss=model(features["x"]))).train(source, steps=10)


# --- what the model function returns ------------------------------------------------------------------------------------------------------


def returning(**spec):
    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(**{name: make(model(features["x"])) for name, make in spec.items()})

    return model_fn


def test_results_of_the_model_function_that_are_not_per_example():
    cases = [
        (lambda model, features, labels: 3.0, ("returned float, wanted an EstimatorSpec",)),
        (returning(predictions=lambda y: y), ("returned no loss in mode TRAIN", "one value per example")),
        (returning(loss=lambda y: y[:3]), ("EstimatorSpec(loss=...)", "shape (3,)", "first dimension to be 8")),
        (returning(loss=lambda y: y.astype("int32")), ("got dtype int32, wanted a real floating-point",)),
        (returning(loss=lambda y: y, metrics=lambda y: {"loss": y}), ("'loss' is taken by the loss",)),
        (returning(loss=lambda y: {"a": y, "b": y}), ("dict of losses (a, b) and one optimizer", "add them up")),
    ]
    for model_fn, parts in cases:
        with pytest.raises(sl.InputError) as error:
            linear(model_fn=model_fn, batch=8).train(lambda: DATA, steps=1)
        says(error, *parts)


def test_a_model_function_without_predictions():
    estimator = linear(model_fn=returning(loss=lambda y: y))
    estimator.train(lambda: DATA, steps=1)
    with pytest.raises(
        sl.InputError, match=r"returned no predictions in mode PREDICT. Set EstimatorSpec\(predictions="
    ):
        next(estimator.predict(lambda: DATA[0]))


# --- settings -----------------------------------------------------------------------------------------------------------------------------


def test_a_target_that_does_not_exist():
    with pytest.raises(sl.TargetError) as error:
        linear(run={"target": "v9-8"}).train(lambda: DATA, steps=1)
    says(error, "v9-8", "v5e")
    with pytest.raises(sl.TargetError, match="cpu:99"):
        linear(run={"target": "cpu:99"}).train(lambda: DATA, steps=1)


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("steps_per_loop", 0, "whole number of at least 1"),
        ("keep", 1.5, "whole number of at least 1"),
        ("log_every", -1, "whole number of at least 1"),
        ("prefetch", "2", "whole number of at least 1"),
        ("compile_budget", True, "whole number of at least 1"),
        ("checkpoint_every", 0, "whole number of at least 1"),
        ("tail", "cut", "one of 'carry', 'drop', 'pad'"),
        ("on_nonfinite", "raise", "one of 'stop', 'ignore'"),
    ],
)
def test_a_field_of_the_configuration(field, value, wanted):
    with pytest.raises(sl.InputError) as error:
        config(**{field: value})
    says(error, f"RunConfig({field}): saw {value!r}", wanted)


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("precision", "float16", "wanted 'float32' or 'bfloat16'"),
        ("clip_norm", 0.0, "wanted a positive norm"),
        ("clip_norm", float("nan"), "wanted a positive norm"),
        ("clip_norm", "1.0", "wanted a positive norm"),
        ("ema", 1.0, "between 0 and 1"),
        ("ema", "0.9", "between 0 and 1"),
        ("hooks", sl.Hook(), "wanted a list of hooks"),
        ("accumulate", 0, "at least 1"),
    ],
)
def test_an_option_of_the_estimator(option, value, wanted):
    with pytest.raises(sl.InputError) as error:
        linear(**{option: value})
    says(error, f"Estimator({option}", wanted)


def test_how_long_to_train():
    estimator = linear()
    with pytest.raises(sl.InputError, match=r"train\(steps, max_steps\): saw both; give steps .* or max_steps"):
        estimator.train(lambda: DATA, steps=1, max_steps=2)
    for name in ("steps", "max_steps", "epochs"):
        with pytest.raises(sl.InputError, match=rf"train\({name}\): saw 0, wanted a whole number of at least 1"):
            estimator.train(lambda: DATA, **{name: 0})
    with pytest.raises(sl.InputError, match=r"train_and_evaluate\(eval_every\): saw 0"):
        estimator.train_and_evaluate(lambda: DATA, lambda: DATA, max_steps=1, eval_every=0)


def test_training_without_an_optimizer():
    estimator = sl.Estimator(LINEAR, regression, train_batch_size=8, config=config())
    with pytest.raises(sl.InputError, match=r"Estimator\(optimizer\): training needs an optimizer; pass one"):
        estimator.train(lambda: DATA, steps=1)


def test_things_that_are_not_what_they_should_be():
    with pytest.raises(sl.InputError, match=r"hooks\[0\] is .* \(this is the class: call it\)"):
        linear(hooks=[sl.EarlyStopping]).train(lambda: DATA, steps=1)
    with pytest.raises(sl.InputError, match=r"Estimator\(optimizer\): saw float, wanted an optax"):
        linear(optimizer=0.1)
    with pytest.raises(sl.InputError, match=r"Estimator\(model_fn\): saw dict, wanted a function"):
        linear(model_fn={"loss": 1})
    with pytest.raises(sl.InputError, match=r"Estimator\(config\): saw dict, wanted a RunConfig"):
        sl.Estimator(LINEAR, regression, optax.sgd(0.1), train_batch_size=8, config={"model_dir": "x"})


def test_a_metric_that_early_stopping_does_not_find():
    estimator = linear(hooks=[sl.EarlyStopping("accuracy", patience=1)])
    with pytest.raises(sl.InputError) as error:
        estimator.train_and_evaluate(lambda: DATA, lambda: DATA, max_steps=2, eval_every=1)
    says(error, "EarlyStopping", "'accuracy' is not among the evaluation's: absolute_error, loss")


def test_a_source_that_changed_since_the_checkpoint(tmp_path):
    linear(tmp_path).train(lambda: DATA, steps=4)
    with pytest.raises(sl.InputError, match="It was changed since the position was saved"):
        linear(tmp_path).train(lambda: make_data(16), steps=1)


def test_two_arrays_under_one_path_are_refused():
    model = (lambda key: {"a/b": jnp.ones(3), "a": {"b": jnp.ones(3)}}, lambda p, x: x @ p["a/b"])
    estimator = sl.Estimator(model, regression, optax.sgd(0.1), train_batch_size=4, config=config())
    with pytest.raises(sl.InputError, match="params/a/b: two arrays have this path"):
        estimator.train(lambda: DATA, steps=1)


def test_a_check_of_other_data_than_was_trained_on_is_refused():
    estimator = linear(batch=4)
    estimator.train(lambda: DATA, steps=1)
    wide = {"x": np.zeros((4, 7), "float32")}, np.zeros(4, "float32")
    with pytest.raises(sl.InputError, match=r"'x' .* shape \(4, 7\) seen, \(rows, 3\) expected"):
        estimator.check(lambda: wide, target="v5e-1")


def test_a_checked_batch_must_divide_into_microbatches():
    with pytest.raises(
        sl.TargetError, match=r"check\(batch_size\): saw 6, which 1 device × 4 microbatches of v5e-1 do not divide"
    ):
        linear(accumulate=4).check(lambda: DATA, target="v5e-1", batch_size=6)


@needs_libtpu
def test_a_mistake_in_model_fn_is_raised_by_a_check():
    def model_fn(model, features, labels, mode):
        y = model(features["x"])
        metrics = {"short": (y - labels)[:2]} if mode is sl.Mode.EVAL else {}
        return sl.EstimatorSpec(loss=(y - labels) ** 2, predictions=y, metrics=metrics)

    with pytest.raises(sl.InputError, match="short"):
        linear(model_fn=model_fn).check(lambda: DATA, target="v5e-1", programs=["eval"])


def test_training_that_has_nothing_to_do_says_so(caplog):
    estimator = linear(batch=4)
    estimator.train(lambda: DATA, steps=3)
    estimator.train(lambda: DATA, max_steps=2)
    assert "nothing to do, the model is at step 3: max_steps=2 is reached" in caplog.text
    assert estimator.step == 3


def test_evaluation_data_that_is_missing_is_told_before_training():
    estimator = linear(batch=4)
    with pytest.raises(sl.InputError, match=r"train_and_evaluate\(eval_fn\): saw None"):
        estimator.train_and_evaluate(lambda: DATA, None, max_steps=4, eval_every=2)
    assert estimator.step == 0


@pytest.mark.parametrize("path", [None, "", "folder", "/proc/x/y.html"])
def test_a_report_that_cannot_be_written_is_told(tmp_path, monkeypatch, path):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    report = linear(batch=4).check(lambda: DATA, target="cpu:1", programs="predict")
    with pytest.raises(sl.InputError, match=r"write_html\(path\): (saw|cannot write)"):
        report.write_html(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: linear(hooks=None), r"Estimator\(hooks\): saw None"),
        (lambda: linear().with_config(_hook_states=1), r"with_config\(_hook_states\): there is no such argument"),
        (lambda: linear().check(lambda: DATA, programs=3), r"check\(programs\): saw 3"),
        (lambda: sl.EarlyStopping("loss", patience=2.5), r"EarlyStopping\(patience\): saw 2.5"),
        (lambda: linear(batch=3).check(lambda: DATA, target="v5e-8"), r"Estimator\(train_batch_size\): saw 3, which 8"),
        (lambda: linear().check(lambda: DATA, target="v5e-8", batch_size=12), r"check\(batch_size\): saw 12, which 8"),
    ],
)
def test_arguments_that_were_told_of_too_late(make, message):
    with pytest.raises(sl.SystolicError, match=message):
        make()


def test_a_model_that_runs_out_of_memory_is_told_so():
    def model_fn(model, features, labels, mode):
        y = model(features["x"])
        return sl.EstimatorSpec(loss=(y - labels) ** 2 + 0 * jnp.sort(jnp.ones((400_000, 400_000)) * y[0], 0).sum())

    with pytest.raises(sl.OutOfDeviceMemoryError, match=r"ran out of device memory.* smaller batch"):
        linear(model_fn=model_fn).train(lambda: DATA, steps=1)
