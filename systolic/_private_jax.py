"""All that is taken from JAX's private modules, in one file.

JAX moves and renames these names without notice. Each is looked up when it is needed: where it is gone, the caller gets
``None`` and does without, or the error that says which versions are known to work.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

CHECKED = ("0.10.2", "0.12.0")
"""The oldest and the newest JAX with which every name of this file was checked."""


class CallbackLowering(NamedTuple):
    """How JAX lowers a host callback to transfers: three functions of ``jax._src.callback``."""

    op_sharding: Any
    send_to_host: Any
    receive_from_host: Any


def callback_lowering() -> CallbackLowering | None:
    """The functions that turn a host callback into transfers; ``None`` where this JAX has them no more."""
    found = [
        _find("jax._src.callback", name) for name in ("_callback_op_sharding", "send_to_host", "receive_from_host")
    ]
    return None if None in found else CallbackLowering(*found)


def tracer_class() -> type | None:
    """The class of traced values, if its ``sharding`` is a property that can be replaced; else ``None``."""
    found = _find("jax._src.core", "Tracer")
    return found if isinstance(found, type) and isinstance(found.__dict__.get("sharding"), property) else None


def user_line(source_info: Any) -> str | None:
    """``file:line`` of the user's code that an equation came from; ``None`` where JAX does not tell."""
    user_frame = _find("jax._src.source_info_util", "user_frame")
    traceback = getattr(source_info, "traceback", None)
    if user_frame is None or traceback is None:
        return None
    frame = user_frame(traceback)
    return None if frame is None else f"{frame.file_name}:{frame.start_line}"


def num_processes() -> int | None:
    """Processes of a distributed run before JAX has listed its devices; ``None`` where JAX does not tell.

    ``jax.process_count()`` tells, too, but lists the devices first, after which their number is fixed.
    """
    state = _find("jax._src.distributed", "global_state")
    return getattr(state, "num_processes", None)


def what_was_checked() -> str:
    """For errors: ``"JAX 0.13.0 is installed; this was checked with 0.10.2 to 0.12.0"``."""
    import jax

    return f"JAX {jax.__version__} is installed; this was checked with {CHECKED[0]} to {CHECKED[1]}"


def _find(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
