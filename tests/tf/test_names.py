"""What ``import tensorflow`` gives, to the user's files and to libraries."""

from __future__ import annotations

import builtins
import collections
import importlib
import importlib.util
import inspect

import numpy as np
import pytest
from estimator_case import run

from systolic import InputError
from systolic.tf import NotServedError, NotServedImportError
from systolic.tf._names import Names, names
from systolic.tf._removed import REMOVED
from systolic.tf._tensorflow import tensorflow
from systolic.tf.contrib import found

pytestmark = pytest.mark.filterwarnings("ignore")

real = tensorflow()
NEEDS_ESTIMATOR = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_estimator") is None, reason="needs tensorflow-estimator"
)
NEEDS_SLIM = pytest.mark.skipif(importlib.util.find_spec("tf_slim") is None, reason="needs tf-slim")


def test_a_script_gets_the_names_of_tensorflow_1(tmp_path):
    got = run(
        tmp_path,
        """
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.compat import v1
from tensorflow import app, flags, gfile, logging, python_io
versions = tf.VERSION, tf.__version__, tf.version.VERSION, tf1.__version__, tf.compat.v1.VERSION
same = tf1 is tf and v1 is tf and tf.compat.v1 is tf
width = tf.placeholder(tf.float32, [None, 3]).shape[1].value
""",
    )
    assert set(got.versions) == {"1.15.0"}
    assert got.same
    assert got.width == 3
    v1 = real.compat.v1
    assert (got.app, got.flags, got.gfile, got.logging) == (v1.app, v1.flags, v1.gfile, v1.logging)
    assert got.tf.train.AdamOptimizer is v1.train.AdamOptimizer
    assert {"contrib", "estimator", "placeholder"} <= set(dir(got.tf))


def test_a_module_beside_the_script_gets_them_too(tmp_path):
    (tmp_path / "beside_script.py").write_text("from tensorflow.contrib import training\nimport tensorflow as tf\n")
    got = run(tmp_path, "import beside_script")
    assert got.beside_script.tf.VERSION == "1.15.0"
    assert got.beside_script.training.HParams(a=1).a == 1


def installed(folder):
    package = folder / "site-packages" / "some_library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import importlib\nimport tensorflow as tf\nfrom tensorflow import compat\ntwo = importlib.import_module('tensorflow')\n"
    )


