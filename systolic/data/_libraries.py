"""Grain, tf.data and torch, known by the names of their classes and never imported.

Each adapter says whether elements are batches (None where the library does not tell) and how to start an epoch at an
element.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Stream:
    """One epoch of elements.

    Args:
        start: start(skip) gives an iterator over the elements after the first ``skip``.
        batched: whether elements are batches; None where that is not known.
        caution: what the user should be told about continuing a run on this data, or None.
    """

    start: Callable[[int], Iterator[Any]]
    batched: bool | None = None
    caution: str | None = None


def adapt(source: Any, epoch: int) -> Stream | None:
    """The stream of one epoch of a data set of a known library; None for anything else."""
    if isinstance(source, type):  # a class is a function that makes data, whatever methods its instances have
        return None
    modules = {cls.__module__.split(".")[0] for cls in type(source).__mro__}
    if "grain" in modules and hasattr(source, "__iter__"):
        return _grain(source, epoch)
    if hasattr(source, "as_numpy_iterator"):
        return _tf_data(source)
    if hasattr(source, "batch_sampler") and hasattr(source, "dataset") and hasattr(source, "__iter__"):
        return _torch_loader(source, epoch)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not hasattr(source, "__iter__"):
        # A map-style data set, as torch has them: elements by number, and numbers past the end need not raise.
        return Stream(lambda skip: (source[i] for i in range(skip, len(source))), False)
    return None


def encode_state(value: Any) -> Any:
    """An iterator's state as JSON can hold it."""
    if isinstance(value, dict):
        return {"dict": [[encode_state(k), encode_state(v)] for k, v in value.items()]}
    if isinstance(value, tuple | list):
        return {type(value).__name__: [encode_state(item) for item in value]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.name}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"iterator state holds a {type(value).__name__}, which cannot be kept in a checkpoint")


def decode_state(value: Any) -> Any:
    """The inverse of `encode_state`."""
    if not isinstance(value, dict):
        return value
    if "dict" in value:
        return {decode_state(k): decode_state(v) for k, v in value["dict"]}
    if "bytes" in value:
        return base64.b64decode(value["bytes"])
    if "array" in value:
        return np.array(value["array"], value["dtype"])
    kind, items = next(iter(value.items()))
    return (tuple if kind == "tuple" else list)(decode_state(item) for item in items)


def replay(source: Any) -> Callable[[int], Iterator[Any]]:
    """Start an iterable at an element by iterating up to it. The iterator raises StopIteration where it is shorter."""

    def start(skip: int) -> Iterator[Any]:
        iterator = iter(source)
        for _ in range(skip):
            next(iterator)
        return iterator

    return start


def _grain(source: Any, epoch: int) -> Stream:
    batched = _grain_batched(source)
    if hasattr(source, "to_iter_dataset"):  # a MapDataset: its later epochs are reshuffled where it shuffles
        size = len(source)
        if epoch and size:
            source = source.repeat(epoch + 1).slice(slice(epoch * size, (epoch + 1) * size))
        source = source.to_iter_dataset()
    return Stream(replay(source), batched)


def _grain_batched(source: Any) -> bool | None:
    """Whether a Batch transformation is among those that made this data set."""
    if hasattr(source, "_operations"):  # a DataLoader
        return any("Batch" in type(operation).__name__ for operation in source._operations)
    if not hasattr(source, "parents"):
        return None
    pending = [source]
    while pending:
        node = pending.pop()
        if "Batch" in type(node).__name__:
            return True
        pending.extend(node.parents)
    return False


def _torch_loader(source: Any, epoch: int) -> Stream:
    sampler = getattr(source, "sampler", None)
    caution = None
    if type(sampler).__name__ == "RandomSampler":
        caution = (
            "input: this torch DataLoader shuffles by torch's own random state, so a continued run sees another order than "
            "the run it continues. Use a sampler with set_epoch, or shuffle=False and systolic.data.shuffle(...)"
        )

    def start(skip: int) -> Iterator[Any]:
        if hasattr(sampler, "set_epoch"):  # how torch's samplers are told to reshuffle
            sampler.set_epoch(epoch)
        return replay(source)(skip)

    batched = source.batch_size is not None or source.batch_sampler is not None
    return Stream(start, True if batched else None, caution)


def _tf_data(source: Any) -> Stream:
    def start(skip: int) -> Iterator[Any]:
        return iter((source.skip(skip) if skip else source).as_numpy_iterator())

    caution = None
    if _tf_unseeded(source):
        caution = (
            "input: this tf.data pipeline shuffles without a seed, so a continued run sees another order than the run it "
            "continues. Give one, shuffle(..., seed=...), in a function that makes the pipeline for each epoch"
        )
    return Stream(start, _tf_batched(source), caution)


def _tf_unseeded(source: Any) -> bool:
    """Whether a shuffle among the steps of this pipeline draws its seed anew in each process."""
    pending = [source]
    while pending:
        node = pending.pop()
        if "Shuffle" in type(node).__name__ and int(getattr(node, "_seed", 1)) == int(getattr(node, "_seed2", 1)) == 0:
            return True
        pending.extend(node._inputs() if hasattr(node, "_inputs") else ())
    return False


def _tf_batched(source: Any) -> bool | None:
    """An unknown leading dimension in every component is what ``batch`` leaves behind."""
    leaves, pending = [], [getattr(source, "element_spec", None)]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            pending.extend(node.values())
        elif isinstance(node, tuple | list):
            pending.extend(node)
        elif node is not None:
            leaves.append(node)
    shapes = [getattr(leaf, "shape", None) for leaf in leaves]
    if not shapes or any(shape is None or shape.rank is None for shape in shapes):
        return None
    if any(shape.rank == 0 for shape in shapes):
        return False
    return True if all(shape[0] is None for shape in shapes) else None
