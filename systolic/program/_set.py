"""A ProgramSet: the named Programs of one model, compiled side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from systolic._errors import InputError
from systolic.program._program import Program


class ProgramSet(Mapping[str, Program]):
    """Programs by name, in the order in which they were added: ``init``, the ``train`` programs, ``eval``, ``predict``.

    Example:
        >>> import numpy as np
        >>> programs = ProgramSet()
        >>> programs.add(Program(abs, np.zeros(2), name="magnitude"))
        >>> list(programs)
        ['magnitude']
    """

    def __init__(self) -> None:
        self._programs: dict[str, Program] = {}

    def add(self, program: Program) -> None:
        """Add ``program`` under its own name, which must be new."""
        if program.name in self._programs:
            raise InputError(f"ProgramSet: a program named {program.name!r} is there already; give each its own name")
        self._programs[program.name] = program

    def __getitem__(self, name: str) -> Program:
        try:
            return self._programs[name]
        except KeyError:
            raise InputError(
                f"ProgramSet: no program {name!r}; there are {', '.join(self._programs) or 'none'}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._programs)

    def __len__(self) -> int:
        return len(self._programs)

    def __contains__(self, name: object) -> bool:
        return name in self._programs

    def __repr__(self) -> str:
        return f"ProgramSet({', '.join(self._programs)})"
