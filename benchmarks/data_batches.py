"""Host cost of a static batch: microseconds for each batch of (32, 32) float32 features and 32 int32 labels.

Peers do the same work by hand with NumPy, or with Grain. Rounds alternate between the rows of the table, and the median
and the spread over rounds are printed. Run: ``python benchmarks/data_batches.py``.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from systolic import data

BATCH, STACK, ROWS, ROUNDS = 32, 100, 9600, 9
X = np.random.default_rng(0).random((ROWS, 32), np.float32)
Y = np.random.default_rng(1).integers(0, 10, ROWS, np.int32)


def ready_batches() -> Iterator[Any]:
    low = 0
    while True:
        yield {"x": X[low : low + BATCH]}, Y[low : low + BATCH]
        low = (low + BATCH) % ROWS


def stacked_by_hand() -> Iterator[Any]:
    elements = ready_batches()
    while True:
        group = list(itertools.islice(elements, STACK))
        yield {"x": np.stack([features["x"] for features, _ in group])}, np.stack([labels for _, labels in group])


def gathered_by_hand() -> Iterator[Any]:
    generator = np.random.default_rng(0)
    while True:
        for rows in generator.permutation(ROWS).reshape(-1, BATCH):
            yield {"x": X[rows]}, Y[rows]


def grain_batches() -> Iterator[Any]:
    import grain

    class Source:
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, i: int) -> Any:
            return {"x": X[i]}, Y[i]

    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return iter(grain.MapDataset.source(Source()).shuffle(seed=0).repeat().batch(BATCH).to_iter_dataset(options))


def main() -> None:
    arrays = data.arrays({"x": X}, Y, shuffle=0)
    table: list[tuple[str, Callable[[], Iterator[Any]], int]] = [
        ("generator of ready batches, bare", ready_batches, 1),
        ("  systolic, one by one", lambda: data.Batches(data.batches(ready_batches), BATCH), 1),
        ("  np.stack of 100, by hand", stacked_by_hand, STACK),
        ("  systolic, stacks of 100", lambda: data.Batches(data.batches(ready_batches), BATCH, stack=STACK), STACK),
        ("shuffled arrays, NumPy by hand", gathered_by_hand, 1),
        ("  systolic, one by one", lambda: data.Batches(arrays, BATCH), 1),
        ("  systolic, stacks of 100", lambda: data.Batches(arrays, BATCH, stack=STACK), STACK),
        ("  Grain, one by one", grain_batches, 1),
    ]
    iterators = [make() for _, make, _ in table]
    seconds: list[list[float]] = [[] for _ in table]
    for _ in range(ROUNDS + 1):
        for (_, _, per_item), iterator, times in zip(table, iterators, seconds):
            items = max(1, 600 // per_item)
            began = time.perf_counter()
            for _ in itertools.islice(iterator, items):
                pass
            times.append((time.perf_counter() - began) / (items * per_item))
    print(f"{'µs a batch':36}{'median':>10}{'least':>10}{'most':>10}")
    for (name, _, _), times in zip(table, seconds):
        micros = [value * 1e6 for value in times[1:]]  # the first round warms up
        print(f"{name:36}{statistics.median(micros):10.2f}{min(micros):10.2f}{max(micros):10.2f}")


if __name__ == "__main__":
    main()
