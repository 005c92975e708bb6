"""What the TPU compiler says when a program does not fit, as numbers."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import jax

from systolic._errors import OutOfDeviceMemoryError
from systolic._format import format_value

if TYPE_CHECKING:
    from systolic.program._described import Description

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = r"([\d.]+)([KMGT]?)B?"


@dataclasses.dataclass(frozen=True)
class LargeBuffer:
    """One of the compiler's largest allocations.

    Attributes:
        size: bytes with tile padding.
        unpadded: bytes without it.
        shape: HLO shape with its layout.
        op_name: path of the operation in the user's program, as JAX named it; may be empty.
        kind: what it holds, such as ``"HLO temp"``; may be empty.
    """

    size: int
    unpadded: int
    shape: str
    op_name: str = ""
    kind: str = ""

    @property
    def padding(self) -> int:
        """Bytes that hold nothing: extra memory due to padding."""
        return self.size - self.unpadded


def out_of_memory(error: jax.errors.JaxRuntimeError, what: str) -> OutOfDeviceMemoryError | None:
    """The error for a program that ran out of memory while it ran; ``None`` where ``error`` is about something else."""
    text = str(error)
    if not re.search(r"RESOURCE_EXHAUSTED|[Oo]ut of memory", text):
        return None
    wanted = re.search(r"allocat\w+ (\d+) ?bytes", text)
    size = f"; {format_value(int(wanted[1]), 'bytes')} were wanted at once" if wanted else ""
    return OutOfDeviceMemoryError(
        f"{what} ran out of device memory{size}. Use a smaller batch, or more microbatches (accumulate) in training; "
        "systolic check tells what fills the memory, for a TPU that need not be there"
    )


class ProgramTooLargeError(OutOfDeviceMemoryError):
    """A described compile that ran out of device memory.

    Attributes:
        needed_bytes: what the compiler asked for per device; ``None`` where it did not say.
        available_bytes: what a device has for programs; ``None`` where it did not say.
        buffers: the largest allocations, as far as the compiler listed them.
        schedule: the program as scheduled without regard to the limit, to look for large buffers in; ``None`` where the
            compiler gave up before it had one.
    """

    def __init__(
        self,
        message: str,
        *,
        needed_bytes: int | None,
        available_bytes: int | None,
        buffers: tuple[LargeBuffer, ...],
        schedule: Description | None,
    ) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.buffers = buffers
        self.schedule = schedule

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (str(self), self.needed_bytes, self.available_bytes, self.buffers, self.schedule)


def _rebuild(message: str, needed: Any, available: Any, buffers: Any, schedule: Any) -> ProgramTooLargeError:
    return ProgramTooLargeError(
        message, needed_bytes=needed, available_bytes=available, buffers=buffers, schedule=schedule
    )


def parse_sizes(message: str) -> tuple[int | None, int | None]:
    """(needed, available) bytes from a RESOURCE_EXHAUSTED message; ``None`` for what it does not say.

    Example:
        >>> parse_sizes("memory required for HLO temporaries (1.5K) exceeds available HBM (1.0K)")
        (1536, 1024)
    """
    for pattern in (
        rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)",
        rf"Used {_SIZE} of {_SIZE} \w+",
        rf"\(size={_SIZE}\) would exceed memory \(size={_SIZE}\)",
    ):
        if match := re.search(pattern, message):
            return _bytes(*match.group(1, 2)), _bytes(*match.group(3, 4))
    return None, None


def parse_buffers(message: str) -> tuple[LargeBuffer, ...]:
    """The list "Largest program allocations" of a RESOURCE_EXHAUSTED message, largest first; often there is none."""
    out = []
    for block in re.split(r"\n\s*\d+\. Size: ", message)[1:]:
        size = re.match(_SIZE, block)
        if size is None:
            continue
        padded = _bytes(*size.group(1, 2))
        extra = re.search(rf"Extra memory due to padding: {_SIZE}", block)
        unpadded = re.search(rf"Unpadded size: {_SIZE}", block)
        logical = padded
        if unpadded:
            logical = _bytes(*unpadded.group(1, 2))
        elif extra:
            logical = padded - _bytes(*extra.group(1, 2))
        out.append(
            LargeBuffer(
                size=padded,
                unpadded=logical,
                shape=_field(r"Shape: (\S+)", block),
                op_name=_field(r'op_name="([^"]*)"', block),
                kind=_field(r"Allocation type: (.+)", block),
            )
        )
    return tuple(sorted(out, key=lambda buffer: -buffer.size))


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


def _field(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match.group(1).strip() if match else ""
