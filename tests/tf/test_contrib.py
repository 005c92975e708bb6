"""What ``tf.contrib`` serves, against NumPy."""

from __future__ import annotations

import importlib.util
import runpy

import numpy as np
import pytest
from estimator_case import estimator

from systolic.tf._names import names
from systolic.tf._tensorflow import tensorflow
from systolic.tf.contrib import MODULES, Contrib, found, table

pytestmark = pytest.mark.filterwarnings("ignore")

tf = tensorflow().compat.v1
tf.disable_v2_behavior()
contrib = Contrib(estimator).face
RNG = np.random.default_rng(3)
PREPARED = ("tensorflow.python.tpu.session_support", "tensorflow.python.tpu.tpu_embedding")
INSTALLED = {name: importlib.util.find_spec(name) is not None for name in ("tf_slim", "tensorflow_estimator")}


@pytest.fixture(params=[False, True], ids=["plain variables", "resources"])
def graph(request):
    """A graph with variables of one kind."""
    with tf.Graph().as_default() as made:
        tf.get_variable_scope().set_use_resource(request.param)
        yield made


def evaluated(*fetches, before=()):
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        for operation in before:
            session.run(operation)
        return session.run(fetches)


@pytest.mark.parametrize("module", MODULES)
def test_all_that_a_module_says_it_serves_is_there(module):
    known = table(module)
    places = [*known.served.values(), *(f"{place}:" for place in known.private.values() if place)]
    for place in places:
        package = {"estimator": "tensorflow_estimator"}.get(
            place.partition(":")[0], place.partition(".")[0].partition(":")[0]
        )
        if INSTALLED.get(package, True) and (INSTALLED["tensorflow_estimator"] or not place.startswith(PREPARED)):
            assert found(place, estimator) is not None
    assert not set(known.served) & set(known.instead)


def test_layer_norm_normalises_the_axes_it_is_told(graph):
    x = RNG.standard_normal((2, 3, 4)).astype("float32")
    with tf.variable_scope("model", initializer=None):
        last = contrib.layers.layer_norm(tf.constant(x), begin_norm_axis=-1, scope="last")
        rest = contrib.layers.layer_norm(tf.constant(x), activation_fn=tf.nn.relu, variables_collections=["mine"])
    assert [v.op.name for v in tf.trainable_variables()] == [
        "model/last/beta",
        "model/last/gamma",
        "model/LayerNorm/beta",
        "model/LayerNorm/gamma",
    ]
    assert [v.op.name for v in tf.get_collection("mine")] == ["model/LayerNorm/beta", "model/LayerNorm/gamma"]
    assert len(tf.get_collection(tf.GraphKeys.MODEL_VARIABLES)) == 4
    gamma, beta = np.array([1, 2, 3, 4.0]), np.array([0.5, 0, -1, 2.0])
    given = [tf.trainable_variables()[0].assign(beta), tf.trainable_variables()[1].assign(gamma)]
    seen_last, seen_rest = evaluated(last, rest, before=given)
    wide = x.astype("float64")
    wanted = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True) * gamma + beta
    np.testing.assert_allclose(seen_last, wanted, atol=1e-5)
    wanted = (wide - wide.mean((1, 2), keepdims=True)) / wide.std((1, 2), keepdims=True)
    np.testing.assert_allclose(seen_rest, np.maximum(wanted, 0), atol=1e-5)


def test_layer_norm_needs_a_known_rank(graph):
    with pytest.raises(ValueError, match=r"layer_norm\(inputs\): .* has no known rank, wanted one; use set_shape"):
        contrib.layers.layer_norm(tf.placeholder(tf.float32))


def steps(optimizer, count, gradient_of, start, rows=False, **more):
    """Values of a variable after steps with given gradients, row-wise or dense."""
    variable = tf.get_variable("v", initializer=tf.constant(start, tf.float32))
    loss = tf.reduce_sum(tf.gather(variable, [1]) * gradient_of if rows else variable * gradient_of)
    train = optimizer.minimize(loss, **more)
    return evaluated(variable, before=[train] * count)[0]


def test_adam_with_decoupled_decay_shrinks_and_then_steps(graph):
    start, gradient = np.array([1.0, -2.0]), np.array([0.5, 4.0])
    got = steps(contrib.opt.AdamWOptimizer(0.1, learning_rate=0.01), 3, gradient, start)
    value, m, v = start.copy(), np.zeros(2), np.zeros(2)
    for t in range(1, 4):
        value *= 1 - 0.1
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        value -= 0.01 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)
    np.testing.assert_allclose(got, value, rtol=1e-5)


