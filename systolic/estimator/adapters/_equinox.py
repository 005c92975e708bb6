"""Equinox: ``model=equinox(lambda key: eqx.nn.MLP(4, 2, 64, 2, key=key))``.

The function returns a Module, or ``(Module, State)`` as from ``eqx.nn.make_with_state``. Equinox modules speak of one
example. In the model function, for a module without state, write ``jax.vmap(model)(x)`` as always; or, for every
module, ``model.batched(x)``: it maps over the first axis (named ``"batch"``, which ``eqx.nn.BatchNorm`` asks for),
gives each example its own ``key`` if the module takes one (dropout), and threads the state.

Floating-point arrays become params, named by their path (``layers/0/weight``). State and other arrays become model
state. All else is static. In TRAIN the module is as it was built; in EVAL and PREDICT ``eqx.nn.inference_mode`` has
been applied.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from systolic._errors import InputError
from systolic.estimator._mode import Mode
from systolic.estimator.adapters._protocol import (
    PyTree,
    check_names,
    flat,
    fold_name,
    keep_structure,
    nested,
    typed_key,
)

_PARAM, _STATE, _RANDOM, _STATIC = "params", "model_state", "random", "static"
Name = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Skeleton:
    """The module without its arrays: one entry per leaf in order, and one per state index."""

    treedef: Any
    leaves: list[tuple[Name, str, Any]]  # name; group; the leaf if static, else its shape
    indices: dict[Name, Any]  # where the module keeps an index into its State -> that index
    values: dict[Name, Any]  # the shapes of the State's value there
    stateful: bool
    batch_statistics: bool


class EquinoxAdapter:
    """Adapter for a function ``key -> Module`` or ``key -> (Module, State)``; see the module's text."""

    def __init__(self, build: Callable[..., Any]):
        self._build = build
        self._skeleton: _Skeleton | None = None

    def init(self, key: jax.Array, run: Callable[[Any], None]) -> tuple[PyTree, PyTree]:
        self._known_skeleton()
        module, state = self._make(typed_key(key))
        groups: dict[str, dict[Name, Any]] = {_PARAM: {}, _STATE: {}}
        for path, leaf in jax.tree_util.tree_leaves_with_path(module):
            if (group := _group(leaf)) in groups:
                groups[group][_names(path)] = leaf
        for name, index in _indices(module).items():
            groups[_STATE] |= _named(state.get(index), name)
        return nested(groups[_PARAM]), nested(groups[_STATE])

    def bind(self, params: PyTree, model_state: PyTree, mode: Mode, key: jax.Array | None = None) -> EquinoxModel:
        import equinox as eqx

        skeleton, key = self._known_skeleton(), typed_key(key)
        groups = {_PARAM: flat(params), _STATE: flat(model_state)}
        wanted = {group: {name: None for name, g, _ in skeleton.leaves if g == group} for group in groups}
        for name, value in skeleton.values.items():
            wanted[_STATE] |= _named(value, name)
        for group, arrays in groups.items():
            check_names(group, arrays, wanted[group])

        def leaf(name: Name, group: str, kept: Any) -> Any:
            if group == _RANDOM:
                stream = fold_name(key, "/".join(name))
                return jax.random.split(stream, kept.shape) if kept.shape else stream
            return kept if group == _STATIC else groups[group][name]

        module = jax.tree.unflatten(skeleton.treedef, [leaf(*entry) for entry in skeleton.leaves])
        if mode is not Mode.TRAIN:
            module = eqx.nn.inference_mode(module)
        state = None
        if skeleton.stateful:
            values = {
                index.marker: _filled(skeleton.values[name], name, groups[_STATE])
                for name, index in skeleton.indices.items()
            }
            state = eqx.nn.State.tree_unflatten(tuple(values), tuple(values.values()))
        return EquinoxModel(module, state, mode, key, model_state)

    def unbind(self, bound: EquinoxModel) -> PyTree:
        skeleton = self._known_skeleton()
        if not skeleton.indices:
            return bound.initial_state
        values = flat(bound.initial_state)
        for name, index in skeleton.indices.items():
            values |= _named(bound.state.get(index), name)
        return keep_structure(bound.initial_state, nested(values), "model_state")

    def has_batch_statistics(self, model_state: PyTree) -> bool:
        return self._known_skeleton().batch_statistics

    def _make(self, key: jax.Array) -> tuple[Any, Any]:
        import equinox as eqx

        made = self._build(key=key)
        module, state = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(module, eqx.Module) or not isinstance(state, eqx.nn.State | None):
            raise InputError(
                f"model: the function of key returned {type(made).__name__}, wanted an equinox.Module or the pair "
                "(Module, State) of eqx.nn.make_with_state."
            )
        if state is None and _indices(module):
            raise InputError(
                "model: the Equinox module has state (such as BatchNorm's). Return it as well: "
                "lambda key: eqx.nn.make_with_state(MyModule)(key=key)."
            )
        return module, state

    def _known_skeleton(self) -> _Skeleton:
        if self._skeleton is None:
            found: list[_Skeleton] = []

            def trace(data: jax.Array) -> None:
                found.append(_describe(*self._make(jax.random.wrap_key_data(data))))

            jax.eval_shape(trace, jax.random.key_data(jax.random.key(0)))
            self._skeleton = found[0]
        return self._skeleton


