"""TensorFlow's convolutions and pooling on the CPU: in other forms, with the numbers of a plain session; on a TPU as they are."""

from __future__ import annotations

import numpy as np
import pytest

from systolic.target import libtpu_version
from systolic.tf import graph_function, step_scope, wide
from systolic.tf._tensorflow import tensorflow

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("graph")]

tf = tensorflow()
tf1 = tf.compat.v1
RNG = np.random.default_rng(0)
BATCH = 128


def network(x, window, stride, padding):
    """Both kinds of convolution that have another form: a window of one, and large maps."""
    x = tf1.layers.conv2d(x, 32, 3, padding="same", activation=tf.nn.relu, name="large")
    x = tf1.layers.conv2d(x, 8, 1, name="small")
    x = tf1.layers.max_pooling2d(x, window, stride, padding=padding)
    return tf1.layers.dense(tf.reshape(x, [BATCH, -1]), 3, name="out")


def built(window, stride, padding):
    """Fetches and feeds of a training step, to be built twice."""
    x, y = tf1.placeholder(tf.float32, [BATCH, 34, 34, 4], name="x"), tf1.placeholder(tf.float32, [BATCH, 3], name="y")
    tf1.set_random_seed(1)
    loss = tf.reduce_mean((network(x, window, stride, padding) - y) ** 2)
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf1.control_dependencies([train]):
        return [tf.identity(loss)], [x, y]


@pytest.mark.parametrize("pooling", [(2, 2, "valid"), (3, 2, "same")], ids=["side by side", "overlapping"])
def test_a_step_with_convolutions_and_pooling_is_that_of_a_session(pooling):
    batch = {"x": RNG.standard_normal((BATCH, 34, 34, 4), "float32"), "y": RNG.standard_normal((BATCH, 3), "float32")}
    with tf.Graph().as_default():
        tf1.enable_resource_variables()
        (loss,), feeds = built(*pooling)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            start = {v.op.name: v.eval(session) for v in tf1.global_variables()}
            wanted = session.run(loss, dict(zip(feeds, (batch["x"], batch["y"]), strict=True)))
            after = {v.op.name: v.eval(session) for v in tf1.global_variables()}
    with step_scope():
        fetches, feeds = built(*pooling)
    step = graph_function(fetches, feeds)
    with wide():
        compiled = step.program().compile("cpu:1")
        (got,), variables = compiled(start, batch)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    for name, value in after.items():
        np.testing.assert_allclose(variables[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    text = compiled.lower_text()
    assert "select_and_scatter" not in text
    # Of six convolutions the first layer's forward is left, and the gradient of its input, which nothing uses.
    assert text.count("stablehlo.convolution") == 2


@pytest.mark.skipif(libtpu_version() is None, reason="needs libtpu")
def test_for_a_tpu_they_stay():
    with step_scope():
        fetches, feeds = built(2, 2, "valid")
    with wide():
        text = graph_function(fetches, feeds).program().compile("v5e-1").hlo_text
    assert "select-and-scatter" in text
    assert text.count("convolution(") >= 4
