"""One thing that the doctor saw."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was seen, and what to do about it.

    Attributes:
        name: of the thing, such as a package.
        text: what was seen.
        level: ``"ok"``, ``"note"`` (worth knowing), ``"problem"`` (something will not work).
        advice: what to do; empty where there is nothing to do.
    """

    name: str
    text: str
    level: Literal["ok", "note", "problem"] = "ok"
    advice: str = ""