def test_a_library_gets_tensorflow_as_it_is(tmp_path, monkeypatch):
    installed(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    monkeypatch.delitem(importlib.sys.modules, "some_library", raising=False)
    library = run(tmp_path, "import some_library").some_library
    assert library.tf is real
    assert library.two is real
    assert library.compat is real.compat


def test_a_library_of_tensorflow_1_gets_the_old_names_where_it_is_listed(tmp_path, monkeypatch):
    installed(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    monkeypatch.delitem(importlib.sys.modules, "some_library", raising=False)
    library = run(tmp_path, "import some_library", packages=["some_library"]).some_library
    assert library.tf.VERSION == library.two.VERSION == "1.15.0"


def test_whose_an_import_is():
    made = Names(lambda: None)
    assert made.users({"__name__": "train", "__file__": "/home/me/train.py"})
    assert made.users({"__name__": "__main__"})  # a notebook, or a prompt
    assert not made.users({"__name__": "numpy", "__file__": np.__file__})
    assert not made.users({"__name__": "inspect", "__file__": inspect.__file__})
    assert not made.users({"__name__": "generated"})


@NEEDS_ESTIMATOR
def test_all_paths_to_an_estimator_lead_to_the_same_class(tmp_path):
    got = run(
        tmp_path,
        """
import importlib
import tensorflow as tf
import tensorflow.contrib.tpu as contrib_tpu
import tensorflow.python.tpu.tpu_config as config
from tensorflow import estimator
from tensorflow.contrib.tpu.python.tpu import tpu_config, tpu_estimator
from tensorflow.estimator import EstimatorSpec
from tensorflow.python.estimator import estimator as plain
from tensorflow.python.tpu import tpu_estimator as again, tpu_function
from tensorflow.python.tpu.tpu_context import TPUContext
import tensorflow.compat.v1.estimator as third
classes = [
    tf.contrib.tpu.TPUEstimator, contrib_tpu.TPUEstimator, tpu_estimator.TPUEstimator, again.TPUEstimator,
    tf.estimator.tpu.TPUEstimator, importlib.import_module("tensorflow.contrib.tpu").TPUEstimator,
]
configs = [config.TPUConfig, tpu_config.TPUConfig, tf.contrib.tpu.TPUConfig, tf.compat.v1.estimator.tpu.TPUConfig]
same = estimator is tf.estimator is third and plain.Estimator is tf.estimator.Estimator
""",
    )
    assert len(set(got.classes)) == 1
    assert len(set(got.configs)) == 1
    assert got.same
    assert issubclass(got.classes[0], got.tf.estimator.Estimator)
    assert got.tpu_function.__name__ == "tensorflow.python.tpu.tpu_function"


@NEEDS_SLIM
def test_paths_into_slim_lead_to_tf_slim(tmp_path):
    import tf_slim.nets.inception_v3

    got = run(
        tmp_path,
        """
import tensorflow.contrib.slim as slim
import tensorflow.contrib.slim.nets as nets
from tensorflow.contrib import layers
from tensorflow.contrib.framework.python.ops import add_arg_scope
from tensorflow.contrib.layers.python.layers import utils
from tensorflow.contrib.slim.python.slim.nets import inception_v3
from tensorflow.contrib.slim.python.slim.nets.resnet_v1 import resnet_v1_50
""",
    )
    assert got.inception_v3 is tf_slim.nets.inception_v3
    assert got.nets is tf_slim.nets
    assert got.slim.conv2d is got.layers.conv2d is tf_slim.conv2d
    assert got.add_arg_scope is tf_slim.add_arg_scope
    assert got.utils is importlib.import_module("tf_slim.layers.utils")


@NEEDS_SLIM
def test_layers_of_slim_find_what_tensorflow_dropped(tmp_path):
    got = run(
        tmp_path,
        """
import tensorflow as tf
from tensorflow.contrib import slim
with tf.Graph().as_default():
    with slim.arg_scope([slim.conv2d], normalizer_fn=slim.batch_norm, weights_regularizer=slim.l2_regularizer(0.1)):
        image = slim.conv2d(tf.ones([2, 8, 8, 3]), 4, [3, 3])
    flat = slim.batch_norm(slim.flatten(image), is_training=True, fused=False)
    loss = tf.reduce_mean(slim.fully_connected(flat, 1)) + tf.losses.get_regularization_loss()
    slim.optimize_loss(loss, tf.train.create_global_step(), tf.constant(0.1), "Adam", clip_gradients=1.0)
    slim.metrics.streaming_auc(tf.ones([4]) / 2, tf.ones([4]))
    names = [v.op.name for v in tf.trainable_variables()]
""",
    )
    assert got.names == [
        *("Conv/weights", "Conv/BatchNorm/beta", "BatchNorm/beta", "fully_connected/weights", "fully_connected/biases"),
    ]


def test_private_modules_of_tensorflow_are_its_own_and_know_what_they_have_moved(tmp_path):
    got = run(
        tmp_path,
        """
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_ops
import tensorflow.python.ops.array_ops as array_ops
moved = ops.Tensor, control_flow_ops.cond, control_flow_ops.while_loop
""",
    )
    assert got.moved == (real.Tensor, real.compat.v1.cond, real.compat.v1.while_loop)
    assert got.array_ops.__name__ == "tensorflow.python.ops.array_ops"
    assert not hasattr(got.ops, "Tensor")  # this file is out of the names' body


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("from tensorflow.contrib.crf import crf_decode", r"^tf\.contrib\.crf\.crf_decode is not served: write the"),
        ("from tensorflow.contrib.rnn import GLSTMCell", r"^tf\.contrib\.rnn\.GLSTMCell is not served: write it as"),
        ("import tensorflow.contrib.nothing", r"^tf\.contrib\.nothing is not served: TensorFlow 1\.15 had no"),
        ("from tensorflow.contrib import nothing", r"^tf\.contrib\.nothing is not served"),
        ("import tensorflow.nothing", r"^tf\.nothing is not served"),
    ],
)
def test_an_import_that_is_not_served_says_what_to_use(tmp_path, line, advice):
    with pytest.raises(ImportError, match=advice) as caught:
        run(tmp_path, line)
    assert isinstance(caught.value, InputError)
    assert isinstance(caught.value, NotServedImportError)


