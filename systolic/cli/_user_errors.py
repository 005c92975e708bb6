"""The user's part of an error: the frames of their own files, without those of libraries."""

from __future__ import annotations

import traceback

from systolic._source import is_ours, is_users_file

_MOST_FRAMES = 12


def is_users(error: BaseException) -> bool:
    """Whether the error came up in the user's code, or in a library that this code called; no bug of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(map(_in_users_file, frames)) and not is_ours(frames[-1].filename)


def users_part(error: BaseException) -> str:
    """The frames of the user's files that ``error`` and its cause came through, as Python shows them; often none."""
    frames: list[traceback.FrameSummary] = []
    found: BaseException | None = error
    shown = ""
    while found is not None:
        new = [frame for frame in traceback.extract_tb(found.__traceback__) if _in_users_file(frame)]
        frames += [frame for frame in new if frame not in frames]  # a cause shares those above it
        if isinstance(found, SyntaxError) and found.filename is not None and is_users_file(found.filename):
            shown = "".join(traceback.format_exception_only(found)[:-1])  # the place; the message has been told
        found = found.__cause__
    listed = traceback.format_list(frames[-_MOST_FRAMES:])
    return ("".join(listed) + shown).rstrip("\n")


def _in_users_file(frame: traceback.FrameSummary) -> bool:
    return is_users_file(frame.filename)
