"""Host callbacks in a program that is lowered where no TPU is.

JAX lowers ``pure_callback``, ``io_callback`` and ``debug.print`` for a TPU to pairs of send and receive operations, and
insists on a TPU client to register the Python function with. Nothing runs here, so the same operations are emitted and
the function is left out: the compiler sees the transfers that the device will make, and the report names the callbacks.

This is the only file that reaches into JAX's private callback lowering.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any


@dataclasses.dataclass
class HostCalls:
    """Lowering rules for JAX's callback primitives, and a note of each callback that was lowered."""

    notes: list[str] = dataclasses.field(default_factory=list)

    def rules(self) -> tuple[tuple[Any, Callable], ...]:
        """(primitive, lowering rule) pairs for ``jax.export.export(_override_lowering_rules=…)``."""
        from jax._src import callback, debugging

        primitives = [callback.pure_callback_p, callback.io_callback_p, debugging.debug_callback_p]
        primitives += [p for p in [getattr(debugging, "debug_print_p", None)] if p is not None]
        return tuple((primitive, self._rule(primitive.name)) for primitive in primitives)

    def _rule(self, primitive: str) -> Callable:
        def lower(ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
            name = _callback_name(params)
            note = f"host callback {primitive}({name})" if name else f"host callback {primitive}"
            if note not in self.notes:
                self.notes.append(note)
            return _send_and_receive(ctx, operands, params)

        return lower


def _send_and_receive(ctx: Any, operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    import numpy as np
    from jax._src import callback, effects
    from jax.interpreters import mlir

    module = ctx.module_context
    sharding = callback._callback_op_sharding(module.axis_context, params.get("sharding"), ctx.avals_out)
    effect = _ordered_effect(params, callback)
    ordered = effect is not None and effects.ordered_effects.contains(effect)
    token = ctx.tokens_in.get(effect) if ordered else _new_token()
    # A callback without operands still has to be triggered.
    sent = list(operands) or [mlir.ir_constant(np.zeros(1, np.float32))]
    for operand in sent:
        token = callback.send_to_host(module, module.new_channel(), token, operand, sharding=sharding)
    results = []
    for aval in ctx.avals_out:
        if 0 in aval.shape:
            results.append(mlir.ir_constant(np.zeros(aval.shape, aval.dtype)))
            continue
        token, value = callback.receive_from_host(module, module.new_channel(), token, aval, sharding=sharding)
        results.append(value)
    if ordered:
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({effect: token})))
    return results


def _ordered_effect(params: dict[str, Any], callback: Any) -> Any:
    if "effect" in params:
        return params["effect"]
    return callback._OrderedIOEffect if params.get("ordered") else None


def _new_token() -> Any:
    from jax.extend.mlir.dialects import stablehlo

    return stablehlo.create_token()


def _callback_name(params: dict[str, Any]) -> str:
    function = params.get("callback")
    function = getattr(function, "callback_func", function)
    name = getattr(function, "__qualname__", "") or getattr(getattr(function, "func", None), "__qualname__", "")
    return "" if "<lambda>" in name or "_flat_callback" in name else name.replace(".<locals>", "")
