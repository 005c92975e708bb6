"""What ``tf.compat.v1.tpu`` builds to run on devices, recorded while its own Python code builds it."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

from systolic._errors import InputError
from systolic.tf._channels import Channel
from systolic.tf._random import RandomState
from systolic.tf._tensorflow import tensorflow


@dataclasses.dataclass(eq=False)
class Section:
    """What becomes one Program: the body of a device loop, or what stands before, after or instead of loops.

    Attributes:
        fetches: tensors that it computes.
        infeed: placeholders for what it takes from the infeed of its device.
        outfeed: tensors that it gives to the outfeed.
        when: a tensor, where not ``None``, without which it gives nothing.
        random: where it draws random numbers.
    """

    fetches: list[Any] = dataclasses.field(default_factory=list)
    infeed: list[Any] = dataclasses.field(default_factory=list)
    outfeed: list[Any] = dataclasses.field(default_factory=list)
    when: Any = None
    random: RandomState | None = None


@dataclasses.dataclass(eq=False)
class Loop(Section):
    """``fetches`` are the next values of ``carry``.

    Attributes:
        carry: placeholders for what a pass begins with.
        initial: tensors with its first values.
        results: placeholders for the last values.
        first: whether there is a pass at all.
        again: whether there is one more after a pass; a function of ``fetches``.
        counter: position in carry, limit and increment, where the loop counts up to a limit.
    """

    carry: list[Any] = dataclasses.field(default_factory=list)
    initial: list[Any] = dataclasses.field(default_factory=list)
    results: list[Any] = dataclasses.field(default_factory=list)
    first: Any = None
    again: Any = None
    counter: tuple[int, Any, int] | None = None


@dataclasses.dataclass(eq=False)
class Computation:
    """Something replicated: arguments, loops, results.

    Attributes:
        graph: where it is.
        replicas: how many devices run it.
        ordinals: numbers of the cores whose infeed and outfeed are theirs.
        arguments: a placeholder for each argument, and the host's tensors for it, one per replica.
        loops: device loops in it, in their order.
        rest: what follows the loops, or all of it.
        outputs: tensors of the results, one replica's.
        call: the operation in the host's graph that takes the results; to run it is to run the computation.
    """

    graph: Any
    replicas: int
    ordinals: tuple[int, ...]
    arguments: list[tuple[Any, list[Any]]] = dataclasses.field(default_factory=list)
    loops: list[Loop] = dataclasses.field(default_factory=list)
    rest: Section = dataclasses.field(default_factory=Section)
    inner: Loop | None = None
    given: Channel | None = None
    results: Channel | None = None
    call: Any = None
    _returned: list[Any] = dataclasses.field(default_factory=list)

    @property
    def section(self) -> Section:
        """The one that is being built."""
        return self.inner or self.rest

    def add_argument(self, tensors: Sequence[Any]) -> Any:
        """The placeholder that stands for the host's tensors on the devices."""
        first = tensors[0]
        self.arguments.append((placeholder(first.dtype, first.shape, "argument"), list(tensors)))
        return self.arguments[-1][0]

    def next_output(self) -> list[Any]:
        """Tensors of the host's graph with the next result, one per replica."""
        if self.results is None:
            self._connect()
        count = self.replicas
        taken, self._returned = self._returned[:count], self._returned[count:]
        return taken

    def _connect(self) -> None:
        tf1 = tensorflow().compat.v1
        fetches = [tensor for tensor in self.rest.fetches for _ in range(self.replicas)]
        self.results = Channel.make("results", [t.dtype for t in fetches], [t.shape for t in fetches])
        started = []
        if self.arguments:
            tensors = [tensor for _, each in self.arguments for tensor in each]
            self.given = Channel.make("arguments", [t.dtype for t in tensors], [t.shape for t in tensors])
            started = [self.given.queue.enqueue(tensors)]
        with tf1.control_dependencies(started):
            self._returned = self.results.dequeue()
        self.call = self._returned[0].op
        record(self.graph).computations[self.call.name] = self


@dataclasses.dataclass(eq=False)
class Record:
    """Of one graph: its computations by the name of the operation that runs each, its channels, the infeeds that the host feeds."""

    computations: dict[str, Computation] = dataclasses.field(default_factory=dict)
    channels: dict[tuple[str, int], Channel] = dataclasses.field(default_factory=dict)
    fed: set[int] = dataclasses.field(default_factory=set)
    uses: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def channel(self, kind: str, ordinal: int, dtypes: Sequence[Any], shapes: Sequence[Any]) -> Channel:
        """The infeed or outfeed of one device; made where it is asked for first.

        Raises:
            InputError: one of this kind with other dtypes or shapes is there already.
        """
        tf = tensorflow()
        key = kind, max(ordinal, 0)
        if key not in self.channels:
            self.channels[key] = Channel.make(kind, dtypes, shapes, bounded=kind == "infeed")
        seen = [(d, tf.TensorShape(s)) for d, s in zip(dtypes, shapes, strict=True)]
        wanted = [(p.dtype, p.shape) for p in self.channels[key].placeholders]
        if [d for d, _ in seen] != [d for d, _ in wanted] or any(
            not a.is_compatible_with(b) for (_, a), (_, b) in zip(seen, wanted, strict=True)
        ):
            told = [", ".join(f"{d.name}{s}" for d, s in pairs) for pairs in (seen, wanted)]
            raise InputError(
                f"{kind} of device {key[1]}: saw ({told[0]}), wanted ({told[1]}), as where it was used first"
            )
        return self.channels[key]


_RECORDS: weakref.WeakKeyDictionary[Any, Record] = weakref.WeakKeyDictionary()


def record(graph: Any) -> Record:
    """The record of a graph; of the outermost one where ``graph`` is that of a function or a loop."""
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return _RECORDS.setdefault(graph, Record())


def recorded(graph: Any) -> Record | None:
    """The record of a graph that has one."""
    return _RECORDS.get(graph)


def placeholder(dtype: Any, shape: Any, name: str) -> Any:
    """A placeholder of the outermost graph, outside of control flow and of the devices' context."""
    tf = tensorflow()
    with tf.init_scope(), tf.compat.v1.device(None):
        return tf.compat.v1.placeholder(dtype, shape, name=name)
