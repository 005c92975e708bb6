"""Runs computations: their sections as Programs, in a thread beside the session's run that asks for them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from systolic._errors import InputError
from systolic.target import Target
from systolic.tf._building import plain
from systolic.tf._channels import Channel
from systolic.tf._computation import Computation, Loop, Section, record
from systolic.tf._graph import wide
from systolic.tf._host import raised
from systolic.tf._step import Step
from systolic.tf._tensorflow import tensorflow
from systolic.tf._variables import Variables


class Execution:
    """Of the computations of one session, on one target.

    Args:
        graph: the session's.
        callable: the session's ``make_callable``: fetches and placeholders to a function of the latter.
    """

    def __init__(self, graph: Any, callable: Callable[..., Any], variables: Variables, target: Target) -> None:
        self._graph = graph
        self._make_callable = callable
        self._callables: dict[Any, Callable[..., Any]] = {}
        self._variables = variables
        self._target = target
        self._steps: dict[Section, Step] = {}
        self._numbers: dict[Section, int] = {}
        self.record = record(graph)

    def start(self, computation: Computation, reads: frozenset[str]) -> Run:
        """Run in a thread; the results go to the host's part of the graph, which may read ``reads`` after them."""
        return Run(self, computation, reads)

    def results(self, computation: Computation) -> list[np.ndarray]:
        """Run; the results, each with a leading dimension of replicas."""
        feeds = self._arguments(computation)
        for loop in computation.loops:
            feeds |= self._loop(computation, loop, feeds)
        return self._rest(computation, feeds)

    def _arguments(self, computation: Computation) -> dict[str, np.ndarray]:
        if computation.given is None:
            return {}
        values = iter(self.run(computation.given.taken))
        return {
            placeholder.op.name: np.stack([next(values) for _ in each]) for placeholder, each in computation.arguments
        }

    def run(self, fetches: Sequence[Any], feeds: Sequence[Any] = (), values: Sequence[Any] = ()) -> Any:
        """The host's part: runs in the session, with the placeholders ``feeds`` at ``values``."""
        key = tuple(map(id, fetches))
        if key not in self._callables:
            self._callables[key] = self._make_callable(list(fetches), feed_list=list(feeds))
        return self._callables[key](*values)

    def put(self, channels: Sequence[Channel], values: Sequence[Sequence[Any]]) -> None:
        """One tuple into each channel."""
        feeds = [placeholder for channel in channels for placeholder in channel.placeholders]
        self.run([channel.put for channel in channels], feeds, [x for each in values for x in each])

    def _loop(self, computation: Computation, loop: Loop, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        replicas = computation.replicas
        carry = self._host_values(loop.initial, feeds, replicas)
        passes: int | None = None
        if loop.counter is not None:
            place, limit, increment = loop.counter
            (last,) = self._host_values([limit], feeds, replicas)
            passes = max(0, -(-(int(last[0]) - int(carry[place][0])) // increment))
        else:
            (first,) = self._host_values([loop.first], feeds, replicas)
            passes = None if first[0] else 0
        if passes == 0:
            return _named(loop.results, carry)
        step = self._step(computation, loop)
        number = self._number(loop, step)
        names = [x.op.name for x in loop.carry]
        count = len(loop.fetches)
        waiting: Sequence[Any] | None = None  # of a step that may not be done yet: what goes to the outfeed
        held = self._variables.take(step.variables, computation.replicas)
        done, plenty = 0, False
        try:
            while passes is None or done < passes:
                if waiting is not None and not plenty:  # who feeds may want to see it first
                    self._put_out(computation, loop, waiting)
                    waiting = None
                infed, plenty = self._infed(computation, loop)
                given = feeds | dict(zip(names, carry, strict=True)) | infed
                outputs, held = step.run(held, given | self._drawn(computation, loop, number + done))
                done += 1
                carry = list(outputs[:count])
                if waiting is not None:
                    self._put_out(computation, loop, waiting)
                waiting = outputs[count:]
                if passes is None and not np.asarray(outputs[-1])[0]:
                    break
            if waiting is not None:
                self._put_out(computation, loop, waiting)
        finally:
            self._variables.give(held, step.written if done else ())
        return _named(loop.results, [np.asarray(x) for x in carry])

    def _infed(self, computation: Computation, section: Section) -> tuple[dict[str, np.ndarray], bool]:
        """What the step takes from its infeed, and whether more is there already."""
        if not section.infeed:
            return {}, True
        if unfed := set(computation.ordinals) - self.record.fed:
            raise InputError(
                f"infeed: nothing in the graph feeds that of core {min(unfed)}; wanted an infeed_enqueue for each of the cores "
                f"{', '.join(map(str, computation.ordinals))}"
            )
        channels = [self.record.channels["infeed", i] for i in computation.ordinals]
        fetched = self.run([x for channel in channels for x in (*channel.taken, channel.size)])
        width = len(section.infeed) + 1
        columns = [fetched[i::width] for i in range(width)]
        plenty = min(columns.pop()) > 1  # one may be the one that was taken
        return _named(section.infeed, [np.stack(column) for column in columns]), plenty

    def _put_out(self, computation: Computation, section: Section, values: Sequence[Any]) -> None:
        if not section.outfeed:
            return
        count = len(section.outfeed)
        if section.when is not None and not np.asarray(values[count])[0]:
            return
        arrays = [np.asarray(value) for value in values[:count]]
        channels = [self.record.channels["outfeed", i] for i in computation.ordinals]
        self.put(channels, [[array[i] for array in arrays] for i in range(len(channels))])

    def _rest(self, computation: Computation, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        section = computation.rest
        if computation.loops and not section.infeed and not section.outfeed:
            copied = [feeds.get(plain(tensor).op.name) for tensor in section.fetches]
            if all(x is not None for x in copied):
                return [np.asarray(x) for x in copied]
        step = self._step(computation, section)
        number = self._number(section, step)
        held = self._variables.take(step.variables, computation.replicas)
        done = False
        try:
            given = feeds | self._infed(computation, section)[0]
            outputs, held = step.run(held, given | self._drawn(computation, section, number))
            done = True
        finally:
            self._variables.give(held, step.written if done else ())
        count = len(section.fetches)
        self._put_out(computation, section, outputs[count:])
        return [np.asarray(x) for x in outputs[:count]]

    def _number(self, section: Section, step: Step) -> int:
        """Of the step to come: the global step's, which a checkpoint keeps, where this section trains."""
        if section.random is None:
            return 0
        for variable in self._graph.get_collection(tensorflow().compat.v1.GraphKeys.GLOBAL_STEP):
            if variable.op.name in step.written:
                return int(self._variables.value(variable.op.name))
        return self._numbers.get(section, 0)

    def _drawn(self, computation: Computation, section: Section, number: int) -> dict[str, np.ndarray]:
        if section.random is None:
            return {}
        self._numbers[section] = number + 1
        count = computation.replicas
        return _named(
            [section.random.number, section.random.replica], [np.full(count, number), np.arange(count, dtype=np.int64)]
        )

    def _step(self, computation: Computation, section: Section) -> Step:
        if section not in self._steps:
            self._steps[section] = Step(computation, section, self._devices(computation))
        return self._steps[section]

    def _devices(self, computation: Computation) -> Target:
        """As many of the target's devices as there are replicas."""
        target, count = self._target, computation.replicas
        if count > target.num_devices:
            raise InputError(
                f"tpu.replicate(inputs): saw {count} replicas, wanted at most {target.num_devices}, the devices of {target.name}"
            )
        return target if count == target.num_devices else Target(f"{target.platform}:{count}")

    def _host_values(self, tensors: Sequence[Any], feeds: Mapping[str, np.ndarray], replicas: int) -> list[np.ndarray]:
        """Of small tensors around a loop, computed by TensorFlow on the host: first values, limits, conditions.

        Returns:
            Each with a leading dimension of replicas.
        """
        values = [self._known(tensor, feeds, replicas) for tensor in tensors]
        unknown = tuple(tensor for tensor, value in zip(tensors, values, strict=True) if value is None)
        computed = iter(self._around(unknown, feeds, replicas) if unknown else ())
        return [next(computed) if value is None else value for value in values]

    def _known(self, tensor: Any, feeds: Mapping[str, np.ndarray], replicas: int) -> np.ndarray | None:
        tensor = plain(tensor)
        value = tensorflow().get_static_value(tensor)
        if value is None and tensor.op.type == "ReadVariableOp":
            value = self._variables.value(tensor.op.inputs[0].op.name)
        return feeds.get(tensor.op.name) if value is None else np.stack([value] * replicas)

    def _around(self, tensors: tuple[Any, ...], feeds: Mapping[str, np.ndarray], replicas: int) -> list[np.ndarray]:
        """What only a graph can tell, of operations that stand around a loop."""
        tf1 = tensorflow().compat.v1
        whole = self._graph.as_graph_def(add_shapes=True)
        definition = tf1.graph_util.extract_sub_graph(whole, [tensor.op.name for tensor in tensors])
        nodes = [node for node in definition.node if node.op != "VarHandleOp"]
        del definition.node[:]
        values: dict[str, np.ndarray] = {}
        for node in nodes:
            known = node.op in ("ReadVariableOp", "Placeholder")
            if known:
                tensor = self._graph.get_operation_by_name(node.name).outputs[0]
                values[f"{node.name}:0"] = np.asarray(self._known(tensor, feeds, replicas))
                node = tf1.NodeDef(name=node.name, op="Placeholder", attr={"dtype": node.attr["dtype"]})
            node.device = ""
            for attribute in ("_tpu_replicate", "_class"):
                node.attr.pop(attribute, None)
            definition.node.append(node)
        with tensorflow().Graph().as_default() as graph:
            fetched = tf1.import_graph_def(definition, return_elements=[t.name for t in tensors], name="")
            with tf1.Session(graph=graph) as session:
                each = [session.run(fetched, {k: value[i] for k, value in values.items()}) for i in range(replicas)]
        return [np.stack(column) for column in zip(*each, strict=True)]


class Run:
    """One run of a computation, in a thread."""

    def __init__(self, execution: Execution, computation: Computation, reads: frozenset[str]) -> None:
        self.error: BaseException | None = None
        self._execution = execution
        self._computation = computation
        self._reads = reads
        self._thread = threading.Thread(target=self._work, name="systolic-devices", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        execution, computation = self._execution, self._computation
        assert computation.results is not None
        try:
            with wide():
                results = execution.results(computation)
            execution._variables.to_session(self._reads)
            execution.put([computation.results], [[x for result in results for x in result]])
        except BaseException as error:
            self.error = error
            if isinstance(error, jax.errors.JaxRuntimeError) and raised:  # of a function on the host: its own error
                self.error = raised[0]
                raised.clear()
            self._close([computation.results])

    def stop(self) -> None:
        """End it where it waits for the host, whose part has failed."""
        channels = [c for (kind, _), c in self._execution.record.channels.items() if kind == "infeed"]
        self._close([*channels, *filter(None, [self._computation.given])])
        self.join()

    def _close(self, channels: Sequence[Channel]) -> None:
        errors: Any = tensorflow().errors
        with contextlib.suppress(errors.OpError, RuntimeError):  # the session is closed, and with it every wait
            self._execution.run([channel.close for channel in channels])

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()


def _named(placeholders: Sequence[Any], values: Sequence[Any]) -> dict[str, Any]:
    return {placeholder.op.name: value for placeholder, value in zip(placeholders, values, strict=True)}
