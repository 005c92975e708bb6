"""What the doctor tells."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import types

import pytest

from systolic.cli import _examine as examine
from systolic.cli import main


def levels(findings):
    return {finding.name: finding.level for finding in findings}


def test_the_report_is_json_on_request(capsys):
    status = main(["doctor", "--json", "--no-compile"])
    report = json.loads(capsys.readouterr().out)
    assert status == (1 if report["problems"] else 0)
    assert {finding["section"] for finding in report["findings"]} == {
        "machine", "packages", "conflicts", "devices", "cache", "compiler",
    }  # fmt: skip
    versions = {f["name"]: f["text"] for f in report["findings"] if f["section"] == "packages"}
    assert versions["jax"] == importlib.metadata.version("jax")


def test_the_report_for_a_person_ends_with_the_count(capsys):
    main(["doctor", "--no-compile"])
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last == "no problems found" or last.endswith(("problem", "problems"))


def test_a_libtpu_that_jax_does_not_want_is_a_problem(monkeypatch):
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1" if name == "libtpu" else real(name))
    assert levels(examine.packages())["jax and libtpu"] == "problem"


@pytest.mark.parametrize(
    ("installed", "level", "text"),
    [
        ({}, "ok", "not installed"),
        ({"tensorflow": "2.21.1", "tensorflow-estimator": "2.15.0"}, "ok", "the tested set: tensorflow 2.21.1, "),
        (
            {"tensorflow": "2.20.0"},
            "problem",
            "tensorflow<2.22,>=2.21 is wanted, installed is 2.20.0; tensorflow-estimator==2.15.0 is wanted, installed is none",
        ),
    ],
    ids=["none", "tested", "another"],
)
def test_the_set_for_tensorflow_s_scripts_is_told(monkeypatch, installed, level, text):
    wanted = [
        "jax>=0.10",
        'tensorflow<2.22,>=2.21; extra == "tensorflow"',
        'tensorflow-estimator==2.15.0; extra == "tensorflow"',
    ]
    real, requires = importlib.metadata.version, importlib.metadata.requires

    def version(name):
        if not name.startswith("tensorflow"):
            return real(name)
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted if name == "systolic" else requires(name))
    (finding,) = [f for f in examine.packages() if f.name == "TensorFlow scripts"]
    assert finding.level == level
    assert text in finding.text


def test_a_requirement_that_is_not_met_names_both_sides(monkeypatch):
    bad = types.SimpleNamespace(
        metadata={"Name": "oldflow"}, version="2.0", requires=["numpy<1.20", "jax; extra == 'x'"]
    )
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [bad])
    (finding,) = [f for f in examine.conflicts() if f.level == "problem"]
    assert finding.text.startswith("oldflow 2.0 wants numpy<1.20, installed is ")


@pytest.mark.parametrize(
    ("installed", "level"),
    [
        ({"jax-cuda12-plugin": "9", "jax-cuda13-plugin": "9", "jaxlib": "9"}, "problem"),
        ({"tensorflow": "2.20"}, "note"),
        ({"tensorflow-tpu": "2.18"}, "problem"),
        ({"libtpu-nightly": "0.1"}, "problem"),
    ],
)
def test_bad_company_is_told(monkeypatch, installed, level):
    monkeypatch.setattr(examine, "_version", lambda name: installed.get(name))
    monkeypatch.setattr(importlib.metadata, "distributions", list)
    assert level in levels(examine.conflicts()).values()


def test_devices_that_do_not_answer_are_a_problem(monkeypatch):
    def hang(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    assert levels(examine.devices())["jax.devices()"] == "problem"


def test_a_cache_folder_that_cannot_be_made_is_a_problem(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert levels(examine.cache())["writable"] == "problem"


def test_no_compiler_is_worth_a_note(monkeypatch):
    monkeypatch.setattr(examine, "libtpu_version", lambda: None)
    assert levels(examine.compiler(True)) == {"libtpu": "note"}


@pytest.mark.slow
def test_the_compiler_is_tried():
    pytest.importorskip("libtpu")
    assert levels(examine.compiler(True)) == {"libtpu": "ok"}