class EquinoxModel:
    """What the model function gets; see the module's text.

    Attributes: ``module``, the Equinox module; ``state``, its State or None. Whoever threads the state by hand
    assigns the last one to ``model.state``.
    """

    def __init__(self, module: Any, state: Any, mode: Mode, key: jax.Array, initial_state: PyTree):
        self.module, self.state, self.initial_state = module, state, initial_state
        self._mode, self._key, self._calls = mode, key, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module applied to one example; for use under ``jax.vmap``."""
        if self.state is not None:
            raise InputError(
                "model: this Equinox module has state, which jax.vmap(model)(x) cannot carry out of the map. Call "
                "model.batched(x) instead, on the whole batch."
            )
        return self.module(*args, **kwargs)

    def batched(self, *args: Any, **kwargs: Any) -> Any:
        """The module applied to each example: positional arguments are ``[batch, ...]``, keywords are shared."""
        parameters = inspect.signature(type(self.module).__call__).parameters
        size = jax.tree.leaves(args)[0].shape[0]
        keys = {}
        if "key" in parameters and "key" not in kwargs:
            keys = {"key": jax.random.split(jax.random.fold_in(self._key, self._calls), size)}
        self._calls += 1
        if self.state is None:
            return jax.vmap(lambda args, keys: self.module(*args, **keys, **kwargs), axis_name="batch")(args, keys)

        def one(args: Any, state: Any, keys: Any) -> Any:
            if "state" in parameters:
                return self.module(*args, state=state, **keys, **kwargs)
            return self.module(*args, state, **keys, **kwargs)

        run = jax.vmap(one, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
        out, state = run(args, self.state, keys)
        if self._mode is Mode.TRAIN:
            self.state = state
        return out

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "module":
            raise AttributeError(name)
        return getattr(self.module, name)


def _describe(module: Any, state: Any) -> _Skeleton:
    import equinox as eqx

    paths, treedef = jax.tree_util.tree_flatten_with_path(module)
    leaves = []
    for path, leaf in paths:
        group = _group(leaf)
        kept = leaf if group == _STATIC else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        leaves.append((_names(path), group, kept))
    indices = _indices(module)
    values = {
        name: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state.get(index))
        for name, index in indices.items()
    }
    # Spectral normalisation iterates on the weights and never looks at the batch; of any other floating-point state it
    # must be assumed that it does.
    suspects = [leaf for name in _indices(module, (eqx.nn.SpectralNorm,)) for leaf in jax.tree.leaves(values[name])]
    statistics = any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in suspects)
    return _Skeleton(treedef, leaves, indices, values, state is not None, statistics)


def _group(leaf: Any) -> str:
    import equinox as eqx

    if eqx.is_inexact_array(leaf):
        return _PARAM
    if not eqx.is_array(leaf):
        return _STATIC
    return _RANDOM if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else _STATE


def _indices(module: Any, skip: tuple[type, ...] = ()) -> dict[Name, Any]:
    """The module's indices into its State, by their place in it, leaving out those inside ``skip``."""
    import equinox as eqx

    kinds = (eqx.nn.StateIndex, *skip)
    nodes = jax.tree_util.tree_leaves_with_path(module, is_leaf=lambda node: isinstance(node, kinds))
    return {_names(path): node for path, node in nodes if isinstance(node, eqx.nn.StateIndex)}


def _named(value: PyTree, prefix: Name) -> dict[Name, Any]:
    return {(*prefix, *_names(path)): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(value)}


def _filled(shapes: PyTree, prefix: Name, arrays: dict[Name, Any]) -> PyTree:
    return jax.tree_util.tree_map_with_path(lambda path, _: arrays[(*prefix, *_names(path))], shapes)


def _names(path: tuple[Any, ...]) -> Name:
    return tuple(str(getattr(p, "name", getattr(p, "key", getattr(p, "idx", p)))) for p in path)
