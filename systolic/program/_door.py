"""Values on their way into a program: none may change unseen when JAX turns 64 bits into 32.

JAX wraps an int64 that does not fit int32 and makes a large float64 infinite, without a word. Arrays on a device have
passed already, so the door looks at what comes from the host only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import tree_leaves

from systolic._errors import InputError
from systolic._ranges import first_misfit, limits_of
from systolic.program._signature import leaf_names

_HOST = (np.ndarray, np.generic, int, float, complex)
_WIDE = frozenset({"int64", "uint64", "float64", "complex128"})
_NOTHING = np.zeros(0, np.bool_)


class Door:
    """Looks at the arguments of the calls of one program.

    Args:
        program: its name.
        names: of its arguments.
    """

    def __init__(self, program: str, names: Sequence[str]) -> None:
        self._program = program
        self._names = names
        self._device = frozenset([type(jax.device_put(np.float32(0)))])  # the class of arrays that lie on a device

    def admit(self, args: Sequence[Any]) -> None:
        """Refuse values that their 32-bit type cannot hold.

        Raises:
            InputError: it names the argument, the value, the limits, and what to do.
        """
        device = self._device
        for arg in args:
            if type(arg) not in device and not device.issuperset(map(type, tree_leaves(arg))):
                self._look(args)
                return

    def _look(self, args: Sequence[Any]) -> None:
        for i, leaf in enumerate(tree_leaves(tuple(args))):
            array = np.asarray(leaf) if isinstance(leaf, _HOST) and not isinstance(leaf, bool) else _NOTHING
            # Python's integers become what NumPy's default integers become, even where they need more than 64 bits.
            seen = np.dtype(np.int64) if isinstance(leaf, int) else array.dtype
            if seen.name not in _WIDE or (wanted := np.dtype(jax.dtypes.canonicalize_dtype(seen))) == array.dtype:
                continue
            if (index := first_misfit(array, wanted)) is not None:
                path = leaf_names(args, self._names)[i]
                place = f" at [{', '.join(map(str, index))}]" if index else ""
                raise InputError(
                    f"program {self._program!r}: argument {path}: the value {array[index]}{place} does not fit {wanted}, "
                    f"into which JAX turns {seen} and which holds {limits_of(wanted)}; map or scale the values into that "
                    "range, or set JAX_ENABLE_X64=1 for programs of 64 bits"
                )
