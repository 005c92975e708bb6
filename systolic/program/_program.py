"""A Program: a pure function with a static signature, a layout over a mesh, and a budget of compiles."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from systolic._errors import InputError, TargetError
from systolic._log import logger
from systolic.program._arguments import (
    check_count,
    check_function,
    check_result,
    checked_axes,
    checked_donate,
    checked_name,
    checked_out_specs,
    checked_specs,
)
from systolic.program._budget import CompileBudget
from systolic.program._constants import large_constants
from systolic.program._cpu_forms import with_cpu_forms
from systolic.program._door import Door
from systolic.program._executable import Executable
from systolic.program._leaks import check_leaks
from systolic.program._options import CompileOptions
from systolic.program._signature import Signature, argument_names, leaf_names, strong_structs
from systolic.program._tracing import tracing
from systolic.target import Target


class Program:
    """A pure function with a static signature; ``compile(target)`` gives something that runs, or can be looked into.

    Args:
        fn: pure function of pytrees of arrays.
        *example: one pytree per argument; only shapes and dtypes count (arrays or ``jax.ShapeDtypeStruct``). Weak
            types are removed: a Python scalar is an array of its canonical dtype.
        name: what errors and reports call it; defaults to the function's name.
        donate: positions of the arguments whose buffers the results may reuse.
        axes: mesh axes and their sizes; one may be -1 and takes the devices that are left. ``fn`` may call
            ``jax.shard_map`` over them without naming a mesh.
        in_specs: per argument, a pytree prefix of ``PartitionSpec``; default: everything replicated.
        out_specs: a pytree prefix of ``PartitionSpec`` for the result; ``None`` leaves it to the compiler.
        budget: how many signatures may be compiled on each target; one more is a :class:`RecompileError`. A
            :class:`CompileBudget` is shared by several Programs and counts per name.
        eager: run op by op, uncompiled, so that prints, debuggers and NaN checks see every value.

    Raises:
        InputError: an argument is not as above; the message names it, what was seen and what was wanted.
        TargetError: ``axes`` are no axes of a mesh.

    Example:
        >>> import numpy as np
        >>> double = Program(lambda x: 2 * x, np.zeros(3, "float32"), name="double")
        >>> double(np.ones(3, "float32")).tolist()
        [2.0, 2.0, 2.0]
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *example: Any,
        name: str | None = None,
        donate: Sequence[int] = (),
        axes: Mapping[str, int] | None = None,
        in_specs: Sequence[Any] | None = None,
        out_specs: Any = None,
        budget: int | CompileBudget = 1,
        eager: bool = False,
    ) -> None:
        check_function(fn, len(example))
        self.fn = fn
        self.name = checked_name(fn, name)
        self.argument_names = argument_names(fn, len(example))
        Signature.of(example, self.argument_names)  # names the leaf that is no array
        self.example = tuple(strong_structs(arg) for arg in example)
        self.signature = Signature.of(self.example, self.argument_names)
        self.donate = checked_donate(donate, self.argument_names)
        self.axes = checked_axes(axes)
        self.in_specs = checked_specs(in_specs, self.example, self.argument_names)
        self.out_specs = checked_out_specs(out_specs)
        self.budget = budget if isinstance(budget, CompileBudget) else CompileBudget(budget)
        self.eager = bool(eager)
        self._compiled: dict[Target, dict[Signature, Executable]] = {}
        self._compiling = threading.Lock()

    def compile(self, target: str | Target = "auto", options: CompileOptions | None = None) -> Any:
        """Compile for ``target``.

        Returns:
            An :class:`Executable` for an attached target (once per signature; a second call returns the same one), a
            :class:`Description` for a described one.

        Raises:
            CompileError: the compiler refused; its subclasses tell out of memory and out of time.
            TargetError: the layout does not fit the target.
        """
        target = Target(target)
        if options is not None and not isinstance(options, CompileOptions):
            raise InputError(
                f"Program.compile(options): saw {options!r} ({type(options).__name__}), wanted a CompileOptions, such as "
                "CompileOptions(depth='fast')"
            )
        if target.attached:
            return self._attached(target, self.signature, self.example)
        from systolic.program._described import describe

        self._check_division(target)
        return describe(
            self.fn,
            self.example,
            name=self.name,
            target=target,
            donate=self.donate,
            in_specs=self.in_specs,
            out_specs=self.out_specs,
            mesh_axes=self.axes,
            options=options or CompileOptions(),
        )

    def __call__(self, *args: Any) -> Any:
        """Run on the best attached target, compiling when the signature is new and the budget allows.

        Raises:
            InputError: too few or too many arguments, or a value that does not fit the type that JAX gives it (an int64
                beyond int32, a float64 beyond float32).
            RecompileError: the signature is new and the budget is spent.
        """
        check_count(self.name, args, self.argument_names)
        target = Target("auto")
        self.door.admit(args)
        if self.eager:
            with jax.disable_jit():
                return self.fn(*args)
        return self._attached(target, Signature.of(args, self.argument_names), args).call(args)

    @functools.cached_property
    def door(self) -> Door:
        """What every argument passes on its way in; making it makes JAX list its devices."""
        return Door(self.name, self.argument_names)

    def variant(self, executable: Executable, args: Sequence[Any]) -> Executable:
        """The executable for another signature than ``executable``'s, on its target (the recompile guard's slow path)."""
        check_count(self.name, args, self.argument_names)
        seen = Signature.of(args, self.argument_names)
        if seen == executable.signature:
            raise InputError(
                f"program {self.name!r}: saw arguments that match its signature and that the runtime refuses; pass arrays"
            )
        return self._attached(executable.target, seen, args)

    @property
    def compiles(self) -> int:
        """How many executables were compiled so far, over all attached targets."""
        return sum(map(len, self._compiled.values()))

    def shardings(self, target: str | Target) -> tuple[Any, Any]:
        """Shardings of arguments and result on an attached ``target``, as ``jax.jit`` takes them."""
        mesh = Target(target).mesh(self.axes)

        def named(spec: Any) -> Any:
            return jax.tree.map(lambda s: NamedSharding(mesh, s), spec, is_leaf=lambda s: isinstance(s, PartitionSpec))

        return tuple(map(named, self.in_specs)), None if self.out_specs is None else named(self.out_specs)

    def lower(self, target: str | Target, args: Sequence[Any] | None = None) -> Any:
        """The ``jax.stages.Lowered`` of this program for an attached ``target``."""
        target = Target(target)
        in_shardings, out_shardings = self.shardings(target)
        kwargs: dict[str, Any] = {} if out_shardings is None else {"out_shardings": out_shardings}
        function = jax.jit(self._strong(), donate_argnums=self.donate, in_shardings=in_shardings, **kwargs)
        with tracing(self.name, self.argument_names, self.example, target.mesh(self.axes)):
            traced = function.trace(*(self.example if args is None else map(strong_structs, args)))
        check_leaks(traced, self.name)
        if (notice := large_constants(traced, self.fn)) is not None:
            logger.warning("program %r: %s", self.name, notice)
        if target.platform == "cpu" and target.num_devices == 1 and (faster := with_cpu_forms(traced)):
            faster.__name__ = self.name
            function = jax.jit(faster, donate_argnums=self.donate, in_shardings=in_shardings, **kwargs)
            traced = function.trace(*(self.example if args is None else map(strong_structs, args)))
        return traced.lower()

    def _strong(self) -> Callable[..., Any]:
        """The function under the program's name (profiles and dumps show it), its results strongly typed."""

        def run(*args: Any) -> Any:
            # A weakly typed result that comes back as an argument would be a second signature.
            result = self.fn(*args)
            check_result(self.name, self.out_specs, result)
            return jax.tree.map(lambda x: jax.lax.convert_element_type(x, jax.numpy.asarray(x).dtype), result)

        run.__name__ = run.__qualname__ = self.name
        return run

    def _attached(self, target: Target, signature: Signature, args: Sequence[Any]) -> Executable:
        compiled = self._compiled.setdefault(target, {})
        if signature in compiled:
            return compiled[signature]
        with self._compiling:  # threads that want the same wait for one compile
            if signature in compiled:
                return compiled[signature]
            self.budget.check(self.name, target, signature)
            self._check_division(target)
            started = time.monotonic()
            executable = Executable(self, target, signature, self.lower(target, args), started)
            self.budget.spend(self.name, target, signature)
            compiled[signature] = executable
        return executable

    def _check_division(self, target: Target) -> None:
        sizes = _axis_sizes(self.axes, target, self.name)
        for argument, name, spec in zip(self.example, self.argument_names, self.in_specs, strict=True):
            specs = jax.tree.broadcast(spec, argument, is_leaf=lambda s: isinstance(s, PartitionSpec))
            flat = jax.tree.leaves(specs, is_leaf=lambda s: isinstance(s, PartitionSpec))
            for path, leaf, leaf_spec in zip(
                leaf_names([argument], [name]), jax.tree.leaves(argument), flat, strict=True
            ):
                _check_leaf(self.name, path, leaf.shape, leaf_spec, sizes, target)

    def __repr__(self) -> str:
        return f"Program({self.name!r}, {len(self.signature.leaves)} arrays in, {self.compiles} of {self.budget.limit} compiled)"


def _axis_sizes(axes: Mapping[str, int], target: Target, name: str) -> dict[str, int]:
    mesh = target.mesh(axes)
    return dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))


def _check_leaf(
    program: str, path: str, shape: tuple[int, ...], spec: PartitionSpec, sizes: Mapping[str, int], target: Target
) -> None:
    if len(spec) > len(shape):
        raise TargetError(
            f"program {program!r}: {path} has shape {shape} and its layout {spec} names {len(spec)} dimensions; "
            "give a PartitionSpec no longer than the shape"
        )
    for dimension, entry in enumerate(spec):
        names = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        ways = 1
        for axis in names:
            if axis not in sizes:
                raise TargetError(
                    f"program {program!r}: {path} is laid out over axis {axis!r}; the mesh has {list(sizes)}"
                )
            ways *= sizes[axis]
        if ways > 1 and shape[dimension] % ways:
            below = shape[dimension] // ways * ways
            near = f"{below} or {below + ways}" if below else str(ways)
            raise TargetError(
                f"program {program!r}: dimension {dimension} of {path} has size {shape[dimension]}, which mesh axis "
                f"{'×'.join(names)} of size {ways} on {target.name} does not divide; use {near}"
            )
