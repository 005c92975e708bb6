"""How a run behaves: where it lives, how often it saves and logs. What is learned belongs to the Estimator."""

from __future__ import annotations

import dataclasses
import math
import os

from systolic._arguments import flag, folder, number, one_of, whole
from systolic._errors import InputError
from systolic.target import Target


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Configuration of a run.

    Attributes:
        model_dir: the run's folder (checkpoints, ``metrics.jsonl``, TensorBoard events, ``summary.html``); ``None``
            keeps everything in memory.
        target: where the Programs run: ``"auto"``, ``"cpu"``, ``"cpu:8"``, ``"gpu"``, ``"tpu"``; the one switch.
        use_tpu: TPUEstimator's spelling of the same switch: ``True`` means ``target="tpu"``, ``False`` ``"cpu"``.
        steps_per_loop: training steps per dispatch (one loop on the device over a stack of batches). On the CPU, models
            with convolutions take one step a dispatch all the same: XLA runs these slowly in a loop there.
        seed: seeds the parameters and every step's randomness.
        checkpoint_every: steps between checkpoints; ``None`` saves at the end (and when told to stop) only.
        keep: how many of the latest checkpoints stay.
        log_every: steps between records in ``metrics.jsonl`` and TensorBoard, and calls of ``Hook.after_steps``, which
            tells where exactly; the last step of a run has one too.
        tail: what happens to a short batch at the end of a training epoch: it joins the next epoch (``"carry"``), is
            dropped (``"drop"``), or is padded and masked (``"pad"``; refused for models with batch statistics).
        on_nonfinite: ``"stop"`` freezes the state at the first NaN or infinite loss and names the tensor it came
            from; ``"ignore"`` trains on.
        stall_seconds: without progress for this long, the watchdog prints what every thread is doing.
        prefetch: dispatches whose input is put on the device ahead.
        compile_budget: signatures each of ``init``, ``train``, ``eval`` and ``predict`` may be compiled for, on each
            target.
        progress: show the progress line.
        eager: run op by op, uncompiled, for debugging.
    """

    model_dir: str | os.PathLike[str] | None = None
    target: str = "auto"
    use_tpu: bool | None = None
    steps_per_loop: int = 1
    seed: int = 0
    checkpoint_every: int | None = 1000
    keep: int = 3
    log_every: int = 100
    tail: str = "carry"
    on_nonfinite: str = "stop"
    stall_seconds: float = 300.0
    prefetch: int = 2
    compile_budget: int = 1
    progress: bool = True
    eager: bool = False

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name in ("steps_per_loop", "keep", "log_every", "prefetch", "compile_budget"):
            put(name, whole(f"RunConfig({name})", getattr(self, name)))
        if self.checkpoint_every is not None:
            put("checkpoint_every", whole("RunConfig(checkpoint_every)", self.checkpoint_every))
        put("seed", whole("RunConfig(seed)", self.seed, 0, 2**32 - 1))
        number("RunConfig(stall_seconds)", self.stall_seconds, 0, math.inf, "a positive number of seconds")
        one_of("RunConfig(tail)", self.tail, ("carry", "drop", "pad"))
        one_of("RunConfig(on_nonfinite)", self.on_nonfinite, ("stop", "ignore"))
        for name in ("progress", "eager"):
            flag(f"RunConfig({name})", getattr(self, name))
        if not isinstance(self.target, str | Target) or not self.target:
            raise InputError(f"RunConfig(target): saw {self.target!r}, wanted a name such as 'auto', 'cpu:8' or 'tpu'")
        if self.use_tpu is not None:
            flag("RunConfig(use_tpu)", self.use_tpu)
            if self.target not in ("auto", "tpu" if self.use_tpu else "cpu"):
                raise InputError(
                    f"RunConfig: use_tpu={self.use_tpu} contradicts target={self.target!r}; give one of them"
                )
            put("target", "tpu" if self.use_tpu else "cpu")
        if self.model_dir is not None:
            put("model_dir", folder("RunConfig(model_dir)", self.model_dir))

    def replace(self, **changes: object) -> RunConfig:
        """A copy with some fields changed; of ``target`` and ``use_tpu``, which are one switch, a new one replaces both."""
        if "target" in changes:
            changes = {"use_tpu": None, **changes}
        elif changes.get("use_tpu") is not None:
            changes = {"target": "auto", **changes}
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]
