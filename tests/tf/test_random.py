"""Random operations of a step: by NumPy's threefry, and by the distributions that they are to have."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from systolic.tf._tensorflow import tensorflow
from systolic.tf._threefry import threefry

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("graph")]

tf = tensorflow()
tf1 = tf.compat.v1
N = 100_000


def by_hand(key, first, second):
    """From the paper: 13 rounds, a key after every fourth."""
    turns = (13, 15, 26, 6, 17, 29, 16, 24)
    mask = (1 << 32) - 1
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x, y = (first + keys[0]) & mask, (second + keys[1]) & mask
    for i in range(13):
        x = (x + y) & mask
        y = ((y << turns[i % 8] | y >> (32 - turns[i % 8])) & mask) ^ x
        if i % 4 == 3:
            x = (x + keys[(i // 4 + 1) % 3]) & mask
            y = (y + keys[(i // 4 + 2) % 3] + i // 4 + 1) & mask
    return x, y


def drawn(make, count=1, runs=1):
    with tf1.Session() as session:
        out = tf1.tpu.replicate(make, [[] for _ in range(count)])
        return [session.run(out) for _ in range(runs)]


def test_the_words_are_those_of_threefry(cores):
    cores(1)
    counters = [(0, 0), (1, 2), (2**32 - 1, 2**31), (123456789, 987654321)]
    key = (0x12345678, 0x9ABCDEF0)

    def make():
        first, second = (tf.constant([c[i] for c in counters], tf.uint32) for i in range(2))
        return tuple(
            tf.bitcast(w, tf.int32) for w in threefry(tuple(tf.constant(k, tf.uint32) for k in key), first, second)
        )

    ((words,),) = drawn(make)
    wanted = np.array([by_hand(key, *c) for c in counters], np.uint32).T
    np.testing.assert_array_equal(np.array(words).view(np.uint32), wanted)


def test_a_number_is_a_function_of_seed_step_and_replica(cores):
    cores(2)
    tf1.set_random_seed(7)
    steps = drawn(lambda: (tf1.random_uniform([3], seed=5),), count=2, runs=2)
    for step in range(2):
        for replica in range(2):
            own = zlib.crc32(repr([7, 7, 5]).encode())
            # The first operation of a step: nothing was drawn before it.
            key = by_hand((own, replica), 0, step)
            wanted = [(by_hand(key, i, 0)[0] >> 8) / 2**24 for i in range(3)]
            np.testing.assert_allclose(steps[step][replica][0], wanted, rtol=1e-7)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16, tf.float16], ids=lambda d: d.name)
def test_uniform_numbers_fill_the_interval_and_stay_below_its_end(cores, dtype):
    cores(1)
    ((x,),) = drawn(lambda: (tf1.random_uniform([N], -1, 3, dtype),))[0]
    x = np.sort(np.asarray(x, np.float64))
    assert x[0] >= -1
    assert x[-1] <= 3 if dtype in (tf.bfloat16, tf.float16) else x[-1] < 3
    grid = {tf.bfloat16: 2**-6, tf.float16: 2**-9}.get(dtype, 0)
    distance = np.abs((x + 1) / 4 - (np.arange(N) + 0.5) / N).max()
    assert distance < 2 / np.sqrt(N) + grid  # Kolmogorov-Smirnov, far beyond chance


def test_normal_numbers_have_the_moments_of_the_distribution(cores):
    cores(1)
    ((x, t),) = drawn(lambda: (tf1.random_normal([N]), tf1.truncated_normal([N])))[0]
    z = 5 / np.sqrt(N)
    np.testing.assert_allclose([x.mean(), x.var(), (x**3).mean(), (x**4).mean()], [0, 1, 0, 3], atol=10 * z)
    assert abs(x.mean()) < z
    assert np.abs(x).max() < 6
    # Cut off at two standard deviations: the variance is 1 - 4 pdf(2) / (2 cdf(2) - 1).
    pdf, mass = np.exp(-2) / np.sqrt(2 * np.pi), 0.9544997361
    np.testing.assert_allclose([t.mean(), t.var()], [0, 1 - 4 * pdf / mass], atol=z)
    assert np.abs(t).max() <= 2


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64], ids=lambda d: d.name)
def test_whole_numbers_are_all_equally_frequent(cores, dtype):
    cores(1)
    ((x,),) = drawn(lambda: (tf1.random_uniform([N], -3, 7, dtype),))[0]
    assert x.dtype == dtype.as_numpy_dtype
    counts = np.bincount(x + 3, minlength=10)
    assert len(counts) == 10
    np.testing.assert_allclose(counts, N / 10, atol=5 * np.sqrt(N * 0.09))


def test_categories_come_by_their_probability_and_a_shuffle_keeps_every_row(cores):
    cores(1)
    p = np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]])
    ((x, rows),) = drawn(lambda: (tf1.multinomial(tf.math.log(p), N), tf1.random_shuffle(tf.range(1000))))[0]
    for row, wanted in zip(x, p, strict=True):
        np.testing.assert_allclose(np.bincount(row) / N, wanted, atol=5 / np.sqrt(4 * N))
    assert sorted(rows) == list(range(1000))
    assert np.abs(np.corrcoef(rows, np.arange(1000))[0, 1]) < 5 / np.sqrt(1000)


def test_operations_and_passes_of_a_loop_draw_numbers_of_their_own(cores):
    cores(1)

    def make():
        start = (tf.constant(0), tf.zeros([3, N // 10]))
        loop = tf1.while_loop(
            lambda i, _: i < 3,
            lambda i, x: (i + 1, x + tf.one_hot(i, 3)[:, None] * tf1.random_uniform([N // 10])),
            start,
        )[1]
        return loop, tf1.random_uniform([2, N // 10], seed=3), tf1.random_uniform([2, N // 10], seed=3)

    ((loop, a, b),) = drawn(make)[0]
    several = np.concatenate([loop, a, b])
    correlation = np.corrcoef(several) - np.eye(len(several))
    assert np.abs(correlation).max() < 5 / np.sqrt(N / 10)
