"""JAX's persistent cache: its folder does not grow without end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from systolic import InputError
from systolic.program._jax_cache import cache_limit, prune


def fill(folder, ages, size=1000):
    for name, age in ages.items():
        path = folder / name
        path.write_bytes(bytes(size))
        os.utime(path, (10_000 - age, 10_000 - age))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_was_used_longest_ago_goes_first(tmp_path):
    fill(tmp_path, {"a-cache": 3, "b-cache": 9, "c-cache": 1, "d-cache": 7})
    os.utime(tmp_path / "b-cache", (10_000, 10_000 - 9))  # written long ago and read just now
    assert prune(tmp_path, 2500) == 2
    assert names(tmp_path) == ["b-cache", "c-cache"]


def test_within_the_limit_nothing_goes_and_folders_stay(tmp_path):
    fill(tmp_path, {"a-cache": 3})
    (tmp_path / "folder").mkdir()
    assert prune(tmp_path, 1000) == 0
    assert names(tmp_path) == ["a-cache", "folder"]
    assert prune(tmp_path, 999) == 1
    assert names(tmp_path) == ["folder"]


def test_two_processes_that_prune_at_once_remove_no_more_than_one_would(tmp_path):
    fill(tmp_path, {f"{i:03}-cache": 1000 - i for i in range(400)})
    script = f"import pathlib; from systolic.program._jax_cache import prune; prune(pathlib.Path({str(tmp_path)!r}), 100_000)"
    both = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate(timeout=120)[1] for process in both] == [b"", b""]
    assert names(tmp_path) == [f"{i:03}-cache" for i in range(300, 400)]


@pytest.mark.parametrize("said", ["0", "-1", "many", "nan", "inf"])
def test_a_limit_that_is_no_size_is_refused(monkeypatch, said):
    monkeypatch.setenv("SYSTOLIC_CACHE_GIB", said)
    with pytest.raises(InputError, match=rf"SYSTOLIC_CACHE_GIB: saw '{said}', wanted GiB above 0"):
        cache_limit()


def test_the_limit_is_in_gib_and_has_a_default(monkeypatch):
    monkeypatch.setenv("SYSTOLIC_CACHE_GIB", "0.5")
    assert cache_limit() == 1 << 29
    monkeypatch.delenv("SYSTOLIC_CACHE_GIB")
    assert cache_limit() == 5 << 30


def test_the_first_program_of_a_process_prunes(tmp_path):
    (tmp_path / "jax").mkdir()
    fill(tmp_path / "jax", {"old-cache": 5000}, size=2 << 20)
    script = """
        import numpy as np, systolic as sl
        print(sl.Program(lambda x: x + 1, np.zeros(3, "float32")).compile("cpu").cache)
    """
    environment = {"SYSTOLIC_CACHE_DIR": str(tmp_path), "SYSTOLIC_CACHE_GIB": str(1 / 1024), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout.split(), done.stderr) == (["miss"], "")
    left = names(tmp_path / "jax")
    assert left
    assert "old-cache" not in left
