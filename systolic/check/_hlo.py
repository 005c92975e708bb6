"""Parser of scheduled HLO text, as the TPU compiler prints it.

Takes one regular expression a line, and looks closer only where asked: a 50 MB module is read in seconds.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from systolic.check._frames import Frames
from systolic.check._shape import Array, Shape, leaves, parse_shape
from systolic.check._trips import counted

_INSTRUCTION = re.compile(r"  (ROOT )?%?([^\s=]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)", re.DOTALL)
_COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) .*\{$")
_OPERAND = re.compile(r"%([^\s,()]+)")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([^\s,}]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_SOURCE = re.compile(r'source_file="([^"]*)"(?:[^}]*?source_line=(\d+))?')
_WRAPPER = re.compile(r"^jit\([^()]*\)/call_exported/")


@dataclasses.dataclass(slots=True)
class Instruction:
    """One line of a schedule.

    Attributes:
        name: unique in its computation.
        opcode: ``"fusion"``, ``"convolution"``, ...
        shape_text: its shape as printed; ``shape`` is parsed from it.
        operands: names of the operands.
        literal: what stands between the parentheses, for constants and parameters.
        attributes: all that follows.
        root: whether it is the result of its computation.
    """

    name: str
    opcode: str
    shape_text: str
    operands: tuple[str, ...]
    literal: str
    attributes: str
    root: bool

    @property
    def shape(self) -> Shape:
        """Its shape, with layout."""
        return parse_shape(self.shape_text)

    @property
    def arrays(self) -> list[Array]:
        """The arrays of its shape."""
        return list(leaves(self.shape))

    @property
    def called(self) -> list[str]:
        """Names of the computations that it calls, as far as they are executed with it."""
        found = [name for match in _BRANCHES.finditer(self.attributes) for name in _OPERAND.findall(match.group(1))]
        return found + _CALLED.findall(self.attributes)

    @property
    def op_name(self) -> str:
        """Path of the operation in the user's program, as JAX named it; may be empty."""
        match = _OP_NAME.search(self.attributes)
        return _WRAPPER.sub("", match.group(1)) if match else ""

    def attribute(self, name: str) -> str | None:
        """The value of ``name=…``: a word, or all between its braces."""
        match = re.search(rf"[ ,]{name}=(\{{[^{{}}]*\}}|[^\s,]+)", self.attributes)
        return match.group(1).removeprefix("%") if match else None


@dataclasses.dataclass(slots=True)
class Computation:
    """Instructions in the order in which they run."""

    name: str
    instructions: list[Instruction]
    by_name: dict[str, Instruction]

    @property
    def root(self) -> Instruction:
        """The instruction whose value the computation returns."""
        return next((i for i in reversed(self.instructions) if i.root), self.instructions[-1])

    @property
    def parameters(self) -> dict[int, Instruction]:
        """Parameters by number."""
        return {int(i.literal): i for i in self.instructions if i.opcode == "parameter"}


@dataclasses.dataclass(slots=True)
class Module:
    """A whole program of one device.

    Attributes:
        name: of the module.
        header: the first line: aliases, entry layout.
        computations: by name.
        entry: name of the one that runs first.
        frames: where each instruction comes from, if the text says so.
    """

    name: str
    header: str
    computations: dict[str, Computation]
    entry: str
    frames: Frames

    @property
    def entry_computation(self) -> Computation:
        """The computation that runs first."""
        return self.computations[self.entry]

    def aliased_outputs(self) -> dict[int, int]:
        """Flat position in the result → number of the parameter whose buffer it reuses (donation that took effect)."""
        start = self.header.find("input_output_alias={")
        if start < 0:
            return {}
        found = re.findall(r"\{(\d*)\}: \((\d+), \{[\d, ]*\}", self.header[start:].partition(", entry_computation")[0])
        return {int(output or 0): int(parameter) for output, parameter in found}

    def trip_count(self, loop: Instruction) -> int | None:
        """How often a ``while`` runs: as the compiler noted it, else by its counter; ``None`` where that depends on data."""
        if match := _TRIPS.search(loop.attributes):
            return int(match.group(1))
        return counted(self, loop)

    def source(self, instruction: Instruction) -> str:
        """``file:line`` in the user's code that an instruction comes from; empty where the text does not say."""
        if match := _FRAME.search(instruction.attributes):
            return self.frames.source(int(match.group(1)))
        match = _SOURCE.search(instruction.attributes)
        return f"{match.group(1)}:{match.group(2) or '?'}" if match else ""


def parse(text: str) -> Module:
    """Parse HLO text.

    Raises:
        ValueError: it has no entry computation.
    """
    computations: dict[str, Computation] = {}
    tables: dict[str, dict[int, str]] = {}
    header, entry = "", ""
    lines = iter(text.split("\n"))
    current: Computation | None = None
    table: dict[int, str] | None = None
    pending: list[str] = []

    def finish() -> None:
        if pending and current is not None:
            instruction = _instruction("\n".join(pending))
            if instruction is not None:
                current.instructions.append(instruction)
                current.by_name[instruction.name] = instruction
        pending.clear()

    for line in lines:
        if current is not None:
            if line.startswith("}"):
                finish()
                current = None
            elif line.startswith("  ") and " = " in line and line[2:3] in "%R":
                finish()
                pending.append(line)
            else:
                pending.append(line)  # a literal or a string that goes on over the line
        elif line.startswith("HloModule"):
            header = line
        elif line.endswith("{") and (match := _COMPUTATION.match(line)):
            current = Computation(match.group(2), [], {})
            computations[current.name] = current
            if match.group(1):
                entry = current.name
            table = None
        elif line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            table = tables.setdefault(line, {})
        elif table is not None and line:
            number, _, rest = line.partition(" ")
            table[int(number)] = rest
    if not entry:
        raise ValueError(f"HLO text without an entry computation; it begins {text[:80]!r}")
    name = re.match(r"HloModule ([^\s,]+)", header)
    return Module(name.group(1) if name else "", header, computations, entry, Frames(tables))


def called_by(module: Module, instruction: Instruction) -> Iterator[Computation]:
    """The computations that an instruction calls."""
    for name in instruction.called:
        if name in module.computations:
            yield module.computations[name]


def _instruction(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    root, name, shape, opcode, rest = match.groups()
    # Operands hold no parentheses; literals may.
    end = rest.find(")") if opcode != "constant" else _constant_end(rest)
    inside, attributes = rest[:end], rest[end + 1 :]
    operands = tuple(_OPERAND.findall(inside)) if "%" in inside else ()
    return Instruction(name, opcode, shape, operands, "" if operands else inside, attributes, root is not None)


def _constant_end(rest: str) -> int:
    end = rest.find("), ")
    return end if end >= 0 else rest.rfind(")")
