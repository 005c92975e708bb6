"""Graphs of TensorFlow 1 as Programs, compared with the same graph in a plain TensorFlow session."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from systolic import InputError
from systolic.target import libtpu_version
from systolic.tf import GraphFunction, graph_function, step_scope, values, wide
from systolic.tf._tensorflow import tensorflow

pytestmark = pytest.mark.filterwarnings("ignore")

tf = tensorflow()
tf1 = tf.compat.v1
RNG = np.random.default_rng(0)
BATCH = 8


@pytest.fixture(autouse=True)
def modes():
    tf1.disable_v2_behavior()
    tf1.enable_resource_variables()  # in the session, too: old ones have no names to be read by


class Built:
    """A graph, and what is fed to it: of a step, or as a plain session runs it."""

    def __init__(self, build, scope=step_scope):
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf1.set_random_seed(1)
            self.x = tf1.placeholder(tf.float32, [BATCH, 3], name="x")
            self.y = tf1.placeholder(tf.float32, [BATCH], name="y")
            with scope():
                self.fetches = build(self.x, self.y)
            self.session = tf1.Session(graph=self.graph)
            self.session.run(tf1.global_variables_initializer())

    def batch(self):
        return {"x": RNG.standard_normal((BATCH, 3), "float32"), "y": RNG.standard_normal(BATCH, "float32")}

    def run(self, batch):
        return self.session.run(self.fetches, {self.x: batch["x"], self.y: batch["y"]})

    def function(self) -> GraphFunction:
        return graph_function(self.fetches, [self.x, self.y])


def trained(optimizer, predict):
    def build(x, y):
        loss = tf.reduce_mean((predict(x) - y) ** 2)
        step = tf1.train.get_or_create_global_step()
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        with tf1.control_dependencies(updates):
            train = optimizer().minimize(loss, global_step=step)
        with tf1.control_dependencies([train]):
            return [tf.identity(loss)]

    return build


def dense(x):
    return tf1.layers.dense(tf1.layers.dense(x, 5, tf.nn.relu), 1)[:, 0]


def normalised(x):
    return tf1.layers.dense(tf1.layers.batch_normalization(tf1.layers.dense(x, 5), training=True), 1)[:, 0]


def looped(x):
    weight = tf1.get_variable("w", [3, 3])
    _, x = tf.while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, tf.tanh(x @ weight)), (0, x), maximum_iterations=4)
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x[:, 0], lambda: 2 * x[:, 1])


def looked_up(x):
    table = tf1.get_variable("table", [7, 4])
    rows = tf.cast(tf.abs(x[:, 0]) * 5, tf.int64) % 7
    return tf.reduce_sum(tf.gather(table, rows), 1)


STEPS = {
    "momentum": trained(lambda: tf1.train.MomentumOptimizer(0.1, 0.9), dense),
    "adam": trained(lambda: tf1.train.AdamOptimizer(0.01), dense),
    "batch statistics": trained(lambda: tf1.train.GradientDescentOptimizer(0.1), normalised),
    "a loop and a branch": trained(lambda: tf1.train.AdagradOptimizer(0.1), looped),
    "an embedding": trained(lambda: tf1.train.GradientDescentOptimizer(0.1), looked_up),
}


@pytest.mark.parametrize("name", STEPS)
def test_twenty_steps_are_those_of_a_session(name):
    function = Built(STEPS[name]).function()
    built = Built(STEPS[name], contextlib.nullcontext)
    with wide():
        step, variables = function.program().compile("cpu:1"), values(function, built.session)
        for _ in range(20):
            batch = built.batch()
            (loss,), variables = step(variables, {n: batch[n] for n in function.inputs})
            np.testing.assert_allclose(loss, built.run(batch)[0], rtol=2e-5, atol=1e-6)
    there = values(function, built.session)
    assert set(there) == set(variables)
    for each, value in variables.items():
        assert value.dtype == there[each].dtype
        np.testing.assert_allclose(value, there[each], rtol=1e-4, atol=1e-5)
    assert variables["global_step"] == 20
    assert variables["global_step"].dtype == np.int64


def test_what_a_step_reads_and_writes_is_told_by_name():
    built = Built(STEPS["momentum"])
    function = built.function()
    weights = {"dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"}
    assert set(function.variables) == weights | {f"{w}/Momentum" for w in weights} | {"global_step"}
    assert set(function.written) == set(function.variables)
    assert {name: (s.shape, s.dtype) for name, s in function.inputs.items()} == {
        "x": ((BATCH, 3), np.float32),
        "y": ((BATCH,), np.float32),
    }
    reading = Built(lambda x, y: [dense(x)]).function()
    assert (set(reading.variables), reading.written, list(reading.inputs)) == (weights, (), ["x"])


def test_what_is_not_asked_for_is_not_run():
    def build(x, y):
        counter = tf1.get_variable("counter", [], initializer=tf1.zeros_initializer(), trainable=False)
        counter.assign_add(1.0)
        return [x * 2]

    function = Built(build).function()
    assert function.variables == {}
    (got,), _ = function.program().compile("cpu:1")({}, {"x": np.ones((BATCH, 3), "float32")})
    np.testing.assert_array_equal(got, np.full((BATCH, 3), 2.0))


@pytest.mark.skipif(libtpu_version() is None, reason="needs libtpu")
@pytest.mark.parametrize("name", STEPS)
def test_a_step_compiles_for_a_tpu(name):
    function = Built(STEPS[name]).function()
    with wide():
        description = function.program().compile("v5e-1")
    assert description.memory.argument > 0
    assert "variables/global_step" in description.argument_names


def fails(message, build, feeds=None):
    built = Built(build)
    with pytest.raises(InputError, match=message):
        graph_function(built.fetches, [built.x, built.y] if feeds is None else feeds(built))


def test_a_placeholder_that_is_not_fed_is_named():
    fails(
        r"graph_function\(feeds\): the fetches depend on x, wanted among the feeds",
        lambda x, y: [x + 1],
        lambda b: [b.y],
    )


def test_a_dynamic_shape_is_named():
    fails(r"graph_function\(fetches\): .* has the shape \(\?, 3\), wanted a static one",
          lambda x, y: [tf.boolean_mask(x, y > 0)])  # fmt: skip


def test_a_variable_of_the_old_kind_is_told_with_the_remedy():
    fails("old is a variable of the old kind.*enable_resource_variables",
          lambda x, y: [x + tf1.get_variable("old", [3], use_resource=False)])  # fmt: skip


def test_an_operation_that_the_bridge_does_not_know_is_named():
    fails(
        r"TensorFlow's bridge does not compile: AsString \(node shown\)",
        lambda x, y: [tf.strings.length(tf.as_string(x, name="shown"))],
    )


def test_a_mean_over_an_unknown_number_of_rows_inside_is_compiled():
    built = Built(lambda x, y: [tf.reduce_sum(tf.boolean_mask(x, y > 0))])
    function, batch = built.function(), built.batch()
    with wide():
        (got,), _ = function.program().compile("cpu:1")({}, batch)
    np.testing.assert_allclose(got, batch["x"][batch["y"] > 0].sum(), rtol=1e-5)
