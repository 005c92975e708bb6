"""``tf.contrib.metrics``, which is ``tf_slim.metrics`` now."""

from __future__ import annotations

from systolic.tf.contrib._table import Table, alike, each

_STREAMING = """accuracy auc concat covariance curve_points dynamic_auc false_negative_rate false_negative_rate_at_thresholds
false_negatives false_negatives_at_thresholds false_positive_rate false_positive_rate_at_thresholds false_positives
false_positives_at_thresholds mean mean_absolute_error mean_cosine_distance mean_iou mean_relative_error mean_squared_error
mean_tensor pearson_correlation percentage_less precision precision_at_thresholds recall recall_at_k recall_at_thresholds
root_mean_squared_error sensitivity_at_specificity sparse_average_precision_at_k sparse_average_precision_at_top_k
sparse_precision_at_k sparse_precision_at_top_k sparse_recall_at_k specificity_at_sensitivity true_negatives
true_negatives_at_thresholds true_positives true_positives_at_thresholds
"""
_OTHERS = """accuracy aggregate_metric_map aggregate_metrics auc_using_histogram auc_with_confidence_intervals cohen_kappa count
f1_score precision_at_recall precision_recall_at_equal_thresholds recall_at_precision sparse_recall_at_top_k
"""

TABLE = Table(
    served=each("tf_slim.metrics:", _OTHERS)
    | {f"streaming_{name}": f"tf_slim.metrics:streaming_{name}" for name in _STREAMING.split()}
    | {"confusion_matrix": "tf:math.confusion_matrix"}
    | {f"set_{name}": f"tf:sets.{name}" for name in ("difference", "intersection", "size", "union")},
    private=alike("python.ops python.ops.metric_ops python.metrics python.metrics.classification", ""),
    otherwise="use tf.metrics",
)
