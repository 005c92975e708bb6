"""Floating-point operations of a scheduled program, loops multiplied out.

Matrix work (``dot`` and ``convolution``, also inside fusions) counts 2 per multiply-add, and only taps that fall on
real data, so the zeros that padding and dilation put in count nothing. Work of the vector unit is counted apart, one
operation per element. What the compiler computes twice (rematerialisation) is counted twice: these are operations that
the device performs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections import defaultdict

from systolic.check._hlo import Computation, Instruction, Module, called_by
from systolic.check._shape import Array, leaves

_FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy", "reshape", "transpose", "broadcast",
    "iota", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "reverse", "gather",
    "after-all", "add-dependency", "opt-barrier", "partition-id", "replica-id", "infeed", "outfeed", "send", "recv",
    "convert", "bitcast-convert", "custom-call", "domain", "get-dimension-size", "rng-get-and-update-state",
})  # fmt: skip
_CALLERS = frozenset({"fusion", "call", "async-start", "call-start", "while", "conditional"})


@dataclasses.dataclass(frozen=True)
class OpFlops:
    """Matrix work that comes from one operation of the user's program, per device and step."""

    op_name: str
    source: str
    kind: str
    flops: float
    executions: int


@dataclasses.dataclass(frozen=True)
class Flops:
    """Operations per device and run of the program.

    Attributes:
        matrix: of dots and convolutions.
        elementwise: of everything else that computes.
        by_op: matrix work by operation, largest first.
        unknown_loops: loops whose trip count the text does not tell; each was counted once.
        kernels: custom calls (Pallas, for example) whose work the text does not tell; counted as nothing.
    """

    matrix: float
    elementwise: float
    by_op: tuple[OpFlops, ...]
    unknown_loops: tuple[str, ...]
    kernels: tuple[str, ...]

    @property
    def total(self) -> float:
        """Matrix and elementwise operations."""
        return self.matrix + self.elementwise


def count_flops(module: Module) -> Flops:
    """Count the operations of the entry computation and of all that it runs."""
    counter = _Counter(module)
    counter.visit(module.entry_computation, 1)
    by_op = [OpFlops(name, source, kind, flops, n) for (name, source, kind), (flops, n) in counter.by_op.items()]
    return Flops(
        matrix=sum(op.flops for op in by_op),
        elementwise=counter.elementwise,
        by_op=tuple(sorted(by_op, key=lambda op: -op.flops)),
        unknown_loops=tuple(counter.unknown),
        kernels=tuple(counter.kernels),
    )


class _Counter:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.elementwise = 0.0
        self.by_op: dict[tuple[str, str, str], tuple[float, int]] = defaultdict(lambda: (0.0, 0))
        self.unknown: dict[str, None] = {}
        self.kernels: dict[str, None] = {}

    def visit(self, computation: Computation, times: int) -> None:
        for instruction in computation.instructions:
            opcode = instruction.opcode
            if opcode in ("dot", "convolution"):
                self._matrix(computation, instruction, times)
            elif opcode == "while":
                self._loop(instruction, times)
            elif opcode == "conditional":
                self._heaviest(instruction, times)
            elif opcode in _CALLERS:
                for callee in called_by(self.module, instruction):
                    self.visit(callee, times)
            elif opcode == "custom-call" and instruction.attribute("custom_call_target") == '"tpu_custom_call"':
                self.kernels[instruction.name] = None
            elif opcode not in _FREE and not opcode.endswith(("-start", "-done", "-update")):
                self.elementwise += times * _vector_work(computation, instruction)

    def _matrix(self, computation: Computation, instruction: Instruction, times: int) -> None:
        flops = matrix_flops(computation, instruction)
        key = (instruction.op_name, self.module.source(instruction), instruction.opcode)
        total, executions = self.by_op[key]
        self.by_op[key] = (total + flops * times, executions + times)

    def _loop(self, loop: Instruction, times: int) -> None:
        trips = self.module.trip_count(loop)
        if trips is None:
            self.unknown[loop.name] = None
        for callee in called_by(self.module, loop):
            self.visit(callee, times * (1 if trips is None else trips))

    def _heaviest(self, conditional: Instruction, times: int) -> None:
        branches = []
        for callee in called_by(self.module, conditional):
            branch = _Counter(self.module)
            branch.visit(callee, times)
            branches.append(branch)
        if not branches:
            return
        heaviest = max(branches, key=lambda b: sum(flops for flops, _ in b.by_op.values()) + b.elementwise)
        self.elementwise += heaviest.elementwise
        for key, (flops, executions) in heaviest.by_op.items():
            total, before = self.by_op[key]
            self.by_op[key] = (total + flops, before + executions)
        self.unknown |= heaviest.unknown
        self.kernels |= heaviest.kernels


