"""What targets there are."""

from __future__ import annotations

import json

from systolic.cli import main
from systolic.target import HARDWARE


def test_all_generations_are_listed(capsys):
    assert main(["targets"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in HARDWARE)
    assert main(["targets", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(HARDWARE)


def test_one_target_or_generation_in_detail(capsys):
    assert main(["targets", "v5e-16", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["num_devices"], shown["topology"]) == (16, "4x4")
    assert shown["hardware"]["device_name"] == "TPU v5 lite"
    assert main(["targets", "v6e"]) == 0
    assert "v6e-256" in capsys.readouterr().out


def test_an_unknown_target_gets_the_nearest(capsys):
    assert main(["targets", "v5e-7"]) == 2
    assert "Nearest: 'v5e-8'" in capsys.readouterr().err
