"""The TensorFlow front end: graphs of TensorFlow 1 as Programs.

Public: :func:`step_scope`, :func:`graph_function`, :class:`GraphFunction`, :func:`values`, :func:`wide`. TensorFlow is imported when one of them
is used, not before.
"""

from systolic.tf._graph import GraphFunction, graph_function, step_scope, values, wide

__all__ = ["GraphFunction", "graph_function", "step_scope", "values", "wide"]
