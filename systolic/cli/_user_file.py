"""The user's Python file: imported by its path, with a clear message for each way in which that goes wrong."""

from __future__ import annotations

import difflib
import importlib.util
import pathlib
import sys
import traceback
import types
from typing import Any

from systolic._errors import InputError, SystolicError
from systolic.cli._user_names import names_in, own_names


def load_file(path: str, option: str = "FILE.py:NAME") -> types.ModuleType:
    """Import a file by its path; its folder goes first on ``sys.path``, so that it can import its neighbours.

    Args:
        path: of the file.
        option: what the user gave it as.

    Raises:
        InputError: it is not there, is no Python file, or importing it raises or ends the process.
    """
    file = pathlib.Path(path).expanduser().resolve()
    if file.suffix != ".py":
        raise InputError(f"{option}: saw the file {path!r}, wanted a Python file and a name, as in model.py:estimator")
    if not file.is_file():
        near = [f.name for f in file.parent.glob("*.py")] if file.parent.is_dir() else []
        close = difflib.get_close_matches(file.name, near, n=1)
        raise InputError(f"{option}: there is no file {path}" + (f"; nearest: {close[0]}" if close else ""))
    for loaded in list(sys.modules.values()):
        if _same_file(loaded, file):
            return loaded
    name, number = file.stem, 0
    while name in sys.modules or not name.isidentifier():  # another file of this name
        number += 1
        name = f"systolic_file_{number}"
    folder = str(file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SystolicError:
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"importing {path} {told(error, str(file))}") from error
    return module


def attribute(module: types.ModuleType, name: str, option: str) -> Any:
    """What ``name`` names in the file.

    Raises:
        InputError: nothing.
    """
    if hasattr(module, name):
        return getattr(module, name)
    close = difflib.get_close_matches(name, own_names(module), n=1)
    nearest = f"; nearest: {close[0]}" if close else ""
    raise InputError(f"{option}: {module.__file__} has no {name!r}{nearest}. {names_in(module)}")


def told(error: BaseException, file: str) -> str:
    """What happened, and the line of the user's file where: ``raised KeyError at line 3 of model.py: 'colour'``."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.lineno is not None and frame.filename == file
    ]
    if isinstance(error, SyntaxError) and error.filename == file and error.lineno is not None:
        lines = [error.lineno]
    where = f" at line {lines[-1]} of {pathlib.Path(file).name}" if lines else ""
    if isinstance(error, SystemExit):
        return (
            f"called sys.exit({'' if error.code is None else repr(error.code)}){where}, wanted a file that only defines "
            'things; put what a script does under: if __name__ == "__main__"'
        )
    return f"raised {type(error).__name__}{where}: {error}"


def _same_file(module: types.ModuleType, file: pathlib.Path) -> bool:
    seen = getattr(module, "__file__", None)
    return seen is not None and pathlib.Path(seen).resolve() == file