def test_a_name_that_is_not_served_is_an_attribute_error_that_says_what_to_use(tmp_path):
    tf = run(tmp_path, "import tensorflow as tf").tf
    with pytest.raises(
        AttributeError, match=r"^tf\.contrib\.tpu\.keras_to_tpu_model is not served: use a TPUEstimator"
    ) as caught:
        _ = tf.contrib.tpu.keras_to_tpu_model
    assert isinstance(caught.value, NotServedError)
    assert isinstance(caught.value, InputError)
    assert caught.value.name == "keras_to_tpu_model"
    assert not hasattr(tf.contrib, "nothing")
    assert not hasattr(tf.contrib.crf, "crf_decode")
    assert not hasattr(tf, "nothing")
    with pytest.raises(
        NotServedError, match=r"^tf\.contrib\.gan\.GANModel is not served: use the package tensorflow-gan"
    ):
        _ = tf.contrib.gan.GANModel


def test_what_python_and_numpy_dropped_is_there_for_the_user_alone(tmp_path):
    got = run(
        tmp_path,
        """
import collections, fractions, inspect, time
from collections import Iterable, Mapping
import numpy as np
def model_fn(features, labels, params=None): pass
spec = inspect.getargspec(model_fn)
kinds = np.int, np.float, np.object, np.float_, np.product([2, 3]), fractions.gcd(12, 18)
seconds = time.clock()
""",
    )
    assert got.Iterable is collections.abc.Iterable
    assert got.Mapping is collections.abc.Mapping
    assert got.spec.args == ["features", "labels", "params"]
    assert got.spec.defaults == (None,)
    assert got.kinds == (int, float, object, np.float64, 6, 6)
    with names(lambda: None):
        library = {"__name__": "library", "__file__": np.__file__}
        exec("import numpy, inspect\nseen = hasattr(numpy, 'int'), hasattr(inspect, 'getargspec')", library)
        assert library["seen"] == (False, False)
    assert not hasattr(inspect, "getargspec")
    assert not hasattr(np, "int")


@pytest.mark.parametrize("module", sorted(REMOVED))
def test_all_that_was_dropped_is_found_again(module):
    for place in REMOVED[module].values():
        assert found(place) is not None


def test_afterwards_all_is_as_it_was():
    before = builtins.__import__, importlib.import_module, vars(np).get("__getattr__")
    with names(lambda: None):
        assert builtins.__import__ is not before[0]
    assert before == (builtins.__import__, importlib.import_module, vars(np).get("__getattr__"))
    assert "__getattr__" not in vars(inspect)


def test_a_package_of_estimators_that_is_not_there_is_told_with_what_installs_it(tmp_path):
    def missing():
        raise ModuleNotFoundError("No module named 'tensorflow_estimator'", name="tensorflow_estimator")

    script = tmp_path / "s.py"
    script.write_text("import tensorflow as tf\nfrom tensorflow.contrib import training\ntf.estimator\n")
    import runpy

    with (
        names(missing),
        pytest.raises(NotServedError, match=r"tf\.estimator is not served: pip install tensorflow-estimator"),
    ):
        runpy.run_path(str(script))
