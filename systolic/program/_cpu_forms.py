"""Programs for one CPU device, with what XLA's CPU backend is slow at in other forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core

from systolic.program import _cpu_convolutions, _cpu_pooling
from systolic.program._rewrite import Rewriter


def with_cpu_forms(traced: Any) -> Callable[..., Any] | None:
    """A function equal to a ``jax.stages.Traced`` for one CPU device; ``None`` where there is nothing to gain."""
    rewriter = Rewriter(lambda equation: _cpu_convolutions.change(equation) or _cpu_pooling.change(equation))
    jaxpr = rewriter.apply(traced.jaxpr)
    if not rewriter.changed:
        return None
    structure = jax.tree.structure(traced.out_info)
    run = core.jaxpr_as_fun(jaxpr)
    return lambda *args: jax.tree.unflatten(structure, run(*jax.tree.leaves(args)))
