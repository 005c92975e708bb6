"""JAX_PLATFORMS that names what is not there: one clear error, whatever the first call was."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import pytest

from systolic import Target, TargetError
from systolic.target import libtpu_version, platforms_explained

CALLS = {
    "a target": "sl.Target('auto')",
    "another platform": "sl.Target('cpu').devices()",
    "a program": "sl.Program(lambda x: x + 1, np.zeros(3))(np.zeros(3))",
    "a described compile": (
        "sl.Program(lambda x: x * jax.random.normal(jax.random.key(0), (3,)), np.zeros(3)).compile('v5e-1')"
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("platform", ["tpu", "cuda", "nonsense"])
@pytest.mark.skipif(libtpu_version() is None or os.path.exists("/dev/nvidia0"), reason="needs libtpu, and no GPU")
def test_platforms_that_are_not_there_are_named_with_what_to_set(call, platform):
    script = f"""
import jax, numpy as np, systolic as sl
try:
    {call}
except sl.TargetError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "JAX_PLATFORMS": platform},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert f"JAX_PLATFORMS={platform} demands what this machine or its JAX does not have" in done.stdout
    assert "unset JAX_PLATFORMS, or set JAX_PLATFORMS=cpu" in done.stdout


def test_where_jax_has_its_devices_an_error_stays_what_it_is():
    with pytest.raises(RuntimeError, match="of the user's own"), platforms_explained("x"):
        raise RuntimeError("of the user's own")


def test_without_the_variable_the_doctor_is_named(monkeypatch):
    def none(*_):
        raise RuntimeError("no backend")

    before = jax.config.jax_platforms
    monkeypatch.setattr(jax, "devices", none)
    jax.config.update("jax_platforms", "")
    try:
        with pytest.raises(
            TargetError, match=r"target='cpu': JAX finds no devices here \(no backend\).*systolic doctor"
        ):
            Target("cpu").devices()
    finally:
        jax.config.update("jax_platforms", before)
