"""TPUEstimator on the TPU system beneath it, against the same script with ``use_tpu=False`` in a plain session, or NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from systolic import InputError
from systolic.tf._estimator import estimator_api
from systolic.tf._tensorflow import tensorflow

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("graph")]

tf = tensorflow()
tf1 = tf.compat.v1
est = estimator_api()
RNG = np.random.default_rng(0)
X = RNG.standard_normal((128, 4)).astype("float32")
Y = (X @ np.float32([1, -2, 3, 0.5])).astype("float32")
Modes = est.ModeKeys


def batches(x=X, y=Y, repeat=True):
    def input_fn(params):
        data = tf1.data.Dataset.from_tensor_slices((x, y))
        data = data.repeat() if repeat else data
        return data.batch(params["batch_size"], drop_remainder=True)

    return input_fn


def rows(x):
    return lambda params: tf1.data.Dataset.from_tensor_slices(x).batch(params["batch_size"])


def mean_absolute(labels, predictions):
    return {"mae": tf1.metrics.mean_absolute_error(labels, predictions)}


def dense(x, units, name):
    return tf1.layers.dense(x, units, name=name, kernel_initializer=tf1.constant_initializer(0.1))


def predict_linear(x, mode):
    return dense(tf.tanh(dense(x, 3, "hidden")), 1, "out")[:, 0]


def make_model(predict=predict_linear, optimizer=lambda: tf1.train.AdamOptimizer(0.05), **extra):
    """A model function; ``extra``: functions of (loss, features) for further fields of the spec, by name."""

    def model_fn(features, labels, mode, params):
        predictions = predict(features, mode)
        if mode == Modes.PREDICT:
            return est.tpu.TPUEstimatorSpec(mode, predictions={"y": predictions, "x": features})
        loss = tf.reduce_mean((predictions - labels) ** 2)
        train_op = None
        if mode == Modes.TRAIN:
            chosen = optimizer()
            chosen = tf1.tpu.CrossShardOptimizer(chosen) if params["use_tpu"] else chosen
            with tf1.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
                train_op = chosen.minimize(loss, tf1.train.get_global_step())
        more = {name: make(loss, features) for name, make in extra.items()}
        return est.tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metrics=(mean_absolute, [labels, predictions]), **more
        )

    return model_fn


def estimator(folder, model_fn=None, use_tpu=True, loop=5, batch=16, predict_batch=8, tpu_config=None, **options):
    config = est.tpu.RunConfig(
        model_dir=str(folder),
        tf_random_seed=1,
        tpu_config=est.tpu.TPUConfig(iterations_per_loop=loop, **(tpu_config or {})),
    )
    return est.tpu.TPUEstimator(
        model_fn or make_model(),
        config=config,
        use_tpu=use_tpu,
        train_batch_size=batch,
        eval_batch_size=batch,
        predict_batch_size=predict_batch,
        params={},
        **options,
    )


def variables(made):
    return {name: made.get_variable_value(name) for name in made.get_variable_names()}


def assert_close(got, wanted, rtol=1e-5, atol=1e-6):
    assert got.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_allclose(got[name], wanted[name], rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("count", [1, 8])
def test_training_evaluation_and_prediction_are_those_of_a_plain_session(tmp_path, cores, count):
    cores(count)
    ours, plain = (estimator(tmp_path / str(use), use_tpu=use) for use in (True, False))
    for each in (ours, plain):
        each.train(batches(), max_steps=22)  # the last loop is a short one
    assert_close(variables(ours), variables(plain))
    seen, wanted = (each.evaluate(batches(), steps=8) for each in (ours, plain))
    assert seen["global_step"] == 22
    np.testing.assert_allclose(seen["loss"], wanted["loss"], rtol=1e-5)
    np.testing.assert_allclose(seen["mae"], wanted["mae"], rtol=1e-5)
    predicted, expected = (np.array([row["y"] for row in each.predict(rows(X[:37]))]) for each in (ours, plain))
    np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("size", [1, 8, 13])
def test_prediction_gives_every_row_once_and_in_order(tmp_path, cores, count, size):
    cores(count)
    made = estimator(tmp_path)
    made.train(batches(), max_steps=1)
    got = [row["x"] for row in made.predict(rows(X[:size]))]
    np.testing.assert_array_equal(got, X[:size])


def test_a_checkpoint_is_one_that_a_plain_session_reads_and_goes_on_from(tmp_path, cores):
    cores(2)
    estimator(tmp_path).train(batches(), max_steps=6)
    plain = estimator(tmp_path, use_tpu=False)
    plain.train(batches(), max_steps=9)
    estimator(tmp_path).train(batches(), max_steps=12)
    other = estimator(tmp_path / "other", use_tpu=False)
    for end in (6, 9, 12):
        other.train(batches(), max_steps=end)
    assert_close(variables(plain), variables(other))


def dropped(x, mode):
    x = dense(x, 32, "hidden")
    x = tf1.layers.dropout(x, 0.5, training=mode == Modes.TRAIN)
    return dense(x, 1, "out")[:, 0]


def fixed(params):
    """The same batch for ever, so that nothing but the step's number decides."""
    return (
        tf1.data.Dataset.from_tensors((X[:16], Y[:16]))
        .repeat()
        .unbatch()
        .batch(params["batch_size"], drop_remainder=True)
    )


