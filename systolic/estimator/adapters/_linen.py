"""Flax Linen: ``model=MyModule(...)``, an instance of ``flax.linen.Module``.

In the model function ``model(x, ...)`` is ``module.apply``, and ``model.encode(x)`` is ``module.apply`` with that
method. Linen takes the mode as an argument, so it is passed on as the module wants it, for example
``model(x, train=mode is sl.Mode.TRAIN)`` or ``deterministic=mode is not sl.Mode.TRAIN``.

The collection ``params`` becomes params, all others become model state; they may change in TRAIN only. What a module
sows is not state: ask for it in the call, ``out, sown = model(x, mutable=["intermediates"])``.

In TRAIN every random stream exists. In EVAL and PREDICT only those named in ``linen(module, rngs=("sample",))`` do, so
a dropout that was left on is an error and not a wrong number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from systolic._errors import InputError
from systolic.estimator._mode import Mode
from systolic.estimator.adapters._protocol import PyTree, check_arrays, fold_name, keep_structure, typed_key


class LinenAdapter:
    """Adapter for a ``flax.linen.Module``; rngs names the random streams that exist in EVAL and PREDICT, too."""

    def __init__(self, module: Any, rngs: Iterable[str] = ()):
        self._module = module
        self._rngs = tuple(rngs)

    def init(self, key: jax.Array, run: Callable[[Any], None]) -> tuple[PyTree, PyTree]:
        bound = LinenModel(self._module, {}, Mode.TRAIN, typed_key(key), self._rngs, initialise=True)
        run(bound)
        if not bound.variables:
            raise InputError("model: model_fn did not call `model`, so Linen could not make its variables. Call it.")
        state = {name: tree for name, tree in bound.variables.items() if name != "params"}
        params = bound.variables.get("params", {})
        check_arrays(params, state)
        return params, state

    def bind(self, params: PyTree, model_state: PyTree, mode: Mode, key: jax.Array | None = None) -> LinenModel:
        variables = {"params": params, **model_state}
        return LinenModel(self._module, variables, mode, typed_key(key), self._rngs)

    def unbind(self, bound: LinenModel) -> PyTree:
        return bound.state

    def has_batch_statistics(self, model_state: PyTree) -> bool:
        return bool(jax.tree.leaves(model_state.get("batch_stats", {})))


class LinenModel:
    """What the model function gets: the module with its variables; see the module's text.

    Attributes: ``params``, and ``variables``, the dict of all collections as they stand now.
    """

    def __init__(
        self,
        module: Any,
        variables: Mapping[str, PyTree],
        mode: Mode,
        key: jax.Array,
        rngs: tuple[str, ...],
        initialise: bool = False,
    ):
        self._module, self._mode, self._key, self._rngs = module, mode, key, rngs
        self._initialise = initialise
        self._calls = 0
        self.variables = dict(variables)

    def __call__(self, *args: Any, mutable: Any = (), **kwargs: Any) -> Any:
        from flax import errors

        asked = {mutable} if isinstance(mutable, str) else set(mutable)
        try:
            out, changed = self._run(args, kwargs, asked)
        except errors.InvalidRngError as error:
            raise InputError(
                f"model: in mode {self._mode.name} the module asked for a random stream that does not exist there "
                f"({error}). Turn dropout off with deterministic=(mode is not sl.Mode.TRAIN), or, if this mode really "
                'needs randomness, name the stream: model=linen(module, rngs=("sample",)).'
            ) from error
        return (out, {name: tree for name, tree in changed.items() if name in asked}) if asked else out

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are not our own; "_module" itself is missing while copying or unpickling.
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._module, name)
        if not callable(value):
            return value
        return lambda *args, **kwargs: self(*args, method=name, **kwargs)

    @property
    def params(self) -> PyTree:
        return self.variables["params"]

    @property
    def state(self) -> dict[str, PyTree]:
        return {name: tree for name, tree in self.variables.items() if name != "params"}

    def _run(self, args: Any, kwargs: Any, asked: set[str]) -> tuple[Any, Mapping[str, PyTree]]:
        from flax.core import meta, unfreeze

        rngs = self._streams()
        if self._initialise:
            # A second call (two towers, two methods) may make more variables; the first value of each one stays.
            out, made = self._module.init_with_output(rngs, *args, **kwargs)
            made = meta.unbox(unfreeze(made))
            kept = {name: tree for name, tree in made.items() if not _sown(tree)}
            self.variables = _merge(kept, self.variables)
            return out, made
        moving = set(self.state) if self._mode is Mode.TRAIN else set()
        mutable = sorted(moving | asked)
        result = self._module.apply(self.variables, *args, rngs=rngs, mutable=mutable or False, **kwargs)
        out, changed = result if mutable else (result, {})
        changed = meta.unbox(unfreeze(changed))
        for name in moving & changed.keys():
            self.variables[name] = keep_structure(self.variables[name], changed[name], name)
        return out, changed

    def _streams(self) -> dict[str, jax.Array]:
        # Linen draws from "params" for any stream that is not given.
        names = {*self._rngs, *(("params", "dropout") if self._mode is Mode.TRAIN else ())}
        # The first call of initialisation uses the key as it is; all calls there agree on names they share.
        key = self._key if self._initialise else jax.random.fold_in(self._key, self._calls)
        self._calls += 1
        return {name: fold_name(key, name) for name in sorted(names)}


def _sown(tree: PyTree) -> bool:
    """Whether a collection was sown: sow stores tuples, and nothing else in Linen does."""
    return any(isinstance(node, tuple) for node in jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, tuple)))


def _merge(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Union of nested dicts; where both have a leaf, that of ``old``."""
    merged = dict(new)
    for name, value in old.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merge(merged[name], value) if both else value
    return merged
