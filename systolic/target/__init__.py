"""Targets: the devices a program goes to, what they can do, and the quirks of the TPU compiler.

Public: :class:`Target`, :class:`Hardware`, :data:`HARDWARE`, :func:`known_targets`. The other names are for the floors
above.
"""

from systolic.target._attached import cpu_will_have, platforms_explained
from systolic.target._hardware import HARDWARE, Hardware
from systolic.target._libtpu import (
    compile_devices,
    compile_mesh,
    compiler_environment,
    compiler_options,
    libtpu_version,
    prepare_process,
    quiet_environment,
    tpu_attached,
)
from systolic.target._mesh import arrange, check_axes, resolve_axes
from systolic.target._names import known_targets
from systolic.target._target import Target

__all__ = [
    "HARDWARE",
    "Hardware",
    "Target",
    "arrange",
    "check_axes",
    "compile_devices",
    "compile_mesh",
    "compiler_environment",
    "compiler_options",
    "cpu_will_have",
    "known_targets",
    "libtpu_version",
    "platforms_explained",
    "prepare_process",
    "quiet_environment",
    "resolve_axes",
    "tpu_attached",
]
