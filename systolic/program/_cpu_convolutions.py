"""Convolutions over large feature maps, in forms that XLA's CPU backend computes faster.

A weight gradient is a convolution whose window is a whole feature map, for which XLA has no good loop: as products of
shifted slices, one for each row of the window, a few images at a time so that they stay in the caches, it takes 0.2 to 0.8
of the time where the maps are large. A 1x1 window is a matrix product, and is computed as one: 0.1 to 0.7, for maps of any
size. Measured on two cores, with jax 0.10.2, as are the limits below, under which XLA's own way is as fast. (Forward, a few
images at a time take 0.7 as well, but beside other work of the same step they took longer than all at once.)

Programs for other platforms, and for several CPU devices, among which the batch is spread, stay as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.interpreters import mlir

_MAPS = (0, 3, 1, 2)  # where batch, features, rows and columns are: [batch, rows, columns, features]
_SWAPPED = (3, 0, 1, 2)  # features take the place of the batch: in a weight gradient

_PIECE = 2 << 20  # bytes of both maps that are worked on at a time
_WIDEST = 7  # the widest window whose rows are worth a product each


@dataclasses.dataclass(frozen=True)
class Convolution:
    """Parameters of ``conv_general_dilated`` that the forms here take over."""

    dimensions: Any
    padding: tuple[tuple[int, int], ...]
    precision: Any
    element_type: Any
    result: jax.core.ShapedArray

    @classmethod
    def of(cls, equation: Any) -> Convolution | None:
        """Of a convolution in two dimensions without strides, dilation and groups; else ``None``."""
        if equation.primitive.name != "conv_general_dilated":
            return None
        params, result = equation.params, equation.outvars[0].aval
        ones = ("window_strides", "lhs_dilation", "rhs_dilation")
        plain = all(set(params[name]) == {1} for name in ones) and len(params["padding"]) == 2
        groups = params["feature_group_count"] * params["batch_group_count"]
        if not plain or groups != 1 or min(map(min, params["padding"])) < 0 or 0 in result.shape:
            return None
        return cls(
            params["dimension_numbers"],
            tuple(map(tuple, params["padding"])),
            params["precision"],
            params["preferred_element_type"],
            result,
        )

    def faster(self, left: Any, right: Any) -> Callable[..., jax.Array] | None:
        """The form that is faster than XLA's for operands of these shapes, if there is one."""
        left_spec, right_spec, out_spec = self.dimensions
        unpadded = self.padding == ((0, 0), (0, 0))
        if left_spec == _MAPS and out_spec == _MAPS and unpadded and all(right.shape[d] == 1 for d in right_spec[2:]):
            return self.product
        if left_spec == _SWAPPED and right_spec == _SWAPPED:
            size = sum(x.size * x.dtype.itemsize for x in (left, right))
            window = [self.result.shape[d] for d in out_spec[2:]]
            if window == [1, 1] and unpadded and left.shape[:3] == right.shape[:3]:
                return functools.partial(self.gradient, left.shape[0])
            if size >= _large(max(window), left.dtype):
                return functools.partial(self.gradient, _images(left.shape[0], size))
        return None

    def product(self, left: jax.Array, right: jax.Array) -> jax.Array:
        """A window of one: [n, h, w, c] times [c, k]."""
        _, (out, into, *places), _ = self.dimensions
        matrix = lax.squeeze(lax.transpose(right, (*places, into, out)), (0, 1))
        return lax.dot_general(left, matrix, (((3,), (0,)), ((), ())), self.precision, self.element_type)

    def gradient(self, count: int, left: jax.Array, right: jax.Array) -> jax.Array:
        """[n, h, w, c] and [n, p, q, k] to [height, width, c, k] of the window, ``count`` images at a time."""
        *_, height, width = (self.result.shape[d] for d in self.dimensions[2])
        rows, columns, into, out = *right.shape[1:3], left.shape[3], right.shape[3]
        summed = jnp.promote_types(self.result.dtype, jnp.float32)

        def some(images: jax.Array, gradient: jax.Array) -> jax.Array:
            padded = jnp.pad(images, ((0, 0), *self.padding, (0, 0)))
            shifted = [padded[:, :, j : j + columns] for j in range(width)]
            # One product for each row of the window: its columns are side by side, as more features.
            wide = jnp.concatenate(shifted, axis=-1) if width > 1 else shifted[0]
            flat = gradient.reshape(-1, out)
            return jnp.stack(
                [
                    lax.dot_general(
                        wide[:, i : i + rows].reshape(-1, width * into),
                        flat,
                        (((0,), (0,)), ((), ())),
                        self.precision,
                        summed,
                    )
                    for i in range(height)
                ]
            )

        def piece(number: Any, total: jax.Array) -> jax.Array:
            return total + some(*(lax.dynamic_slice_in_dim(x, number * count, count) for x in (left, right)))

        pieces, rest = divmod(left.shape[0], count)
        if pieces == 1:
            total = some(left[:count], right[:count])
        else:
            total = lax.fori_loop(0, pieces, piece, jnp.zeros((height, width * into, out), summed))
        if rest:
            total += some(left[-rest:], right[-rest:])
        total = total.reshape(height, width, into, out).astype(self.result.dtype)
        batch, features, *places = self.dimensions[2]
        return lax.transpose(total, [[*places, batch, features].index(d) for d in range(4)])


def _large(window: int, dtype: Any) -> float:
    """Bytes of both maps from which on the products are faster for a window of this many rows or columns."""
    if window > _WIDEST:
        return math.inf
    if window > 3:
        return 64 << 20
    return (16 if dtype == jnp.float32 else 32) << 20


def _images(batch: int, size: int) -> int:
    """How many images of a batch are a piece of about the wanted size; a divisor of the batch, if one is near."""
    wanted = min(batch, max(1, _PIECE * batch // size))
    return max((d for d in range(wanted // 2 + 1, wanted + 1) if batch % d == 0), default=wanted)


convolution_p = core.Primitive("cpu_convolution")
convolution_p.def_abstract_eval(lambda *_, of: of.result)


def change(equation: Any) -> Any:
    """The equation in the form that is faster; ``None`` where it is another one or would not gain."""
    of = Convolution.of(equation)
    if of is None or of.faster(*(v.aval for v in equation.invars)) is None:
        return None
    return equation.replace(primitive=convolution_p, params={"of": of})


def _compute(left: jax.Array, right: jax.Array, *, of: Convolution) -> jax.Array:
    form = of.faster(left, right)
    assert form is not None
    return form(left, right)


mlir.register_lowering(convolution_p, mlir.lower_fun(_compute, multiple_results=False))