def test_momentum_with_decoupled_decay(graph):
    got = steps(contrib.opt.MomentumWOptimizer(0.1, 0.5, 0.9), 2, np.array([1.0]), np.array([2.0]))
    # 2 -> 1.8 - 0.5 = 1.3; momentum 1.9: 1.17 - 0.95 = 0.22
    np.testing.assert_allclose(got, [0.22], rtol=1e-5)


def test_decay_reaches_the_listed_variables_alone(graph):
    wanted = tf.get_variable("w", initializer=tf.constant([1.0]))
    other = tf.get_variable("o", initializer=tf.constant([1.0]))
    kind = contrib.opt.extend_with_decoupled_weight_decay(tf.train.GradientDescentOptimizer)
    train = kind(0.5, 0.1).minimize(tf.reduce_sum(wanted + other), decay_var_list=[wanted])
    # 1 · (1 − 0.5) − 0.1, and 1 − 0.1
    np.testing.assert_allclose(np.concatenate(evaluated(wanted, other, before=[train])), [0.4, 0.9], rtol=1e-6)


@pytest.mark.parametrize("base", [tf.train.GradientDescentOptimizer, tf.train.RMSPropOptimizer])
def test_decay_of_a_sparse_gradient_is_of_its_rows(graph, base):
    variable = tf.get_variable("v", initializer=tf.constant([[1.0], [1.0]]))
    kind = contrib.opt.extend_with_decoupled_weight_decay(base)
    train = kind(0.5, 0.0).minimize(tf.reduce_sum(tf.gather(variable, [1, 1])))
    np.testing.assert_allclose(*evaluated(variable, before=[train]), [[1.0], [0.5]], rtol=1e-6)


def test_decay_of_a_sparse_gradient_comes_before_the_step(graph):
    kind = contrib.opt.extend_with_decoupled_weight_decay(tf.train.GradientDescentOptimizer)
    got = steps(kind(0.5, 0.1), 1, np.float32(1.0), [[1.0], [1.0]], rows=True)
    np.testing.assert_allclose(got, [[1.0], [0.4]], rtol=1e-6)


def test_lazy_adam_leaves_rows_without_a_gradient(graph):
    got = steps(contrib.opt.LazyAdamOptimizer(0.1), 2, np.float32(3.0), [[1.0], [1.0]], rows=True)
    # Adam's first steps with a steady gradient are of the learning rate each.
    np.testing.assert_allclose(got, [[1.0], [0.8]], rtol=1e-5)


def test_lars_has_a_rate_for_each_layer(graph):
    start, gradient = np.array([3.0, 4.0]), np.array([0.6, 0.8])
    got = steps(contrib.opt.LARSOptimizer(0.5, momentum=0.9, weight_decay=0.1, eeta=0.01), 2, gradient, start)
    value, gathered = start.copy(), np.zeros(2)
    for _ in range(2):
        size = np.linalg.norm(value)
        rate = 0.5 * 0.01 * size / (1.0 + 0.1 * size)
        gathered = 0.9 * gathered + rate * (gradient + 0.1 * value)
        value -= gathered
    np.testing.assert_allclose(got, value, rtol=1e-5)


def test_lars_leaves_what_is_on_its_list_to_momentum(graph):
    got = steps(contrib.opt.LARSOptimizer(0.5, momentum=0.9, skip_list=["v"]), 2, np.array([1.0]), np.array([2.0]))
    np.testing.assert_allclose(got, [2 - 0.5 - 0.5 * 1.9], rtol=1e-5)


def test_gradients_are_clipped_together():
    with tf.Graph().as_default():
        pairs = contrib.opt.clip_gradients_by_global_norm([(tf.constant([3.0]), "a"), (tf.constant([4.0]), "b")], 1.0)
        np.testing.assert_allclose(np.concatenate(evaluated(*(g for g, _ in pairs))), [0.6, 0.8], rtol=1e-6)
        assert [name for _, name in pairs] == ["a", "b"]


