"""JAX's private names: all in one file, and what happens where one is gone."""

from __future__ import annotations

import pathlib
import re

import jax
import numpy as np
import pytest
from jax._src import callback, core, distributed, source_info_util

import systolic
from systolic import CompileError, Program, Target, _private_jax
from systolic.program._quick_trace import quick_trace
from systolic.target import libtpu_version

ROOT = pathlib.Path(systolic.__file__).parent


def doubled_on_host(x):
    return jax.pure_callback(lambda v: 2 * v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_one_file_alone_imports_private_modules():
    reaching = [
        path.name
        for path in ROOT.rglob("*.py")
        if re.search(r"(from|import) +jax\._src|_find\(\"jax\._src", path.read_text())
    ]
    assert reaching == ["_private_jax.py"]


def test_every_name_is_there_in_the_installed_jax():
    assert None not in _private_jax.callback_lowering()
    assert _private_jax.tracer_class() is core.Tracer
    assert _private_jax.num_processes() == 1
    equation = jax.make_jaxpr(lambda x: x + 1)(1.0).eqns[0]
    assert re.fullmatch(r".*test_private_jax\.py:\d+", _private_jax.user_line(equation.source_info))


@pytest.mark.skipif(libtpu_version() is None, reason="needs libtpu")
@pytest.mark.parametrize("name", ["_callback_op_sharding", "send_to_host", "receive_from_host"])
def test_without_the_callback_lowering_a_host_call_is_an_error_and_other_programs_compile(monkeypatch, name):
    monkeypatch.delattr(callback, name)
    calling = Program(doubled_on_host, np.zeros(8, "float32"), name="simulate")
    with pytest.raises(
        CompileError, match=r"host callback pure_callback.*is not known \(JAX .*checked with 0\.10\.2 to"
    ):
        calling.compile("v5e-1")
    assert Program(lambda x: x * 2, np.zeros(8, "float32")).compile("v5e-1").notes == ()


def test_without_the_tracers_property_programs_are_traced_as_jax_does(monkeypatch):
    monkeypatch.delattr(core.Tracer, "sharding")
    assert _private_jax.tracer_class() is None
    with quick_trace():
        assert "sharding" not in core.Tracer.__dict__
    assert Program(lambda x: x * 2, np.zeros(2, "float32"))(np.ones(2, "float32")).tolist() == [2, 2]


def test_without_the_frames_a_host_call_is_named_without_its_place(monkeypatch):
    monkeypatch.delattr(source_info_util, "user_frame")
    equation = jax.make_jaxpr(lambda x: x + 1)(1.0).eqns[0]
    assert _private_jax.user_line(equation.source_info) is None


def test_without_the_state_of_the_run_the_processes_are_counted_by_listing_devices(monkeypatch):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.delattr(distributed, "global_state")
    assert _private_jax.num_processes() is None
    assert Target("cpu:2").num_devices == 2


def test_a_module_that_is_gone_is_a_name_that_is_gone():
    assert _private_jax._find("jax._src.no_such_module", "name") is None
