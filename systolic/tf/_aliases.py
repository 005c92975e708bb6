"""Modules of TensorFlow 1.15 that scripts import by their private paths, and that live elsewhere now."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

_ESTIMATOR = "tensorflow_estimator.python.estimator"
_TPU = "_tpu_estimator_embedding error_handling iteration_count_estimator tpu_config tpu_context tpu_estimator util"

ALIASES = {f"tensorflow.python.tpu.{name}": f"{_ESTIMATOR}.tpu.{name}" for name in _TPU.split()} | {
    "tensorflow.python.estimator": _ESTIMATOR,
    "tensorflow.python.estimator.inputs": f"{_ESTIMATOR}.inputs",
    "tensorflow.python.estimator.canned": f"{_ESTIMATOR}.canned",
    "tensorflow.python.estimator.export": f"{_ESTIMATOR}.export",
}
"""Path -> where it is now; modules below ``tensorflow.python.estimator`` follow it."""


def alias(name: str, wanted: Sequence[str], estimator: Callable[[], Any]) -> None:
    """Let an import find its modules: ``import name``, or ``from name import wanted``.

    Args:
        name: absolute name of a module.
        wanted: names that are imported from it.
        estimator: prepares the package of Estimators; called only where one of its modules is meant.
    """
    for full in (name, *(f"{name}.{one}" for one in wanted if one)):
        place = _place(full)
        if place is None or full in sys.modules:
            continue
        estimator()
        parts = full.split(".")
        for end in range(3, len(parts) + 1):  # packages above it, too
            path = ".".join(parts[:end])
            there = _place(path)
            if there is None or path in sys.modules:
                continue
            try:
                sys.modules[path] = importlib.import_module(there)
            except ModuleNotFoundError as error:
                if error.name == there:  # a name in a module: the import finds it there, or says that it is not
                    break
                raise


def mend() -> None:
    """TensorFlow 2.21 looks for its old layer of batch normalization where tf_keras 2.21 does not have it any more."""
    sought, there = "tf_keras.legacy_tf_layers", "tf_keras.src.legacy_tf_layers"
    if importlib.util.find_spec("tf_keras") is None or importlib.util.find_spec(sought) is not None:
        return
    for name in ("", ".normalization"):
        sys.modules.setdefault(sought + name, importlib.import_module(there + name))


def _place(path: str) -> str | None:
    if path in ALIASES:
        return ALIASES[path]
    top = "tensorflow.python.estimator"
    return _ESTIMATOR + path.removeprefix(top) if path.startswith(top + ".") else None
