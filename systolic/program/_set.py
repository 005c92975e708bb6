"""A ProgramSet: the named Programs of one model, compiled side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
        """Add ``program`` under its own name, which must be new.

        Raises:
            InputError: it is no Program, or there is one of this name.
        """
        if not isinstance(program, Program):
            raise InputError(
                f"ProgramSet.add(program): saw {type(program).__name__}, wanted a Program; make one of a function and its "
                "example arguments"
            )
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

    def get(self, name: str, default: Any = None) -> Any:
        """The Program of that name, or ``default``."""
        return self._programs.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._programs)

    def __len__(self) -> int:
        return len(self._programs)

    def __contains__(self, name: object) -> bool:
        return name in self._programs

    def __repr__(self) -> str:
        return f"ProgramSet({', '.join(self._programs)})"
