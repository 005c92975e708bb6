"""FAQ 1. Can a trained model be evaluated while it trains, used for prediction, exported, and loaded for inference?

Yes: one model function serves training, evaluation and prediction; the export holds compiled programs for several
static batch sizes, and loads without the code that made it.
"""

from __future__ import annotations

import numpy as np
import optax
import pytest
from flax import nnx

import systolic as sl


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(2, 16, rngs=rngs)
        self.logits = nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, x):
        return self.logits(nnx.relu(self.hidden(x)))


def model_fn(model, features, labels, mode):
    logits = model(features["x"])
    predictions = {"class": logits.argmax(-1), "probability": nnx.softmax(logits)}
    if mode is sl.Mode.PREDICT:
        return sl.EstimatorSpec(predictions=predictions)
    loss = optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels)
    return sl.EstimatorSpec(loss=loss, metrics={"accuracy": predictions["class"] == labels})


def ring(n, seed):
    """Points inside and outside of a circle."""
    x = np.random.default_rng(seed).uniform(-1, 1, (n, 2)).astype("float32")
    return {"x": x}, (np.linalg.norm(x, axis=1) > 0.75).astype("int32")


def test_train_with_periodic_evaluation_predict_export_and_load(tmp_path):
    estimator = sl.Estimator(
        Classifier,
        model_fn,
        optax.adam(0.02),
        train_batch_size=64,
        eval_batch_size=64,
        config=sl.RunConfig(model_dir=tmp_path / "run", target="cpu:8", steps_per_loop=20, progress=False),
    )
    held_out = ring(333, 1)  # not a multiple of anything: evaluation is exact all the same
    final = estimator.train_and_evaluate(
        lambda: sl.data.arrays(*ring(2000, 0), shuffle=0), lambda: held_out, max_steps=300, eval_every=100
    )
    evaluations = sl.read_events(tmp_path / "run", "eval")
    assert [record["step"] for record in evaluations] == [100, 200, 300]
    assert evaluations[-1]["metrics"]["accuracy"] == pytest.approx(final["accuracy"])
    assert final["accuracy"] > 0.9

    rows = list(estimator.predict(lambda: held_out[0]))
    assert len(rows) == 333
    assert np.mean([row["class"] == label for row, label in zip(rows, held_out[1])]) == pytest.approx(final["accuracy"])

    model = sl.load(estimator.export(tmp_path / "export", batch_sizes=[1, 8, 64]))
    for n in (1, 5, 64, 100):
        out = model.predict({"x": held_out[0]["x"][:n]})
        np.testing.assert_array_equal(out["class"], [row["class"] for row in rows[:n]])
        np.testing.assert_allclose(out["probability"], [row["probability"] for row in rows[:n]], atol=1e-5)
    assert model.evaluate(lambda: held_out) == pytest.approx(final, rel=1e-5)
