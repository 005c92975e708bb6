"""What a scan tells of scripts."""

from __future__ import annotations

import ast
import json

import pytest
from estimator_case import estimator

from systolic import InputError
from systolic.tf import scan
from systolic.tf._uses import uses

pytestmark = pytest.mark.filterwarnings("ignore")


def used(text, modules=()):
    return uses(ast.parse(text), lambda name: name in modules)


def test_aliases_of_every_kind_are_followed():
    found = used("""
import tensorflow as tf
import tensorflow.compat.v1 as tf1
import tensorflow.contrib.tpu as tpu1
from tensorflow.contrib import tpu as tpu2, data
from tensorflow.contrib.tpu.python.tpu import tpu_config
import tensorflow
import os
tf.train.Saver(); tf1.layers.dense; tf.compat.v1.compat.v1.app
tpu1.TPUConfig, tpu2.RunConfig, data.map_and_batch(tf.map_fn)
tpu_config.TPUConfig.x
tensorflow.gfile.Open
os.path
""")
    assert found == [
        ("tensorflow.contrib.tpu", 4),
        ("tensorflow.contrib.tpu", 5),
        ("tensorflow.contrib.data", 5),
        ("tensorflow.contrib.tpu.python.tpu.tpu_config", 6),
        ("tensorflow.train.Saver", 9),
        ("tensorflow.layers.dense", 9),
        ("tensorflow.app", 9),
        ("tensorflow.contrib.tpu.TPUConfig", 10),
        ("tensorflow.contrib.tpu.RunConfig", 10),
        ("tensorflow.contrib.data.map_and_batch", 10),
        ("tensorflow.map_fn", 10),
        ("tensorflow.contrib.tpu.python.tpu.tpu_config.TPUConfig.x", 11),
        ("tensorflow.gfile.Open", 12),
    ]


def test_a_module_that_is_assigned_has_another_name():
    text = "import tensorflow as tf\nslim = tf.contrib.slim\nflags = tf.flags.FLAGS\nslim.conv2d\nflags.steps"
    assert used(text, ["tensorflow.contrib.slim"])[-1] == ("tensorflow.contrib.slim.conv2d", 4)


def test_a_variable_of_a_function_hides_a_module():
    text = """
from tensorflow.contrib import layers
def model(layers, x=layers.relu):
    return layers.append(1)
def build():
    layers = []
    layers.sort()
def use():
    return layers.conv2d
def again():
    from tensorflow import layers
    return layers.dense
"""
    assert [name.removeprefix("tensorflow.") for name, _ in used(text)] == [
        "contrib.layers",
        "contrib.layers.relu",
        "contrib.layers.conv2d",
        "layers",
        "layers.dense",
    ]


def test_a_script_is_told_name_by_name(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(
        """import tensorflow as tf
from tensorflow.contrib import training
from tensorflow.contrib.crf import crf_decode
FLAGS = tf.flags.FLAGS
print(FLAGS.steps, tf.contrib.tpu.CrossShardOptimizer, tf.train.AdamOptimizer().minimize)
tf.contrib.rnn.GLSTMCell(3)
tf.train.NoSuchOptimizer
training.HParams(a=1)
tf.contrib.rnn.GLSTMCell(4)
from tensorflow.python.framework import ops
ops.Tensor
tf.tpu.experimental.AdamParameters
"""
    )
    report = scan(file, estimator=estimator)
    (found,) = report.files
    assert {name.name for name in found.names if not name.instead} == {
        "tf.contrib.training",
        "tf.contrib.training.HParams",
        "tf.contrib.tpu.CrossShardOptimizer",
        "tf.flags.FLAGS",
        "tf.train.AdamOptimizer",
        "tensorflow.python.framework.ops",
        "tensorflow.python.framework.ops.Tensor",
    }
    assert [(name.name, name.lines) for name in found.missing] == [
        ("tf.contrib.crf.crf_decode", (3,)),
        ("tf.contrib.rnn.GLSTMCell", (6, 9)),
        ("tf.tpu.experimental.AdamParameters", (12,)),
        ("tf.train.NoSuchOptimizer", (7,)),
    ]
    assert report.exit_code == 1
    lines = str(report).splitlines()
    assert (
        f"{file}:6: tf.contrib.rnn.GLSTMCell is not served: write it as a subclass of tf.nn.rnn_cell.RNNCell (and 1 more)"
        in lines
    )
    assert lines[-1] == "1 file, 11 names of TensorFlow: 7 served, 4 not"
    told = json.loads(json.dumps(report.to_json()))
    assert told["exit_code"] == 1
    assert told["files"][0]["served"]["tf.train.AdamOptimizer"] == [5]
    assert told["files"][0]["not_served"][1]["lines"] == [6, 9]


def test_a_folder_is_scanned_file_by_file_and_what_is_installed_in_it_is_not(tmp_path):
    for name in ("a.py", "sub/b.py", ".hidden/c.py", "venv/lib/site-packages/d.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("import tensorflow as tf\ntf.layers.dense\n")
    report = scan(tmp_path, estimator=estimator)
    assert [str(file.path.relative_to(tmp_path)) for file in report.files] == ["a.py", "sub/b.py"]
    assert report.exit_code == 0
    assert str(report) == "2 files, 1 name of TensorFlow: 1 served, 0 not"


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("import os\nprint 'x'\n", 2, "the syntax of Python 2 "),
        ("try:\n  pass\nexcept ValueError, e:\n  pass\n", 3, "the syntax of Python 2 "),
        ("x = 0777\n", 1, "the syntax of Python 2 "),
        ("exec 'x = 1'\n", 1, "the syntax of Python 2 "),
        ("raise ValueError, 'x'\n", 1, "the syntax of Python 2 "),
        ("print >>f, 'x'\n", 1, "the syntax of Python 2 "),
        ("x = `1`\n", 1, "the syntax of Python 2 "),
        ("if 1 <> 2: pass\n", 1, "the syntax of Python 2 "),
        ("x = ur'a'\n", 1, "the syntax of Python 2 "),
        ("x = 10L\n", 1, "the syntax of Python 2 "),
        ("def f(a, (b, c)): pass\n", 1, "the syntax of Python 2 "),
        ("if True:\n        x = 1\n\ty = 2\n", 3, "the syntax of Python 2 "),
        ("x = = 1\n", 1, "not the syntax of Python 3 "),
    ],
)
def test_a_file_that_does_not_parse_is_told_as_such(tmp_path, text, line, told):
    (tmp_path / "old.py").write_text(text)
    (file,) = scan(tmp_path, estimator=estimator).files
    assert file.problem.startswith(told), file.problem
    assert file.line == line


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no file or folder"):
        scan(tmp_path / "nothing.py", estimator=estimator)
    with pytest.raises(InputError, match="there is no Python file in"):
        scan(tmp_path, estimator=estimator)
