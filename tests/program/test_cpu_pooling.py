"""The gradient of max pooling on one CPU device, in its own form: values by NumPy, element for element."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from systolic import Program
from systolic.target import libtpu_version

RNG = np.random.default_rng(0)


def pool(window, strides, padding):
    return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)


def by_hand(x, gradient, window, strides, padding):
    """The first of the largest elements of each window gets its gradient."""
    total = np.zeros(x.shape, np.float64)
    for place in np.ndindex(gradient.shape):
        best = None
        for offset in itertools.product(*map(range, window)):
            at = tuple(p * s + o - low for p, s, o, (low, _) in zip(place, strides, offset, padding, strict=True))
            if all(0 <= a < n for a, n in zip(at, x.shape, strict=True)) and (best is None or not x[best] >= x[at]):
                best = at
        total[best] += gradient[place]
    return total


CASES = {
    "side by side": ((2, 6, 8, 3), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    "of three, with a rest": ((1, 10, 11, 2), (1, 3, 3, 1), (1, 3, 3, 1), "VALID"),
    "padded": ((2, 7, 5, 3), (1, 2, 2, 1), (1, 2, 2, 1), "SAME"),
    "overlapping": ((2, 9, 8, 3), (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    "every place": ((1, 6, 6, 2), (1, 2, 3, 1), (1, 1, 1, 1), "SAME"),
    "with gaps": ((1, 9, 9, 2), (1, 2, 2, 1), (1, 3, 3, 1), "VALID"),
    "features first": ((2, 3, 8, 6), (1, 1, 2, 2), (1, 1, 2, 2), "VALID"),
    "one dimension": ((3, 12, 2), (1, 4, 1), (1, 4, 1), "VALID"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("values", ["distinct", "ties"])
def test_the_first_of_the_largest_elements_gets_the_gradient(case, values):
    shape, window, strides, padding = case
    pads = lax.padtype_to_pads(shape, window, strides, padding)
    forward = pool(window, strides, pads)
    x = RNG.permutation(np.prod(shape)).reshape(shape).astype(np.float32)
    if values == "ties":
        x = np.maximum(x % 3, 1)
    gradient = RNG.standard_normal(jax.eval_shape(forward, x).shape).astype(np.float32)
    run = Program(lambda g, x: jax.vjp(forward, x)[1](g)[0], gradient, x).compile("cpu:1")
    assert "select_and_scatter" not in run.lower_text()
    np.testing.assert_allclose(run(gradient, x), by_hand(x, gradient, window, strides, pads), rtol=1e-6, atol=1e-6)


def test_bfloat16_stays_what_it_is():
    forward = pool((1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4)
    x = jnp.asarray(RNG.permutation(128).reshape(1, 8, 8, 2), jnp.bfloat16)
    gradient = jnp.asarray(RNG.standard_normal((1, 4, 4, 2)), jnp.bfloat16)
    got = Program(lambda g, x: jax.vjp(forward, x)[1](g)[0], gradient, x).compile("cpu:1")(gradient, x)
    assert got.dtype == jnp.bfloat16
    wanted = by_hand(np.float32(x), np.float64(gradient), (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4)
    np.testing.assert_array_equal(np.float64(got), wanted)


@pytest.mark.parametrize(
    "target",
    ["cpu:2", pytest.param("v5e-1", marks=pytest.mark.skipif(libtpu_version() is None, reason="needs libtpu"))],
)
def test_programs_for_other_targets_keep_xla_s_own_form(target):
    forward = pool((1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4)
    x, gradient = np.ones((2, 8, 8, 2), np.float32), np.ones((2, 4, 4, 2), np.float32)
    compiled = Program(lambda g, x: jax.vjp(forward, x)[1](g)[0], gradient, x).compile(target)
    text = compiled.lower_text() if target.startswith("cpu") else compiled.hlo_text
    assert "select_and_scatter" in text.replace("-", "_")
