"""Checking programs against described targets, and what the report says of them."""

from __future__ import annotations

import dataclasses
import io
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from systolic._errors import InputError, TargetError
from systolic.check import BatchSearch, CheckOptions, CheckReport, ProgramCheck, Verdict, check, check_programs
from systolic.check._liveness import LiveBuffer
from systolic.check._memory import ArgumentMemory, MemoryReport
from systolic.check._occupants import argument_totals, occupants
from systolic.program import CompilerCrash, Program
from systolic.target import libtpu_version

needs_libtpu = pytest.mark.skipif(libtpu_version() is None, reason="needs libtpu")
f32 = np.float32


def shape(*dims, dtype=f32):
    return jax.ShapeDtypeStruct(dims, dtype)


def train_at(batch):
    def train(state, x):
        def loss(weights):
            return jnp.mean(jnp.tanh(jnp.tanh(x @ weights["a"]) @ weights["b"]) ** 2)

        gradient = jax.grad(loss)(state)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, gradient)

    state = {"a": shape(512, 1024), "b": shape(1024, 512)}
    return Program(train, state, shape(batch, 512), donate=(0,), in_specs=(P(), P("data")), out_specs=P(), name="train")


def make(verdict, **kwargs):
    given = {
        "program": "train", "target": "v5e-8", "devices": 8, "verdict": verdict, "reason": "", "depth": "fast",
        "cache": "miss", "seconds": 1.0,
    }  # fmt: skip
    return ProgramCheck(**given | kwargs)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([Verdict.FITS], 0),
        ([Verdict.FITS, Verdict.TOO_LARGE], 1),
        ([Verdict.REFUSED, Verdict.UNKNOWN], 1),
        ([Verdict.FITS, Verdict.UNKNOWN], 2),
    ],
)
def test_exit_codes_for_ci(verdicts, code):
    report = CheckReport(tuple(map(make, verdicts)))
    assert report.exit_code == code
    assert report.ok == (code == 0)
    assert report.to_json()["exit_code"] == code


@needs_libtpu
def test_a_program_that_fits_on_two_targets():
    seen = []
    options = CheckOptions(jobs=2, on_progress=lambda *event: seen.append(event))
    report = check_programs({"train": train_at(1024)}, ["v5e-8", "v6e-4"], options)
    assert report.ok
    assert [result.target for result in report.results] == ["v5e-8", "v6e-4"]
    found = report.result("train", "v5e-8")
    # Per device 128 examples: forward two products, backward two for weights and one for the activations.
    assert found.flops.matrix == 5 * 2 * 128 * 512 * 1024
    assert found.memory.arguments == 4 * (2 * 512 * 1024 + 128 * 512)
    assert found.memory.aliased == 4 * 2 * 512 * 1024
    assert {argument.path for argument in found.memory.inputs} == {"state/a", "state/b", "x"}
    assert found.bound.seconds > 0
    assert {event[:2] for event in seen} == {("train", "v5e-8"), ("train", "v6e-4")}


@needs_libtpu
@pytest.mark.parametrize(
    ("rows", "depth", "told"), [(409_600, "schedule", True), (360_448, "schedule", False), (409_600, "fast", False)]
)
def test_a_schedule_close_to_the_limit_is_to_be_confirmed(rows, depth, told):
    program = Program(lambda x: x + 1, shape(rows, 4096), name="wide")
    (found,) = check_programs({"wide": program}, "v5e-1", CheckOptions(depth=depth)).results
    assert found.verdict is Verdict.FITS
    share = 2 * rows * 4096 * 4 / (15.75 * 2**30)  # argument and result: 79 % and 70 %
    assert found.needed / found.capacity == pytest.approx(share, rel=0.01)
    assert any("close to the limit" in note and "confirm with depth fast" in note for note in found.notes) == told


