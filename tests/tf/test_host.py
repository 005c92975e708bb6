"""Calls of Python and printing within a step."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from systolic import InputError
from systolic.target import libtpu_version
from systolic.tf import graph_function, step_scope, wide
from systolic.tf._tensorflow import tensorflow

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("graph")]

tf = tensorflow()
tf1 = tf.compat.v1
F32 = np.float32


def run(make, count=1):
    out = tf1.tpu.replicate(make, [[tf.constant([1.0, 2.0]) + i] for i in range(count)])
    with tf1.Session() as session:
        return session.run(out)


@pytest.mark.parametrize("count", [1, 2])
def test_calls_of_python_give_their_results_to_the_step(cores, count):
    def make(x):
        first, second = tf1.py_func(lambda a: (a * 2, np.int64(a.sum()) + 2**40), [x], [tf.float32, tf.int64])
        third = tf.numpy_function(lambda n: n - 2**40, [tf.ensure_shape(second, [])], tf.int64)
        eager = tf.py_function(lambda a: a**2, [x], tf.float32)
        return (
            first[:1] if first.shape else tf.ensure_shape(first, [2]),
            tf.ensure_shape(third, []),
            tf.ensure_shape(eager, [2]),
        )

    cores(count)
    for i, (doubled, total, squared) in enumerate(run(make, count)):
        x = np.float32([1, 2]) + i
        np.testing.assert_array_equal(doubled, 2 * x)
        assert total == x.sum()
        np.testing.assert_array_equal(squared, x**2)


def test_a_call_within_a_loop_is_made_in_each_pass(cores):
    seen = []

    def add(a):
        seen.append(float(a[0]))
        return a + F32(1)

    cores(1)
    ((out,),) = run(
        lambda x: tf1.while_loop(
            lambda i, v: i < 3,
            lambda i, v: (i + 1, tf.ensure_shape(tf1.py_func(add, [v], tf.float32), [2])),
            [0, x],
        )[1]
    )
    np.testing.assert_array_equal(out, [4, 5])
    assert seen == [1, 2, 3]


def test_printing_prints_when_the_step_runs(cores, capfd):
    def make(x):
        x = tf1.Print(x, [x, tf.shape(x)], "seen: ", summarize=1)
        told = tf.print("value", x, "!", output_stream=sys.stdout)
        with tf1.control_dependencies([told]):
            return x * 2

    cores(1)
    ((out,),) = run(make)
    np.testing.assert_array_equal(out, [2, 4])
    printed, said = capfd.readouterr()
    assert printed == "value [1. 2.] !\n"
    assert "seen: [1.0...][2]\n" in said


def test_what_a_call_raises_is_the_error_of_the_run(cores):
    cores(1)
    with pytest.raises(ZeroDivisionError):
        run(lambda x: tf.ensure_shape(tf1.py_func(lambda a: F32(1) / (1 // 0), [x], tf.float32), []))


def test_results_need_shapes_and_keep_to_them(cores):
    cores(1)
    with pytest.raises(InputError, match="a result has no static shape; give it one with"):
        run(lambda x: tf.reshape(tf1.py_func(lambda a: a, [x], tf.float32), [2]))
    with pytest.raises(InputError, match=r"saw results of shapes \[\(2,\)\], wanted \[\(3,\)\]"):
        run(lambda x: tf.ensure_shape(tf1.py_func(lambda a: a, [x], tf.float32), [3]))


@pytest.mark.skipif(libtpu_version() is None, reason="needs libtpu")
def test_a_compiler_alone_gets_the_step_without_them(cores):
    x = tf1.placeholder(tf.float32, [256, 256], name="x")
    with step_scope():
        y = tf.ensure_shape(tf1.py_func(lambda a: a, [x], tf.float32), [256, 256])
        out = tf1.Print(tf.matmul(y, x), [x])
    step = graph_function([out], [x])
    with wide():
        import dataclasses

        alone = dataclasses.replace(step, module=step.module.without_host_calls())
        assert alone.program().compile("v5e-1").memory.argument == 256 * 256 * 4


def test_calls_of_python_in_the_input_are_no_part_of_the_step(cores):
    """The library of a graph has the functions of its input, too."""
    data = tf1.data.Dataset.range(3).map(lambda i: tf1.py_func(lambda a: a + 1, [i], tf.int64))
    iterator = tf1.data.make_initializable_iterator(data)
    number = tf.ensure_shape(iterator.get_next(), [])
    cores(1)
    out = tf1.tpu.rewrite(lambda x: tf1.while_loop(lambda i: i < 10, lambda i: i + 4, [x]), [number])
    with tf1.Session() as session:
        session.run(iterator.initializer)
        assert [session.run(out) for _ in range(3)] == [[13], [10], [11]]
