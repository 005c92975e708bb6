"""The order of reads and writes of a variable in a graph, where the graph leaves it open.

A session runs what is ready: a read that waits for nothing comes long before an optimizer's write, and scripts rely on it
(a host call that reports the step). A compiler takes any order. So it is fixed: a read that no write has to precede comes before
all writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
_KEPT = ("VarHandleOp", "VarIsInitializedOp", "VariableShape", "Identity", *_READS)


def reads_first(definition: Any) -> None:
    """Add control dependencies to a ``GraphDef``; none where the graph's own ones contradict each other's."""
    nodes = {node.name: node for node in definition.node}
    order = _topological({name: _inputs(node) for name, node in nodes.items()})
    reads: dict[str, list[str]] = {}
    writes: dict[str, list[str]] = {}
    for name in order:
        for handle in _inputs(nodes[name]):
            if nodes[handle].op == "VarHandleOp":
                kind = reads if nodes[name].op in _READS else writes if nodes[name].op not in _KEPT else None
                if kind is not None:
                    kind.setdefault(handle, []).append(name)
    after = _writes_before({name: nodes[name] for name in order}, writes)
    added: dict[str, list[str]] = {}
    for handle, written in writes.items():
        mask = sum(1 << after.number[name] for name in written)
        free = [name for name in reads.get(handle, ()) if not after.masks[name] & mask]
        for name in written if free else ():
            added.setdefault(name, []).extend(free)
    edges = {name: [*_inputs(node), *added.get(name, ())] for name, node in nodes.items()}
    if len(_topological(edges)) < len(nodes):
        return
    for name, earlier in added.items():
        nodes[name].input.extend(f"^{read}" for read in earlier)


class _Writes:
    """Which writes each node comes after, as bits."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}
        self.masks: dict[str, int] = {}


def _writes_before(nodes: Mapping[str, Any], writes: Mapping[str, list[str]]) -> _Writes:
    """Of ``nodes`` in topological order."""
    found = _Writes()
    found.number = {name: i for i, name in enumerate(n for names in writes.values() for n in names)}
    for name, node in nodes.items():
        mask = 0
        for earlier in _inputs(node):
            mask |= found.masks[earlier]
            if earlier in found.number:
                mask |= 1 << found.number[earlier]
        found.masks[name] = mask
    return found


def _inputs(node: Any) -> list[str]:
    return [name.lstrip("^").partition(":")[0] for name in node.input]


def _topological(edges: Mapping[str, list[str]]) -> list[str]:
    """Names, each after those it depends on; without those on a cycle."""
    waiting = {name: len(set(inputs)) for name, inputs in edges.items()}
    consumers: dict[str, list[str]] = {name: [] for name in edges}
    for name, inputs in edges.items():
        for earlier in set(inputs):
            consumers[earlier].append(name)
    ready = [name for name, count in waiting.items() if count == 0]
    order = []
    while ready:
        name = ready.pop()
        order.append(name)
        for later in consumers[name]:
            waiting[later] -= 1
            if waiting[later] == 0:
                ready.append(later)
    return order
