"""``tf.contrib.lookup``, which is ``tf.lookup`` now."""

from __future__ import annotations

from systolic.tf.contrib._table import Table, each

_OPS = "tensorflow.python.ops.lookup_ops:"
_SAME = """FastHashSpec HasherSpec IdTableWithHashBuckets KeyValueTensorInitializer MutableHashTable StrongHashSpec
TableInitializerBase TextFileIdTableInitializer TextFileInitializer TextFileStringTableInitializer index_table_from_file
index_table_from_tensor index_to_string_table_from_file index_to_string_table_from_tensor
"""

TABLE = Table(
    served=each(_OPS, _SAME)
    | {
        "HashTable": _OPS + "StaticHashTableV1",
        "MutableDenseHashTable": _OPS + "DenseHashTable",
        "InitializableLookupTableBase": _OPS + "InitializableLookupTableBaseV1",
        "TextFileIndex": "tf:lookup.TextFileIndex",
        "LookupInterface": _OPS + "LookupInterface",
    },
    instead={
        "string_to_index_table_from_file": "use tf.contrib.lookup.index_table_from_file",
        "string_to_index_table_from_tensor": "use tf.contrib.lookup.index_table_from_tensor",
        "string_to_index": "use tf.contrib.lookup.index_table_from_tensor and its lookup",
        "index_to_string": "use tf.contrib.lookup.index_to_string_table_from_tensor and its lookup",
    },
    private={"lookup_ops": ""},
    otherwise="use tf.lookup",
)
