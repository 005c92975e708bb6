"""What an ``input_fn`` may give, with the marks a user can put on it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable
from typing import Any

import numpy as np

from systolic._errors import InputError

from ._libraries import adapt
from ._tree import is_array_tree


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
    """A data set in memory; made by `arrays`."""

    tree: Any
    shuffle: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Marked:
    """A source of which is known whether its elements carry a batch dimension; made by `examples` and `batches`."""

    source: Any
    batched: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Shuffled:
    """A stream behind a shuffle buffer; made by `shuffle`."""

    source: Any
    buffer: int
    seed: int


def arrays(features: Any, labels: Any = None, *, shuffle: int | None = None) -> Arrays:
    """N examples in memory: the fastest source, and one that continues anywhere at once.

    Args:
        features: an array of shape [N, ...] or a dict or tuple of such; NumPy, JAX or torch. Must not be changed
            while in use: batches may be views of it.
        labels: the same for labels, or None.
        shuffle: seed; each epoch is then a new permutation, a function of (seed, epoch) alone (under one
            version of NumPy). None keeps the order.

    Example:
        >>> import numpy as np
        >>> from systolic import data
        >>> source = data.arrays({"x": np.arange(6)}, np.arange(6) % 2, shuffle=7)
        >>> batch = next(data.Batches(source, batch_size=4))
        >>> batch.features["x"].shape
        (4,)
    """
    _check_seed("shuffle", shuffle)
    return Arrays((features, labels), None if shuffle is None else int(shuffle))


def examples(source: Any) -> Marked:
    """Say that each element of an iterable, or of what a callable returns, is one example: no batch dimension."""
    return Marked(source, False)


def batches(source: Any) -> Marked:
    """Say that each element of an iterable, or of what a callable returns, is a batch: it leads with that dimension."""
    return Marked(source, True)


def shuffle(source: Any, buffer: int, seed: int) -> Shuffled:
    """Shuffle the examples of a stream through a buffer, also where its elements are batches.

    The order is a function of the source's own order, ``buffer``, ``seed`` and the epoch; it does not depend on the
    batch size. Continuing in mid-epoch reads the epoch again up to the position.

    Args:
        source: whatever an ``input_fn`` may return, or a callable.
        buffer: number of examples held, at least 2. An example comes out at most about ``buffer`` places early.
        seed: non-negative integer.
    """
    if isinstance(buffer, bool) or not isinstance(buffer, int | np.integer) or buffer < 2:
        raise InputError(f"buffer: {buffer!r} seen, an integer of at least 2 wanted: the number of examples held")
    _check_seed("seed", seed)
    if seed is None:
        raise InputError("seed: None seen, a non-negative integer wanted, so that a run can be continued exactly")
    return Shuffled(source, int(buffer), int(seed))


def obtain(input_fn: Any, epoch: int) -> tuple[Any, bool]:
    """(the source for this epoch, whether it is to be kept for later epochs).

    A callable is called, with ``epoch`` if it has a parameter of that name. Data in memory is kept unless the callable
    takes ``epoch``. Raises InputError, from the user's exception, if the callable raises.
    """
    if isinstance(input_fn, Marked | Shuffled):
        inner, keep = obtain(input_fn.source, epoch)
        return dataclasses.replace(input_fn, source=inner), keep
    if not callable(input_fn) or is_source(input_fn):
        return input_fn, True
    takes_epoch = _takes_epoch(input_fn)
    try:
        source = input_fn(epoch=epoch) if takes_epoch else input_fn()
    except Exception as error:
        raise InputError(f"input_fn raised {type(error).__name__} when called for epoch {epoch}: {error}") from error
    if isinstance(source, Marked | Shuffled) or (callable(source) and not is_source(source)):
        return obtain(source, epoch)[0], False
    in_memory = isinstance(source, Arrays) or is_array_tree(source)
    return source, in_memory and not takes_epoch


def is_source(value: Any) -> bool:
    """Whether a value is itself data, as against a function that makes data."""
    return isinstance(value, Arrays | Iterable) or is_array_tree(value) or adapt(value, 0) is not None


def is_iterator(source: Any) -> bool:
    """Whether a source, or what its marks are on, is an iterator: it can be read once."""
    while isinstance(source, Marked | Shuffled):
        source = source.source
    return hasattr(source, "__next__")


def _takes_epoch(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in callables have no signature
        return False
    by_name = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    required = [p.name for p in parameters if p.default is p.empty and p.kind in by_name and p.name != "epoch"]
    if required:
        raise InputError(
            f"input_fn: it needs the argument {required[0]!r}; a function without arguments, or one named 'epoch', "
            "wanted. Bind the others: functools.partial(input_fn, ...)"
        )
    return any(p.name == "epoch" for p in parameters)


def _check_seed(name: str, seed: Any) -> None:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64):
        raise InputError(f"{name}: {seed!r} seen, a non-negative integer below 2**64 (the seed) wanted")
