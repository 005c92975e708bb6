"""The checkpoints of a run as one Estimator sees them: reading makes no folder, and evaluation needs a part only."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from systolic._errors import CheckpointError
from systolic._log import logger
from systolic.estimator._checkpoint import Checkpoints
from systolic.estimator._config import RunConfig


class Saved:
    """What lies in ``model_dir``; nothing, where there is none."""

    def __init__(self, config: RunConfig) -> None:
        self._run = None if config.model_dir is None else pathlib.Path(config.model_dir)
        self._keep = config.keep
        self._checkpoints: Checkpoints | None = None

    @property
    def checkpoints(self) -> Checkpoints | None:
        """The run's checkpoints, in a folder that is made where there is none; ``None`` without a model_dir."""
        if self._checkpoints is None and self._run is not None:
            self._checkpoints = Checkpoints(self._run / "checkpoints", self._keep)
        return self._checkpoints

    def _to_read(self) -> Checkpoints | None:
        """The checkpoints if there is a folder: a reader makes none."""
        return self.checkpoints if self._run is not None and os.path.isdir(self._run / "checkpoints") else None

    def latest(self) -> int | None:
        """Step of the latest checkpoint; ``None`` before the first."""
        checkpoints = self._to_read()
        if checkpoints is None:
            return None
        if checkpoints.latest() is None:
            checkpoints.refresh()  # another process may have saved its first just now
        return checkpoints.latest()

    def newer_than(self, step: int) -> bool:
        """Whether there is a later step than ``step``, which another process may have saved just now."""
        if (checkpoints := self._to_read()) is None:
            return False
        checkpoints.refresh()
        if (latest := checkpoints.latest() or 0) <= step:
            return False
        logger.info("following %s from step %d to %d", self._run, step, latest)
        return True

    def restore(self, step: int, like: dict[str, Any], part: bool) -> Any:
        """The state of a checkpoint, on the host.

        Args:
            like: shapes and dtypes of a whole state of this Estimator's.
            part: leave out ``opt_state``, whatever optimizer made it, and take a moving average of the parameters where
                the run that trained kept one, if not this Estimator.

        Raises:
            CheckpointError: it is another model's.
        """
        assert self.checkpoints is not None
        if part:
            like = {name: x for name, x in like.items() if name != "opt_state"}
            if any(name.split("/")[0] == "ema" for name in self.checkpoints.meta(step)["leaves"]):
                like["ema"] = like["params"]
        state, _ = self.checkpoints.restore(like, step, tuple(like) if part else None)
        logger.info("restored step %d from %s", step, self.checkpoints.folder)
        return state

    def untrained(self) -> CheckpointError:
        """The error where a trained state is wanted and there is none."""
        if self._run:
            return CheckpointError(
                f"the model has not been trained: nothing is in memory and there is no checkpoint in {self._run}; call train first"
            )
        return CheckpointError(
            "the model has not been trained: nothing is in memory, and without RunConfig(model_dir=...) nothing is kept of a "
            "training in another process; call train first, or name the folder of a run"
        )
