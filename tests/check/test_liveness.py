"""The walk over the schedule against the compiler's allocator, and against schedules worked out by hand."""

from __future__ import annotations

import json
import pathlib

import pytest

from systolic.check._hlo import parse
from systolic.check._liveness import walk
from systolic.check._memory import memory_report
from systolic.program import MemoryStats

GOLDEN = pathlib.Path(__file__).parent / "golden"
NAMES = sorted(path.name.partition(".")[0] for path in GOLDEN.glob("*.hlo.txt"))
MIB = 1 << 20


def golden(name):
    meta = json.loads((GOLDEN / f"{name}.json").read_text())
    return parse((GOLDEN / f"{name}.hlo.txt").read_text()), MemoryStats(**meta["memory"]), meta["names"]


@pytest.mark.parametrize("name", NAMES)
def test_the_estimate_agrees_with_the_allocator(name):
    module, stats, names = golden(name)
    estimate = memory_report(module, walk(module), names=names, capacity=None, stats=None)
    assert estimate.estimated
    assert estimate.arguments == pytest.approx(stats.argument, abs=1024)
    assert estimate.aliased == stats.alias
    own = stats.output - stats.alias
    assert estimate.outputs - estimate.aliased == pytest.approx(own, rel=0.001, abs=1024)
    # The compiler keeps some scratch memory of its own for each fusion.
    assert estimate.temporaries == pytest.approx(stats.temp, rel=0.001, abs=256 << 10)


def test_the_peak_names_buffer_operation_and_line():
    module, _, _ = golden("deep_gradient")
    largest = walk(module).at_peak[0]
    assert largest.shape == "bf16[32768,4096]"
    assert largest.padded_bytes == 32768 * 4096 * 2
    assert "dot_general" in largest.op_name
    assert largest.source.startswith("golden/generate.py:")


def program(body, header="", parameters="a: f32[1024,1024]"):
    return parse(
        f"HloModule m, is_scheduled=true{header}\n\nENTRY %main ({parameters}) -> f32[1024,1024] {{\n{body}}}\n"
    )


BIG = "f32[1024,1024]{1,0:T(8,128)}"  # 4 MiB


def test_a_chain_holds_two_buffers_beside_its_result():
    body = f"""  %a = {BIG} parameter(0)
  %b = {BIG} sine(%a)
  %c = {BIG} cosine(%b)
  %d = {BIG} sine(%c)
  ROOT %e = {BIG} cosine(%d)
"""
    found = walk(program(body))
    # The result has its memory from the start, and lends it to the first of the chain.
    assert [live // MIB for live in found.timeline] == [4, 4, 8, 12, 8]
    assert found.peak_bytes == 12 * MIB
    assert found.output_bytes == 4 * MIB
    assert found.temporary_bytes == 8 * MIB


def test_an_operation_in_place_takes_over_its_dying_operand():
    note = ', backend_config={"aliasing_operands":{"lists":[{"indices":["0","1"]}]}}'
    body = f"""  %a = {BIG} parameter(0)
  %b = {BIG} sine(%a)
  %c = {BIG} cosine(%b){note}
  ROOT %d = {BIG} sine(%c){note}
"""
    assert walk(program(body)).peak_bytes == 4 * MIB


def test_no_place_is_taken_over_while_someone_still_reads_it():
    note = ', backend_config={"aliasing_operands":{"lists":[{"indices":["0","1"]}]}}'
    body = f"""  %a = {BIG} parameter(0)
  %b = {BIG} sine(%a)
  %c = {BIG} cosine(%b){note}
  ROOT %d = {BIG} add(%b, %c)
"""
    assert walk(program(body)).peak_bytes == 12 * MIB


def test_a_result_in_a_donated_argument_costs_nothing():
    body = f"""  %a = {BIG} parameter(0)
  %b = {BIG} sine(%a)
  ROOT %c = {BIG} cosine(%b)
"""
    assert walk(program(body)).peak_bytes == 8 * MIB
    donated = walk(
        program(body, header=", input_output_alias={ {}: (0, {}, may-alias) }, entry_computation_layout={()}")
    )
    assert donated.peak_bytes == 4 * MIB
    assert donated.output_bytes == 0


def test_a_loop_adds_the_peak_of_its_body():
    text = f"""HloModule m, is_scheduled=true

%body (p: (s32[], f32[1024,1024])) -> (s32[], f32[1024,1024]) {{
  %p = (s32[], {BIG}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = {BIG} get-tuple-element(%p), index=1
  %y = {BIG} sine(%x)
  %z = {BIG} cosine(%y)
  ROOT %r = (s32[], {BIG}) tuple(%i, %z)
}}

%condition (q: (s32[], f32[1024,1024])) -> pred[] {{
  %q = (s32[], {BIG}) parameter(0)
  ROOT %t = pred[] constant(true)
}}

ENTRY %main (a: f32[1024,1024]) -> f32[1024,1024] {{
  %a = {BIG} parameter(0)
  %zero = s32[] constant(0)
  %start = {BIG} copy(%a)
  %other = {BIG} sine(%a)
  %init = (s32[], {BIG}) tuple(%zero, %start)
  %w = (s32[], {BIG}) while(%init), condition=%condition, body=%body
  %end = {BIG} get-tuple-element(%w), index=1
  ROOT %sum = {BIG} add(%end, %other)
}}
"""
    # In the loop: the result, its state, the other buffer, and the sine inside (the cosine lies in the state).
    live = [live // MIB for live in walk(parse(text)).timeline]
    assert live[:6] == [4, 4, 8, 12, 12, 12]  # up to the loop
    assert max(live) == 16
    assert live[-2:] == [12, 12]


def test_vector_memory_and_the_host_do_not_count():
    body = """  %a = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  %b = f32[1024,1024]{1,0:T(8,128)S(1)} sine(%a)
  %c = f32[1024,1024]{1,0:T(8,128)S(5)} sine(%b)
  ROOT %d = f32[1024,1024]{1,0:T(8,128)} cosine(%c)
"""
    assert walk(program(body)).peak_bytes == 4 * MIB


def test_an_asynchronous_copy_has_one_destination():
    body = f"""  %a = {BIG} parameter(0)
  %s = ({BIG}, {BIG}, u32[]{{:S(2)}}) copy-start(%a)
  %other = {BIG} sine(%a)
  %d = {BIG} copy-done(%s)
  ROOT %e = {BIG} add(%d, %other)
"""
    found = walk(program(body))
    assert [live // MIB for live in found.timeline] == [4, 8, 12, 12, 12]


def test_tile_padding_is_reported_per_tensor():
    text = """HloModule m, is_scheduled=true

ENTRY %main (a: f32[1000,64]) -> f32[1000,64] {
  %a = f32[1000,64]{1,0:T(8,128)} parameter(0)
  ROOT %b = f32[1000,64]{1,0:T(8,128)} sine(%a), metadata={op_name="jit(f)/sin" source_file="m.py" source_line=3}
}
"""
    module = parse(text)
    report = memory_report(module, walk(module), names=["table"], capacity=1 << 30, stats=None)
    assert {row.name: (row.waste, row.factor) for row in report.padding} == {
        "table": (256_000, 2.0),
        "jit(f)/sin": (256_000, 2.0),
    }
    assert report.inputs[0].path == "table"
    assert report.fits
