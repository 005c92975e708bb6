"""TensorFlow's modules on the CPU: what XLA's CPU backend is slow at, in the forms that native programs have there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import mlir

from systolic.program import Convolution, MaxPoolGradient
from systolic.tf._types import struct


def use_cpu_forms(module: Any) -> None:
    """Put calls of faster functions into the place of operations of a module, which is changed."""
    found: list[tuple[Any, Any, tuple[int, ...]]] = []

    def visit(operation: Any) -> Any:
        of: Convolution | MaxPoolGradient | None
        if operation.name == "stablehlo.convolution" and (of := _convolution(operation)) is not None:
            found.append((operation, of, (0, 1)))
        elif operation.name == "stablehlo.select_and_scatter" and (of := _pooling(operation)) is not None:
            found.append((operation, of, (1, 0)))
        return mlir.ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for operation, of, order in found:
        _call_instead(module, operation, of, order)


def _call_instead(module: Any, operation: Any, of: Any, order: tuple[int, ...]) -> None:
    from jaxlib.mlir.dialects import func

    operands = [operation.operands[i] for i in order]
    if isinstance(of, Convolution) and of.faster(*map(_aval, operands)) is None:
        return
    text = _lowered(of, *map(_aval, operands))
    with module.context, operation.location:
        name = mlir.merge_mlir_modules(module, "faster", mlir.ir.Module.parse(text))
        with mlir.ir.InsertionPoint(operation):
            call = func.CallOp([operation.results[0].type], mlir.ir.FlatSymbolRefAttr.get(name), operands)
    operation.results[0].replace_all_uses_with(call.results[0])
    operation.erase()


@functools.lru_cache(maxsize=256)
def _lowered(of: Any, *avals: Any) -> bytes:
    """The function as a module of its own."""

    def faster(*arrays: jax.Array) -> jax.Array:
        form: Callable[..., Any] | None = of.faster(*arrays) if isinstance(of, Convolution) else of
        assert form is not None
        return form(*arrays)

    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    lowered = jax.jit(faster).trace(*structs).lower(lowering_platforms=("cpu",))
    return mlir.module_to_bytecode(lowered.compiler_ir("stablehlo"))


def _convolution(operation: Any) -> Convolution | None:
    """Of two dimensions, without strides, dilation and groups."""
    from jaxlib.mlir.dialects import stablehlo

    attributes = operation.attributes
    numbers = stablehlo.ConvDimensionNumbers(attributes["dimension_numbers"])
    if len(numbers.input_spatial_dimensions) != 2 or not all(
        _all_ones(attributes, name) for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    ):
        return None
    if "window_reversal" in attributes and any(_ints(attributes["window_reversal"])):
        return None
    padding = _pairs(attributes, 2)
    if (
        attributes["feature_group_count"].value * attributes["batch_group_count"].value != 1
        or min(map(min, padding)) < 0
    ):
        return None
    dimensions = lax.ConvDimensionNumbers(
        (numbers.input_batch_dimension, numbers.input_feature_dimension, *numbers.input_spatial_dimensions),
        (
            numbers.kernel_output_feature_dimension,
            numbers.kernel_input_feature_dimension,
            *numbers.kernel_spatial_dimensions,
        ),
        (numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions),
    )
    result = _aval(operation.results[0])
    return Convolution(dimensions, padding, None, result.dtype, result)


def _pooling(operation: Any) -> MaxPoolGradient | None:
    """That chooses the largest and adds."""
    select, scatter = ([op.operation for op in region.blocks[0].operations] for region in operation.regions)
    if [op.name for op in scatter] != ["stablehlo.add", "stablehlo.return"]:
        return None
    if [op.name for op in select] != ["stablehlo.compare", "stablehlo.return"]:
        return None
    if "GE" not in str(select[0].attributes["comparison_direction"]):
        return None
    result = _aval(operation.results[0])
    rank = len(result.shape)
    window, strides = (
        tuple(_ints(operation.attributes[name])) if name in operation.attributes else (1,) * rank
        for name in ("window_dimensions", "window_strides")
    )
    of = MaxPoolGradient(window, strides, _pairs(operation.attributes, rank), result)
    return of if of.faster else None


def _aval(value: Any) -> jax.core.ShapedArray:
    of = struct(value.type)
    return jax.core.ShapedArray(of.shape, of.dtype)


def _ints(attribute: Any) -> list[int]:
    return [int(x) for x in attribute]


def _all_ones(attributes: Any, name: str) -> bool:
    return name not in attributes or set(_ints(attributes[name])) <= {1}


def _pairs(attributes: Any, rank: int) -> tuple[tuple[int, int], ...]:
    if "padding" not in attributes:
        return ((0, 0),) * rank
    low_high = np.array(mlir.ir.DenseIntElementsAttr(attributes["padding"])).reshape(rank, 2)
    return tuple((int(low), int(high)) for low, high in low_high)
