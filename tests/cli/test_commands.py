"""Commands as a person runs them: in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from cli_cases import write_model

import systolic as sl
from systolic.cli import main
from systolic.cli._plain import plain


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    write_model(folder)
    done = systolic(folder, "train", "line_model.py:line", "--model-dir", "run", "--epochs", "40")
    assert done.returncode == 0, done.stderr
    assert "step 160; summary: run/summary.html" in done.stdout
    return folder


def systolic(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "systolic", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_training_goes_on_where_it_stopped_and_evaluates(folder):
    done = systolic(
        folder, "train", "line_model.py:line", "--model-dir", "again", "--max-steps", "8", "--eval-every", "4"
    )
    assert done.returncode == 0, done.stderr
    done = systolic(folder, "train", "line_model.py:line", "--model-dir", "again", "--steps", "4")
    assert "step 12;" in done.stdout, done.stderr
    kinds = [event["kind"] for event in sl.read_events(folder / "again")]
    assert kinds.count("eval") == 2


def test_evaluate_prints_metrics(folder):
    done = systolic(folder, "evaluate", "line_model.py:line", "--model-dir", "run", "--json")
    result = json.loads(done.stdout)
    assert result["step"] == 160
    assert result["metrics"]["error"] < 1e-3
    table = systolic(folder, "evaluate", "line_model.py:line", "--model-dir", "run").stdout
    assert table.splitlines()[0].strip() == "step 160"
    assert {line.split()[0] for line in table.splitlines()[1:]} == {"loss", "error"}


def test_predict_writes_one_json_object_a_line(folder):
    done = systolic(folder, "predict", "line_model.py:line", "--model-dir", "run", "--data", "seven_rows")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["id"] for row in rows] == list("abcdefg")
    np.testing.assert_allclose([row["y"] for row in rows], 3 * np.arange(7), atol=1e-2)
    limited = systolic(
        folder, "predict", "line_model.py:line", "--model-dir", "run", "--limit", "2", "--output", "rows.jsonl"
    )
    assert limited.stdout == ""
    assert len((folder / "rows.jsonl").read_text().splitlines()) == 2


def test_export_can_be_loaded(folder):
    done = systolic(
        folder, "export", "line_model.py:line", "exported", "--model-dir", "run", "--batch-sizes", "1,4",
        "--platforms", "cpu",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = sl.load(folder / "exported", target="cpu:1")
    assert loaded.batch_sizes == [1, 4]
    np.testing.assert_allclose(loaded.predict({"x": np.float32([[2.0]])})["y"], [6.0], atol=1e-2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "line_model.py:line", "--target", "v5e-9"], "Nearest: 'v5e-8'"),
        (["check", "line_model.py:lime", "--target", "v5e-8"], "nearest: line"),
        (["evaluate", "line_model.py:line", "--model-dir", "empty"], "there is no checkpoint in empty"),
        (["train", "line_model.py:line", "--eval-every", "5"], "--eval-every: wanted together with --max-steps"),
        (["train", "line_model.py:line", "--eval-data", "x"], "--eval-data: wanted together with --eval-every"),
        (["train", "line_model.py:line", "--target", "v5e-8"], "described, not attached"),
        (
            ["predict", "line_model.py:line", "--model-dir", "run", "--output", "line_model.py/rows"],
            "--output: cannot write line_model.py/rows",
        ),
        (["export", "line_model.py:line", "x", "--batch-sizes", "1,b"], "--batch-sizes: saw '1,b'"),
    ],
)
def test_bad_input_ends_with_its_message_and_status_2(folder, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        assert main(arguments) == 2
    finally:
        for name in ("line_model", "neighbour"):
            sys.modules.pop(name, None)
    err = capsys.readouterr().err
    assert err.startswith(f"systolic {arguments[0]}: error: ")
    assert message in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback(folder):
    done = systolic(folder, "evaluate", "line_model.py:line", "--model-dir", "empty", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_an_interrupt_ends_with_130(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("systolic.cli._targets.targets", interrupt)
    assert main(["targets"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(folder):
    command = f"{sys.executable} -m systolic predict line_model.py:line --model-dir run | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_wrong_numbers_are_refused_by_the_parser(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["train", "x.py:y", "--steps", "0"])
    assert caught.value.code == 2
    assert "wanted a whole number of at least 1" in capsys.readouterr().err


def test_version_is_the_package_s(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"systolic {sl.__version__}\n"


def test_json_of_arrays():
    import jax.numpy as jnp

    row = {"a": np.float32(0.5), "b": [np.nan, np.inf], "c": b"x", "d": jnp.ones(2, "bfloat16"), "e": np.bool_(True)}
    assert plain(row) == {"a": 0.5, "b": [None, None], "c": "x", "d": [1.0, 1.0], "e": True}
    assert plain({"when": np.datetime64("2026-01-02"), "s": np.str_("t"), "n": np.arange(4).reshape(2, 2)}) == {
        "when": "2026-01-02",
        "s": "t",
        "n": [[0, 1], [2, 3]],
    }
