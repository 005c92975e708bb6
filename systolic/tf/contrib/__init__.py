"""``tf.contrib`` for scripts of TensorFlow 1: what is served, from where, and what to use instead of the rest.

Public: :class:`Contrib`, :class:`Table`, :func:`table`, :data:`MODULES`, :func:`each`, :func:`found`.
"""

from systolic.tf.contrib._modules import MODULES, Contrib, table
from systolic.tf.contrib._table import Table, each, found

__all__ = ["MODULES", "Contrib", "Table", "each", "found", "table"]
