"""Which dtype a feature has on the host, in transit and on the device, and how it gets there.

64-bit integers and floats become 32-bit at the door, checked so that no value changes unseen. Small integers travel as
they are and become int32 on the device, where `to_device_dtypes` is part of the compiled program. Strings, bytes,
objects and dates cannot go to a device: they stay on the host.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from systolic._errors import InputError
from systolic._ranges import first_misfit

from ._spec import FeatureSpec, without_host_only

OBJECT = np.dtype(object)
_TRAVELS_AS = {
    "i": {1: "int8", 2: "int16", 4: "int32", 8: "int32"},
    "u": {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint32"},
    "f": {2: "float16", 4: "float32", 8: "float32", 12: "float32", 16: "float32"},
    "c": {8: "complex64", 16: "complex64", 32: "complex64"},
}
_SMALL_INTEGERS = frozenset(map(np.dtype, ("int8", "uint8", "int16", "uint16")))

Cast = Callable[[np.ndarray, Callable[[int], str]], np.ndarray]
"""(array, describe) to array; ``describe(row)`` names the example in a message."""


def is_host_only(dtype: np.dtype) -> bool:
    """Whether no device can hold this dtype. Registered extension types (bfloat16, float8, int4) can be held."""
    return dtype.kind not in "biufc" and dtype.isbuiltin != 2


def host_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which a feature seen as ``dtype`` leaves the host."""
    if is_host_only(dtype):
        return OBJECT
    if dtype.isbuiltin == 2 or dtype.kind == "b":
        return dtype
    return np.dtype(_TRAVELS_AS[dtype.kind][dtype.itemsize])


def device_dtype(host: np.dtype) -> np.dtype | None:
    """The dtype the model sees for a feature that travels as ``host``; None for one that does not travel."""
    if host == OBJECT:
        return None
    return np.dtype("int32") if host in _SMALL_INTEGERS else host


def feature_spec(shape: tuple[int, ...], seen: np.dtype) -> FeatureSpec:
    host = host_dtype(seen)
    return FeatureSpec(shape, host, device_dtype(host))


def cast_notice(name: str, seen: np.dtype, spec: FeatureSpec) -> str | None:
    """What to tell the user, once, about the dtypes of a feature; None where nothing changes."""
    if spec.host_only:
        what = "strings or objects" if seen == OBJECT else f"{seen} values"
        return f"{name}: {what} cannot go to a device; they stay on the host and come back with predictions"
    steps = [str(seen)]
    for dtype in (spec.dtype_host, spec.dtype_device):
        if str(dtype) != steps[-1]:
            steps.append(str(dtype))
    if len(steps) == 1:
        return None
    checked = " (values are checked to fit)" if seen != spec.dtype_host else " (on the device; it travels as it is)"
    return f"{name}: {' becomes '.join(steps)}{checked}"


def find_cast(seen: np.dtype, wanted: np.dtype) -> Cast | None:
    """How to get from ``seen`` to ``wanted`` without changing a value; None where there is nothing to do.

    Raises TypeError where no faithful cast exists (the caller knows the name and the example).
    """
    if seen == wanted and seen != OBJECT:
        return None
    if wanted == OBJECT:
        return _to_objects if is_host_only(seen) else _refuse(seen, wanted)
    if is_host_only(seen):
        return _refuse(seen, wanted)
    if seen.kind in "iu" and wanted.kind in "iu" and not np.can_cast(seen, wanted, "safe"):
        return _Narrow(wanted)
    if np.can_cast(seen, wanted, "safe"):
        return lambda array, describe: array.astype(wanted)
    if host_dtype(seen) == wanted:
        return _Round(wanted)
    return _refuse(seen, wanted)


