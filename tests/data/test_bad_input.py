"""Bad input: one clear error that names the feature, what was seen, what was wanted, and the example."""

import numpy as np
import pytest

from systolic import data
from systolic._errors import InputError

F32 = np.dtype("float32")


def run(source, batch_size=4, **options):
    for _ in data.Batches(source, batch_size, **{"epochs": 2, "tail": "pad", **options}):
        pass


class RaggedTensorValue:
    """What tf.data's as_numpy_iterator gives for a ragged component."""


def test_tensors_that_are_not_dense_are_named():
    with pytest.raises(InputError, match="feature 'ids': a RaggedTensorValue seen, a dense array"):
        run([{"ids": RaggedTensorValue()}])


def test_a_feature_of_another_shape_names_shapes_and_example():
    def input_fn():
        for i in range(10):
            yield {"image": np.zeros((28, 27 if i == 7 else 28), np.float32), "id": i}

    with pytest.raises(InputError, match=r"feature 'image' of example 7: shape \(28, 27\) seen, \(28, 28\) expected"):
        run(input_fn)


def test_a_batch_of_another_shape_names_the_example_it_starts_at():
    elements = [{"x": np.zeros((3, 2), np.float32)}, {"x": np.zeros((3, 5), np.float32)}]
    match = r"feature 'x' of the batch that starts at example 3: shape \(3, 5\) seen, \(rows, 2\) expected"
    with pytest.raises(InputError, match=match):
        run(data.batches(elements))


def test_features_and_labels_of_different_length_are_refused():
    with pytest.raises(InputError, match=r"feature 'x' has 6 rows and labels has 5"):
        run(({"x": np.zeros((6, 2), np.float32)}, np.zeros(5, np.int32)))
    with pytest.raises(
        InputError, match=r"batch that starts at example 4: feature 'a' has 4 rows and feature 'b' has 3"
    ):
        run(data.batches([{"a": np.ones(4), "b": np.ones(4)}, {"a": np.ones(4), "b": np.ones(3)}]))


def test_missing_and_unexpected_features_are_named():
    elements = [{"a": 1.0, "b": 2.0}, {"a": 1.0, "c": 2.0}]
    with pytest.raises(InputError, match=r"example 1: missing: 'b'; not expected: 'c'"):
        run(elements)


def test_features_that_training_had_and_this_data_has_not_are_named():
    spec = data.ElementSpec({"a": data.FeatureSpec((), F32, F32), "b": data.FeatureSpec((), F32, F32)})
    with pytest.raises(InputError, match=r"example 0: missing: 'b'\. .*the same as in training"):
        run({"a": np.zeros(3, np.float32)}, spec=spec)
    with pytest.raises(InputError, match=r"feature 'b' .*: shape \(3, 2\) seen, \(rows,\) expected"):
        run({"a": np.zeros(3, np.float32), "b": np.zeros((3, 2), np.float32)}, spec=spec)


def test_labels_that_are_wanted_and_missing():
    with pytest.raises(
        InputError, match=r"example 0: dict of 1 without labels seen, a pair \(features, labels\) wanted"
    ):
        run({"x": np.zeros(3, np.float32)}, labels_expected=True)
    with pytest.raises(InputError, match=r"without labels seen"):
        run(({"x": np.zeros(3, np.float32)}, None), labels_expected=True)


def test_another_dtype_is_refused_with_both_dtypes():
    elements = [{"x": np.zeros(3, np.int32)}, {"x": np.zeros(3, np.float32)}]
    with pytest.raises(InputError, match=r"starts at example 3: dtype float32 seen, int32 expected"):
        run(data.batches(elements))


@pytest.mark.parametrize("source", [[{"ids": [[1, 2], [3]]}], {"ids": [[1, 2], [3]]}], ids=["example", "data set"])
def test_ragged_lists_are_called_ragged(source):
    with pytest.raises(InputError, match=r"feature 'ids' is ragged.*Pad each example"):
        run(source)


def test_an_object_array_of_arrays_is_called_ragged():
    column = np.empty(2, object)
    column[:] = [np.zeros(2), np.zeros(3)]
    with pytest.raises(InputError, match=r"feature 'ids' of example 0: an object array of ndarray seen.*ragged"):
        run({"ids": column, "x": np.zeros(2, np.float32)})


