"""Errors of the compiler's process, which say nothing about the program."""

from __future__ import annotations

from systolic._errors import CompileError


class CompilerMemoryError(CompileError, MemoryError):
    """The compiler needed more of this machine's memory than it was allowed; nothing is known about the program."""


class CompilerCrash(CompileError):
    """The compiler's process died or failed for a reason that lies outside the program; nothing is known about it."""
