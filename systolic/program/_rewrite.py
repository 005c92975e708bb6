"""Equations of a traced program replaced by others, in the program and in those inside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.extend import core


class Rewriter:
    """Puts ``change(equation)`` in the place of each equation for which it is not ``None``; effects that go are gone.

    Attributes:
        changed: how many there were.
    """

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.changed = 0
        self._change = change
        self._gone: set[Any] = set()

    def apply(self, value: Any) -> Any:
        """``value`` (a jaxpr, or a parameter of an equation) rewritten; it comes back itself where nothing changes."""
        if isinstance(value, core.ClosedJaxpr) and value.jaxpr is not value:  # one class since JAX 0.12
            inner = self.apply(value.jaxpr)
            return value if inner is value.jaxpr else value.replace(jaxpr=inner)
        if isinstance(value, core.Jaxpr):
            equations = [self._equation(equation) for equation in value.eqns]
            if all(new is old for new, old in zip(equations, value.eqns, strict=True)):
                return value
            return value.replace(eqns=equations, effects=frozenset(value.effects) - self._gone)
        if type(value) in (tuple, list):
            items = [self.apply(item) for item in value]
            changed = any(new is not old for new, old in zip(items, value, strict=True))
            return type(value)(items) if changed else value
        return value

    def _equation(self, equation: Any) -> Any:
        new = self._change(equation)
        if new is not None:
            self.changed += 1
            self._gone |= set(equation.effects) - set(new.effects)
            return new
        params = {name: self.apply(value) for name, value in equation.params.items()}
        if all(params[name] is value for name, value in equation.params.items()):
            return equation
        return equation.replace(params=params, effects=frozenset(equation.effects) - self._gone)
