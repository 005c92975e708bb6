"""Being told to stop: at once also where the input blocks, saved, with nothing lost; and told again, without more ado."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest
from small_models import linear, make_data, same_bits, weights
from stopping_run import source

import systolic as sl
from systolic.estimator._signals import stop_on_signal

HERE = pathlib.Path(__file__).parent
DATA = make_data(40)


def strike(folder, where, *numbers):
    """Run until it blocks, send the signals, and return the ended process with what it wrote."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "stopping_run.py"), str(folder), where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    try:
        assert process.stdout.readline() == "blocked\n"
        process.send_signal(numbers[0])
        for number in numbers[1:]:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.send_signal(number)
        _, log = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, log


@pytest.mark.parametrize(("where", "step"), [("queue", 10), ("thread", 12), ("evaluate", 4)])
def test_a_signal_ends_the_wait_for_input_and_every_step_is_saved(tmp_path, where, step):
    status, log = strike(tmp_path, where, signal.SIGTERM)
    assert status == 128 + signal.SIGTERM, log
    assert log.count("its thread is left") == (0 if where == "queue" else 1)
    options = {"run": {"steps_per_loop": 5 if where == "queue" else 1}}
    again = linear(tmp_path, **options)
    assert again.step == step
    again.train(lambda: sl.data.batches(source(100, False)), max_steps=20)
    whole = linear(**options)
    whole.train(lambda: DATA, steps=20)
    assert same_bits(weights(again), weights(whole))


def test_a_signal_ends_the_wait_for_the_first_batch(tmp_path):
    status, log = strike(tmp_path, "first", signal.SIGTERM)
    assert status == 128 + signal.SIGTERM, log
    assert linear(tmp_path).step == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_falls_into_a_finalizer_is_not_lost():
    done = threading.Event()

    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)
            for _ in range(10):  # the handler runs here, where what it raises is ignored
                pass

    def source():
        yield 1
        Finalized()
        done.wait(60)
        yield 2

    with stop_on_signal() as stop:
        began = list(stop.items(source()))
    assert began == [1]
    assert stop.number == signal.SIGTERM


def test_an_interrupt_while_input_blocks_is_one_to_the_caller(tmp_path):
    status, log = strike(tmp_path, "queue", signal.SIGINT)
    assert status in (-signal.SIGINT, 128 + signal.SIGINT)
    assert log.rstrip().endswith("KeyboardInterrupt")
    assert linear(tmp_path).step == 10


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)])
def test_a_second_signal_ends_the_process_with_one_line(tmp_path, numbers):
    status, log = strike(tmp_path, "hook", *numbers)
    assert status == 128 + numbers[-1]
    assert log == "systolic: ended at once by a second signal; what was saved before is whole\n"


def test_the_command_line_ends_with_the_status_of_an_interrupt(tmp_path):
    (tmp_path / "model.py").write_text(
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "from small_models import linear\n"
        "from stopping_run import source\n"
        "import systolic as sl\n"
        f"make = lambda: linear({str(tmp_path / 'run')!r}, run={{'steps_per_loop': 5}})\n"
        "train_input_fn = lambda: sl.data.batches(source(5, False))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "systolic", "train", f"{tmp_path / 'model.py'}:make", "--steps", "50"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    try:
        for line in process.stdout:
            if line == "blocked\n":
                break
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, log
    assert log == "systolic train: interrupted\n"
    assert linear(tmp_path / "run").step == 5


def test_a_source_that_was_left_behind_is_closed_when_it_comes_back():
    release, closed = threading.Event(), threading.Event()

    def blocking():
        try:
            for i in range(3):
                yield DATA
                if i == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                    release.wait(60)
        finally:
            closed.set()

    estimator = linear()
    estimator.train(lambda: DATA, steps=1)
    with pytest.raises(SystemExit):
        estimator.evaluate(lambda: sl.data.batches(blocking()))
    assert not closed.is_set()
    release.set()
    assert closed.wait(60)


# --- the request itself ---------------------------------------------------------------------------------------------------


def test_items_end_at_a_signal_and_not_in_the_midst_of_the_work_on_one():
    worked = []
    with stop_on_signal() as stop:
        for item in stop.items(range(5)):
            if item == 2:
                signal.raise_signal(signal.SIGTERM)
            worked.append(item)
        assert list(stop.items(range(5))) == []
        assert stop.wait(lambda: 1) is None
    assert worked == [0, 1, 2]
    assert stop.number == signal.SIGTERM


def test_a_source_that_is_interrupted_is_cleaned_up():
    closed = []

    def source():
        try:
            yield 1
            signal.raise_signal(signal.SIGINT)
            yield 2
        finally:
            closed.append(True)

    with stop_on_signal() as stop:
        assert list(stop.items(source())) == [1]
    assert closed == [True]


def test_errors_and_values_of_a_source_pass():
    with stop_on_signal() as stop:
        assert stop.wait(lambda: 7) == 7
        with pytest.raises(KeyError, match="gone"):
            stop.wait(lambda: {}["gone"])
        assert not stop.waiting


def test_a_signal_that_the_process_ignores_stays_ignored():
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_on_signal() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop
            signal.raise_signal(signal.SIGTERM)
            assert stop.number == signal.SIGTERM
    finally:
        signal.signal(signal.SIGINT, former)


def test_a_handler_of_the_program_gets_the_second_signal():
    seen = []
    former = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with stop_on_signal() as stop:
            signal.raise_signal(signal.SIGTERM)
            assert stop
            assert seen == []
            signal.raise_signal(signal.SIGTERM)
            assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, former)