@pytest.mark.parametrize("count", [1, 2])
def test_random_numbers_depend_on_the_step_alone(tmp_path, cores, count):
    cores(count)
    runs = {}
    for name, loop, ends in (("whole", 10, [10]), ("ones", 1, [10]), ("halves", 4, [3, 10])):
        made = estimator(tmp_path / name, make_model(dropped), loop=loop)
        for end in ends:
            made.train(fixed, max_steps=end)
        runs[name] = variables(made)
    for name in ("ones", "halves"):
        assert all(np.array_equal(runs["whole"][key], value) for key, value in runs[name].items())


def test_a_dropout_keeps_the_share_that_it_says_and_differs_between_steps_and_replicas(tmp_path, cores):
    cores(2)
    seen = []

    def keep(loss, features):
        mask = tf.nn.dropout(tf.ones([1, 2000]), rate=0.25)
        return (lambda x: [tf1.py_func(lambda a: seen.append(a.copy()) or np.int64(0), [x], tf.int64)], [mask])

    estimator(tmp_path, make_model(host_call=keep), loop=3).train(batches(), max_steps=3)
    assert np.shape(seen) == (3, 2, 2000)
    masks = np.array(seen).reshape(6, 2000) > 0
    np.testing.assert_allclose(masks.mean(1), 0.75, atol=5 * np.sqrt(0.25 * 0.75 / 2000))
    for i in range(6):
        for j in range(i):  # independent: they agree where both are on or both off
            np.testing.assert_allclose((masks[i] == masks[j]).mean(), 0.75**2 + 0.25**2, atol=0.06)


def test_a_host_call_sees_every_step_of_every_replica(tmp_path, cores):
    cores(4)
    seen = []

    def record(loss, features):
        step = tf.reshape(tf1.train.get_global_step(), [1])
        return (
            lambda s, x: [tf1.py_func(lambda *a: seen.append(a) or np.int64(0), [s, x], tf.int64)],
            [step, features],
        )

    estimator(tmp_path, make_model(host_call=record), loop=2).train(batches(), max_steps=5)
    assert [list(step) for step, _ in seen] == [[i] * 4 for i in range(5)]
    for i, (_, x) in enumerate(seen):
        np.testing.assert_array_equal(x, X[16 * i : 16 * (i + 1)])


def normalised(x, mode):
    return dense(tf1.layers.batch_normalization(x, training=mode == Modes.TRAIN, momentum=0.5), 1, "out")[:, 0]


def test_batch_norm_has_the_statistics_of_its_core(tmp_path, cores):
    cores(2)
    made = estimator(tmp_path, make_model(normalised, lambda: tf1.train.GradientDescentOptimizer(0.0)), loop=1)
    made.train(batches(), max_steps=1)
    first_core = X[:8].astype("float64")
    np.testing.assert_allclose(
        made.get_variable_value("batch_normalization/moving_mean"), first_core.mean(0) * 0.5, rtol=1e-5
    )


def test_gradients_are_averaged_by_minimize_and_summed_by_tf_gradients(tmp_path, cores):
    """As 1.16.3 of the original: only compute_gradients scales the loss."""

    def model(clip):
        def model_fn(features, labels, mode, params):
            w = tf1.get_variable("w", [4], initializer=tf1.zeros_initializer())
            loss = tf.reduce_mean((tf.linalg.matvec(features, w) - labels) ** 2)
            optimizer = tf1.tpu.CrossShardOptimizer(tf1.train.GradientDescentOptimizer(0.01))
            step = tf1.train.get_global_step()
            pairs = list(zip(tf.gradients(loss, [w]), [w])) if clip else optimizer.compute_gradients(loss)
            return est.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.apply_gradients(pairs, step))

        return model_fn

    x, y = X[:16].astype("float64"), Y[:16].astype("float64")
    gradient = -2 * x.T @ y / 16
    cores(4)
    for clip, factor in ((False, 1), (True, 4)):
        made = estimator(tmp_path / str(clip), model(clip), loop=1)
        made.train(batches(), max_steps=1)
        np.testing.assert_allclose(made.get_variable_value("w"), -0.01 * factor * gradient, rtol=1e-5)


