"""Systolic: programs compiled whole, with static shapes, for TPU, GPU and CPU; ``import systolic as sl``.

Everything here is loaded on first use, so that importing costs what importing JAX costs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from systolic._errors import (
    CheckpointError,
    CompileError,
    CompileTimeoutError,
    InputError,
    NonFiniteError,
    OutOfDeviceMemoryError,
    RecompileError,
    SystolicError,
    TargetError,
)
from systolic.target import prepare_process

if TYPE_CHECKING:
    from systolic import check, data
    from systolic.check import CheckReport
    from systolic.estimator import (
        EarlyStopping,
        Estimator,
        EstimatorSpec,
        Hook,
        Mode,
        RunConfig,
        load,
        metrics,
        read_events,
    )
    from systolic.estimator.adapters import equinox, linen, plain
    from systolic.program import CompileOptions, Executable, Program, ProgramSet
    from systolic.target import Target

__version__ = "0.1.0"

_HOME = {
    "check": ("CheckReport",),
    "data": (),
    "estimator": (
        "BestExport",
        "EarlyStopping",
        "Estimator",
        "EstimatorSpec",
        "Hook",
        "Mode",
        "RunConfig",
        "load",
        "metrics",
        "read_events",
    ),
    "estimator.adapters": ("equinox", "linen", "plain"),
    "program": ("CompileOptions", "Executable", "Program", "ProgramSet"),
    "target": ("HARDWARE", "Target"),
}
_WHERE = {name: home for home, names in _HOME.items() for name in names}

__all__ = sorted(
    [
        "CheckpointError",
        "CompileError",
        "CompileTimeoutError",
        "InputError",
        "NonFiniteError",
        "OutOfDeviceMemoryError",
        "RecompileError",
        "SystolicError",
        "TargetError",
        "check",
        "data",
        *_WHERE,
    ]
)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(f"systolic.{_WHERE[name]}"), name)
        globals()[name] = value
        return value
    if name in ("check", "data"):
        return importlib.import_module(f"systolic.{name}")
    raise AttributeError(f"module 'systolic' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


prepare_process()
