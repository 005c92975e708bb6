"""The folder of a run: whatever is wrong with it is told before anything is compiled, and its lock cannot be taken away."""

from __future__ import annotations

import contextlib
import subprocess

import pytest
from small_models import linear, make_data, same_bits, weights

import systolic as sl
from systolic.estimator._folder import keep_locked, locked, prepare

DATA = make_data(40)


@contextlib.contextmanager
def full_disk(folder, leave=0):
    """A small file system at ``folder``, full but for ``leave`` bytes; skips where the machine does not let us mount one."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"mount is not permitted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def refused(folder, match):
    estimator = linear(folder)
    with pytest.raises(sl.InputError, match=match):
        estimator.train(lambda: DATA, steps=1)
    assert estimator._engine.compiles == []


def test_a_full_disk_is_told_at_the_start(tmp_path):
    with full_disk(tmp_path / "small") as folder:
        fill(folder)
        refused(folder, r"cannot write to .*small \(No space left on device\); the disk is full: free some space")
        assert not list(folder.glob(".write*"))
        (folder / "filler").unlink()
        linear(folder).train(lambda: DATA, steps=1)


def test_a_disk_that_fills_before_the_lock_is_written_is_told_too(tmp_path):
    with full_disk(tmp_path / "small") as folder:
        prepare(folder)
        fill(folder)
        with pytest.raises(sl.InputError, match=r"cannot write to .*\.lock .*the disk is full"), locked(folder):
            pass
        (folder / "filler").unlink()
        with locked(folder):  # what was refused holds nothing
            pass


@pytest.mark.parametrize("below", ["", "run", "deep/run"])
def test_a_file_in_the_way_is_named(tmp_path, below):
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file" / below, rf"cannot write to .*; {tmp_path / 'file'} is a file where a folder is wanted")


def test_a_folder_where_a_file_is_wanted_is_named(tmp_path):
    (tmp_path / ".lock").mkdir()
    refused(tmp_path, r"cannot write to .*/\.lock \(Is a directory\); .*/\.lock is a folder where a file is wanted")
    (tmp_path / ".lock").rmdir()
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(sl.InputError, match=r"metrics\.jsonl is a folder where a file is wanted"):
        linear(tmp_path).train(lambda: DATA, steps=1)


def test_a_lock_that_was_removed_is_made_again_at_the_next_save(tmp_path, caplog):
    class Remove(sl.Hook):
        def after_steps(self, run, step, metrics):
            if step == 3:
                (tmp_path / ".lock").unlink()

        def after_save(self, run, step):
            with pytest.raises(sl.CheckpointError, match="is in use: process"), locked(tmp_path):
                pass
            saved.append(step)

    saved = []
    estimator = linear(tmp_path, hooks=[Remove()], run={"log_every": 1, "checkpoint_every": 5})
    estimator.train(lambda: DATA, steps=10)
    assert saved == [5, 10]
    assert [r.getMessage() for r in caplog.records].count(
        f"{tmp_path / '.lock'} was removed while training; it has been made again"
    ) == 1
    with locked(tmp_path):  # nothing is held afterwards
        pass


def test_a_run_whose_lock_was_removed_and_taken_saves_nothing_more(tmp_path):
    with contextlib.ExitStack() as other:

        class Take(sl.Hook):
            def after_steps(self, run, step, metrics):
                if step == 7:
                    (tmp_path / ".lock").unlink()
                    other.enter_context(locked(tmp_path.parent / tmp_path.name / "."))

        estimator = linear(tmp_path, hooks=[Take()], run={"log_every": 1, "checkpoint_every": 5})
        with pytest.raises(sl.CheckpointError, match="is in use: process"):
            estimator.train(lambda: DATA, steps=20)
    again = linear(tmp_path)
    assert again.step == 5
    again.train(lambda: DATA, max_steps=20)
    whole = linear()
    whole.train(lambda: DATA, steps=20)
    assert same_bits(weights(again), weights(whole))


def test_a_folder_removed_while_training_is_told(tmp_path):
    folder = tmp_path / "run"

    class Remove(sl.Hook):
        def after_steps(self, run, step, metrics):
            subprocess.run(["rm", "-r", str(folder)], check=True)

    with pytest.raises(sl.CheckpointError, match=r"run was removed while training in it"):
        linear(folder, hooks=[Remove()]).train(lambda: DATA, steps=3)


def test_a_folder_nobody_holds_is_nothing_to_keep(tmp_path):
    keep_locked(tmp_path)
    assert not list(tmp_path.iterdir())
