"""The folder of compile results."""

from __future__ import annotations

import json
import logging
import os
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
