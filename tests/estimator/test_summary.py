"""The summary page: right numbers, valid self-contained HTML, never the end of a run."""

from __future__ import annotations

import logging
import math
import re
from html.parser import HTMLParser

import pytest

from systolic.estimator._events import EventLog
from systolic.estimator._summary import write_summary

INFO = {
    "title": "Digits <1>",
    "target": "cpu:8",
    "devices": 8,
    "step": 300,
    "status": "finished",
    "seconds": 75.0,
    "parameters": 11_173_962,
    "parameter_bytes": 4 * 11_173_962,
    "config": {"train_batch_size": 128, "model_dir": "a <b>"},
    "compiles": [
        {"program": "train", "seconds": 9.31, "cache": "miss"},
        {"program": "e", "seconds": 0.02, "cache": "hit"},
    ],
    "phases": {"train": 60.0, "compile": 9.0, "save": 0.0},
    "versions": {"systolic": "0.1.0", "jax": "0.10.2"},
    "notes": ["labels: int64 becomes int32"],
}


class _Balance(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.text, self.tags = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parse(path):
    html = path.read_text(encoding="utf-8")
    assert not re.search(r"https?:", html)
    parser = _Balance()
    parser.feed(html)
    parser.close()
    assert not parser.open
    return parser, "\n".join(parser.text)


@pytest.fixture
def run_folder(tmp_path):
    with EventLog(tmp_path, 0, tensorboard=False) as log:
        log.write(0, "compile", {"program": "train", "seconds": 9.31})
        for step in range(10, 301, 10):
            log.write(
                step,
                "train",
                {
                    "loss": 3.0 / step if step != 50 else math.nan,
                    "learning_rate": 1e-3,
                    "steps_per_second": 1000.0 + step,
                    "input_wait": 0.02,
                },
            )
            if step % 100 == 0:
                log.write(step, "eval", {"loss": 4.0 / step, "accuracy": step / 400, "by": {"digit": 0.5}})
    return tmp_path


def test_the_page_shows_the_run(run_folder):
    path = write_summary(run_folder, INFO)
    assert path == run_folder / "summary.html"
    parser, text = parse(path)
    for piece in (
        "Digits <1>",
        "cpu:8 · 8 devices · started",
        "systolic 0.1.0 · jax 0.10.2",
        "after 1 min 15 s",
        "11.2 M",
        "42.63 MiB",
        "labels: int64 becomes int32",
        "75.00 %",  # accuracy at step 300
        "0.01333",  # evaluation loss at step 300
        "0.3 at 10",  # highest training loss
        "miss: compiled",
        "9.3 s",
        "hit: taken from disk",
        "20 ms",
        "a <b>",
        "by/digit",
    ):
        assert piece in text, piece
    drawings = {a["aria-label"] for tag, a in parser.tags if tag == "svg" and "aria-label" in a}
    assert drawings == {
        "loss: train, eval over step",
        "accuracy: eval over step",
        "by/digit: eval over step",
        "Rate: train over step",
        "Waiting for input: train over step",
        "Learning rate: train over step",
        "Where the time went: run 1 min 9 s",
    }
    assert "1,155" in text or "1,160" in text  # median rate to three digits


def test_the_last_record_of_a_step_counts(tmp_path):
    with EventLog(tmp_path, tensorboard=False) as log:
        log.write(5, "eval", {"score": 111.0})
        log.write(5, "eval", {"score": 222.0})
    _, text = parse(write_summary(tmp_path, {}))
    assert "222" in text
    assert "111" not in text


@pytest.mark.parametrize("info", [{}, INFO, {"ok": False, "status": "NaN loss at step 7"}])
def test_a_run_that_has_logged_nothing_has_a_page_too(tmp_path, info):
    _, text = parse(write_summary(tmp_path, info))
    assert "No metrics have been logged yet." in text


def test_many_metrics_are_drawn_up_to_a_limit_and_named_beyond(tmp_path):
    with EventLog(tmp_path, tensorboard=False) as log:
        log.write(1, "train", {f"m{k:02}": 1.0 for k in range(30)})
    parser, text = parse(write_summary(tmp_path, {}))
    assert sum(tag == "figure" for tag, _ in parser.tags) == 24
    assert "m24, m25, m26, m27, m28, m29" in text


def test_a_long_status_is_a_box_and_the_rest_of_the_time_is_training(tmp_path):
    info = {"status": "failed: loss is NaN at step 7, first in conv1/kernel", "ok": False, "seconds": 100.0}
    parser, text = parse(write_summary(tmp_path, {**info, "phases": {"saving": 5.0, "compiling": 35.0}}))
    assert "\nfailed\n" in text
    assert info["status"] in text
    hints = [t for t in parser.text if t.startswith("run · ")]
    assert hints[:3] == ["run · training: 1 min", "run · compiling: 35.0 s", "run · saving: 5.0 s"]


def test_a_page_that_cannot_be_written_is_one_warning(tmp_path, caplog):
    (tmp_path / "summary.html").mkdir()
    with caplog.at_level(logging.WARNING):
        assert write_summary(tmp_path, {}) is None
    assert len(caplog.records) == 1
    assert "could not be written: IsADirectoryError" in caplog.text
    assert [p.name for p in tmp_path.iterdir()] == ["summary.html"]


def test_a_mistake_in_the_info_is_one_warning_too(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert write_summary(tmp_path, {"phases": {"train": "long"}}) is None
    assert "ValueError" in caplog.text
