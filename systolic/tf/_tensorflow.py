"""TensorFlow itself: imported here, once, and quietly."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from systolic._errors import InputError

_SETTINGS = {
    "TF_CPP_MIN_LOG_LEVEL": "2",  # errors of its C++ part
    "TF_USE_LEGACY_KERAS": "1",  # Keras 3 knows no graphs of TensorFlow 1
    "CUDA_VISIBLE_DEVICES": "-1",  # devices are JAX's
}


@functools.cache
def tensorflow() -> Any:
    """The module ``tensorflow``; what it writes to stderr while it is imported is dropped, unless that fails.

    Raises:
        InputError: it is not installed, or cannot be imported.
    """
    if "tensorflow" not in sys.modules:
        if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "1":  # JAX sets it, for itself; who wants to hear more says "0"
            del os.environ["TF_CPP_MIN_LOG_LEVEL"]
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
    with _stderr_held() as held:
        try:
            import tensorflow
            from tensorflow.python.eager import context

            context.ensure_initialized()  # looks for devices, and says which it does not find
        except ImportError as error:
            raise InputError(
                f"the TensorFlow front end needs TensorFlow, which cannot be imported ({error}): "
                'pip install "systolic[tensorflow]"' + held()
            ) from error
        tensorflow.get_logger().setLevel("ERROR")
        return tensorflow


@contextlib.contextmanager
def _stderr_held() -> Iterator[Any]:
    """Keep what C++ code writes to stderr; the value is a function that tells it."""
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)

        def held() -> str:
            file.seek(0)
            text = file.read().decode(errors="replace").strip()
            return f"\n{text}" if text else ""

        try:
            yield held
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
