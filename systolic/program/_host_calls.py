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
from systolic.program._rewrite import Rewriter

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
    notes: list[str] = []

    def change(equation: Any) -> Any:
        if equation.primitive.name not in _CALLBACKS:
            return None
        notes.append(_note(equation))
        if devices > 1 and any("Ordered" in type(effect).__name__ for effect in equation.effects):
            raise CompileError(
                f"an ordered {_note(equation).partition(': ')[0]} in a program for {devices} devices: JAX "
                "runs ordered callbacks on one device only; pass ordered=False"
            )
        params = {
            "results": tuple(variable.aval for variable in equation.outvars),
            "placement": equation.params.get("sharding"),
        }
        # The effects order calls on the host; the transfers themselves have side effects, for which the compiler keeps them.
        return equation.replace(primitive=host_call_p, params=params, effects=frozenset())

    jaxpr = Rewriter(change).apply(traced.jaxpr)
    if not notes:
        return None
    if callback_lowering() is None:
        raise CompileError(
            f"{notes[0].partition(': ')[0]}: this program calls the host, and how this JAX lowers such calls for a "
            f"TPU that is not attached is not known ({what_was_checked()}); install one of those, or leave the call out "
            "of the program that is checked"
        )
    structure = jax.tree.structure(traced.out_info)
    run = core.jaxpr_as_fun(jaxpr)
    return lambda *leaves: jax.tree.unflatten(structure, run(*leaves)), tuple(dict.fromkeys(notes))


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
