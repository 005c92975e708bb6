"""What a module of ``tf.contrib`` serves: data, which can be read without TensorFlow."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from systolic.tf._face import refuse
from systolic.tf._tensorflow import tensorflow

_NOTHING: Mapping[str, str] = {}
_SLIM = "tf_slim"


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


def found(place: str) -> Any:
    """The object at ``module:dotted.name``; with ``()`` at the end, what a call of it gives.

    ``tf`` as the module is the API of TensorFlow 1, an empty name the module itself.

    Raises:
        NotServedError: the package of the module is not installed.
    """
    module, _, path = place.partition(":")
    top = tensorflow()
    value = top.compat.v1 if module == "tf" else _imported(module)
    path, called = path.removesuffix("()"), path.endswith("()")
    for name in path.split(".") if path else ():
        value = getattr(value, name)
    return value() if called else value


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != _SLIM:
            raise
        raise refuse(f"tf.contrib's part in {_SLIM}", "pip install tf-slim") from error


def needs(places: Iterable[str]) -> set[str]:
    """The packages besides TensorFlow that have what is at these places."""
    return {_SLIM for place in places if place.startswith(_SLIM)}
