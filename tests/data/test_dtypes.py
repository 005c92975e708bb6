"""Dtypes: at the door, in transit, on the device; features that stay on the host; the spec."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from systolic import data
from systolic._log import Notices

TRAVEL = [
    # seen, travels as, on the device
    ("int64", "int32", "int32"),
    ("uint64", "uint32", "uint32"),
    ("float64", "float32", "float32"),
    ("uint8", "uint8", "int32"),
    ("int8", "int8", "int32"),
    ("uint16", "uint16", "int32"),
    ("int16", "int16", "int32"),
    ("int32", "int32", "int32"),
    ("uint32", "uint32", "uint32"),
    ("float32", "float32", "float32"),
    ("float16", "float16", "float16"),
    ("bool", "bool", "bool"),
    (">i8", "int32", "int32"),
    (">f4", "float32", "float32"),
    (ml_dtypes.bfloat16, "bfloat16", "bfloat16"),
]


@pytest.mark.parametrize(("seen", "host", "device"), TRAVEL, ids=[str(row[0]) for row in TRAVEL])
@pytest.mark.parametrize("form", ["arrays", "batches", "examples"])
def test_dtypes_at_the_door_and_on_the_device(seen, host, device, form):
    x = np.array([[0, 1], [1, 0], [1, 1]]).astype(seen)
    source = {
        "arrays": {"x": x},
        "batches": data.batches([{"x": x}]),
        "examples": data.examples([{"x": row} for row in x]),
    }[form]
    (batch,) = batches = data.Batches(source, 3, epochs=1)
    spec = batches.spec.features["x"]
    assert batch.features["x"].dtype.name == spec.dtype_host.name == host
    assert batch.features["x"].dtype.isnative
    assert spec.dtype_device.name == device
    assert spec.shape == (2,)
    on_device = jax.jit(lambda tree: data.to_device_dtypes(tree, batches.spec.features))(batch.features)["x"]
    assert on_device.dtype.name == device
    np.testing.assert_array_equal(np.asarray(on_device, np.float64), x.astype(np.float64))


@pytest.mark.parametrize("scalar", [3, 3.5, True, np.int64(3), np.float64(3.5), np.float32(3.5), np.uint8(3)])
def test_scalars_of_examples(scalar):
    (batch,) = data.Batches([{"x": scalar}] * 3, 3, epochs=1)
    np.testing.assert_array_equal(batch.features["x"], np.full(3, scalar, batch.features["x"].dtype))
    assert batch.features["x"].dtype in (np.int32, np.float32, np.uint8, np.bool_)


def test_one_notice_for_each_feature_that_is_cast(caplog):
    def input_fn():
        for _ in range(5):
            yield {"a": np.zeros(2), "b": np.zeros(2, np.uint8), "c": np.zeros(2, np.float32)}, np.zeros(2, np.int64)

    notices = Notices()
    for _ in range(2):
        list(data.Batches(data.batches(input_fn), 2, epochs=2, notices=notices))
    assert sorted(record.getMessage() for record in caplog.records) == [
        "a: float64 becomes float32 (values are checked to fit)",
        "b: uint8 becomes int32 (on the device; it travels as it is)",
        "labels: int64 becomes int32 (values are checked to fit)",
    ]


def test_strings_bytes_objects_and_dates_stay_on_the_host_for_the_real_rows():
    day = np.array(["2024-01-01", "2024-01-02", "2024-01-03"], "datetime64[ns]")
    tags = np.empty(3, object)
    tags[:] = [{"a": 1}, None, "x"]
    features = {
        "x": np.arange(3.0),
        "name": np.array(["a", "bb", "c"]),
        "raw": [b"1\0", b"2", b"3"],
        "day": day,
        "t": tags,
    }
    first, second = data.Batches(features, 2, tail="pad", epochs=1)
    assert set(first.features) == {"x"}
    assert first.host["name"].dtype == object
    assert first.host["name"].tolist() == ["a", "bb"]
    assert first.host["raw"].tolist() == [b"1\0", b"2"]
    assert second.host["name"].tolist() == ["c"]
    assert second.host["day"].tolist() == [day[2]]
    assert second.host["t"].tolist() == ["x"]
    (group,) = data.Batches(features, 2, tail="pad", epochs=1, stack=3)
    assert group.host["name"].tolist() == ["a", "bb", "c"]
    assert group.host["t"].tolist() == [{"a": 1}, None, "x"]


def test_strings_of_examples_come_back_in_order():
    elements = ({"x": float(i), "name": f"row {i}", "raw": bytes([i, 0])} for i in range(5))
    batches = list(data.Batches(elements, 2, tail="pad", epochs=1))
    assert [name for batch in batches for name in batch.host["name"]] == [f"row {i}" for i in range(5)]
    assert [raw for batch in batches for raw in batch.host["raw"]] == [bytes([i, 0]) for i in range(5)]


def test_host_only_features_may_be_absent_from_training_and_the_reverse():
    train = data.Batches({"x": np.arange(3.0), "tag": np.array(["a", "b", "c"])}, 3).spec
    (batch,) = data.Batches({"x": np.arange(3.0), "id": np.array(["u", "v", "w"])}, 3, epochs=1, spec=train)
    assert batch.host["id"].tolist() == ["u", "v", "w"]
    assert set(batch.features) == {"x"}


def test_host_only_items_of_a_tuple_leave_the_others_in_place():
    (batch,) = data.Batches(((np.array(["a", "b"]), np.ones(2)), np.zeros(2)), 2, epochs=1)
    assert batch.features[0] is None
    np.testing.assert_array_equal(batch.features[1], [1, 1])
    assert batch.host["0"].tolist() == ["a", "b"]


def test_a_known_spec_decides_between_example_and_batch():
    spec = data.Batches({"x": np.zeros((4, 6, 2), np.float32)}, 2).spec
    as_batches = data.Batches([{"x": np.zeros((5, 6, 2), np.float32)}], 5, spec=spec, epochs=1)
    assert len(list(as_batches)) == 1
    as_examples = data.Batches([{"x": np.zeros((6, 2), np.float32)}] * 5, 5, spec=spec, epochs=1)
    assert next(as_examples).features["x"].shape == (5, 6, 2)


def test_an_unmarked_batch_is_read_as_one_with_a_notice(caplog):
    element = {"x": np.zeros((4, 3), np.float32)}, np.zeros(4, np.int32)
    assert data.Batches([element], 2).spec.features["x"].shape == (3,)
    assert "leading dimension 4 was read as a batch" in caplog.text
    assert "systolic.data.examples(...)" in caplog.text
    caplog.clear()
    assert data.Batches(data.examples([element]), 2).spec.features["x"].shape == (4, 3)
    assert data.Batches(data.batches([element]), 2).spec.features["x"].shape == (3,)
    assert data.Batches([({"x": np.zeros((4, 3), np.float32)}, np.int32(1))], 2).spec.features["x"].shape == (4, 3)
    assert not caplog.records


def test_the_spec_makes_the_signature_of_programs():
    features = {"image": np.zeros((5, 8, 8, 3), np.uint8), "name": np.array(list("abcde")), "more": {"z": np.zeros(5)}}
    spec = data.Batches((features, np.zeros(5, np.int64)), 4).spec
    structs, labels = spec.batched(16, stack=10)
    assert set(structs) == {"image", "more"}
    assert structs["image"] == jax.ShapeDtypeStruct((10, 16, 8, 8, 3), jnp.uint8)
    assert structs["more"]["z"] == jax.ShapeDtypeStruct((10, 16), jnp.float32)
    assert labels == jax.ShapeDtypeStruct((10, 16), jnp.int32)
    assert spec.batched(16, device=True)[0]["image"] == jax.ShapeDtypeStruct((16, 8, 8, 3), jnp.int32)
    batch = next(data.Batches((features, np.zeros(5, np.int64)), 4))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (batch.features, batch.labels))
    assert shapes == spec.batched(4)
    assert list(spec.named()) == ["image", "more/z", "name", "labels"]
    assert spec.features["image"].nbytes == 8 * 8 * 3


def test_features_may_be_called_labels():
    tree = {"labels": np.zeros((4, 2)), "features": np.array(list("abcd")), "x": np.zeros(4)}
    spec = data.Batches((tree, np.zeros(4, np.int32)), 2).spec
    assert list(spec.named()) == ["features/features", "features/labels", "x", "labels"]
    batch = next(data.Batches(tree, 2, spec=spec, labels_expected=False))
    assert set(batch.features) == {"labels", "x"}
    assert batch.host["features/features"].tolist() == ["a", "b"]


def test_a_spec_survives_json():
    features = {"a": np.zeros((3, 2), ml_dtypes.bfloat16), "b": (np.zeros(3, bool), np.array(["x", "y", "z"]))}
    spec = data.Batches((features, np.zeros(3, np.int8)), 2).spec
    assert data.ElementSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    bare = data.Batches(np.zeros((3, 2)), 2).spec
    assert data.ElementSpec.from_json(json.loads(json.dumps(bare.to_json()))) == bare
    assert bare.labels is None
