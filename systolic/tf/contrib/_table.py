"""What a module of ``tf.contrib`` serves: data, which can be read without TensorFlow."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from systolic.tf._face import refuse
from systolic.tf._tensorflow import tensorflow

_NOTHING: Mapping[str, str] = {}
_SLIM = "tf_slim"
_NEED_IT = ("tf", "tensorflow", "estimator", "tensorflow_estimator", "tf_slim")
_PREPARED = ("tensorflow.python.tpu.session_support", "tensorflow.python.tpu.tpu_embedding")  # with the estimators
_ESTIMATORS = ("estimator", "tensorflow_estimator", *_PREPARED)


@dataclasses.dataclass(frozen=True)
class Table:
    """Of one module.

    Attributes:
        served: name -> where it is found, as :func:`found` reads it.
        instead: name that is not served -> what to use.
        private: path below the module that scripts reach into, as in ``python.tpu.tpu_config`` -> the module that
            answers; empty where the names of this table do.
        otherwise: what to use for all other names.
    """

    served: Mapping[str, str] = dataclasses.field(default_factory=dict)
    instead: Mapping[str, str] = dataclasses.field(default_factory=dict)
    private: Mapping[str, str] = dataclasses.field(default_factory=dict)
    otherwise: str = "no replacement is known; take what you need of it into your own code"


def each(prefix: str, names: str) -> dict[str, str]:
    """Names that are found under one prefix, by the same names.

    Example:
        >>> each("tf:train.", "Saver Server")
        {'Saver': 'tf:train.Saver', 'Server': 'tf:train.Server'}
    """
    return {name: prefix + name for name in names.split()}


def alike(names: str, what: str) -> dict[str, str]:
    """The same for several names.

    Example:
        >>> alike("Helper Decoder", "write the loop")
        {'Helper': 'write the loop', 'Decoder': 'write the loop'}
    """
    return dict.fromkeys(names.split(), what)


def found(place: str, estimator: Callable[[], Any] | None = None) -> Any:
    """The object at ``module:dotted.name``; with ``()`` at the end, what a call of it gives.

    ``tf`` as the module is the API of TensorFlow 1, ``estimator`` that of Estimators; an empty name is the module itself.

    Args:
        place: where it is.
        estimator: gives the API of Estimators; called before a module of that package is imported.

    Raises:
        NotServedError: the package of the module is not installed.
    """
    module, _, path = place.partition(":")
    if module.partition(".")[0] in _NEED_IT:
        top = tensorflow()  # quietly
    if module.startswith(_ESTIMATORS) and estimator is not None:
        api = estimator()
    owner = top.compat.v1 if module == "tf" else api if module == "estimator" else _imported(module)
    path, called = path.removesuffix("()"), path.endswith("()")
    for name in path.split(".") if path else ():
        owner = getattr(owner, name)
    return owner() if called else owner


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != _SLIM:
            raise
        raise refuse(f"tf.contrib's part in {_SLIM}", "pip install tf-slim") from error
