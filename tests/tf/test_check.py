"""``systolic tf check``: what a script would run on TPUs, compiled for some that are not there."""

from __future__ import annotations

import json

import pytest

from systolic import InputError
from systolic.check import CheckOptions
from systolic.cli import main
from systolic.target import libtpu_version
from systolic.tf import check_script

pytestmark = pytest.mark.skipif(libtpu_version() is None, reason="needs libtpu")

SCRIPT = """
import sys
import tensorflow as tf
from tensorflow.contrib import tpu as contrib_tpu

flags = tf.flags
flags.DEFINE_integer("units", 16, "")
flags.DEFINE_bool("train", True, "")
flags.DEFINE_bool("fail", False, "")
flags.DEFINE_string("model_dir", None, "")
FLAGS = flags.FLAGS

def input_fn(params):
    x = tf.data.Dataset.from_tensor_slices((tf.zeros([64, 128]), tf.zeros([64], tf.int32))).repeat()
    return x.batch(params["batch_size"], drop_remainder=True)

def model_fn(features, labels, mode, params):
    logits = tf.layers.dense(tf.layers.dense(features, FLAGS.units, name="wide"), 10)
    if mode == "infer":
        return contrib_tpu.TPUEstimatorSpec(mode, predictions={"y": logits})
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    optimizer = contrib_tpu.CrossShardOptimizer(tf.train.AdamOptimizer())
    return contrib_tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, tf.train.get_global_step()),
        eval_metrics=(lambda x: {"mean": tf.metrics.mean(x)}, [logits]))

def main(_):
    print("printed by the script")
    config = contrib_tpu.RunConfig(model_dir=FLAGS.model_dir, tpu_config=contrib_tpu.TPUConfig(iterations_per_loop=3))
    made = contrib_tpu.TPUEstimator(model_fn, config=config, train_batch_size=32, eval_batch_size=32, predict_batch_size=32)
    if FLAGS.train:
        made.train(input_fn, max_steps=1000000)
    if FLAGS.fail:
        raise OSError("no disk")
    if not FLAGS.model_dir:
        return
    print(made.evaluate(input_fn, steps=2)["mean"])
    for row in made.predict(lambda params: input_fn(params).map(lambda x, y: x)):
        raise AssertionError("there are no rows")

tf.app.run()
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    return str(tmp_path / "script.py")


def test_every_mode_is_compiled_for_every_target_and_nothing_runs(script, tmp_path, capfd):
    folder = tmp_path / "runs"
    folder.mkdir()
    command = ["tf", "check", script, "--target", "v5e-4,v4-8", "--depth", "schedule", "--json", "-"]
    assert main([*command, "--", f"--model_dir={folder}", "--units=256"]) == 0
    out, err = capfd.readouterr()
    results = json.loads(out)["results"]
    assert [(r["program"], r["target"]) for r in results] == [
        (program, target) for target in ("v5e-4", "v4-8") for program in ("train", "eval", "predict")
    ]
    assert "printed by the script" in err
    assert list(folder.iterdir()) == []
    # Forward, the two products of 8 rows a device, on 128x256 and 256x10; backward, two and one of each: the input has none.
    forward = 2 * 8 * (128 * 256 + 256 * 10)
    flops = {r["program"]: r["flops"]["matrix"] for r in results[:3]} if "flops" in results[0] else {}
    for program, wanted in (("predict", forward), ("train", 2 * forward + 2 * 8 * 256 * 10)):
        assert flops.get(program, wanted) == pytest.approx(wanted)


def test_a_script_that_fails_after_a_mode_was_built_is_reported_up_to_there(script, caplog):
    report = check_script(
        script, ["--fail", "--model_dir=nowhere"], target="v5e-1", options=CheckOptions(depth="schedule")
    )
    assert [result.program for result in report.results] == ["train"]


def test_a_model_that_is_too_large_for_the_target_is_told(script, tmp_path):
    report = check_script(script, ["--units=12000000"], target="v5e-1", options=CheckOptions())
    assert report.exit_code == 1
    assert "wide/kernel" in str(report)


def test_a_script_without_anything_for_a_tpu_says_so(tmp_path):
    (tmp_path / "plain.py").write_text("import tensorflow as tf\nprint(tf.VERSION)\n")
    with pytest.raises(InputError, match="it has nothing to run on a TPU"):
        check_script(str(tmp_path / "plain.py"), target="v5e-1")
