"""Eight CPU devices, a private cache, strict promotion off only where a model needs it."""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(autouse=True, scope="session")
def private_cache(tmp_path_factory):
    """Keep the suite off the user's compile cache, and share one between the tests of a run."""
    if "SYSTOLIC_CACHE_DIR" not in os.environ:
        os.environ["SYSTOLIC_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    return os.environ["SYSTOLIC_CACHE_DIR"]
