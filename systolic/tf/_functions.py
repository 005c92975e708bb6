"""The functions that a ``GraphDef`` brings along: bodies of loops and branches."""

from __future__ import annotations

import itertools
from typing import Any

_copies = itertools.count()


def every_node(definition: Any) -> list[Any]:
    """Of the graph and of its functions."""
    return [*definition.node, *(node for function in definition.library.function for node in function.node_def)]


def keep_functions_in_use(definition: Any) -> None:
    """Without those of the host's part, such as an input function's."""
    known = {function.signature.name: function for function in definition.library.function}
    gradients: dict[str, str] = {g.function_name: g.gradient_func for g in definition.library.gradient}
    used: set[str] = set()
    waiting = [definition.node]
    while waiting:
        for node in waiting.pop():
            for name in {node.op, *(called.name for called in _called(node))} & known.keys() - used:
                for each in (name, gradients.get(name, name)):
                    if each in known and each not in used:
                        used.add(each)
                        waiting.append(known[each].node_def)
    kept = [function for name, function in known.items() if name in used]
    del definition.library.function[:]
    definition.library.function.extend(kept)


def _called(node: Any) -> list[Any]:
    """The attributes of a node that name functions."""
    values = node.attr.values()
    return [called for v in values for called in (*([v.func] if v.HasField("func") else ()), *v.list.func)]


def rename_functions(definition: Any) -> None:
    """Functions that are changed here need names of their own: TensorFlow keeps the first that it sees of a name."""
    number = next(_copies)
    names = {f.signature.name: f"{f.signature.name}_copy{number}" for f in definition.library.function}
    for function in definition.library.function:
        function.signature.name = names[function.signature.name]
    for gradient in definition.library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        for node in nodes:
            node.op = names.get(node.op, node.op)
            for called in _called(node):
                called.name = names.get(called.name, called.name)
