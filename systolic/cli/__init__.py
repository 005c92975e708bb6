"""The command line: ``systolic check|train|evaluate|predict|export|targets|doctor``. Thin: parse, call, print."""

from systolic.cli._main import main
from systolic.cli._progress import CompileProgress

__all__ = ["CompileProgress", "main"]
