"""Host callbacks in a program that is lowered where no TPU is.

JAX lowers ``pure_callback``, ``io_callback`` and ``debug.print`` for a TPU to pairs of send and receive operations, and
insists on a TPU client to register the Python function with. Nothing runs here, so in the traced program each callback
gives way to a primitive that emits the same operations and leaves the function out: the compiler sees the transfers
that the device will make, and the report names the callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import mlir

from systolic._errors import CompileError
from systolic._private_jax import callback_lowering, user_line, what_was_checked

_CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print"})

host_call_p = core.Primitive("host_call")
host_call_p.multiple_results = True
host_call_p.def_abstract_eval(lambda *_, results, placement: list(results))


def without_host_functions(traced: Any, devices: int) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """A function equal to a ``jax.stages.Traced`` but for its host callbacks, and a note for each of them.

    Returns:
        ``None`` when the program has no host callback.

    Raises:
        CompileError: an ordered callback in a program for more than one device, which JAX does not run; or this JAX
            lowers callbacks in a way that is not known here.
    """
    swap = _Swap(devices)
    jaxpr = swap.apply(traced.jaxpr)
    if not swap.notes:
        return None
    if callback_lowering() is None:
        raise CompileError(
            f"{swap.notes[0].partition(': ')[0]}: this program calls the host, and how this JAX lowers such calls for a "
            f"TPU that is not attached is not known ({what_was_checked()}); install one of those, or leave the call out "
            "of the program that is checked"
        )
    structure = jax.tree.structure(traced.out_info)
    run = core.jaxpr_as_fun(jaxpr)
    return lambda *leaves: jax.tree.unflatten(structure, run(*leaves)), tuple(dict.fromkeys(swap.notes))


class _Swap:
    """Replaces the callbacks in a jaxpr and in those inside it, and takes their effects away.

    The effects order calls on the host; the transfers themselves have side effects for the compiler, which keeps them.
    """

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.notes: list[str] = []
        self._effects: set[Any] = set()

    def apply(self, value: Any) -> Any:
        """``value`` with the callbacks replaced; it comes back itself where there are none."""
        if isinstance(value, core.ClosedJaxpr) and value.jaxpr is not value:  # one class since JAX 0.12
            inner = self.apply(value.jaxpr)
            return value if inner is value.jaxpr else value.replace(jaxpr=inner)
        if isinstance(value, core.Jaxpr):
            equations = [self._equation(equation) for equation in value.eqns]
            if all(new is old for new, old in zip(equations, value.eqns, strict=True)):
                return value
            return value.replace(eqns=equations, effects=frozenset(value.effects) - self._effects)
        if type(value) in (tuple, list):
            items = [self.apply(item) for item in value]
            changed = any(new is not old for new, old in zip(items, value, strict=True))
            return type(value)(items) if changed else value
        return value

    def _equation(self, equation: Any) -> Any:
        if equation.primitive.name in _CALLBACKS:
            self._effects |= set(equation.effects)
            self.notes.append(_note(equation))
            if self.devices > 1 and any("Ordered" in type(effect).__name__ for effect in equation.effects):
                raise CompileError(
                    f"an ordered {_note(equation).partition(': ')[0]} in a program for {self.devices} devices: JAX "
                    "runs ordered callbacks on one device only; pass ordered=False"
                )
            results = tuple(variable.aval for variable in equation.outvars)
            params = {"results": results, "placement": equation.params.get("sharding")}
            return equation.replace(primitive=host_call_p, params=params, effects=frozenset())
        params = {name: self.apply(value) for name, value in equation.params.items()}
        if all(params[name] is value for name, value in equation.params.items()):
            return equation
        return equation.replace(params=params, effects=frozenset(equation.effects) - self._effects)


def _send_and_receive(ctx: Any, *operands: Any, results: Any, placement: Any) -> Sequence[Any]:
    import numpy as np
    from jax.extend.mlir.dialects import stablehlo

    callback = callback_lowering()
    assert callback is not None, "without_host_functions has looked"
    module = ctx.module_context
    sharding = callback.op_sharding(module.axis_context, placement, ctx.avals_out)
    token = stablehlo.create_token()
    # A callback without operands still has to be triggered.
    for operand in list(operands) or [mlir.ir_constant(np.zeros(1, np.float32))]:
        token = callback.send_to_host(module, module.new_channel(), token, operand, sharding=sharding)
    values = []
    for aval in results:
        if 0 in aval.shape:
            values.append(mlir.ir_constant(np.zeros(aval.shape, aval.dtype)))
            continue
        token, value = callback.receive_from_host(module, module.new_channel(), token, aval, sharding=sharding)
        values.append(value)
    return values


# Each use has channels of its own, so the lowering of one must not be taken for another.
mlir.register_lowering(host_call_p, _send_and_receive, platform="tpu", cacheable=False)


def _note(equation: Any) -> str:
    function = equation.params.get("callback")
    function = getattr(function, "callback_func", function)
    name = getattr(function, "__qualname__", "") or getattr(getattr(function, "func", None), "__qualname__", "")
    if "<lambda>" in name or "_flat_callback" in name:
        name = ""
    shown = f"{equation.primitive.name}({name.replace('.<locals>', '')})" if name else equation.primitive.name
    line = user_line(equation.source_info)
    place = "" if line is None else f" at {line}"
    return f"host callback {shown}{place}: its transfers are compiled, its function is not"
