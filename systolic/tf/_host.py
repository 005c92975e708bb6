"""Operations of a step that only the host can do: calls of Python, and printing.

In the graph they become custom calls, in the module calls back to this process.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from systolic._errors import InputError

TARGET = "systolic_host_"
_CALLS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_numbers = itertools.count()
raised: list[Exception] = []
"""What functions raised, for those who are told of a failed step."""
_functions: dict[str, Callable[..., Sequence[Any]]] = {}


def host_function(target: str) -> Callable[..., Sequence[Any]]:
    """Of the name of a custom call: arrays to arrays."""
    return _functions[target]


def make_host_calls(nodes: Any, results: Any = None) -> None:
    """Change the nodes of a graph or function, in place; ``results`` are those of the function, by name.

    Raises:
        InputError: a call of Python whose results have no static shape.
    """
    by_name = {node.name: node for node in nodes}
    called = [node.name for node in nodes if node.op in _CALLS]
    for node in list(nodes):
        if node.op in _CALLS:
            _call(node, nodes)
        elif node.op == "Print":
            _print(nodes, node, list(node.input[1:]), list(node.attr["U"].list.type), _listing(node), node.input[0])
        elif node.op == "PrintV2":
            text = by_name.get(node.input[0].partition(":")[0])
            if text is not None and text.op == "StringFormat":
                dtypes = list(text.attr["T"].list.type)
                control = [name for name in node.input[1:] if name.startswith("^")]
                _print(nodes, node, [*text.input[: len(dtypes)], *control], dtypes, _formatted(text, node), None)
    for name in called:  # within functions, results go by the name that an operation gives to them
        for node in nodes:
            for i, source in enumerate(node.input):
                node.input[i] = source.replace(f"{name}:output:", f"{name}:results:")
        for key in results or ():
            results[key] = results[key].replace(f"{name}:output:", f"{name}:results:")
    used = {name.lstrip("^").partition(":")[0] for node in nodes for name in node.input}
    kept = [node for node in nodes if node.op != "StringFormat" or node.name in used]
    if len(kept) < len(nodes):
        del nodes[:]
        nodes.extend(kept)


def _call(node: Any, nodes: Any) -> None:
    shapes = list(node.attr["_output_shapes"].list.shape) or [None] * len(node.attr["Tout"].list.type)
    for other in nodes:  # what the script says of them
        source, *number = other.input[0].split(":") if other.op == "EnsureShape" else [""]
        if source == node.name:
            shapes[int(number[-1]) if number else 0] = other.attr["shape"].shape
    if any(shape is None or shape.unknown_rank or any(d.size < 0 for d in shape.dim) for shape in shapes):
        raise InputError(
            f"py_func (node {node.name}): a result has no static shape; give it one with tf.ensure_shape or set_shape"
        )
    token = node.attr["token"].s.decode()
    dtypes = list(node.attr["Tout"].list.type)

    def call(*arrays: np.ndarray) -> Sequence[Any]:
        registry: Any = importlib.import_module("tensorflow.python.ops.script_ops")._py_funcs
        found = registry(token, None, list(arrays))
        return [np.asarray(x) for x in (found if isinstance(found, (list, tuple)) else [found])]

    _become(node, list(node.attr["Tin"].list.type), dtypes, shapes, call)


def _print(
    nodes: Any, node: Any, inputs: list[str], dtypes: list[int], show: Callable[..., None], passed: str | None
) -> None:
    """A call that prints, and in the place of the node what passes through it, after the call."""
    call = nodes.add(name=f"{node.name}/on_host") if passed is not None else node
    kept = node.attr["T"].type
    del call.input[:]
    call.input.extend(inputs)

    def shown(*arrays: np.ndarray) -> Sequence[Any]:
        show(*arrays)
        return []

    _become(call, dtypes, [], [], shown)
    if passed is not None:
        node.op = "Identity"
        node.attr.clear()
        node.attr["T"].type = kept
        del node.input[:]
        node.input.extend([passed, f"^{call.name}"])


def _become(
    node: Any, given: list[int], dtypes: list[int], shapes: Iterable[Any], function: Callable[..., Any]
) -> None:
    target = f"{TARGET}{next(_numbers)}"
    _functions[target] = function
    node.op = "XlaCustomCallV2"
    shapes = list(shapes)
    node.attr.clear()
    node.attr["call_target_name"].s = target.encode()
    node.attr["backend_config"].s = b""
    node.attr["has_side_effect"].b = True
    node.attr["operand_dtypes"].list.type.extend(given)
    node.attr["result_dtypes"].list.type.extend(dtypes)
    node.attr["result_shapes"].list.SetInParent()
    node.attr["result_shapes"].list.shape.extend(shapes)
    for name in ("operand_dtypes", "result_dtypes"):
        node.attr[name].list.SetInParent()


def _listing(node: Any) -> Callable[..., None]:
    message, most = node.attr["message"].s.decode(), int(node.attr["summarize"].i)

    def show(*arrays: np.ndarray) -> None:
        print(message + "".join(f"[{_few(array, most)}]" for array in arrays), file=sys.stderr, flush=True)

    return show


def _few(array: np.ndarray, most: int) -> str:
    most = 3 if most == 0 else array.size if most < 0 else most
    flat = array.reshape(-1)
    return " ".join(map(str, flat[:most])) + ("..." if flat.size > most else "")


def _formatted(text: Any, node: Any) -> Callable[..., None]:
    template, mark = text.attr["template"].s.decode(), text.attr["placeholder"].s.decode()
    end, stream = node.attr["end"].s.decode() or "\n", node.attr["output_stream"].s.decode()

    def show(*arrays: np.ndarray) -> None:
        told = template
        for array in arrays:
            told = told.replace(mark, str(array.tolist() if array.ndim == 0 else array), 1)
        print(told, end=end, file=sys.stdout if stream == "stdout" else sys.stderr, flush=True)

    return show