def matrix_flops(computation: Computation, instruction: Instruction) -> float:
    """2 × multiply-adds of one ``dot`` or ``convolution``."""
    left, right = (_array(computation.by_name[name]) for name in instruction.operands[:2])
    result = _array(instruction)
    if instruction.opcode == "dot":
        contracted = _numbers(instruction.attribute("lhs_contracting_dims") or "{}")
        return 2.0 * result.elements * math.prod(left.dims[d] for d in contracted)
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    if labels is None:
        raise ValueError(f"convolution {instruction.name} without dim_labels")
    lhs, rhs, out = labels.groups()
    window = _window(instruction.attributes)
    taps = 1
    for d in range(sum(label.isdigit() for label in out)):
        taps *= _valid_taps(
            left.dims[lhs.index(str(d))], right.dims[rhs.index(str(d))], result.dims[out.index(str(d))], *window(d)
        )
    groups = int(instruction.attribute("feature_group_count") or 1)
    batch_groups = int(instruction.attribute("batch_group_count") or 1)
    batch, features = left.dims[lhs.index("b")] // batch_groups, left.dims[lhs.index("f")] // groups
    return 2.0 * batch * features * right.dims[rhs.index("o")] * taps


def _window(attributes: str):
    """Reads ``window={size=3x3 stride=2x2 pad=1_1x1_1 lhs_dilate=1x1 rhs_dilate=1x1}`` per spatial dimension."""
    match = re.search(r"window=\{([^}]*)\}", attributes)
    fields = dict(field.split("=") for field in match.group(1).split()) if match else {}

    def of(d: int) -> tuple[int, int, int, int]:
        def number(name: str, default: str) -> str:
            return fields[name].split("x")[d] if name in fields else default

        low = int(number("pad", "0_0").split("_")[0])
        return int(number("stride", "1")), low, int(number("lhs_dilate", "1")), int(number("rhs_dilate", "1"))

    return of


@functools.lru_cache(maxsize=4096)
def _valid_taps(size: int, kernel: int, out: int, stride: int, low: int, dilate: int, kernel_dilate: int) -> int:
    """How many (output position, kernel tap) pairs read a real element, neither padding nor a dilation's hole."""
    last = (size - 1) * dilate
    step = dilate // math.gcd(stride, dilate)
    count = 0
    for tap in range(kernel):
        shift = tap * kernel_dilate - low  # the tap reads position o * stride + shift of the dilated input
        first = max(0, -(shift // stride))  # ceil(-shift / stride)
        end = min(out - 1, (last - shift) // stride) if last >= shift else -1
        if end < first:
            continue
        start = next((o for o in range(first, first + step) if (o * stride + shift) % dilate == 0), None)
        if start is not None and start <= end:
            count += (end - start) // step + 1
    return count


def _vector_work(computation: Computation, instruction: Instruction) -> float:
    elements = float(max((array.elements for array in leaves(instruction.shape)), default=0))
    if instruction.opcode in ("reduce", "sort", "all-reduce", "scatter", "reduce-scatter"):
        operands = [computation.by_name[name] for name in instruction.operands if name in computation.by_name]
        inputs = float(max((array.elements for operand in operands for array in operand.arrays), default=0))
        return inputs * math.log2(max(2.0, inputs)) if instruction.opcode == "sort" else max(elements, inputs)
    if instruction.opcode in ("reduce-window", "select-and-scatter"):
        match = re.search(r"window=\{size=([\dx]+)", instruction.attributes)
        return elements * math.prod(int(n) for n in match.group(1).split("x")) if match else elements
    return elements


def _array(instruction: Instruction) -> Array:
    return instruction.arrays[0]


def _numbers(braces: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", braces)]
