"""The tables at the top of HLO text that lead from an instruction to a line of the user's code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from systolic._source import is_ours, is_users_file


class Frames:
    """Stack frames by number.

    Args:
        tables: rows of ``FileNames``, ``FileLocations`` and ``StackFrames`` by number, as printed; any may be missing.
    """

    def __init__(self, tables: Mapping[str, Mapping[int, str]]) -> None:
        self._files = {number: row.strip('"') for number, row in tables.get("FileNames", {}).items()}
        self._places = _numbers(tables.get("FileLocations", {}), "file_name_id", "line")
        self._frames = _numbers(tables.get("StackFrames", {}), "file_location_id", "parent_frame_id")
        self._sources: dict[int, str] = {}

    def source(self, frame: int) -> str:
        """``file:line`` of the innermost frame outside libraries; a library's where there is none; empty where all is ours."""
        if frame not in self._sources:
            places = list(self.stack(frame))
            user = (place for place in places if is_users_file(place[0]))
            foreign = (place for place in places if not is_ours(place[0]))
            found = next(user, next(foreign, None))
            self._sources[frame] = f"{found[0]}:{found[1]}" if found else ""
        return self._sources[frame]

    def stack(self, frame: int) -> Iterator[tuple[str, int]]:
        """(file, line) from the innermost frame outward."""
        while frame in self._frames:
            place, parent = self._frames[frame]
            if place in self._places:
                file, line = self._places[place]
                yield self._files.get(file, ""), line
            frame = parent - 1  # counted from 1, with 1 for "none"


def _numbers(rows: Mapping[int, str], first: str, second: str) -> dict[int, tuple[int, int]]:
    out = {}
    for number, row in rows.items():
        found = [re.search(rf"\b{field}=(\d+)", row) for field in (first, second)]
        out[number] = tuple(int(match.group(1)) if match else 0 for match in found)
    return out