@needs_libtpu
def test_a_program_that_does_not_fit_says_by_how_much_where_and_what_would():
    def at(batch):
        def activations(x, w):
            return jnp.tanh(jnp.tanh(x @ w) @ w)

        return Program(activations, shape(batch, 4096), shape(4096, 4096), in_specs=(P("data"), P()), name="wide")

    report = check_programs(
        {"wide": at(1 << 20)},
        "v5e-1",
        CheckOptions(depth="schedule"),
        batches={"wide": BatchSearch(at, 1 << 20, 1 << 17, trials=2)},
    )
    (found,) = report.results
    assert found.verdict is Verdict.TOO_LARGE
    assert report.exit_code == 1
    # Argument and result alone are more than the device has.
    assert found.needed > 2 * (1 << 20) * 4096 * 4 > found.capacity
    assert found.memory.at_peak[0].shape == "f32[1048576,4096]"
    assert found.memory.at_peak[0].source.split(":")[0].endswith("test_check.py")
    text = str(report)
    assert "more than the 15.75 GiB" in text
    assert "largest buffers at the peak" in text
    assert found.fit.largest is not None
    assert found.fit.largest % (1 << 17) == 0
    assert f"largest batch that fits: {found.fit.largest}" in text


@needs_libtpu
def test_what_is_kept_and_is_too_much_by_itself_is_told_with_what_to_do():
    def at(batch):
        def train(state, batch):
            def loss(w):
                return jnp.sum((batch["x"] @ w[0] @ w[1]) ** 2)

            grads = jax.grad(loss)(state["params"])
            trace = jax.tree.map(lambda t, g: 0.9 * t + g, state["opt_state"], grads)
            return {"params": jax.tree.map(lambda w, t: w - t, state["params"], trace), "opt_state": trace}

        weights = [shape(32768, 32768), shape(32768, 32768)]  # 4 GiB each
        state = {"params": weights, "opt_state": weights}
        specs = (P(), P("data"))
        return Program(train, state, {"x": shape(batch, 32768)}, name="train", donate=(0,), in_specs=specs)

    report = check_programs({"train": at(64)}, "v5e-1", CheckOptions(), batches={"train": BatchSearch(at, 64)})
    (found,) = report.results
    assert found.verdict is Verdict.TOO_LARGE
    assert (
        "(state/params 8.00 GiB, state/opt_state 8.00 GiB) is too much by itself, whatever the batch size"
        in found.reason
    )
    assert "an optimizer that keeps less" in found.reason
    assert "a device with more memory (v4, v5p, v6e, tpu7x)" in found.reason
    assert [trial.batch_size for trial in found.fit.trials] == [1]
    text = str(report)
    assert "no batch size fits, not even 1 (asked: 64)" in text
    assert "2 × 4.00 GiB  argument   f32[32768,32768]  state/params/*" in text
    page = report.html()
    assert "state/opt_state/*" in page
    assert "Arguments by part" in page


def test_buffers_that_are_alike_are_told_together():
    def argument(path, size):
        return ArgumentMemory(path, f"f32[{size}]", 4 * size, 4 * size, True)

    def buffer(name, size, op_name, line):
        return LiveBuffer(name, f"f32[{size}]", 4 * size + 96, 4 * size, op_name, f"m.py:{line}", "temporary")

    memory = MemoryReport(
        capacity=None, arguments=0, outputs=0, aliased=0, temporaries=0, code=0, peak=0, estimated=True,
        at_peak=(buffer("f.1", 50, "dot", 3), buffer("f.2", 50, "dot", 3), buffer("f.3", 50, "dot", 4)),
        inputs=(argument("state/params/0/w", 100), argument("state/params/12/w", 100), argument("batch/x", 7)),
        padding=(), timeline=(),
    )  # fmt: skip
    told = [(g.name, g.count, g.padded_bytes, g.waste, g.source, g.kind) for g in occupants(memory)]
    assert told == [
        ("state/params/*/w", 2, 800, 0, "", "argument"),
        ("dot", 2, 592, 192, "m.py:3", "temporary"),
        ("dot", 1, 296, 96, "m.py:4", "temporary"),
        ("batch/x", 1, 28, 0, "", "argument"),
    ]
    assert argument_totals(memory) == {"state/params": 800, "batch": 28}


@pytest.mark.parametrize(("targets", "seen"), [([], "[]"), (None, "None"), (5, "5")])
def test_targets_that_are_none_are_refused(targets, seen):
    with pytest.raises(InputError, match=re.escape(f"check(target): saw {seen}, wanted one or more targets")):
        check(jnp.tanh, shape(8), target=targets)


