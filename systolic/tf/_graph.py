"""Part of a TensorFlow 1 graph as a pure function: TensorFlow's own bridge turns it into one StableHLO module."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from systolic._errors import InputError
from systolic.program import Program
from systolic.tf._functions import every_node, keep_functions_in_use, rename_functions
from systolic.tf._host import make_host_calls
from systolic.tf._module import Module
from systolic.tf._order import reads_first
from systolic.tf._tensorflow import tensorflow

_PLACEMENT = ("_class", "_tpu_replicate", "_xla_compile_id", "_XlaCompile", "_XlaSharding", "_XlaShardingV2")
_GIVEN = ("Placeholder", "PlaceholderV2", "VarHandleOp")
_SHARED, _SPLIT = PartitionSpec(), PartitionSpec("data")


@dataclasses.dataclass(frozen=True, eq=False)
class GraphFunction:
    """``(variables, inputs) -> (outputs, variables)``, without TensorFlow.

    Attributes:
        name: what programs of it are called.
        variables: names in the order of ``module``'s arguments after the inputs, with shape and dtype.
        inputs: names of the placeholders it reads, in the order of the arguments, likewise.
        written: names of the variables that it changes.
        replicas: where not None, it runs once on each of so many devices, which share the variables: inputs and outputs have a
            leading dimension of that size. What the replicas write to a variable must be the same, as it is after a
            ``cross_replica_sum``; the first one's stays.
    """

    name: str
    module: Module
    variables: Mapping[str, jax.ShapeDtypeStruct]
    inputs: Mapping[str, jax.ShapeDtypeStruct]
    outputs: int
    written: tuple[str, ...]
    replicas: int | None = None

    def __call__(
        self, variables: Mapping[str, Any], inputs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Outputs in the order of the fetches, and all variables as they are afterwards."""
        given = [inputs[name] for name in self.inputs]
        held = [variables[name] for name in self.variables]
        if self.replicas is None:
            outputs, written = self._once(given, held)
        else:
            outputs, written = jax.shard_map(
                self._on_each, in_specs=(_SPLIT, _SHARED), out_specs=(_SPLIT, _SHARED), check_vma=False
            )(given, held)
        return tuple(outputs), dict(variables) | dict(zip(self.written, written, strict=True))

    def _once(self, given: Sequence[Any], held: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        results = self.module(*given, *held)
        return results[: self.outputs], results[self.outputs :]

    def _on_each(self, given: Sequence[Any], held: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        outputs, written = self._once([x[0] for x in given], held)
        return [x[None] for x in outputs], written

    def program(self) -> Program:
        """The Program; variables are donated. To be made, compiled and called inside of :func:`wide`."""
        leading = () if self.replicas is None else (self.replicas,)
        inputs = {name: jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype) for name, x in self.inputs.items()}
        specs = None if self.replicas is None else (_SHARED, _SPLIT)
        return Program(self, dict(self.variables), inputs, name=self.name, donate=(0,), in_specs=specs)


def wide() -> Any:
    """A context in which JAX keeps 64-bit numbers, as TensorFlow's global step is one."""
    return jax.enable_x64(True)


@contextlib.contextmanager
def step_scope() -> Iterator[None]:
    """What is built in the body is a step: resource variables, and control flow, also in gradients, in a form for XLA.

    That holds also where a script has switched the behaviour of TensorFlow 2 off.
    """
    tf = tensorflow()
    from tensorflow.python.compiler.xla.xla import XLACompileContext
    from tensorflow.python.ops import control_flow_util

    with tf.control_dependencies(None):
        pivot = tf.compat.v1.no_op(name="step_pivot")
        context = XLACompileContext("step", pivot)
        scope = tf.compat.v1.get_variable_scope()
        resource, second = scope.use_resource, control_flow_util.ENABLE_CONTROL_FLOW_V2
        scope.set_use_resource(True)
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = True
        context.Enter()
        try:
            yield
        finally:
            context.Exit()
            control_flow_util.ENABLE_CONTROL_FLOW_V2 = second
            scope.set_use_resource(resource)


def graph_function(
    fetches: Sequence[Any], feeds: Sequence[Any], *, name: str = "step", replicas: int | None = None
) -> GraphFunction:
    """The part of a graph that computes ``fetches`` from the placeholders ``feeds`` and from its resource variables.

    Args:
        fetches: tensors with static shapes, best built in :func:`step_scope`; what they depend on by control runs, too, such as the assignments of an
            optimizer.
        feeds: placeholders of the same graph with static shapes.
        name: of the programs.
        replicas: on how many devices at once it is to run, each with inputs of its own; see :class:`GraphFunction`.

    Raises:
        InputError: a placeholder that is not among the feeds, a dynamic shape, or an operation that TensorFlow's
            bridge does not compile.
    """
    tf = tensorflow()
    graph = fetches[0].graph
    definition = tf.compat.v1.graph_util.extract_sub_graph(
        graph.as_graph_def(add_shapes=True), [fetch.op.name for fetch in fetches]
    )
    kinds = {node.name: node.op for node in definition.node}
    used = [feed for feed in feeds if feed.op.name in kinds]
    _refuse(definition, fetches, used)
    variables = _variables(graph, kinds)
    reads_first(definition)
    nodes = [node for node in definition.node if node.op not in _GIVEN]
    del definition.node[:]
    definition.node.extend(nodes)
    keep_functions_in_use(definition)
    rename_functions(definition)
    make_host_calls(definition.node)
    for function in definition.library.function:
        make_host_calls(function.node_def, function.ret)
    for node in every_node(definition):
        node.device = ""
        for attribute in _PLACEMENT:
            node.attr.pop(attribute, None)
        if node.op == "CrossReplicaSum":
            _sum_by_xla(node, replicas or 1)
        elif node.op == "XlaSharding":  # a replica is on one device
            node.op = "Identity"
            for attribute in set(node.attr) - {"T"}:
                node.attr.pop(attribute)
    module, order = _compile(definition, fetches, used, variables)
    ordered = [variables[i] for i in order]
    count = len(used)
    written = [module.aliases[i] - count for i in range(len(fetches), len(module.results))]
    return GraphFunction(
        name=name,
        module=module,
        variables={v.op.name: module.arguments[count + i] for i, v in enumerate(ordered)},
        inputs={feed.op.name: module.arguments[i] for i, feed in enumerate(used)},
        outputs=len(fetches),
        written=tuple(ordered[i].op.name for i in written),
        replicas=replicas,
    )


def _sum_by_xla(node: Any, replicas: int) -> None:
    """Make a ``CrossReplicaSum``, of which gradients are known, the operation that TensorFlow's bridge knows."""
    dtype = node.attr["T"].type
    node.attr.clear()
    node.attr["T"].type = dtype
    if replicas == 1:
        node.op = "Identity"
        groups = node.input[1]
        del node.input[1]
        node.input.append(f"^{groups.lstrip('^').partition(':')[0]}")
    else:
        node.op = "XlaAllReduce"
        node.attr["reduce_op"].s = b"Add"
        node.attr["mode"].s = b"CrossReplica"


def _refuse(definition: Any, fetches: Sequence[Any], feeds: Sequence[Any]) -> None:
    for what, tensors in (("fetches", fetches), ("feeds", feeds)):
        for tensor in tensors:
            if not tensor.shape.is_fully_defined():
                raise InputError(
                    f"graph_function({what}): {tensor.op.name} has the shape {tensor.shape}, wanted a static one; batch with "
                    "drop_remainder=True, or set_shape"
                )
    given = {feed.op.name for feed in feeds}
    stray = [
        n.name for n in definition.node if n.op.startswith("Placeholder") and n.op in _GIVEN and n.name not in given
    ]
    if stray:
        raise InputError(f"graph_function(feeds): the fetches depend on {', '.join(stray)}, wanted among the feeds")
    old = [node.name for node in definition.node if node.op in ("VariableV2", "Variable")]
    if old:
        raise InputError(
            f"graph_function: {old[0]} is a variable of the old kind, which XLA does not know; build "
            "the graph in step_scope(), or call tf.enable_resource_variables() before"
        )


def _variables(graph: Any, kinds: Mapping[str, str]) -> list[Any]:
    """Handles of the variables in use, in the order of the graph."""
    return [op.outputs[0] for op in graph.get_operations() if op.type == "VarHandleOp" and op.name in kinds]


def _compile(
    definition: Any, fetches: Sequence[Any], feeds: Sequence[Any], variables: Sequence[Any]
) -> tuple[Module, list[int]]:
    """The module, and which variable each of its arguments after the feeds is."""
    tf = tensorflow()
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops  # noqa: F401 - makes XlaAllReduce known
    from tensorflow.python.eager import context
    from tensorflow.python.ops import resource_variable_ops

    with context.eager_mode():
        blanks = [
            # The bridge reads the shape off a value, and none of the numbers: memory that nobody touches costs nothing.
            resource_variable_ops.ResourceVariable(
                tf.raw_ops.Empty(shape=tf.TensorShape(op.get_attr("shape")).as_list(), dtype=op.get_attr("dtype")),
                trainable=False,
            )
            for op in (variable.op for variable in variables)
        ]

        def run(*inputs: Any) -> Any:
            here = tf.compat.v1.get_default_graph()
            given = {v.name: here.capture(blank.handle) for v, blank in zip(variables, blanks, strict=True)}
            given |= {feed.name: x for feed, x in zip(feeds, inputs, strict=True)}
            return tf.compat.v1.import_graph_def(
                definition, input_map=given, return_elements=[fetch.name for fetch in fetches], name=""
            )

        signature = [tf.TensorSpec(feed.shape, feed.dtype, name=f"feed{i}") for i, feed in enumerate(feeds)]
        function = tf.function(run, jit_compile=True, autograph=False, input_signature=signature)
        captured = function.get_concrete_function().captured_inputs
        handles = [blank.handle for blank in blanks]
        order = [next(i for i, handle in enumerate(handles) if handle is c) for c in captured]
        inputs = [tf.zeros(spec.shape, spec.dtype) for spec in signature]
        names = [f.signature.name for f in definition.library.function]
        try:
            for each in definition.library.function:
                context.context().add_function_def(each)
            compiled = function.experimental_get_compiler_ir(*inputs)
            # Bytes: as text, a constant of booleans is not read alike by every MLIR. Custom calls are, as text alone.
            calls_host = any(n.op == "XlaCustomCallV2" for n in every_node(definition))
            portable = compiled(stage="stablehlo" if calls_host else "stablehlo_serialized")
        except (tf.errors.OpError, ValueError) as error:
            raise InputError(f"graph_function: {_reason(str(error))}") from error
        finally:
            for name in filter(context.context().has_function, names):
                context.context().remove_function(name)
    return Module.parse(portable), order


def _reason(text: str) -> str:
    """What the bridge says, without what it says of itself."""
    unknown = re.findall(r"No registered '(\w+)' OpKernel[^{]*\{\{node ([^}]+)\}\}", text)
    if unknown:
        listed = ", ".join(f"{kind} (node {node})" for kind, node in dict.fromkeys(unknown))
        return (
            f"what TensorFlow's bridge does not compile: {listed}; it has to run on the host, before or after the step"
        )
    cause = text.partition("tf2xla conversion failed")[0].removeprefix("Failed getting HLO text: '")
    return f"TensorFlow's bridge does not compile this graph: {cause.strip()}"


def values(function: GraphFunction, session: Any) -> dict[str, np.ndarray]:
    """The variables' values in a session."""
    graph = session.graph
    readers = _readers(graph)
    names = list(function.variables)
    return dict(zip(names, session.run([readers[name] for name in names]), strict=True))


def _readers(graph: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for operation in graph.get_operations():
        if operation.type == "ReadVariableOp":
            found.setdefault(operation.inputs[0].op.name, operation.outputs[0])
    return found
