"""Names of losses and metrics: they become keys of a result, of ``metrics.jsonl``, and tags of TensorBoard."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from systolic._errors import InputError

RESERVED = ("step", "learning_rate", "steps_per_second", "input_wait")
"""What a training run reports beside the metrics, under these names."""

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*")


def check_names(argument: str, names: Iterable[Any]) -> None:
    """InputError unless each name is letters, digits, "_", "-", ".", with "/" between parts, and not taken.

    TensorBoard's own writers replace other characters by "_", so two names could become one.
    """
    for name in names:
        what = f"EstimatorSpec({argument}=...)"
        if not isinstance(name, str):
            raise InputError(f"{what}: the name {name!r} ({type(name).__name__}) seen, wanted a string.")
        if not _NAME.fullmatch(name):
            better = "/".join(part for part in re.sub(r"[^\w./-]+", "_", name).split("/") if part)
            raise InputError(
                f"{what}: the name {name!r} seen, wanted letters, digits, '_', '-' and '.', with '/' between parts, as in "
                f"{better.strip('_') or 'accuracy'!r}: TensorBoard and files take no others as they are."
            )
        if argument == "metrics" and (name == "loss" or name.startswith("loss/")):
            raise InputError(
                f"{what}: the name {name!r} is taken by the loss, which is always reported. Choose another name."
            )
        if argument == "metrics" and name in RESERVED:
            raise InputError(
                f"{what}: the name {name!r} is taken: a run reports {', '.join(RESERVED)} itself. Choose another name, such "
                f"as {'model/' + name!r}."
            )
