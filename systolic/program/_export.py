"""From a Python function to a portable module: flatten, trace, lower for a TPU, and a key that names the result.

The module travels to the compiler's process with flat tuples of leaves, so that no pytree class has to be known there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from systolic._errors import CompileError
from systolic.program._arguments import check_result
from systolic.program._constants import large_constants
from systolic.program._host_calls import without_host_functions
from systolic.program._signature import argument_names, leaf_names
from systolic.program._tracing import on_mesh, tracing


@dataclasses.dataclass(frozen=True)
class Exported:
    """A lowered program: ``blob`` for another process, ``donated`` positions and ``names`` of the leaves, ``notes``."""

    blob: bytes
    fingerprint: str
    donated: tuple[int, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...]


def export(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    name: str,
    mesh: AbstractMesh,
    donate: Sequence[int],
    in_specs: Sequence[Any] | None,
    out_specs: Any,
) -> Exported:
    """Trace ``fn`` at the shapes of ``args``, lower it for a TPU over ``mesh``, and serialise it.

    Args:
        fn: function of pytrees.
        args: one pytree of ``jax.ShapeDtypeStruct`` (or arrays) per argument.
        name: the program's name; the compiler's module carries it.
        mesh: the mesh that the specs speak of.
        donate: positions in ``args`` whose buffers may be reused.
        in_specs: per argument a pytree prefix of ``PartitionSpec``; ``None`` replicates.
        out_specs: a pytree prefix of ``PartitionSpec`` for the result; ``None`` leaves the layout to the compiler.

    Raises:
        CompileError: an operation has no lowering for a TPU, or an argument has a type that cannot be exported.
    """
    leaves, tree = jax.tree.flatten(tuple(args))
    specs = in_specs if in_specs is not None else (PartitionSpec(),) * len(args)
    in_shardings = tuple(s for spec, arg in zip(specs, args, strict=True) for s in _leaf_shardings(spec, arg, mesh))
    counts = [len(jax.tree.leaves(arg)) for arg in args]
    donated = tuple(
        i for position in sorted(donate) for i in range(sum(counts[:position]), sum(counts[: position + 1]))
    )
    out_tree, out_shardings = _result_layout(out_specs, mesh)

    def flat(*leaves: Any) -> Any:
        result = fn(*jax.tree.unflatten(tree, leaves))
        check_result(name, out_specs, result)
        return tuple(tuple(jax.tree.leaves(part)) for part in out_tree.flatten_up_to(result))

    flat.__name__ = flat.__qualname__ = _identifier(name)
    kwargs: dict[str, Any] = {} if out_shardings is None else {"out_shardings": out_shardings}
    jitted = jax.jit(flat, in_shardings=in_shardings, donate_argnums=donated, keep_unused=True, **kwargs)
    with tracing(name, argument_names(fn, len(args)), args, mesh):
        traced = jitted.trace(*leaves)
    notes: tuple[str, ...] = ()
    with on_mesh(mesh):
        constants = large_constants(traced, fn)
        if replaced := without_host_functions(traced, mesh.size):
            function, notes = replaced
            function.__name__ = function.__qualname__ = flat.__name__
            jitted = jax.jit(function, in_shardings=in_shardings, donate_argnums=donated, keep_unused=True, **kwargs)
        exported = _lower(jitted, leaves, name)
    return Exported(
        blob=_serialised(exported, name),
        fingerprint=_fingerprint(exported, (in_shardings, out_shardings, donated)),
        donated=donated,
        names=tuple(leaf_names(args, argument_names(fn, len(args)))),
        notes=notes if constants is None else (*notes, constants),
    )


def _lower(jitted: Any, leaves: Sequence[Any], name: str) -> Any:
    # Export promises that a module loads months later, and so refuses custom calls that it cannot vouch for. This one
    # lives for seconds, and whether the target of a custom call exists is for the compiler to say.
    checks = [jax.export.DisabledSafetyCheck.custom_call("ALL")]
    exporter = jax.export.export(jitted, platforms=["tpu"], disabled_checks=checks)
    try:
        return exporter(*leaves)
    except NotImplementedError as error:
        raise CompileError(_refusal(name, error)) from error


def _serialised(exported: Any, name: str) -> bytes:
    try:
        return bytes(exported.serialize())
    except KeyError as error:  # jax.export looks types up in a table of those it can write
        raise CompileError(
            f"program {name!r}: jax.export cannot write {error.args[0]!r}, so an argument or a result of that type does "
            "not reach the compiler; use another type at the boundary of the program and convert inside"
        ) from error


def _refusal(name: str, error: NotImplementedError) -> str:
    match = re.search(r"rule for primitive '([^']+)' not found for platform tpu", str(error))
    if match:
        return (
            f"program {name!r}: the operation {match.group(1)!r} has no TPU lowering in JAX; use another formulation, "
            "or compute it on the host with jax.pure_callback"
        )
    return f"program {name!r} cannot be lowered for a TPU: {str(error).splitlines()[0]}"


def _leaf_shardings(spec: Any, argument: Any, mesh: AbstractMesh) -> list[NamedSharding]:
    whole = PartitionSpec() if spec is None else spec
    broadcast = jax.tree.broadcast(whole, argument, is_leaf=_is_spec)
    return [NamedSharding(mesh, s or PartitionSpec()) for s in jax.tree.leaves(broadcast, is_leaf=_is_spec)]


def _result_layout(specs: Any, mesh: AbstractMesh) -> tuple[Any, Any]:
    """A treedef that cuts the result into parts, and one sharding per part (None: all left to the compiler)."""
    parts, tree = jax.tree.flatten(specs, is_leaf=_is_spec)
    if all(part is None for part in parts):
        return jax.tree.structure(None, is_leaf=lambda x: True), None
    return tree, tuple(None if part is None else NamedSharding(mesh, part) for part in parts)


def _is_spec(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec)


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name) or "program"


def _fingerprint(exported: Any, layout: tuple[Any, ...]) -> str:
    """SHA-256 of all that decides the compiler's result, without source positions."""
    from jax.extend.mlir import ir, passmanager
    from jax.interpreters import mlir

    with mlir.make_ir_context():
        module = ir.Module.parse(exported.mlir_module_serialized)
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
    digest = hashlib.sha256(buffer.getvalue())
    digest.update(repr((layout, exported.in_avals, exported.nr_devices)).encode())
    return digest.hexdigest()
