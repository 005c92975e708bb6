"""The folder of compile results."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading

import pytest

from systolic.program._described_cache import DescribedCache


def test_an_entry_comes_back_as_it_was_stored(tmp_path):
    cache = DescribedCache(tmp_path)
    assert cache.load("a") is None
    assert cache.store("a", {"cost": {"flops": 1.5}}, {"x.bin": b"\x00\x01"})
    assert cache.load("a") == ({"cost": {"flops": 1.5}}, {"x.bin": b"\x00\x01"})


@pytest.mark.parametrize("damage", ["truncate", "flip", "missing", "index", "no index", "meta"])
def test_a_damaged_entry_is_a_miss_and_is_removed(tmp_path, damage):
    cache = DescribedCache(tmp_path)
    cache.store("a", {"n": 1}, {"x.bin": b"abcdef"})
    file, index = tmp_path / "a" / "x.bin", tmp_path / "a" / "entry.json"
    if damage == "truncate":
        file.write_bytes(b"abc")
    elif damage == "flip":
        file.write_bytes(b"abcdeg")
    elif damage == "missing":
        file.unlink()
    elif damage == "index":
        index.write_text("{")
    elif damage == "no index":
        index.unlink()
    else:
        index.write_text(index.read_text().replace('"n": 1', '"n": 2'))
    assert cache.load("a") is None
    assert not (tmp_path / "a").exists()
    assert cache.store("a", {"n": 1}, {"x.bin": b"abcdef"})
    assert cache.load("a") is not None


def test_the_entry_used_longest_ago_goes_first(tmp_path):
    cache = DescribedCache(tmp_path, limit=3000)
    for age, key in enumerate(("old", "older")):
        cache.store(key, {}, {"x": b"0" * 1000})
        os.utime(tmp_path / key, (1000 - age, 1000 - age))
    cache.load("older")  # a use makes it young
    cache.store("new", {}, {"x": b"0" * 1000})
    assert cache.load("old") is None
    assert cache.load("older") is not None
    assert cache.load("new") is not None


def test_writers_at_once_leave_one_whole_entry(tmp_path):
    files = {"x": os.urandom(200_000)}
    threads = [threading.Thread(target=DescribedCache(tmp_path).store, args=("a", {"n": 1}, files)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert DescribedCache(tmp_path).load("a") == ({"n": 1}, files)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_place_that_cannot_be_written_costs_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, logger="systolic"):
        assert not DescribedCache(tmp_path / "file" / "cache").store("a", {}, {})
    assert "cannot write" in caplog.text


def test_the_index_is_plain_json(tmp_path):
    DescribedCache(tmp_path).store("a", {"n": 1}, {"x": b"1"})
    assert json.loads((tmp_path / "a" / "entry.json").read_text())["meta"] == {"n": 1}


def test_an_entry_over_the_limit_is_not_kept_and_costs_the_others_nothing(tmp_path, caplog):
    cache = DescribedCache(tmp_path, limit=3000)
    assert cache.store("small", {}, {"x": b"0" * 1000})
    with caplog.at_level(logging.WARNING, logger="systolic"):
        assert not cache.store("large", {}, {"x": b"0" * 3001})
    assert "SYSTOLIC_CACHE_GIB" in caplog.text
    assert [entry.name for entry in tmp_path.iterdir()] == ["small"]


def test_a_file_that_is_no_entry_is_left_alone(tmp_path):
    (tmp_path / "README").write_text("mine")
    cache = DescribedCache(tmp_path, limit=1500)
    for key in ("a", "b"):
        assert cache.store(key, {}, {"x": b"0" * 1000})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["README", "b"]


_WRITER = """
import pathlib, sys
from systolic.program._described_cache import DescribedCache
cache = DescribedCache(pathlib.Path(sys.argv[1]), limit=20_000)
for i in range(150):
    key = f"{(i * int(sys.argv[2])) % 50:02}"
    found = cache.load(key)
    assert found is None or found == ({"n": key}, {"x": key.encode() * 500}), found
    if found is None:
        assert cache.store(key, {"n": key}, {"x": key.encode() * 500})
"""


def test_processes_that_write_read_and_prune_at_once_see_whole_entries_and_keep_the_bound(tmp_path):
    both = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), step], stderr=subprocess.PIPE)
        for step in ("7", "11")
    ]
    assert [process.communicate(timeout=120)[1] for process in both] == [b"", b""]
    names = [entry.name for entry in tmp_path.iterdir()]
    assert not [name for name in names if name.startswith(".")]
    sizes = [file.stat().st_size for entry in tmp_path.iterdir() for file in entry.iterdir()]
    assert sum(sizes) <= 20_000
    assert names
