"""Names that Python, NumPy and TensorFlow have dropped since: there again, for the user's files alone."""

from __future__ import annotations

import collections
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from systolic.tf._tensorflow import tensorflow
from systolic.tf.contrib import each, found

_ABSTRACT = """AsyncGenerator AsyncIterable AsyncIterator Awaitable ByteString Callable Collection Container Coroutine
Generator Hashable ItemsView Iterable Iterator KeysView Mapping MappingView MutableMapping MutableSequence MutableSet
Reversible Sequence Set Sized ValuesView
"""
_SLICES = """IndexedSlices IndexedSlicesValue convert_n_to_tensor_or_indexed_slices convert_to_tensor_or_indexed_slices
internal_convert_n_to_tensor_or_indexed_slices internal_convert_to_tensor_or_indexed_slices
"""
_FRAMEWORK = "tensorflow.python.framework."
_CONVERSION = _FRAMEWORK + "tensor_conversion_registry:"
_HERE = "systolic.tf._removed:"

REMOVED: Mapping[str, Mapping[str, str]] = {
    "collections": each("collections.abc:", _ABSTRACT),
    "inspect": {"getargspec": _HERE + "getargspec"},
    "fractions": {"gcd": "math:gcd"},
    "time": {"clock": "time:perf_counter"},
    "numpy": each("builtins:", "bool complex float int object str")
    | {"long": "builtins:int", "unicode": "builtins:str"}
    | {"bool8": "numpy:bool_", "object0": "numpy:object_", "int0": "numpy:intp", "uint0": "numpy:uintp"}
    | {"float_": "numpy:float64", "complex_": "numpy:complex128", "string_": "numpy:bytes_", "unicode_": "numpy:str_"}
    | {"Inf": "numpy:inf", "Infinity": "numpy:inf", "infty": "numpy:inf", "PINF": "numpy:inf", "NaN": "numpy:nan"}
    | {"NAN": "numpy:nan", "NINF": _HERE + "NEGATIVE_INFINITY"}
    | {"product": "numpy:prod", "cumproduct": "numpy:cumprod", "sometrue": "numpy:any", "alltrue": "numpy:all"}
    | {"row_stack": "numpy:vstack", "in1d": "numpy:isin", "trapz": "numpy:trapezoid", "round_": "numpy:round"}
    | {"asscalar": _HERE + "item", "rank": "numpy:ndim", "issubclass_": "builtins:issubclass"},
    "tensorflow.python.framework.ops": each("tensorflow.python.framework.indexed_slices:", _SLICES)
    | {"convert_to_tensor_v2": _FRAMEWORK + "tensor_conversion:convert_to_tensor_v2"}
    | {"register_tensor_conversion_function": _CONVERSION + "register_tensor_conversion_function"}
    | {"Tensor": _FRAMEWORK + "tensor:Tensor", "RegisterShape": _HERE + "register_shape"},
    "tensorflow.python.framework.tensor_shape": each(_HERE, "scalar vector matrix"),
    "tensorflow.python.ops.array_ops": {"stack": "tf:stack", "unstack": "tf:unstack"},
    "tensorflow.python.ops.random_ops": {"random_crop": "tf:random_crop"},
    "tensorflow.python.ops.variables": {
        "VariableV1": "tensorflow.python.ops.variable_v1:VariableV1",
        "RefVariable": "tensorflow.python.ops.ref_variable:RefVariable",
        "is_variable_initialized": "tf:is_variable_initialized",
    },
    "tensorflow.python.ops.variable_scope": {
        "variable": "tf:Variable",
        "enable_resource_variables": "tf:enable_resource_variables",
        "disable_resource_variables": "tf:disable_resource_variables",
        "resource_variables_enabled": "tf:resource_variables_enabled",
    },
    "tensorflow.python.ops.resource_variable_ops": each(
        "tensorflow.python.ops.ref_variable:", "_from_proto_fn _to_proto_fn"
    ),
    "tensorflow.python.tpu.tpu": each("tensorflow.python.tpu.tpu_replication:", "_TPU_REPLICATE_ATTR"),
    "tensorflow.python.util.nest": {"is_sequence": "tf:nest.is_nested"},
    "tensorflow.python.ops.control_flow_ops": {
        "cond": "tensorflow.python.ops.cond:cond",
        "while_loop": "tensorflow.python.ops.while_loop:while_loop",
        "case": "tensorflow.python.ops.control_flow_case:case",
        "switch_case": "tensorflow.python.ops.control_flow_switch_case:switch_case",
        "Assert": "tensorflow.python.ops.control_flow_assert:Assert",
    },
}
"""Module -> name -> where it is found now."""

NEGATIVE_INFINITY = float("-inf")

ArgSpec = collections.namedtuple("ArgSpec", "args varargs keywords defaults")


def getargspec(func: Callable[..., Any]) -> ArgSpec:
    """As Python had it up to 3.10.

    Raises:
        ValueError: the function has keyword-only parameters, which this form has no place for.

    Example:
        >>> getargspec(lambda features, labels=None: 0).args
        ['features', 'labels']
    """
    full = inspect.getfullargspec(func)
    if full.kwonlyargs:
        raise ValueError(
            f"getargspec(func): {func} has the keyword-only parameters {full.kwonlyargs}; use inspect.signature"
        )
    return ArgSpec(full.args, full.varargs, full.varkw, full.defaults)


def item(array: Any) -> Any:
    """The number in an array of one."""
    return array.item()


def scalar() -> Any:
    """The shape of a number."""
    return tensorflow().TensorShape([])


def vector(length: int | None) -> Any:
    """The shape of a list."""
    return tensorflow().TensorShape([length])


def matrix(rows: int | None, columns: int | None) -> Any:
    """The shape of a table."""
    return tensorflow().TensorShape([rows, columns])


def register_shape(kind: str) -> Callable[[Any], Any]:
    """A decorator that TensorFlow 1 gave up before its end: shapes are inferred without it."""
    return lambda function: function


def revive(name: str, users: Callable[[Mapping[str, Any]], bool]) -> Callable[[], None]:
    """Let a module answer for what it has dropped, where the user's code asks.

    Args:
        name: a key of :data:`REMOVED`.
        users: whether globals are those of a file of the user's.

    Returns:
        A function that takes it back.
    """
    module = importlib.import_module(name)
    removed = REMOVED[name]
    before: Any = vars(module).get("__getattr__")

    def answer(wanted: str) -> Any:
        if wanted in removed and users(sys._getframe(1).f_globals):
            return found(removed[wanted])
        if before is not None:
            return before(wanted)
        raise AttributeError(f"module {name!r} has no attribute {wanted!r}")

    vars(module)["__getattr__"] = answer

    def take_back() -> None:
        if before is None:
            del vars(module)["__getattr__"]
        else:
            vars(module)["__getattr__"] = before

    return take_back