def test_ragged_examples_name_the_example():
    elements = [{"ids": [1, 2]}, {"ids": [3, 4]}, {"ids": [5]}]
    with pytest.raises(
        InputError, match=r"feature 'ids' of example 2: shape \(1,\) seen, \(2,\) expected.*pad or crop"
    ):
        run(data.examples(elements))


@pytest.mark.parametrize(
    "source",
    [[], iter(()), lambda: iter(()), {"x": np.zeros((0, 3), np.float32)}, data.batches([{"x": np.zeros((0, 3))}])],
    ids=["list", "iterator", "generator", "arrays", "empty batch"],
)
@pytest.mark.parametrize("tail", ["carry", "drop", "pad"])
@pytest.mark.parametrize("epochs", [1, None])
def test_an_empty_data_set_is_an_error_and_no_hang(source, tail, epochs):
    with pytest.raises(InputError, match="the data set has 0 examples") as caught:
        run(source, tail=tail, epochs=epochs)
    assert ("it is an iterator, which runs once" in str(caught.value).lower()) == (
        hasattr(source, "__next__") or callable(source)
    )
    with pytest.raises(InputError, match="has 0 examples"):
        data.Batches(source, 2, tail=tail, epochs=epochs).peek()


def test_a_later_epoch_without_elements_is_an_error_and_no_hang():
    with pytest.raises(InputError, match=r"epoch 1 has 0 examples.*fresh iterable"):
        run(lambda epoch: [{"x": 1.0}] if epoch == 0 else [], tail="carry", epochs=None)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: lambda: x, data.examples, lambda x: data.shuffle(x, 4, 0)])
def test_an_iterator_that_is_used_up_is_told_apart(wrap):
    source = wrap({"x": float(i)} for i in range(3))
    with pytest.raises(InputError, match=r"epoch 1 is needed and the iterator .* is used up.*fresh iterable"):
        run(source, tail="carry", epochs=None)


def test_what_a_generator_raises_names_the_element_and_keeps_the_cause():
    def input_fn():
        yield {"x": np.zeros(3, np.float32)}
        raise KeyError("no such file")

    batches = data.Batches(data.batches(input_fn), 2)
    next(batches)
    for _ in range(2):  # not mistaken for the end when asked again
        with pytest.raises(
            InputError, match=r"KeyError raised at element 1, after 3 examples: 'no such file'"
        ) as caught:
            next(batches)
        assert isinstance(caught.value.__cause__, KeyError)


def test_what_input_fn_itself_raises_keeps_the_cause():
    def input_fn():
        raise OSError("disk gone")

    with pytest.raises(InputError, match="input_fn raised OSError when called for epoch 0: disk gone") as caught:
        run(input_fn)
    assert isinstance(caught.value.__cause__, OSError)


def test_integers_that_do_not_fit_name_feature_and_example():
    ids = np.arange(10, dtype=np.int64)
    ids[6] = 2**31
    with pytest.raises(InputError, match=r"feature 'id' of example 6: the value 2147483648 does not fit int32"):
        run({"id": ids})
    with pytest.raises(InputError, match=r"feature 'id' of example 6: the value 2147483648"):
        run(data.arrays({"id": ids}, shuffle=1))
    with pytest.raises(InputError, match=r"feature 'id' of example 6: the value 2147483648"):
        run(data.batches([{"id": ids[:4]}, {"id": ids[4:]}]))
    with pytest.raises(InputError, match=r"feature 'id' of example 6: the value 2147483648"):
        run([{"id": int(i)} for i in ids])
    with pytest.raises(InputError, match=r"feature 'id' of example 1: the value 4294967296 does not fit uint32"):
        run({"id": np.array([1, 2**32], np.uint64)})
    with pytest.raises(InputError, match=r"does not fit 64 bits"):
        run([{"id": 2**70}])


def test_floats_that_do_not_fit_name_feature_and_example():
    x = np.ones(6)
    x[5] = 1e300
    with pytest.raises(InputError, match=r"feature 'x' of example 5: the value 1e\+300 does not fit float32"):
        run({"x": x})
    with pytest.raises(InputError, match=r"feature 'x' of example 5: the value 1e\+300"):
        run([{"x": float(value)} for value in x])


