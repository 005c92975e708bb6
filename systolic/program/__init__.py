"""Programs: pure functions with a static signature, compiled for a Target."""

from systolic.program._budget import CompileBudget
from systolic.program._cpu_convolutions import Convolution
from systolic.program._cpu_pooling import MaxPoolGradient
from systolic.program._described import Description
from systolic.program._errors import CompilerCrash, CompilerMemoryError
from systolic.program._executable import Executable, MemoryStats
from systolic.program._jax_cache import cache_dir
from systolic.program._options import CompileOptions
from systolic.program._out_of_memory import LargeBuffer, ProgramTooLargeError, out_of_memory
from systolic.program._program import Program
from systolic.program._set import ProgramSet
from systolic.program._signature import Leaf, Signature, leaf_names, signature
from systolic.program._traced_errors import explain_traced, user_line

__all__ = [
    "CompileBudget",
    "CompileOptions",
    "CompilerCrash",
    "CompilerMemoryError",
    "Convolution",
    "Description",
    "Executable",
    "LargeBuffer",
    "Leaf",
    "MaxPoolGradient",
    "MemoryStats",
    "Program",
    "ProgramSet",
    "ProgramTooLargeError",
    "Signature",
    "cache_dir",
    "explain_traced",
    "leaf_names",
    "out_of_memory",
    "signature",
    "user_line",
]
