"""The TPU system that TensorFlow's Python code finds: as many cores as the target has devices."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

from systolic._errors import InputError
from systolic._log import logger
from systolic.target import Target, cpu_will_have
from systolic.tf._building import outfeed_only_if, replace_all
from systolic.tf._estimator import tpu_estimator
from systolic.tf._session import replace_session
from systolic.tf._tensorflow import tensorflow

_target: list[Target] = []
_reported: list[str] = []
_asked: list[int] = []


def switch_on(target: str | Target | None = None, *, loss: str = "mean", described: bool = False) -> None:
    """Let everything of ``tf.compat.v1.tpu``, and TPUEstimator with ``use_tpu=True``, run on ``target``, in this process.

    Called again, it changes what sessions to come use.

    Args:
        target: devices that are attached to this machine, one for each TPU core that the script is to find. Default: an
            accelerator that is attached; else as many CPU devices as the script's ``TPUConfig(num_shards)`` asks for.
            What was named once stays until another is named.
        loss: what TPUEstimator reports as loss: the ``mean`` over all replicas, or as it did itself, that of the ``first``
            replica alone.
        described: the target need not be attached: nothing is going to run.

    Raises:
        InputError: the target is described only: nothing runs there.
    """
    if loss not in ("mean", "first"):
        raise InputError(f"loss: saw {loss!r}, wanted 'mean' or 'first'")
    _reported[:] = [loss]
    chosen = None if target is None else Target(target)
    if chosen is not None and not chosen.attached and not described:
        raise InputError(f"target: {chosen.name} is not attached to this machine; name one that is, as cpu:8")
    if chosen is not None:
        _target[:] = [chosen]
    _switch_on()


@functools.cache
def _switch_on() -> None:
    tensorflow()
    replace_all()
    replace_session(_devices)
    metadata: Any = importlib.import_module("tensorflow.python.tpu.tpu_system_metadata")
    metadata._query_tpu_system_metadata = _metadata
    modules: list[Any] = [importlib.import_module("tensorflow.python.tpu.tpu"), tensorflow().compat.v1.tpu]
    for module in modules:
        module.initialize_system = _initialize_system
        module.shutdown_system = _shutdown_system
    _improve(tpu_estimator())


def _devices() -> Target:
    """The target; chosen now, where it was left open."""
    if _target:
        return _target[0]
    cpu_will_have(max(_asked, default=None))
    best = Target("auto")
    return Target(f"cpu:{_asked[-1]}") if _asked and best.platform == "cpu" else best


def _improve(estimator: Any) -> None:
    """What TPUEstimator does for want of a better way on its own system."""
    # It reads every variable after each loop, to look for NaN; the loss is looked at anyway.
    estimator._sync_variables_ops = lambda ctx: [tensorflow().compat.v1.no_op()]
    config = importlib.import_module("tensorflow_estimator.python.estimator.tpu.tpu_config").RunConfig
    config.__init__ = _asking(config.__init__)
    context: Any = importlib.import_module("tensorflow_estimator.python.estimator.tpu.tpu_context")
    context._get_tpu_context = _without_embeddings(context._get_tpu_context)
    summaries: Any = importlib.import_module("tensorflow.python.ops.summary_ops_v2")
    summaries.flush = _of_handles(summaries.flush, summaries.legacy_raw_flush)
    wrapper = estimator._ModelFnWrapper
    for name in ("convert_to_single_tpu_train_step", "convert_to_single_tpu_eval_step"):
        setattr(wrapper, name, _with_mean_loss(getattr(wrapper, name)))
    estimator._OutfeedHostCall.create_enqueue_op = _enqueue_some(estimator._OutfeedHostCall.create_enqueue_op)
    kind = estimator.TPUEstimator
    kind._add_meta_graph_for_mode = _for_cpu(kind._add_meta_graph_for_mode)


def _asking(make: Callable[..., None]) -> Callable[..., None]:
    """A configuration's number of replicas is heard where the target is left open; where it is not, the target's counts."""

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        config = self.tpu_config
        if not config.num_shards:
            return
        asked = config.num_shards * (config.num_cores_per_replica or 1)
        _asked.append(asked)
        if _target and asked != _target[0].num_devices:
            logger.warning(
                "TPUConfig(num_shards=%d): the target %s has %d devices, which is what counts",
                config.num_shards, _target[0].name, _target[0].num_devices,
            )  # fmt: skip
            self._tpu_config = config._replace(num_shards=None)

    return made


def _without_embeddings(get: Callable[..., Any]) -> Callable[..., Any]:
    """The last argument is newer than some copies of TPUEstimator that scripts bring along."""
    return functools.wraps(get)(
        lambda *args, embedding_config_spec=None: get(*args[:6], *(args[6:] or [embedding_config_spec]))
    )


def _of_handles(flush: Callable[..., Any], raw: Callable[..., Any]) -> Callable[..., Any]:
    """Such copies flush a summary writer by its handle, too."""

    @functools.wraps(flush)
    def flushed(writer: Any = None, name: Any = None) -> Any:
        return (raw if isinstance(writer, tensorflow().Tensor) else flush)(writer, name)

    return flushed


def _enqueue_some(create: Callable[..., Any]) -> Callable[..., Any]:
    """A host call every few steps: the device computes it in each, and the host is given those that it takes."""

    @functools.wraps(create)
    def created(self: Any, step: Any = None) -> Any:
        every = self._outfeed_every_n_steps
        if every == 1 or step is None:
            return create(self, step)
        self._outfeed_every_n_steps = 1
        try:
            made = create(self, step)
        finally:
            self._outfeed_every_n_steps = every
        if made:
            outfeed_only_if(tensorflow().equal(step % every, 0))
        return made

    return created


def _for_cpu(add: Callable[..., Any]) -> Callable[..., Any]:
    """A SavedModel without the graph for a TPU's own server, which no TPU has any more."""

    @functools.wraps(add)
    def added(self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = self._export_to_tpu
        if wanted and not self._export_to_cpu:
            raise InputError(
                "TPUEstimator(export_to_cpu): saw False, wanted True: a SavedModel is for TensorFlow's servers, which run on "
                "CPU and GPU"
            )
        self._export_to_tpu = False
        try:
            return add(self, *args, **kwargs)
        finally:
            self._export_to_tpu = wanted

    return added


def _with_mean_loss(convert: Callable[..., Any]) -> Callable[..., Any]:
    """The step's loss is that of all replicas; the first one's is what the host is shown."""

    @functools.wraps(convert)
    def converted(self: Any, *args: Any) -> Any:
        step, *rest = convert(self, *args)
        return (lambda *given: _mean_over_replicas(step(*given))), *rest

    return converted


def _mean_over_replicas(loss: Any) -> Any:
    tf = tensorflow()
    ops: Any = importlib.import_module("tensorflow.compiler.tf2xla.ops.gen_xla_ops")
    context: Any = importlib.import_module("tensorflow.python.tpu.tpu_function")
    replicas = context.get_tpu_context().number_of_shards
    if replicas == 1 or _reported[0] == "first":
        return loss
    groups = tf.constant([list(range(replicas))])
    return ops.xla_all_reduce(input=loss, group_assignment=groups, reduce_op="Add", mode="CrossReplica") / replicas


def _metadata(master_address: Any, cluster_def: Any = None, query_topology: bool = False) -> Any:
    module: Any = importlib.import_module("tensorflow.python.tpu.tpu_system_metadata")
    cores = _devices().num_devices
    topology: Any = importlib.import_module("tensorflow.python.tpu.topology")
    return module.TPUSystemMetadata(
        num_cores=cores,
        num_hosts=1,
        num_of_cores_per_host=cores,
        topology=topology.Topology(serialized=_topology(cores)) if query_topology else None,
        devices=(),
    )


def _topology(cores: int) -> bytes:
    """A grid of chips, as near to a square as it goes, with two cores each, as computations that span cores expect them."""
    messages: Any = importlib.import_module("tensorflow.core.protobuf.tpu.topology_pb2")
    per_chip = 2 if cores % 2 == 0 else 1
    chips = cores // per_chip
    width = max(x for x in range(1, math.isqrt(chips) + 1) if chips % x == 0)
    places = [(chip % width, chip // width, 0, core) for chip in range(chips) for core in range(per_chip)]
    return messages.TopologyProto(
        mesh_shape=[width, chips // width, 1, per_chip],
        num_tasks=1,
        num_tpu_devices_per_task=cores,
        device_coordinates=[x for place in places for x in place],
    ).SerializeToString()


def _initialize_system(*_: Any, **__: Any) -> Any:
    return tensorflow().constant(_topology(_devices().num_devices), name="topology")


def _shutdown_system(*_: Any, **__: Any) -> Any:
    return tensorflow().compat.v1.no_op(name="shutdown")
