"""The wind tunnel: what the TPU compiler makes of a program, without a TPU.

Compiles, or why not; memory per device against what there is; tile padding; operations. Not for timing a step: the
bounds given here are what the published peaks allow, not a prediction.
"""

from systolic.check._check import CheckOptions, check, check_programs
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
]
