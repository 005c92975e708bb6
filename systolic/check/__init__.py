"""The wind tunnel: what the TPU compiler makes of a program, without a TPU.

Compiles, or why not; memory per device against what there is; tile padding; operations. Not for timing a step: the
bounds given here are what the published peaks allow, not a prediction.
"""

import sys
import types
from typing import Any

from systolic.check._check import CheckOptions, check, check_programs, resolve_targets
from systolic.check._fit import BatchSearch
from systolic.check._report import CheckReport
from systolic.check._result import Fit, ProgramCheck, StepBound, Trial, Verdict

__all__ = [
    "BatchSearch",
    "CheckOptions",
    "CheckReport",
    "Fit",
    "ProgramCheck",
    "StepBound",
    "Trial",
    "Verdict",
    "check",
    "check_programs",
    "resolve_targets",
]


class _Callable(types.ModuleType):
    """``sl.check`` is this package and the function of the same name: importing the one must not hide the other."""

    def __call__(self, *args: Any, **kwargs: Any) -> CheckReport:
        return check(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
