"""``FILE.py:NAME``: the user's file, the Estimator in it, and the data that goes with the Estimator.

The input function for a role (train, eval, predict) is the first of these that there is:

1. the one named by ``--data NAME`` (in the same file) or ``--data FILE.py:NAME``;
2. ``NAME_train_input_fn``, where NAME is the Estimator's: for a file that holds several;
3. ``train_input_fn``.

Prediction falls back on the evaluation's function: labels are ignored there.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib.util
import inspect
import pathlib
import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from typing import Any

from systolic._errors import InputError, SystolicError

_ROLES = {"train": ("train",), "eval": ("eval",), "predict": ("predict", "eval")}


@dataclasses.dataclass(frozen=True)
class Located:
    """An Estimator found by ``FILE.py:NAME``.

    Attributes:
        estimator: the Estimator.
        module: the file, imported.
        name: its name in the file.
    """

    estimator: Any
    module: types.ModuleType
    name: str

    def input_fn(self, role: str, named: str | None = None) -> Any:
        """The input function for ``train``, ``eval`` or ``predict``; ``named`` is what the user asked for, if anything.

        Raises:
            InputError: there is none.
        """
        if named is not None:
            path, _, name = named.rpartition(":")
            return _attribute(load_file(path) if path else self.module, name, "--data")
        tried = []
        for kind in _ROLES[role]:
            for name in (f"{self.name}_{kind}_input_fn", f"{kind}_input_fn"):
                if hasattr(self.module, name):
                    return getattr(self.module, name)
                tried.append(name)
        raise InputError(
            f"{self.module.__file__} has no input function for {self.name}: looked for {', '.join(tried)}. Define one of "
            "them, or name one with --data [FILE.py:]NAME"
        )


def locate(spec: str, arguments: Mapping[str, Any] | None = None) -> Located:
    """Find the Estimator that ``FILE.py:NAME`` names.

    Args:
        spec: path and name; the name is of an Estimator or of a function that returns one.
        arguments: for that function.

    Raises:
        InputError: no such file or name, it cannot be imported, or what it names makes no Estimator.
    """
    from systolic.estimator import Estimator

    path, _, name = spec.rpartition(":")
    if not path or not name:
        path, name = spec.rstrip(":"), ""
    module = load_file(path)
    if not name:
        raise InputError(f"FILE.py:NAME: saw {spec!r} without a name; wanted one of its own: {_candidates(module)}")
    found = _attribute(module, name, "FILE.py:NAME")
    arguments = dict(arguments or {})
    if isinstance(found, Estimator):
        if arguments:
            raise InputError(
                f"--arg, --model-dir, --target: {spec} is an Estimator, which is made already; name a function that takes "
                f"{', '.join(arguments)} and makes one"
            )
        return Located(found, module, name)
    if not callable(found) or isinstance(found, type):
        raise InputError(
            f"FILE.py:NAME: {spec} is {_a(found)}, wanted an Estimator or a function that makes one: {_candidates(module)}"
        )
    return Located(_make(found, spec, arguments, Estimator), module, name)


def parse_arguments(texts: Sequence[str], **named: Any) -> dict[str, Any]:
    """``["width=64", "name=x"]`` to ``{"width": 64, "name": "x"}``: Python literals, else strings.

    ``named`` are added where they are not None.

    Raises:
        InputError: no equals sign, or no name before it.
    """
    arguments: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--arg: saw {text!r}, wanted NAME=VALUE, as in --arg width=128")
        try:
            arguments[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[name] = value
    return arguments | {name: value for name, value in named.items() if value is not None}


def load_file(path: str) -> types.ModuleType:
    """Import a file by its path; its folder goes first on ``sys.path``, so that it can import its neighbours.

    Raises:
        InputError: it is not there, is no Python file, or importing it raises.
    """
    file = pathlib.Path(path).expanduser().resolve()
    if file.suffix != ".py":
        raise InputError(
            f"FILE.py:NAME: saw the file {path!r}, wanted a Python file and a name, as in model.py:estimator"
        )
    if not file.is_file():
        near = [f.name for f in file.parent.glob("*.py")] if file.parent.is_dir() else []
        close = difflib.get_close_matches(file.name, near, n=1)
        raise InputError(f"FILE.py:NAME: there is no file {path}" + (f"; nearest: {close[0]}" if close else ""))
    loaded = sys.modules.get(file.stem)
    if loaded is not None and _same_file(loaded, file):
        return loaded
    name = file.stem if loaded is None and file.stem.isidentifier() else f"systolic_file_{file.stem}"
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
    except Exception as error:
        del sys.modules[name]
        raise InputError(f"importing {path} raised {_told(error, file)}") from error
    return module


def _make(function: Any, spec: str, arguments: dict[str, Any], wanted: type) -> Any:
    """Call the user's function, with a clear message for each way in which that goes wrong."""
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if not takes_any and (unknown := [name for name in arguments if name not in parameters]):
        raise InputError(
            f"{spec} has no parameter {unknown[0]!r}; it takes {', '.join(parameters) or 'none'}. Add the parameter to the "
            "function, or leave the option out"
        )
    needed = [
        name
        for name, p in parameters.items()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and name not in arguments
    ]
    if needed:
        raise InputError(f"{spec} needs a value for {', '.join(needed)}; give --arg {needed[0]}=VALUE, or a default")
    try:
        made = function(**arguments)
    except SystolicError:
        raise
    except Exception as error:
        raise InputError(
            f"{spec} raised {_told(error, pathlib.Path(inspect.getsourcefile(function) or ''))}"
        ) from error
    if not isinstance(made, wanted):
        raise InputError(f"{spec} returned {_a(made)}, wanted an Estimator")
    return made


