"""The API of Estimators for tests of names: prepared by the front end, or, before it does that, as far as names need it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import runpy
import sys
import types

from systolic.tf._names import names

_EMBEDDING = """AdadeltaParameters AdagradParameters AdamParameters CenteredRMSPropParameters EnqueueData FeatureConfig
FrequencyEstimatorParameters FtrlParameters MomentumParameters OnlineYogiParameters ProximalAdagradParameters RMSPropParameters
RaggedEnqueueData StochasticGradientDescentParameters TPUEmbedding TableConfig YogiParameters"""


def estimator():
    if importlib.util.find_spec("systolic.tf._estimator") is not None:
        from systolic.tf._install import estimator_api

        return estimator_api()
    from tensorflow.python.util import tf_export

    for name in (
        "distribute.estimator_training",
        "tpu.tpu_embedding_gradient",
        "tpu.session_support",
        "tpu.tpu_embedding",
    ):
        full = f"tensorflow.python.{name}"
        if full not in sys.modules:
            stub = sys.modules[full] = types.ModuleType(full)
            parent, _, child = full.rpartition(".")
            setattr(importlib.import_module(parent), child, stub)
    for name in _EMBEDDING.split():
        setattr(sys.modules["tensorflow.python.tpu.tpu_embedding"], name, type(name, (), {}))
    kind = type(tf_export.API_ATTRS[tf_export.TENSORFLOW_API_NAME])
    tf_export.ESTIMATOR_API_NAME = "estimator"
    tf_export.API_ATTRS["estimator"] = kind("_estimator_api_names", "_estimator_api_constants")
    tf_export.API_ATTRS_V1["estimator"] = kind("_estimator_api_names_v1", "_estimator_api_constants_v1")
    return importlib.import_module("tensorflow_estimator.python.estimator.api._v1.estimator")


@contextlib.contextmanager
def folder_first(folder):
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def run(folder, text, packages=()):
    """The globals of a user's script after it has run with the names in force."""
    script = folder / "script.py"
    script.write_text(text)
    with folder_first(folder), names(estimator, packages):
        return types.SimpleNamespace(**runpy.run_path(str(script), run_name="script"))
