"""``tf.contrib.summary``: summaries that are operations, as in a host call."""

from __future__ import annotations

from systolic.tf.contrib._table import Table, each

_OPS = "tensorflow.python.ops.summary_ops_v2:"
_SAME = """SummaryWriter always_record_summaries audio create_file_writer create_summary_file_writer eval_dir generic graph
histogram image import_event initialize never_record_summaries record_summaries_every_n_global_steps scalar
should_record_summaries summary_writer_initializer_op
"""

TABLE = Table(
    served=each(_OPS, _SAME) | {"all_summary_ops": _OPS + "all_v2_summary_ops", "flush": _OPS + "legacy_raw_flush"},
    instead={"create_db_writer": "use tf.contrib.summary.create_file_writer", "event": "use import_event"},
    private={"summary": "", "summary_ops": ""},
)
