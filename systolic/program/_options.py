"""How deep, how long and with how much memory a program is compiled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, get_args

from systolic._arguments import flag, number, one_of
from systolic._errors import InputError

Depth = Literal["schedule", "fast", "full"]


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """Options of a compile for a described target (an attached one is always compiled in full, by JAX).

    Attributes:
        depth: ``"schedule"`` stops when the scheduled HLO is there (seconds; memory is then an estimate from it),
            ``"fast"`` generates code at low effort (a verdict, and memory close to exact), ``"full"`` at the effort
            that a run on the device would use (minutes for a large model).
        time_limit: seconds after which the compiler is stopped.
        memory_limit: bytes of this machine's memory that the compiler may use; ``None``: 80 % of what is free.
        cache: read and write the cache of described compiles.
        on_progress: called about five times a second as ``on_progress(seconds, stage)`` while the compiler runs.

    Raises:
        InputError: a value that is not as above.
    """

    depth: Depth = "fast"
    time_limit: float = 600.0
    memory_limit: int | None = None
    cache: bool = True
    on_progress: Callable[[float, str], None] | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        one_of("CompileOptions(depth)", self.depth, get_args(Depth))
        number("CompileOptions(time_limit)", self.time_limit, 0, math.inf, "seconds above 0")
        if self.memory_limit is not None:
            wanted = "bytes above 0, or None for 80 % of free memory"
            number("CompileOptions(memory_limit)", self.memory_limit, 0, math.inf, wanted)
        flag("CompileOptions(cache)", self.cache)
        if self.on_progress is not None and not callable(self.on_progress):
            raise InputError(
                f"CompileOptions(on_progress): saw {self.on_progress!r}, wanted a function of (seconds, stage), or None"
            )
