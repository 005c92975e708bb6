"""Keep the best model: an export of the run's best evaluation so far."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from systolic._arguments import folder
from systolic.estimator._hooks import Best, Direction, Hook


class BestExport(Hook):
    """Exports the model whenever an evaluation is the best so far; the folder always holds one whole export.

    Args:
        metric: name among the evaluation's metrics.
        directory: where; replaced as a whole by each better model.
        mode: ``"min"`` (a loss) or ``"max"`` (an accuracy).
        batch_sizes, platforms: as for :meth:`systolic.Estimator.export`.

    A resumed run knows the best value of the run it continues.
    """

    def __init__(
        self,
        metric: str,
        directory: str | os.PathLike[str],
        mode: Direction = "min",
        *,
        batch_sizes: Sequence[int] | None = None,
        platforms: Sequence[str] = ("cpu", "tpu"),
    ) -> None:
        self.directory = folder("BestExport(directory)", directory)
        self._best = Best(metric, mode, who=type(self).__name__)
        self._batch_sizes, self._platforms = batch_sizes, platforms

    @property
    def step(self) -> int | None:
        """Step of the best evaluation; ``None`` before the first."""
        return self._best.step

    def after_evaluate(self, run: Any, step: int, metrics: Mapping[str, float]) -> None:
        if self._best.update(step, metrics):
            run.export(self.directory, self._batch_sizes, self._platforms)

    def state(self) -> Any:
        return self._best.state()

    def restore(self, state: Any) -> None:
        self._best.restore(state)