def test_the_loss_of_sequences_is_weighted():
    logits = RNG.standard_normal((2, 3, 5)).astype("float32")
    targets = np.array([[0, 1, 2], [3, 4, 0]])
    weights = np.array([[1, 1, 0], [1, 0.5, 0]], "float32")
    logs = logits.astype("float64") - np.log(np.exp(logits.astype("float64")).sum(-1, keepdims=True))
    each = -np.take_along_axis(logs, targets[..., None], -1)[..., 0] * weights
    with tf.Graph().as_default():
        loss = contrib.seq2seq.sequence_loss
        given = tf.constant(logits), tf.constant(targets), tf.constant(weights)
        got = evaluated(
            loss(*given), loss(*given, average_across_batch=False), loss(*given, average_across_timesteps=False)
        )
    np.testing.assert_allclose(got[0], each.sum() / weights.sum(), rtol=1e-5)
    np.testing.assert_allclose(got[1], each.sum(1) / weights.sum(1), rtol=1e-5)
    np.testing.assert_allclose(got[2][:2], each.sum(0)[:2] / weights.sum(0)[:2], rtol=1e-5)
    assert got[2][2] == 0  # no weight there


def test_rows_are_tiled_beside_each_other_and_the_largest_is_one():
    with tf.Graph().as_default():
        tiled = contrib.seq2seq.tile_batch(tf.constant([[1], [2]]), 2)
        got = evaluated(tiled, contrib.seq2seq.hardmax(tf.constant([[0.1, 0.7, 0.2]])))
    assert got[0].tolist() == [[1], [1], [2], [2]]
    assert got[1].tolist() == [[0, 1, 0]]


def test_a_fused_cell_is_the_plain_one_with_the_same_variables():
    with tf.Graph().as_default():
        x, state = tf.constant([[1.0, -1.0]]), (tf.constant([[0.5]]), tf.constant([[0.25]]))
        cell = contrib.rnn.LSTMBlockCell(1)
        with tf.variable_scope("rnn", initializer=tf.constant_initializer(0.5)):
            output, (c, h) = cell(x, contrib.rnn.LSTMStateTuple(*state))
        assert [v.op.name for v in tf.global_variables()] == ["rnn/lstm_cell/kernel", "rnn/lstm_cell/bias"]
        got = evaluated(output, c, h)
    gate = 0.5 * (1.0 - 1.0 + 0.25)

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    carried = sigmoid(gate + 1.0) * 0.5 + sigmoid(gate) * np.tanh(gate)
    np.testing.assert_allclose(got[1], [[carried]], rtol=1e-5)
    np.testing.assert_allclose(got[0], [[sigmoid(gate) * np.tanh(carried)]], rtol=1e-5)


def test_stacked_bidirectional_layers_are_fed_both_outputs_of_the_one_below():
    with tf.Graph().as_default():
        cells = [[tf.nn.rnn_cell.GRUCell(size) for size in (3, 4)] for _ in range(2)]
        outputs, forward, backward = contrib.rnn.stack_bidirectional_dynamic_rnn(
            *cells, tf.zeros([2, 5, 7]), dtype=tf.float32
        )
        assert outputs.shape.as_list() == [2, 5, 8]
        assert [state.shape.as_list() for state in (*forward, *backward)] == [[2, 3], [2, 4], [2, 3], [2, 4]]
        shapes = {v.op.name: v.shape.as_list() for v in tf.global_variables()}
        name = "stack_bidirectional_rnn/cell_1/bidirectional_rnn/fw/gru_cell/gates/kernel"
        assert shapes[name] == [2 * 3 + 4, 2 * 4]
    with pytest.raises(ValueError, match=r"saw 2 and 0 cells, wanted as many of one as of the other"):
        contrib.rnn.stack_bidirectional_dynamic_rnn(cells[0], [], None)


