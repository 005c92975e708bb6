"""Weight decay apart from the gradient (Loshchilov and Hutter, 2017), for any optimizer of TensorFlow 1."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from systolic.tf._tensorflow import tensorflow


class DecoupledWeightDecayExtension:
    """To be the first base of a class whose second one is an optimizer: variables shrink before each update.

    Args:
        weight_decay: number, tensor, or a function that gives one: the part of a variable that goes with each update. It
            is not multiplied with the learning rate.
    """

    def __init__(self, weight_decay: Any, **arguments: Any) -> None:
        self._weight_decay = weight_decay
        self._decayed: set[str] | None = None
        self._asked: Any = None
        super().__init__(**arguments)

    def minimize(self, *arguments: Any, decay_var_list: Any = None, **more: Any) -> Any:
        """As the optimizer's; ``decay_var_list`` are the variables that decay, by default all."""
        self._asked = decay_var_list
        try:
            return super().minimize(*arguments, **more)  # type: ignore[misc]
        finally:
            self._asked = None

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None, decay_var_list: Any = None
    ) -> Any:
        """As the optimizer's; ``decay_var_list`` are the variables that decay, by default all."""
        listed = decay_var_list or self._asked
        self._decayed = {variable.name for variable in listed} if listed else None
        return super().apply_gradients(grads_and_vars, global_step=global_step, name=name)  # type: ignore[misc]

    def _shrunk(self, variable: Any, indices: Any = None) -> Any:
        """A context after the decay of the variable, or of its rows."""
        tf = tensorflow().compat.v1
        if self._decayed is not None and variable.name not in self._decayed:
            return tf.control_dependencies([])
        amount = self._weight_decay() if callable(self._weight_decay) else self._weight_decay
        amount = tf.cast(amount, variable.dtype.base_dtype)
        if indices is None:
            done = tf.assign_sub(variable, amount * variable)
        else:
            # Set, not subtracted: a row may be listed twice.
            done = tf.scatter_update(variable, indices, (1 - amount) * tf.gather(variable, indices))
        return tf.control_dependencies([done])

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        with self._shrunk(var):
            return super()._apply_dense(grad, var)  # type: ignore[misc]

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        with self._shrunk(var):
            return super()._resource_apply_dense(grad, var)  # type: ignore[misc]

    # Below these two some optimizers have _apply_sparse, others not.

    def _apply_sparse_duplicate_indices(self, grad: Any, var: Any) -> Any:
        with self._shrunk(var, grad.indices):
            return super()._apply_sparse_duplicate_indices(grad, var)  # type: ignore[misc]

    def _resource_apply_sparse_duplicate_indices(self, grad: Any, handle: Any, indices: Any) -> Any:
        with self._shrunk(handle, indices):
            return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)  # type: ignore[misc]


def extend_with_decoupled_weight_decay(base_optimizer: Any) -> Any:
    """A class as ``base_optimizer``, whose first argument is the weight decay."""

    class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecayExtension, base_optimizer):  # type: ignore[misc]
        """The optimizer, and the decay."""

        def __init__(self, weight_decay: Any, *arguments: Any, **more: Any) -> None:
            super().__init__(weight_decay, **_named(base_optimizer, arguments), **more)

    return OptimizerWithDecoupledWeightDecay


def _named(optimizer: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    names = [name for name in inspect.signature(optimizer.__init__).parameters if name != "self"]
    return dict(zip(names, arguments, strict=False))


@functools.cache
def adam_w() -> Any:
    """The class ``AdamWOptimizer``."""

    tf = tensorflow().compat.v1

    class AdamWOptimizer(DecoupledWeightDecayExtension, tf.train.AdamOptimizer):  # type: ignore[misc,name-defined]
        """Adam with decoupled weight decay."""

        def __init__(
            self,
            weight_decay: Any,
            learning_rate: Any = 0.001,
            beta1: Any = 0.9,
            beta2: Any = 0.999,
            epsilon: Any = 1e-8,
            use_locking: bool = False,
            name: str = "AdamW",
        ) -> None:
            super().__init__(
                weight_decay,
                learning_rate=learning_rate,
                beta1=beta1,
                beta2=beta2,
                epsilon=epsilon,
                use_locking=use_locking,
                name=name,
            )

    return AdamWOptimizer


@functools.cache
def momentum_w() -> Any:
    """The class ``MomentumWOptimizer``."""

    tf = tensorflow().compat.v1

    class MomentumWOptimizer(DecoupledWeightDecayExtension, tf.train.MomentumOptimizer):  # type: ignore[misc,name-defined]
        """Momentum with decoupled weight decay."""

        def __init__(
            self,
            weight_decay: Any,
            learning_rate: Any,
            momentum: Any,
            use_locking: bool = False,
            name: str = "MomentumW",
            use_nesterov: bool = False,
        ) -> None:
            super().__init__(
                weight_decay,
                learning_rate=learning_rate,
                momentum=momentum,
                use_locking=use_locking,
                name=name,
                use_nesterov=use_nesterov,
            )

    return MomentumWOptimizer