@needs_libtpu
def test_two_names_of_one_target_are_one_result():
    report = check(jnp.tanh, shape(8), target=["v5e-1", "v5litepod-1", "v5e-1"], options=CheckOptions(depth="schedule"))
    assert [result.target for result in report.results] == ["v5e-1"]


def test_a_compiler_that_crashes_is_no_verdict_and_exit_code_two(monkeypatch):
    def crash(self, target, options=None):
        raise CompilerCrash("the compiler for v5e-1 crashed (SIGABRT)")

    monkeypatch.setattr(Program, "compile", crash)
    report = check(lambda x: x + 1, shape(8, 8), target="v5e-1", name="step")
    (found,) = report.results
    assert found.verdict is Verdict.UNKNOWN
    assert "crashed (SIGABRT)" in found.reason
    assert report.exit_code == 2


@needs_libtpu
def test_a_program_that_does_not_compile_is_a_result():
    report = check(lambda x: jnp.linalg.eig(x), shape(8, 8), target="v5e-1", name="modes")
    (found,) = report.results
    assert found.verdict is Verdict.REFUSED
    assert "'eig' has no TPU lowering" in found.reason
    assert report.exit_code == 1
    assert "does not compile" in str(report)


@needs_libtpu
def test_a_compile_that_runs_out_of_time_could_not_be_checked():
    report = check_programs({"train": train_at(64)}, "v5e-8", CheckOptions(time_limit=0.2, cache=False))
    assert report.results[0].verdict is Verdict.UNKNOWN
    assert report.exit_code == 2


@needs_libtpu
def test_a_jitted_function_with_real_arrays():
    @jax.jit
    def product(a, b):
        return a @ b

    report = check(product, np.ones((256, 128), f32), np.ones((128, 512), f32), target="v5e-1")
    assert report.ok
    assert report.results[0].program == "product"
    assert report.results[0].flops.matrix == 2 * 256 * 128 * 512


def test_an_attached_target_is_compiled_too():
    report = check(lambda x: x @ x, shape(64, 64), target="cpu")
    (found,) = report.results
    assert found.ok
    assert found.memory.arguments == 64 * 64 * 4
    assert "attached" in found.notes[0]
    assert "<html" in report.html()


@pytest.fixture(scope="module")
def report():
    if libtpu_version() is None:
        pytest.skip("needs libtpu")
    fine = check_programs({"train": train_at(1024)}, "v5e-8").results[0]
    bad = dataclasses.replace(
        fine,
        program="eval <&>",
        verdict=Verdict.TOO_LARGE,
        reason="eval needs 3 GiB more",
        needed=20 << 30,
        notes=("a note",),
    )
    return CheckReport((fine, bad, make(Verdict.UNKNOWN, program="predict", reason="out of time")))


def test_the_page_is_whole_and_escaped(report, tmp_path):
    page = report.html()
    assert page.startswith("<!DOCTYPE html>")
    assert "eval &lt;&amp;&gt;" in page
    assert "eval <&>" not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    assert "state/a" in page
    assert "<svg" in page
    assert report.write_html(tmp_path / "deep" / "report.html").read_text() == page
    assert "srcdoc" in report._repr_html_()


def test_the_json_is_plain_and_versioned(report):
    plain = json.loads(json.dumps(report.to_json()))
    assert plain["schema"] == 1
    assert plain["ok"] is False
    first = plain["results"][0]
    assert first["verdict"] == "fits"
    assert first["memory"]["needed"] == report.results[0].memory.needed
    assert first["flops"]["total"] >= first["flops"]["matrix"]
    assert plain["results"][2]["memory"] is None


@pytest.mark.parametrize("width", [60, 160])
def test_rich_prints_it_at_any_width(report, width):
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width).print(report)
    text = out.getvalue()
    assert "does not fit" in text
    assert max(map(len, text.splitlines())) <= width


def test_nothing_to_check_and_no_such_target_are_errors():
    with pytest.raises(InputError, match="saw none, wanted at least one"):
        check_programs({}, "v5e-8")
    with pytest.raises(TargetError):
        check_programs({"train": train_at(8)}, "v99-8")
    with pytest.raises(InputError, match="jobs"):
        CheckOptions(jobs=0)
    with pytest.raises(InputError, match="depth"):
        CheckOptions(depth="deep")
    with pytest.raises(KeyError):
        CheckReport(()).result("train")
