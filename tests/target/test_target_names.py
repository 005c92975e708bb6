"""Names of targets: what each means, and what is said of a name that means nothing."""

from __future__ import annotations

import jax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from systolic._errors import TargetError
from systolic.target import Target, known_targets

# Worked by hand from the cloud's tables: name, canonical name, topology, chips, devices, hosts, slices.
DESCRIBED = [
    ("v2-8", "v2-8", "2x2", 4, 8, 1, 1),
    ("v2-512", "v2-512", "16x16", 256, 512, 64, 1),
    ("v3-32", "v3-32", "4x4", 16, 32, 4, 1),
    ("v3-64", "v3-64", "4x8", 32, 64, 8, 1),
    ("v3:32x32", "v3-2048", "32x32", 1024, 2048, 256, 1),
    ("v4-8", "v4-8", "2x2x1", 4, 4, 1, 1),
    ("v4-32", "v4-32", "2x2x4", 16, 16, 4, 1),
    ("v4-4096", "v4-4096", "8x16x16", 2048, 2048, 512, 1),
    ("v5e-1", "v5e-1", "1x1", 1, 1, 1, 1),
    ("v5e-8", "v5e-8", "2x4", 8, 8, 1, 1),
    ("v5litepod-8", "v5e-8", "2x4", 8, 8, 1, 1),
    ("v5e:2x4", "v5e-8", "2x4", 8, 8, 1, 1),
    ("v5litepod-16", "v5e-16", "4x4", 16, 16, 4, 1),
    ("v5e-256", "v5e-256", "16x16", 256, 256, 64, 1),
    ("v5p-8", "v5p-8", "2x2x1", 4, 4, 1, 1),
    ("v5p:4x4x4", "v5p-128", "4x4x4", 64, 64, 16, 1),
    ("v5p-384", "v5p-384", "4x4x12", 192, 192, 48, 1),
    ("v5p-1152", "v5p-1152", "4x12x12", 576, 576, 144, 1),
    ("v5p-12288", "v5p-12288", "16x16x24", 6144, 6144, 1536, 1),
    ("v5p:4x4x16", "v5p:4x4x16", "4x4x16", 256, 256, 64, 1),  # 256 chips stand for 4x8x8: this shape keeps its own name
    ("v6e:1x1", "v6e-1", "1x1", 1, 1, 1, 1),
    ("trillium-4", "v6e-4", "2x2", 4, 4, 1, 1),
    ("v6e-16x2", "v6e-16x2", "4x4", 32, 32, 8, 2),
    ("v5p:2x2x2*2", "v5p-16x2", "2x2x2", 16, 16, 4, 2),
    ("v5p:4x4x16*3", "v5p:4x4x16*3", "4x4x16", 768, 768, 192, 3),
    ("v5e-8x1", "v5e-8", "2x4", 8, 8, 1, 1),
    ("tpu7x-8", "tpu7x-8", "2x2x1", 4, 8, 1, 1),
    ("tpu7x:1x1x1", "tpu7x-2", "1x1x1", 1, 2, 1, 1),
    ("tpu7x-128", "tpu7x-128", "4x4x4", 64, 128, 16, 1),
]


@pytest.mark.parametrize(("name", "canonical", "topology", "chips", "devices", "hosts", "slices"), DESCRIBED)
def test_a_described_name_means_its_slice(name, canonical, topology, chips, devices, hosts, slices):
    target = Target(name)
    assert (target.name, target.topology) == (canonical, topology)
    assert (target.num_chips, target.num_devices) == (chips, devices)
    assert (target.num_hosts, target.num_slices) == (hosts, slices)
    assert target.platform == "tpu"
    assert not target.attached
    assert target.generation == canonical.partition("-")[0].partition(":")[0]
    assert Target(canonical) == target


@pytest.mark.parametrize("name", ["V5E-8", "  v5e-8\n", "V5LitePod-8", "v5E:2X4"])
def test_case_and_blanks_do_not_matter(name):
    assert Target(name) == Target("v5e-8")


@pytest.mark.parametrize(
    ("name", "listed", "nearest"),
    [
        ("v5e-12", "v5e-16, v5e-32", "'v5e-16'"),
        ("v5e-512", "v5e-128, v5e-256", "'v5e-256'"),
        ("v5e-99999999", "v5e-256", "'v5e-256'"),
        ("v5e:4x2", "2x4, 4x4", "'v5e:2x4'"),
        ("v5e:16x32", "16x16", "'v5e:16x16'"),
        ("v5p:2x2", "3 axes", "'v5p:2x2x1'"),
        ("v5p:4x4x6", "multiples of 4", "'v5p:4x4x4'"),
        ("v5p-100", "multiples of 128", "'v5p-128'"),
        ("v4-100000", "up to v4-8192", "'v4-8192'"),
        ("v2-16", "v2-8, v2-32", "'v2-8'"),
        ("v5e", "v5e-1, v5e-4", "'v5e-8'"),
        ("v6e-", "v6e-1, v6e-4", "'v6e-8'"),
        ("vv5e-8", "v5p, v6e, tpu7x", "'v5e-8'"),
        ("v5lightpod-8", "v5p, v6e, tpu7x", "Nearest"),
        ("cpuu", "auto, cpu, gpu, tpu", "'cpu'"),
    ],
)
def test_an_impossible_name_is_answered_with_what_exists_and_the_nearest(name, listed, nearest):
    with pytest.raises(TargetError) as caught:
        Target(name)
    message = str(caught.value)
    assert repr(name) in message
    assert listed in message
    assert nearest in message


@pytest.mark.parametrize("name", ["v5e-8x0", "v5p:2x2x1*0", "cpu:0", "cpu:999999", "auto:2", "", "tpu-8", "v5e-８"])
def test_a_count_of_nothing_and_the_like_are_refused(name):
    with pytest.raises(TargetError, match="target="):
        Target(name)


@pytest.mark.parametrize("name", [None, 8, b"v5e-8", ["cpu"]])
def test_a_name_is_a_string(name):
    with pytest.raises(TargetError, match="a name such as"):
        Target(name)


def test_a_long_name_is_shortened_in_the_message():
    with pytest.raises(TargetError) as caught:
        Target("x" * 100_000)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", [name for name in known_targets() if "-" in name])
def test_every_known_target_is_its_own_canonical_name(name):
    assert Target(name).name == name


def test_known_targets_of_one_generation():
    assert known_targets("v2") == ("v2-8", "v2-32", "v2-128", "v2-256", "v2-512")
    with pytest.raises(TargetError, match="v5e"):
        known_targets("v9")


_NEAR_MISSES = st.from_regex(r"\s?(v[2-7][ep]?|tpu7x|cpu|gpu|tpu|auto)[-:]?[0-9x*\-]{0,12}\s?", fullmatch=True)


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(), _NEAR_MISSES))
@example("v5e-" + "9" * 5000)
@example("v5p:" + "1x" * 5000 + "1")
@example("İ-8")
def test_any_string_gives_a_target_or_a_target_error(name):
    jax.devices()  # listed, so that no "cpu:3000" found here enlarges the process
    try:
        target = Target(name)
    except TargetError:
        return
    assert Target(target.name) == target
    assert target.num_devices >= 1
    assert target.num_devices == target.mesh({"data": -1}).size
