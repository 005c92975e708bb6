"""Every error that Systolic raises on purpose.

Each message answers four questions: which argument, what was seen, what was wanted, what to do. A class also derives
from the built-in exception a caller would reach for (``ValueError`` for bad input, ``RuntimeError`` for a failed
compile), so that code which does not know Systolic can still handle it.
"""

from __future__ import annotations


class SystolicError(Exception):
    """Root of all errors raised on purpose; the command line prints its message alone, without a traceback."""


class InputError(SystolicError, ValueError):
    """An argument or a data set is not what was wanted."""


class NotServedError(InputError, AttributeError):
    """A name of a library that Systolic stands in for and does not serve; the message says what to use."""


class NotServedImportError(InputError, ModuleNotFoundError):
    """Likewise, met in an import."""


class TargetError(SystolicError, ValueError):
    """A target that does not exist, is not attached, or cannot hold the layout asked for."""


class CompileError(SystolicError, RuntimeError):
    """The compiler refused the program, crashed, or was stopped."""


class OutOfDeviceMemoryError(CompileError):
    """The program needs more device memory than the target has."""


class CompileTimeoutError(CompileError, TimeoutError):
    """The compiler ran past its time limit and was stopped."""


class RecompileError(CompileError):
    """A Program met a new signature beyond its compile budget."""


class CheckpointError(SystolicError, RuntimeError):
    """A checkpoint is missing, corrupt, in use, or belongs to another model."""


class NonFiniteError(SystolicError, FloatingPointError):
    """Training produced a NaN or an infinity."""
