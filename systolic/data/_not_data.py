"""What is taken for data and is none: which part of it, and what to write instead."""

from __future__ import annotations

import array
import io
import numbers
import os
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Set, ValuesView
from typing import Any

import numpy as np

from systolic._errors import InputError

from ._messages import kind, label

_WANTED = (
    "an array, a dict or tuple of arrays, systolic.data.arrays(...), a Grain, tf.data or torch data set, or any iterable of "
    "examples or batches"
)


def check_iterable(source: Any) -> None:
    """InputError unless ``source`` can be iterated over, the same way each time."""
    if (advice := _advice(source)) is not None:
        raise InputError(f"input_fn: {kind(source)} seen; {_WANTED} wanted{advice}")


def _advice(source: Any) -> str | None:
    """What to do instead of giving this as a data set; None where it may be one."""
    if source is None:
        return ". Does input_fn end without a return?"
    if isinstance(source, str | bytes | bytearray | os.PathLike | io.IOBase):
        return ". Read the file in input_fn, and return or yield what is in it"
    if isinstance(source, Set | ValuesView):  # a dict's keys and items are sets, too
        return ". A set has no order of its own; return a list, or the dict itself"
    if isinstance(source, Awaitable | AsyncIterator):
        return ". Make input_fn an ordinary function, without async"
    if hasattr(source, "__iter__") or hasattr(source, "__next__"):
        return None
    if hasattr(source, "__getitem__"):
        return ". It has __getitem__ and no __len__: give it that, and it is read by number"
    return ""


def check_rows(name: str, leaf: Any) -> None:
    """InputError unless ``leaf``, of data in memory, has a leading dimension: one row for each example."""
    if isinstance(leaf, list | range | array.array):
        return
    if not getattr(leaf, "shape", ()):
        seen = "a scalar" if isinstance(leaf, numbers.Number) or hasattr(leaf, "shape") else kind(leaf)
        raise InputError(
            f"{label(name)}: {seen} seen, an array of shape (N, ...) with one row for each of N examples wanted. A dict or "
            "tuple is data in memory; to give examples one by one, yield them or return a list of them"
        )


def check_leaf(name: str, leaf: Any) -> None:
    """InputError for what is no dense array, number, string or object, and would lose its meaning if taken for one."""
    if isinstance(leaf, np.ma.MaskedArray):
        if np.ma.is_masked(leaf):
            raise InputError(
                f"{label(name)}: a masked array with {np.ma.count_masked(leaf)} masked values seen, an array of values wanted. "
                "Replace them, x.filled(value), and give the mask as a feature of its own if the model needs it"
            )
        return
    check_dense(name, leaf)
    if not hasattr(leaf, "__array__") and (callable(leaf) or isinstance(leaf, Iterable | AsyncIterator)):
        if isinstance(leaf, str | bytes | list | tuple):
            return
        raise InputError(
            f"{label(name)}: {kind(leaf)} seen, an array or a number wanted. Give what it holds, as in np.asarray(list(...)); "
            "a function or generator is for input_fn itself to return, not for one of its features"
        )


def check_dense(name: str, leaf: Any) -> None:
    """InputError for ragged and sparse tensors, some of which are containers of arrays to JAX."""
    if _is_sparse(leaf):
        raise InputError(
            f"{label(name)}: a {type(leaf).__name__} seen, a dense array of one shape for every example wanted. Make it dense "
            "or pad it in input_fn; of a matrix with few entries in a row, give ids and values, padded to one length"
        )


def _is_sparse(leaf: Any) -> bool:
    """Ragged and sparse tensors of TensorFlow and torch, SciPy's sparse matrices, JAX's BCOO and BCSR."""
    if type(leaf).__name__.startswith(("Ragged", "Sparse")) or (hasattr(leaf, "nnz") and hasattr(leaf, "toarray")):
        return True
    if hasattr(leaf, "detach"):
        return str(getattr(leaf, "layout", "torch.strided")) != "torch.strided" or getattr(leaf, "is_nested", False)
    return hasattr(leaf, "todense") and hasattr(leaf, "nse")


def check_pair(features: Any, labels: Any) -> None:
    """InputError for (index, row) pairs, which pandas yields and which look like (features, labels)."""
    if hasattr(labels, "iloc") and not isinstance(features, Mapping) and np.isscalar(features):
        raise InputError(
            f"input_fn: a pair of an index and a pandas {type(labels).__name__} seen, as iterrows() and groupby() yield it; a "
            "pair (features, labels) wanted. Return the data frame itself, or frame.itertuples(index=False)"
        )


def no_single_reading(shape: tuple[int, ...], mark: str) -> InputError:
    """The error for an element of one array, of which nothing tells whether it is an example or a batch."""
    return InputError(
        f"input_fn: an element of one array of shape {shape} seen, which may be one example of that shape or a batch of "
        f"{shape[0]} examples of shape {shape[1:]}. {mark}. (The elements of a list are read one by one; data in memory "
        "is an array, a dict or a tuple)"
    )


def not_a_pair(element: Any) -> InputError:
    """The error for a tuple of more than (features, labels)."""
    return InputError(
        f"input_fn: {kind(element)} seen; features, or a pair (features, labels), wanted. Put several inputs, and weights, "
        "into one dict of features, ({'a': ..., 'b': ..., 'weight': ...}, labels), or write ((a, b, c), None) for features "
        "alone; several examples go into a list"
    )
