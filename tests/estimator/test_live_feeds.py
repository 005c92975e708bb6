"""Feeding by hand: predictions of a full batch come out before the next example goes in, and before an error."""

from __future__ import annotations

import queue
import threading

import numpy as np
import optax
import pytest
from small_models import LINEAR, config, linear, make_data, regression, weights

import systolic as sl

TRAINING = make_data(64, 7)


@pytest.fixture(scope="module")
def trained():
    estimator = linear()
    estimator.train(lambda: TRAINING, steps=5)
    return estimator


def expected(estimator, x):
    p = weights(estimator)
    return x.astype("float64") @ p["w"] + p["b"]


def test_the_answer_to_a_full_batch_comes_before_the_next_question(trained):
    x = make_data(40, 3)[0]["x"]
    questions: queue.Queue = queue.Queue()

    def ask():
        while (example := questions.get()) is not None:
            yield {"x": example}

    answers = trained.predict(lambda: ask())
    for n in range(0, 40, 8):  # batches of 8: each is answered before the next is asked
        for example in x[n : n + 8]:
            questions.put(example)
        got: list[float] = []
        reader = threading.Thread(target=lambda got=got: got.extend(next(answers)["y"] for _ in range(8)), daemon=True)
        reader.start()
        reader.join(60)
        assert not reader.is_alive(), f"batch {n // 8} was held back"
        np.testing.assert_allclose(got, expected(trained, x[n : n + 8]), rtol=1e-5)
    questions.put(None)
    assert list(answers) == []


@pytest.mark.parametrize("good", [8, 16, 40])
def test_rows_of_full_batches_come_before_the_error_of_the_source(trained, good):
    x = make_data(good, 4)[0]["x"]

    def source():
        for example in x:
            yield {"x": example}
        raise OSError("the disk went away")

    got = []
    rows = trained.predict(source)
    with pytest.raises(sl.InputError, match=f"after {good} examples: the disk went away"):
        got.extend(row["y"] for row in rows)
    np.testing.assert_allclose(got, expected(trained, x), rtol=1e-5)


# --- a trained folder, another optimizer ---------------------------------------------------------------------------------


def evaluator(folder, optimizer=None, **options):
    return sl.Estimator(LINEAR, regression, optimizer, train_batch_size=8, config=config(folder), **options)


@pytest.mark.parametrize("optimizer", [None, optax.adam(1e-3)], ids=["no optimizer", "another optimizer"])
def test_a_trained_folder_serves_evaluation_prediction_and_export_whatever_the_optimizer(tmp_path, optimizer):
    trainer = linear(tmp_path / "run", optimizer=optax.sgd(0.1, momentum=0.9))
    trainer.train(lambda: TRAINING, steps=5)
    other = evaluator(tmp_path / "run", optimizer)
    x, y = make_data(20, 5)
    error = expected(trainer, x["x"]) - y
    assert other.evaluate(lambda: (x, y))["loss"] == pytest.approx(np.mean(error**2), rel=1e-5)
    np.testing.assert_allclose([row["y"] for row in other.predict(lambda: x)], expected(trainer, x["x"]), rtol=1e-5)
    assert other.step == 5
    other.export(tmp_path / "export")
    assert sl.load(tmp_path / "export").step == 5


def test_training_on_with_another_optimizer_is_refused_after_an_evaluation_too(tmp_path):
    linear(tmp_path, optimizer=optax.sgd(0.1, momentum=0.9)).train(lambda: TRAINING, steps=5)
    other = evaluator(tmp_path, optax.sgd(0.1))
    other.evaluate(lambda: TRAINING)
    with pytest.raises(sl.CheckpointError, match=r"opt_state/.*trace"):
        other.train(lambda: TRAINING, steps=1)


def test_training_goes_on_exactly_after_an_evaluation_from_the_checkpoint(tmp_path):
    momentum = optax.sgd(0.1, momentum=0.9)
    straight = linear(tmp_path / "a", optimizer=momentum)
    straight.train(lambda: TRAINING, steps=8)
    linear(tmp_path / "b", optimizer=momentum).train(lambda: TRAINING, steps=5)
    resumed = linear(tmp_path / "b", optimizer=momentum)
    resumed.evaluate(lambda: TRAINING)
    resumed.train(lambda: TRAINING, steps=3)
    for name, value in weights(straight).items():
        np.testing.assert_array_equal(value, weights(resumed)[name])


def test_the_moving_average_in_a_checkpoint_is_evaluated_by_an_estimator_that_keeps_none(tmp_path):
    trainer = linear(tmp_path, ema=0.5)
    trainer.train(lambda: TRAINING, steps=5)
    w, b = (np.asarray(trainer.state["ema"][name], "float64") for name in ("w", "b"))
    x, y = make_data(20, 5)
    got = evaluator(tmp_path).evaluate(lambda: (x, y))["loss"]
    assert got == pytest.approx(np.mean((x["x"] @ w + b - y) ** 2), rel=1e-5)
