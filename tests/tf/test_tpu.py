"""``tf.compat.v1.tpu`` by hand: rewrite, shard, replicate, device loops, infeed and outfeed, variables; values by NumPy."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from systolic import InputError, TargetError
from systolic.tf._tensorflow import tensorflow

pytestmark = pytest.mark.filterwarnings("ignore")

tf = tensorflow()
tf1 = tf.compat.v1
F32 = np.float32


def feeding(session, operation, count):
    """Run a host's operation so often, beside the test."""
    thread = threading.Thread(target=lambda: [session.run(operation) for _ in range(count)], daemon=True)
    thread.start()
    return thread


def test_a_rewritten_computation_takes_what_is_fed(graph, cores):
    cores(1)
    x = tf1.placeholder(tf.float32, [2, 3])
    y = tf1.tpu.rewrite(lambda v: (v * 2, tf.reduce_sum(v)), [x])
    with tf1.Session() as session:
        for value in (np.ones((2, 3), F32), np.arange(6, dtype=F32).reshape(2, 3)):
            doubled, total = session.run(y, {x: value})
            np.testing.assert_array_equal(doubled, 2 * value)
            assert total == value.sum()


@pytest.mark.parametrize("count", [1, 4])
def test_shard_splits_inputs_and_joins_outputs(graph, cores, count):
    cores(count)
    x = tf1.placeholder(tf.float32, [8, 2])
    (y,) = tf1.tpu.shard(lambda v: (tf.reduce_sum(v, 1),), [x], num_shards=count)
    value = np.arange(16, dtype=F32).reshape(8, 2)
    with tf1.Session() as session:
        np.testing.assert_array_equal(session.run(y, {x: value}), value.sum(1))


def test_replicas_have_inputs_of_their_own_and_sum_across(graph, cores):
    cores(4)
    out = tf1.tpu.replicate(lambda v: (v, tf1.tpu.cross_replica_sum(v)), [[tf.constant(float(i))] for i in range(4)])
    with tf1.Session() as session:
        assert session.run(out) == [[float(i), 6.0] for i in range(4)]


def test_a_computation_of_operations_only_runs(graph, cores):
    cores(1)
    v = tf1.get_variable("v", [], initializer=tf1.zeros_initializer(), use_resource=True)
    run = tf1.tpu.rewrite(lambda: v.assign_add(2.0).op)
    with tf1.Session() as session:
        session.run(v.initializer)
        session.run(run)
        session.run(run)
        assert session.run(v) == 4.0


def test_variables_are_read_and_written_on_both_sides(graph, cores):
    cores(2)
    v = tf1.get_variable("v", [2], initializer=tf1.zeros_initializer(), use_resource=True)
    w = tf1.get_variable("w", [2], initializer=tf1.ones_initializer(), use_resource=True)
    add = tf1.tpu.replicate(lambda: v.assign_add(w), [[], []])
    alone = tf1.tpu.rewrite(lambda: v.assign(v * 10.0))
    halve = v.assign(v / 2)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(add)
        session.run(add)
        np.testing.assert_array_equal(session.run(v), [2, 2])
        session.run(halve)
        session.run(add)
        np.testing.assert_array_equal(session.run(v), [2, 2])
        v.load([5.0, 6.0], session)
        session.run(alone)
        session.run(add)
        np.testing.assert_array_equal(session.run(v), [51, 61])
        session.run(w.assign([3.0, 4.0]))
        session.run(add)
        np.testing.assert_array_equal(session.run([v, w]), [[54, 65], [3, 4]])


