"""The functions of ``tf.compat.v1.tpu`` under which a graph for devices is built, in a form that records it.

Its Python code stays: ``replicate``, ``shard``, ``rewrite``, ``while_loop``, ``InfeedQueue`` and all who call them. Replaced
are the few that make operations which only a TPU's worker has.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from systolic._errors import InputError
from systolic.tf._computation import Computation, Loop, placeholder, record
from systolic.tf._random import RandomState, replace_random
from systolic.tf._tensorflow import tensorflow

_current: list[Computation] = []  # at most one: computations are not nested


def replace_all() -> None:
    """Replace them, once and for this process."""
    modules = ("tpu", "ops.tpu_ops", "training_loop", "tpu_feed")
    tpu, tpu_ops, training_loop, tpu_feed = (
        importlib.import_module(f"tensorflow.python.tpu.{name}") for name in modules
    )
    for name in ("infeed_enqueue_tuple", "infeed_enqueue", "infeed_dequeue_tuple", "infeed_dequeue",
                 "outfeed_enqueue_tuple", "outfeed_enqueue", "outfeed_dequeue_tuple", "outfeed_dequeue"):  # fmt: skip
        setattr(tpu_ops, name, globals()[name])
    replacements: list[tuple[Any, dict[str, Callable[..., Any]]]] = [
        (tpu_ops, {
            "tpu_replicated_input": _replicated_input, "tpu_replicated_output": _replicated_output,
            "tpu_replicate_metadata": _metadata, "tpu_compilation_result": _compilation_result,
        }),
        (tpu, {
            "split_compile_and_replicate": _replicate, "_postprocess_flat_outputs": _outputs,
            "_postprocess_non_flat_outputs": _outputs,
        }),
        (tpu_ops, {"cross_replica_sum": _cross_replica_sum}),
        (training_loop, {"while_loop": _while_loop}),
        (tpu_feed._PartitionedInfeedQueue, {"_check_dims_and_partition_or_replicate_on_host": _whole}),
    ]  # fmt: skip
    replace_random(_random_state)
    for module, functions in replacements:
        for name, function in functions.items():
            setattr(module, name, _instead(getattr(module, name), function))


def _instead(upstream: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(upstream)(lambda *args, **kwargs: function(upstream, *args, **kwargs))


def _replicate(
    upstream: Callable[..., Any],
    computation: Any,
    inputs: Any = None,
    infeed_queue: Any = None,
    device_assignment: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    inputs = [[]] if inputs is None else inputs
    replicas = range(len(inputs))
    ordinals = replicas if device_assignment is None else [device_assignment.tpu_ordinal(replica=i) for i in replicas]
    with _building(tuple(ordinals)) as built:
        compiled, outputs = upstream(computation, inputs, infeed_queue, device_assignment, *args, **kwargs)
    if built.call is not None:
        return [compiled, outputs]
    # It returns operations only: what runs them is the one result that it was given.
    tf1 = tensorflow().compat.v1
    built.next_output()
    return [compiled, [tf1.group(built.call, name=f"shard_{i}") for i in range(built.replicas)]]


@contextlib.contextmanager
def _building(ordinals: tuple[int, ...]) -> Iterator[Computation]:
    from tensorflow.python.ops import control_flow_util

    if _current:
        raise InputError("tpu.replicate: saw a computation inside of another, wanted them side by side")
    built = Computation(tensorflow().compat.v1.get_default_graph(), len(ordinals), ordinals)
    second = control_flow_util.ENABLE_CONTROL_FLOW_V2
    control_flow_util.ENABLE_CONTROL_FLOW_V2 = True  # loops and branches in the form that the bridge takes
    _current.append(built)
    try:
        yield built
    finally:
        _current.clear()
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = second


def _outputs(upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Results, after all the operations that were returned with them: what the host waits for are tensors."""
    tensors, operations, template = upstream(*args, **kwargs)
    tf = tensorflow()
    tf1 = tf.compat.v1
    built = _current[-1]
    real = [tensor for tensor in tensors if tensor is not None]
    with tf1.control_dependencies([*operations, *built.rest.outfeed]):
        tied = iter([tf.identity(tensor) for tensor in real])
        tensors = [None if tensor is None else next(tied) for tensor in tensors]
        built.rest.fetches = [t for t in tensors if t is not None] or [tf.constant(0)]
    return tensors, [], template


