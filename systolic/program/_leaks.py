"""Values of an earlier trace that a function kept, and that it uses in this one.

JAX takes them for further arguments of the program, which nobody passes: it compiles, and cannot be called.
"""

from __future__ import annotations

from typing import Any

import jax

from systolic._errors import InputError
from systolic._private_jax import user_line


def check_leaks(traced: Any, name: str) -> None:
    """InputError if the ``jax.stages.Traced`` of program ``name`` has inputs that are none of its arguments."""
    jaxpr = getattr(traced.jaxpr, "jaxpr", traced.jaxpr)  # one class since JAX 0.12
    extra = len(jaxpr.invars) - len(jax.tree.leaves(traced.in_avals))
    if extra <= 0:
        return
    leaked = jaxpr.invars[0]
    lines = [user_line(eqn.source_info) for eqn in jaxpr.eqns if any(leaked is var for var in eqn.invars)]
    used = f", used at {lines[0]}" if lines and lines[0] else ""
    raise InputError(
        f"program {name!r}: a value of an earlier trace seen ({leaked.aval.str_short()}{used}), which was kept in a global, an "
        "attribute or a list. It exists only while its own program is traced: return it from there instead, as part of "
        "predictions or metrics or as state of the model"
    )
