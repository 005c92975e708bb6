"""The recompile guard: how many signatures may be compiled, and what to say to the one too many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from systolic._errors import InputError, RecompileError
from systolic.program._signature import Signature

if TYPE_CHECKING:
    from systolic.target import Target


class CompileBudget:
    """How many signatures each name may be compiled for on each target, over all Programs that are given this budget.

    A Program with a plain number has a budget of its own. Whoever makes several Programs for one purpose, such as a
    ``predict`` for every kind of batch that comes, gives them one budget, so that it is the purpose that is counted.

    Args:
        limit: compiles of one name on one target.
        setting: what to raise to allow more, for the error.

    Raises:
        InputError: ``limit`` is not a whole number of at least 1.

    Example:
        >>> import numpy as np
        >>> from systolic.program import Program
        >>> shared = CompileBudget(2)
        >>> for rows in (1, 2):
        ...     _ = Program(lambda x: x, np.zeros(rows), name="predict", budget=shared).compile("cpu")
        >>> shared.used("predict", "cpu")
        2
    """

    def __init__(self, limit: int = 1, setting: str = "Program(budget=…)") -> None:
        if not _is_count(limit) or limit < 1:
            raise InputError(f"{setting.partition('=')[0].rstrip(')')}): saw {limit!r}, wanted at least 1 compile")
        self.limit = int(limit)
        self.setting = setting
        self._spent: dict[tuple[str, str], list[Signature]] = {}

    def used(self, name: str, target: str | Target) -> int:
        """Compiles of ``name`` on ``target`` so far."""
        return len(self._spent.get((name, str(target)), []))

    def check(self, name: str, target: Target, new: Signature) -> None:
        """Refuse the compile of ``new`` where the budget is spent.

        Raises:
            RecompileError: it names the arguments that are not as in the signature compiled last, as they were and are.
        """
        spent = self._spent.get((name, target.name), [])
        if len(spent) < self.limit:
            return
        weak = [leaf.path for leaf in new.leaves if leaf.weak]
        changes = spent[-1].difference(new) or ["the arguments are as before; it is another function of the same name"]
        raise RecompileError(
            f"program {name!r} met a new signature, and its compile budget of {self.limit} is spent:\n  "
            + "\n  ".join(changes)
            + (f"\nPython scalars (weak types) among the arguments: {', '.join(weak)}." if weak else "")
            + f"\nGive it arrays of the compiled shapes (pad or bucket the input), or raise {self.setting} if this many "
            "programs are really wanted."
        )

    def spend(self, name: str, target: Target, signature: Signature) -> None:
        """Note that ``name`` was compiled for ``signature`` on ``target``."""
        self._spent.setdefault((name, target.name), []).append(signature)

    def __repr__(self) -> str:
        return f"CompileBudget({self.limit})"


def _is_count(value: Any) -> bool:
    return hasattr(type(value), "__index__") and not isinstance(value, bool)