def test_what_a_run_reads_after_a_computation_is_what_it_wrote(graph, cores):
    cores(1)
    v = tf1.get_variable("v", [], initializer=tf1.zeros_initializer(), use_resource=True)
    (out,) = tf1.tpu.rewrite(lambda: v.assign_add(1.0))
    with tf1.control_dependencies([out]):
        after = v.read_value()
    with tf1.Session() as session:
        session.run(v.initializer)
        assert [session.run(after) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("count", [1, 2])
def test_a_device_loop_takes_from_the_infeed_and_gives_to_the_outfeed(graph, cores, count):
    from tensorflow.python.tpu import tpu_feed, training_loop
    from tensorflow.python.tpu.ops import tpu_ops

    cores(count)
    steps = tf1.get_variable("steps", [], tf.int32, tf1.constant_initializer(5), use_resource=True)
    queue = tpu_feed.InfeedQueue(tuple_types=[tf.float32, tf.int32], tuple_shapes=[[2 * count], [count]])
    queue.set_number_of_shards(count)

    def body(total, x, i):
        out = tpu_ops.outfeed_enqueue_tuple([x * 2, total + tf.reduce_sum(x)])
        return total + tf.reduce_sum(x) + tf.cast(i[0], tf.float32), out

    def computation():
        return training_loop.repeat(steps, body, [0.0], infeed_queue=queue)

    totals = tf1.tpu.replicate(computation, [[] for _ in range(count)])
    number = tf1.get_variable("number", [], tf.int32, tf1.zeros_initializer(), use_resource=True)
    with tf1.control_dependencies([number.assign_add(1)]):
        now = tf.cast(number.read_value(), tf.float32)
    enqueue = queue.generate_enqueue_ops(
        [[tf.stack([now, now]) + i, tf.constant([10 * i])] for i in range(count)], tpu_ordinal_function=lambda i: i
    )
    outs = [tpu_ops.outfeed_dequeue_tuple([tf.float32, tf.float32], [[2], []], device_ordinal=i) for i in range(count)]
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        feeder = feeding(session, enqueue, 5)
        got = session.run(totals)
        feeder.join(60)
        for i in range(count):
            assert got[i] == [sum(2 * (n + i) + 10 * i for n in range(1, 6))]
        first = session.run(outs)
        for i in range(count):
            np.testing.assert_array_equal(first[i][0], [2 * (1 + i)] * 2)
        total = 0.0
        for n in range(2, 6):
            out = session.run(outs)
            total += 2 * (n - 1)
            assert out[0][1] == total + 2 * n


def test_a_loop_that_ends_by_its_data_stops_there(graph, cores):
    from tensorflow.python.tpu import training_loop
    from tensorflow.python.tpu.ops import tpu_ops

    cores(1)

    def body(going, count):
        x = tpu_ops.infeed_dequeue(tf.int32, [])
        return tf.less(x, 4), count + 1

    result = tf1.tpu.rewrite(lambda: training_loop.while_loop(lambda going, count: going, body, [True, 0]))
    number = tf1.get_variable("number", [], tf.int32, tf1.zeros_initializer(), use_resource=True)
    put = tpu_ops.infeed_enqueue(number.assign_add(1), [], device_ordinal=0)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        feeding(session, put, 4).join(60)
        assert session.run(result) == [False, 4]


def test_a_loop_of_no_passes_gives_its_first_values(graph, cores):
    from tensorflow.python.tpu import training_loop

    cores(1)
    v = tf1.get_variable("v", [], initializer=tf1.zeros_initializer(), use_resource=True)
    n = tf1.get_variable("n", [], tf.int32, tf1.zeros_initializer(), use_resource=True)
    result = tf1.tpu.rewrite(lambda: training_loop.repeat(n, lambda a: [a + v.assign_add(1.0)], [7.0]))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        assert session.run([result, v]) == [[7.0], 0.0]
        session.run(n.assign(3))
        assert session.run(result) == [7.0 + 1 + 2 + 3]
        assert session.run(v) == 3.0


def test_code_around_a_loop_is_part_of_the_computation(graph, cores):
    from tensorflow.python.tpu import training_loop

    cores(2)

    def computation(x):
        start = x * 10
        (end,) = training_loop.repeat(3, lambda a: [a + 1.0], [start])
        return tf1.tpu.cross_replica_sum(end * end)

    out = tf1.tpu.replicate(computation, [[tf.constant(1.0)], [tf.constant(2.0)]])
    with tf1.Session() as session:
        assert session.run(out) == [[13.0**2 + 23.0**2]] * 2


def test_the_system_tells_its_topology(graph, cores):
    from tensorflow.python.tpu import device_assignment, topology

    cores(8)
    with tf1.Session() as session:
        told = topology.Topology(session.run(tf1.tpu.initialize_system()))
        session.run(tf1.tpu.shutdown_system())
    assert (told.num_tasks, told.num_tpus_per_task) == (1, 8)
    assert device_assignment.device_assignment(told, num_replicas=8).num_replicas == 8


def test_errors_in_a_computation_end_the_run_with_their_reason(graph, cores):
    cores(1)
    bad = tf1.tpu.rewrite(lambda x: tf.strings.length(tf.as_string(x)), [tf.constant([1, 2])])
    with tf1.Session() as session, pytest.raises(InputError, match=r"AsString.*has to run on the host"):
        session.run(bad)


def test_more_replicas_than_devices_are_refused(graph, cores):
    cores(2)
    out = tf1.tpu.replicate(lambda v: v, [[tf.constant(1.0)]] * 4)
    with tf1.Session() as session, pytest.raises(InputError, match="saw 4 replicas, wanted at most 2"):
        session.run(out)


def test_a_target_that_is_only_described_is_refused(cores):
    from systolic.tf._system import switch_on

    with pytest.raises((InputError, TargetError), match="v5e-8"):
        switch_on("v5e-8")


def test_a_failure_on_the_host_ends_a_computation_that_waits_for_it(graph, cores):
    cores(1)
    wrong = tf.debugging.assert_equal(tf1.placeholder_with_default(1, []), 2, message="the part of the host")
    with tf1.control_dependencies([wrong]):
        x = tf.constant(1.0) + 0
    out = tf1.tpu.rewrite(lambda v: v, [x])
    with tf1.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="the part of the host"):
        session.run(out)


def test_plain_graphs_run_as_ever(graph, cores):
    cores(1)
    v = tf1.get_variable("v", [2], initializer=tf1.ones_initializer())
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(v.assign_add([1.0, 2.0])), [2, 3])


def test_who_feeds_may_wait_for_what_the_step_before_gave(graph, cores):
    from tensorflow.python.tpu import training_loop
    from tensorflow.python.tpu.ops import tpu_ops

    cores(1)

    def body(total):
        total += tpu_ops.infeed_dequeue(tf.float32, [])
        return total, tpu_ops.outfeed_enqueue(total)

    result = tf1.tpu.rewrite(lambda: training_loop.repeat(5, body, [0.0]))
    fed = tf1.placeholder(tf.float32, [])
    put = tpu_ops.infeed_enqueue(fed, [], device_ordinal=0)
    out = tpu_ops.outfeed_dequeue(tf.float32, [], device_ordinal=0)
    with tf1.Session() as session:
        ended = []
        thread = threading.Thread(target=lambda: ended.append(session.run(result)), daemon=True)
        thread.start()
        seen = 1.0
        for _ in range(5):  # each sees the total before it feeds as much again
            session.run(put, {fed: seen})
            seen = session.run(out)
        thread.join(60)
        assert ended == [[16.0]]
        assert seen == 16.0
