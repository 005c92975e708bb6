"""``tf.compat.v1.Session`` for graphs with computations: its ``run`` starts them, and keeps variables in step with devices."""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable
from typing import Any

from systolic.target import Target
from systolic.tf._collect import collect
from systolic.tf._computation import Record, recorded
from systolic.tf._execution import Execution
from systolic.tf._tensorflow import tensorflow
from systolic.tf._variables import Use, Variables


def replace_session(target: Callable[[], Target]) -> None:
    """Replace ``run``, ``close`` and the constructor, once and for this process.

    Args:
        target: says where computations run; asked when the first one does.
    """
    module: Any = importlib.import_module("tensorflow.python.client.session")
    kind = module.BaseSession
    run, make = kind.run, kind.__init__
    kind.run = functools.wraps(run)(
        lambda self, fetches, feed_dict=None, options=None, run_metadata=None: _run(
            run, target, self, fetches, feed_dict, options, run_metadata
        )
    )

    def construct(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        self._session = None  # what its destructor looks at
        collect(graph or tensorflow().compat.v1.get_default_graph())
        make(self, "", graph, _local(config))

    kind.__init__ = functools.wraps(make)(construct)
    close = kind.close

    def leave(self: Any) -> None:
        _DEVICES.pop(self, None)
        close(self)

    kind.close = functools.wraps(close)(leave)


def _local(config: Any) -> Any:
    """The configuration of a session in this process, for graphs that name devices of a TPU's workers."""
    tf1 = tensorflow().compat.v1
    local = tf1.ConfigProto()
    if config is not None:
        local.CopyFrom(config)
    local.allow_soft_placement = True
    local.log_device_placement = False  # it would list our queues
    local.graph_options.place_pruned_graph = True  # what only a device has is never run here
    local.ClearField("cluster_def")
    return local


class _Devices:
    """What a session has on devices."""

    def __init__(self, session: Any, run: Callable[..., Any], target: Target) -> None:
        weak = weakref.proxy(session)
        self.run = functools.partial(run, weak)
        self.variables = Variables(session.graph, self.run)
        self.execution = Execution(session.graph, session.make_callable, self.variables, target)


_DEVICES: weakref.WeakKeyDictionary[Any, _Devices] = weakref.WeakKeyDictionary()


def _run(
    run: Callable[..., Any], target: Callable[[], Target], session: Any, fetches: Any, feed_dict: Any, *rest: Any
) -> Any:
    record = recorded(session.graph)
    if record is None or not record.computations:
        return run(session, fetches, feed_dict, *rest)
    use = _use(record, session.graph, fetches)
    if use.calls:
        collect(session.graph)
    if session not in _DEVICES:
        if not use.calls:
            return run(session, fetches, feed_dict, *rest)
        _DEVICES[session] = _Devices(session, run, target())
    devices = _DEVICES[session]
    if not use.calls:
        devices.variables.to_session(use.reads)
        try:
            return run(session, fetches, feed_dict, *rest)
        finally:
            devices.variables.forget(use.writes)
    runs = [devices.execution.start(record.computations[name], use.reads) for name in use.calls]
    try:
        result = run(session, fetches, feed_dict, *rest)
    except BaseException:
        for each in runs:
            each.stop()
        for each in runs:
            if each.error is not None and not _cancelled(each.error):
                raise each.error from None
        raise
    for each in runs:
        each.join()
    devices.variables.forget(use.writes)
    return result


def _cancelled(error: BaseException) -> bool:
    """Whether a computation ended since the host's part did."""
    errors: Any = tensorflow().errors
    return isinstance(error, (errors.CancelledError, errors.OutOfRangeError, RuntimeError)) and (
        "clos" in str(error).lower() or isinstance(error, errors.CancelledError)
    )


def _use(record: Record, graph: Any, fetches: Any) -> Use:
    """Of fetches in whatever form; kept by names, for a loop runs the same ones."""
    module: Any = importlib.import_module("tensorflow.python.client.session")
    with graph.as_default():
        elements = module._FetchMapper.for_fetch(fetches).unique_fetches()
    operations = []
    for element in elements:
        item = graph.as_graph_element(element, allow_tensor=True, allow_operation=True)
        operations.append(getattr(item, "op", item))
    key = len(record.computations), tuple(operation.name for operation in operations)
    if key not in record.uses:
        record.uses[key] = Use.of(operations, record.computations)
    return record.uses[key]
