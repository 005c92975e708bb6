"""Variables of a session whose newest values are on devices: copied to it and from it when somebody looks, not before."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from systolic._errors import InputError

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
_WRITES = ("AssignVariableOp",)
_NEITHER = ("VarIsInitializedOp", "VariableShape", "Identity", "DestroyResourceOp")


@dataclasses.dataclass(frozen=True)
class Use:
    """What running some fetches does: names of variables that are read and written, and of computations that run."""

    reads: frozenset[str]
    writes: frozenset[str]
    calls: tuple[str, ...]

    @classmethod
    def of(cls, fetches: Iterable[Any], calls: Collection[str]) -> Use:
        """Of the operations ``fetches``, by all that they depend on."""
        seen: set[str] = set()
        reads: set[str] = set()
        writes: set[str] = set()
        called = []
        waiting = list(fetches)
        while waiting:
            operation = waiting.pop()
            if operation.name in seen:
                continue
            seen.add(operation.name)
            if operation.name in calls:
                called.append(operation.name)
            for tensor in operation.inputs:
                waiting.append(tensor.op)
                if tensor.op.type == "VarHandleOp" and operation.type not in _NEITHER:
                    if operation.type not in _WRITES:  # an update in place reads, and so may a function
                        reads.add(tensor.op.name)
                    if operation.type not in _READS:
                        writes.add(tensor.op.name)
            waiting.extend(operation.control_inputs)
        return cls(frozenset(reads), frozenset(writes), tuple(sorted(called)))


class Variables:
    """Of one session.

    Args:
        graph: the session's.
        run: its ``run``, which looks at nothing.
    """

    def __init__(self, graph: Any, run: Callable[..., Any]) -> None:
        self._graph = graph
        self._run = run
        self._lock = threading.Condition(threading.RLock())
        self._taken: set[str] = set()  # by a program that runs; another that wants them waits for it
        self._on_device: dict[str, Any] = {}
        self._replicas = 0
        self._newer: set[str] = set()  # than in the session

    def take(self, wanted: Mapping[str, jax.ShapeDtypeStruct], replicas: int) -> dict[str, Any]:
        """Values for a program that donates them, from the session where no device has them. Give them back after it.

        Args:
            wanted: by name.
            replicas: on how many devices it runs.

        Raises:
            InputError: the session has one of another shape, as a checkpoint of another model gives it.
        """
        with self._lock:
            names = list(wanted)
            self._wait_for(names)
            if replicas != self._replicas:  # other devices
                self._on_device = {name: np.asarray(value) for name, value in self._on_device.items()}
                self._replicas = replicas
            absent = [name for name in names if name not in self._on_device]
            if absent:
                readers = [_reader(self._graph, name) for name in absent]
                values = dict(zip(absent, self._run(readers), strict=True))
                _check_shapes(values, wanted)
                self._on_device.update(values)
            self._taken.update(names)
            return {name: self._on_device.pop(name) for name in names}

    def give(self, values: dict[str, Any], written: Iterable[str]) -> None:
        """What is on the devices from now on, and which of it the session does not know."""
        with self._lock:
            self._on_device.update(values)
            self._newer.update(written)
            self._taken.difference_update(values)
            self._lock.notify_all()

    def value(self, name: str) -> np.ndarray:
        """The newest value of one."""
        with self._lock:
            self._wait_for([name])
            if name in self._newer:
                return np.asarray(self._on_device[name])
            return self._run(_reader(self._graph, name))

    def to_session(self, names: Collection[str]) -> None:
        """Bring the session up to date before ``names`` are read there.

        Those that a program has at the moment stay as old as they are: who reads them from another thread, such as an input
        function that looks at the global step, may be the one that the program waits for.
        """
        with self._lock:
            names = set(names) - self._taken
            stale = self._newer.intersection(names)
            while stale:  # variables that start from one tensor are fed through it one after another
                feed: dict[Any, Any] = {}
                assignments = []
                for name in sorted(stale):
                    assignment = _assignment(self._graph, name)
                    if assignment.inputs[1].ref() not in feed:
                        feed[assignment.inputs[1].ref()] = np.asarray(self._on_device[name])
                        assignments.append((name, assignment))
                self._run([a for _, a in assignments], {ref.deref(): value for ref, value in feed.items()})
                stale = stale.difference(name for name, _ in assignments)
            self._newer.difference_update(names)

    def forget(self, names: Collection[str]) -> None:
        """The session has written ``names``: a device takes them from there again, but for those that it has at the moment."""
        with self._lock:
            for name in set(names) - self._taken:
                self._newer.discard(name)
                self._on_device.pop(name, None)

    def _wait_for(self, names: Iterable[str]) -> None:
        self._lock.wait_for(lambda: self._taken.isdisjoint(names))


def _check_shapes(values: Mapping[str, np.ndarray], wanted: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    wrong = [name for name, value in values.items() if np.shape(value) != wanted[name].shape]
    if wrong:
        listed = "; ".join(f"{name}: saw {np.shape(values[name])}, wanted {wanted[name].shape}" for name in wrong[:5])
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise InputError(
            f"variables of other shapes than the model's, as from a checkpoint of another model: {listed}{more}; use another "
            "model_dir, or the model that the checkpoint is of"
        )


def _reader(graph: Any, name: str) -> Any:
    return _of_variable(graph, name, "ReadVariableOp", "read by any operation").outputs[0]


def _assignment(graph: Any, name: str) -> Any:
    return _of_variable(graph, name, "AssignVariableOp", "assigned by its initializer")


def _of_variable(graph: Any, name: str, kind: str, how: str) -> Any:
    """An operation of the kind on a variable, in the host's part, which depends on nothing else by control."""
    for operation in graph.get_operation_by_name(name).outputs[0].consumers():
        if operation.type == kind and not operation.control_inputs and graph.is_fetchable(operation):
            return operation
    raise InputError(
        f"variable {name}: it is on a device, and in the session's graph it is not {how}; make it with tf.get_variable"
    )
