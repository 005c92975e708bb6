"""Which buffers the values of one computation lie in.

Names such as tuples, bitcasts and loop results do not occupy memory of their own: they point to buffers that other
instructions made. A buffer is known by the instruction that made it and its place among the results.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from systolic.check._hlo import Computation, Instruction
from systolic.check._shape import HBM, Array, leaf_count

Buffer = tuple[str, int]  # (name of the instruction that made it, position among its arrays)
Places = list[frozenset[Buffer]]  # for each array of a value, the buffers it may lie in

_SAME = frozenset({"bitcast", "opt-barrier", "while", "domain", "optimization-barrier"})
_LISTS = re.compile(r'"aliasing_operands":\{"lists":\[((?:\{"indices":\[[^\]]*\]\},?)*)\]')
_INDICES = re.compile(r'"indices":\[([^\]]*)\]')
_MUST = re.compile(r"\{(\d*)\}: \((\d+), \{[\d, ]*\}")


class PointsTo:
    """Points-to sets of a computation.

    Attributes:
        places: for each instruction, where the arrays of its value lie.
        buffers: the arrays that were made, by buffer.
    """

    def __init__(self, computation: Computation) -> None:
        self.computation = computation
        self.places: dict[str, Places] = {}
        self.buffers: dict[Buffer, Array] = {}
        for instruction in computation.instructions:
            self.places[instruction.name] = self._place(instruction)

    def operand_places(self, instruction: Instruction) -> list[Places]:
        """Where each operand lies."""
        return [self.places.get(name, []) for name in instruction.operands]

    def _place(self, instruction: Instruction) -> Places:
        opcode, operands = instruction.opcode, self.operand_places(instruction)
        if opcode == "tuple":
            return [place for operand in operands for place in operand]
        if opcode == "get-tuple-element":
            return self._element(instruction, operands[0])
        if opcode == "add-dependency" or (opcode in _SAME and operands):
            return list(operands[0])
        if opcode.endswith("-start"):
            return self._start(instruction, operands)
        if opcode.endswith("-done") and operands:
            return self._done(instruction, operands[0])
        if opcode.endswith("-update") and not opcode.startswith("dynamic-") and operands:
            return list(operands[0])
        return self._new(instruction, range(len(instruction.arrays)))

    def _element(self, instruction: Instruction, operand: Places) -> Places:
        whole = self.computation.by_name[instruction.operands[0]].shape
        index = int(instruction.attribute("index") or 0)
        before = sum(leaf_count(part) for part in whole[:index])
        return operand[before : before + leaf_count(whole[index])]

    def _start(self, instruction: Instruction, operands: Sequence[Places]) -> Places:
        """An asynchronous operation: its operands, its results and some flags, in one tuple."""
        arrays = instruction.arrays
        flat = [place for operand in operands for place in operand]
        if isinstance(instruction.shape, Array) or len(instruction.shape) < 2:
            return self._new(instruction, range(len(arrays)))
        if instruction.opcode == "copy-start":  # (destination, source, flag)
            return self._new(instruction, [0]) + flat + self._new(instruction, range(1 + len(flat), len(arrays)))
        count = leaf_count(instruction.shape[0])
        if count != len(flat):
            return self._new(instruction, range(len(arrays)))
        return flat + self._new(instruction, range(count, len(arrays)))

    def _done(self, instruction: Instruction, operand: Places) -> Places:
        wanted = len(instruction.arrays)
        start = self.computation.by_name[instruction.operands[0]]
        if instruction.opcode == "copy-done" or isinstance(start.shape, Array) or len(start.shape) < 2:
            return operand[:wanted]
        before = leaf_count(start.shape[0])
        return operand[before : before + wanted] if before + wanted <= len(operand) else operand[:wanted]

    def _new(self, instruction: Instruction, positions: Sequence[int]) -> Places:
        arrays = instruction.arrays
        out: Places = []
        for position in positions:
            buffer = (instruction.name, position)
            self.buffers[buffer] = arrays[position]
            out.append(frozenset([buffer]))
        return out


def sharing(instruction: Instruction, operands: Sequence[Places]) -> list[tuple[frozenset[Buffer], int, bool]]:
    """Which results may lie where an operand lay: (places of the operand's array, position of the result, must).

    The compiler notes the pairs that an instruction can do in place; a ``dynamic-update-slice`` always can.
    """
    out = []
    flat = [place for operand in operands for place in operand]
    if instruction.opcode == "dynamic-update-slice" and operands and operands[0]:
        out.append((operands[0][0], 0, True))
    _, _, rest = instruction.attributes.partition("output_to_operand_aliasing={")
    if rest:
        for output, operand in _MUST.findall(rest.partition("}, ")[0] + "}"):
            if int(operand) < len(operands) and operands[int(operand)]:
                out.append((operands[int(operand)][0], int(output or 0), True))
    if match := _LISTS.search(instruction.attributes):
        for indices in _INDICES.findall(match.group(1)):  # arrays of the operands are counted first, then results
            numbers = [int(n) for n in re.findall(r"\d+", indices)]
            given = [n for n in numbers if n < len(flat)]
            made = [n - len(flat) for n in numbers if 0 <= n - len(flat) < leaf_count(instruction.shape)]
            out += [(flat[operand], position, False) for operand in given for position in made]
    return out


def in_hbm(array: Array) -> bool:
    """Whether an array takes room in device memory."""
    return array.space == HBM and array.dtype != "token"
