"""The TensorFlow front end: scripts of TensorFlow 1, and graphs of them as Programs.

Public: :func:`install`, :func:`run_script`, :func:`run_module`, :func:`check_script`, :func:`graph_error`; :func:`scan`, :class:`ScanReport`, :class:`FileScan`, :class:`Name`;
:class:`NotServedError`, :class:`NotServedImportError`; :func:`step_scope`, :func:`graph_function`, :class:`GraphFunction`, :func:`values`,
:func:`wide`. TensorFlow is imported when one of them is used, not before.
"""

from systolic._errors import NotServedError, NotServedImportError
from systolic.tf._check import check_script
from systolic.tf._failure import graph_error
from systolic.tf._graph import GraphFunction, graph_function, step_scope, values, wide
from systolic.tf._install import install
from systolic.tf._scan import FileScan, Name, ScanReport, scan
from systolic.tf._script import run_module, run_script

__all__ = [
    "FileScan",
    "GraphFunction",
    "Name",
    "NotServedError",
    "NotServedImportError",
    "ScanReport",
    "check_script",
    "graph_error",
    "graph_function",
    "install",
    "run_module",
    "run_script",
    "scan",
    "step_scope",
    "values",
    "wide",
]
