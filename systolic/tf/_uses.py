"""Which names of TensorFlow a file uses, read off its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

_TOP = "tensorflow"


def uses(tree: ast.AST, is_module: Callable[[str], bool]) -> list[tuple[str, int]]:
    """Dotted names from ``tensorflow`` on, with their lines, in the order of the file.

    Args:
        tree: of the file.
        is_module: whether a dotted name is a module, so that a variable that it is assigned to is another name for it.

    Example:
        >>> uses(ast.parse("import tensorflow as tf\\nx = tf.train.Saver()"), lambda name: False)
        [('tensorflow.train.Saver', 2)]
    """
    visitor = _Visitor(is_module)
    visitor.visit(tree)
    return visitor.found


class _Visitor(ast.NodeVisitor):
    """Walks a file; keeps which local name stands for what, and which of them a function hides."""

    def __init__(self, is_module: Callable[[str], bool]) -> None:
        self.found: list[tuple[str, int]] = []
        self._is_module = is_module
        self._names: dict[str, str] = {}
        self._hidden: list[set[str]] = []

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] != _TOP:
                continue
            name = _plain(alias.name)
            if alias.asname:
                self._names[alias.asname] = name
            else:
                self._names[_TOP] = _TOP
            if name != _TOP:
                self.found.append((name, node.lineno))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or (node.module or "").partition(".")[0] != _TOP:
            return
        for alias in node.names:
            name = _plain(str(node.module) if alias.name == "*" else f"{node.module}.{alias.name}")
            if alias.name != "*":
                self._names[alias.asname or alias.name] = name
            if name != _TOP:
                self.found.append((name, node.lineno))

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        name = self._dotted(node.value)
        if name is not None and self._is_module(name):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self._names[target.id] = name

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._dotted(node)
        if name is None:
            self.generic_visit(node)
        else:
            self.found.append((name, node.lineno))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for outside in (
            *node.decorator_list,
            *node.args.defaults,
            *(d for d in node.args.kw_defaults if d is not None),
        ):
            self.visit(outside)
        self._hidden.append(_bound(node) - self._assigned_modules(node))
        for inside in node.body:
            self.visit(inside)
        self._hidden.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def _dotted(self, node: ast.AST) -> str | None:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or any(node.id in hidden for hidden in self._hidden):
            return None
        top = self._names.get(node.id)
        return None if top is None else _plain(".".join([top, *reversed(parts)]))

    def _assigned_modules(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
        """Variables of a function that are other names of modules, as in ``slim = tf.contrib.slim``."""
        found = set()
        for inside in _own(node):
            if isinstance(inside, ast.Assign) and (name := self._dotted(inside.value)) and self._is_module(name):
                found |= {target.id for target in inside.targets if isinstance(target, ast.Name)}
        return found


def _plain(name: str) -> str:
    """Without ``compat.v1``, which a script of TensorFlow 1 may leave out."""
    while f"{name}.".startswith(f"{_TOP}.compat.v1."):
        name = _TOP + name.removeprefix(f"{_TOP}.compat.v1")
    return name


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a function, and not in a function in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _own(child)


def _bound(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Parameters and variables of a function; names that it imports are none, and those it declares global neither."""
    given = node.args
    names = {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    names |= {one.arg for one in (given.vararg, given.kwarg) if one is not None}
    outer: set[str] = set()
    for inside in _own(node):
        if isinstance(inside, ast.Name) and isinstance(inside.ctx, ast.Store):
            names.add(inside.id)
        elif isinstance(inside, ast.Global | ast.Nonlocal):
            outer.update(inside.names)
    return names - outer
