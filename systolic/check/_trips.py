"""How often a loop runs, where its counter starts, steps and ends at constants.

The scheduled HLO of a TPU carries no note of it. What counts is the element of the loop's tuple that the condition
compares; any other integer in the condition says nothing.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from systolic.check._hlo import Computation, Instruction, Module

_SAME = frozenset({"copy", "bitcast", "convert", "reshape"})
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}


@dataclasses.dataclass(frozen=True)
class _Value:
    """``element`` of the loop's tuple (``None``: of none) plus ``offset``."""

    element: int | None
    offset: int


def counted(module: Module, loop: Instruction) -> int | None:
    """Trips of a ``while``; ``None`` where they depend on data."""
    condition = module.computations.get(loop.attribute("condition") or "")
    body = module.computations.get(loop.attribute("body") or "")
    home = next((c for c in module.computations.values() if c.by_name.get(loop.name) is loop), None)
    if condition is None or body is None or home is None or not loop.operands:
        return None
    compared = _compared(module, condition)
    start = home.by_name.get(loop.operands[0])
    if compared is None or start is None or start.opcode != "tuple" or body.root.opcode != "tuple":
        return None
    counter, limit, direction = compared

    def invariant(value: _Value | None) -> int | None:
        """The number that a value is in every turn."""
        if value is None or value.element is None:
            return None if value is None else value.offset
        first = _value(module, home, start.operands[value.element])
        after = _value(module, body, body.root.operands[value.element])
        stays = after == _Value(value.element, 0) or (after == first and after is not None and after.element is None)
        return first.offset + value.offset if stays and first is not None and first.element is None else None

    if invariant(counter) is not None:
        counter, limit, direction = limit, counter, _MIRRORED.get(direction, direction)
    end = invariant(limit)
    if counter.element is None or end is None:
        return None
    first = _value(module, home, start.operands[counter.element])
    after = _value(module, body, body.root.operands[counter.element])
    if first is None or first.element is not None or after is None or after.element != counter.element:
        return None
    distance, step = end - (first.offset + counter.offset), after.offset
    if direction in ("GT", "GE"):
        distance, step = -distance, -step
    if step < 1 or direction not in _MIRRORED:
        return None
    return max(0, -(-(distance + (direction in ("LE", "GE"))) // step))


def _compared(module: Module, condition: Computation) -> tuple[_Value, _Value, str] | None:
    """Both sides of the comparison that a condition is, and its direction."""
    root, home, given = condition.root, condition, None
    if root.opcode == "fusion":
        inner = module.computations.get(root.attribute("calls") or "")
        if inner is None:
            return None
        given = [_value(module, condition, name) for name in root.operands]
        root, home = inner.root, inner
    direction = re.search(r"direction=(\w+)", root.attributes)
    if root.opcode != "compare" or direction is None:
        return None
    left, right = (_value(module, home, name, given) for name in root.operands)
    return None if left is None or right is None else (left, right, direction.group(1))


def _value(module: Module, home: Computation, name: str, given: list[_Value | None] | None = None) -> _Value | None:
    """What an instruction of a condition, a body, or a caller is; ``given``: what the parameters of a fusion are."""
    instruction = home.by_name.get(name)
    if instruction is None:
        return None
    if instruction.opcode in _SAME:
        return _value(module, home, instruction.operands[0], given)
    if instruction.opcode == "constant":
        number = re.fullmatch(r"-?\d+", instruction.literal.strip())
        return _Value(None, int(number.group())) if number else None
    if instruction.opcode == "parameter" and given is not None:
        return given[int(instruction.literal)]
    if instruction.opcode == "get-tuple-element":
        of = home.by_name.get(instruction.operands[0])
        index = instruction.attribute("index")
        return _Value(int(index), 0) if of is not None and of.opcode == "parameter" and index else None
    if instruction.opcode == "add":
        left, right = (_value(module, home, operand, given) for operand in instruction.operands)
        if left is None or right is None or (left.element is not None and right.element is not None):
            return None
        element = right.element if left.element is None else left.element
        return _Value(element, left.offset + right.offset)
    return None
