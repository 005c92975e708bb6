"""A small state as one vector per dtype: an array costs host time at each dispatch, in and out, whatever its size.

A step of a small model takes tens of microseconds, of which a dozen arrays of parameters and optimizer state take a third.
Packed, they are one or two; inside the program the slices fuse with what reads them.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

_MOST_BYTES = 256 << 10  # beyond it, the copies into and out of the vector cost more than the arrays do
_FEWEST_LEAVES = 4

Vectors = dict[str, jax.Array]
"""By dtype name, all elements of the leaves of that dtype, in the order of the tree."""


class Packing:
    """Packs trees of one structure, shapes and dtypes; :meth:`pack` and :meth:`unpack` may be called while tracing.

    Args:
        structs: the tree's shapes and dtypes.
    """

    def __init__(self, structs: Any) -> None:
        self._leaves, self._tree = jax.tree.flatten(structs)

    @property
    def pays(self) -> bool:
        """Whether the state is small enough, and in enough pieces, for packing to save time."""
        leaves = self._leaves
        if any(jnp.issubdtype(x.dtype, jax.dtypes.extended) for x in leaves):
            return False
        return len(leaves) >= _FEWEST_LEAVES and sum(x.size * x.dtype.itemsize for x in leaves) <= _MOST_BYTES

    def pack(self, tree: Any) -> Vectors:
        """The vectors of ``tree``; bits are kept."""
        parts: dict[str, list[jax.Array]] = {}
        for x in jax.tree.leaves(tree):
            parts.setdefault(x.dtype.name, []).append(x.reshape(-1))
        return {dtype: jnp.concatenate(pieces) for dtype, pieces in parts.items()}

    def unpack(self, vectors: Vectors) -> Any:
        """The tree again."""
        done = dict.fromkeys(vectors, 0)
        leaves = []
        for struct in self._leaves:
            name, size = struct.dtype.name, math.prod(struct.shape)
            leaves.append(vectors[name][done[name] : done[name] + size].reshape(struct.shape))
            done[name] += size
        return jax.tree.unflatten(self._tree, leaves)


class HeldState:
    """A state that is a tree or packed, as it was given last, and becomes the other when somebody asks."""

    def __init__(self) -> None:
        self._tree: Any = None
        self._vectors: Vectors | None = None
        self._unpack: Any = None

    @property
    def tree(self) -> Any:
        """The tree, or ``None`` before there is a state. RuntimeError if a call that failed had taken the vectors over."""
        if self._vectors is not None:
            self._tree, self._vectors = self._unpack(self._vectors), None
        return self._tree

    @tree.setter
    def tree(self, tree: Any) -> None:
        self._tree, self._vectors = tree, None

    def vectors(self, packing: Packing) -> Vectors:
        """The state packed, to be given to a program that takes it over."""
        if self._vectors is None:
            self._unpack = jax.jit(packing.unpack)
            self._tree, self._vectors = None, jax.jit(packing.pack)(self._tree)
        return self._vectors

    def give(self, vectors: Vectors) -> None:
        """What the program returned; after :meth:`vectors`."""
        self._vectors = vectors