def test_batches_of_contrib_data_are_full():
    with tf.Graph().as_default():
        data = tf.data.Dataset.range(5)
        exact = data.apply(contrib.data.batch_and_drop_remainder(2))
        doubled = data.apply(contrib.data.map_and_batch(lambda x: 2 * x, 2, drop_remainder=True))
        padded = data.map(lambda n: tf.range(n)).apply(contrib.data.padded_batch_and_drop_remainder(2, [None]))
        sloppy = data.apply(contrib.data.sloppy_interleave(lambda x: tf.data.Dataset.from_tensors(x), cycle_length=2))
        rows = {name: drained(found) for name, found in (("e", exact), ("d", doubled), ("p", padded), ("s", sloppy))}
    assert [row.tolist() for row in rows["e"]] == [[0, 1], [2, 3]]
    assert [row.tolist() for row in rows["d"]] == [[0, 2], [4, 6]]
    assert [row.tolist() for row in rows["p"]] == [[[0], [0]], [[0, 1, 0], [0, 1, 2]]]
    assert sorted(rows["s"]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_images_are_moved_and_turned(rank):
    picture = np.arange(1, 10, dtype="float32").reshape(3, 3)
    given = {2: picture, 3: picture[..., None], 4: picture[None, ..., None]}[rank]
    with tf.Graph().as_default():
        images = contrib.image
        got = evaluated(
            images.translate(tf.constant(given), [1, 0]),
            images.rotate(tf.constant(given), np.pi / 2),
            images.transform(tf.constant(given), [0, 1, 0, 1, 0, 0, 0, 0]),
            images.rotate(tf.constant(given), 0.0, interpolation="BILINEAR"),
        )
    assert all(found.shape == given.shape for found in got)
    right, turned, swapped, same = (found.reshape(3, 3) for found in got)
    assert right.tolist() == [[0, 1, 2], [0, 4, 5], [0, 7, 8]]
    np.testing.assert_array_equal(turned, np.rot90(picture))  # counterclockwise
    np.testing.assert_array_equal(swapped, picture.T)
    np.testing.assert_allclose(same, picture, atol=1e-6)


def test_each_image_of_a_batch_has_its_own_move():
    with tf.Graph().as_default():
        batch = tf.ones([2, 1, 3, 1])
        (got,) = evaluated(contrib.image.translate(batch, [[1.0, 0.0], [-2.0, 0.0]]))
    assert got.reshape(2, 3).tolist() == [[0, 1, 1], [1, 0, 0]]


def test_a_transform_of_another_form_is_refused():
    with (
        tf.Graph().as_default(),
        pytest.raises(ValueError, match=r"transform\(images\): saw the shape \(3,\), wanted 2, 3 or 4"),
    ):
        contrib.image.transform(tf.ones([3]), [1.0] * 8)


def write(folder, text):
    (folder / "script.py").write_text(text)
    return str(folder / "script.py")


def drained(dataset):
    row = tf.data.make_one_shot_iterator(dataset).get_next()
    found = []
    with tf.Session() as session:
        while True:
            try:
                found.append(session.run(row))
            except tf.errors.OutOfRangeError:
                return found


def test_a_resolver_answers_without_a_cloud():
    resolver = contrib.cluster_resolver.TPUClusterResolver("grpc://10.0.0.2:8470", zone="z", project="p", job_name="w")
    assert resolver.master() == resolver.get_master() == ""
    assert resolver.cluster_spec() is None
    assert resolver.get_job_name() is None
    assert resolver.environment == ""
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == (None, None, None)
    assert isinstance(resolver, tensorflow().distribute.cluster_resolver.ClusterResolver)
    assert set(resolver.num_accelerators()) == {"TPU"}


def test_summaries_of_contrib_are_operations(tmp_path):
    with tf.Graph().as_default(), contrib.summary.create_file_writer(str(tmp_path), flush_millis=1).as_default():
        with contrib.summary.always_record_summaries():
            contrib.summary.scalar("loss", tf.constant(2.5), step=tf.constant(7, tf.int64))
        operations = contrib.summary.all_summary_ops()
        with tf.Session() as session:
            session.run(contrib.summary.summary_writer_initializer_op())
            session.run(operations)
            session.run(contrib.summary.flush())
    (file,) = tmp_path.iterdir()
    events = [event for event in tf.train.summary_iterator(str(file)) if event.summary.value]
    assert [(event.step, event.summary.value[0].tag) for event in events] == [(7, "loss")]


@pytest.mark.skipif(not INSTALLED["tf_slim"], reason="needs tf-slim")
def test_layers_of_slim_train(tmp_path):
    with names(estimator), tf.Graph().as_default():
        runpy.run_path(write(tmp_path, "import tensorflow"))  # from here on, tf_slim finds what TensorFlow dropped
        with contrib.framework.arg_scope([contrib.layers.fully_connected, contrib.layers.layer_norm], trainable=True):
            y = contrib.layers.layer_norm(contrib.layers.fully_connected(tf.ones([2, 3]), 4))
        loss = tf.reduce_mean(y**2)
        train = contrib.layers.optimize_loss(loss, tf.train.create_global_step(), 0.1, "SGD")
        evaluated(loss, before=[train])
        found = {v.op.name for v in tf.trainable_variables()}
    assert found == {"fully_connected/weights", "fully_connected/biases", "LayerNorm/beta", "LayerNorm/gamma"}


@pytest.mark.skipif(INSTALLED["tf_slim"], reason="tf-slim is there")
def test_layers_of_slim_say_what_to_install():
    with pytest.raises(AttributeError, match="pip install tf-slim"):
        _ = contrib.layers.conv2d
