"""The static signature of a call: a name, shape and dtype for every leaf."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from systolic._errors import InputError


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a signature: ``path`` such as ``state/params/kernel``, ``shape`` (sizes), ``dtype`` (name)."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    weak: bool = False

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]" + (" (weak type)" if self.weak else "")


@dataclasses.dataclass(frozen=True)
class Signature:
    """The leaves of all arguments in order, and the tree that holds them.

    Two calls with equal signatures run the same executable. Weak types (Python scalars) are recorded so that an error
    can mention them, and do not take part in equality.
    """

    leaves: tuple[Leaf, ...]
    structure: Any

    @classmethod
    def of(cls, args: Sequence[Any], names: Sequence[str]) -> Signature:
        """The signature of ``args`` (pytrees of arrays, scalars or ShapeDtypeStructs), named by ``names``."""
        flat, structure = jax.tree.flatten(tuple(args))
        paths = leaf_names(args, names)
        return cls(tuple(_leaf(path, value) for path, value in zip(paths, flat, strict=True)), structure)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Signature) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple:
        return (tuple((leaf.shape, leaf.dtype) for leaf in self.leaves), self.structure)

    def difference(self, other: Signature) -> list[str]:
        """One line per leaf that is not the same in ``other``: the argument, what it was, what it is now."""
        mine = {leaf.path: leaf for leaf in self.leaves}
        theirs = {leaf.path: leaf for leaf in other.leaves}
        lines = [
            f"{path}: was {leaf}, now {theirs[path]}"
            for path, leaf in mine.items()
            if path in theirs and (leaf.shape, leaf.dtype) != (theirs[path].shape, theirs[path].dtype)
        ]
        lines += [f"{path}: was {leaf}, now missing" for path, leaf in mine.items() if path not in theirs]
        lines += [f"{path}: new, {leaf}" for path, leaf in theirs.items() if path not in mine]
        if not lines and self.structure != other.structure:
            lines = [f"the tree of the arguments: was {self.structure}, now {other.structure}"]
        return lines


def signature(args: Sequence[Any], names: Sequence[str] | None = None) -> Signature:
    """The static signature of a sequence of arguments; ``names`` defaults to ``arg0``, ``arg1``, ...

    Example:
        >>> print(*signature((np.zeros((2, 3), "float32"), 1.0), ("x", "scale")).leaves)
        float32[2,3] float32[] (weak type)
    """
    return Signature.of(args, names or [f"arg{i}" for i in range(len(args))])


def leaf_names(args: Sequence[Any], names: Sequence[str]) -> list[str]:
    """The path of every leaf of ``args`` in flattening order: ``state/params/conv1/kernel``."""
    out = []
    for name, arg in zip(names, args, strict=True):
        for path, _ in jax.tree_util.tree_leaves_with_path(arg):
            out.append("/".join([name, *(_key_name(key) for key in path)]))
    return out


def argument_names(fn: Callable, count: int) -> list[str]:
    """Names of the first ``count`` positional parameters of ``fn``; ``argN`` where it has none of its own."""
    try:
        parameters = [
            p.name
            for p in inspect.signature(fn).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):  # built-ins have no signature to read
        parameters = []
    return [parameters[i] if i < len(parameters) else f"arg{i}" for i in range(count)]


def strong_structs(tree: Any) -> Any:
    """``tree`` with every leaf as a ShapeDtypeStruct that is not weakly typed (64-bit types canonicalised)."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(*_shape_dtype(x)), tree)


def _leaf(path: str, value: Any) -> Leaf:
    try:
        shape, dtype = _shape_dtype(value)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"argument {path}: saw {_kind(value)}, wanted an array of numbers, a number, or a jax.ShapeDtypeStruct; leave "
            "what is no number out of the program, or give it as an index or a key"
        ) from error
    if any(not isinstance(size, int) or size < 0 for size in shape):
        raise InputError(f"argument {path}: saw the shape {shape}, wanted static sizes, whole numbers of at least 0")
    weak = isinstance(value, bool | int | float | complex) or bool(getattr(value, "weak_type", False))
    return Leaf(
        path, shape, np.dtype(dtype).name if not jax.dtypes.issubdtype(dtype, jax.dtypes.extended) else str(dtype), weak
    )


def _shape_dtype(value: Any) -> tuple[tuple[int, ...], Any]:
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        dtype = np.asarray(value).dtype
    if not jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        dtype = np.dtype(dtype)
        if dtype.kind not in "biufc" and dtype.isbuiltin != 2:  # 2: bfloat16, float8, int4, which NumPy calls void
            raise TypeError(f"dtype {dtype}")
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return tuple(np.shape(value)), dtype


def _kind(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return type(value).__name__ if dtype is None else f"{type(value).__name__} of dtype {dtype}"


def _key_name(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key).strip(".[]'\"")
