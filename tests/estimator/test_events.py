"""The event log: valid JSON lines, one history across kills, TensorBoard's files in step."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import struct
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from systolic._errors import InputError
from systolic.estimator import _events
from systolic.estimator._events import EventLog, read_events


def steps(directory):
    return [event["step"] for event in read_events(directory)]


def tensorboard_events(directory):
    from tensorboardX.proto import event_pb2

    found = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        at = 0
        while at < len(data):  # length, its checksum, payload, its checksum
            (length,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event()
            event.ParseFromString(data[at + 12 : at + 12 + length])
            found.append(event)
            at += 12 + length + 4
    return found


def test_records_come_back_as_they_were_written(tmp_path):
    metrics = {"loss": 0.5, "n": 3, "ok": True, "none": None, "word": "miss", "nested": {"a": [1, 2.5]}}
    with EventLog(tmp_path) as log:
        log.write(10, "train", metrics, time=1234.5678)
        log.write(10, "eval/test", {"loss": 1})
    first, second = read_events(tmp_path)
    assert first == {"step": 10, "time": 1234.568, "kind": "train", "metrics": metrics}
    assert second["kind"] == "eval/test"
    assert read_events(tmp_path, kind="train") == [first]


def test_every_line_is_strict_json_also_with_nan_and_infinity(tmp_path):
    with EventLog(tmp_path) as log:
        log.write(1, "train", {"a": math.nan, "b": math.inf, "c": np.float32(-np.inf), "d": [math.nan, 1]})

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    (line,) = log.path.read_text().splitlines()
    assert json.loads(line, parse_constant=refuse)["metrics"] == {"a": "nan", "b": "inf", "c": "-inf", "d": ["nan", 1]}
    restored = read_events(tmp_path)[0]["metrics"]
    assert math.isnan(restored["a"])
    assert (restored["b"], restored["c"], restored["d"][1]) == (math.inf, -math.inf, 1)


def test_numpy_and_jax_scalars_and_arrays_are_taken(tmp_path):
    with EventLog(tmp_path) as log:
        log.write(
            np.int64(3), "train", {"a": np.float32(0.5), "b": jnp.asarray(2), "c": np.arange(3), "d": np.bool_(1)}
        )
    assert read_events(tmp_path)[0]["metrics"] == {"a": 0.5, "b": 2, "c": [0, 1, 2], "d": True}
    assert steps(tmp_path) == [3]


def test_a_metric_that_is_no_number_is_named(tmp_path):
    with EventLog(tmp_path) as log:
        with pytest.raises(InputError, match=r"metric 'a/b' is a object"):
            log.write(1, "train", {"a": {"b": object()}})
        with pytest.raises(InputError, match=r"kind is '\.\./x'"):
            log.write(1, "../x", {})
    assert read_events(tmp_path) == []


def test_a_closed_log_refuses_and_closes_twice(tmp_path):
    log = EventLog(tmp_path)
    log.close()
    log.close()
    with pytest.raises(ValueError, match="is closed"):
        log.write(1, "train", {})


def test_resume_cuts_what_a_killed_run_wrote_later(tmp_path):
    with EventLog(tmp_path, resume_step=0) as log:
        for step in (10, 20, 30, 40):
            log.write(step, "train", {"loss": 1.0})
    with EventLog(tmp_path, resume_step=20) as log:
        assert steps(tmp_path) == [10, 20]
        log.write(30, "train", {"loss": 2.0})
    assert [(e["step"], e["metrics"]["loss"]) for e in read_events(tmp_path)] == [(10, 1.0), (20, 1.0), (30, 2.0)]
    EventLog(tmp_path).close()
    assert steps(tmp_path) == [10, 20, 30]
    EventLog(tmp_path, resume_step=0).close()
    assert steps(tmp_path) == []


def test_a_torn_last_line_is_left_out_and_then_cut(tmp_path, caplog):
    with EventLog(tmp_path) as log:
        log.write(1, "train", {"loss": 1.0})
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + whole[: len(whole) // 2])
    assert steps(tmp_path) == [1]
    assert not caplog.records
    with EventLog(tmp_path, resume_step=5) as log:
        log.write(2, "train", {"loss": 1.0})
    assert steps(tmp_path) == [1, 2]
    assert log.path.read_bytes().startswith(whole)


def test_a_torn_line_in_the_middle_costs_that_line_only(tmp_path, caplog):
    good = b'{"step": %d, "time": 0.0, "kind": "train", "metrics": {}}\n'
    (tmp_path / "metrics.jsonl").write_bytes(good % 1 + b'{"step": 2, "ti\n' + b"[1]\n" + good % 3)
    assert steps(tmp_path) == [1, 3]
    assert [r.getMessage().split(": ", 1)[1][:6] for r in caplog.records] == ["line 2", "line 3"]


def test_a_full_disk_warns_once_and_the_next_line_is_whole(tmp_path, monkeypatch, caplog):
    log = EventLog(tmp_path, tensorboard=False)
    write, calls = os.write, []

    def half_then_none(file, data):
        calls.append(data)
        if len(calls) == 1:
            return write(file, data[:9])
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(_events.os, "write", half_then_none)
    with caplog.at_level(logging.WARNING):
        for step in range(4):
            log.write(step, "train", {})
    log.close()
    assert len(caplog.records) == 2  # two different reasons, each once
    assert "No space left" in caplog.text
    assert steps(tmp_path) == [2, 3]


def test_a_folder_without_permission_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        EventLog(tmp_path / "file" / "run")


def test_tensorboard_gets_the_numbers_of_train_and_eval(tmp_path):
    with EventLog(tmp_path) as log:
        log.write(5, "train", {"loss": 0.25, "word": "x", "group": {"a": 2}, "bad": math.nan}, time=100.0)
        log.write(5, "eval", {"accuracy": 0.5})
        log.write(5, "compile", {"seconds": 1.0})
    assert sorted(p.name for p in (tmp_path / "tensorboard").iterdir()) == ["eval", "train"]
    version, event = tensorboard_events(tmp_path / "tensorboard" / "train")
    assert version.file_version == "brain.Event:2"
    values = {v.tag: v.simple_value for v in event.summary.value}
    assert math.isnan(values.pop("bad"))
    assert values == {"loss": 0.25, "group/a": 2.0}
    assert (event.step, event.wall_time) == (5, 100.0)


def test_tensorboard_is_told_where_a_resumed_run_begins(tmp_path):
    from tensorboardX.proto import event_pb2

    for resume in (0, 20):
        with EventLog(tmp_path, resume_step=resume) as log:
            log.write(resume + 10, "train", {"loss": 1.0})
    events = tensorboard_events(tmp_path / "tensorboard" / "train")
    starts = [e.step for e in events if e.session_log.status == event_pb2.SessionLog.START]
    assert sorted(starts) == [1, 21]  # TensorBoard drops earlier records from these steps on


def test_no_tensorboard_no_files(tmp_path):
    with EventLog(tmp_path, tensorboard=False) as log:
        log.write(1, "train", {"loss": 1.0})
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_killed_process_loses_no_record_it_has_written(tmp_path):
    script = (
        "import os, signal, sys\n"
        "from systolic.estimator._events import EventLog\n"
        "log = EventLog(sys.argv[1], 0, tensorboard=False)\n"
        "for step in range(100): log.write(step, 'train', {'loss': float(step)})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert steps(tmp_path) == list(range(100))


def test_reading_a_folder_without_history_gives_nothing(tmp_path):
    assert read_events(tmp_path / "none") == []
