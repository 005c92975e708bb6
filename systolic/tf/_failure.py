"""What TensorFlow says of a graph that failed, without the stacks that it prints twice."""

from __future__ import annotations

import re
import sys
from typing import Any

from systolic._errors import InputError
from systolic._source import is_users_file

_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


def graph_error(error: BaseException) -> InputError | None:
    """The error to show in place of ``error``: node, reason and the script's line; ``None`` where it is of another kind."""
    errors: Any = sys.modules.get("tensorflow.python.framework.errors_impl")
    if errors is None or not isinstance(error, errors.OpError) or "Node: " not in str(error):
        return None
    text = str(error)
    told = text.partition("Node: ")[2].partition("\nOriginal stack trace")[0]
    node, _, reason = told.partition("\n")
    reason = "\n".join(line for line in reason.splitlines() if line.strip() and "[[" not in line)
    places = [f"{file}:{line}" for file, line in _PLACE.findall(text.partition("Node: ")[0]) if is_users_file(file)]
    where = f" ({places[-1]})" if places else ""
    advice = ""
    if isinstance(error, errors.OutOfRangeError):
        advice = "; the data end before the steps do: let input_fn repeat them, or ask for fewer steps"
    return InputError(f"{type(error).__name__} at {node.strip()}{where}: {reason.strip()}{advice}")
