"""Who writes: a process and its machine, so that what a killed one left behind can be told from work in progress."""

from __future__ import annotations

import os
import platform


def host() -> str:
    """The name of this machine: folders may be shared, and a process number means nothing elsewhere."""
    return platform.node() or "localhost"


def is_gone(pid: int, machine: str) -> bool:
    """Whether the process is known to have ended; False for one of another machine."""
    if machine != host():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it lives, as another user's
        return False
    return False
