"""The names in a user's file that a command can do something with, told where one is missing."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

from systolic._source import is_users_file

_MOST = 12


def own_names(module: types.ModuleType) -> list[str]:
    """Public Estimators and functions of the file, those included that it imports from other files of the user's."""
    return [name for name, value in vars(module).items() if not name.startswith("_") and _is_own(value)]


def names_in(module: types.ModuleType) -> str:
    """All of them, a line for each use: ``It has``, ``Estimators: made``, ``functions that make one: line`` and so on.

    Where a function says what it returns, that counts; of the others, each may make an Estimator.
    """
    groups: dict[str, list[str]] = {
        "Estimators": [],
        "functions that make one": [],
        "input functions": [],
        "other functions": [],
    }
    for name in own_names(module):
        value = getattr(module, name)
        groups[_group(name, value)].append(name + _needed(value))
    told = [f"\n  {group}: {_some(names)}" for group, names in groups.items() if names]
    return f"It has{''.join(told)}" if told else "It has no names of its own"


def _group(name: str, value: Any) -> str:
    if not isinstance(value, types.FunctionType):
        return "Estimators"
    returned = str(value.__annotations__.get("return", ""))
    if "Estimator" in returned and "EstimatorSpec" not in returned:
        return "functions that make one"
    return "input functions" if name.endswith("input_fn") else "other functions"


def _is_own(value: Any) -> bool:
    from systolic.estimator import Estimator

    if isinstance(value, Estimator):
        return True
    if not isinstance(value, types.FunctionType):
        return False
    home = getattr(sys.modules.get(value.__module__), "__file__", None) or value.__code__.co_filename
    return is_users_file(home)


def _needed(value: Any) -> str:
    """The parameters that must be given, in parentheses; empty where there are none."""
    if not isinstance(value, types.FunctionType):
        return ""
    parameters = inspect.signature(value).parameters.values()
    names = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return f"({', '.join(names)})" if names else ""


def _some(names: list[str]) -> str:
    return ", ".join(names[:_MOST]) + (f" and {len(names) - _MOST} more" if len(names) > _MOST else "")