def _attribute(module: types.ModuleType, name: str, what: str) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    close = difflib.get_close_matches(name, _own_names(module), n=1)
    nearest = f"; nearest: {close[0]}" if close else ""
    raise InputError(f"{what}: {module.__file__} has no {name!r}{nearest}. It has {_candidates(module)}")


def _candidates(module: types.ModuleType) -> str:
    """Names worth trying: Estimators and functions that say they return one; where nothing says so, all functions."""
    names = _own_names(module)
    likely = [name for name in names if _makes_estimator(getattr(module, name))]
    return ", ".join((likely or names)[:12]) or "no names of its own"


def _makes_estimator(value: Any) -> bool:
    if not isinstance(value, types.FunctionType):
        return True
    return "Estimator" in str(value.__annotations__.get("return", "")) and "EstimatorSpec" not in str(
        value.__annotations__["return"]
    )


def _own_names(module: types.ModuleType) -> list[str]:
    """Public functions that the file defines, and Estimators."""
    from systolic.estimator import Estimator

    def own(value: Any) -> bool:
        if isinstance(value, Estimator):
            return True
        return isinstance(value, types.FunctionType) and value.__module__ == module.__name__

    return [name for name, value in vars(module).items() if not name.startswith("_") and own(value)]


def _same_file(module: types.ModuleType, file: pathlib.Path) -> bool:
    seen = getattr(module, "__file__", None)
    return seen is not None and pathlib.Path(seen).resolve() == file


def _told(error: Exception, file: pathlib.Path) -> str:
    """The error, and the line of the user's file where it came from."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.lineno is not None and pathlib.Path(frame.filename) == file
    ]
    if isinstance(error, SyntaxError) and error.lineno is not None:
        lines = [error.lineno]
    where = f" at line {lines[-1]} of {file.name}" if lines else ""
    return f"{type(error).__name__}{where}: {error} (--debug shows the traceback)"


def _a(value: Any) -> str:
    return f"a class {value.__name__}" if isinstance(value, type) else f"a value of type {type(value).__name__}"
