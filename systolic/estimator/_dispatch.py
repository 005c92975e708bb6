"""How a group of batches becomes dispatches: one device loop over a stack, or single steps in short bursts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import PartitionSpec

from systolic._errors import InputError
from systolic.data import Batch, Batches, Group
from systolic.estimator._engine import Engine
from systolic.estimator._packing import Packing
from systolic.estimator._steps import SCALAR_LOSS

AHEAD = 2  # dispatches in flight before the host reads a result
_LONGEST_BURST = 32  # steps
_BRISK, _SLOW = 2e-3, 2e-2  # s a group: bursts grow below the one and shrink above the other
_BURST_BYTES = 1 << 20

Item = tuple[Any, int, list[Any]]
"""What a dispatcher makes of the input: batches as the program takes them, steps, data positions as they are done."""


class Dispatcher(Protocol):
    """Reads groups of batches and runs them; the training loop around it is the same for both kinds."""

    layout: PartitionSpec

    def read(self, batches: Batches, most: int, scalar: bool) -> Item | None:
        """The next group of at most ``most`` steps; ``None`` at the end of the data. ``scalar``: padding is refused."""

    def run(self, engine: Engine, call: Callable[..., Any], group: Any, count: int, positions: list[Any]) -> Any:
        """Dispatch the group; whatever happens, the engine's state and data position belong together afterwards.

        Returns the steps' outputs.
        """

    def scalars(self, outputs: Any, count: int) -> Any:
        """Outputs to log, on the host, stacked along a leading dimension; waits for them."""

    def last_loss(self, outputs: Any, count: int, wait: bool) -> float | None:
        """The loss of the last step; ``None`` where it is not computed yet and shall not be waited for."""

    def batch(self, group: Any, index: int) -> Any:
        """The batch of one step of the group."""

    def adapt(self, seconds: float) -> None:
        """Told how long a group took."""


def dispatcher(steps_per_loop: int, batch_bytes: int, packing: Packing | None) -> Dispatcher:
    """The dispatcher for a run whose batches have so many bytes; ``packing``: how single steps take the state, if packed."""
    return DeviceLoop() if steps_per_loop > 1 else SingleSteps(batch_bytes, packing)


class DeviceLoop:
    """One dispatch for a stack of K batches; the number of steps is an argument of the program."""

    layout = PartitionSpec(None, "data")

    def read(self, batches: Batches, most: int, scalar: bool) -> Item | None:
        try:
            group = batches.next_group(min(most, batches.stack))
        except StopIteration:
            return None
        return batch_tree(group, scalar), group.count, [group.position]

    def run(self, engine: Engine, call: Callable[..., Any], group: Any, count: int, positions: list[Any]) -> Any:
        engine.state, outputs = call(engine.state, group, np.int32(count))
        engine.meta["position"] = positions[-1]
        return outputs

    def scalars(self, outputs: Any, count: int) -> Any:
        return jax.tree.map(lambda x: x[:count], jax.device_get(outputs))

    def last_loss(self, outputs: Any, count: int, wait: bool) -> float | None:
        return float(np.asarray(outputs["loss"])[count - 1]) if wait or outputs["loss"].is_ready() else None

    def batch(self, group: Any, index: int) -> Any:
        return jax.tree.map(lambda x: x[index], group)

    def adapt(self, seconds: float) -> None:
        """A device loop is as long as it was compiled."""


class SingleSteps:
    """One dispatch a step. Where steps are so short that the host's bookkeeping would show, several in a row.

    A burst is read, run and accounted for at once: Python code that runs between two dispatches costs several times
    what the same code costs in a loop of its own, since the step evicts it from the processor's caches.
    """

    layout = PartitionSpec("data")

    def __init__(self, batch_bytes: int, packing: Packing | None) -> None:
        self._burst = 1
        self._packing = packing
        self._longest = max(1, min(_LONGEST_BURST, _BURST_BYTES // max(1, batch_bytes)))

    def read(self, batches: Batches, most: int, scalar: bool) -> Item | None:
        group: list[Any] = []
        positions = []
        for _, batch in zip(range(min(most, self._burst)), batches, strict=False):  # the range first: none is lost
            group.append(batch_tree(batch, scalar))
            positions.append(batch.position)
        return (group, len(group), positions) if group else None

    def run(self, engine: Engine, call: Callable[..., Any], group: Any, count: int, positions: list[Any]) -> Any:
        packing = self._packing
        state = engine.held.vectors(packing) if packing else engine.state
        outputs: list[Any] = []
        try:
            for batch in group:
                state, scalars = call(state, batch)
                outputs.append(scalars)
        finally:
            if packing:
                engine.held.give(state)  # type: ignore[arg-type]
            else:
                engine.state = state
            if outputs:
                engine.meta["position"] = positions[len(outputs) - 1]
        return outputs

    def scalars(self, outputs: Any, count: int) -> Any:
        return jax.tree.map(lambda x: x[None], jax.device_get(outputs[-1]))

    def last_loss(self, outputs: Any, count: int, wait: bool) -> float | None:
        loss = outputs[-1]["loss"]
        return float(loss) if wait or loss.is_ready() else None

    def batch(self, group: Any, index: int) -> Any:
        return group[index]

    def adapt(self, seconds: float) -> None:
        if seconds > _SLOW:
            self._burst = max(1, self._burst // 2)
        elif seconds < _BRISK:
            self._burst = min(self._longest, 2 * self._burst)


def batch_tree(batch: Batch | Group, scalar: bool = False) -> dict[str, Any]:
    """``features``, and ``labels`` and ``mask`` where the batch has them; with ``scalar``, padding is refused."""
    if scalar and batch.mask is not None and not batch.mask.all():
        raise InputError(SCALAR_LOSS)
    tree = {"features": batch.features}
    if batch.labels is not None:
        tree["labels"] = batch.labels
    if batch.mask is not None:
        tree["mask"] = batch.mask
    return tree
