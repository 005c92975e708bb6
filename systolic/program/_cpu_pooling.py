"""The gradient of max pooling, in a form that XLA's CPU backend computes faster.

XLA walks from window to window and adds to one element of each; written as a choice among the elements of a window, for all
windows at once, it becomes loops over arrays. Which element gets the gradient is the same: of equal ones the first.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.interpreters import mlir

_MOST = 16  # elements of a window; each costs a pass over the windows


@dataclasses.dataclass(frozen=True)
class MaxPoolGradient:
    """Of a pooling over windows, in as many dimensions as the arrays have.

    Attributes:
        window: sizes.
        strides: between windows.
        padding: before and after each dimension, of elements that are never chosen.
        result: shape and dtype of what was pooled.
    """

    window: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    result: Any

    @classmethod
    def of(cls, equation: Any) -> MaxPoolGradient | None:
        """Of ``select_and_scatter_add``, where it is that; else ``None``."""
        if equation.primitive.name != "select_and_scatter_add" or equation.params["select_prim"].name != "ge":
            return None
        params = equation.params
        return cls(
            tuple(params["window_dimensions"]),
            tuple(params["window_strides"]),
            tuple(map(tuple, params["padding"])),
            equation.outvars[0].aval,
        )

    @property
    def faster(self) -> bool:
        """Whether this form is."""
        size = 1
        for w in self.window:
            size *= w
        floating = jnp.issubdtype(self.result.dtype, jnp.floating)
        return floating and 1 < size <= _MOST and min(map(min, self.padding)) >= 0 and 0 not in self.result.shape

    def __call__(self, gradient: jax.Array, pooled: jax.Array) -> jax.Array:
        """``gradient`` has the shape of the windows, ``pooled`` that of the result."""
        windows = gradient.shape
        lowest = jnp.array(-jnp.inf, pooled.dtype)
        ends = [s * (n - 1) + w for n, s, w in zip(windows, self.strides, self.window, strict=True)]
        edges = [(low, end - low - n, 0) for (low, _), end, n in zip(self.padding, ends, pooled.shape, strict=True)]
        padded = lax.pad(pooled, lowest, edges)  # a negative edge cuts off what no window covers
        places = list(itertools.product(*map(range, self.window)))
        there = [
            lax.slice(
                padded,
                place,
                [p + s * (n - 1) + 1 for p, s, n in zip(place, self.strides, windows, strict=True)],
                self.strides,
            )
            for place in places
        ]
        best, chosen = there[0], jnp.zeros(windows, jnp.int8)
        for number, here in enumerate(there[1:], 1):
            keep = best >= here
            best, chosen = jnp.where(keep, best, here), jnp.where(keep, chosen, jnp.int8(number))
        if self.window == self.strides:
            summed = self._spread(gradient, chosen)
        else:
            summed = self._sum(gradient, chosen, places, ends)
        cut = [(-low, n - (end - low), 0) for (low, _), end, n in zip(self.padding, ends, pooled.shape, strict=True)]
        return lax.pad(summed, jnp.zeros((), summed.dtype), cut)

    def _spread(self, gradient: jax.Array, chosen: jax.Array) -> jax.Array:
        """Windows side by side: each element looks whether it is the chosen one of its window."""
        shape = tuple(size for pair in zip(gradient.shape, self.window, strict=True) for size in pair)
        own = tuple(range(0, len(shape), 2))
        number = jnp.zeros((1,) * len(shape), jnp.int8)
        for axis, size in enumerate(self.window):
            number = number * jnp.int8(size) + lax.broadcasted_iota(jnp.int8, shape, 2 * axis + 1)
        spread = [lax.broadcast_in_dim(x, shape, own) for x in (chosen, gradient)]
        whole = jnp.where(spread[0] == number, spread[1], jnp.zeros((), gradient.dtype))
        return whole.reshape([n * w for n, w in zip(gradient.shape, self.window, strict=True)])

    def _sum(self, gradient: jax.Array, chosen: jax.Array, places: Any, ends: Any) -> jax.Array:
        """Windows that overlap: for each place in a window, what the windows give to it."""
        zero = jnp.zeros((), gradient.dtype)
        parts = []
        for number, place in enumerate(places):
            given = jnp.where(chosen == number, gradient, zero)
            edges = [
                (p, end - p - (s * (n - 1) + 1), s - 1)
                for p, end, s, n in zip(place, ends, self.strides, gradient.shape, strict=True)
            ]
            parts.append(lax.pad(given, zero, edges))
        return functools.reduce(jnp.add, parts)


max_pool_gradient_p = core.Primitive("cpu_max_pool_gradient")
max_pool_gradient_p.def_abstract_eval(lambda *_, of: of.result)


def change(equation: Any) -> Any:
    """The equation in this form; ``None`` where it is another one or would not gain."""
    of = MaxPoolGradient.of(equation)
    if of is None or not of.faster:
        return None
    return equation.replace(primitive=max_pool_gradient_p, params={"of": of})


mlir.register_lowering(
    max_pool_gradient_p, mlir.lower_fun(lambda gradient, pooled, *, of: of(gradient, pooled), multiple_results=False)
)
