"""Which library a model belongs to."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

from systolic._errors import InputError
from systolic.estimator.adapters._equinox import EquinoxAdapter
from systolic.estimator.adapters._linen import LinenAdapter
from systolic.estimator.adapters._nnx import NNXAdapter
from systolic.estimator.adapters._plain import PlainAdapter
from systolic.estimator.adapters._protocol import Adapter

_WANTED = (
    "wanted one of: a function of `rngs` that returns an nnx.Module (lambda rngs: Net(rngs=rngs)); a "
    "flax.linen.Module instance; a function of `key` that returns an equinox.Module; a pair (init, apply) of functions"
)


def as_adapter(model: Any) -> Adapter:
    """The adapter for ``model``.

    An Adapter is returned as it is. Else by what it is: a ``flax.linen.Module`` instance; a pair ``(init, apply)``; a
    function (or class) with a parameter named ``rngs`` (NNX) or ``key`` (Equinox). InputError for anything else, and
    for a module instance of NNX or Equinox: the Estimator makes the variables itself, inside its init program.
    """
    if isinstance(model, Adapter) and not isinstance(model, type):
        return model
    if _is_instance(model, "flax.linen", "Module"):
        return LinenAdapter(model)
    if _is_instance(model, "flax.nnx", "Module"):
        raise InputError(_instance_message(model, "rngs"))
    if _is_instance(model, "equinox", "Module"):
        raise InputError(_instance_message(model, "key"))
    if isinstance(model, tuple):
        if len(model) == 2 and all(callable(part) for part in model):
            return PlainAdapter(*model)
        raise InputError(f"Estimator(model=...): got a tuple of {len(model)}; {_WANTED}.")
    if not callable(model):
        raise InputError(f"Estimator(model=...): got {type(model).__name__}; {_WANTED}.")
    names = _parameters(model)
    if "rngs" in names:
        return NNXAdapter(model)
    if "key" in names:
        return EquinoxAdapter(model)
    raise InputError(
        f"Estimator(model=...): got a callable of ({', '.join(names)}), which does not tell the library; {_WANTED}."
    )


def _is_instance(model: Any, module: str, name: str) -> bool:
    # An instance of a class of a library that was never imported cannot exist.
    library = sys.modules.get(module)
    return library is not None and isinstance(model, getattr(library, name))


def _parameters(model: Any) -> list[str]:
    """Names that may still be passed to ``model``; of a class, those of its constructor."""
    if isinstance(model, functools.partial):
        return [name for name in _parameters(model.func) if name not in model.keywords]
    if isinstance(model, type):
        # The metaclasses of NNX and Equinox hide the constructor's signature behind their own.
        return list(inspect.signature(model.__init__).parameters)[1:]
    return list(inspect.signature(model).parameters)


def _instance_message(model: Any, argument: str) -> str:
    kind = type(model).__name__
    return (
        f"Estimator(model=...): got an instance of {kind}, wanted a function that makes one. Pass "
        f"lambda {argument}: {kind}(..., {argument}={argument}): the Estimator owns the variables, and makes them "
        "inside its own program, on the target's devices."
    )