def cast_scalar(leaf: Any, wanted: np.dtype, cast: Cast | None) -> Cast | None:
    """The cast for a Python or NumPy scalar that is about to be stored in an array of ``wanted``; None: store it as is.

    Storing casts without a check, so what an array would be checked for is checked here, without making an array.
    """
    if isinstance(leaf, str | bytes) or type(leaf) is bool:
        return None
    if wanted.kind in "iu" and isinstance(leaf, int | np.integer):
        narrow = cast if isinstance(cast, _Narrow) else _Narrow(wanted)
        return lambda value, describe: (
            value if narrow.low <= value <= narrow.high else narrow(np.asarray(value), describe)
        )
    if wanted == np.float32 and isinstance(leaf, float):
        largest = float(np.finfo(np.float32).max)
        rounds = _Round(wanted)
        return lambda value, describe: value if -largest <= value <= largest else rounds(np.asarray(value), describe)
    if cast is None:
        return None
    return lambda value, describe: cast(np.asarray(value), describe)


def to_device_dtypes(tree: Any, spec: Any) -> Any:
    """Cast features (or labels) as they arrived to the dtypes the model sees; call it inside the compiled program.

    Args:
        tree: pytree of arrays with any leading dimensions, as in `Batch.features`.
        spec: the matching pytree of `FeatureSpec`, as in `ElementSpec.features`; host-only entries are ignored.
    """
    return jax.tree.map(lambda leaf, feature: leaf.astype(feature.dtype_device), tree, without_host_only(spec))


def _refuse(seen: np.dtype, wanted: np.dtype) -> Any:
    raise TypeError(f"dtype {seen} seen, {wanted} expected")


class _Narrow:
    """Integers into a smaller integer type, after looking at the smallest and the largest."""

    def __init__(self, wanted: np.dtype) -> None:
        info = np.iinfo(wanted)
        self.wanted, self.low, self.high = wanted, int(info.min), int(info.max)

    def __call__(self, array: np.ndarray, describe: Callable[[int], str]) -> np.ndarray:
        if (index := first_misfit(array, self.wanted)) is not None:
            raise InputError(
                f"{describe(index[0] if index else 0)}: the value {array[index]} does not fit {self.wanted}, which holds "
                f"{self.low} to {self.high}. Map it into that range in input_fn (hash or re-number it), or give it "
                "as a string to keep it on the host"
            )
        return array.astype(self.wanted)


class _Round:
    """Floats into a smaller float type; a finite value that would become infinite is an error."""

    def __init__(self, wanted: np.dtype) -> None:
        self.wanted = wanted

    def __call__(self, array: np.ndarray, describe: Callable[[int], str]) -> np.ndarray:
        try:
            with np.errstate(over="raise", under="ignore", invalid="ignore"):
                return array.astype(self.wanted)
        except FloatingPointError:
            index = first_misfit(array, self.wanted) or ()
            raise InputError(
                f"{describe(index[0] if index else 0)}: the value {array[index]} does not fit {self.wanted}. Scale it in input_fn"
            ) from None


def _to_objects(array: np.ndarray, describe: Callable[[int], str]) -> np.ndarray:
    first = array.flat[0] if array.dtype == OBJECT and array.size else None
    if isinstance(first, np.ndarray | list | tuple | numbers.Number) and not isinstance(first, bool):
        remedy = "Where the examples differ in length the feature is ragged: pad each to one length in input_fn"
        if isinstance(first, numbers.Number):
            remedy = "Make it one, as in np.asarray(values, np.float32), in input_fn"
        raise InputError(
            f"{describe(0)}: an object array of {type(first).__name__} seen; a rectangular array of numbers wanted. {remedy}"
        )
    if array.ndim == 0:
        return array[()]  # the object itself: stored as a 0-d array it would stay one
    if array.dtype == OBJECT:
        return array
    objects = np.empty(array.shape, OBJECT)
    if array.dtype.kind in "mM":  # astype(object) would turn nanoseconds into plain integers
        objects.reshape(-1)[:] = list(array.reshape(-1))
        return objects
    objects[...] = array
    return objects
