"""The progress line: what it says, when it is drawn, and that it never costs the run anything."""

from __future__ import annotations

import io
import logging
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import systolic as sl
from systolic.estimator import _progress
from systolic.estimator._progress import Progress


class Clock:
    """Stands in for the time module: moves only when told."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_progress, "time", clock)
    return clock


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def run(progress, clock, steps, seconds_per_step, loss=0.5, wait_per_step=0.0, start=0):
    for step in range(start + 1, start + steps + 1):
        clock.now += seconds_per_step
        progress.update(step, loss, (step - start) * wait_per_step)


def test_a_log_gets_a_line_every_ten_seconds_with_rate_loss_wait_and_eta(clock):
    stream = io.StringIO()
    with Progress(total=1000, examples_per_step=32, stream=stream) as progress:
        run(progress, clock, 500, 1 / 16, wait_per_step=1 / 160)
        lines = stream.getvalue().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["16/1,000", "176/1,000", "336/1,000", "496/1,000"]
    assert lines[-1] == ("train  496/1,000  16 steps/s · 512 examples/s  loss 0.5  input wait 10 %  ETA 0:32")
    assert stream.getvalue().splitlines()[-1].startswith("train  500/1,000")  # close tells the last state


def test_the_rate_leaves_out_the_time_of_phases(clock):
    stream = io.StringIO()
    with Progress(total=1000, stream=stream) as progress:
        run(progress, clock, 20, 0.1)
        with progress.phase("evaluating"):
            clock.now += 60.0
        run(progress, clock, 20, 0.1, start=20)
        progress.close()
    lines = stream.getvalue().splitlines()
    assert "evaluating: 1 min" in lines
    assert "10 steps/s" in lines[-1]


def test_a_resumed_run_counts_its_own_steps_only(clock):
    stream = io.StringIO()
    with Progress(total=200, start=100, stream=stream) as progress:
        run(progress, clock, 20, 0.1, start=100)
    assert stream.getvalue().splitlines()[-1].startswith("train  120/200  10 steps/s")


def test_unknown_total_and_nothing_yet(clock):
    stream = io.StringIO()
    with Progress(total=None, stream=stream, label="predict") as progress:
        assert progress.parts() == ["predict", "0"]
        clock.now += 2
        progress.update(10)
    assert stream.getvalue().splitlines()[-1] == "predict  10  5 steps/s"


def test_a_loss_still_being_computed_is_not_waited_for(clock):
    class Pending:
        ready = False

        def is_ready(self):
            return self.ready

        def __float__(self):
            assert self.ready
            return 0.25

    stream, loss = io.StringIO(), Pending()
    with Progress(total=100, stream=stream, plain_interval=1.0) as progress:
        run(progress, clock, 15, 0.1, loss)
        assert "loss" not in stream.getvalue()
        loss.ready = True
        run(progress, clock, 15, 0.1, loss, start=15)
    assert stream.getvalue().splitlines()[-1].split("  ")[3] == "loss 0.25"


def test_a_loop_whose_newest_loss_is_never_ready_shows_the_one_before(clock):
    class Loss(float):
        def is_ready(self):
            return clock.now >= self.made + 0.5

    stream = io.StringIO()
    with Progress(total=100, stream=stream, plain_interval=1.0) as progress:
        for step in range(1, 31):
            clock.now += 0.125
            loss = Loss(step)
            loss.made = clock.now
            progress.update(step, loss)
    shown = [line.split("loss ")[-1].split()[0] for line in stream.getvalue().splitlines()]
    assert shown[1:3] == ["8", "16"]  # at steps 16 and 24: those seen one line before


def test_silenced_draws_nothing_and_still_runs_phases(clock):
    stream = Terminal()
    with Progress(total=10, enabled=False, stream=stream) as progress:
        run(progress, clock, 10, 100.0)
        with progress.phase("saving"):
            progress.note("text")
    assert stream.getvalue() == ""


def test_before_start_and_after_close_nothing_is_drawn(clock):
    stream = io.StringIO()
    progress = Progress(total=10, stream=stream)
    progress.update(1)
    progress.note("early")
    assert stream.getvalue() == ""
    progress.start()
    progress.close()
    once = stream.getvalue()
    clock.now += 100
    progress.update(2)
    progress.close()
    assert stream.getvalue() == once


def test_a_phase_that_raises_ends_its_thread(clock):
    with Progress(total=10, stream=io.StringIO()) as progress:
        with pytest.raises(KeyError), progress.phase("compiling"):
            raise KeyError
        assert "systolic-progress" not in {t.name for t in threading.enumerate()}
        assert progress.parts() == ["train", "0/10"]


def test_a_broken_stream_silences_the_line_with_one_warning(clock, caplog):
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    with caplog.at_level(logging.WARNING), Progress(total=100, stream=Broken()) as progress:
        run(progress, clock, 100, 1.0)
    assert [r.getMessage() for r in caplog.records] == ["progress is not shown any more: [Errno 32] Broken pipe"]


def test_a_stream_without_unicode_gets_ascii(clock):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    with Progress(total=100, examples_per_step=8, stream=stream) as progress:
        run(progress, clock, 50, 0.1)
        progress.note("naïve…")
    assert b"10 steps/s | 80 examples/s" in raw.getvalue()
    assert b"na?ve..." in raw.getvalue()


def test_a_terminal_is_drawn_in_place_at_most_ten_times_a_second(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "140")
    stream = Terminal()
    draws = []
    with Progress(total=1000, stream=stream, examples_per_step=4) as progress:
        real = progress._draw
        monkeypatch.setattr(progress, "_draw", lambda now: (draws.append(now), real(now)))
        run(progress, clock, 1000, 0.002)  # two seconds
        progress.note("step 1000  eval  loss 0.4")
        with progress.phase("saving"):
            pass
    text = stream.getvalue()
    assert 15 <= len(draws) - 2 <= 21
    for piece in ("1,000/1,000", "500 steps/s", "2,000 examples/s", "loss 0.5", "━", "eval  loss 0.4", "saving…"):
        assert piece in text
    assert text.endswith("\n") or "\x1b[?25h" in text  # the cursor is given back


def test_a_dumb_terminal_gets_plain_lines(clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with Progress(total=10, stream=stream) as progress:
        run(progress, clock, 10, 1.0)
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().startswith("train  1/10")


@pytest.mark.parametrize("steps_per_loop", [1, 4])
@pytest.mark.parametrize("how", [{"steps": 10}, {"epochs": 2}])
def test_the_last_line_of_a_run_tells_its_last_step_and_the_loss_of_that(capsys, how, steps_per_loop):
    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(loss=0 * model(features["x"]) + labels)

    run = {"progress": True, "steps_per_loop": steps_per_loop, "target": "cpu:1"}
    model = (lambda key: {"w": jnp.zeros(3)}, lambda params, x: x @ params["w"])
    estimator = sl.Estimator(model, model_fn, optax.sgd(0.1), train_batch_size=4, config=sl.RunConfig(**run))
    features, labels = {"x": np.ones((20, 3), "float32")}, np.repeat(np.arange(5, dtype="float32"), 4)
    estimator.train((features, labels), **how)  # five steps an epoch, of the losses 0 to 4
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("train")]
    assert lines[-1].split()[1] in ("10", "10/10")
    assert "loss 4" in lines[-1]
    assert sum("10" in line.split()[1] for line in lines) == 1


def test_rates_are_those_of_the_device_and_not_of_the_loop_that_runs_ahead_of_it(tmp_path):
    def slow(x):
        time.sleep(0.02)
        return x

    def model_fn(model, features, labels, mode):
        y = model(features["x"])
        late = jax.pure_callback(slow, jax.ShapeDtypeStruct(y.shape, y.dtype), jax.lax.stop_gradient(y))
        return sl.EstimatorSpec(loss=(y - labels) ** 2 + 0 * late)

    config = sl.RunConfig(model_dir=tmp_path, progress=False, target="cpu:1", log_every=5)
    model = (lambda key: {"w": jnp.zeros(3)}, lambda params, x: x @ params["w"])
    estimator = sl.Estimator(model, model_fn, optax.sgd(0.1), train_batch_size=4, config=config)
    estimator.train(({"x": np.ones((20, 3), "float32")}, np.ones(20, "float32")), steps=40)
    rates = [record["metrics"]["steps_per_second"] for record in sl.read_events(tmp_path, "train")]
    assert len(rates) == 8
    assert max(rates[1:]) <= 1 / 0.02 * 1.25  # a step takes at least 20 ms; a record may begin a part of one late
