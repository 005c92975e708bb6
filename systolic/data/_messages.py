"""How features, examples and their faults are named in messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MARK = "Mark the source with systolic.data.examples(...) or systolic.data.batches(...) to say which it is"
SAME_DATA = (
    "It was changed since the position was saved: give the same data, or begin it anew, train(..., restart_data=True) or "
    "Batches(..., start=None)"
)


def label(name: str) -> str:
    """``labels`` and its parts stand for themselves, as do features that are one array; anything else is a feature."""
    return name if is_label(name) or name == "features" else f"feature {name!r}"


def is_label(name: str) -> bool:
    return name.split("/")[0] == "labels"


def where(name: str | None, epoch: int, index: int, batched: bool | None = False) -> str:
    """As in: feature 'x' of example 7 of epoch 2. A batch is placed by its first example."""
    place = f"the batch that starts at example {index}" if batched else f"example {index}"
    if epoch:
        place += f" of epoch {epoch}"
    return place if name is None else f"{label(name)} of {place}"


def kind(element: Any) -> str:
    """The type of an element, with its size where it has one."""
    if element is None:
        return "None"
    size = f" of {len(element)}" if isinstance(element, tuple | list | dict) else ""
    return type(element).__name__ + size


def names_differ(wanted: Iterable[str], seen: Iterable[str], epoch: int, index: int) -> str:
    """The whole message for features that are missing or not expected."""
    wanted, seen = set(wanted), set(seen)
    faults = (("missing:", wanted - seen), ("not expected:", seen - wanted))
    parts = [f"{word} {', '.join(map(repr, sorted(names)))}" for word, names in faults if names]
    return (
        f"{where(None, epoch, index)}: {'; '.join(parts)}. Seen: {', '.join(sorted(seen))}; expected: "
        f"{', '.join(sorted(wanted))}. Give the same features and labels with each example, the same as in training"
    )


def beyond(place: str, what: str) -> str:
    """The message for a position outside the data."""
    return f"input_fn: the position to go on from says {place} and the data set has {what}. {SAME_DATA}"
