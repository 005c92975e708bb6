"""A run's Programs compiled on its target, with what each compile cost."""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

import jax

from systolic._log import logger
from systolic.program import Program
from systolic.target import Target


@dataclasses.dataclass
class Compiled:
    """What a compile cost, for the run summary."""

    program: str
    seconds: float
    cache: str


class Executables:
    """Compiles Programs, or with ``eager`` runs them op by op.

    Attributes:
        compiles: every compile so far.
    """

    def __init__(self, eager: bool) -> None:
        self._eager = eager
        self._known: dict[int, Any] = {}
        self.compiles: list[Compiled] = []

    def of(self, program: Program, target: Target) -> Any:
        """The compiled Program, or what runs it op by op."""
        if self._eager:
            return functools.partial(_run_on, target.devices()[0], program)
        started = time.monotonic()
        executable = program.compile(target)
        if id(executable) not in self._known:
            self._known[id(executable)] = executable
            self.compiles.append(Compiled(program.name, executable.seconds, executable.cache))
            logger.info("compiled %s in %.2f s (cache %s)", program.name, time.monotonic() - started, executable.cache)
        return executable


def _run_on(device: Any, program: Program, *args: Any) -> Any:
    with jax.default_device(device):
        return program(*args)
