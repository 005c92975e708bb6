"""Writes the golden HLO texts: small programs of our own, as the TPU compiler schedules them for one v5e chip.

Run ``python tests/check/golden/generate.py`` after a change of jax or libtpu that the parser must follow; the tests
compare with numbers worked out by hand, so they hold for any version.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np

from systolic.program import CompileOptions, Program

HERE = pathlib.Path(__file__).parent
f32 = np.float32


def scan_matmul(weights, x):
    """Five layers of (64, 256) @ (256, 256)."""
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0]


def convolution_step(kernel, x):
    """A strided convolution and the gradient with respect to both of its inputs."""

    def loss(kernel, x):
        y = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.sum(y * y)

    return jax.grad(loss, argnums=(0, 1))(kernel, x)


def momentum_update(state, gradient):
    """An optimizer's update in place: the state is donated."""
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, state["velocity"], gradient)
    weights = jax.tree.map(lambda w, v: w - 0.1 * v, state["weights"], velocity)
    return {"velocity": velocity, "weights": weights}


def narrow_table(table, index):
    """Rows of a table that is 64 wide, where a tile is 128 wide."""
    return table[index].sum(axis=0)


def counted_loop(x, steps):
    """A loop whose bound is a constant in its condition, around one product."""

    def body(carry):
        i, x = carry
        return i + 1, jnp.tanh(x @ x) + steps

    return jax.lax.while_loop(lambda carry: carry[0] < 7, body, (0, x))[1]


def deep_gradient(weights, x):
    """Two layers whose activations (256 MiB each) wait for the backward pass in HBM."""

    def loss(weights, x):
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.sum(x.astype(f32))

    return jax.grad(loss)(weights, x)


def shape(*dims, dtype=f32):
    return jax.ShapeDtypeStruct(dims, dtype)


PROGRAMS = {
    "scan_matmul": Program(scan_matmul, shape(5, 256, 256), shape(64, 256)),
    "convolution_step": Program(convolution_step, shape(3, 3, 16, 32), shape(8, 33, 33, 16)),
    "momentum_update": Program(
        momentum_update,
        {name: {"a": shape(1024, 1024), "b": shape(1000)} for name in ("velocity", "weights")},
        {"a": shape(1024, 1024), "b": shape(1000)},
        donate=(0,),
    ),
    "narrow_table": Program(narrow_table, shape(100_000, 64), shape(512, dtype=np.int32)),
    "deep_gradient": Program(
        deep_gradient, [shape(4096, 4096, dtype=jnp.bfloat16)] * 2, shape(32768, 4096, dtype=jnp.bfloat16)
    ),
    "counted_loop": Program(counted_loop, shape(512, 512), shape()),
}


def main() -> None:
    for name, program in PROGRAMS.items():
        described = program.compile("v5e-1", CompileOptions(depth="full", cache=False))
        text = described.hlo_text.replace(str(HERE), "golden")
        text = re.sub(r'"/[^"]*/([^"/]+/[^"/]+\.py)"', r'"/site-packages/\1"', text)
        text = re.sub(
            r", (sharding|frontend_attributes)=\{[^{}]*(\{[^{}]*\}[^{}]*)*\}(?=,|$)", "", text, flags=re.MULTILINE
        )
        text = re.sub(r', backend_config=\{"flag_configs".*', _short, text)
        (HERE / f"{name}.hlo.txt").write_text(text)
        meta = {"memory": dataclasses.asdict(described.memory), "names": described.argument_names}
        (HERE / f"{name}.json").write_text(json.dumps(meta, indent=1) + "\n")
        print(name, len(text))


def _short(match: re.Match) -> str:
    """Keep of the compiler's notes what the parser reads."""
    kept = re.findall(r'"known_trip_count":\{[^}]*\}|"aliasing_operands":\{"lists":\[.*?\]\}(?=[,}])', match.group())
    return ", backend_config={" + ",".join(kept) + "}" if kept else ""


if __name__ == "__main__":
    main()
