"""What was found out about one program on one target."""

from __future__ import annotations

import dataclasses
import enum

from systolic.check._flops import Flops
from systolic.check._memory import MemoryReport


class Verdict(enum.StrEnum):
    """The outcome of one check."""

    FITS = "fits"
    TOO_LARGE = "does not fit"
    REFUSED = "does not compile"
    UNKNOWN = "could not be checked"


@dataclasses.dataclass(frozen=True)
class StepBound:
    """Seconds that a step takes at least on one device, each resource alone at its published peak.

    Attributes:
        matrix: dots and convolutions at the bfloat16 peak of the matrix units.
        memory: arguments read and results written once, at the HBM's bandwidth.
    """

    matrix: float
    memory: float

    @property
    def seconds(self) -> float:
        """The larger of the two."""
        return max(self.matrix, self.memory)


@dataclasses.dataclass(frozen=True)
class Trial:
    """One batch size that was tried.

    Attributes:
        batch_size: global.
        needed: bytes per device; ``None`` where the compiler did not say.
        fits: whether it does.
        depth: at which it was compiled.
        unknown: why it could not be checked (the compiler crashed or ran out of time); empty where it was.
    """

    batch_size: int
    needed: int | None
    fits: bool
    depth: str
    unknown: str = ""


@dataclasses.dataclass(frozen=True)
class Fit:
    """The outcome of a search for the largest batch that fits.

    Attributes:
        asked: the global batch size that does not fit.
        largest: the largest that was found to fit, a multiple of ``multiple``; ``None`` where none was.
        multiple: the step between batch sizes.
        confirmed: whether code was generated for ``largest``, or only a schedule looked at.
        trials: what was tried, in order.
        too_large: the smallest that is known not to fit, a multiple of ``multiple``.
    """

    asked: int
    largest: int | None
    multiple: int
    confirmed: bool
    trials: tuple[Trial, ...]
    too_large: int

    @property
    def open(self) -> bool:
        """Whether there are sizes between :attr:`largest` and :attr:`too_large` of which nothing is known."""
        return self.too_large - (self.largest or 0) > self.multiple

    @property
    def unknown(self) -> str:
        """Why the search stopped at a size that could not be checked; empty where it did not."""
        return self.trials[-1].unknown if self.trials else ""


@dataclasses.dataclass(frozen=True)
class ProgramCheck:
    """One program on one target.

    Attributes:
        program: its name.
        target: the target's name.
        devices: how many devices the target has.
        verdict: the outcome.
        reason: why, when it is not :attr:`Verdict.FITS`; one root cause.
        depth: how deep it was compiled.
        cache: ``"hit"``, ``"miss"`` or ``"off"``; empty where nothing was compiled.
        seconds: wall time of the check.
        memory: per device; ``None`` where no schedule was made.
        flops: per device and run; ``None`` likewise.
        bound: least seconds of a run; ``None`` likewise, or where the hardware is not known.
        needed: bytes per device, as the compiler said or the schedule shows; ``None`` where neither is known.
        capacity: usable bytes of a device; ``None`` where it is not known.
        fit: the largest batch that fits, if it was searched for.
        notes: what a reader should know.
    """

    program: str
    target: str
    devices: int
    verdict: Verdict
    reason: str
    depth: str
    cache: str
    seconds: float
    memory: MemoryReport | None = None
    flops: Flops | None = None
    bound: StepBound | None = None
    needed: int | None = None
    capacity: int | None = None
    fit: Fit | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it compiles and fits."""
        return self.verdict is Verdict.FITS
