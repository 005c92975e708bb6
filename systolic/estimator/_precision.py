"""The dtype a model computes in: parameters stay float32, the model sees bfloat16, results come back as float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from systolic._errors import InputError


@dataclasses.dataclass(frozen=True)
class Precision:
    """``"float32"``, or ``"bfloat16"`` for mixed precision.

    With bfloat16, parameters and float32 features are cast on their way into the model and what *calling the model*
    returns is cast to float32, so that losses are computed in float32. Model state (batch statistics) is not cast.
    Optimizer, gradients' accumulation and the parameters themselves stay float32.
    """

    compute: str = "float32"

    def __post_init__(self) -> None:
        if self.compute not in ("float32", "bfloat16"):
            raise InputError(f"Estimator(precision): saw {self.compute!r}, wanted 'float32' or 'bfloat16'")

    def narrow(self, tree: Any) -> Any:
        """float32 arrays of ``tree`` in the compute dtype."""
        return _cast(tree, jnp.float32, jnp.bfloat16) if self.compute == "bfloat16" else tree

    def widen(self, tree: Any) -> Any:
        """bfloat16 arrays of ``tree`` as float32."""
        return _cast(tree, jnp.bfloat16, jnp.float32) if self.compute == "bfloat16" else tree

    def wrap(self, bound: Any) -> Any:
        """``bound``, whose call, and those of its methods and parts, take the compute dtype and return float32."""
        return _Widened(bound, self) if self.compute == "bfloat16" else bound


class _Widened:
    """A bound model (or a method or part of it) whose calls compute narrowly and return float32."""

    def __init__(self, bound: Any, precision: Precision) -> None:
        object.__setattr__(self, "_bound", bound)
        object.__setattr__(self, "_precision", precision)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._precision.narrow((args, kwargs))
        return self._precision.widen(self._bound(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return self._part(getattr(self._bound, name))

    def __getitem__(self, key: Any) -> Any:
        return self._part(self._bound[key])

    def __iter__(self) -> Iterator[Any]:
        return map(self._part, iter(self._bound))

    def __len__(self) -> int:
        return len(self._bound)

    def _part(self, value: Any) -> Any:
        """A method or a part, or a list or dict of parts, wrapped as well; anything else as it is."""
        items = value.values() if isinstance(value, Mapping) else value if isinstance(value, Sequence) else ()
        own = callable(value) or (not isinstance(value, str) and any(map(callable, items)))
        return _Widened(value, self._precision) if own else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._bound, name, value)


def _cast(tree: Any, source: Any, wanted: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(wanted) if getattr(x, "dtype", None) == source else x, tree)
