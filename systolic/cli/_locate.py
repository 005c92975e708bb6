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
import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any

from systolic._errors import InputError, SystolicError
from systolic.cli._user_file import attribute, load_file, told
from systolic.cli._user_names import names_in

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
            if not name:
                raise InputError(f"--data: saw {named!r}, wanted [FILE.py:]NAME")
            return attribute(load_file(path, "--data") if path else self.module, name, "--data")
        tried = []
        for kind in _ROLES[role]:
            for name in (f"{self.name}_{kind}_input_fn", f"{kind}_input_fn"):
                if hasattr(self.module, name):
                    return getattr(self.module, name)
                tried.append(name)
        raise InputError(
            f"{self.module.__file__} has no input function for {self.name}: looked for {', '.join(tried)}. Define one of "
            f"them, or name one with --data [FILE.py:]NAME. {names_in(self.module)}"
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

    path, name = _parted(spec)
    module = load_file(path)
    if not name:
        raise InputError(f"FILE.py:NAME: saw {spec!r} without a name, wanted one of an Estimator. {names_in(module)}")
    if not name.isidentifier():
        raise InputError(f"FILE.py:NAME: saw the name {name!r}, wanted one name, of an Estimator. {names_in(module)}")
    found = attribute(module, name, "FILE.py:NAME")
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
            f"FILE.py:NAME: {spec} is {_a(found)}, wanted an Estimator or a function that makes one. {names_in(module)}"
        )
    return Located(_make(found, spec, arguments, Estimator, module), module, name)


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


def _parted(spec: str) -> tuple[str, str]:
    """File and name; a file's name may hold colons too, but ends in ``.py``."""
    path, dot, name = spec.rpartition(".py:")
    if dot:
        return path + ".py", name
    path, _, name = spec.rpartition(":")
    return (path, name) if path and not name.endswith(".py") else (spec.rstrip(":"), "")


def _make(function: Any, spec: str, arguments: dict[str, Any], wanted: type, module: types.ModuleType) -> Any:
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
        raise InputError(
            f"{spec} needs a value for {', '.join(needed)}; give --arg {needed[0]}=VALUE, or a default. {names_in(module)}"
        )
    try:
        made = function(**arguments)
    except SystolicError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{spec} {told(error, inspect.getsourcefile(function) or '')}") from error
    if not isinstance(made, wanted):
        raise InputError(f"{spec} returned {_a(made)}, wanted an Estimator. {names_in(module)}")
    return made


def _a(value: Any) -> str:
    return f"a class {value.__name__}" if isinstance(value, type) else f"a value of type {type(value).__name__}"