def test_infinities_and_nans_pass_as_they_are():
    (batch,) = data.Batches({"x": np.array([np.inf, -np.inf, np.nan])}, 3, epochs=1)
    np.testing.assert_array_equal(batch.features["x"], np.array([np.inf, -np.inf, np.nan], np.float32))
    (batch,) = data.Batches([{"x": v} for v in (1.0, float("inf"), float("nan"))], 3, epochs=1)
    np.testing.assert_array_equal(batch.features["x"], np.array([1, np.inf, np.nan], np.float32))


def test_string_labels_are_refused():
    with pytest.raises(InputError, match=r"labels: <U3 values seen, numbers wanted. Map labels to integer ids"):
        run((np.zeros((2, 3), np.float32), np.array(["cat", "dog"])))


def test_features_of_strings_alone_are_refused():
    with pytest.raises(
        InputError, match=r"only feature 'name' \(<U1\) seen, which cannot go to a device; at least one"
    ):
        run({"name": np.array(["a", "b"])})


def test_an_input_fn_with_other_arguments_says_how_to_bind_them():
    with pytest.raises(InputError, match=r"it needs the argument 'params'.*functools.partial"):
        run(lambda params: [])


def test_scalars_where_rows_are_wanted():
    with pytest.raises(InputError, match=r"feature 'x': a scalar seen; an array with a leading batch dimension"):
        run(data.batches([{"x": 1.0}]))


def test_an_epoch_smaller_than_a_batch_with_drop_is_an_error_and_no_hang():
    with pytest.raises(InputError, match=r"batch_size: 4 seen, and an epoch has 3 examples"):
        run({"x": np.zeros(3, np.float32)}, tail="drop", epochs=None)


def test_data_smaller_than_one_batch_is_not_dropped_silently():
    with pytest.raises(InputError, match=r"batch_size: 4 seen, and the data has 3 examples in all"):
        run({"x": np.zeros(3, np.float32)}, tail="carry", epochs=1)


def test_a_position_beyond_the_data_says_that_the_data_changed():
    start = {"epoch": 0, "element": 0, "row": 9}
    match = "the position to go on from says .* It was changed since the position was saved"
    for source in (
        {"x": np.zeros(5, np.float32)},
        data.batches([{"x": np.zeros(5, np.float32)}]),
        data.shuffle(data.batches([{"x": np.zeros(5, np.float32)}]), 4, seed=0),
    ):
        with pytest.raises(InputError, match=match):
            run(source, start=start)
    with pytest.raises(InputError, match=match):
        run([{"x": 1.0}], start={"epoch": 0, "element": 4, "row": 0, "example": 4})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 0}, "batch_size: 0 seen, a positive integer wanted"),
        ({"stack": 1.5}, "stack: 1.5 seen, a positive integer wanted"),
        ({"epochs": 0}, "epochs: 0 seen, a positive integer wanted"),
        ({"tail": "keep"}, "tail: 'keep' seen, one of 'carry', 'drop', 'pad' wanted"),
        ({"start": {"epoch": 1}}, "start: a position without 'element' seen"),
    ],
)
def test_bad_arguments(options, match):
    with pytest.raises(InputError, match=match):
        run({"x": np.zeros(3, np.float32)}, **options)


def test_bad_arguments_of_sources():
    with pytest.raises(InputError, match="shuffle: -1 seen, a non-negative integer"):
        data.arrays(np.zeros(3), shuffle=-1)
    with pytest.raises(InputError, match="buffer: 1 seen, an integer of at least 2"):
        data.shuffle([], 1, 0)
    with pytest.raises(InputError, match="seed: None seen"):
        data.shuffle([], 4, None)


def test_names_that_are_no_strings_or_not_one():
    with pytest.raises(InputError, match=r"features: the name 3 \(int\) seen.*feature names are strings"):
        run([{3: 1.0}])
    with pytest.raises(InputError, match=r"the name 3 \(int\) seen"):
        run([{3: 1.0, "a": 2.0}])  # names that do not even compare
    with pytest.raises(InputError, match=r"feature 'a/b': seen twice"):
        run({"a/b": np.ones(3), "a": {"b": np.ones(3)}})
