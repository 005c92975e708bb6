"""The StableHLO of a small program is the one that was looked at and committed: a refactoring must not change it.

The program is what an Estimator runs: a loop of gradient steps over stacked batches, its count an argument, its state
donated. Only names and layouts are normalised. After a change that is meant to change programs, write the file anew
with ``SYSTOLIC_GOLDEN=write pytest tests/program/test_golden.py`` and read the difference.
"""

from __future__ import annotations

import os
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from systolic import Program

GOLDEN = pathlib.Path(__file__).parent / "golden" / "least_squares.txt"


def least_squares(w, batches, count):
    def loss(w, x, y):
        return ((x @ w - y) ** 2).mean()

    def step(i, w):
        x, y = jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, i, keepdims=False), batches)
        return w - 0.5 * jax.grad(loss)(w, x, y)

    return jax.lax.fori_loop(0, count, step, w)


def program():
    stack = (np.zeros((3, 8, 2), "float32"), np.zeros((3, 8), "float32"))
    specs = (PartitionSpec(), PartitionSpec(None, "data"), PartitionSpec())
    return Program(
        least_squares, np.zeros(2, "float32"), stack, 0, donate=(0,), in_specs=specs, out_specs=PartitionSpec()
    )


def normalised(text: str) -> str:
    """Without locations, and with values numbered in order of appearance."""
    names: dict[str, str] = {}
    text = re.sub(r"\s*loc\([^)]*\)", "", text)
    text = re.sub(r"%[\w]+", lambda m: names.setdefault(m.group(), f"%v{len(names)}"), text)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip()) + "\n"


def test_the_program_is_the_committed_one():
    head = f"// jax {jax.__version__}, cpu:8\n"
    text = normalised(program().compile("cpu:8").lower_text())
    if os.environ.get("SYSTOLIC_GOLDEN") == "write":
        GOLDEN.write_text(head + text)
    first, golden = GOLDEN.read_text().split("\n", 1)
    if first + "\n" != head:
        pytest.skip(f"the committed text is of {first[3:]}; another JAX may lower otherwise")
    assert text == golden


def test_what_the_committed_program_must_hold():
    golden = GOLDEN.read_text()
    assert golden.count("stablehlo.while") == 1  # one loop on the device, not three steps unrolled
    assert "tf.aliasing_output" in golden or "jax.buffer_donor" in golden  # the state is donated
    assert golden.count("stablehlo.dot_general") == 2  # forward, and the gradient: nothing is computed twice
    assert 'sdy.sharding = #sdy.sharding<@mesh, [{}, {"data"}, {}]>' in golden  # rows over the devices, not the stack


def test_it_computes_gradient_descent():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 8, 2)), rng.normal(size=(3, 8))
    w = np.zeros(2)
    for i in range(2):
        w = w - 0.5 * 2 * x[i].T @ (x[i] @ w - y[i]) / 8
    out = program().compile("cpu:8")(jnp.zeros(2), (x.astype("float32"), y.astype("float32")), 2)
    np.testing.assert_allclose(out, w, rtol=1e-5)
