"""The largest batch that fits, found by compiling.

Memory grows nearly linearly with the batch until the compiler starts to recompute, so each guess is interpolated
between the largest batch known to fit and the smallest known not to. Guesses stop at the schedule, which takes seconds;
the answer is confirmed with generated code. A size that could not be checked ends the search: it is no word about
memory, and the sizes around it stay unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from systolic._arguments import whole
from systolic.check._analyse import analyse
from systolic.check._occupants import kept_totals
from systolic.check._result import Fit, ProgramCheck, Trial, Verdict
from systolic.program import CompileOptions, Program
from systolic.target import Target


@dataclasses.dataclass(frozen=True)
class BatchSearch:
    """How to make a program for another batch size.

    Attributes:
        program_at: global batch size → program.
        batch_size: the global batch size that is wanted.
        multiple: batch sizes are multiples of this; ``None``: of the target's number of devices, times ``per_device``.
        trials: how many schedules are compiled at most.
        per_device: without ``multiple``, batch sizes are multiples of this for each device.

    Raises:
        InputError: a number that is not a whole one of at least 1.
    """

    program_at: Callable[[int], Program]
    batch_size: int
    multiple: int | None = None
    trials: int = 8
    per_device: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "multiple", "trials", "per_device"):
            value = getattr(self, name)
            if value is not None or name != "multiple":
                whole(f"BatchSearch({name})", value)


def largest_batch(search: BatchSearch, target: Target, options: CompileOptions, failed: ProgramCheck) -> Fit:
    """Search below ``search.batch_size``, which does not fit.

    Args:
        search: the programs.
        target: a described target.
        options: limits and cache; the depth is chosen here.
        failed: the check of ``search.batch_size``; its numbers guide the first guess.
    """
    multiple = search.multiple or target.num_devices * search.per_device
    trials: list[Trial] = []
    schedule = dataclasses.replace(options, depth="schedule")
    fits, too_large = 0, -(-search.batch_size // multiple)  # in multiples; 0 stands for "none"
    below = failed.memory.arguments if failed.memory else 0
    above = failed.needed
    kept = sum(kept_totals(failed.memory).values()) if failed.memory else 0
    hopeless = failed.capacity is not None and kept > failed.capacity  # so the least size is to show it
    while too_large - fits > 1 and len(trials) < search.trials:
        guess = 1 if hopeless and not trials else _between(fits, too_large, below, above, failed.capacity)
        trial = _try(search, guess * multiple, target, schedule)
        trials.append(trial)
        if trial.unknown:
            break
        if trial.fits:
            fits, below = guess, trial.needed or below
        else:
            too_large, above = guess, trial.needed
    confirmed = False
    while fits > 0 and not confirmed and len(trials) < search.trials + 3 and not _stopped(trials):
        trial = _try(search, fits * multiple, target, dataclasses.replace(options, depth="fast"))
        trials.append(trial)
        confirmed = trial.fits
        if not confirmed and not trial.unknown:
            too_large = fits
            fits = min(fits - 1, int(fits * _shrink(trial.needed, failed.capacity)))
    return Fit(
        asked=search.batch_size,
        largest=fits * multiple if confirmed or (fits > 0 and _stopped(trials)) else None,
        multiple=multiple,
        confirmed=confirmed,
        trials=tuple(trials),
        too_large=too_large * multiple,
    )


def _stopped(trials: list[Trial]) -> bool:
    return bool(trials and trials[-1].unknown)


def _try(search: BatchSearch, batch_size: int, target: Target, options: CompileOptions) -> Trial:
    check = analyse(search.program_at(batch_size), target, options)
    unknown = (check.reason or "it could not be checked") if check.verdict is Verdict.UNKNOWN else ""
    return Trial(batch_size, check.needed, check.verdict is Verdict.FITS, options.depth, unknown)


def _shrink(needed: int | None, capacity: int | None) -> float:
    """By how much to cut a batch whose schedule fitted and whose code did not: the allocator leaves gaps."""
    if needed is None or capacity is None or needed <= capacity:
        return 0.95
    return min(0.98 * capacity / needed, 0.98)


def _between(fits: int, too_large: int, below: int, above: int | None, capacity: int | None) -> int:
    """The next guess: where the line through both ends meets the capacity, kept a little off the ends."""
    middle = (fits + too_large) // 2
    if above is None or capacity is None or above <= below:
        return max(middle, fits + 1)
    guess = fits + int((too_large - fits) * (capacity - below) / (above - below))
    margin = (too_large - fits) // 8
    return min(max(guess, fits + max(1, margin)), too_large - max(1, margin))
