"""Lazy Adam, LARS, and clipping of gradients."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from systolic.tf._tensorflow import tensorflow


@functools.cache
def lazy_adam() -> Any:
    """The class ``LazyAdamOptimizer``."""
    tf = tensorflow().compat.v1

    class LazyAdamOptimizer(tf.train.AdamOptimizer):  # type: ignore[misc,name-defined]
        """Adam that, of a variable with a sparse gradient, changes the rows of the gradient alone, moments included."""

        def _apply_sparse(self, grad: Any, var: Any) -> Any:
            return self._rows(grad.values, var, grad.indices)

        def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
            return self._rows(grad, var, indices)

        def _rows(self, gradient: Any, variable: Any, indices: Any) -> Any:
            kind = variable.dtype.base_dtype
            power1, power2 = (tf.cast(power, kind) for power in self._get_beta_accumulators())
            beta1, beta2 = tf.cast(self._beta1_t, kind), tf.cast(self._beta2_t, kind)
            first, second = self.get_slot(variable, "m"), self.get_slot(variable, "v")
            m = beta1 * tf.gather(first, indices) + (1 - beta1) * gradient
            v = beta2 * tf.gather(second, indices) + (1 - beta2) * gradient * gradient
            rate = tf.cast(self._lr_t, kind) * tf.sqrt(1 - power2) / (1 - power1)
            step = rate * m / (tf.sqrt(v) + tf.cast(self._epsilon_t, kind))
            return tf.group(
                tf.scatter_update(first, indices, m),
                tf.scatter_update(second, indices, v),
                tf.scatter_sub(variable, indices, step),
            )

    return LazyAdamOptimizer


@functools.cache
def lars() -> Any:
    """The class ``LARSOptimizer``."""
    tf = tensorflow().compat.v1

    class LARSOptimizer(tf.train.MomentumOptimizer):  # type: ignore[misc,name-defined]
        """Momentum with a rate for each layer (You, Gitman and Ginsburg, 2017); for sparse gradients plain momentum.

        The rate of a layer is ``learning_rate · eeta · |w| / (|g| + weight_decay · |w| + epsilon)``, and multiplies the
        gradient that the momentum gathers. Variables whose names contain one of ``skip_list`` have the plain rate, and no
        decay.
        """

        _learning_rate_tensor: Any

        def __init__(
            self,
            learning_rate: Any,
            momentum: Any = 0.9,
            weight_decay: float = 0.0001,
            eeta: float = 0.001,
            epsilon: float = 0.0,
            name: str = "LARSOptimizer",
            skip_list: Sequence[str] | None = None,
            use_nesterov: bool = False,
        ) -> None:
            for argument, value in (("momentum", momentum), ("weight_decay", weight_decay)):
                if value < 0:
                    raise ValueError(f"LARSOptimizer({argument}): saw {value}, wanted at least 0")
            super().__init__(learning_rate, momentum, name=name, use_nesterov=use_nesterov)
            self._decay, self._eeta, self._tiny = weight_decay, eeta, epsilon
            self._skip_list = tuple(skip_list or ())

        def _apply_dense(self, grad: Any, var: Any) -> Any:
            return self._with_unit_rate(grad, var, super()._apply_dense)

        def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
            return self._with_unit_rate(grad, var, super()._resource_apply_dense)

        def _with_unit_rate(self, gradient: Any, variable: Any, apply: Any) -> Any:
            """Momentum gathers gradients that are multiplied with the rate already."""
            rate = tf.cast(self._learning_rate_tensor, gradient.dtype)
            if not any(part in variable.name for part in self._skip_list):
                size, slope = tf.norm(variable), tf.norm(gradient)
                trust = self._eeta * size / (slope + self._decay * size + self._tiny)
                rate *= tf.where(tf.logical_and(size > 0, slope > 0), trust, tf.ones_like(trust))
                gradient += self._decay * variable
            kept: Any = self._learning_rate_tensor
            self._learning_rate_tensor = tf.ones([], gradient.dtype)
            try:
                return apply(gradient * rate, variable)
            finally:
                self._learning_rate_tensor = kept

    return LARSOptimizer


def clip_gradients_by_global_norm(gradients_variables: Any, clip_norm: float = 20.0) -> list[tuple[Any, Any]]:
    """Pairs of gradient and variable, with gradients whose norm taken together is at most ``clip_norm``."""
    gradients, variables = zip(*gradients_variables, strict=True)
    clipped, _ = tensorflow().compat.v1.clip_by_global_norm(gradients, clip_norm)
    return list(zip(clipped, variables, strict=True))
