"""A StableHLO module of TensorFlow's as a JAX function."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import mlir

from systolic.tf._callback import call_back, leave_out
from systolic.tf._cpu_forms import use_cpu_forms
from systolic.tf._types import struct

_MODULE_ATTRIBUTES = (  # XLA's, which another compiler's module may not bring along
    "mhlo.input_output_alias",
    "mhlo.cross_program_prefetches",
    "mhlo.is_dynamic",
    "mhlo.use_auto_spmd_partitioning",
)

_COLLECTIVES = ("stablehlo.all_reduce", "stablehlo.all_gather", "stablehlo.reduce_scatter")


@dataclasses.dataclass(frozen=True, eq=False)
class Module:
    """A module whose function ``main`` is to be called.

    Attributes:
        text: MLIR bytecode of the module.
        arguments: shape and dtype of each argument of ``main``.
        results: of each result.
        aliases: number of a result -> number of the argument whose place it takes: the new value of a variable.
    """

    text: bytes
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    aliases: dict[int, int]

    @classmethod
    def parse(cls, portable: bytes | str) -> Module:
        """Of StableHLO, as bytecode or text."""
        with mlir.make_ir_context():
            module = mlir.ir.Module.parse(portable)
            main: Any
            (main,) = (op for op in module.body.operations if str(op.attributes["sym_name"]) == '"main"')
            arguments, results = (tuple(map(struct, types)) for types in (main.type.inputs, main.type.results))
            attributes: Any = module.operation.attributes
            aliases = {}
            if "mhlo.input_output_alias" in attributes:
                for entry in attributes["mhlo.input_output_alias"]:
                    position = list(entry["output_index"])
                    aliases[position[0] if position else 0] = entry["alias"]["parameter_number"].value
            for name in _MODULE_ATTRIBUTES:
                if name in attributes:
                    del attributes[name]
            _plain(module.operation)
            _number_collectives(module.operation)
            return cls(mlir.module_to_bytecode(module), arguments, results, aliases)

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """Its results, for arrays or tracers of the right shapes."""
        return module_p.bind(*arguments, module=self)

    def without_host_calls(self) -> Module:
        """With zeros for what the host would compute: of the same shapes, for a compiler alone."""
        with mlir.make_ir_context():
            module = mlir.ir.Module.parse(self.text)
            return dataclasses.replace(self, text=mlir.module_to_bytecode(module)) if leave_out(module) else self


def _plain(operation: Any) -> None:
    """Replace what TensorFlow's compiler leaves in and others refuse: a copy for the sake of layout is its operand."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                if inner.operation.name == "mhlo.copy":
                    inner.operation.results[0].replace_all_uses_with(inner.operation.operands[0])
                    inner.operation.erase()
                else:
                    _plain(inner.operation)


def _number_collectives(module: Any) -> None:
    """Let collectives name devices of a mesh, as JAX's own do, not replicas of a program."""
    numbers = itertools.count(1)

    def visit(operation: Any) -> mlir.ir.WalkResult:
        if operation.name in _COLLECTIVES:
            handle = f"#stablehlo.channel_handle<handle = {next(numbers)}, type = 1>"
            operation.attributes["channel_handle"] = mlir.ir.Attribute.parse(handle)
            operation.attributes["use_global_device_ids"] = mlir.ir.UnitAttr.get()
        return mlir.ir.WalkResult.ADVANCE

    module.walk(visit)


module_p = core.Primitive("tensorflow_module")
module_p.multiple_results = True
module_p.def_abstract_eval(lambda *_, module: [jax.core.ShapedArray(r.shape, r.dtype) for r in module.results])


def _lower(context: Any, *arguments: Any, module: Module, on_cpu: bool = False) -> Sequence[Any]:
    from jaxlib.mlir.dialects import func

    with context.module_context.context:
        inner = mlir.ir.Module.parse(module.text)
    if on_cpu:
        use_cpu_forms(inner)
    call_back(context, inner)
    name = mlir.merge_mlir_modules(context.module_context.module, "tensorflow_main", inner)
    types = [mlir.ir.RankedTensorType.get(r.shape, mlir.dtype_to_ir_type(np.dtype(r.dtype))) for r in module.results]
    return func.CallOp(types, mlir.ir.FlatSymbolRefAttr.get(name), list(arguments)).results


mlir.register_lowering(module_p, _lower)
mlir.register_lowering(module_p, functools.partial(_lower, on_cpu=True), platform="cpu")
