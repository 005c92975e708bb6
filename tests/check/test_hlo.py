"""The HLO parser, on texts that the TPU compiler wrote (see golden/generate.py)."""

from __future__ import annotations

import pathlib

import pytest

from systolic import check
from systolic.check._frames import Frames
from systolic.check._hlo import parse
from systolic.check._shape import leaf_count, leaves, parse_shape

GOLDEN = pathlib.Path(__file__).parent / "golden"
NAMES = sorted(path.name.partition(".")[0] for path in GOLDEN.glob("*.hlo.txt"))


def golden(name):
    return parse((GOLDEN / f"{name}.hlo.txt").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_understood(name):
    text = (GOLDEN / f"{name}.hlo.txt").read_text()
    module = parse(text)
    instructions = [i for c in module.computations.values() for i in c.instructions]
    assert module.name == f"jit_{name}"
    assert len(instructions) == sum(line.startswith("  ") and " = " in line for line in text.splitlines())
    for computation in module.computations.values():
        assert sum(i.root for i in computation.instructions) == 1
        for instruction in computation.instructions:
            assert leaf_count(instruction.shape) == len(instruction.arrays)
            assert set(instruction.operands) <= set(computation.by_name)
            assert set(instruction.called) <= set(module.computations)


def test_parameters_are_numbered_as_the_program_takes_them():
    parameters = golden("momentum_update").entry_computation.parameters
    assert [str(parameters[n].arrays[0]) for n in range(6)] == ["f32[1024,1024]", "f32[1000]"] * 3


def test_donation_that_took_effect_is_read():
    assert golden("momentum_update").aliased_outputs() == {0: 0, 1: 1, 2: 2, 3: 3}
    assert golden("scan_matmul").aliased_outputs() == {}


def test_trip_counts_from_the_compilers_note_or_the_condition():
    for name, trips in (("scan_matmul", 5), ("counted_loop", 7)):
        module = golden(name)
        loops = [i for c in module.computations.values() for i in c.instructions if i.opcode == "while"]
        assert [module.trip_count(loop) for loop in loops] == [trips]


def test_an_instruction_leads_to_the_users_line():
    module = golden("deep_gradient")
    lines = (GOLDEN / "generate.py").read_text().splitlines()
    products = [i for c in module.computations.values() for i in c.instructions if i.opcode == "convolution"]
    assert products
    for product in products:
        file, _, line = module.source(product).rpartition(":")
        assert file == "golden/generate.py"
        assert "x @ weight" in lines[int(line) - 1]
        assert "dot_general" in product.op_name
        assert "call_exported" not in product.op_name


def test_multi_line_literals_and_parentheses_in_strings_do_not_confuse():
    module = parse(
        """HloModule m, is_scheduled=true

%c (p: f32[2]) -> f32[2] {
  ROOT %p = f32[2]{0} parameter(0)
}

ENTRY %main (p: f32[2]) -> (f32[2], s32[2,2]) {
  %p = f32[2]{0} parameter(0)
  %k = s32[2,2]{1,0} constant({ { 1, 2 },
    { 3, 4 } })
  %f = f32[2]{0} fusion(%p), kind=kLoop, calls=%c, metadata={op_name="a(b)/c" source_file="m.py" source_line=3}
  ROOT %t = (f32[2]{0}, /*index=1*/s32[2,2]{1,0}) tuple(%f, /*index=1*/%k)
}
"""
    )
    entry = module.entry_computation
    assert [i.opcode for i in entry.instructions] == ["parameter", "constant", "fusion", "tuple"]
    assert entry.root.operands == ("f", "k")
    assert module.source(entry.by_name["f"]) == "m.py:3"


def test_text_that_is_no_module_is_refused():
    with pytest.raises(ValueError, match="without an entry"):
        parse("nothing here")


@pytest.mark.parametrize(
    ("text", "unpadded", "padded"),
    [
        ("f32[1000,64]{1,0:T(8,128)}", 1000 * 64 * 4, 1000 * 128 * 4),
        ("f32[1000,64]{0,1:T(8,128)}", 1000 * 64 * 4, 64 * 1024 * 4),
        ("bf16[7,100]{1,0:T(8,128)(2,1)}", 7 * 100 * 2, 8 * 128 * 2),
        ("bf16[3,1,100]{2,1,0:T(1,128)(2,1)}", 3 * 100 * 2, 3 * 2 * 128 * 2),  # rows are packed in pairs
        ("f32[1000]{0:T(1024)}", 4000, 4096),
        ("s8[5]{0:T(512)(128)(4,1)}", 5, 512),
        ("pred[]{:T(512)}", 1, 512),
        ("s4[16,128]{1,0:T(8,128)(8,1)E(4)}", 1024, 1024),
        ("f32[3,5]", 60, 60),
        ("f32[8,128]{1,0:T(8,128)S(1)}", 4096, 4096),
        ("f32[0,4]{1,0:T(8,128)}", 0, 0),
    ],
)
def test_padding_by_hand(text, unpadded, padded):
    array = parse_shape(text)
    assert (array.unpadded_bytes, array.padded_bytes) == (unpadded, padded)


def test_memory_spaces_and_nested_tuples():
    shape = parse_shape("((f32[2]{0:T(128)}, /*index=1*/bf16[4]{0:T(256)S(1)}), u32[]{:S(2)}, token[])")
    assert [(str(array), array.space) for array in leaves(shape)] == [
        ("f32[2]", 0),
        ("bf16[4]", 1),
        ("u32[]", 2),
        ("token[]", 0),
    ]
    assert len(shape) == 3
    with pytest.raises(ValueError, match="not an HLO shape"):
        parse_shape("f32[2]{0} nonsense")


def test_the_users_line_is_told_from_those_of_libraries_and_ours():
    ours = check.__file__
    theirs = "/home/me/jax/models/net.py"  # a folder of the user's with the name of a library
    tables = {
        "FileNames": {1: '"/x/site-packages/flax/nnx/nn.py"', 2: f'"{theirs}"', 3: f'"{ours}"', 4: '"<frozen runpy>"'},
        "FileLocations": {n: f"{{file_name_id={n} line={10 * n}}}" for n in (1, 2, 3, 4)},
        "StackFrames": {
            1: "{file_location_id=1 parent_frame_id=3}",  # of flax, called from the user's
            2: "{file_location_id=2 parent_frame_id=4}",
            3: "{file_location_id=3 parent_frame_id=5}",  # ours, from Python's
            4: "{file_location_id=4}",
        },
    }
    frames = Frames(tables)
    assert frames.source(1) == f"{theirs}:20"
    assert frames.source(2) == f"{theirs}:20"
    assert frames.source(3) == ""
