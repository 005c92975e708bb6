"""Flax NNX: ``model=lambda rngs: ResNet(classes=10, rngs=rngs)``.

The function is called under abstract evaluation once per process, to learn the module's graph, and once in the
initialisation program. Afterwards a module is only ever put together from arrays while a program is traced, so the
cost of walking an NNX graph is paid per compile, not per step.

``nnx.Param`` variables of floating point become params. All others (batch statistics, counters, caches, plain array
attributes) become model state, except random streams: these are seeded again at each bind from the step's key.
In TRAIN the module has had ``.train()`` called on it, else ``.eval()``. To keep a part frozen, call
``model.backbone.eval()`` in the model function.
"""

from __future__ import annotations

import dataclasses
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

_PARAM, _STATE, _RANDOM = "params", "model_state", "random"
Path = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """One variable of the module: which group it belongs to, what it holds, and its type."""

    group: str
    shape: jax.ShapeDtypeStruct
    kind: type

    @property
    def is_batch_statistic(self) -> bool:
        from flax import nnx

        return self.group == _STATE and issubclass(self.kind, nnx.BatchStat)


@dataclasses.dataclass(frozen=True)
class _Skeleton:
    """The module without its arrays. ``leaves`` is keyed by NNX's own paths, whose list indices are ints."""

    graphdef: Any
    leaves: dict[Path, _Leaf]

    def paths(self, group: str) -> dict[tuple[str, ...], Path]:
        return {_names(path): path for path, leaf in self.leaves.items() if leaf.group == group}


