"""Runs contestants in turn, each in a process of its own, and prints medians and ratios.

A contestant is a command that speaks the protocol of ``_worker.py``: it sets itself up once, then runs one timed segment
for each line it reads. While one runs, the others wait for their turn, so that all see the same machine.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass
class Contestant:
    """One implementation: what to call it and how to start it (``python`` may be another environment's)."""

    name: str
    arguments: Sequence[str]
    python: str = sys.executable
    env: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Result:
    """Per segment: ``rates`` in units per second; for the whole process: what it said of itself, and ``peak_rss``."""

    name: str
    rates: list[float]
    about: dict
    peak_rss: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.rates)


class _Process:
    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant
        self.process = subprocess.Popen(
            [contestant.python, *contestant.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"} | contestant.env,
            text=True,
        )
        self.result = Result(contestant.name, [], self._read())

    def _read(self) -> dict:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise SystemExit(f"{self.contestant.name} ended with status {self.process.wait()}")

    def _say(self, word: str) -> dict:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self._read()

    def segment(self) -> None:
        answer = self._say("run")
        self.result.rates.append(answer["units"] / answer["seconds"])

    def close(self) -> None:
        self.result.peak_rss = self._say("end")["peak_rss"]
        self.process.wait(timeout=60)


def alternate(contestants: Sequence[Contestant], rounds: int = 7) -> dict[str, Result]:
    """Run every contestant ``rounds`` times in turn, after one warm-up segment each."""
    processes = [_Process(c) for c in contestants]
    try:
        for process in processes:
            process.segment()
            process.result.rates.clear()
        for _ in range(rounds):
            for process in processes:
                process.segment()
        for process in processes:
            process.close()
    finally:
        for process in processes:
            process.process.kill()
    return {p.result.name: p.result for p in processes}


def run_all(script: str | os.PathLike[str], names: Sequence[str], args: Any) -> dict[str, Result]:
    """Run the contestants of a script that starts one with ``--worker NAME``.

    ``args`` holds ``rounds``, ``only`` (names, or ``None`` for all) and ``tf_python`` (without it TensorFlow's sit out).
    """
    contestants = []
    for name in args.only or names:
        old = name.startswith("TPUEstimator")
        if old and not args.tf_python:
            print(f"{name} is left out: name its interpreter with --tf-python")
            continue
        if name.startswith("Keras") and importlib.util.find_spec("keras") is None:
            print(f"{name} is left out: pip install keras")
            continue
        python = args.tf_python if old else sys.executable
        contestants.append(Contestant(name, [str(script), "--worker", name], python, {"KERAS_BACKEND": "jax"}))
    return alternate(contestants, args.rounds)


def report(title: str, unit: str, results: dict[str, Result], claims: Sequence[tuple[str, str, float | None]]) -> None:
    """Print a table and, for each claim (ours, peer, wanted or None), the median of the round-by-round ratios."""
    print(f"\n{title}\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    width = max(len(name) for name in results)
    for name, r in results.items():
        about = ", ".join(f"{k} {v}" for k, v in r.about.items())
        print(
            f"  {name:<{width}}  {r.median:>10,.4g} {unit}  ({min(r.rates):,.4g} to {max(r.rates):,.4g})  "
            f"peak RSS {r.peak_rss / 2**20:,.0f} MiB  {about}"
        )
    first = next(iter(results.values()))
    for name, r in list(results.items())[1:]:
        print(f"  peak RSS of {name} ÷ {first.name}: {r.peak_rss / first.peak_rss:.2f}")
    for ours, peer, wanted in claims:
        if ours not in results or peer not in results:
            continue
        ratios = [a / b for a, b in zip(results[ours].rates, results[peer].rates)]
        ratio = statistics.median(ratios)
        verdict = "" if wanted is None else f", wanted ≥ {wanted}: {'ok' if ratio >= wanted else 'MISSED'}"
        print(f"  {ours} ÷ {peer}: {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}){verdict}")
