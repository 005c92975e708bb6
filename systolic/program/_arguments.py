"""What a Program is given, looked at when it is made: each mistake is named here, not in a trace of JAX's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from systolic._errors import InputError
from systolic.program._signature import leaf_names
from systolic.target import check_axes


def check_function(fn: Any, count: int) -> None:
    """Refuse what cannot be called with ``count`` arguments."""
    if not callable(fn):
        raise InputError(
            f"Program(fn): saw {type(fn).__name__}, wanted a function; pass the function itself, not its result"
        )
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # built-ins have no signature to read
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise InputError(
            f"Program(example): {count} example argument{'' if count == 1 else 's'} given to a function of {signature}: "
            f"{error}; give one example (an array or a jax.ShapeDtypeStruct, or a pytree of them) per argument"
        ) from None


def checked_name(fn: Callable[..., Any], name: Any) -> str:
    """The name given, else the function's."""
    if name is None:
        return getattr(fn, "__name__", "program").strip("<>")
    if not isinstance(name, str) or not name.strip():
        raise InputError(
            f"Program(name): saw {name!r}, wanted a string that is not empty, or None for the function's name"
        )
    return name


def checked_donate(donate: Any, names: Sequence[str]) -> tuple[int, ...]:
    """Positions of donated arguments, in order."""
    wanted = (
        f"wanted positions of arguments, 0 to {len(names) - 1} ({', '.join(names)})"
        if names
        else "no argument is there"
    )
    if isinstance(donate, str | bytes | Mapping) or not hasattr(donate, "__iter__"):
        raise InputError(f"Program(donate): saw {donate!r}, {wanted}, as in donate=(0,)")
    positions = list(donate)
    for position in positions:
        if isinstance(position, bool) or not hasattr(type(position), "__index__"):
            hint = f"; {position!r} is position {list(names).index(position)}" if position in names else ""
            raise InputError(f"Program(donate): saw {position!r} in {donate!r}, {wanted}{hint}")
        if not 0 <= position < len(names):
            raise InputError(f"Program(donate): saw position {position}, {wanted}; count from the first argument")
    return tuple(sorted({int(position) for position in positions}))


def checked_axes(axes: Any) -> dict[str, int]:
    """Mesh axes and sizes; one axis ``data`` over all devices where none are given.

    Raises:
        TargetError: as :func:`systolic.target.check_axes`.
    """
    return {"data": -1} if axes is None else check_axes(axes)


def checked_specs(specs: Any, example: Sequence[Any], names: Sequence[str]) -> tuple[Any, ...]:
    """One pytree prefix of ``PartitionSpec`` per argument; ``None``, anywhere in it, is a replicated part."""
    if specs is None:
        return (PartitionSpec(),) * len(example)
    if isinstance(specs, PartitionSpec) or not isinstance(specs, tuple | list):
        raise InputError(
            f"Program(in_specs): saw {specs!r}, wanted a tuple with one pytree prefix of PartitionSpec per argument "
            f"({', '.join(names)})"
        )
    if len(specs) != len(example):
        raise InputError(
            f"Program(in_specs): saw {len(specs)} specs for {len(example)} arguments; give one pytree prefix per argument"
        )
    return tuple(
        _checked_spec(f"in_specs[{i}], of argument {name}", spec, argument)
        for i, (name, spec, argument) in enumerate(zip(names, specs, example, strict=True))
    )


def checked_out_specs(specs: Any) -> Any:
    """A pytree of ``PartitionSpec`` and ``None``."""
    for leaf in jax.tree.leaves(specs, is_leaf=_is_spec):
        _check_leaf("out_specs", leaf)
    return specs


def check_result(program: str, specs: Any, result: Any) -> None:
    """Refuse out_specs that are no prefix of what the function returned.

    Raises:
        InputError: it shows both trees.
    """
    if specs is None:
        return
    try:
        jax.tree.broadcast(specs, result, is_leaf=_is_spec)
    except ValueError:
        raise InputError(
            f"program {program!r}: Program(out_specs) {specs!r} is no pytree prefix of the result, which is "
            f"{jax.tree.structure(result)}; give one PartitionSpec for all of it, or one for each part"
        ) from None


def check_count(program: str, args: Sequence[Any], names: Sequence[str]) -> None:
    """Refuse a call with too few or too many arguments."""
    if len(args) != len(names):
        raise InputError(
            f"program {program!r}: called with {len(args)} arguments, wanted {len(names)} ({', '.join(names) or 'none'})"
        )


def _checked_spec(where: str, spec: Any, argument: Any) -> Any:
    for leaf in jax.tree.leaves(spec, is_leaf=_is_spec):
        _check_leaf(where, leaf)
    spec = jax.tree.map(lambda leaf: PartitionSpec() if leaf is None else leaf, spec, is_leaf=_is_spec)
    try:
        jax.tree.broadcast(spec, argument, is_leaf=_is_spec)
    except ValueError:
        paths = ", ".join(
            path or "the argument itself" for path in (p.partition("/")[2] for p in leaf_names([argument], [""]))
        )
        raise InputError(
            f"Program({where}): saw {spec!r}, which is no pytree prefix of the argument; its arrays are {paths}; give one "
            "PartitionSpec for all of it, or a tree like it"
        ) from None
    return spec


def _check_leaf(where: str, leaf: Any) -> None:
    if not _is_spec(leaf):
        raise InputError(
            f"Program({where}): saw {leaf!r} ({type(leaf).__name__}), wanted a jax.sharding.PartitionSpec such as "
            "PartitionSpec('data'), or None"
        )
    used = [axis for entry in leaf or () for axis in (entry if isinstance(entry, tuple) else (entry,))]
    for axis in used:
        if axis is not None and not isinstance(axis, str):
            raise InputError(f"Program({where}): saw {axis!r} in {leaf!r}, wanted names of mesh axes or None")
        if axis is not None and used.count(axis) > 1:
            raise InputError(
                f"Program({where}): saw axis {axis!r} twice in {leaf!r}; an array is laid out over a mesh axis once"
            )


def _is_spec(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec)
