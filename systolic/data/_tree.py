"""From whatever one element is to dicts and tuples of NumPy arrays.

Nothing is imported to recognise a library's tensors: torch and TensorFlow tensors are known by their own methods, so
that a user without them pays nothing.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from systolic._errors import InputError

from ._messages import label
from ._not_data import check_dense, check_leaf, check_pair, not_a_pair

_SCALARS = (bool, int, float, complex, str, bytes, np.generic)


def split(element: Any) -> tuple[Any, Any]:
    """(features, labels) of one element, labels None where there are none.

    A pair is (features, labels), also as a list (what torch collates) or as a named tuple of just these two names; a
    one-tuple is its only item; longer tuples and lists of arrays are refused; anything else is features.
    """
    if not isinstance(element, tuple | list) or (isinstance(element, list) and _is_array_like_list(element)):
        return element, None
    if getattr(element, "_fields", ("features", "labels")) != ("features", "labels"):
        return element, None
    if len(element) == 2:
        check_pair(*element)
        return element[0], element[1]
    if len(element) > 2:
        raise not_a_pair(element)
    return (element[0] if element else element), None


def canonical(tree: Any, root: str) -> Any:
    """The same tree of dicts, tuples and leaves: mappings and named tuples become dicts, lists of numbers arrays."""
    if tree is None:
        return None
    if is_data_frame(tree):
        tree = _columns(tree, root)
    elif getattr(getattr(tree, "dtype", None), "names", None):  # a structured array
        tree = {name: tree[name] for name in tree.dtype.names}
    if isinstance(tree, Mapping):
        for name in tree:
            if not isinstance(name, str):
                raise InputError(
                    f"{root}: the name {name!r} ({type(name).__name__}) seen; feature names are strings. Rename it, as in "
                    "{str(name): value for name, value in features.items()}, or frame.rename(columns=str)"
                )
        return {name: canonical(child, _join(root, name)) for name, child in tree.items()}
    if hasattr(tree, "_fields") and isinstance(tree, tuple):
        return {name: canonical(child, _join(root, name)) for name, child in zip(tree._fields, tree)}
    if isinstance(tree, tuple):
        return tuple(canonical(child, _join(root, str(i))) for i, child in enumerate(tree))
    if isinstance(tree, list):
        if _is_array_like_list(tree):
            return to_numpy(tree, root)
        return tuple(canonical(child, _join(root, str(i))) for i, child in enumerate(tree))
    check_dense(root, tree)
    return tree


def to_numpy(leaf: Any, name: str) -> np.ndarray:
    """One leaf as a NumPy array; strings, bytes and unknown objects as an object array.

    Raises InputError for what is no dense array or has no NumPy type: ragged, sparse, masked, an iterator, an integer
    beyond 64 bits.
    """
    if type(leaf) is np.ndarray:
        return leaf
    if isinstance(leaf, range | memoryview | array.array):
        leaf = np.asarray(leaf)
    check_leaf(name, leaf)
    if isinstance(leaf, str | bytes):  # np.asarray would strip trailing zero bytes
        return _object(leaf)
    if isinstance(leaf, list | tuple):
        return _from_list(leaf, name)
    try:
        found = _converted(leaf)
    except Exception as error:
        raise InputError(
            f"{label(name)}: a {type(leaf).__name__} seen that does not become a NumPy array ({error}). Convert it in input_fn"
        ) from error
    if isinstance(leaf, int) and found.dtype == object:
        raise InputError(f"{label(name)}: the value {leaf} does not fit 64 bits. As a string it would stay on the host")
    return found


def _converted(leaf: Any) -> np.ndarray:
    if hasattr(leaf, "detach"):
        return _from_torch(leaf)
    if hasattr(leaf, "numpy"):
        return np.asarray(leaf.numpy())
    if isinstance(leaf, _SCALARS) or hasattr(leaf, "__array__") or hasattr(leaf, "__array_interface__"):
        return np.asarray(leaf)
    return _object(leaf)


def is_array_like(value: Any) -> bool:
    """Whether this is one array: NumPy, JAX, torch or TensorFlow, or a list of numbers or strings."""
    if isinstance(value, list):
        return _is_array_like_list(value)
    return isinstance(value, np.ndarray) or (hasattr(value, "shape") and hasattr(value, "dtype"))


def is_data_frame(value: Any) -> bool:
    """Whether this is a pandas or polars data frame: named columns in memory."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy") and not isinstance(value, type)


def is_array_tree(value: Any) -> bool:
    """Whether this is a dict, tuple or nesting of arrays, and nothing else: a data set in memory."""
    if isinstance(value, Mapping | tuple):
        children = list(value.values()) if isinstance(value, Mapping) else list(value)
        return bool(children) and all(
            child is None or is_array_tree(tuple(child) if _is_list_of_arrays(child) else child) for child in children
        )
    return is_array_like(value) or is_data_frame(value)


def is_in_memory(value: Any) -> bool:
    """Whether this is read as rows of arrays, as against element by element: a list is not, whatever it holds."""
    if isinstance(value, list):
        return False
    return isinstance(value, Mapping | tuple) or is_array_like(value) or is_data_frame(value)


def _columns(frame: Any, root: str) -> dict[str, np.ndarray]:
    names = list(frame.columns)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{root}: two columns called {twice!r} seen in a {type(frame).__name__}; rename one of them")
    return {name: frame[name].to_numpy() for name in names}


def _join(root: str, name: str) -> str:
    return name if root == "features" else f"{root}/{name}"


def _is_array_like_list(items: list) -> bool:
    """Lists (of lists) of numbers or strings; looks at the first item of each level only."""
    while isinstance(items, list) and items:
        items = items[0]
    return isinstance(items, (list, *_SCALARS))


def _is_list_of_arrays(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(hasattr(item, "shape") for item in value)


def _from_list(items: list | tuple, name: str) -> np.ndarray:
    try:
        array = np.asarray(items)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise InputError(
            f"{label(name)} is ragged: a nested list whose parts differ in length seen, a rectangular one wanted. "
            "Pad each example to one length in input_fn"
        ) from None
    if array.dtype.kind in "US":
        objects = np.empty(array.shape, object)
        flat = list(items)
        for _ in range(array.ndim - 1):
            flat = [item for part in flat for item in part]
        objects.reshape(-1)[:] = flat
        return objects
    return array


def _from_torch(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # torch has no NumPy type for it
        return tensor.view(sys.modules["torch"].int16).numpy().view(np.dtype("bfloat16"))
    return np.asarray(tensor.numpy())


def _object(value: Any) -> np.ndarray:
    array = np.empty((), object)
    array[()] = value
    return array