# --- a hook that stops the run ----------------------------------------------------------------------------------------------


class StopAt(sl.Hook):
    def __init__(self, step=None, moment="steps"):
        self.step, self.moment, self.seen = step, moment, []

    def _see(self, moment, run, step):
        self.seen.append((moment, step))
        if moment == self.moment and self.step is not None and step >= self.step:
            run.stop("enough")

    def after_steps(self, run, step, metrics):
        self._see("steps", run, step)

    def after_evaluate(self, run, step, metrics):
        self._see("evaluate", run, step)

    def after_save(self, run, step):
        self._see("save", run, step)


@pytest.mark.parametrize(
    ("steps_per_loop", "log_every", "asked", "ends"),
    [
        (1, 10, 10, 10),
        (1, 1, 3, 3),
        (5, 10, 10, 10),
        (7, 10, 10, 14),
        (7, 10, 15, 21),
        (7, 3, 22, 28),
        (50, 10, 10, 50),
    ],
)
def test_a_run_ends_at_the_step_whose_record_made_the_hook_stop_it(steps_per_loop, log_every, asked, ends):
    hook = StopAt(asked)
    estimator = linear(hooks=[hook], run={"steps_per_loop": steps_per_loop, "log_every": log_every})
    estimator.train(lambda: DATA, steps=1000)
    assert estimator.step == ends
    assert hook.seen[-2:] == [("steps", ends), ("save", ends)] if len(hook.seen) > 1 else [("steps", ends)]


@pytest.mark.parametrize("cut", [4, 10, 13])
def test_a_resumed_run_is_stopped_at_the_same_step(tmp_path, cut):
    options = {"steps_per_loop": 7, "log_every": 10}
    linear(tmp_path, run=options).train(lambda: DATA, max_steps=cut)
    again = linear(tmp_path, hooks=[StopAt(15)], run=options)
    again.train(lambda: DATA, max_steps=1000)
    assert again.step == 21


@pytest.mark.parametrize("moment", ["evaluate", "save"])
def test_a_run_stopped_at_another_moment_ends_there_and_has_a_record_of_its_last_step(tmp_path, moment):
    hook = StopAt(8, moment)
    estimator = linear(tmp_path, hooks=[hook], run={"checkpoint_every": 4})
    estimator.train_and_evaluate(lambda: DATA, lambda: DATA, max_steps=1000, eval_every=4)
    assert estimator.step == linear(tmp_path).step == 8
    assert hook.seen.count(("steps", 8)) == hook.seen.count(("save", 8)) == hook.seen.count(("evaluate", 8)) == 1


@pytest.mark.parametrize(
    ("steps_per_loop", "steps", "expected"),
    [(1, 3, [3]), (1, 20, [10, 20]), (1, 23, [10, 20, 23]), (7, 23, [14, 21, 23]), (7, 5, [5])],
)
def test_records_come_every_so_often_and_at_the_last_step(tmp_path, steps_per_loop, steps, expected):
    hook = StopAt()
    options = {"log_every": 10, "steps_per_loop": steps_per_loop}
    linear(tmp_path, hooks=[hook], run=options).train(lambda: DATA, steps=steps)
    assert [step for moment, step in hook.seen if moment == "steps"] == expected
    assert [record["step"] for record in sl.read_events(tmp_path, "train")] == expected


@pytest.mark.parametrize("checkpoint_every", [5, 1000])
def test_data_that_ends_has_a_record_of_its_last_step_and_is_saved_once(tmp_path, checkpoint_every):
    hook = StopAt()
    linear(tmp_path, hooks=[hook], run={"checkpoint_every": checkpoint_every}).train(lambda: DATA, epochs=1)
    assert sorted(hook.seen) == [("save", 5), ("steps", 5)]
