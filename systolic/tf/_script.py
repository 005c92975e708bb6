"""Run a script of TensorFlow 1 as Python would, with the names and the TPUs that it expects."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import runpy
import sys
from collections.abc import Iterator, Sequence

from systolic._errors import InputError
from systolic.tf._install import install
from systolic.tf._python2 import syntax_problem


def run_script(path: str, arguments: Sequence[str] = (), *, target: str | None = None) -> None:
    """Run a file as ``python path arguments`` does.

    Args:
        path: of the file; its folder goes first on ``sys.path``.
        arguments: of the script, ``sys.argv[1:]``.
        target: where the steps of a TPUEstimator run, see :func:`install`.

    Raises:
        InputError: there is no such file, or it is of Python 2.
        Exception: what the script raises, ``SystemExit`` included.
    """
    file = pathlib.Path(path).expanduser()
    if not file.is_file():
        raise InputError(f"SCRIPT.py: there is no file {path}")
    install(target)
    with _process([str(file), *arguments], str(file.resolve().parent)):
        try:
            runpy.run_path(str(file.resolve()), run_name="__main__")
        except SyntaxError as error:
            if error.filename is None or error.filename != str(file.resolve()):
                raise
            raise InputError(f"{path}:{error.lineno}: {syntax_problem(error)}") from error


def run_module(name: str, arguments: Sequence[str] = (), *, target: str | None = None) -> None:
    """Run a module as ``python -m name arguments`` does.

    Args:
        name: of the module; the working folder goes first on ``sys.path``.
        arguments: of the module, ``sys.argv[1:]``.
        target: where the steps of a TPUEstimator run, see :func:`install`.

    Raises:
        InputError: there is no such module.
        Exception: what the module raises, ``SystemExit`` included.
    """
    install(target)
    with _process([name, *arguments], os.getcwd()):
        try:
            there = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # of a package above it
            there = None
        if there is None:
            raise InputError(f"-m: there is no module {name} in {os.getcwd()} or among the installed packages")
        runpy.run_module(name, run_name="__main__", alter_sys=True)


@contextlib.contextmanager
def _process(argv: list[str], folder: str) -> Iterator[None]:
    """Arguments and path of a process that runs a script; both as before afterwards."""
    before = sys.argv, list(sys.path)
    sys.argv = argv
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before
