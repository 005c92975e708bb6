"""A model without a library: a pair of pure functions, ``model=(init, apply)``.

``init(key)`` returns params; ``model(x, ...)`` in the model function is ``apply(params, x, ...)``. With state,
``plain(init, apply, stateful=True)``: ``init(key)`` returns ``(params, state)`` and ``apply(params, state, x, ...)``
returns ``(out, state)``, of which the model function sees ``out``; the new state is kept in TRAIN.

Mode and randomness are arguments like any other: take ``mode`` and ``key`` in the model function and pass them on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from systolic._errors import InputError
from systolic.estimator._mode import Mode
from systolic.estimator.adapters._protocol import PyTree, check_arrays, keep_structure, typed_key


class PlainAdapter:
    """Adapter for ``(init, apply)``; see the module's text.

    batch_statistics: whether the state holds statistics over the batch, which padding would spoil; None takes it for
    granted that a state with floating-point leaves does.
    """

    def __init__(
        self,
        init: Callable[..., Any],
        apply: Callable[..., Any],
        stateful: bool = False,
        batch_statistics: bool | None = None,
    ):
        self._init, self._apply = init, apply
        self._stateful = stateful
        self._batch_statistics = batch_statistics

    def init(self, key: jax.Array, run: Callable[[Any], None]) -> tuple[PyTree, PyTree]:
        made = self._init(typed_key(key))
        if not self._stateful:
            params, state = made, {}
        elif isinstance(made, tuple) and len(made) == 2:
            params, state = made
        else:
            raise InputError(
                f"model: plain(stateful=True): init returned {type(made).__name__}, wanted the tuple (params, state)."
            )
        check_arrays(params, state)
        return params, state

    def bind(self, params: PyTree, model_state: PyTree, mode: Mode, key: jax.Array | None = None) -> PlainModel:
        return PlainModel(self._apply, params, model_state, self._stateful, mode)

    def unbind(self, bound: PlainModel) -> PyTree:
        return bound.state

    def has_batch_statistics(self, model_state: PyTree) -> bool:
        if self._batch_statistics is not None:
            return self._batch_statistics
        return any(jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating) for leaf in jax.tree.leaves(model_state))


class PlainModel:
    """What the model function gets: call it for the output. Attributes: ``params`` and ``state`` as it stands now."""

    def __init__(self, apply: Callable[..., Any], params: PyTree, state: PyTree, stateful: bool, mode: Mode):
        self._apply, self._stateful, self._mode = apply, stateful, mode
        self.params, self.state = params, state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._stateful:
            return self._apply(self.params, *args, **kwargs)
        result = self._apply(self.params, self.state, *args, **kwargs)
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError(
                f"model: plain(stateful=True): apply returned {type(result).__name__}, wanted the tuple (out, state)."
            )
        out, state = result
        if self._mode is Mode.TRAIN:
            self.state = keep_structure(self.state, state, "state")
        return out
