"""TPUEstimator's own Python layer: the frozen package ``tensorflow-estimator``, under a TensorFlow that no longer has all it imports."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

from systolic._errors import InputError
from systolic.tf._tensorflow import tensorflow

_API_NAME = "estimator"


@functools.cache
def estimator_api() -> types.ModuleType:
    """The module that TensorFlow 1 has as ``tf.estimator``, with its part ``tpu``.

    Raises:
        InputError: the package is not installed.
    """
    tensorflow()
    _supply_modules()
    _supply_exports()
    try:
        return importlib.import_module("tensorflow_estimator.python.estimator.api._v1.estimator")
    except ImportError as error:
        raise InputError(
            f"TPUEstimator needs the package tensorflow-estimator 2.15, which cannot be imported ({error}): "
            'pip install "systolic[tensorflow]"'
        ) from error


def tpu_estimator() -> types.ModuleType:
    """The module ``tpu_estimator`` itself, with what scripts take from it by its private name."""
    estimator_api()
    return importlib.import_module("tensorflow_estimator.python.estimator.tpu.tpu_estimator")


def _supply_exports() -> None:
    """Names under which the package registers its functions as an API."""
    exports: Any = importlib.import_module("tensorflow.python.util.tf_export")
    exports.ESTIMATOR_API_NAME = _API_NAME
    for table, version in ((exports.API_ATTRS, ""), (exports.API_ATTRS_V1, "_v1")):
        table[_API_NAME] = exports._Attributes(f"_estimator_api_names{version}", f"_estimator_api_constants{version}")


def _supply_modules() -> None:
    """Modules of TensorFlow that it dropped after 2.15: what the package imports of them at its top."""
    tf1: Any = tensorflow().compat.v1

    class Silent(tf1.train.SessionRunHook):
        """A hook for workers that go lame, of which there are none."""

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()

    class Parameters:
        """Configuration of embedding tables, which this front end does not serve yet."""

        def __init__(self, *_: Any, **__: Any) -> None:
            raise InputError(
                f"tpu.experimental.{type(self).__name__}: embedding tables of TPUEmbedding are not served yet; use "
                "tf.nn.embedding_lookup in model_fn"
            )

    parameters = (
        "StochasticGradientDescentParameters", "AdagradParameters", "AdamParameters", "FtrlParameters", "MomentumParameters",
        "RMSPropParameters", "ProximalAdagradParameters", "TableConfig", "FeatureConfig", "TPUEmbedding", "EnqueueData",
        "RaggedEnqueueData",
    )  # fmt: skip
    refuse_tables = _refusal(
        "embedding tables of TPUEmbedding are not served yet; use tf.nn.embedding_lookup in model_fn"
    )
    refuse_strategy = _refusal(
        "RunConfig(train_distribute, eval_distribute): not served; leave them out, name a target"
    )

    _module(
        "tensorflow.python.distribute.estimator_training",
        init_run_config=lambda config, tf_config: None,
        should_run_distribute_coordinator=lambda config: False,
        train_and_evaluate=refuse_strategy,
        estimator_train=refuse_strategy,
        estimator_evaluate=refuse_strategy,
    )
    _module(
        "tensorflow.python.tpu.tpu_embedding",
        TRAINING="training",
        INFERENCE="inference",
        **{name: type(name, (Parameters,), {}) for name in parameters},
    )
    _module(
        "tensorflow.python.tpu.tpu_embedding_gradient",
        create_dummy_table_variables=refuse_tables,
        get_gradients_through_dummy_table_variables=refuse_tables,
    )
    _module(
        "tensorflow.python.tpu.session_support",
        GracefulShutdownHook=Silent,
        ResetComputation=Silent,
        ShutdownLameWorkers=Silent,
        ShutdownAllWorkers=Silent,
        start_worker_watchdog=lambda *_, **__: None,
    )


def _refusal(message: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise InputError(message)

    return refuse


def _module(name: str, **content: Any) -> None:
    if importlib.util.find_spec(name) is not None:
        return
    module = types.ModuleType(name)
    vars(module).update(content)
    parent, _, leaf = name.rpartition(".")
    sys.modules[name] = module
    setattr(importlib.import_module(parent), leaf, module)
