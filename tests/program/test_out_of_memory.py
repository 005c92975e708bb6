"""The compiler's out-of-memory messages as numbers."""

from __future__ import annotations

from systolic.program._out_of_memory import parse_buffers, parse_sizes
from systolic.program._runner import _last_words

LISTED = """RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 16.83G of 15.48G hbm. Exceeded hbm capacity by 1.35G.

Total hbm usage >= 17.35G:
    reserved        530.00M
    program          16.83G
    arguments            0B

  Largest program allocations in hbm:

  1. Size: 4.00G
     Operator: op_type="dot_general" op_name="jit(step)/jvp()/dot_general" source_file="model.py" source_line=7
     Shape: f32[16777216,64]{1,0:T(8,128)}
     Unpadded size: 2.00G
     Extra memory due to padding: 2.00G (2.0x expansion)
     XLA label: %fusion.1 = f32[16777216,64]{1,0:T(8,128)} fusion(%p), kind=kOutput
     Allocation type: HLO temp
     ==========================

  2. Size: 512.0K
     Shape: f32[1024,128]{1,0:T(8,128)}
     Unpadded size: 512.0K
     Allocation type: HLO temp
     ==========================
"""


def test_the_list_of_allocations_is_read():
    needed, available = parse_sizes(LISTED)
    assert needed == round(16.83 * 2**30)
    assert available == round(15.48 * 2**30)
    first, second = parse_buffers(LISTED)
    assert (first.size, first.unpadded, first.padding) == (4 << 30, 2 << 30, 2 << 30)
    assert first.shape.startswith("f32[16777216,64]")
    assert first.op_name == "jit(step)/jvp()/dot_general"
    assert first.kind == "HLO temp"
    assert (second.size, second.padding) == (512 << 10, 0)


def test_the_early_refusal_is_read():
    message = "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (144.05G) exceeds available HBM (15.75G)."
    assert parse_sizes(message) == (round(144.05 * 2**30), round(15.75 * 2**30))
    assert parse_buffers(message) == ()


def test_a_single_allocation_is_read():
    message = "Allocation (size=102400000000) would exceed memory (size=17179869184) :: %s2 = inlined_call_operand.hbm"
    assert parse_sizes(message) == (102_400_000_000, 17_179_869_184)


def test_an_unknown_message_gives_no_numbers():
    assert parse_sizes("RESOURCE_EXHAUSTED: no more") == (None, None)


def test_the_failed_check_is_found_in_a_log():
    log = """W1130 22:00:00.000000    1 thing.cc:1] harmless
F1130 22:00:01.123456   42 layout.cc:17] Check failed: rank > 0 (0 vs. 0) shape has no dimensions
*** Check failure stack trace: ***
    @     0x7f00 absl::LogMessage::SendToLog()
Fatal Python error: Aborted
"""
    assert _last_words(log) == "layout.cc:17] Check failed: rank > 0 (0 vs. 0) shape has no dimensions"


def test_an_exception_in_the_child_is_its_last_line():
    assert _last_words('Traceback (most recent call last):\n  File "x", line 1\nValueError: no such thing\n') == (
        "ValueError: no such thing"
    )
