"""Prefetch: ahead of the consumer, in order, and it always ends."""

import gc
import subprocess
import sys
import threading
import time
import traceback
import weakref

import jax
import numpy as np
import pytest

from systolic import data
from systolic._errors import InputError


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_items_come_in_order_and_then_it_is_over():
    ahead = data.prefetch(range(50), lambda item: item + 1)
    assert list(ahead) == list(range(1, 51))
    assert list(ahead) == []


def test_it_runs_ahead_by_its_depth_and_no_further():
    made = []
    with data.prefetch(range(100), lambda item: made.append(item) or item, depth=3) as ahead:
        wait_until(lambda: len(made) == 3 and ahead._shared.sleeps["thread"])
        assert [next(ahead), next(ahead)] == [0, 1]
        wait_until(lambda: len(made) == 5 and ahead._shared.sleeps["thread"])


@pytest.mark.parametrize("depth", [1, 2, 16])
def test_nothing_is_lost_or_doubled_between_fast_threads(depth):
    for _ in range(20):
        assert list(data.prefetch(range(500), lambda item: item, depth=depth)) == list(range(500))


def test_work_is_done_on_another_thread_and_waiting_is_measured():
    threads = set()

    def put(item):
        threads.add(threading.get_ident())
        time.sleep(0.02)
        return item

    with data.prefetch(range(3), put) as ahead:
        list(ahead)
        assert ahead.wait_seconds > 0
    assert threads
    assert threading.get_ident() not in threads


def test_an_exception_comes_in_its_place_once_with_its_traceback():
    def source():
        yield 1
        raise KeyError("from the source")

    ahead = data.prefetch(source(), lambda item: item)
    assert next(ahead) == 1
    with pytest.raises(KeyError, match="from the source") as caught:
        next(ahead)
    assert "in source" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert list(ahead) == []


def test_an_exception_of_put_is_raised_and_the_source_closed():
    closed = []

    def source():
        try:
            yield from range(10)
        finally:
            closed.append(threading.current_thread().name)

    with data.prefetch(source(), lambda item: 1 // (2 - item)) as ahead:
        assert [next(ahead), next(ahead)] == [0, 1]
        with pytest.raises(ZeroDivisionError):
            next(ahead)
    assert closed == ["systolic-prefetch"]


def test_leaving_early_closes_the_generator_on_its_thread():
    closed = []

    def source():
        try:
            while True:
                yield 1
        finally:
            closed.append(threading.current_thread().name)

    with data.prefetch(source(), lambda item: item) as ahead:
        next(ahead)
    assert closed == ["systolic-prefetch"]
    assert list(ahead) == []
    ahead.close()  # twice is harmless


def test_being_forgotten_ends_the_thread():
    ahead = data.prefetch(iter(int, 1), lambda item: item)
    next(ahead)
    thread, gone = ahead._thread, weakref.ref(ahead)
    del ahead
    gc.collect()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()


def test_a_source_that_blocks_is_left_behind_with_a_log_line(caplog):
    release = threading.Event()

    def source():
        yield 1
        release.wait(20)

    ahead = data.prefetch(source(), lambda item: item)
    next(ahead)
    ahead.close(timeout=0.05)
    assert "has not come back" in caplog.text
    release.set()
    ahead._thread.join(10)
    assert not ahead._thread.is_alive()


def test_a_blocked_source_does_not_keep_the_interpreter():
    code = """
import threading
from systolic.data import prefetch
def source():
    yield 1
    threading.Event().wait()
ahead = prefetch(source(), lambda item: item)
print(next(ahead))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_an_interrupt_reaches_a_consumer_that_waits():
    code = """
import signal, threading
from systolic.data import prefetch
def source():
    yield 1
    threading.Event().wait()
with prefetch(source(), lambda item: item) as ahead:
    next(ahead)
    threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT)).start()
    try:
        next(ahead)
    except KeyboardInterrupt:
        print("interrupted")
    ahead.close(timeout=0.05)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "interrupted\n")


def test_nothing_heavy_is_imported():
    code = """
import sys
import systolic.data
print([name for name in ("grain", "torch", "tensorflow", "pandas", "flax") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr


def test_batches_through_prefetch_are_those_without_and_carry_what_was_consumed():
    source = data.arrays({"x": np.arange(20, dtype=np.float32)}, shuffle=1)
    plain = data.Batches(source, 8, stack=2, tail="pad", epochs=2)
    with data.prefetch(data.Batches(source, 8, stack=2, tail="pad", epochs=2), jax.device_put) as ahead:
        for expected, got in zip(plain, ahead, strict=True):
            np.testing.assert_array_equal(expected.features["x"], got.features["x"])
            assert isinstance(got.features["x"], jax.Array)


@pytest.mark.parametrize("depth", [0, True, 1.5])
def test_depth_is_a_positive_integer(depth):
    with pytest.raises(InputError, match=r"depth: .* a positive integer wanted"):
        data.prefetch([], lambda item: item, depth=depth)
