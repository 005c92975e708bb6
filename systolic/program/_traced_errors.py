"""What goes wrong in a function of the user's while it is traced: told at the user's own line, with the usual remedy.

JAX says what it could not do, from a place dozens of frames below the line that asked for it. An exception that the user's
own code raises is not touched.
"""

from __future__ import annotations

import contextlib
import dis
import linecache
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from systolic._errors import InputError, SystolicError

_LIBRARIES = frozenset(("jax", "jaxlib", "flax", "optax", "equinox", "numpy", "einops"))
_BETWEEN = _LIBRARIES | {"systolic", "functools", "contextlib", "jaxtyping", "beartype"}
"""Modules that stand between the user's line and the place where the exception was raised."""

_MOST_LINES = 8

_STATIC = "Take it from a shape, from mode or from params, which are known while the program is traced"
_REMEDIES = {
    "TracerBoolConversionError": (
        "What the device computes is not known while the program is traced, so Python cannot branch on it. Write "
        "jnp.where(condition, a, b) to choose values, jax.lax.cond to choose what is computed, jax.lax.while_loop to loop. A "
        "choice that is the same for every batch can come from mode, from params or from a shape"
    ),
    "TracerIntegerConversionError": (
        "Python needs an integer here that only the device will know. To pick from a list, stack it and index the array, "
        f"jnp.stack(items)[i]; a size or a count must be static. {_STATIC}"
    ),
    "ConcretizationTypeError": (
        f"Python needs a value here (a size, an axis, float(), .item()) that only the device will know. {_STATIC}; for other "
        "dtypes write x.astype(...), and to look at a value return it in metrics or use jax.debug.print"
    ),
    "TracerArrayConversionError": (
        "NumPy cannot compute with what is not there yet. Use the function of the same name in jax.numpy; what exists in NumPy "
        "only runs on the host by jax.pure_callback"
    ),
    "NonConcreteBooleanIndexError": (
        "How many entries a boolean index picks is known to the device only, and shapes are static. Write "
        "jnp.where(mask, x, 0), or keep every entry and give the mask as weights to the loss or the metric"
    ),
    "UnexpectedTracerError": (
        "A value of an earlier trace was kept in a global, an attribute or a list, and is used here. Return it instead: as "
        "part of predictions or metrics, or as state of the model"
    ),
}
_ABOUT_SHAPES = ("shape", "broadcast", "dimension", "reshape", "axis", "concatenat", "indices")


def explain_traced(error: Exception, where: str, **seen: Any) -> InputError | None:
    """The error to raise instead of ``error``; None where it is the user's own, or the device's.

    Args:
        where: what was traced, for the message.
        seen: what the function was given, by names, whose shapes are told where the error is about shapes.
    """
    kind = next((name for cls in type(error).__mro__ if (name := cls.__name__) in _REMEDIES), None)
    # Of values, not of tracing: what the device reports, and what jax_debug_nans raises, which callers look for.
    of_values = jax.errors.JaxRuntimeError | FloatingPointError
    if isinstance(error, SystolicError | of_values) or (kind is None and not _from_jax(error)):
        return None
    remedy = _REMEDIES.get(kind or "", "")
    if not remedy and any(word in str(error).lower() for word in _ABOUT_SHAPES):
        remedy = f"Shapes are known while the program is traced: print(x.shape) shows them. {_shapes(seen)}"
    place = user_line(error)
    lines = [
        f"{where}{'' if place is None else f', {place}'}",
        f"{type(error).__name__}: {_gist(str(error))}",
    ]
    return InputError("\n".join([*lines, remedy] if remedy else lines))


@contextlib.contextmanager
def explained_trace(name: str, argument_names: Sequence[str], args: Sequence[Any]) -> Iterator[None]:
    """Trace a Program in the body: what JAX cannot trace is told as :func:`explain_traced` does.

    Raises:
        InputError: the function does something that cannot be traced.
    """
    try:
        yield
    except Exception as error:
        told = explain_traced(error, f"program {name!r}", **dict(zip(argument_names, args, strict=True)))
        if told is None:
            raise
        raise told from error


def user_line(error: BaseException) -> str | None:
    """``at FILE:LINE in FUNCTION: source`` of the innermost line of the user's that ``error`` came through."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if _module(frame) not in _BETWEEN:
            code = frame.f_code
            source = linecache.getline(code.co_filename, line).strip()
            return f"at {code.co_filename}:{line} in {code.co_name}" + (f": {source}" if source else "")
    return None


def _from_jax(error: Exception) -> bool:
    """Whether a library raised ``error``, or Python did because of a traced value; not a ``raise`` of the user's."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None or _module(innermost.tb_frame) in _LIBRARIES:
        return innermost is not None
    raised = innermost.tb_frame.f_code.co_code[innermost.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return not raised and isinstance(error, TypeError | AttributeError) and "Tracer" in str(error)


def _module(frame: Any) -> str:
    return frame.f_globals.get("__name__", "").split(".")[0]


def _gist(text: str) -> str:
    """What JAX says, up to where it begins to tell how the trace came about."""
    lines = []
    for line in text.splitlines():
        line = line.strip()
        if line.startswith(("The error occurred while tracing", "When the value was created", "See https://")):
            break
        if line and set(line) != {"-"}:
            lines.append(line)
    return "\n".join(lines[:_MOST_LINES])


def _shapes(seen: dict[str, Any]) -> str:
    """As in: Seen: features {'x': float32[8,3]}, labels int32[8]."""

    def shown(tree: Any) -> str:
        text = str(jax.tree.map(_Shown, tree))
        return text if len(text) < 400 else text[:400] + "..."

    return f"Seen: {', '.join(f'{name} {shown(tree)}' for name, tree in seen.items())}"


class _Shown:
    def __init__(self, leaf: Any) -> None:
        self._text = f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" if hasattr(leaf, "dtype") else repr(leaf)

    def __repr__(self) -> str:
        return self._text
