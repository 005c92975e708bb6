"""The gradient of the loss, and what JAX cannot differentiate backward: told at the user's own line.

JAX finds that out when it goes back through the program, long after the model function has returned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax

from systolic._errors import InputError
from systolic._private_jax import user_line

_NO_RULE = re.compile(r"Transpose rule \(for reverse-mode differentiation\) for '([^']+)' not implemented")
_LOOP = "Reverse-mode differentiation does not work for lax.while_loop"


def value_and_grad(value: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.value_and_grad(value, has_aux=True)``, whose errors name lines.

    Raises:
        InputError: a loop without a bound, or an operation without a rule, lies between the parameters and the loss.
    """
    differentiate = jax.value_and_grad(value, has_aux=True)

    def run(*args: Any) -> Any:
        try:
            return differentiate(*args)
        except (ValueError, NotImplementedError) as error:
            told = _explain(error, value, args)
            if told is None:
                raise
            raise told from error

    return run


def _explain(error: Exception, value: Callable[..., Any], args: tuple[Any, ...]) -> InputError | None:
    rule = _NO_RULE.search(str(error))
    if not rule and _LOOP not in str(error):
        return None
    primitive = rule[1] if rule else "while"
    places = dict.fromkeys(filter(None, _lines(jax.make_jaxpr(value)(*args).jaxpr, primitive)))
    where = f" at {', '.join(places)}" if places else ""
    if rule:
        return InputError(
            f"model_fn: the gradient of the loss goes back through {primitive!r}{where}, for which JAX has no rule; wrap what "
            "needs none in jax.lax.stop_gradient, or give the function a rule with jax.custom_vjp"
        )
    return InputError(
        f"model_fn: the gradient of the loss goes back through a loop whose number of turns only the device knows{where}, and "
        "what each turn leaves behind for the way back has no size then. Write jax.lax.fori_loop with a bound that is known while "
        "the program is traced (a number or a shape), or jax.lax.scan over the most turns with a mask; or, if the result needs no "
        "gradient, wrap what goes into the loop in jax.lax.stop_gradient"
    )


def _lines(jaxpr: Any, primitive: str) -> Iterator[str | None]:
    for equation in jaxpr.eqns:
        if equation.primitive.name == primitive:
            yield user_line(equation.source_info)
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            if hasattr(inner, "eqns"):
                yield from _lines(inner, primitive)