def test_several_replicas_without_a_cross_shard_optimizer_are_refused(tmp_path, cores):
    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean((dense(features, 1, "out")[:, 0] - labels) ** 2)
        train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, tf1.train.get_global_step())
        return est.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train)

    cores(2)
    with pytest.raises(ValueError, match="CrossShardOptimizer must be used"):
        estimator(tmp_path, model_fn).train(batches(), max_steps=1)


def tensors(params):
    """An input function that returns tensors, not a data set."""
    return tf1.data.make_one_shot_iterator(batches()(params)).get_next()


@pytest.mark.parametrize("mode", ["PER_HOST_V1", "PER_HOST_V2", "PER_SHARD_V1"])
def test_every_input_mode_trains(tmp_path, cores, mode):
    cores(2)
    kind = getattr(est.tpu.InputPipelineConfig, mode)
    sizes = []

    def input_fn(params):
        sizes.append(params["batch_size"])
        return (tensors if mode == "PER_SHARD_V1" else batches())(params)

    made = estimator(tmp_path, tpu_config={"per_host_input_for_training": kind})
    made.train(input_fn, max_steps=3)
    assert made.get_variable_value("global_step") == 3
    assert set(sizes) == {8 if mode != "PER_HOST_V1" else 16}


def test_broadcast_input_is_the_same_on_every_core(tmp_path, cores):
    cores(2)
    seen = []

    def record(loss, features):
        return (lambda x: [tf1.py_func(lambda a: seen.append(a) or np.int64(0), [x], tf.int64)], [features])

    kind = est.tpu.InputPipelineConfig.BROADCAST
    made = estimator(tmp_path, make_model(host_call=record), tpu_config={"per_host_input_for_training": kind})
    made.train(batches(), max_steps=1)
    np.testing.assert_array_equal(seen[0][:16], X[:16])


def test_sliced_evaluation_input_is_one_batch_for_all_cores(tmp_path, cores):
    cores(4)
    kinds = {
        "per_host_input_for_training": est.tpu.InputPipelineConfig.PER_HOST_V2,
        "eval_training_input_configuration": est.tpu.InputPipelineConfig.SLICED,
    }
    made = estimator(tmp_path, tpu_config=kinds)
    made.train(batches(), max_steps=2)
    seen = made.evaluate(batches(), steps=8)
    plain = estimator(tmp_path, use_tpu=False).evaluate(batches(), steps=8)
    np.testing.assert_allclose([seen["loss"], seen["mae"]], [plain["loss"], plain["mae"]], rtol=1e-5)


def test_the_first_replica_s_loss_is_there_for_those_who_compare(tmp_path, cores):
    cores(2)
    made = estimator(tmp_path)
    made.train(batches(), max_steps=1)
    cores(2, loss="first")
    seen = made.evaluate(batches(), steps=8)["loss"]
    cores(2)
    row = {"y": np.array([r["y"] for r in made.predict(rows(X))], "float64")}
    errors = (row["y"] - Y) ** 2
    np.testing.assert_allclose(seen, errors.reshape(8, 2, 8)[:, 0].mean(), rtol=1e-4)
    np.testing.assert_allclose(made.evaluate(batches(), steps=8)["loss"], errors.mean(), rtol=1e-4)


def test_weights_start_from_a_checkpoint_by_warm_start_or_scaffold(tmp_path, cores):
    cores(2)
    first = estimator(tmp_path / "first")
    first.train(batches(), max_steps=5)
    kernel = first.get_variable_value("hidden/kernel")

    def still():
        return tf1.train.GradientDescentOptimizer(0.0)

    warm = estimator(tmp_path / "warm", make_model(optimizer=still), warm_start_from=str(tmp_path / "first"))
    warm.train(batches(), max_steps=1)
    np.testing.assert_array_equal(warm.get_variable_value("hidden/kernel"), kernel)

    def restore(loss, features):
        def scaffold_fn():
            tf1.train.init_from_checkpoint(str(tmp_path / "first"), {"hidden/": "hidden/"})
            return tf1.train.Scaffold()

        return scaffold_fn

    made = estimator(tmp_path / "scaffold", make_model(optimizer=still, scaffold_fn=restore))
    made.train(batches(), max_steps=1)
    np.testing.assert_array_equal(made.get_variable_value("hidden/kernel"), kernel)


def recurrent(x, mode):
    cell = tf1.nn.rnn_cell.BasicRNNCell(3)
    cell_input = tf.stack([x, -x, x * 2], axis=1)
    with tf1.variable_scope("rnn", initializer=tf1.constant_initializer(0.2)):
        outputs, _ = tf1.nn.dynamic_rnn(cell, cell_input, dtype=tf.float32)
    return dense(outputs[:, -1], 1, "out")[:, 0]


