"""Where a NaN or an infinity came from: the step's computation replayed, operation by operation.

The guard in the training step leaves the state as it was before the bad step, so the same step can be computed again
from the same batch, here with every intermediate result looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import numpy as np

from systolic._errors import NonFiniteError
from systolic._source import is_users_file
from systolic.data import ElementSpec
from systolic.estimator._steps import Clock, Steps
from systolic.program import leaf_names


def nonfinite_step(steps: Steps, state: Any, batch: Any, spec: ElementSpec, number: int) -> str:
    """Say what went bad in a training step: ``state`` stands before it, ``batch`` is its input, both on the host."""
    key, n = Clock.unpack(state["clock"]).key(), steps.accumulate
    names = ("params", "model_state", "batch")
    params, model_state = state["params"], state["model_state"]
    if found := _bad_input((params, model_state, batch), names):
        spoilt = ", which the gradient of the step before made so" if " in params/" in found else ""
        return f"the loss of step {number} is not finite: {found}{spoilt}"
    for i in range(n):
        part, part_key, where = batch, key, ""
        if n > 1:  # the rows and the key of the microbatch, as `Steps` has them
            part, part_key = jax.tree.map(lambda x, i=i: x[i::n], batch), jax.random.fold_in(key, i)
            where = f", in microbatch {i + 1} of {n}"

        def loss(params: Any, model_state: Any, part: Any, key: Any = part_key) -> Any:
            return steps.loss(params, model_state, part, spec, key)

        args = params, model_state, part
        if found := first_nonfinite(lambda *args, loss=loss: loss(*args)[0], *args, names=names):
            return f"the loss of step {number} is not finite: {found}{where}"
        if found := first_nonfinite(jax.grad(lambda *args, loss=loss: loss(*args)[0]), *args, names=names):
            return f"the gradient of step {number} is not finite, though its loss is: {found}{where}"
        if i + 1 < n:
            model_state = jax.device_get(jax.jit(loss)(*args)[1][2])
    return f"step {number} is not finite, though every value is when it is computed operation by operation"


def refuse_nonfinite(params: Any, step: int) -> None:
    """Raise NonFiniteError unless all parameters are finite: what is saved must be worth going on from."""
    host = jax.device_get(params)
    for name, value in zip(leaf_names([host], ["params"]), jax.tree.leaves(host), strict=True):
        if kind := _nonfinite(value):
            raise NonFiniteError(
                f"the gradient of step {step} or of one shortly before it was not finite, though the losses were: {kind} in "
                f"{name}{_where(value)}. Nothing was saved. Look at the input, lower the learning rate or clip gradients "
                "(Estimator(clip_norm=1.0)); RunConfig(on_nonfinite='ignore') trains on"
            )


def first_nonfinite(fn: Callable[..., Any], *args: Any, names: tuple[str, ...]) -> str | None:
    """Describe the first array with a NaN or infinity: an input leaf by name, else an operation with its source line.

    Args:
        fn: a pure function of ``args``, traced here.
        names: what each argument is called, for the paths of its leaves.

    Returns:
        ``None`` when every value is finite, but for infinities that the program itself holds and that do no harm.
    """
    if bad := _bad_input(args, names):
        return bad
    closed = jax.make_jaxpr(fn)(*args)
    found: list[str] = []
    handed_on: list[str] = []
    results = _replay(closed.jaxpr, closed.consts, jax.tree.leaves(args), found, handed_on)
    if not found and any(map(_nonfinite, results)):
        found = handed_on
    return found[0] if found else None


def _bad_input(args: tuple[Any, ...], names: tuple[str, ...]) -> str | None:
    for name, value in zip(leaf_names(args, names), jax.tree.leaves(args), strict=True):
        if kind := _nonfinite(value):
            return f"{kind} in {name}{_where(value)}"
    return None


def _replay(jaxpr: Any, consts: Any, args: Any, found: list[str], handed_on: list[str]) -> list[Any]:
    """Evaluate a jaxpr equation by equation, looking into nested calls; stops at the first bad value made of good ones.

    A bad value with another of its kind among the inputs goes to ``handed_on``: the infinity of a masked softmax is
    written into the program, and does no harm.
    """
    core = jax.extend.core
    values: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    values.update(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))
    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        if (
            isinstance(inner, core.ClosedJaxpr)
            and len(inner.jaxpr.invars) == len(inputs)
            and "branches" not in equation.params
            and equation.primitive.name not in ("scan", "while")
        ):
            outputs = _replay(inner.jaxpr, inner.consts, inputs, found, handed_on)
        else:
            outputs = equation.primitive.bind(*inputs, **equation.params)
            outputs = outputs if equation.primitive.multiple_results else [outputs]
        if found:
            return []
        for value in outputs:
            if kind := _nonfinite(value):
                made = kind not in map(_nonfinite, inputs)
                (found if made else handed_on).append(_describe(kind, equation, value))
                if made:
                    return []
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _nonfinite(value: Any) -> str | None:
    dtype = getattr(value, "dtype", None)
    if dtype is None or not jax.numpy.issubdtype(dtype, jax.numpy.inexact):
        return None
    array = np.asarray(value)
    if np.isfinite(array).all():
        return None
    return "NaN" if np.isnan(array).any() else "infinity"


def _where(value: Any) -> str:
    bad = np.argwhere(~np.isfinite(np.asarray(value)))
    shape = tuple(np.shape(value))
    first = f" at index {tuple(map(int, bad[0]))}" if shape else ""
    return f", shape {shape}: {len(bad)} of {int(np.prod(shape))} values{first}" if shape else ""


def _describe(kind: str, equation: Any, value: Any) -> str:
    name = str(equation.source_info.name_stack)
    operation = "/".join(part for part in (name, equation.primitive.name) if part)
    frame = _user_line(equation.source_info.traceback)
    return f"{kind} first comes out of {operation}{_where(value)}" + (f", at {frame}" if frame else "")


def _user_line(traceback: Any) -> str | None:
    """``file:line`` of the innermost frame of the user's."""
    frames = traceback.frames if traceback is not None else ()
    return next((f"{frame.file_name}:{frame.line_num}" for frame in frames if is_users_file(frame.file_name)), None)
