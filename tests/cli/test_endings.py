"""How a command ends: output that nobody takes, files that cannot be written, signals, errors in the user's own code."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from cli_cases import write_model

from systolic.cli import main

needs_full = pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs /dev/full")

THEIRS = """
import json, sys
from line_model import *

def leaves():
    sys.exit("bye")

def typo():
    return line(batch_size=sixteen)

def broken_train_input_fn():
    yield json.loads("{")

def shapes(model, features, labels, mode):
    raise RuntimeError("a shape of mine")

def own_error():
    import jax.numpy as jnp
    model = (lambda key: {"w": jnp.zeros((1, 1))}, lambda params, x: x @ params["w"])
    return sl.Estimator(model, shapes, optax.sgd(0.1), train_batch_size=4, config=sl.RunConfig(target="cpu:1"))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_model(tmp_path)
    (tmp_path / "theirs.py").write_text(THEIRS)
    (tmp_path / "leaves_at_once.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "half.py").write_text("def f(:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("line_model", "neighbour", "theirs"):
        sys.modules.pop(name, None)


def shell(command, folder=None):
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.replace("SYSTOLIC", f"{sys.executable} -m systolic")],
        cwd=folder, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


@needs_full
@pytest.mark.parametrize("command", ["targets", "targets --json", "doctor --no-compile --json"])
def test_a_full_stdout_is_one_line_and_status_2(command):
    done = shell(f"SYSTOLIC {command} > /dev/full")
    assert done.returncode == 2
    name = command.split()[0]
    assert done.stderr.splitlines() == [
        f"systolic {name}: error: stdout: cannot be written (No space left on device); send it somewhere else"
    ]


def test_a_closed_stdout_is_told_before_any_work():
    done = shell("SYSTOLIC doctor >&-")
    assert done.returncode == 2
    assert done.stderr == "systolic: error: stdout is closed; send it somewhere, as in > /dev/null\n"


def test_what_is_meant_for_a_closed_stderr_does_not_go_to_stdout():
    done = shell("SYSTOLIC targets v99 2>&-")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("command", ["targets | head -1", "--help | true", "targets --json | true"])
def test_a_reader_that_goes_away_is_no_error(command):
    done = shell(f"SYSTOLIC {command}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--json", "/proc/x/y"], "--json: cannot write /proc/x/y"),
        (["--html", "."], "--html: . is a folder; name a file in it, as in html"),
        (["--html", ""], "--html: saw '', wanted a file"),
        (["--json", "line_model.py/x"], "--json: cannot write line_model.py/x"),
        (["--json", "-", "--html", "-"], "--json, --html: saw '-' for both"),
        (["--programs", ","], "--programs: saw ',', wanted one or more names"),
    ],
)
def test_a_place_that_takes_no_report_is_told_before_the_file_is_imported(folder, capsys, options, message):
    assert main(["check", "leaves_at_once.py:f", "--target", "v5e-1", *options]) == 2
    assert message in capsys.readouterr().err


def test_looking_whether_a_file_can_be_written_leaves_it_as_it_is(folder, capsys):
    (folder / "old.json").write_text("old")
    main(["check", "half.py:f", "--target", "v5e-1", "--json", "old.json", "--html", "new/page.html"])
    assert (folder / "old.json").read_text() == "old"
    assert not (folder / "new" / "page.html").exists()


def test_a_page_can_go_to_stdout(folder, capsys):
    main(["check", "line_model.py:line", "--target", "cpu:1", "--html", "-", "--programs", "predict"])
    out = capsys.readouterr().out
    assert out.startswith("<!DOCTYPE html>")
    assert out.endswith("</html>\n")
    assert not (folder / "-").exists()


@pytest.mark.parametrize(
    ("arguments", "message", "frames"),
    [
        (["check", "leaves_at_once.py:f"], "called sys.exit(3) at line 2 of leaves_at_once.py", ["sys.exit(3)"]),
        (["check", "theirs.py:leaves"], "called sys.exit('bye') at line 6", ['sys.exit("bye")']),
        (["check", "theirs.py:typo"], "raised NameError at line 9 of theirs.py", ["return line(batch_size=sixteen)"]),
        (["check", "half.py:f"], "raised SyntaxError at line 1 of half.py", ["def f(:"]),
        (["check", "theirs.py:line", "--data", "broken_train_input_fn"], "Expecting property name", ["json.loads"]),
        (["check", "theirs.py:own_error"], "a shape of mine", ["raise RuntimeError"]),
        (["check", "theirs.py:line", "--arg", "batch_size=0"], "train_batch_size", ["return sl.Estimator("]),
    ],
)
def test_errors_in_the_user_s_code_show_the_user_s_frames_alone(folder, capsys, arguments, message, frames):
    assert main([*arguments, "--target", "cpu:1"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("systolic check: error: ")
    assert message in err
    places = [line for line in err.splitlines() if line.startswith('  File "')]
    assert places
    assert all(str(folder) in place for place in places)
    for frame in frames:
        assert frame in err
    assert "Traceback" not in err


def test_a_bug_of_ours_shows_its_traceback(monkeypatch):
    def bug(options):
        raise AttributeError("oops")

    monkeypatch.setattr("systolic.cli._targets.targets", bug)
    monkeypatch.setattr("systolic.cli._main.is_users", lambda error: False)
    with pytest.raises(AttributeError):
        main(["targets"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "told to end")]
)
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_check_that_is_stopped_says_so_in_one_line_and_leaves_nothing(folder, number, status, word, jobs):
    pytest.importorskip("libtpu")
    compiles = folder / "tmp"
    compiles.mkdir()
    command = [sys.executable, "-m", "systolic", "check", "line_model.py:line", "--target", "v5e-4,v4-8", "--no-cache"]
    process = subprocess.Popen(
        [*command, "--jobs", jobs], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(compiles)},
    )  # fmt: skip
    give_up = time.monotonic() + 60
    while not list(compiles.glob("systolic-compile-*/stage")) and time.monotonic() < give_up:
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert out == ""
    lines = [line for line in err.splitlines() if "starting the compiler" not in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"systolic check: {word}")
    assert list(compiles.iterdir()) == []


def test_a_prediction_that_fails_leaves_the_old_rows_and_keeps_the_new(folder, capsys):
    (folder / "theirs.py").write_text(
        THEIRS
        + """
def half_predict_input_fn():
    yield {"x": np.zeros((4, 1), "float32")}
    raise OSError("unplugged")
"""
    )
    main(["train", "line_model.py:line", "--model-dir", "run", "--steps", "2", "--target", "cpu:1"])
    (folder / "rows").write_text("old\n")
    predict = ["predict", "theirs.py:line", "--target", "cpu:1", "--output", "rows"]
    assert main([*predict, "--model-dir", "nowhere"]) == 2
    assert (folder / "rows").read_text() == "old\n"
    assert not (folder / "rows.partial").exists()
    assert main([*predict, "--model-dir", "run", "--data", "half_predict_input_fn"]) == 2
    assert (folder / "rows").read_text() == "old\n"
    assert len((folder / "rows.partial").read_text().splitlines()) == 4
    assert "the rows up to here are in rows.partial" in capsys.readouterr().err
    assert main([*predict, "--model-dir", "run", "--data", "eval_input_fn"]) == 0
    assert len((folder / "rows").read_text().splitlines()) == 5