class NNXAdapter:
    """Adapter for a function ``rngs -> nnx.Module``; see the module's text."""

    def __init__(self, build: Callable[..., Any]):
        self._build = build
        self._skeleton: _Skeleton | None = None

    def init(self, key: jax.Array, run: Callable[[Any], None]) -> tuple[PyTree, PyTree]:
        module = self._make(typed_key(key))
        if self._skeleton is None:
            self._skeleton = _skeleton_of(module)
        skeleton = self._skeleton
        values = {path: _value(leaf) for path, leaf in _state(module)}
        return tuple(
            nested({name: values[path] for name, path in skeleton.paths(group).items()}) for group in (_PARAM, _STATE)
        )

    def bind(self, params: PyTree, model_state: PyTree, mode: Mode, key: jax.Array | None = None) -> Any:
        from flax import nnx

        skeleton, key = self._known_skeleton(), typed_key(key)
        values: dict[Path, Any] = {}
        for group, tree in ((_PARAM, params), (_STATE, model_state)):
            paths, arrays = skeleton.paths(group), flat(tree)
            check_names(group, arrays, paths)
            values |= {paths[name]: array for name, array in arrays.items()}
        for name, path in skeleton.paths(_RANDOM).items():
            values[path] = _random(skeleton.leaves[path].shape, key, name)
        module = nnx.merge(skeleton.graphdef, nnx.from_flat_state(values))
        _normalise_narrowly(module, jax.tree.leaves(params))
        module.train() if mode is Mode.TRAIN else module.eval()
        return module

    def unbind(self, bound: Any) -> PyTree:
        values = {path: _value(leaf) for path, leaf in _state(bound)}
        skeleton = self._known_skeleton()
        paths = skeleton.paths(_STATE)
        gone = [name for name, path in paths.items() if path not in values]
        if gone:
            raise InputError(
                f"model: model_fn removed the variable {'/'.join(gone[0])}. The model's variables must stay those that "
                "its constructor made."
            )
        self._refuse_new_variables(bound)
        before = nested({name: skeleton.leaves[path].shape for name, path in paths.items()})
        return keep_structure(before, nested({name: values[path] for name, path in paths.items()}), _STATE)

    def has_batch_statistics(self, model_state: PyTree) -> bool:
        return any(leaf.is_batch_statistic for leaf in self._known_skeleton().leaves.values())

    def _refuse_new_variables(self, bound: Any) -> None:
        from flax import nnx

        known = self._known_skeleton().leaves
        for path, leaf in _state(bound):
            # What a module sows is for reading within the call; it is not carried over.
            if path not in known and not isinstance(leaf, nnx.Intermediate | nnx.Perturbation):
                raise InputError(
                    f"model: model_fn created the variable {'/'.join(_names(path))} ({type(leaf).__name__}), which the "
                    "constructor had not made; it would be lost after the step. Create it in the constructor."
                )

    def _make(self, key: jax.Array) -> Any:
        from flax import nnx

        # A partitioning written on a variable is a wish of the model's; the program's layout decides. NNX would
        # apply it at once, and so ask for a mesh with those axes even on one device.
        with nnx.use_eager_sharding(False):
            module = self._build(rngs=nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise InputError(f"model: the function of rngs returned {type(module).__name__}, wanted an nnx.Module.")
        for _, node in nnx.iter_graph(module):
            if isinstance(node, nnx.Pytree):
                _mark_arrays(node)
        return module

    def _known_skeleton(self) -> _Skeleton:
        if self._skeleton is None:
            self._skeleton = self._trace_skeleton()
        return self._skeleton

    def _trace_skeleton(self) -> _Skeleton:
        found: list[_Skeleton] = []

        def trace(data: jax.Array) -> None:
            found.append(_skeleton_of(self._make(jax.random.wrap_key_data(data))))

        jax.eval_shape(trace, jax.random.key_data(jax.random.key(0)))
        return found[0]


def _skeleton_of(module: Any) -> _Skeleton:
    from flax import nnx

    graphdef = nnx.graphdef(module)
    _refuse_hidden_arrays(graphdef)
    return _Skeleton(graphdef, {path: _describe(leaf) for path, leaf in _state(module)})


def _state(module: Any) -> Any:
    """Pairs of path and Variable (or bare array)."""
    from flax import nnx

    return nnx.to_flat_state(nnx.state(module))


def _mark_arrays(node: Any) -> None:
    """Have NNX treat bare array attributes as data also while tracing, where it would take a tracer for static."""
    from flax import nnx

    for name, value in list(vars(node).items()):
        if isinstance(value, jax.Array):
            setattr(node, name, nnx.data(value))


def _normalise_narrowly(module: Any, params: list[Any]) -> None:
    """Batch normalisation computes in the params' dtype where that is narrow and the module names none of its own.

    NNX takes the widest of input, params and running statistics. These stay float32, and so would everything behind
    the first normalisation. The statistics of the batch are computed in float32 all the same.
    """
    from flax import nnx

    dtypes = {jnp.dtype(x.dtype) for x in params}
    if len(dtypes) != 1 or (dtype := dtypes.pop()).itemsize >= 4:
        return
    for _, node in nnx.iter_graph(module):
        if isinstance(node, nnx.BatchNorm) and node.dtype is None:
            node.dtype = dtype


def _refuse_hidden_arrays(graphdef: Any) -> None:
    for name, attribute in graphdef.attributes:
        for leaf in jax.tree.leaves(getattr(attribute, "value", None)):
            if isinstance(leaf, jax.core.Tracer):
                raise InputError(
                    f"model: the attribute {name!r} holds a JAX array where NNX keeps constants. Make it a NumPy "
                    "array, an nnx.Variable, or wrap the container in nnx.data(...) or nnx.List(...)."
                )


def _value(leaf: Any) -> Any:
    from flax import nnx

    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf


def _describe(leaf: Any) -> _Leaf:
    from flax import nnx

    value = jnp.asarray(_value(leaf))
    if isinstance(leaf, nnx.RngState) or jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        group = _RANDOM
    elif isinstance(leaf, nnx.Param) and jnp.issubdtype(value.dtype, jnp.inexact):
        group = _PARAM
    else:
        group = _STATE
    return _Leaf(group, jax.ShapeDtypeStruct(value.shape, value.dtype), type(leaf))


def _random(shape: jax.ShapeDtypeStruct, key: jax.Array, name: tuple[str, ...]) -> jax.Array:
    """A stream's key (or keys, if the module is vmapped), or its counter, at the start of a call."""
    if not jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        return jnp.zeros(shape.shape, shape.dtype)
    stream = fold_name(key, "/".join(name))
    return jax.random.split(stream, shape.shape) if shape.shape else stream


def _names(path: Path) -> tuple[str, ...]:
    return tuple(str(part) for part in path)
