"""Custom calls of a module that are the host's (see ``_host.py``), as calls back to this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from systolic._errors import InputError
from systolic.tf._host import TARGET, host_function, raised
from systolic.tf._types import struct

_WIDE = 8  # bytes of a number; JAX cuts such ones short in the threads in which it calls back


def call_back(context: Any, module: Any) -> None:
    """Change the module, which is lowered in ``context``."""
    for operation in _host_calls(module):
        target = mlir.ir.StringAttr(operation.attributes["call_target_name"]).value
        results = _results(operation)
        given, taken = (
            [jax.core.ShapedArray(x.shape, x.dtype) for x in structs]
            for structs in (map(struct, (x.type for x in operation.operands)), map(_halved, results))
        )
        with mlir.ir.InsertionPoint(operation), operation.location:
            values, _, _ = mlir.emit_python_callback(
                dataclasses.replace(context, avals_in=given, avals_out=taken),
                _typed(host_function(target), results),
                None,
                list(operation.operands),
                given,
                taken,
                has_side_effect=True,
                returns_token=False,
            )
            values = [_whole(value, of) for value, of in zip(values, results, strict=True)]
        _replace(operation, values)


def leave_out(module: Any) -> int:
    """Put zeros in the place of what the host would compute; returns how many calls there were."""
    calls = _host_calls(module)
    for operation in calls:
        with mlir.ir.InsertionPoint(operation), operation.location:
            _replace(operation, [mlir.ir_constant(np.zeros(s.shape, s.dtype)) for s in _results(operation)])
    return len(calls)


def _host_calls(module: Any) -> list[Any]:
    found: list[Any] = []

    def visit(operation: Any) -> mlir.ir.WalkResult:
        if operation.name == "stablehlo.custom_call" and TARGET in str(operation.attributes["call_target_name"]):
            found.append(operation)
        return mlir.ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _in_tuple(operation: Any) -> Any:
    """The tuple's type, where the results come as one: none at all, or several."""
    whole = operation.results[0].type if len(operation.results) == 1 else None
    return whole if isinstance(whole, mlir.ir.TupleType) else None


def _results(operation: Any) -> list[jax.ShapeDtypeStruct]:
    types = _in_tuple(operation)
    if types is None:
        return [struct(result.type) for result in operation.results]
    return [struct(types.get_type(i)) for i in range(types.num_types)]


def _replace(operation: Any, values: Sequence[Any]) -> None:
    if _in_tuple(operation) is None:
        for old, new in zip(operation.results, values, strict=True):
            old.replace_all_uses_with(new)
    else:
        for use in list(operation.results[0].uses):
            part = use.owner.operation
            part.results[0].replace_all_uses_with(values[mlir.ir.IntegerAttr(part.attributes["index"]).value])
            part.erase()
    operation.erase()


def _halved(of: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """As pairs of 32 bits."""
    return of if of.dtype.itemsize < _WIDE else jax.ShapeDtypeStruct((*of.shape, 2), np.dtype(np.int32))


def _whole(value: Any, of: jax.ShapeDtypeStruct) -> Any:
    from jaxlib.mlir.dialects import stablehlo

    if of.dtype.itemsize < _WIDE:
        return value
    kind = mlir.ir.RankedTensorType.get(of.shape, mlir.dtype_to_ir_type(np.dtype(of.dtype)))
    return stablehlo.BitcastConvertOp(kind, value).result


def _typed(function: Callable[..., Sequence[Any]], results: Sequence[jax.ShapeDtypeStruct]) -> Callable[..., Any]:
    """With results as they were announced."""

    def compute(*arrays: Any) -> tuple[np.ndarray, ...]:
        found = function(*map(np.asarray, arrays))
        seen = [np.shape(x) for x in found]
        if seen != [s.shape for s in results]:
            raise InputError(
                f"py_func: saw results of shapes {seen}, wanted {[s.shape for s in results]}, as it was set"
            )
        typed = [np.asarray(x, s.dtype) for x, s in zip(found, results, strict=True)]
        return tuple(x if x.itemsize < _WIDE else x[..., None].view(np.int32) for x in typed)

    def call(*arrays: Any) -> tuple[np.ndarray, ...]:
        try:
            return compute(*arrays)
        except Exception as error:  # XLA passes on no more than its text
            raised.append(error)
            raise

    return call
