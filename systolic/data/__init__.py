"""Static-shape input: whatever an ``input_fn`` returns becomes batches of one shape."""

from ._batch import Batch, Group
from ._batches import Batches
from ._casting import to_device_dtypes
from ._feed import Feed
from ._prefetch import Prefetch, prefetch
from ._sources import arrays, batches, examples, shuffle
from ._spec import ElementSpec, FeatureSpec

__all__ = [
    "Batch",
    "Batches",
    "ElementSpec",
    "FeatureSpec",
    "Feed",
    "Group",
    "Prefetch",
    "arrays",
    "batches",
    "examples",
    "prefetch",
    "shuffle",
    "to_device_dtypes",
]
