"""Types of StableHLO as JAX has them."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.interpreters import mlir

_DTYPES = {
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "ui8": np.uint8, "ui16": np.uint16, "ui32": np.uint32, "ui64": np.uint64,
    "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "f64": np.float64,
    "complex<f32>": np.complex64, "complex<f64>": np.complex128,
}  # fmt: skip


def struct(of: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a ranked tensor type."""
    ranked = mlir.ir.RankedTensorType(of)
    return jax.ShapeDtypeStruct(tuple(ranked.shape), _DTYPES[str(ranked.element_type)])
