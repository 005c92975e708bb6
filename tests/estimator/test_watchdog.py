"""The watchdog: one report per stall, with phase, queue and stacks; silence otherwise."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from small_models import linear, make_data

import systolic as sl
from systolic._errors import InputError
from systolic.estimator._watchdog import Watchdog, format_stacks


class Stream(io.StringIO):
    """Tells when a text has been written to it."""

    def __init__(self):
        super().__init__()
        self.changed = threading.Condition()

    def write(self, text):
        with self.changed:
            super().write(text)
            self.changed.notify_all()
        return len(text)

    def wait_for(self, text, count=1):
        with self.changed:
            assert self.changed.wait_for(lambda: self.getvalue().count(text) >= count, timeout=60), self.getvalue()


def wait_inside_user_code(event):
    event.wait()  # this line is in the report


def test_a_stall_is_reported_once_with_phase_queue_and_stacks_and_its_end():
    stream, release = Stream(), threading.Event()
    other = threading.Thread(target=wait_inside_user_code, args=(release,), name="the-reader")
    other.start()
    try:
        with Watchdog(0.05, stream, queue_state=lambda: "0 of 2 batches ready") as watchdog:
            watchdog.beat("waiting for input")
            stream.wait_for("systolic: end of report;")
            time.sleep(0.2)  # four more limits, in the same stall
            assert stream.getvalue().count("no progress") == 1
            watchdog.beat("train")
            stream.wait_for("going on after")
            stream.wait_for("no progress", 2)  # another stall, another report
    finally:
        release.set()
        other.join()
    first = stream.getvalue().split("end of report; waiting on\n")[0]
    assert "in phase 'waiting for input'" in first
    assert "training input: 0 of 2 batches ready" in first
    assert first.index("thread 'MainThread'") < first.index("thread 'the-reader'")
    assert "event.wait()  # this line is in the report" in first
    assert "systolic-watchdog" not in first
    assert "in 'waiting for input'" in stream.getvalue()
    assert "in phase 'train'" in stream.getvalue()


def test_a_run_that_beats_is_left_alone_and_the_thread_ends():
    stream = Stream()
    with Watchdog(30.0, stream) as watchdog:
        for _ in range(1000):
            watchdog.beat("train")
        assert "systolic-watchdog" in {t.name for t in threading.enumerate()}
    watchdog.close()
    assert stream.getvalue() == ""
    assert "systolic-watchdog" not in {t.name for t in threading.enumerate()}


def test_a_queue_that_cannot_be_asked_does_not_spoil_the_report():
    def broken():
        raise RuntimeError("gone")

    stream = Stream()
    with Watchdog(0.02, stream, queue_state=broken):
        stream.wait_for("systolic: end of report;")
    assert "training input: unknown (RuntimeError: gone)" in stream.getvalue()


def test_a_closed_stream_does_not_end_the_watch():
    stream = io.StringIO()
    stream.close()
    with Watchdog(0.01, stream):
        time.sleep(0.1)
        assert "systolic-watchdog" in {t.name for t in threading.enumerate()}


def test_a_limit_must_be_positive():
    with pytest.raises(InputError, match="must be a positive number of seconds"):
        Watchdog(0)


def test_library_frames_take_one_line():
    lines = format_stacks().splitlines()
    library = [k for k, line in enumerate(lines) if line.strip().startswith("systolic/")]
    assert lines[library[-1]].strip().startswith("systolic/estimator/_watchdog.py:")
    assert all(not line.startswith("        ") for line in lines[library[-1] + 1 :][:1])
    own = next(k for k, line in enumerate(lines) if "in test_library_frames_take_one_line" in line)
    assert lines[own + 1].strip() == "lines = format_stacks().splitlines()"


def run_script(body):
    script = "from systolic.estimator._watchdog import Watchdog\n" + textwrap.dedent(body)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)


def test_code_that_holds_the_interpreter_lock_is_reported_by_faulthandler():
    ended = run_script(
        """
        import ctypes
        with Watchdog(0.2) as watchdog:
            watchdog.beat("train")
            import time; time.sleep(0.1)
            ctypes.PyDLL(None).usleep(1_000_000)   # PyDLL keeps the lock
        print("done")
        """
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "done\n"
    assert "Timeout" in ended.stderr
    assert "most recent call first" in ended.stderr


def test_a_run_that_waits_for_its_input_says_how_that_stands(capfd):
    def slow():
        features, labels = make_data(80)
        for i in range(0, 80, 8):
            time.sleep(0.01 if i < 64 else 0.6)  # dear enough for a thread, then a stall
            yield {"x": features["x"][i : i + 8]}, labels[i : i + 8]

    linear(run={"stall_seconds": 0.2}).train(lambda: sl.data.batches(slow()), epochs=1)
    report = capfd.readouterr().err
    assert "in phase 'training'" in report
    assert "training input: 0 of 2 items ready; the thread that makes them is at work on the next" in report
