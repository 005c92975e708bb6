"""Large arrays that a function closes over: they become part of the program, where nobody expects them.

Such a constant is written into the module, compiled in, held by every executable beside the original, and is part of the
key of every cache: slow compiles and memory that no argument explains.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from systolic._private_jax import user_line

_LARGE = 64 << 20  # bytes over all constants of a program
_SHOWN = 5
_MIB = 1 << 20


def large_constants(traced: Any, fn: Callable[..., Any]) -> str | None:
    """A notice about the arrays that a traced program closes over; ``None`` below 64 MiB in all.

    Args:
        traced: ``jax.stages.Traced`` of the program.
        fn: the user's function, to find the names in.
    """
    constants, lines = _constants(traced.jaxpr)
    total = sum(map(_size, constants))
    if total <= _LARGE:
        return None
    names = dict(_closed_over(fn))
    largest = sorted(constants, key=lambda value: -_size(value))[:_SHOWN]
    shown = ", ".join(_described(value, names.get(_buffer(value)), lines.get(_buffer(value))) for value in largest)
    more = f" and {len(constants) - _SHOWN} smaller" if len(constants) > _SHOWN else ""
    return (
        f"{total / _MIB:.1f} MiB of arrays are closed over and become constants of the program: {shown}{more}; pass them as "
        "arguments (or keep them in the model), so that they are not compiled in and held twice"
    )


def _described(value: Any, name: str | None, line: str | None) -> str:
    kind = f"{np.dtype(value.dtype).name}[{','.join(map(str, value.shape))}] of {_size(value) / _MIB:.1f} MiB"
    return (f"{name}: " if name else "") + kind + (f", used at {line}" if line else "")


def _constants(jaxpr: Any) -> tuple[list[Any], dict[tuple, str | None]]:
    """The constants of a jaxpr and of those inside it, each once, and by buffer the line of their first use."""
    found: dict[tuple, Any] = {}
    lines: dict[tuple, str | None] = {}
    waiting = [jaxpr]
    while waiting:
        jaxpr = waiting.pop()
        inner = getattr(jaxpr, "jaxpr", jaxpr)  # one class since JAX 0.12
        held = {}
        for variable, value in zip(inner.constvars, getattr(jaxpr, "consts", ()), strict=False):
            if _size(value):
                held[variable] = _buffer(value)
                found[held[variable]] = value
        for equation in inner.eqns:
            for variable in equation.invars:
                literal = hasattr(variable, "val")  # a value in the place of a variable, and not hashable
                if not literal and (buffer := held.get(variable)) is not None:
                    lines.setdefault(buffer, user_line(equation.source_info))
            for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
                if hasattr(value, "eqns"):
                    waiting.append(value)
    return list(found.values()), lines


def _size(value: Any) -> int:
    return int(getattr(value, "nbytes", 0) or 0)


def _buffer(value: Any) -> tuple:
    """What two views of one array have in common: JAX wraps NumPy arrays, and keeps its own as they are."""
    if isinstance(value, jax.Array):
        return ("device", id(value))
    array = np.asarray(value)
    return ("host", array.__array_interface__["data"][0], array.nbytes)


def _closed_over(fn: Any) -> Iterator[tuple[tuple, str]]:
    """(buffer, name) of the arrays in the variables that ``fn``, and the functions it closes over, can see."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", fn)]
    while waiting:
        prefix, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray | jax.Array):
            yield _buffer(value), prefix
        elif isinstance(value, functools.partial):
            waiting += [(prefix, value.func), *((f"{prefix}{key}", item) for key, item in value.keywords.items())]
            waiting += [(f"{prefix}args[{i}]", item) for i, item in enumerate(value.args)]
        elif isinstance(value, types.MethodType):
            waiting += [("", value.__func__), ("self", value.__self__)]
        elif isinstance(value, types.FunctionType):
            waiting += [(name, item) for name, item in _variables(value)]
        elif callable(wrapped := getattr(value, "__wrapped__", None)):
            waiting.append((prefix, wrapped))
        else:
            yield from _arrays(prefix, value)


def _variables(fn: types.FunctionType) -> list[tuple[str, Any]]:
    found = []
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            found.append((name, cell.cell_contents))
        except ValueError:  # not assigned yet
            continue
    codes = [fn.__code__]
    while codes:
        code = codes.pop()
        found += [(name, fn.__globals__[name]) for name in code.co_names if name in fn.__globals__]
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return [(name, value) for name, value in found if not isinstance(value, types.ModuleType | type)]


def _arrays(name: str, value: Any) -> Iterator[tuple[tuple, str]]:
    """Arrays in a pytree, or in the attributes of an object that is none."""
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and jax.tree_util.all_leaves([value]):
        value = {**vars(type(value)), **attributes}
        value = {
            key: item for key, item in value.items() if isinstance(item, np.ndarray | jax.Array | dict | list | tuple)
        }
        joint = "."
    else:
        joint = ""
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        if isinstance(leaf, np.ndarray | jax.Array) and not isinstance(leaf, jax.core.Tracer):
            place = jax.tree_util.keystr(path, simple=True, separator="/") if path else ""
            yield _buffer(leaf), f"{name}{joint or '/'}{place}" if place else name
