"""Several trainings in one process: each as if it were alone, and one Estimator in one at a time."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest
from small_models import linear, make_data, same_bits, weights

import systolic as sl

DATA = make_data(40)


@pytest.mark.timeout(120)
def test_trainings_in_several_threads_save_what_each_would_alone(tmp_path):
    # In a process of its own: where writes of two threads meet, they wait for each other and cannot be ended.
    script = f"""
        import pathlib, threading
        from small_models import linear, make_data
        data = make_data(40)
        def train(i):
            linear(pathlib.Path({str(tmp_path)!r}) / str(i), run={{"checkpoint_every": 1, "seed": i}}).train(data, max_steps=20)
        threads = [threading.Thread(target=train, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=__file__.rpartition("/")[0],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    whole = linear()
    whole.train(DATA, steps=20)
    for i in range(4):
        again = linear(tmp_path / str(i))
        assert again.step == 20
        again.evaluate(DATA)
        assert same_bits(weights(again), weights(whole))


class Inside(sl.Hook):
    def __init__(self):
        self.entered, self.leave = threading.Event(), threading.Event()

    def begin(self, run):
        self.entered.set()
        self.leave.wait(60)


@pytest.mark.parametrize("folder", [True, False])
def test_one_estimator_is_trained_by_one_thread_at_a_time(tmp_path, folder):
    hook = Inside()
    estimator = linear(tmp_path if folder else None)
    thread = threading.Thread(target=estimator.train, args=(DATA,), kwargs={"steps": 3, "hooks": [hook]})
    thread.start()
    try:
        assert hook.entered.wait(60)
        with pytest.raises(
            sl.InputError, match=r"this Estimator is in training already, .* make an Estimator for each"
        ):
            estimator.train(DATA, steps=3)
    finally:
        hook.leave.set()
        thread.join()
    estimator.train(DATA, steps=1)
    assert estimator.step == 4


def test_a_hook_cannot_train_the_estimator_that_called_it():
    class Again(sl.Hook):
        def begin(self, run):
            estimator.train(DATA, steps=1)

    estimator = linear(hooks=[Again()])
    with pytest.raises(sl.InputError, match="in training already"):
        estimator.train(DATA, steps=3)


@pytest.mark.parametrize("use", ["evaluate", "predict"])
def test_an_estimator_in_training_is_not_used_by_another_thread(use):
    hook = Inside()
    estimator = linear()
    estimator.train(DATA, steps=1)
    thread = threading.Thread(target=estimator.train, args=(DATA,), kwargs={"steps": 3, "hooks": [hook]})
    thread.start()
    try:
        assert hook.entered.wait(60)
        with pytest.raises(sl.InputError, match="is being trained by another thread, which takes its parameters over"):
            list(getattr(estimator, use)(DATA))
    finally:
        hook.leave.set()
        thread.join()
    assert estimator.evaluate(DATA)["loss"] >= 0


@pytest.mark.parametrize("use", ["evaluate", "predict"])
def test_training_in_the_middle_of_a_pass_is_told(use):
    estimator = linear(batch=4)
    estimator.train(DATA, steps=1)

    def trains_in_between():
        for i in range(5):
            if i == 3:
                estimator.train(DATA, steps=1)
            yield {"x": DATA[0]["x"][4 * i : 4 * i + 4]}, DATA[1][4 * i : 4 * i + 4]

    with pytest.raises(sl.InputError, match="the model was trained on while it was being evaluated or its predictions"):
        list(getattr(estimator, use)(trains_in_between))
