"""The contract between the estimator and a model library, and the few helpers every adapter needs.

An adapter turns "a model" into pure functions over two pytrees of plain arrays: ``params``, which the optimizer
changes, and ``model_state``, which the forward pass changes (batch statistics, counters). Whatever else a library
keeps (modules, graph definitions, random streams) stays inside the adapter and never enters a checkpoint.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from systolic._errors import InputError
from systolic.estimator._mode import Mode

PyTree = Any


@runtime_checkable
class Adapter(Protocol):
    """A model as pure functions. Every method may be traced by jit, grad, vmap and eval_shape."""

    def init(self, key: jax.Array, run: Callable[[Any], None]) -> tuple[PyTree, PyTree]:
        """Fresh ``(params, model_state)``: nested dicts (or pytrees) of arrays, with readable, unique names.

        key: a PRNG key (typed, or raw uint32 key data). run: calls the model function on an example batch with the
        object it is given; only libraries that learn their shapes from a call use it.
        """

    def bind(self, params: PyTree, model_state: PyTree, mode: Mode, key: jax.Array | None = None) -> Any:
        """The object that the model function gets as ``model``, set to training or evaluation behaviour.

        Works without an earlier :meth:`init` in this process, on arrays that come from a checkpoint. key: source of
        the randomness of this call. Equal keys give equal randomness: nothing random is carried from call to call,
        which is what makes a resumed run exact.
        """

    def unbind(self, bound: Any) -> PyTree:
        """The model state after the model function has run, of the structure that :meth:`init` gave."""

    def has_batch_statistics(self, model_state: PyTree) -> bool:
        """Whether padding in a training batch would leak into the state (batch normalisation)."""


def typed_key(key: jax.Array | None) -> jax.Array:
    """A typed PRNG key from a typed one, raw key data ``uint32[..., n]``, or None (a constant)."""
    if key is None:
        return jax.random.key(0)
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    return jax.random.wrap_key_data(key)


def fold_name(key: jax.Array, name: str) -> jax.Array:
    """A key for the stream ``name``: the same in every process, whatever other streams the model has."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def nested(flat: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """``{("a", "b"): x}`` as ``{"a": {"b": x}}``."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = leaf
    return tree


def flat(tree: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Inverse of :func:`nested`; anything but a mapping is a leaf."""
    leaves: dict[tuple[str, ...], Any] = {}
    for name, value in tree.items():
        leaves |= flat(value, (*prefix, name)) if isinstance(value, Mapping) else {(*prefix, name): value}
    return leaves


def check_names(kind: str, seen: Mapping[tuple[str, ...], Any], wanted: Mapping[tuple[str, ...], Any]) -> None:
    """InputError listing the differing leaves unless both have the same paths."""
    missing, extra = wanted.keys() - seen.keys(), seen.keys() - wanted.keys()
    if missing or extra:
        parts = [
            f"{label}: {', '.join(sorted('/'.join(path) for path in paths))}"
            for label, paths in (("missing", missing), ("not in the model", extra))
            if paths
        ]
        raise InputError(
            f"{kind}: the leaves are not those of the model ({'; '.join(parts)}). They come from another model; "
            "initialise again, or build the model with the settings they were made with."
        )


def check_arrays(params: PyTree, model_state: PyTree) -> None:
    """InputError unless params are floating-point arrays and the state holds arrays that a checkpoint can store."""
    for kind, tree in (("params", params), ("model_state", model_state)):
        seen: set[str] = set()
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            dtype = getattr(leaf, "dtype", None)
            name = "/".join([kind, *(str(getattr(p, "key", getattr(p, "idx", getattr(p, "name", p)))) for p in path)])
            if name in seen:
                raise InputError(f"{name}: two arrays have this path, of which one has a '/' in a key; rename that key")
            seen.add(name)
            if dtype is None:
                raise InputError(f"{name}: got {type(leaf).__name__}, wanted an array. Wrap it with jnp.asarray.")
            if jnp.issubdtype(dtype, jax.dtypes.prng_key):
                raise InputError(
                    f"{name}: got a PRNG key, wanted a plain array. Take randomness from the `key` that model_fn is "
                    "given: it is fresh at every step and the same after a resume."
                )
            if kind == "params" and not jnp.issubdtype(dtype, jnp.inexact):
                raise InputError(
                    f"{name}: got dtype {dtype}, wanted floating point, since params are differentiated. Keep it in "
                    "the model state, or make it a constant of the model."
                )


def keep_structure(old: PyTree, new: PyTree, what: str) -> PyTree:
    """``new`` in the dtypes of ``old`` (a model run in bfloat16 keeps float32 statistics).

    InputError naming the leaf unless structure and shapes are the same: state that changes them cannot be carried
    through a compiled loop.
    """
    if jax.tree.structure(old) != jax.tree.structure(new):
        raise InputError(
            f"model: the forward pass changed the structure of {what}: was {jax.tree.structure(old)}, became "
            f"{jax.tree.structure(new)}. State must keep the structure that initialisation gave it."
        )

    def keep(path: Any, before: Any, after: Any) -> Any:
        if jnp.shape(before) != jnp.shape(after):
            raise InputError(
                f"model: the forward pass changed the shape of {what}{jax.tree_util.keystr(path)}: was "
                f"{jnp.shape(before)}, became {jnp.shape(after)}. State must keep its shapes."
            )
        return jnp.asarray(after).astype(before.dtype)

    return jax.tree_util.tree_map_with_path(keep, old, new)