def _replicated_input(_: Any, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    return _building_now("tpu_replicated_input").add_argument(inputs)


def _replicated_output(_: Any, tensor: Any, num_replicas: int, *args: Any, **kwargs: Any) -> list[Any]:
    return _building_now("tpu_replicated_output").next_output()


def _cross_replica_sum(upstream: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    """Outside of a computation there is one replica."""
    return upstream(x, *args, **kwargs) if _current else tensorflow().identity(x)


def _whole(_: Any, queue: Any, tensor: Any, dims: Any) -> list[Any]:
    """A replica that spans cores is fed at its first one."""
    queue._check_input_partition_dims(tensor, dims)
    return [tensor]


def _metadata(_: Any, *args: Any, **kwargs: Any) -> Any:
    return tensorflow().compat.v1.no_op(name="replicate_metadata")


def _compilation_result(_: Any, *args: Any, **kwargs: Any) -> Any:
    return tensorflow().constant(b"", name="compilation_result")  # a CompilationResultProto that reports no error


def _building_now(name: str) -> Computation:
    if not _current:
        raise InputError(f"{name}: wanted inside of a computation that tpu.replicate, tpu.shard or tpu.rewrite builds")
    return _current[-1]


def _random_state() -> RandomState | None:
    """Of the section that is being built; ``None`` outside of one, and where a variable's first value is made."""
    if not _current or not _on_devices():
        return None
    section = _current[-1].section
    if section.random is None:
        with contextlib.ExitStack() as stack:
            if _inside_function():  # it has to be there before the loop or branch begins
                stack.enter_context(tensorflow().init_scope())
            section.random = RandomState.make(placeholder)
    return section.random


def _on_devices() -> bool:
    """Whether what is built now belongs to the computation."""
    graph = tensorflow().compat.v1.get_default_graph()
    return _inside_function() or graph._get_control_flow_context() is not None


def _while_loop(
    upstream: Callable[..., Any],
    condition: Callable[..., Any],
    body: Callable[..., Any],
    inputs: Any = None,
    infeed_queue: Any = None,
    name: Any = None,
) -> Any:
    """A device loop is taken apart into its body, which is a Program, and what tells how often it runs."""
    if not _current or _current[-1].inner is not None or _inside_function():
        return upstream(condition, body, inputs, infeed_queue, name)
    tf = tensorflow()
    tf1 = tf.compat.v1
    built = _current[-1]
    initial = [tf.convert_to_tensor(x) for x in inputs or [0]]
    loop = built.inner = Loop(initial=initial, carry=[placeholder(t.dtype, t.shape, "carry") for t in initial])
    built.loops.append(loop)
    carry = [tf.identity(x) for x in loop.carry] if inputs else []
    try:
        dequeued = _dequeued(infeed_queue, built.replicas)
        returned = body(*carry, *dequeued)
    finally:
        built.inner = None
    returned = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    returned = [x if isinstance(x, tf.Operation) else tf.convert_to_tensor(x) for x in returned if x is not None]
    operations = [x for x in returned if isinstance(x, tf.Operation)]
    tensors = [x for x in returned if not isinstance(x, tf.Operation)]
    seen, wanted = [x.dtype.name for x in tensors], [x.dtype.name for x in carry]
    if seen != wanted:
        raise TypeError(
            f"training_loop.while_loop(body): saw results of dtypes {seen}, wanted those of inputs, {wanted}"
        )
    with tf1.control_dependencies([*operations, *dequeued, *loop.outfeed]):
        loop.fetches = [tf.identity(x) for x in tensors] if inputs else [tf.identity(loop.carry[0])]
    tested = condition(*carry)
    loop.first, loop.again = condition(*initial[: len(carry)]), condition(*loop.fetches[: len(carry)])
    loop.counter = _counter(loop, tested)
    loop.results = [placeholder(t.dtype, t.shape, "loop_result") for t in loop.fetches]
    results = [tf.identity(x) for x in loop.results]
    return results if len(results) > 1 else results[0]


def _dequeued(infeed_queue: Any, replicas: int) -> list[Any]:
    if not infeed_queue:
        return []
    infeed_queue.set_number_of_shards(replicas)
    return list(infeed_queue.generate_dequeue_op())


def _inside_function() -> bool:
    return getattr(tensorflow().compat.v1.get_default_graph(), "outer_graph", None) is not None


def _counter(loop: Loop, tested: Any) -> tuple[int, Any, int] | None:
    """Whether a loop is of the kind ``i < limit``, ``i + 1``."""
    tf = tensorflow()
    tested = plain(tested)
    if tested.op.type != "Less":
        return None
    left, limit = map(plain, tested.op.inputs)
    places = [i for i, x in enumerate(loop.carry) if x is left]
    known = tf.get_static_value(limit) is not None or limit.op.type in ("ReadVariableOp", "Placeholder")
    if not places or not known:
        return None
    after = plain(loop.fetches[places[0]])
    if after.op.type not in ("Add", "AddV2") or plain(after.op.inputs[0]) is not left:
        return None
    increment = tf.get_static_value(after.op.inputs[1])
    return None if increment is None or increment < 1 else (places[0], limit, int(increment))


def plain(tensor: Any) -> Any:
    """What a tensor is a copy of."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def infeed_enqueue_tuple(
    inputs: Sequence[Any], shapes: Any, layouts: Any = (), device_ordinal: int = -1, name: str | None = None
) -> Any:
    """Host: one tuple to the infeed of a device."""
    inputs = [tensorflow().convert_to_tensor(x) for x in inputs]
    made = record(_graph())
    channel = made.channel("infeed", device_ordinal, [x.dtype for x in inputs], shapes)
    made.fed.add(max(device_ordinal, 0))
    return channel.queue.enqueue(inputs, name=name)


def infeed_enqueue(
    input: Any, shape: Any = (), layout: Any = (), device_ordinal: int = -1, name: str | None = None
) -> Any:
    """Host: one tensor to the infeed of a device."""
    return infeed_enqueue_tuple([input], [shape], layout, device_ordinal, name)


def infeed_dequeue_tuple(dtypes: Sequence[Any], shapes: Sequence[Any], name: str | None = None) -> list[Any]:
    """Device: the next tuple of its infeed."""
    built = _building_now("infeed_dequeue")
    if _inside_function() or built.section.infeed:
        raise InputError(
            "infeed_dequeue: saw a second one in a step, or one in a loop or branch within a step; wanted one for each pass of "
            "the device loop"
        )
    dtypes = [tensorflow().as_dtype(dtype) for dtype in dtypes]
    for ordinal in built.ordinals:
        record(_graph()).channel("infeed", ordinal, dtypes, shapes)
    built.section.infeed = [placeholder(d, s, "infeed") for d, s in zip(dtypes, shapes, strict=True)]
    return [tensorflow().identity(x) for x in built.section.infeed]


def infeed_dequeue(dtype: Any, shape: Any, name: str | None = None) -> Any:
    """Device: the next tensor of its infeed."""
    return infeed_dequeue_tuple([dtype], [shape], name)[0]


def outfeed_enqueue_tuple(inputs: Sequence[Any], name: str | None = None) -> Any:
    """Device: one tuple to its outfeed."""
    built = _building_now("outfeed_enqueue")
    if _inside_function() or built.section.outfeed:
        raise InputError(
            "outfeed_enqueue: saw a second one in a step, or one in a loop or branch within a step; wanted one for each "
            "pass of the device loop"
        )
    tensors = [tensorflow().identity(x) for x in inputs]
    for ordinal in built.ordinals:
        record(_graph()).channel("outfeed", ordinal, [x.dtype for x in tensors], [x.shape for x in tensors])
    built.section.outfeed = tensors
    return tensorflow().group(*tensors, name=name)


def outfeed_only_if(condition: Any) -> None:
    """Device: what this step gives to its outfeed, it gives only where ``condition`` is true."""
    _building_now("outfeed_enqueue").section.when = tensorflow().identity(condition)


def outfeed_enqueue(input: Any, name: str | None = None) -> Any:
    """Device: one tensor to its outfeed."""
    return outfeed_enqueue_tuple([input], name)


def outfeed_dequeue_tuple(
    dtypes: Sequence[Any], shapes: Sequence[Any], device_ordinal: int = -1, name: str | None = None
) -> list[Any]:
    """Host: the next tuple from the outfeed of a device."""
    dtypes = [tensorflow().as_dtype(dtype) for dtype in dtypes]
    taken = record(_graph()).channel("outfeed", device_ordinal, dtypes, shapes).dequeue()
    for tensor, shape in zip(taken, shapes, strict=True):
        tensor.set_shape(shape)
    return taken


def outfeed_dequeue(dtype: Any, shape: Any, device_ordinal: int = -1, name: str | None = None) -> Any:
    """Host: the next tensor from the outfeed of a device."""
    return outfeed_dequeue_tuple([dtype], [shape], device_ordinal, name)[0]


def _graph() -> Any:
    return tensorflow().compat.v1.get_default_graph()
