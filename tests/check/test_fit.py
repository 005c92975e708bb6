"""The search for the largest batch, on programs whose memory is given by a formula."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest

from systolic._errors import InputError
from systolic.check import BatchSearch, ProgramCheck, Verdict
from systolic.check import _fit as fit_module
from systolic.check._report import fit_text
from systolic.program import CompileOptions
from systolic.target import Target

TARGET = Target("v5e-8")
CAPACITY = 1000.0


def search(monkeypatch, needs, wanted, confirm=None, **kwargs):
    """Run the search where a batch of n needs ``needs(n)`` bytes, and ``confirm(n)`` at depth fast."""

    def analyse(program, target, options):
        need = (needs if options.depth == "schedule" or confirm is None else confirm)(program.size)
        fits = need <= CAPACITY
        return SimpleNamespace(needed=need, verdict=Verdict.FITS if fits else Verdict.TOO_LARGE)

    monkeypatch.setattr(fit_module, "analyse", analyse)
    failed = ProgramCheck(
        program="train", target="v5e-8", devices=8, verdict=Verdict.TOO_LARGE, reason="", depth="fast", cache="miss",
        seconds=1.0, needed=needs(wanted), capacity=CAPACITY,
    )  # fmt: skip
    batches = BatchSearch(lambda size: SimpleNamespace(size=size), wanted, **kwargs)
    return fit_module.largest_batch(batches, TARGET, CompileOptions(), failed)


@pytest.mark.parametrize("per_example", [0.3, 1.0, 1.7, 9.9])
@pytest.mark.parametrize("fixed", [0.0, 200.0, 900.0])
def test_the_largest_multiple_that_fits_is_found(monkeypatch, per_example, fixed):
    found = search(monkeypatch, lambda n: fixed + per_example * n, wanted=8192, trials=20)
    expected = int((CAPACITY - fixed) / per_example / 8) * 8
    assert found.largest == expected
    assert found.confirmed
    assert found.trials[-1].depth == "fast"


def test_a_straight_line_takes_few_trials(monkeypatch):
    found = search(monkeypatch, lambda n: 100 + 0.9 * n, wanted=8000, trials=20)
    assert found.largest == 1000
    assert len(found.trials) <= 8


def test_memory_that_stops_growing_is_followed(monkeypatch):
    # Above 600 the compiler recomputes: memory grows again only at 3000.
    found = search(monkeypatch, lambda n: min(n, 600 + 0.1 * n) if n < 3000 else 10.0 * n, wanted=8192, trials=20)
    assert found.largest == 2992


def test_nothing_fits(monkeypatch):
    found = search(monkeypatch, lambda n: 2000.0 + n, wanted=64)
    assert found.largest is None
    assert not found.confirmed


def test_an_estimate_that_was_too_low_is_corrected(monkeypatch):
    # The allocator leaves gaps of a quarter that the walk over the schedule does not see.
    found = search(monkeypatch, lambda n: 0.8 * n, wanted=8192, confirm=lambda n: n, trials=20)
    assert found.confirmed
    assert 950 <= found.largest <= 1000
    assert [trial.depth for trial in found.trials].count("fast") == 2


def test_a_time_box_still_gives_a_batch_that_fits(monkeypatch):
    found = search(monkeypatch, lambda n: 1e-3 * n * math.log2(n + 2), wanted=1 << 22, trials=3)
    assert len([trial for trial in found.trials if trial.depth == "schedule"]) <= 3
    assert found.largest is None or 1e-3 * found.largest * math.log2(found.largest + 2) <= CAPACITY


def test_the_multiple_can_be_given(monkeypatch):
    assert search(monkeypatch, lambda n: float(n), wanted=4096, multiple=96, trials=20).largest == 960


@pytest.mark.parametrize("crash_at", ["schedule", "fast"])
def test_a_size_that_cannot_be_checked_stops_the_search_and_leaves_it_open(monkeypatch, crash_at):
    """1 byte an example and room for 1000: every schedule above 400 crashes, or the confirmation does."""

    def analyse(program, target, options):
        crash = options.depth == crash_at and program.size > 400
        verdict = Verdict.UNKNOWN if crash else Verdict.FITS if program.size <= CAPACITY else Verdict.TOO_LARGE
        return SimpleNamespace(needed=None if crash else program.size, verdict=verdict, reason="the compiler crashed")

    monkeypatch.setattr(fit_module, "analyse", analyse)
    failed = ProgramCheck(
        program="train", target="v5e-8", devices=8, verdict=Verdict.TOO_LARGE, reason="", depth="fast", cache="miss",
        seconds=1.0, needed=8000, capacity=CAPACITY,
    )  # fmt: skip
    found = fit_module.largest_batch(
        BatchSearch(lambda size: SimpleNamespace(size=size), 8000, trials=20), TARGET, CompileOptions(), failed
    )
    assert [bool(trial.unknown) for trial in found.trials] == [False] * (len(found.trials) - 1) + [True]
    assert not found.confirmed
    assert found.largest == (None if crash_at == "schedule" else 1000)
    assert found.too_large == (8000 if crash_at == "schedule" else 1008)
    text = fit_text(dataclasses.replace(failed, fit=found))
    assert "largest batch that fits" not in text
    assert "is open: the search stopped at" in text
    assert text.endswith("the compiler crashed")


def test_a_search_out_of_trials_says_that_sizes_between_were_not_tried(monkeypatch):
    found = search(monkeypatch, lambda n: float(n), wanted=1 << 22, trials=1)
    assert found.largest is None or found.open


@pytest.mark.parametrize("bad", [{"batch_size": 0}, {"multiple": 0}, {"trials": 0}])
def test_bad_searches_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        BatchSearch(**({"program_at": lambda n: None, "batch_size": 8} | bad))
