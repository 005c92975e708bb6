"""TensorFlow's graph mode, on eight devices of the CPU."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

_WITHOUT = ("test_hparams.py",)  # what runs where TensorFlow is not installed
collect_ignore = (
    []
    if importlib.util.find_spec("tensorflow")
    else [file.name for file in pathlib.Path(__file__).parent.glob("test_*.py") if file.name not in _WITHOUT]
)


@pytest.fixture
def graph():
    """A graph of its own for each test, in which ``tf.get_variable`` and the like build."""
    from systolic.tf._tensorflow import tensorflow

    tf = tensorflow()
    tf.compat.v1.disable_v2_behavior()
    with tf.Graph().as_default() as made:
        yield made


@pytest.fixture
def cores():
    """Switches the TPU system on, with so many cores."""
    from systolic.tf._system import switch_on

    return lambda count, **options: switch_on(f"cpu:{count}", **options)