def test_a_loop_within_the_model_trains(tmp_path, cores):
    cores(2)
    ours, plain = (estimator(tmp_path / str(use), make_model(recurrent), use) for use in (True, False))
    for each in (ours, plain):
        each.train(batches(), max_steps=7)
    assert_close(variables(ours), variables(plain))


def test_bfloat16_scope_keeps_variables_in_float32(tmp_path, cores):
    def predict(x, mode):
        with tf1.tpu.bfloat16_scope():
            y = dense(tf.cast(x, tf.bfloat16), 1, "out")[:, 0]
        assert y.dtype == tf.bfloat16
        return tf.cast(y, tf.float32)

    cores(2)
    made = estimator(tmp_path, make_model(predict))
    made.train(batches(), max_steps=3)
    assert made.get_variable_value("out/kernel").dtype == np.float32


def test_train_and_evaluate_exports_a_model_that_tensorflow_serves(tmp_path, cores):
    cores(2)

    def receive():
        x = tf1.placeholder(tf.float32, [None, 4])
        return est.export.TensorServingInputReceiver(x, {"x": x})

    made = estimator(tmp_path, export_to_tpu=False)
    est.train_and_evaluate(
        made,
        est.TrainSpec(batches(), max_steps=10),
        est.EvalSpec(batches(), steps=4, throttle_secs=0, exporters=[est.FinalExporter("final", receive)]),
    )
    (folder,) = (tmp_path / "export" / "final").iterdir()
    expected = [row["y"] for row in made.predict(rows(X[:3]))]
    with tf1.Session() as session:
        signature = tf1.saved_model.load(session, ["serve"], str(folder)).signature_def["serving_default"]
        got = session.run(signature.outputs["y"].name, {signature.inputs["x"].name: X[:3]})
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_data_that_ends_early_ends_training_with_what_tensorflow_says(tmp_path, cores):
    cores(2)
    made = estimator(tmp_path, loop=4)
    with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
        made.train(batches(repeat=False), max_steps=100)


def test_an_input_function_that_raises_is_the_error(tmp_path, cores):
    def input_fn(params):
        def generate():
            yield X[0], Y[0]
            raise OSError("the disk is gone")

        data = tf1.data.Dataset.from_generator(generate, (tf.float32, tf.float32), ([4], []))
        return data.batch(params["batch_size"], drop_remainder=True)

    cores(1)
    with pytest.raises(tf.errors.OpError, match="the disk is gone"):
        estimator(tmp_path).train(input_fn, max_steps=5)


def test_what_no_device_computes_is_named(tmp_path, cores):
    def predict(x, mode):
        letters = tf.cast(tf.strings.length(tf.as_string(x, name="shown")), tf.float32)
        return dense(x + letters, 1, "out")[:, 0]

    cores(1)
    with pytest.raises(InputError, match=r"AsString.*shown.*has to run on the host"):
        estimator(tmp_path, make_model(predict)).train(batches(), max_steps=2)


def test_a_batch_that_the_cores_do_not_divide_is_refused(tmp_path, cores):
    cores(8)
    with pytest.raises(ValueError, match="train batch size 12 must be divisible by number of replicas 8"):
        estimator(tmp_path, batch=12).train(batches(), max_steps=1)


def test_a_checkpoint_of_another_model_is_told_by_variable(tmp_path, cores):
    def wider(x, mode):
        return dense(dense(x, 5, "hidden"), 1, "out")[:, 0]

    cores(1)
    estimator(tmp_path).train(batches(), max_steps=1)
    with pytest.raises(InputError, match=r"checkpoint of another model.*hidden/bias: saw \(3,\), wanted \(5,\)"):
        estimator(tmp_path, make_model(wider)).train(batches(), max_steps=2)


def test_older_copies_of_its_code_find_what_they_call(tmp_path, cores):
    """Scripts bring such copies along, from before embedding configurations and with handles of summary writers."""
    from tensorflow.python.ops import summary_ops_v2
    from tensorflow_estimator.python.estimator.tpu import tpu_context

    cores(2)
    config = est.tpu.RunConfig(model_dir=str(tmp_path))
    context = tpu_context._get_tpu_context(config, 8, 8, 8, True, True)
    with context.with_mode(Modes.TRAIN) as chosen:
        assert (chosen.num_replicas, chosen.embedding_config) == (2, None)
    with summary_ops_v2.create_file_writer(str(tmp_path)).as_default():
        (opened,) = summary_ops_v2.summary_writer_initializer_op()
    with tf1.Session() as session:
        session.run(opened)
        session.run(summary_ops_v2.flush(writer=opened.inputs[0]))
    assert [file.name for file in tmp_path.iterdir() if "tfevents" in file.name]
